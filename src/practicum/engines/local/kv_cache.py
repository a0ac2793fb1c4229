"""The KV cache: keys and values of running requests, and of finished ones that a later turn may continue.

This module owns the buffer and its layout. `kernels/kv_layout.py` holds the same layout for the Triton kernels; nothing
else knows the shape of the buffer, so that another layout (pages instead of slots, say) is a change of these two files.

A request has one slot, which holds all of its tokens. On a GPU a request keeps its slot until it ends. What it leaves
there stays for the next turn of its session, which continues in the same slot, so that nothing is copied out and in
again; a slot that holds such a prefix is the last to be given to another request. On CPU the slot is the request's
index in the batch (see `CpuRunner`), its tokens are in pages (`PagedKVCache`), and what is to stay is copied out.

`PrefixCache` keeps prefixes beyond their request, shared by an episode's turns and a prompt's samples. An entry is a
run of ids and their KV, of one policy version. A lookup finds the entry that shares the longest prefix with a prompt.
Versions never mix: a match across versions is an error. On a GPU an entry may be resident: its KV is still in the slot
in which a request computed it. It costs no memory of its own there, and is moved out when the slot is allocated to
another request.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import compress, count, islice
from operator import ne
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from practicum.models.decoder import Shape

if TYPE_CHECKING:
    from practicum.engines.local.runner import RunningRequest

BLOCK_TOKENS = 16
"""Ids hashed together. A match may end inside a block: the entry's own ids say exactly where."""


PrefixKV = tuple[Tensor, ...]
"""Keys and values of a prefix [layers, 2, K, tokens, D]: in one tensor on a GPU, a tensor per page on a CPU."""


@dataclass(eq=False)
class CachedPrefix:
    """A run of ids with its KV, either as tensors (`KVCache.extract`) or as the slot that holds it.

    Entries may have tensors in common: pages of a prefix that they share, on a CPU.
    """

    ids: tuple[int, ...]
    kv: PrefixKV | None
    slot: int | None
    version: int
    session: str
    adapter: str = ""
    hashes: list[int] = field(default_factory=list)

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.kv or ())


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
        """Bytes of all tensors; one that several entries have is counted once."""
        self.version = 0
        self._num_holders: dict[int, int] = {}
        """The number of entries that have a tensor, by its id."""
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
        """Drop everything; what comes from now on is computed by this version.

        Also where the version is the one from before: each step of a training run begins with an empty cache, so that
        a run which is resumed there computes along the same path as one which was not interrupted.
        """
        self._entries.clear()
        self._by_hash.clear()
        self._by_session.clear()
        self.resident.clear()
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
        self, ids: tuple[int, ...], kv: PrefixKV | int, session: str = "", adapter: str = "", hashes: Sequence[int] = ()
    ) -> None:
        """Keep a run of ids with its KV (tensors, or the slot that holds it); `hashes`: of its first blocks, if known.

        A session keeps one entry: its newest, which contains all the older ones.
        """
        if session:
            self.end_session(session)
        tensors, slot = (None, kv) if isinstance(kv, int) else (kv, None)
        entry = CachedPrefix(ids, tensors, slot, self.version, session, adapter, block_hashes(ids, adapter, hashes))
        if not entry.hashes or not self.max_bytes or entry.bytes > self.max_bytes:
            return
        self._entries[id(entry)] = entry
        self._hold(entry)
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

    def _hold(self, entry: CachedPrefix) -> None:
        """Count the tensors of an entry that no other one has."""
        for tensor in entry.kv or ():
            holders = self._num_holders.get(id(tensor), 0)
            self._num_holders[id(tensor)] = holders + 1
            self.bytes += 0 if holders else tensor.nbytes

    def _drop(self, entry: CachedPrefix) -> None:
        for tensor in entry.kv or ():
            holders = self._num_holders.pop(id(tensor)) - 1
            if holders:
                self._num_holders[id(tensor)] = holders
            else:
                self.bytes -= tensor.nbytes

    def move_out(self, entry: CachedPrefix, kv: PrefixKV) -> None:
        """Keep a copy of a resident entry's KV instead of its slot.

        A request that has matched the entry may still copy from it, even if it is dropped for want of room.
        """
        if entry.slot is not None:
            del self.resident[entry.slot]
        entry.kv, entry.slot = kv, None
        self._hold(entry)
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
        self._drop(entry)
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


KEY_BUCKET = 128
"""Multiple that a slot's capacity is rounded up to, and keys of a block of attention on a CPU."""


class KVCache:
    """Slots in one buffer [layers, 2 (keys, values), slots + 1, K, capacity, D].

    A slot is free or belongs to a running request. Prefixes that stay in the buffer (`PrefixCache.resident`) are in
    free slots only.
    """

    def __init__(
        self, shape: Shape, num_slots: int, dtype: torch.dtype, device: torch.device, prefixes: PrefixCache
    ) -> None:
        self.shape, self.dtype, self.device = shape, dtype, device
        self.prefixes = prefixes
        self.num_slots = num_slots
        self.padding_slot = num_slots
        """Never allocated: rows that only pad a batch on a GPU write here, where they overwrite nothing."""
        self.capacity = 0
        """Tokens that a slot holds."""
        self._buffer = torch.empty(0)
        self._free = list(range(num_slots))
        """Free slots, the next to be allocated first."""

    @property
    def bytes_per_token(self) -> int:
        """Bytes that one layer keeps per token."""
        return 2 * self.shape.kv_heads * self.shape.head_size * self.dtype.itemsize

    def grow(self, num_tokens: int) -> bool:
        """Make every slot hold at least `num_tokens`; whether the buffer had to be replaced by a larger one."""
        wanted = -(-num_tokens // KEY_BUCKET) * KEY_BUCKET
        if wanted <= self.capacity:
            return False
        shape = self.shape
        wanted = max(wanted, min(2 * self.capacity, shape.context + KEY_BUCKET))
        larger = torch.zeros(
            shape.layers, 2, self.num_slots + 1, shape.kv_heads, wanted, shape.head_size,
            dtype=self.dtype, device=self.device,
        )  # fmt: skip
        free = set(self._free)
        for slot in range(self.num_slots):
            if slot not in free or slot in self.prefixes.resident:
                larger[:, :, slot, :, : self.capacity] = self._buffer[:, :, slot]
        self._buffer, self.capacity = larger, wanted
        return True

    def allocate(self, wave: Sequence[RunningRequest]) -> None:
        """Give each request a slot that holds what the cache had of its prompt; sets `slot` and `num_cached`.

        Every copy is made before any request of the wave computes: what one of them takes over is still complete while
        others copy from it, and what is to be overwritten has been moved out.
        """
        continued = self._continued_slots(wave)
        vacant = iter(self._vacant_slots(len(wave) - len(continued), continued))
        copies: dict[tuple[int, int], tuple[CachedPrefix, list[int]]] = {}
        for request in wave:
            slot = continued[request] if request in continued else next(vacant)
            (entry, length), request.prefix_match = request.prefix_match, NO_MATCH
            request.slot, request.num_cached = slot, length
            request.shared_kv = self.shareable(None if entry is None else entry.kv, length)
            request.continues_session = _same_session(entry, request)
            if entry is not None and length and entry.slot != slot:
                copies.setdefault((id(entry), length), (entry, []))[1].append(slot)
        allocated = {request.slot for request in wave}
        self._free = [slot for slot in self._free if slot not in allocated]
        for (_, length), (entry, targets) in copies.items():
            self._insert(entry, targets, length)

    def _continued_slots(self, wave: Sequence[RunningRequest]) -> dict[RunningRequest, int]:
        """Requests that continue in the slot of their session's last turn; the prefix there leaves the cache."""
        slots: dict[RunningRequest, int] = {}
        for request in wave:
            entry = request.prefix_match.entry
            slot = entry.slot if entry is not None and _same_session(entry, request) else None
            if entry is not None and slot is not None and self.prefixes.resident.get(slot) is entry:
                slots[request] = slot
                self.prefixes.remove(entry)
        return slots

    def _vacant_slots(self, count: int, continued: dict[RunningRequest, int]) -> list[int]:
        """At least `count` free slots: empty ones first, then those whose prefix was not used for the longest time."""
        occupied = {*continued.values(), *self.prefixes.resident}
        vacant = [slot for slot in self._free if slot not in occupied]
        for slot, entry in self.prefixes.oldest_residents(count - len(vacant)):
            self.evict(slot, entry)
            vacant.append(slot)
        return vacant

    def evict(self, slot: int, entry: CachedPrefix) -> None:
        """Move a cached prefix out of its slot into memory of its own."""
        self.prefixes.move_out(entry, self.extract(slot, len(entry.ids)))

    def free(self, slot: int) -> None:
        """Return a slot; what it holds stays readable until it is allocated again."""
        self._free.insert(0, slot)

    def free_all_but(self, slots: Collection[int]) -> None:
        """Return all slots but these, whoever has them."""
        self._free = [slot for slot in range(self.num_slots) if slot not in slots]

    def extract(self, slot: int, num_tokens: int, shared: PrefixKV = ()) -> PrefixKV:
        """A copy of a slot's first tokens, as `PrefixCache` keeps it; `shared`: the tensors of the first ones."""
        return (self._buffer[:, :, slot, :, :num_tokens].clone(),)

    def shareable(self, kv: PrefixKV | None, num_tokens: int) -> PrefixKV:
        """The tensors of a prefix that one which begins with so many of its tokens can have as they are."""
        return ()

    def _insert(self, entry: CachedPrefix, slots: Sequence[int], num_tokens: int) -> None:
        """Copy a prefix's first tokens into slots."""
        source = self._buffer[:, :, entry.slot] if entry.kv is None else entry.kv[0]
        if len(slots) == 1:  # saves sending a list of slots to the device
            self._buffer[:, :, slots[0], :, :num_tokens] = source[:, :, :, :num_tokens]
        else:
            targets = torch.tensor(slots).to(self._buffer.device, non_blocking=True)
            self._buffer[:, :, targets, :, :num_tokens] = source[:, :, None, :, :num_tokens]

    def layer(self, layer: int) -> Tensor:
        """One layer's part of the buffer, as the kernels take it (`kernels/kv_layout.py`)."""
        return self._buffer[layer]


def _same_session(entry: CachedPrefix | None, request: RunningRequest) -> bool:
    session = request.request.session
    return entry is not None and bool(session) and entry.session == session
