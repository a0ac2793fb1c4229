"""Preference pairs out of episodes: two replies, or two whole episodes, of which one turned out better.

`mine_preferences` is the one miner. `practicum export` writes its pairs as text, `practicum dpo` trains on their ids.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from practicum.data.state_index import Visit, failed, histories, progress, visits
from practicum.environment import DEFAULT_ROLE
from practicum.errors import UserError
from practicum.trajectory import Origin, Trajectory, Turn, is_trained, learned_roles

Roles = Collection[str] | None
Value = tuple[float, ...]
"""What a reply is worth; the larger tuple is the better one."""


@dataclass(frozen=True)
class PreferencePair:
    """Two replies, and a key that names where they were given. Of episodes each visit is the role's first turn."""

    chosen: Visit
    rejected: Visit
    key: str
    margin: float = 0.0
    """By how much the chosen one is worth more, in the first number that its value has."""

    @property
    def same_state(self) -> bool:
        names = [list(histories(v.episode))[v.number] for v in (self.chosen, self.rejected)]
        return self.chosen.episode.task.hash == self.rejected.episode.task.hash and names[0] == names[1]


def mine_preferences(episodes: Sequence[Trajectory], strategy: str, roles: Roles = None) -> list[PreferencePair]:
    """Return the pairs of scored episodes that a strategy finds, each pair once, in the order of the episodes.

    `default`: in one state, an action that worked over one that failed; where both worked, the one whose episodes
    succeeded more often. `same_state`: in one state, the reply whose episodes were rewarded more, then came further;
    chance rewards after a failed action do not put it above one that worked. `progress_ranked`: a task's best episode
    over its worst, step by step by index, whatever state either was in. `same_ids`: after the same ids, the sampled
    ids whose episodes were rewarded more. `trajectory`: of one task, the episode that was rewarded more; where a role's
    replies are no single sequence (a history was rewritten, a branch), it makes no such pair. Replies of equal value
    make no pair. Of several replies to one prompt within an episode each is worth what followed it.

    `roles`: whose replies are compared, each role's with its own; None: those in training, as the episodes record them.
    """
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(STRATEGIES)}.")
    return list(STRATEGIES[strategy](episodes, roles))


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

    `candidates` are visits under what makes their replies the same; the first visit represents the reply.
    """
    replies: dict[Hashable, list[Visit]] = {}
    for reply, visit in candidates:
        replies.setdefault(reply, []).append(visit)
    valued = [(value(group), group[0]) for group in replies.values()]
    for (first_value, first), (second_value, second) in itertools.combinations(valued, 2):
        if first_value != second_value:
            better, worse = (first, second) if first_value > second_value else (second, first)
            yield better, worse, abs(first_value[0] - second_value[0])


def _default(episodes: Sequence[Trajectory], roles: Roles) -> Iterator[PreferencePair]:
    return _by_text("default", episodes, roles, _action_value)


def _same_state(episodes: Sequence[Trajectory], roles: Roles) -> Iterator[PreferencePair]:
    return _by_text("same_state", episodes, roles, _reward_and_progress)


def _by_text(
    strategy: str, episodes: Sequence[Trajectory], roles: Roles, value: Callable[[Sequence[Visit]], Value]
) -> Iterator[PreferencePair]:
    """Yield pairs of different texts in one state; a failed action is chosen over failed ones only."""
    for state, own in visits(episodes, roles).items():
        candidates = [(visit.turn.reply, visit) for visit in own if _has_text(visit)]
        for better, worse, margin in _unequal_pairs(candidates, value):
            if not failed(better.episode, better.number) or failed(worse.episode, worse.number):
                yield PreferencePair(better, worse, f"{strategy}_{state.key}", margin)


def _same_ids(episodes: Sequence[Trajectory], roles: Roles) -> Iterator[PreferencePair]:
    for state, own in visits(episodes, roles).items():
        sampled = [visit for visit in own if _is_sampled(visit.turn)]
        candidates = [(ids, visit) for visit in sampled if (ids := visit.turn.spans[-1].ids)]
        for better, worse, margin in _unequal_pairs(candidates, _mean_reward):
            yield PreferencePair(better, worse, state.key, margin)


def _is_sampled(turn: Turn) -> bool:
    """Whether a reply was sampled; one that its agent made no use of is recorded as an observation."""
    return turn.spans[-1].origin is Origin.SAMPLED or turn.is_abandoned


def _trajectory(episodes: Sequence[Trajectory], roles: Roles) -> Iterator[PreferencePair]:
    tasks: dict[tuple[str, str, str, str], list[tuple[Hashable, Visit]]] = {}
    for episode in (episode for episode in episodes if episode.scored):
        learned = learned_roles(episode, roles)
        for role in episode.roles:
            own = [index for index, turn in enumerate(episode.turns) if turn.role == role and turn.num_sampled]
            paths = [path for path in episode.paths() if any(index in own for index in path)]
            if not own or len(paths) != 1 or not is_trained(episode.turns[own[0]], learned):
                continue
            ids = tuple(i for index in paths[0] for span in episode.turns[index].spans for i in span.ids)
            key = (episode.task.id, episode.task.hash, str(episode.provenance.get("tokenizer", "")), role)
            tasks.setdefault(key, []).append((ids, Visit(episode, own[0])))
    for (task, _, _, role), candidates in tasks.items():
        name = task if role == DEFAULT_ROLE else f"{task}_{role}"
        for better, worse, margin in _unequal_pairs(candidates, _mean_reward):
            yield PreferencePair(better, worse, f"trajectory_{name}", margin)


def _progress_ranked(episodes: Sequence[Trajectory], roles: Roles) -> Iterator[PreferencePair]:
    for group in group_by_task(e for e in episodes if e.scored):
        ordered = sorted(group, key=rank)
        best, worst = ordered[0], ordered[-1]
        for role in best.roles if best is not worst else ():
            for good, bad in zip(_visits_of(best, role, roles), _visits_of(worst, role, roles), strict=False):
                if good.turn.reply != bad.turn.reply and _has_text(good) and _has_text(bad):
                    yield PreferencePair(good, bad, f"progress_ranked_{best.task.id}_{good.number + 1}")


def _visits_of(episode: Trajectory, role: str, roles: Roles) -> list[Visit]:
    """The replies of a role that were used, in their order; none where the role is not learned from."""
    learned = learned_roles(episode, roles)
    turns = [index for index, turn in enumerate(episode.turns) if turn.role == role and is_trained(turn, learned)]
    return [Visit(episode, i) for i in turns if episode.turns[i].spans and not episode.turns[i].is_abandoned]


STRATEGIES: Mapping[str, Callable[[Sequence[Trajectory], Roles], Iterator[PreferencePair]]] = {
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
    return (1.0, math.fsum(visit.succeeded for visit in group) / len(group))


def _mean_reward(group: Sequence[Visit]) -> Value:
    return (math.fsum(visit.reward for visit in group) / len(group),)


def _reward_and_progress(group: Sequence[Visit]) -> Value:
    return (*_mean_reward(group), math.fsum(visit.progress for visit in group) / len(group))


def _has_text(visit: Visit) -> bool:
    return bool(visit.turn.reply.strip())
