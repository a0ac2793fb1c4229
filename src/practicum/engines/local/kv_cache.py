"""Where in the engine's KV buffer rows live.

On CPU a row lives in the home of its slot's number. On a GPU it keeps the home it began in, whatever its slot, and
what it leaves there at its end stays for the next turn of its session, which takes that very home: nothing is copied
out and in again. A home that keeps something for a session is given to others last.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from practicum.engines.local.prefix_cache import CachedPrefix, PrefixCache
from practicum.engines.local.request import RunningRequest


class KVSlots:
    """Which home each slot has: those of rows first, then the free ones. Entries reside in free ones only."""

    def __init__(self, slots: int, prefixes: PrefixCache) -> None:
        self.of = list(range(slots))
        self.spare = slots
        """Nobody's. On a GPU all rows that only fill up a batch stand here: what they write must hit nothing kept."""
        self.prefixes = prefixes

    @property
    def count(self) -> int:
        """How many a buffer has to hold."""
        return self.spare + 1

    def let_in(self, wave: Sequence[RunningRequest], first: int, kv: Tensor) -> None:
        """Give rows the slots from `first` on, and homes with what was found of their prompts in them.

        Every copy is made before any row of the wave computes. So what one row takes over is still whole when others
        copy from it, and what is to be overwritten has been moved out.
        """
        takers = self._takers(wave)
        vacant = self._vacant(first, len(wave) - len(takers), takers, kv)
        homes = [takers[row] if row in takers else next(vacant) for row in wave]
        given = set(homes)
        self.of[first:] = homes + [home for home in self.of[first:] if home not in given]
        copies: dict[tuple[int, int], tuple[CachedPrefix, list[int]]] = {}
        for slot, (row, home) in enumerate(zip(wave, homes, strict=True), first):
            (entry, row.cached), row.found = row.found, (None, 0)
            row.slot, row.continues = slot, _own(entry, row)
            if entry is not None and row.cached and entry.home != home:
                copies.setdefault((id(entry), row.cached), (entry, []))[1].append(home)
        for (_, length), (entry, targets) in copies.items():
            source = kv[:, :, entry.home] if entry.kv is None else entry.kv
            if len(targets) == 1:  # no list of homes need go over
                kv[:, :, targets[0], :, :length] = source[:, :, :, :length]
            else:
                there = torch.tensor(targets).to(kv.device, non_blocking=True)
                kv[:, :, there, :, :length] = source[:, :, None, :, :length]

    def _takers(self, wave: Sequence[RunningRequest]) -> dict[RunningRequest, int]:
        """Rows that go on where the last turn of their session ended. What it left is theirs: nobody else finds it."""
        takers: dict[RunningRequest, int] = {}
        for row in wave:
            entry = row.found[0]
            home = entry.home if entry is not None and _own(entry, row) else None
            if entry is not None and home is not None and self.prefixes.resident.get(home) is entry:
                takers[row] = home
                self.prefixes.take(entry)
        return takers

    def _vacant(self, first: int, wanted: int, takers: dict[RunningRequest, int], kv: Tensor) -> Iterator[int]:
        """Free homes, those that keep nothing first; who has to go is the one that was not used for the longest."""
        taken = {*takers.values(), *self.prefixes.resident}
        vacant = [home for home in self.of[first:] if home not in taken]
        for home, entry in self.prefixes.oldest_residents(wanted - len(vacant)):
            self.prefixes.move_out(entry, kv[:, :, home, :, : len(entry.ids)].clone())
            vacant.append(home)
        return iter(vacant)

    def swap(self, a: int, b: int) -> None:
        self.of[a], self.of[b] = self.of[b], self.of[a]

    def carry(self, rows: int, old: Tensor, new: Tensor) -> None:
        """Everything of the first rows, and what is kept for others, into a larger buffer."""
        for home in (*self.of[:rows], *self.prefixes.resident):
            new[:, :, home, :, : old.shape[4]] = old[:, :, home]


def _own(entry: CachedPrefix | None, row: RunningRequest) -> bool:
    return entry is not None and bool(row.request.session) and entry.session == row.request.session
