"""The order of the stages of a training: base, SFT, DPO, RL. Found names are sorted by it, not by the alphabet."""

from __future__ import annotations

import re

STAGES = (
    ("base", "baseline", "untrained", "initial", "start", "before", "null", "random"),
    ("sft", "bc", "imitation", "demonstrations"),
    ("dpo", "preferences"),
    ("rl", "grpo", "ppo", "gspo", "reinforce", "train", "trained", "after", "final"),
)
UNKNOWN_STAGE = len(STAGES)
RANKS = {word: rank for rank, words in enumerate(STAGES) for word in words}

StageKey = tuple[int, list[tuple[int, int, str]]]


def stage_key(name: str) -> StageKey:
    """A sort key of a run's or folder's name: its stage by the first word that names one, then its numbers by value."""
    words = re.findall(r"[a-z]+", name.lower())
    return next((RANKS[word] for word in words if word in RANKS), UNKNOWN_STAGE), natural_key(name)


def stage_rank(name: str) -> int | None:
    """The place of a part's stage in the order of training, by the last part of its name; None for no known stage."""
    rank = stage_key(re.split(r"[/·]", name)[-1])[0]
    return None if rank == UNKNOWN_STAGE else rank


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """A sort key that orders numbers in names by value: attempt 10 after attempt 9."""
    parts = re.split(r"([0-9]{1,18})", name)  # text and number in turn
    return [(0, int(part), "") if index % 2 else (1, 0, part) for index, part in enumerate(parts)]
