"""The episodes to read first: the best, the worst, and the most surprising."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from practicum.report.index import EpisodeRow
from practicum.trajectory import Outcome

NUM_HIGHLIGHTS = 6
"""Episodes in each list, at most."""
MIN_SURPRISAL_BITS = 1.0
"""Surprisal above which an outcome counts as surprising: that of one with probability ½."""


def highlights(rows: Sequence[EpisodeRow], each: int = NUM_HIGHLIGHTS) -> dict[str, list[int]]:
    """Row numbers by list; within a list each task appears once as long as there are enough tasks.

    Where rewards differ, none with the lowest is among the best and none with the highest among the worst.
    """
    counted = [row for row in rows if row.counted]
    played = [
        row for row in counted if not row.selected
    ]  # episodes saved for their reward are neither worst nor surprising
    bits = surprisal(played)
    low, high = (end([row.result.reward for row in played], default=0.0) for end in (min, max))
    good = [row for row in counted if row.result.reward > low or low == high]
    bad = [row for row in played if row.result.reward < high or low == high]
    return {
        "best": _first(good, lambda row: (-row.result.reward, row.result.turns, row.result.tokens), each),
        "worst": _first(bad, lambda row: (row.result.reward, -row.result.invalid_replies, -row.result.turns), each),
        "surprising": _first(
            [row for row in played if bits.get(row.number, 0.0) > MIN_SURPRISAL_BITS],
            lambda row: (-bits[row.number], row.logprob if row.logprob is not None else 0.0),
            each,
        ),
    }


def surprisal(rows: Iterable[EpisodeRow]) -> dict[int, float]:
    """The surprisal of each outcome in bits, by row number.

    Its probability is estimated from the other attempts at the same task, or where there are none from all other
    episodes of that part of the run, with one success and one failure added.
    """
    by_task: dict[tuple[str, str], list[EpisodeRow]] = {}
    by_part: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        by_task.setdefault((row.part, row.result.cluster), []).append(row)
        by_part.setdefault(row.part, []).append(row)
    wins = {id(group): sum(map(_won, group)) for group in (*by_task.values(), *by_part.values())}
    bits = {}
    for (part, _), attempts in by_task.items():
        sample = attempts if len(attempts) > 1 else by_part[part]
        if len(sample) < 2:
            continue
        for row in attempts:
            others, num_won = len(sample) - 1, wins[id(sample)] - _won(row)
            probability = (num_won + 1) / (others + 2) if _won(row) else (others - num_won + 1) / (others + 2)
            bits[row.number] = -math.log2(probability)
    return bits


def _won(row: EpisodeRow) -> bool:
    return row.result.outcome is Outcome.SUCCESS


def _first(rows: Iterable[EpisodeRow], order: Callable[[EpisodeRow], tuple[float, ...]], each: int) -> list[int]:
    """The first rows by an order, one per task as long as there are enough tasks."""
    ordered = sorted(rows, key=lambda row: (order(row), row.number))
    new_task: list[int] = []
    repeated: list[int] = []
    tasks: set[str] = set()
    for row in ordered:
        (repeated if row.result.cluster in tasks else new_task).append(row.number)
        tasks.add(row.result.cluster)
        if len(new_task) >= each:
            break
    return (new_task + repeated)[:each]
