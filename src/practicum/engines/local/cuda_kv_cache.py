"""The KV cache on a GPU: pages of 64 tokens, which kernels find through a table.

A page holds one block of a request's tokens in all layers. Pages are allocated in chunks as tokens come, up to a number
of bytes; a chunk never moves, so that a captured graph stays valid while memory grows. Within a chunk the pages of one
layer lie side by side, as attention reads them. The table [slots, pages of a
slot] is on the device, has its full size from the start, and is updated by one small copy before a pass that needs it.

Requests and cached prefixes that begin alike have their full pages in common, by reference. A page that is not full is
copied by a request that continues behind it, since it will write there; the request that computed it goes on writing
behind what the cached prefix covers. A page is free again when nobody refers to it: the reference count is Python's
own, so that a prefix which is dropped while a waiting request has matched it stays readable. Work on the device runs in
the order in which it was started, on one stream, so a page can be given to another request at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from practicum.engines.local.kv_cache import KEY_BUCKET, CachedPrefix, KVCache, KVCacheFull, PrefixCache, PrefixKV
from practicum.kernels.paged_kv import OFFSET_UNIT, PAGE_TOKENS, LayerPages
from practicum.models.decoder import Shape

if TYPE_CHECKING:
    from practicum.engines.local.runner import RunningRequest

CHUNK_BYTES = 256 << 20
"""Bytes of a chunk, at most: few chunks are few allocations."""
MAX_COPY_BYTES = 256 << 20
"""Bytes of pages that are copied at once, which need as much memory for a moment."""
PageLocation = tuple[int, int]
"""The index of a chunk and of a page in it."""


def free_bytes(device: torch.device) -> int:
    """Bytes of a GPU that an allocation can have, those that PyTorch keeps for later ones included."""
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + unused


def num_pages(num_tokens: int) -> int:
    """The number of pages that hold `num_tokens` tokens."""
    return -(-num_tokens // PAGE_TOKENS)


def to_device(numbers: Tensor, device: torch.device) -> Tensor:
    """A copy on the device that the host does not wait for: it would wait for all work that was started before."""
    if device.type == "cuda":
        numbers = numbers.pin_memory()
    return numbers.to(device, non_blocking=True)


class KVPage:
    """A page that somebody refers to; it returns to its pool with the last reference."""

    __slots__ = ("location", "num_slots", "offset", "pool")

    def __init__(self, pool: PagePool, location: PageLocation, offset: int) -> None:
        self.pool, self.location = pool, location
        self.offset = offset
        """Where it is (`PagePool.offset`)."""
        self.num_slots = 0
        """Slots that have it."""

    @property
    def nbytes(self) -> int:
        return self.pool.page_bytes

    def __del__(self) -> None:
        self.pool.free.append(self.location)


class PagePool:
    """Pages in chunks [layers, pages, 2 (keys, values), K, PAGE_TOKENS, D].

    All chunks have the same number of pages: then the parts of a page in two layers are equally far apart in every
    chunk, and one table serves all layers.
    """

    def __init__(self, shape: Shape, dtype: torch.dtype, device: torch.device) -> None:
        self._layers, self._layer_shape = shape.layers, (2, shape.kv_heads, PAGE_TOKENS, shape.head_size)
        self._dtype, self._device = dtype, device
        self._layer_bytes = int(np.prod(self._layer_shape)) * dtype.itemsize
        """Bytes of a page in one layer."""
        self.page_bytes = self._layers * self._layer_bytes
        self.pages_per_chunk = 0
        """0: there is no chunk yet."""
        self.chunks: list[Tensor] = []
        self._first_offsets: list[int] = []
        """The offset of each chunk's first page."""
        self._page_units = int(self._layer_bytes // (OFFSET_UNIT * dtype.itemsize))
        """The difference of the offsets of two pages that lie side by side."""
        self.free: list[PageLocation] = []
        self.out_of_memory = False
        """Whether the device had no memory for another chunk."""

    @property
    def size(self) -> int:
        """Pages of all chunks."""
        return len(self.chunks) * self.pages_per_chunk

    def offset(self, location: PageLocation) -> int:
        """Where a page is, counted from the first page of the first chunk in units of `OFFSET_UNIT` elements."""
        chunk, index = location
        return self._first_offsets[chunk] + index * self._page_units

    def grow(self, missing: int, max_pages: int | None) -> bool:
        """Allocate chunks of `missing` pages or more, of at most `most` in all; whether there is a new one."""
        if self.out_of_memory or (max_pages is not None and max_pages <= 0):
            return False
        before = self.size
        if not self.chunks:
            self._add_first_chunk(max_pages)
        while self.size < before + missing and not self.out_of_memory:
            if max_pages is not None and self.size + self.pages_per_chunk > before + max_pages:
                break
            self._add_chunk()
        return self.size > before

    def _add_first_chunk(self, max_pages: int | None) -> None:
        """Choose the size of a chunk: few chunks fill a bound of `most` pages, and none of them is large."""
        count = max(1, CHUNK_BYTES // self.page_bytes)
        self.pages_per_chunk = count if max_pages is None else max(1, max_pages // -(-max_pages // count))
        self._add_chunk()
        while self.out_of_memory and self.pages_per_chunk > 1:
            self.pages_per_chunk, self.out_of_memory = self.pages_per_chunk // 2, False
            self._add_chunk()

    def _add_chunk(self) -> None:
        try:
            chunk = self.allocate_chunk()
        except torch.OutOfMemoryError:  # others have taken it: what there is must do
            self.out_of_memory = True
            return
        self.free[:0] = [(len(self.chunks), index) for index in reversed(range(self.pages_per_chunk))]
        self.chunks.append(chunk)
        distance = chunk.data_ptr() - self.chunks[0].data_ptr()
        self._first_offsets.append(int(distance // (OFFSET_UNIT * self._dtype.itemsize)))

    def allocate_chunk(self) -> Tensor:
        dims = (self._layers, self.pages_per_chunk, *self._layer_shape)
        return torch.empty(dims, dtype=self._dtype, device=self._device)

    def take(self) -> KVPage:
        location = self.free.pop()
        return KVPage(self, location, self.offset(location))

    def copy(self, copies: Sequence[tuple[KVPage, KVPage]]) -> None:
        """Copy pages, each to another one."""
        grouped: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for source, target in copies:
            indices = (source.location[1], target.location[1])
            grouped.setdefault((source.location[0], target.location[0]), []).append(indices)
        step = max(1, MAX_COPY_BYTES // self.page_bytes)
        for (first, second), pairs in grouped.items():
            for start in range(0, len(pairs), step):
                sources, targets = to_device(torch.tensor(pairs[start : start + step]).t().contiguous(), self._device)
                self.copy_pages(self.chunks[first], sources, self.chunks[second], targets)

    def copy_pages(self, source_chunk: Tensor, sources: Tensor, target_chunk: Tensor, targets: Tensor) -> None:
        target_chunk.index_copy_(1, targets, source_chunk.index_select(1, sources))


class CudaKVCache(KVCache):
    """Pages of slots, and the table through which kernels find them. Page 0 is that of rows which only pad a batch."""

    def __init__(
        self, shape: Shape, num_slots: int, dtype: torch.dtype, device: torch.device, prefixes: PrefixCache
    ) -> None:
        super().__init__(shape, num_slots, dtype, device, prefixes)
        self.pool = PagePool(shape, dtype, device)
        self.table = torch.zeros(num_slots + 1, num_pages(shape.context), dtype=torch.int64, device=device)
        self._row_size = self.table.shape[1]
        self._changed: dict[int, int] = {}
        """Entries of the table, counted over all rows, that the device does not have yet."""
        self._pages: list[list[KVPage]] = [[] for _ in range(num_slots)]
        self._num_in_slots = 0
        """Pages that any slot has."""
        self._wave_pages = 0
        """Pages that the requests of the present wave will take."""
        self._wave_room: int | None = None
        """Pages that are free, or would be, when the present wave begins; None: there is no bound."""
        self._padding_page: KVPage | None = None

    @property
    def num_bytes(self) -> int:
        """Bytes that are allocated."""
        return self.pool.size * self.pool.page_bytes

    @property
    def bytes_in_slots(self) -> int:
        return self._num_in_slots * self.pool.page_bytes

    def bytes_of(self, num_tokens: int) -> int:
        return num_pages(num_tokens) * self.pool.page_bytes

    @property
    def max_pages(self) -> int | None:
        """Pages that the bound has room for, beside that of the padding; None: there is no bound."""
        return None if self.max_bytes is None else self.max_bytes // self.pool.page_bytes

    def grow(self, num_tokens: int) -> bool:
        """Let a slot have `num_tokens`: nothing is allocated, but work is divided among programs by the capacity."""
        if self._padding_page is None:
            self.pool.grow(1, None if self.max_pages is None else self.max_pages + 1)
            if not self.pool.chunks:
                raise KVCacheFull("the GPU has no memory for a single page of keys and values")
            self._padding_page = self.pool.take()
        capacity = -(-num_tokens // KEY_BUCKET) * KEY_BUCKET
        if capacity <= self.capacity:
            return False
        self.capacity = max(capacity, min(2 * self.capacity, self.shape.context + KEY_BUCKET))
        return True

    # -- pages of slots ----------------------------------------------------------------------

    def can_admit(
        self, running: Sequence[RunningRequest], wave: Sequence[RunningRequest], req: RunningRequest, num_steps: int
    ) -> bool:
        """Pages that only cached prefixes have count as free, and running requests may each need one more soon."""
        if not wave:  # nothing is allocated until all of its requests are chosen
            growable = self._num_growable()
            self._wave_pages = 0
            self._wave_room = None if growable is None else self.pool.size - self._num_in_slots + growable
        needed = self._wave_pages + self._missing_pages(req, num_steps)
        if (running or wave) and self._wave_room is not None and needed + len(running) > self._wave_room:
            return False
        self._wave_pages = needed
        return True

    def _missing_pages(self, req: RunningRequest, num_steps: int) -> int:
        """Pages that no slot has yet, of a request that is admitted; one more for a page that it copies."""
        entry, length = req.prefix_match
        needed = 1 + num_pages(len(req.ids) + num_steps)
        if entry is None:
            return needed
        return needed - sum([bool(page.num_slots) for page in entry.kv[: length // PAGE_TOKENS]])

    def _num_growable(self) -> int | None:
        """Pages that may still be allocated, in whole chunks; None: any number."""
        if self.pool.out_of_memory:
            return 0
        if self.max_pages is None:
            return None
        per_chunk = max(1, self.pool.pages_per_chunk)
        return max(0, self.max_pages + 1 - self.pool.size) // per_chunk * per_chunk

    def reserve_steps(self, running: Sequence[RunningRequest], num_steps: int) -> bool:
        """Reserve pages for the tokens that the next call writes; surplus tokens of finished ones go to page 0."""
        short: list[tuple[int, int]] = []
        for req in running:
            prompt = len(req.request.ids)
            num_tokens = prompt + min(req.num_scheduled + num_steps, req.max_new_tokens)
            if num_tokens > PAGE_TOKENS * len(self._pages[req.slot]):
                short.append((req.slot, num_tokens))
        needed = sum(num_pages(num_tokens) - len(self._pages[slot]) for slot, num_tokens in short)
        if not self._make_room(needed, alone=len(running) == 1):
            if len(running) == 1:
                raise KVCacheFull("the GPU has no memory for the keys and values of one request")
            return False
        for slot, num_tokens in short:
            self.reserve(slot, num_tokens)
        return True

    def _make_room(self, count: int, alone: bool = False) -> bool:
        """Have `count` free pages: allocate them within the bound, then drop cached prefixes; whether that is enough.

        `alone`: beyond the bound, where there is nobody to wait for.
        """
        while len(self.pool.free) < count:
            missing = count - len(self.pool.free)
            if self.pool.grow(missing, self._num_growable()) or self.prefixes.drop_oldest():
                continue
            if not (alone and self.pool.grow(missing, None)):
                return False
        return True

    def reserve(self, slot: int, num_tokens: int) -> None:
        """Give a slot the pages that this many tokens need, of those that are free."""
        missing = num_pages(num_tokens) - len(self._pages[slot])
        if missing > 0:
            self._append(slot, [self.pool.take() for _ in range(missing)])

    def _append(self, slot: int, pages: Sequence[KVPage]) -> None:
        start = len(self._pages[slot])
        self._set_entries(slot, start, [page.offset for page in pages])
        self._pages[slot] += pages
        for page in pages:
            self._num_in_slots += page.num_slots == 0
            page.num_slots += 1

    def _set_entries(self, slot: int, start: int, offsets: Sequence[int]) -> None:
        self._changed.update(enumerate(offsets, slot * self._row_size + start))

    def allocate(self, wave: Sequence[RunningRequest]) -> None:
        """Also reserves the pages of the prompts, and copies the last pages of cached prefixes, all at once."""
        needed = sum(num_pages(req.prompt_end + 1) - req.prefix_match.length // PAGE_TOKENS for req in wave)
        in_use = self.num_slots - len(self._free)
        if not self._make_room(needed, alone=in_use == 0 and len(wave) == 1):
            raise KVCacheFull("there is no room for the keys and values of a prompt")
        self._copies: list[tuple[KVPage, KVPage]] = []
        super().allocate(wave)
        self.pool.copy(self._copies)
        self._copies = []
        for req in wave:
            self.reserve(req.slot, req.prompt_end + 1)

    def _insert(self, entry: CachedPrefix, slots: Sequence[int], num_tokens: int) -> None:
        full, rest = divmod(num_tokens, PAGE_TOKENS)
        shared = list(entry.kv[:full])
        for slot in slots:
            if rest:
                page = self.pool.take()
                self._append(slot, [*shared, page])
                self._copies.append((entry.kv[full], page))
            else:
                self._append(slot, shared)

    def release(self, slot: int) -> None:
        pages, self._pages[slot] = self._pages[slot], []
        for page in pages:
            page.num_slots -= 1
            self._num_in_slots -= page.num_slots == 0
        self._set_entries(slot, 0, [0] * len(pages))

    def extract(self, slot: int, num_tokens: int, shared: PrefixKV = ()) -> PrefixKV:
        return tuple(self._pages[slot][: num_pages(num_tokens)])

    def shareable(self, kv: PrefixKV, num_tokens: int) -> PrefixKV:
        """None: a slot's own pages say what it has taken over."""
        return ()

    # -- kernels -----------------------------------------------------------------------------

    def send_table(self) -> None:
        """Update the table on the device."""
        if not self._changed:
            return
        numbers = np.array([list(self._changed), list(self._changed.values())], dtype=np.int64)
        indices, offsets = to_device(torch.from_numpy(numbers), self.device)
        self.table.view(-1).index_copy_(0, indices, offsets)
        self._changed.clear()

    def layer(self, layer: int) -> LayerPages:
        """One layer's pages, as the kernels take them."""
        keys, values = self.pool.chunks[0][layer, 0]
        return LayerPages(keys, values, self.table, self.capacity)
