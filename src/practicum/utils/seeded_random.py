"""Random numbers from a name: the same on every machine and every version of Python."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TypeVar

Item = TypeVar("Item")


class SeededRandom:
    """Random numbers that depend on the name and on how many were drawn before."""

    def __init__(self, name: str) -> None:
        self.name, self.num_drawn = name, 0

    def below(self, limit: int) -> int:
        """Return a number from 0 to `limit` - 1."""
        self.num_drawn += 1
        digest = hashlib.sha256(f"{self.name}/{self.num_drawn}".encode()).digest()
        return int.from_bytes(digest[:8], "big") % limit

    def between(self, low: int, high: int) -> int:
        """Return a number from `low` to `high`."""
        return low + self.below(high - low + 1)

    def choice(self, items: Sequence[Item]) -> Item:
        return items[self.below(len(items))]

    def sample(self, items: Sequence[Item], count: int) -> list[Item]:
        """Return `count` of the items, in their own order."""
        remaining = list(range(len(items)))
        indices = sorted(remaining.pop(self.below(len(remaining))) for _ in range(min(count, len(remaining))))
        return [items[index] for index in indices]
