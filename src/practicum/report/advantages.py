"""The advantages that an episode was trained with, where the run left them beside it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.training.episode_saver import ADVANTAGES, advantages_path
from practicum.utils.escape import is_number, shown

LARGEST = 32 << 20


@dataclass(frozen=True, slots=True)
class EpisodeAdvantages:
    """`values`: one number for the whole episode, or one a sampled token (None where it was none)."""

    estimator: str
    values: float | list[float | None]

    @property
    def mean(self) -> float | None:
        """Over the episode's tokens."""
        if isinstance(self.values, float):
            return self.values
        known = [value for value in self.values if value is not None]
        return math.fsum(known) / len(known) if known else None


def read_advantages(episode: Path) -> EpisodeAdvantages | None:
    """What lies beside an episode; None where nothing does. Raises where it is damaged."""
    path = advantages_path(episode)
    try:
        size = path.stat().st_size
    except OSError:
        return None
    if size > LARGEST:
        raise ValueError(f"the file has {size >> 20} MiB")
    record = json.loads(path.read_bytes())
    if not isinstance(record, dict) or record.get("format") != ADVANTAGES:
        raise ValueError(f"no advantages (no 'format': '{ADVANTAGES}')")
    given = record["advantages"]
    values = [_number(value) for value in given] if isinstance(given, list) else _number(given)
    if values is None:
        values = []
    return EpisodeAdvantages(shown(str(record["estimator"])[:60]), values)


def _number(value: Any) -> float | None:
    if value is not None and not is_number(value):
        raise ValueError("an advantage is not a number")
    return float(value) if value is not None and math.isfinite(value) else None
