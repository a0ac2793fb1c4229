"""Keys and values of slots, laid out in pages that are shuffled over two allocations."""

from __future__ import annotations

import torch
from torch import Tensor

from practicum.kernels.paged_kv import OFFSET_UNIT, PAGE_TOKENS, LayerPages


class PagedRows:
    """Rows of keys and values [2, slots, K, tokens, D] as pages; `rows` reads them back."""

    def __init__(self, kv: Tensor) -> None:
        _, slots, kv_heads, self.num_tokens, size = kv.shape
        per_slot = -(-self.num_tokens // PAGE_TOKENS)
        count = slots * per_slot + 1
        generator = torch.Generator().manual_seed(1)
        order = torch.randperm(count - 1, generator=generator).add(1).view(slots, per_slot)
        shape = (2, kv_heads, PAGE_TOKENS, size)
        self.chunks = [torch.full((n, *shape), 7.0, dtype=kv.dtype, device=kv.device) for n in (count // 2 + 1, count)]
        half_count, distance = count // 2, self.chunks[1].data_ptr() - self.chunks[0].data_ptr()
        page_bytes = 2 * kv_heads * PAGE_TOKENS * size * kv.element_size()
        offsets = torch.where(order < half_count, order * page_bytes, distance + order * page_bytes)
        table = (offsets // (OFFSET_UNIT * kv.element_size())).to(kv.device)
        self.order, self.half = order, half_count
        self.layer = LayerPages(*self.chunks[0][0], table, per_slot * PAGE_TOKENS)
        self.write(kv)

    def page(self, index: int) -> Tensor:
        return self.chunks[0 if index < self.half else 1][index]

    def write(self, kv: Tensor) -> None:
        for slot, pages in enumerate(self.order.tolist()):
            for index, page_index in enumerate(pages):
                part = kv[:, slot, :, index * PAGE_TOKENS : (index + 1) * PAGE_TOKENS]
                self.page(page_index)[:, :, : part.shape[2]] = part

    def rows(self) -> Tensor:
        slots = [torch.cat([self.page(index) for index in pages], 2) for pages in self.order.tolist()]
        return torch.stack(slots, 1)[:, :, :, : self.num_tokens]
