"""The advantages that an episode was trained with, where the run saved them beside it."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.data.run_folder import ADVANTAGES, advantages_path
from practicum.utils.escape import is_number
from practicum.utils.regular_files import read_regular
from practicum.utils.terminal import escape_invisible

MAX_FILE_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class EpisodeAdvantages:
    """`values`: one number for the whole episode, or one per sampled token (None for a token without one)."""

    estimator: str
    values: float | list[float | None]

    @property
    def mean(self) -> float | None:
        """The mean over the episode's tokens."""
        if isinstance(self.values, float):
            return self.values
        values = [value for value in self.values if value is not None]
        return math.fsum(values) / len(values) if values else None


def read_advantages(episode: Path) -> EpisodeAdvantages | None:
    """Read the file beside an episode; None where there is none. Raises where it is damaged."""
    path = advantages_path(episode)
    if not path.is_symlink() and not path.exists():
        return None
    record = json.loads(read_regular(path, MAX_FILE_BYTES))
    if not isinstance(record, dict) or record.get("format") != ADVANTAGES:
        raise ValueError(f"no advantages (no 'format': '{ADVANTAGES}')")
    recorded = record["advantages"]
    values = [_number(value) for value in recorded] if isinstance(recorded, list) else _number(recorded)
    if values is None:
        values = []
    return EpisodeAdvantages(escape_invisible(str(record["estimator"])[:60]), values)


def _number(value: Any) -> float | None:
    if value is not None and not is_number(value):
        raise ValueError("an advantage is not a number")
    return float(value) if value is not None and math.isfinite(value) else None
