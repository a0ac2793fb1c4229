"""The split of a task, decided by a hash of its content: eight tenths train, one tenth val, one tenth test.

A task belongs to the same split for every seed, so that no seed moves one from a split to another.
"""

from __future__ import annotations

from practicum.task import content_hash

SPLIT_OF_BUCKET = ("train",) * 8 + ("val", "test")


def split_of_hash(content_hash: str) -> str:
    """Return the split of a content hash (hexadecimal)."""
    return SPLIT_OF_BUCKET[int(content_hash, 16) % len(SPLIT_OF_BUCKET)]


def split_of(content: object) -> str:
    """Return the split of a content: anything that `content_hash` takes."""
    return split_of_hash(content_hash(content))
