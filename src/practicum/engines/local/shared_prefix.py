"""Rows that begin alike, such as the chains of a prompt: a GPU reads the keys and values they share from one place.

Each row reads them for itself, and all but the first find them in the cache; or, where there are enough, they are read
once for all.

Each row has a whole copy at home, and what it holds depends on nothing but weights, adapter and ids, which are the same
for all of a crew: so any of them can be read for the others, and a crew that loses a row leaves no trace.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import torch
from torch import Tensor

from practicum.engines.local.prefix_cache import BLOCK
from practicum.engines.local.request import RunningRequest

MIN_SHARED_BYTES = 48 << 20
"""Bytes of a layer's keys and values that are read again and again, from which on it pays to read them once for all: on
an H200 that costs 9 µs."""
MAX_LEADERS = 8 << 20
"""The same, from which on it pays to read them from one place."""

SharedPrefixGroup = tuple[int, list[int]]
"""How many ids rows begin with in common, and the rows' numbers."""


@dataclass(frozen=True)
class SharedPrefixBatch:
    """Crews as a GPU knows them: they look at the keys they have in common at the home of one of them."""

    members: Tensor  # [crews, most] rows; -1: nobody
    leads: Tensor  # [crews] the home
    commons: Tensor  # [crews] how many keys; 0: there is no such crew
    of_rows: Tensor  # [rows] the same, of each row's crew
    leads_of_rows: Tensor  # [rows]


class SharedPrefixGroups:
    """Who stands together. The tensors stay where they are: a captured step goes on reading them."""

    def __init__(self, slots: int, most: int, keys: int, bytes_a_key: int, device: torch.device) -> None:
        self.most, self.keys, self.bytes_a_key = most, keys, bytes_a_key
        self._shapes = ((max(1, slots // 2), most), (max(1, slots // 2),), (max(1, slots // 2),), (slots,), (slots,))
        self._numbers = torch.zeros(sum(map(np.prod, self._shapes)), dtype=torch.int64, device=device)
        self._rows: list[RunningRequest] = []
        self._known = self._pay = False

    def of(self, wide: int) -> SharedPrefixBatch:
        """Those that so many rows may form."""
        parts = torch.split(self._numbers, [int(np.prod(shape)) for shape in self._shapes])
        members, leads, commons, *of_rows = (part.view(shape) for part, shape in zip(parts, self._shapes, strict=True))
        crews = max(1, wide // 2)
        return SharedPrefixBatch(members[:crews], leads[:crews], commons[:crews], *(part[:wide] for part in of_rows))

    def gather(self, rows: list[RunningRequest], homes: Sequence[int]) -> bool:
        """Whether it pays that these rows, who live in `homes`, go through what they share once for all."""
        if rows == self._rows:
            return self._pay
        self._rows, found = rows, shared_prefix_groups(rows, self.most, self.keys)
        spared = self.bytes_a_key * sum((len(crew) - 1) * common for common, crew in found)
        self._pay = bool(found) and spared >= MIN_SHARED_BYTES
        if spared < min(MAX_LEADERS, MIN_SHARED_BYTES):
            found = []
        if found or self._known:
            members, leads, commons, of_rows, leads_of_rows = (
                np.zeros(shape, dtype=np.int64) for shape in self._shapes
            )
            members[:] = -1
            for place, (common, crew) in enumerate(found):
                members[place, : len(crew)], leads[place], commons[place] = crew, homes[crew[0]], common
                of_rows[crew], leads_of_rows[crew] = common, homes[crew[0]]
            numbers = np.concatenate([members.ravel(), leads, commons, of_rows, leads_of_rows])
            self._numbers.copy_(torch.from_numpy(numbers), non_blocking=True)
        self._known = bool(found)
        return self._pay


def shared_prefix_groups(rows: Sequence[RunningRequest], most: int, keys: int) -> list[SharedPrefixGroup]:
    """Each row with those that it shares the most blocks of `keys` ids with, up to `most` together."""
    each = keys // BLOCK
    marks = [row.hashes[each - 1 :: each] for row in rows]
    counts = Counter(chain.from_iterable(marks))
    groups: dict[tuple[int, int], list[int]] = {}
    for number, own in enumerate(marks):
        depth = len(own)
        while depth and counts[own[depth - 1]] < 2:
            depth -= 1
        if depth:
            groups.setdefault((depth * keys, own[depth - 1]), []).append(number)
    found: list[SharedPrefixGroup] = []
    for (common, _), numbers in groups.items():
        stem = rows[numbers[0]].request.ids[:common]
        alike = [number for number in numbers if rows[number].request.ids[:common] == stem]  # hashes may lie
        crews = (alike[start : start + most] for start in range(0, len(alike), most))
        found += [(common, crew) for crew in crews if len(crew) > 1]
    return found
