"""Keys and values that outlive a request: turns of one episode and chains of one prompt share them.

An entry is a run of ids and their KV, of one policy version. A lookup finds the entry that shares
the longest beginning with a prompt. Versions never mix: asking across one is an error.

On a GPU an entry may be resident: its KV still lies where a row computed it, in a home of the engine's buffer.
It costs nothing there and is moved out when the home is wanted for another row.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import ne

from torch import Tensor

BLOCK = 16
"""Ids hashed together. A match may end inside a block: the entry's own ids say exactly where."""


@dataclass(eq=False)
class CachedPrefix:
    """KV [layers, 2, K, ids, D] of a run of ids, or the home in which it lies."""

    ids: tuple[int, ...]
    kv: Tensor | None
    home: int | None
    version: int
    session: str
    owner: str = ""
    hashes: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return 0 if self.kv is None else self.kv.numel() * self.kv.element_size()


class PrefixCache:
    """The most recently used entries, up to a number of bytes; 0: none at all."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.version = 0
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()
        self._by_hash: dict[int, dict[CachedPrefix, None]] = {}
        """Who begins with these blocks, the newest last."""
        self._by_session: dict[str, CachedPrefix] = {}
        self.resident: dict[int, CachedPrefix] = {}
        """By home."""

    def __len__(self) -> int:
        return len(self._entries)

    def set_version(self, version: int) -> None:
        """A new policy: everything of the old one goes."""
        if version != self.version:
            self._entries.clear()
            self._by_hash.clear()
            self._by_session.clear()
            self.resident.clear()
            self.bytes, self.version = 0, version

    def match(
        self, ids: tuple[int, ...], session: str = "", owner: str = "", hashes: Sequence[int] | None = None
    ) -> tuple[CachedPrefix | None, int]:
        """The entry with the longest common beginning, and its length; a session's own entry where it serves as well.

        Preferring the session's own keeps an episode's numbers its own, whichever chain finished last. What one
        `owner` (an adapter) computed is of no use to another.
        """
        best: CachedPrefix | None = None
        for key in block_hashes(ids, owner) if hashes is None else hashes:
            holders = self._by_hash.get(key)
            if holders is None:
                break
            best = next(reversed(holders))
        length = _common(ids, best.ids) if best is not None else 0
        own = self._by_session.get(session) if session else None
        if own is not None and own is not best and own.owner == owner:
            shared = _common(ids, own.ids)
            if shared >= length:
                best, length = own, shared
        if best is None:
            return None, 0
        if best.version != self.version or best.owner != owner:
            raise AssertionError("a prefix of another policy was about to be used")
        self._entries.move_to_end(id(best))
        return best, length

    def put(
        self, ids: tuple[int, ...], kv: Tensor | int, session: str = "", owner: str = "", hashes: Sequence[int] = ()
    ) -> None:
        """Keep a run, of whose first blocks the hashes may be known; its KV, or the home in which it lies. A session
        keeps one entry: its newest, which holds all the older ones."""
        if session:
            self.end_session(session)
        lies, home = (None, kv) if isinstance(kv, int) else (kv, None)
        entry = CachedPrefix(ids, lies, home, self.version, session, owner, block_hashes(ids, owner, hashes))
        if not entry.hashes or not self.max_bytes or entry.bytes > self.max_bytes:
            return
        self._entries[id(entry)] = entry
        self.bytes += entry.bytes
        for key in entry.hashes:
            self._by_hash.setdefault(key, {})[entry] = None
        if session:
            self._by_session[session] = entry
        if home is not None:
            self.resident[home] = entry
        self._trim()

    def oldest_residents(self, wanted: int) -> list[tuple[int, CachedPrefix]]:
        """Those that were not used for the longest time, and their homes."""
        residents = ((entry.home, entry) for entry in self._entries.values() if entry.home is not None)
        return list(islice(residents, max(0, wanted)))

    def take(self, entry: CachedPrefix) -> None:
        """Its home is somebody's from here on, who writes behind what was found there."""
        self._drop(entry)

    def move_out(self, entry: CachedPrefix, kv: Tensor) -> None:
        """A resident's home is wanted for another row, and this is a copy of what lies there. Who has found the entry
        may still copy from it, even if the store has no room for it."""
        if entry.home is not None:
            del self.resident[entry.home]
        entry.kv, entry.home = kv, None
        self.bytes += entry.bytes
        if entry.bytes > self.max_bytes:
            self._drop(entry)
        self._trim()

    def _trim(self) -> None:
        while self.bytes > self.max_bytes:
            self._drop(next(entry for entry in self._entries.values() if entry.kv is not None))

    def end_session(self, session: str) -> None:
        entry = self._by_session.get(session)
        if entry is not None:
            self._drop(entry)

    def disown(self, owner: str) -> None:
        """What an adapter computed goes with it."""
        for entry in [entry for entry in self._entries.values() if entry.owner == owner]:
            self._drop(entry)

    def _drop(self, entry: CachedPrefix) -> None:
        del self._entries[id(entry)]
        self.bytes -= entry.bytes
        for key in entry.hashes:
            holders = self._by_hash[key]
            del holders[entry]
            if not holders:
                del self._by_hash[key]
        if self._by_session.get(entry.session) is entry:
            del self._by_session[entry.session]
        if entry.home is not None:
            del self.resident[entry.home]


def _common(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """How many ids two runs begin with in common."""
    shorter = min(len(first), len(second))
    if first[:shorter] == second[:shorter]:  # as nearly always: the hashes have matched
        return shorter
    return next(compress(count(), map(ne, first, second)), shorter)


def block_hashes(ids: Sequence[int], owner: str = "", known: Sequence[int] = ()) -> list[int]:
    """One hash a whole block, each covering everything before it; those of the first blocks may be known."""
    hashes = list(known)
    running = hashes[-1] if hashes else hash(owner) if owner else 0
    for start in range(BLOCK * len(hashes), len(ids) - BLOCK + 1, BLOCK):
        running = hash((running, *ids[start : start + BLOCK]))
        hashes.append(running)
    return hashes
