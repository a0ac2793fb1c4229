"""Keys and values that outlive a request: turns of one episode and chains of one prompt share them.

An entry is a run of ids and their KV, of one policy version. A lookup finds the entry that shares
the longest beginning with a prompt. Versions never mix: asking across one is an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

BLOCK = 16
"""Ids hashed together. A match may end inside a block: the entry's own ids say exactly where."""


@dataclass(eq=False)
class Entry:
    """KV [layers, 2, K, ids, D] of a run of ids."""

    ids: tuple[int, ...]
    kv: Tensor
    version: int
    session: str
    owner: str = ""
    hashes: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return self.kv.numel() * self.kv.element_size()


class PrefixStore:
    """The most recently used entries, up to a number of bytes."""

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.bytes = 0
        self.version = 0
        self._entries: OrderedDict[int, Entry] = OrderedDict()
        self._by_hash: dict[int, list[Entry]] = {}
        self._by_session: dict[str, Entry] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def set_version(self, version: int) -> None:
        """A new policy: everything of the old one goes."""
        if version != self.version:
            self._entries.clear()
            self._by_hash.clear()
            self._by_session.clear()
            self.bytes, self.version = 0, version

    def match(
        self, ids: Sequence[int], session: str = "", owner: str = "", hashes: Sequence[int] | None = None
    ) -> tuple[Entry | None, int]:
        """The entry with the longest common beginning, and its length; a session's own entry where it serves as well.

        Preferring the session's own keeps an episode's numbers its own, whichever chain finished last. What one
        `owner` (an adapter) computed is of no use to another.
        """
        best: Entry | None = None
        for key in block_hashes(ids, owner) if hashes is None else hashes:
            holders = self._by_hash.get(key)
            if holders is None:
                break
            best = holders[-1]
        length = _common(ids, best.ids) if best is not None else 0
        own = self._by_session.get(session) if session else None
        if own is not None and own.owner == owner and _common(ids, own.ids) >= length:
            best, length = own, _common(ids, own.ids)
        if best is None:
            return None, 0
        if best.version != self.version or best.owner != owner:
            raise AssertionError("a prefix of another policy was about to be used")
        self._entries.move_to_end(id(best))
        return best, length

    def put(
        self, ids: tuple[int, ...], kv: Tensor, session: str = "", owner: str = "", hashes: Sequence[int] = ()
    ) -> None:
        """Keep a run, of whose first blocks the hashes may be known. A session keeps one entry: its newest, which holds
        all the older ones."""
        if session:
            self.forget(session)
        entry = Entry(ids, kv, self.version, session, owner, block_hashes(ids, owner, hashes))
        if not entry.hashes or entry.bytes > self.max_bytes:
            return
        self._entries[id(entry)] = entry
        self.bytes += entry.bytes
        for key in entry.hashes:
            self._by_hash.setdefault(key, []).append(entry)
        if session:
            self._by_session[session] = entry
        while self.bytes > self.max_bytes:
            self._drop(next(iter(self._entries.values())))

    def forget(self, session: str) -> None:
        entry = self._by_session.get(session)
        if entry is not None:
            self._drop(entry)

    def disown(self, owner: str) -> None:
        """What an adapter computed goes with it."""
        for entry in [entry for entry in self._entries.values() if entry.owner == owner]:
            self._drop(entry)

    def _drop(self, entry: Entry) -> None:
        del self._entries[id(entry)]
        self.bytes -= entry.bytes
        for key in entry.hashes:
            holders = self._by_hash[key]
            holders.remove(entry)
            if not holders:
                del self._by_hash[key]
        if self._by_session.get(entry.session) is entry:
            del self._by_session[entry.session]


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    """How many ids two runs begin with in common."""
    shorter = min(len(first), len(second))
    if tuple(first[:shorter]) == tuple(second[:shorter]):  # as nearly always: the hashes have matched
        return shorter
    length = 0
    for a, b in zip(first, second, strict=False):
        if a != b:
            break
        length += 1
    return length


def block_hashes(ids: Sequence[int], owner: str = "", known: Sequence[int] = ()) -> list[int]:
    """One hash a whole block, each covering everything before it; those of the first blocks may be known."""
    hashes = list(known)
    running = hashes[-1] if hashes else hash(owner) if owner else 0
    for start in range(BLOCK * len(hashes), len(ids) - BLOCK + 1, BLOCK):
        running = hash((running, *ids[start : start + BLOCK]))
        hashes.append(running)
    return hashes
