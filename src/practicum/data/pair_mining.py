"""Pair mining: of replies given in one state, or of any items with a value, the better and the worse of every two.

Text rows for export and token pairs for DPO are both mined here; they differ in what counts as one reply and in
how replies are valued.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from practicum.data.state_index import State, Visit, visits
from practicum.trajectory import Trajectory

Value = tuple[float, ...]
"""What an item is worth; compared element by element."""
Item = TypeVar("Item")


@dataclass(frozen=True)
class SameStatePair:
    """Two different replies given in one state; each is represented by the first visit that gave it."""

    state: State
    chosen: Visit
    rejected: Visit
    chosen_value: Value
    rejected_value: Value


def same_state_pairs(
    episodes: Sequence[Trajectory],
    reply_of: Callable[[Visit], Hashable | None],
    value_of: Callable[[Sequence[Visit]], Value],
) -> Iterator[SameStatePair]:
    """Yield every two replies of one state whose values differ, states in the order in which they first occur.

    `reply_of` names the reply of a visit (None: leave it out); `value_of` values a reply by the visits that gave it.
    """
    for state, in_state in visits(episodes).items():
        replies: dict[Hashable, list[Visit]] = {}
        for visit in in_state:
            reply = reply_of(visit)
            if reply is not None:
                replies.setdefault(reply, []).append(visit)
        valued = [(value_of(same_reply), same_reply[0]) for same_reply in replies.values()]
        for (better, chosen), (worse, rejected) in ranked_pairs(valued):
            yield SameStatePair(state, chosen, rejected, better, worse)


def ranked_pairs(valued: Sequence[tuple[Value, Item]]) -> Iterator[tuple[tuple[Value, Item], tuple[Value, Item]]]:
    """Yield every two items whose values differ, the better one first, in the order of the items."""
    for first, second in itertools.combinations(valued, 2):
        if first[0] != second[0]:
            yield (first, second) if first[0] > second[0] else (second, first)
