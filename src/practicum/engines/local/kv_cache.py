"""The KV cache: keys and values of running requests, and of finished ones that a later turn may continue.

A request has a slot, and its tokens are in pages that belong to the slot: memory grows with the tokens that are held.
`PagedKVCache` lays pages out for a CPU, where attention reads those of a batch as they lie; `CudaKVCache` for a GPU,
where kernels find them through a table. On a GPU a request keeps its slot until it ends; on a CPU the slot is the
request's index in the batch (see `CpuRunner`).

`PrefixCache` keeps prefixes beyond their request, shared by an episode's turns and a prompt's samples. An entry is a
run of ids and their pages, of one policy version. A lookup finds the entry that shares the longest prefix with a
prompt. Versions never mix: a match across versions is an error.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count
from operator import ne
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from practicum.models.decoder import Shape

if TYPE_CHECKING:
    from practicum.engines.local.runner import RunningRequest

BLOCK_TOKENS = 16
"""Ids hashed together. A match may end inside a block: the entry's own ids are compared to find where."""


PrefixKV = tuple[Any, ...]
"""The pages of a prefix, which have `nbytes`: tensors [layers, 2, K, tokens, D] on a CPU, `KVPage`s on a GPU."""


class KVCacheFull(MemoryError):
    """There is no page left, and no cached prefix to drop."""


@dataclass(eq=False)
class CachedPrefix:
    """A run of ids with its pages (`KVCache.extract`). Entries have the pages of a prefix that they share in common."""

    ids: tuple[int, ...]
    kv: PrefixKV
    version: int
    session: str
    adapter: str = ""
    hashes: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(page.nbytes for page in self.kv)


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
        """Bytes of all pages; one that several entries have is counted once."""
        self.version = 0
        self._num_holders: dict[int, int] = {}
        """The number of entries that have a page, by its id."""
        self._entries: OrderedDict[int, CachedPrefix] = OrderedDict()
        self._by_hash: dict[int, CachedPrefix | dict[CachedPrefix, None]] = {}
        """The entries that begin with these blocks, the newest last; mostly there is one."""
        self._by_session: dict[str, CachedPrefix] = {}

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[CachedPrefix]:
        return iter(self._entries.values())

    @property
    def num_sessions(self) -> int:
        """Sessions for which a prefix is kept."""
        return len(self._by_session)

    def set_version(self, version: int) -> None:
        """Drop everything; what comes from now on is computed by this version.

        Also where the version is the one from before: each step of a training run begins with an empty cache, so that
        a run which is resumed there computes along the same path as one which was not interrupted.
        """
        self._entries.clear()
        self._by_hash.clear()
        self._by_session.clear()
        self._num_holders.clear()
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
            best = holders if isinstance(holders, CachedPrefix) else next(reversed(holders))
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
        self, ids: tuple[int, ...], kv: PrefixKV, session: str = "", adapter: str = "", hashes: Sequence[int] = ()
    ) -> None:
        """Keep a run of ids with its pages; `hashes`: of its first blocks, if known.

        A session keeps one entry: its newest, which contains all the older ones.
        """
        if session:
            self.end_session(session)
        entry = CachedPrefix(ids, kv, self.version, session, adapter, block_hashes(ids, adapter, hashes))
        if not entry.hashes or not self.max_bytes or entry.bytes > self.max_bytes:
            return
        self._entries[id(entry)] = entry
        self._hold(entry)
        for key in entry.hashes:
            holders = self._by_hash.setdefault(key, entry)
            if holders is entry:
                continue
            if isinstance(holders, CachedPrefix):
                self._by_hash[key] = {holders: None, entry: None}
            else:
                holders[entry] = None
        if session:
            self._by_session[session] = entry
        while self.bytes > self.max_bytes:
            self.drop_oldest()

    def drop_oldest(self) -> bool:
        """Drop the entry that was not used for the longest time; whether there was one."""
        oldest = next(iter(self._entries.values()), None)
        if oldest is not None:
            self.remove(oldest)
        return oldest is not None

    def _hold(self, entry: CachedPrefix) -> None:
        """Count the pages of an entry that no other one has."""
        for page in entry.kv:
            holders = self._num_holders.get(id(page), 0)
            self._num_holders[id(page)] = holders + 1
            self.bytes += 0 if holders else page.nbytes

    def _drop(self, entry: CachedPrefix) -> None:
        for page in entry.kv:
            holders = self._num_holders.pop(id(page)) - 1
            if holders:
                self._num_holders[id(page)] = holders
            else:
                self.bytes -= page.nbytes

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
        """Drop an entry."""
        del self._entries[id(entry)]
        self._drop(entry)
        for key in entry.hashes:
            holders = self._by_hash[key]
            if not isinstance(holders, CachedPrefix):
                del holders[entry]
                if holders:
                    continue
            del self._by_hash[key]
        if self._by_session.get(entry.session) is entry:
            del self._by_session[entry.session]


def _common_length(first: tuple[int, ...], second: tuple[int, ...]) -> int:
    """The number of ids that two runs begin with in common."""
    shorter = min(len(first), len(second))
    if first == second:  # samples of one prompt
        return shorter
    if first[:shorter] == second[:shorter]:  # nearly always: the hashes have matched
        return shorter
    return next(compress(count(), map(ne, first, second)), shorter)


def block_hashes(ids: Sequence[int], adapter: str = "", first_hashes: Sequence[int] = ()) -> list[int]:
    """One hash per complete block, each covering everything before it; `first_hashes` are those of the first blocks."""
    hashes = list(first_hashes)
    running = hashes[-1] if hashes else hash(adapter) if adapter else 0
    for start in range(BLOCK_TOKENS * len(hashes), len(ids) - BLOCK_TOKENS + 1, BLOCK_TOKENS):
        running = hash((running, *ids[start : start + BLOCK_TOKENS]))
        hashes.append(running)
    return hashes


class PromptHashes:
    """The hashes of prompts' blocks; samples of one prompt that come one after the other have one list."""

    def __init__(self) -> None:
        self._last: tuple[tuple[int, ...], list[int]] = ((), [])

    def of(self, ids: tuple[int, ...]) -> list[int]:
        """The hashes of all blocks but the last token's, which is fed by the first decode step."""
        last_ids, hashes = self._last
        if ids != last_ids:
            hashes = block_hashes(ids[:-1])
            self._last = ids, hashes
        return hashes


KEY_BUCKET = 128
"""Multiple that a slot's capacity is rounded up to, and keys of a block of attention on a CPU."""


class KVCache:
    """Slots and the pages of their tokens. A slot is free or belongs to a running request."""

    def __init__(
        self, shape: Shape, num_slots: int, dtype: torch.dtype, device: torch.device, prefixes: PrefixCache
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.prefixes = prefixes
        self.num_slots = num_slots
        self.padding_slot = num_slots
        """Never allocated: rows that only pad a batch on a GPU write here, where they overwrite nothing."""
        self.capacity = 0
        """Tokens that a slot can have."""
        self.max_bytes: int | None = None
        """Bytes of keys and values, at most; None: no bound."""
        self._free = list(range(num_slots))
        """Free slots, the next to be allocated first."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one layer keeps per token."""
        return 2 * self.shape.kv_heads * self.shape.head_size * self.dtype.itemsize

    @property
    def bytes_in_slots(self) -> int:
        """Bytes of the pages that running requests have; one that several have is counted once."""
        raise NotImplementedError

    def bytes_of(self, num_tokens: int) -> int:
        """Bytes of the pages that a request of this many tokens has."""
        raise NotImplementedError

    def usage(self, context: int) -> float:
        """The share of the cache that running requests have, from 0 to 1; cached prefixes do not count.

        Where there is no bound in bytes, the whole is a request of `context` tokens in every slot.
        """
        budget = self.num_slots * self.bytes_of(context) if self.max_bytes is None else self.max_bytes
        return min(1.0, self.bytes_in_slots / budget)

    def grow(self, num_tokens: int) -> bool:
        """Let every slot have at least `num_tokens`; whether captured graphs are of no use any more."""
        raise NotImplementedError

    def can_admit(
        self, running: Sequence[RunningRequest], wave: Sequence[RunningRequest], req: RunningRequest, num_steps: int
    ) -> bool:
        """Whether there is room for a request beside those that run and those of its wave, for some decode steps.

        A request alone is admitted however much it needs.
        """
        raise NotImplementedError

    def reserve_steps(self, running: Sequence[RunningRequest], num_steps: int) -> bool:
        """Make room for the next decode steps; False: one of the requests has to leave first. One alone gets it."""
        raise NotImplementedError

    def allocate(self, wave: Sequence[RunningRequest]) -> None:
        """Give each request a slot that holds what the cache had of its prompt; sets `slot` and `num_cached`."""
        copies: dict[tuple[int, int], tuple[CachedPrefix, list[int]]] = {}
        for request, slot in zip(wave, self._free[: len(wave)], strict=True):
            (entry, length), request.prefix_match = request.prefix_match, NO_MATCH
            request.slot, request.num_cached, request.computed = slot, length, None
            request.shared_kv = self.shareable(() if entry is None else entry.kv, length)
            request.continues_session = _same_session(entry, request)
            if entry is not None and length:
                copies.setdefault((id(entry), length), (entry, []))[1].append(slot)
        del self._free[: len(wave)]
        for (_, length), (entry, targets) in copies.items():
            self._insert(entry, targets, length)

    def free(self, slot: int) -> None:
        """Return a slot whose pages have been released."""
        self._free.insert(0, slot)

    def free_all_but(self, slots: Collection[int]) -> None:
        """Return all slots but these, whoever has them."""
        self._free = [slot for slot in range(self.num_slots) if slot not in slots]
        for slot in self._free:
            self.release(slot)

    def release(self, slot: int) -> None:
        """Take back the pages of a slot."""
        raise NotImplementedError

    def extract(self, slot: int, num_tokens: int, shared: PrefixKV = ()) -> PrefixKV:
        """The pages of a slot's first tokens, as `PrefixCache` keeps them; `shared`: those that it has taken over."""
        raise NotImplementedError

    def shareable(self, kv: PrefixKV, num_tokens: int) -> PrefixKV:
        """The pages of a prefix that one which begins with so many of its tokens can have as they are."""
        raise NotImplementedError

    def _insert(self, entry: CachedPrefix, slots: Sequence[int], num_tokens: int) -> None:
        """Give slots the first tokens of a prefix."""
        raise NotImplementedError


def _same_session(entry: CachedPrefix | None, request: RunningRequest) -> bool:
    session = request.request.session
    return entry is not None and bool(session) and entry.session == session
