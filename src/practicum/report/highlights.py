"""Which episodes a person should read first: the best, the worst, and those that nobody would have expected."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence

from practicum.report.index import EpisodeRow
from practicum.trajectory import Outcome

EACH = 6
EVEN = 1.0
"""Bits of an outcome that was as likely as not: no more than that surprises nobody."""


def highlights(rows: Sequence[EpisodeRow], each: int = EACH) -> dict[str, list[int]]:
    """Numbers of rows, no two of a list at the same task where there are enough tasks.

    Where rewards differ, the best are none with the lowest reward and the worst none with the highest.
    """
    counted = [row for row in rows if row.counted]
    played = [row for row in counted if not row.selected]  # among chosen episodes nothing is worst or surprising
    surprise = surprises(played)
    low, high = (end([row.sitting.reward for row in played], default=0.0) for end in (min, max))
    good = [row for row in counted if row.sitting.reward > low or low == high]
    bad = [row for row in played if row.sitting.reward < high or low == high]
    return {
        "best": _first(good, lambda row: (-row.sitting.reward, row.sitting.turns, row.sitting.tokens), each),
        "worst": _first(bad, lambda row: (row.sitting.reward, -row.sitting.invalid_replies, -row.sitting.turns), each),
        "surprising": _first(
            [row for row in played if surprise.get(row.number, 0.0) > EVEN],
            lambda row: (-surprise[row.number], row.logprob if row.logprob is not None else 0.0),
            each,
        ),
    }


def surprises(rows: Iterable[EpisodeRow]) -> dict[int, float]:
    """How unexpected each outcome was, in bits.

    What is expected comes from the other attempts at the same task, or where there are none from all other episodes of
    that part of the run; one success and one failure are added to what was seen.
    """
    by_task: dict[tuple[str, str], list[EpisodeRow]] = {}
    by_part: dict[str, list[EpisodeRow]] = {}
    for row in rows:
        by_task.setdefault((row.part, row.sitting.cluster), []).append(row)
        by_part.setdefault(row.part, []).append(row)
    wins = {id(group): sum(map(_won, group)) for group in (*by_task.values(), *by_part.values())}
    found = {}
    for (part, _), attempts in by_task.items():
        known = attempts if len(attempts) > 1 else by_part[part]
        if len(known) < 2:
            continue
        for row in attempts:
            others, won = len(known) - 1, wins[id(known)] - _won(row)
            likely = (won + 1) / (others + 2) if _won(row) else (others - won + 1) / (others + 2)
            found[row.number] = -math.log2(likely)
    return found


def _won(row: EpisodeRow) -> bool:
    return row.sitting.outcome is Outcome.SUCCESS


def _first(rows: Iterable[EpisodeRow], order: Callable[[EpisodeRow], tuple[float, ...]], each: int) -> list[int]:
    """The first few by an order, one a task as long as there are enough tasks."""
    ordered = sorted(rows, key=lambda row: (order(row), row.number))
    fresh: list[int] = []
    again: list[int] = []
    tasks: set[str] = set()
    for row in ordered:
        (again if row.sitting.cluster in tasks else fresh).append(row.number)
        tasks.add(row.sitting.cluster)
        if len(fresh) >= each:
            break
    return (fresh + again)[:each]
