"""The KV cache on a CPU: pages, so that memory grows with the tokens that requests hold.

A request's keys are divided into blocks, the blocks in which attention adds them up: two of 64 keys, then 128 each. A
page holds one block of one request, in all layers. The pages of block j of all requests lie in one tensor, in the order
of the requests' rows; since rows are sorted by length, those that have a block j at all are rows 0..n-1, and attention
reads their pages as they lie, without a copy. Pages are moved only when rows change their order.

Cached prefixes are pages too, outside of these tensors. Prefixes that begin alike have their first pages in common, by
reference: a request whose prompt was cached keeps the pages that it took over, and copies only those behind them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from practicum.engines.local.kv_cache import KEY_BUCKET, CachedPrefix, KVCache, PrefixCache, PrefixKV
from practicum.models.decoder import Shape

if TYPE_CHECKING:
    from practicum.engines.local.runner import RunningRequest

FIRST_BLOCK_KEYS = 64
"""Keys of the first two blocks: short prompts read half as much."""
PAGE_MULTIPLE = 8
"""Pages by which a large tensor grows."""
SMALL_TENSOR_BYTES = 4 << 20
"""A tensor of a block that is no larger keeps its size when pages leave: they come back with the next turns."""


def block_start(block: int) -> int:
    """The first key of a block."""
    return FIRST_BLOCK_KEYS * block if block < 2 else KEY_BUCKET * (block - 1)


def block_size(block: int) -> int:
    """The keys of a block."""
    return block_start(block + 1) - block_start(block)


def block_count(keys: int) -> int:
    """The number of blocks that hold `keys` keys."""
    return 1 if keys <= FIRST_BLOCK_KEYS else 1 + -(-keys // KEY_BUCKET)


def num_full_blocks(keys: int) -> int:
    """The number of blocks that `keys` keys fill."""
    return block_count(keys + 1) - 1


def block_of(position: int) -> int:
    """The block that holds a position."""
    return block_count(position + 1) - 1


@dataclass(frozen=True)
class PromptTokens:
    """Where new tokens of prompts go, per block: the index of each token (row, column) and its page and offset."""

    block: int
    rows: Tensor
    columns: Tensor
    pages: Tensor
    offsets: Tensor


@dataclass(frozen=True)
class PromptPages:
    """The pages of one block that rows of prompts read: rows without one read zeros."""

    block: int
    rows: slice | Tensor
    pages: slice | Tensor


@dataclass(frozen=True)
class DecodeDestinations:
    """Where the next tokens of consecutive rows go that are in one block: an index per row and head."""

    block: int
    rows: slice
    index: Tensor


def _index(numbers: Sequence[int]) -> slice | Tensor:
    """An index of these numbers: a slice where they are consecutive, which is copied as a whole."""
    first, count = numbers[0], len(numbers)
    if numbers[-1] - first == count - 1 and all(number == first + i for i, number in enumerate(numbers)):
        return slice(first, first + count)
    return torch.tensor(numbers)


def _prompt_tokens(block: int, parts: Tensor) -> PromptTokens:
    """The tokens of one block from consecutive ones: row, first column, page, first offset and number of each part."""
    row, column, page, offset, counts = parts.unbind(1)
    part = torch.repeat_interleave(counts)
    index = torch.arange(len(part)) - (counts.cumsum(0) - counts)[part]
    return PromptTokens(block, row[part], column[part] + index, page[part], offset[part] + index)


class LayerViews:
    """One layer of a block's tensor in the shapes that a decode step uses; made once, since each costs microseconds."""

    def __init__(self, tensor: Tensor) -> None:
        self.keys = tensor[0].flatten(0, 1).transpose(-1, -2)  # [pages·K, D, keys]
        self.values = tensor[1].flatten(0, 1)  # [pages·K, keys, D]
        self.key_vectors, self.value_vectors = tensor[0].flatten(0, 2), self.values.flatten(0, 1)  # [.., D]


class PagedKVCache(KVCache):
    """Pages of blocks, each block a tensor [layers, 2 (keys, values), pages, K, keys of the block, D]."""

    def __init__(
        self, shape: Shape, num_slots: int, dtype: torch.dtype, device: torch.device, prefixes: PrefixCache
    ) -> None:
        super().__init__(shape, num_slots, dtype, device, prefixes)
        self.capacity = block_start(block_count(shape.context + KEY_BUCKET))
        self._pages: list[list[int]] = [[] for _ in range(num_slots)]
        """Per slot its page in every block that it has."""
        self._owners: list[list[int]] = []
        """Per block the slot of every page."""
        self._blocks: list[Tensor] = []
        self._views: list[list[LayerViews] | None] = []
        """Per block and layer, once a decode step has read the block."""

    @property
    def num_bytes(self) -> int:
        """Bytes that are allocated."""
        return sum(block.numel() * block.element_size() for block in self._blocks)

    @property
    def bytes_in_slots(self) -> int:
        num_keys = sum(block_start(len(pages)) for pages in self._pages)
        return num_keys * self.shape.layers * self.bytes_per_token

    def bytes_of(self, num_tokens: int) -> int:
        return block_start(block_count(num_tokens)) * self.shape.layers * self.bytes_per_token

    def grow(self, num_tokens: int) -> bool:
        """Nothing to do: pages are added as tokens come."""
        return False

    def can_admit(
        self, running: Sequence[RunningRequest], wave: Sequence[RunningRequest], req: RunningRequest, num_steps: int
    ) -> bool:
        return self.reserve_steps([*running, *wave, req], num_steps)

    def reserve_steps(self, running: Sequence[RunningRequest], num_steps: int) -> bool:
        """Whether there is room; pages are reserved when the steps are computed."""
        if self.max_bytes is None or len(running) < 2:
            return True
        return sum(self.bytes_of(len(req.ids) + num_steps) for req in running) <= self.max_bytes

    def reserve(self, slot: int, num_tokens: int) -> None:
        """Give a slot the pages that this many tokens need."""
        pages = self._pages[slot]
        for block in range(len(pages), block_count(num_tokens)):
            if block == len(self._blocks):
                self._owners.append([])
                self._blocks.append(torch.empty(0))
                self._views.append(None)
                self._replace(block, self._tensor(block, 0))
            pages.append(len(self._owners[block]))
            self._owners[block].append(slot)
            self.reserve_pages(block, len(self._owners[block]))

    def reserve_blocks(self, counts: Sequence[int]) -> None:
        """Give the first slots at least this many pages each."""
        for slot, (pages, count) in enumerate(zip(self._pages, counts, strict=False)):
            if len(pages) < count:
                self.reserve(slot, block_start(count))

    def reserve_pages(self, block: int, count: int) -> None:
        """Make room for this many pages of a block."""
        old = self._blocks[block]
        if count <= old.shape[2]:
            return
        num_pages = -(-count // PAGE_MULTIPLE) * PAGE_MULTIPLE
        if count <= 4 and num_pages * self._page_bytes(block) > SMALL_TENSOR_BYTES:
            num_pages = count if count <= 2 else 4
        larger = self._tensor(block, num_pages)
        larger[:, :, : old.shape[2]] = old
        self._replace(block, larger)

    def _replace(self, block: int, tensor: Tensor) -> None:
        self._blocks[block], self._views[block] = tensor, None

    def _views_of(self, block: int) -> list[LayerViews]:
        views = self._views[block]
        if views is None:
            views = self._views[block] = [LayerViews(layer) for layer in self._blocks[block]]
        return views

    def _page_bytes(self, block: int) -> int:
        return block_size(block) * self.shape.layers * self.bytes_per_token

    def _tensor(self, block: int, pages: int) -> Tensor:
        shape = self.shape
        return torch.zeros(
            shape.layers, 2, pages, shape.kv_heads, block_size(block), shape.head_size, dtype=self.dtype,
            device=self.device,
        )  # fmt: skip

    def release(self, slot: int) -> None:
        """Take back the pages of a slot; the last page of each block takes the place of its page there."""
        for block, page in enumerate(self._pages[slot]):
            tensor, owners = self._blocks[block], self._owners[block]
            last = len(owners) - 1
            if page != last:
                tensor[:, :, page] = tensor[:, :, last]
                owners[page] = owners[last]
                self._pages[owners[page]][block] = page
            owners.pop()
            if tensor.shape[2] * self._page_bytes(block) <= SMALL_TENSOR_BYTES:
                continue
            if 4 * last <= tensor.shape[2] and tensor.shape[2] > PAGE_MULTIPLE:
                self._replace(block, tensor[:, :, : max(2 * last, PAGE_MULTIPLE)].clone())
            elif not last and block:
                self._replace(block, self._tensor(block, 0))
        self._pages[slot] = []

    def move(self, source: int, target: int) -> None:
        """Give the pages of one slot to another, which has none."""
        self._pages[target], self._pages[source] = self._pages[source], self._pages[target]
        for block, page in enumerate(self._pages[target]):
            self._owners[block][page] = target

    def permute(self, order: Sequence[int]) -> None:
        """Give slot i the pages of slot order[i], for the first slots; nothing is copied."""
        self._pages[: len(order)] = [self._pages[slot] for slot in order]
        for slot, source in enumerate(order):
            if slot != source:
                for block, page in enumerate(self._pages[slot]):
                    self._owners[block][page] = slot

    def arrange(self, rows_per_block: Sequence[int]) -> None:
        """Put the pages of slots 0..n-1 of each block into their order, which attention reads them in.

        All pages of a block that are out of place are moved at once, each one time.
        """
        for block, count in enumerate(rows_per_block):
            owners = self._owners[block]
            targets = [row for row in range(count) if owners[row] != row]
            if not targets:
                continue
            sources = [self._pages[row][block] for row in targets]
            vacated, displaced = set(sources) - set(targets), set(targets) - set(sources)
            targets += sorted(vacated)
            sources += sorted(displaced)
            tensor, index = self._blocks[block], torch.tensor(sources)
            tensor.index_copy_(2, torch.tensor(targets), tensor.index_select(2, index))
            for page, slot in zip(targets, [owners[page] for page in sources], strict=True):
                owners[page] = slot
                self._pages[slot][block] = page

    def extract(self, slot: int, num_tokens: int, shared: PrefixKV = ()) -> PrefixKV:
        """The pages of a slot's first tokens: those that it has taken over as they are, and copies of the others."""
        pages = self._pages[slot][: block_count(num_tokens)]
        extracted = list(shared)
        for block in range(len(extracted), len(pages)):
            size = min(block_size(block), num_tokens - block_start(block))
            extracted.append(self._blocks[block][:, :, pages[block], :, :size].clone())
        return tuple(extracted)

    def shareable(self, kv: PrefixKV, num_tokens: int) -> PrefixKV:
        return kv[: num_full_blocks(num_tokens)]

    def _insert(self, entry: CachedPrefix, slots: Sequence[int], num_tokens: int) -> None:
        """Copy a prefix's pages to where attention reads those of the slots."""
        for slot in slots:
            self.reserve(slot, num_tokens)
        for block in range(block_count(num_tokens)):
            size = min(block_size(block), num_tokens - block_start(block))
            pages = _index([self._pages[slot][block] for slot in slots])
            self._blocks[block][:, :, pages, :, :size] = entry.kv[block][:, :, None, :, :size]

    # -- attention ---------------------------------------------------------------------------

    def prompt_tokens(self, rows: Sequence[tuple[int, int, int]]) -> list[PromptTokens]:
        """Where the tokens of prompts go: rows of slot, position of the first token and number of tokens."""
        parts: dict[int, list[tuple[int, int, int, int, int]]] = {}  # row, first column, page, first offset, tokens
        for row, (slot, start, count) in enumerate(rows):
            self.reserve(slot, start + count)
            for block in range(block_of(start), block_of(start + count - 1) + 1):
                first, last = max(start, block_start(block)), min(start + count, block_start(block + 1))
                part = (row, first - start, self._pages[slot][block], first - block_start(block), last - first)
                parts.setdefault(block, []).append(part)
        return [_prompt_tokens(block, torch.tensor(tokens)) for block, tokens in parts.items()]

    def write_prompts(self, layer: int, tokens: Sequence[PromptTokens], k: Tensor, v: Tensor) -> None:
        """Store keys and values [R, T, K, D] of prompts."""
        joined = torch.stack((k, v), 2)
        for part in tokens:
            self._blocks[part.block][layer][:, part.pages, :, part.offsets] = joined[part.rows, part.columns]

    def prompt_pages(self, slots: Sequence[int], num_keys: int) -> list[PromptPages]:
        """The pages that rows of prompts read, of the first `num_keys` keys."""
        result = []
        for block in range(block_count(num_keys)):
            rows = [row for row, slot in enumerate(slots) if len(self._pages[slot]) > block]
            pages = [self._pages[slots[row]][block] for row in rows]
            if rows:
                result.append(PromptPages(block, _index(rows), _index(pages)))
        return result

    def read_prompts(self, layer: int, pages: Sequence[PromptPages], out: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values [R, K, keys, D] of rows of prompts, in the buffer `out` [2, R, K, keys, D] of zeros."""
        for part in pages:
            span = slice(block_start(part.block), block_start(part.block + 1))
            out[:, part.rows, :, span] = self._blocks[part.block][layer][
                :, part.pages, :, : out[:, :1, :, span].shape[3]
            ]
        return out[0], out[1]

    def decode_destinations(self, positions: Sequence[int], first_row: int = 0) -> list[DecodeDestinations]:
        """Where the tokens of consecutive rows go that are at these positions.

        Rows are sorted by their number of blocks; those of one block are consecutive.
        """
        result: list[DecodeDestinations] = []
        kv_heads, start = self.shape.kv_heads, 0
        while start < len(positions):
            block = block_of(positions[start])
            end = start + 1
            while end < len(positions) and block_of(positions[end]) == block:
                end += 1
            offsets = torch.tensor([position - block_start(block) for position in positions[start:end]])
            heads = torch.arange((first_row + start) * kv_heads, (first_row + end) * kv_heads).view(-1, kv_heads)
            heads *= block_size(block)
            result.append(DecodeDestinations(block, slice(start, end), (heads + offsets[:, None]).flatten()))
            start = end
        return result

    def write_rows(self, layer: int, destinations: Sequence[DecodeDestinations], k: Tensor, v: Tensor) -> None:
        """Store keys and values [R, K, D] of one token per row."""
        for destination in destinations:
            views = self._views_of(destination.block)[layer]
            views.key_vectors.index_copy_(0, destination.index, k[destination.rows].flatten(0, 1))
            views.value_vectors.index_copy_(0, destination.index, v[destination.rows].flatten(0, 1))

    def read_rows(self, layer: int, rows_per_block: Sequence[int], first_row: int = 0) -> list[tuple[Tensor, Tensor]]:
        """Per block the keys [rows·K, D, keys] and values [rows·K, keys, D] of the rows that have it, as they lie.

        Rows and their numbers per block are counted from `first_row`.
        """
        kv_heads, result = self.shape.kv_heads, []
        for block, count in enumerate(rows_per_block):
            rows, views = slice(first_row * kv_heads, (first_row + count) * kv_heads), self._views_of(block)[layer]
            result.append((views.keys[rows], views.values[rows]))
        return result
