"""Preference pairs out of episodes: two replies, or two whole episodes, of which one turned out better.

`mine_preferences` is the one miner. `practicum export` writes its pairs as text, `practicum dpo` trains on their ids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from practicum.data.state_index import Visit, failed, histories, progress, visits
from practicum.errors import UserError
from practicum.trajectory import Outcome, Trajectory, Turn

Value = tuple[float, ...]
"""What a reply is worth; the larger tuple is the better one."""


@dataclass(frozen=True)
class Preference:
    """Two replies, and a key that names where they were given. Of whole episodes each visit is the first turn."""

    chosen: Visit
    rejected: Visit
    key: str
    margin: float = 0.0
    """By how much the chosen one is worth more, in the first number that its value has."""

    @property
    def same_state(self) -> bool:
        names = [list(histories(v.episode))[v.number] for v in (self.chosen, self.rejected)]
        return self.chosen.episode.task.hash == self.rejected.episode.task.hash and names[0] == names[1]


def mine_preferences(episodes: Sequence[Trajectory], strategy: str) -> list[Preference]:
    """Return the pairs of scored episodes that a strategy finds, each pair once, in the order of the episodes.

    `default`: in one state, an action that worked over one that failed; where both worked, the one whose episodes
    succeeded more often. `same_state`: in one state, the reply whose episodes were rewarded more, then came further;
    chance rewards after a failed action do not put it above one that worked. `progress_ranked`: a task's best episode
    over its worst, step by step by index, whatever state either was in. `same_ids`: after the same ids, the sampled
    ids whose episodes were rewarded more. `trajectory`: of one task, the episode that was rewarded more; an episode
    that rewrote its history is no single sequence and makes no such pair. Replies of equal value make no pair.
    """
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(STRATEGIES)}.")
    return list(STRATEGIES[strategy](episodes))


def group_by_task(episodes: Iterable[Trajectory]) -> list[list[Trajectory]]:
    """Return the episodes of each task, tasks in the order of their first episode."""
    groups: dict[tuple[str, str], list[Trajectory]] = {}
    for episode in episodes:
        groups.setdefault((episode.task.id, episode.task.hash), []).append(episode)
    return list(groups.values())


def rank(episode: Trajectory) -> tuple[float, int, int, str, int]:
    """Return a key that sorts the best episode first: most progress, then fewest turns, then fewest recoveries."""
    recoveries = sum(source_of(turn).startswith("recovery") for turn in episode.turns)
    return (-progress(episode), len(episode.turns), recoveries, episode.task.id, episode.attempt)


def source_of(turn: Turn) -> str:
    """Return who acted; an environment that acts for the policy at times (a cache, a recovery) names it in `info`."""
    source = turn.info.get("action_source")
    return source if isinstance(source, str) and source else str(turn.source)


def _unequal_pairs(
    candidates: Iterable[tuple[Hashable, Visit]], value: Callable[[Sequence[Visit]], Value]
) -> Iterator[tuple[Visit, Visit, float]]:
    """Yield better, worse and margin of every two replies of different value.

    `candidates` are visits under what makes their replies the same; the first visit stands for the reply.
    """
    replies: dict[Hashable, list[Visit]] = {}
    for reply, visit in candidates:
        replies.setdefault(reply, []).append(visit)
    valued = [(value(group), group[0]) for group in replies.values()]
    for (one, first), (other, second) in itertools.combinations(valued, 2):
        if one != other:
            better, worse = (first, second) if one > other else (second, first)
            yield better, worse, abs(one[0] - other[0])


def _default(episodes: Sequence[Trajectory]) -> Iterator[Preference]:
    return _by_text("default", episodes, _action_value)


def _same_state(episodes: Sequence[Trajectory]) -> Iterator[Preference]:
    return _by_text("same_state", episodes, _reward_and_progress)


def _by_text(
    strategy: str, episodes: Sequence[Trajectory], value: Callable[[Sequence[Visit]], Value]
) -> Iterator[Preference]:
    """Yield pairs of different texts in one state; a failed action is chosen over failed ones only."""
    for state, own in visits(episodes).items():
        candidates = [(visit.turn.reply, visit) for visit in own if _has_text(visit)]
        for better, worse, margin in _unequal_pairs(candidates, value):
            if not failed(better.episode, better.number) or failed(worse.episode, worse.number):
                yield Preference(better, worse, f"{strategy}_{state.key}", margin)


def _same_ids(episodes: Sequence[Trajectory]) -> Iterator[Preference]:
    for state, own in visits(episodes).items():
        candidates = [(ids, visit) for visit in own if (ids := visit.turn.spans[-1].ids)]
        for better, worse, margin in _unequal_pairs(candidates, _mean_reward):
            yield Preference(better, worse, state.key, margin)


def _trajectory(episodes: Sequence[Trajectory]) -> Iterator[Preference]:
    tasks: dict[tuple[str, str, str], list[tuple[Hashable, Visit]]] = {}
    for episode in episodes:
        sequences = episode.sequences()
        if episode.scored and len(sequences) == 1 and any(sequences[0].sampled):
            key = (episode.task.id, episode.task.hash, str(episode.provenance.get("tokenizer", "")))
            tasks.setdefault(key, []).append((sequences[0].ids, Visit(episode, 0)))
    for (task, _, _), candidates in tasks.items():
        for better, worse, margin in _unequal_pairs(candidates, _mean_reward):
            yield Preference(better, worse, f"trajectory_{task}", margin)


def _progress_ranked(episodes: Sequence[Trajectory]) -> Iterator[Preference]:
    for group in group_by_task(e for e in episodes if e.scored):
        ordered = sorted(group, key=rank)
        best, worst = ordered[0], ordered[-1]
        for index in range(min(len(best.turns), len(worst.turns))):
            good, bad = Visit(best, index), Visit(worst, index)
            if best is not worst and good.turn.reply != bad.turn.reply and _has_text(good) and _has_text(bad):
                yield Preference(good, bad, f"progress_ranked_{best.task.id}_{index + 1}")


STRATEGIES: Mapping[str, Callable[[Sequence[Trajectory]], Iterator[Preference]]] = {
    "default": _default,
    "progress_ranked": _progress_ranked,
    "same_state": _same_state,
    "same_ids": _same_ids,
    "trajectory": _trajectory,
}


def _action_value(group: Sequence[Visit]) -> Value:
    """Whether the action worked; of actions that did, how often their episodes succeeded."""
    if any(failed(visit.episode, visit.number) for visit in group):
        return (0.0,)
    return (1.0, math.fsum(v.episode.outcome is Outcome.SUCCESS for v in group) / len(group))


def _mean_reward(group: Sequence[Visit]) -> Value:
    return (math.fsum(visit.episode.reward for visit in group) / len(group),)


def _reward_and_progress(group: Sequence[Visit]) -> Value:
    return (*_mean_reward(group), math.fsum(progress(visit.episode) for visit in group) / len(group))


def _has_text(visit: Visit) -> bool:
    return bool(visit.turn.reply.strip())
