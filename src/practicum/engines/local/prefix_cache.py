"""Cached prefixes: keys and values that outlive a request, shared by an episode's turns and a prompt's samples.

An entry is a run of ids and their KV, of one policy version. A lookup finds the entry that shares the longest prefix
with a prompt. Versions never mix: a match across versions is an error.

On a GPU an entry may be resident: its KV is still in the slot of the KV cache in which a request computed it. It costs
no memory of its own there, and is moved out when the slot is allocated to another request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import ne
from typing import NamedTuple

from torch import Tensor

BLOCK_TOKENS = 16
"""Ids hashed together. A match may end inside a block: the entry's own ids say exactly where."""


@dataclass(eq=False)
class CachedPrefix:
    """A run of ids with its KV, either as a tensor (`KVCache.extract`) or as the slot that holds it."""

    ids: tuple[int, ...]
    kv: Tensor | None
    slot: int | None
    version: int
    session: str
    adapter: str = ""
    hashes: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return 0 if self.kv is None else self.kv.numel() * self.kv.element_size()


class PrefixMatch(NamedTuple):
    """The entry that shares the longest prefix with a prompt, if any, and the number of ids shared."""

    entry: CachedPrefix | None
    length: int


NO_MATCH = PrefixMatch(None, 0)


class PrefixCache:
    """The most recently used prefixes, of at most `max_bytes` in all; 0 keeps none."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.version = 0
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()
        self._by_hash: dict[int, dict[CachedPrefix, None]] = {}
        """The entries that begin with these blocks, the newest last."""
        self._by_session: dict[str, CachedPrefix] = {}
        self.resident: dict[int, CachedPrefix] = {}
        """Entries by the slot that holds them."""

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CachedPrefix]:
        return iter(self._entries.values())

    @property
    def num_sessions(self) -> int:
        """Sessions for which a prefix is kept."""
        return len(self._by_session)

    def set_version(self, version: int) -> None:
        """Drop everything that another policy version computed."""
        if version != self.version:
            self._entries.clear()
            self._by_hash.clear()
            self._by_session.clear()
            self.resident.clear()
            self.bytes, self.version = 0, version

    def match(
        self, ids: tuple[int, ...], session: str = "", adapter: str = "", hashes: Sequence[int] | None = None
    ) -> PrefixMatch:
        """The entry with the longest common prefix; the session's own entry where it shares as much.

        Preferring the session's own keeps an episode's numbers independent of which other episode ended last. What one
        adapter computed is of no use to another. `hashes`: those of `ids`, where the caller has them.
        """
        best: CachedPrefix | None = None
        for key in block_hashes(ids, adapter) if hashes is None else hashes:
            holders = self._by_hash.get(key)
            if holders is None:
                break
            best = next(reversed(holders))
        length = _common_length(ids, best.ids) if best is not None else 0
        own = self._by_session.get(session) if session else None
        if own is not None and own is not best and own.adapter == adapter:
            shared = _common_length(ids, own.ids)
            if shared >= length:
                best, length = own, shared
        if best is None:
            return NO_MATCH
        if best.version != self.version or best.adapter != adapter:
            raise AssertionError("a prefix of another policy was about to be used")
        self._entries.move_to_end(id(best))
        return PrefixMatch(best, length)

    def put(
        self, ids: tuple[int, ...], kv: Tensor | int, session: str = "", adapter: str = "", hashes: Sequence[int] = ()
    ) -> None:
        """Keep a run of ids with its KV (a tensor, or the slot that holds it); `hashes`: of its first blocks, if known.

        A session keeps one entry: its newest, which contains all the older ones.
        """
        if session:
            self.end_session(session)
        tensor, slot = (None, kv) if isinstance(kv, int) else (kv, None)
        entry = CachedPrefix(ids, tensor, slot, self.version, session, adapter, block_hashes(ids, adapter, hashes))
        if not entry.hashes or not self.max_bytes or entry.bytes > self.max_bytes:
            return
        self._entries[id(entry)] = entry
        self.bytes += entry.bytes
        for key in entry.hashes:
            self._by_hash.setdefault(key, {})[entry] = None
        if session:
            self._by_session[session] = entry
        if slot is not None:
            self.resident[slot] = entry
        self._trim()

    def oldest_residents(self, count: int) -> list[tuple[int, CachedPrefix]]:
        """At most `count` resident entries with their slots, the least recently used first."""
        residents = ((entry.slot, entry) for entry in self._entries.values() if entry.slot is not None)
        return list(islice(residents, max(0, count)))

    def move_out(self, entry: CachedPrefix, kv: Tensor) -> None:
        """Keep a copy of a resident entry's KV instead of its slot.

        A request that has matched the entry may still copy from it, even if it is dropped for want of room.
        """
        if entry.slot is not None:
            del self.resident[entry.slot]
        entry.kv, entry.slot = kv, None
        self.bytes += entry.bytes
        if entry.bytes > self.max_bytes:
            self.remove(entry)
        self._trim()

    def _trim(self) -> None:
        while self.bytes > self.max_bytes:
            self.remove(next(entry for entry in self._entries.values() if entry.kv is not None))

    def end_session(self, session: str) -> None:
        """Drop the session's entry."""
        entry = self._by_session.get(session)
        if entry is not None:
            self.remove(entry)

    def remove_adapter(self, adapter: str) -> None:
        """Drop what an adapter computed."""
        for entry in [entry for entry in self._entries.values() if entry.adapter == adapter]:
            self.remove(entry)

    def remove(self, entry: CachedPrefix) -> None:
        """Drop an entry; a slot that held it is an ordinary free slot again."""
        del self._entries[id(entry)]
        self.bytes -= entry.bytes
        for key in entry.hashes:
            holders = self._by_hash[key]
            del holders[entry]
            if not holders:
                del self._by_hash[key]
        if self._by_session.get(entry.session) is entry:
            del self._by_session[entry.session]
        if entry.slot is not None:
            del self.resident[entry.slot]


def _common_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """The number of ids that two runs begin with in common."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:  # nearly always: the hashes have matched
        return shorter
    return next(compress(count(), map(ne, first, second)), shorter)


def block_hashes(ids: Sequence[int], adapter: str = "", known: Sequence[int] = ()) -> list[int]:
    """One hash per complete block, each covering everything before it; `known`: the hashes of the first blocks."""
    hashes = list(known)
    running = hashes[-1] if hashes else hash(adapter) if adapter else 0
    for start in range(BLOCK_TOKENS * len(hashes), len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        running = hash((running, *ids[start : start + BLOCK_TOKENS]))
        hashes.append(running)
    return hashes
