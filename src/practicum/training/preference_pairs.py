"""Preference pairs out of trajectories: two replies, or two whole episodes, of which one turned out better.

Pairs are made of the ids that were sampled, never of text; only rows that come from a file have to be tokenised.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from practicum.chat.renderer import Renderer
from practicum.data.export import DPO_FIELDS
from practicum.data.jsonl import check_row
from practicum.data.state_index import Visit, prompt_ids, visits
from practicum.errors import UserError
from practicum.training.dpo import Pair
from practicum.training.micro_batches import Sample
from practicum.training.samples import unweighted_samples
from practicum.training.sft import tell_left_out
from practicum.training.text_dataset import Prompts, reply_sample
from practicum.trajectory import Trajectory

Ids = tuple[int, ...]


@dataclass(frozen=True)
class MinedPair:
    """Two replies or trajectories of one task; `margin` is by how much reward the chosen one was better."""

    task: str
    key: str
    turn: int
    chosen: Sample
    rejected: Sample
    margin: float

    @property
    def pair(self) -> Pair:
        return Pair(self.chosen, self.rejected)


def mine_pairs(
    episodes: Sequence[Trajectory], strategy: str = "same_state", limit_per_task: int | None = None
) -> list[MinedPair]:
    """Pairs of the scored episodes, each once: tasks in the order they come, of a task the widest margins first.

    `same_state`: replies to the same ids; a reply is worth the mean reward of the episodes that gave it there. Only
    the reply is judged. `trajectory`: whole episodes of one task; all that the policy sampled is judged. An episode
    that rewrote its history is no single sequence and makes no trajectory pair. Ties make no pair.
    """
    if strategy not in MINERS:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(MINERS)}.")
    if limit_per_task is not None and limit_per_task < 1:
        raise UserError("limit_per_task must be at least 1.")
    by_task: dict[tuple[str, str], list[MinedPair]] = {}
    for task, pair in MINERS[strategy]([episode for episode in episodes if episode.scored]):
        by_task.setdefault(task, []).append(pair)
    return [pair for found in by_task.values() for pair in sorted(found, key=_order)[:limit_per_task]]


def pairs_from_rows(rows: Iterable[Mapping[str, Any]], renderer: Renderer, name: str = "dpo.jsonl") -> list[Pair]:
    """Pairs out of rows of `dpo.jsonl`.

    Both replies are closed by the end token.
    """
    prompts = Prompts(renderer)
    pairs: list[Pair] = []
    for number, row in enumerate(rows, 1):
        place = f"'{name}', row {number}"
        checked = check_row(row, DPO_FIELDS[:3], place)
        prompt, chosen, rejected = (str(checked[field]) for field in DPO_FIELDS[:3])
        if chosen == rejected:
            raise UserError(f"{place}: 'chosen' and 'rejected' are the same text; leave that row out.")
        before = prompts.ids(prompt, place)
        pairs.append(Pair(*(reply_sample(before, renderer.encode_reply(text)) for text in (chosen, rejected))))
    return pairs


def fitting_pairs(pairs: Sequence[Pair], window: int) -> list[Pair]:
    """The pairs of which a model's window holds both sides. Says how many others there are."""
    found = [pair for pair in pairs if max(len(pair.chosen.ids), len(pair.rejected.ids)) <= window]
    tell_left_out("pairs", len(pairs) - len(found), len(pairs), window)
    return found


def _same_state(episodes: Sequence[Trajectory]) -> Iterator[tuple[tuple[str, str], MinedPair]]:
    for state, found in visits(episodes).items():
        replies: dict[Ids, list[Visit]] = {}
        for visit in found:
            replies.setdefault(visit.turn.spans[-1].ids, []).append(visit)
        worth = [
            (math.fsum(visit.episode.reward for visit in group) / len(group), group[0])
            for ids, group in replies.items()
            if ids
        ]
        for (one, first), (other, second) in itertools.combinations(worth, 2):
            if one != other:
                better, worse = (first, second) if one > other else (second, first)
                yield (
                    (state.task, state.content),
                    MinedPair(state.task, state.key, better.number, _reply(better), _reply(worse), abs(one - other)),
                )


def _trajectory(episodes: Sequence[Trajectory]) -> Iterator[tuple[tuple[str, str], MinedPair]]:
    tasks: dict[tuple[str, str, str], dict[Ids, list[tuple[float, Sample]]]] = {}
    for episode in episodes:
        runs = episode.sequences()
        if len(runs) == 1 and any(runs[0].sampled):
            key = (episode.task.id, episode.task.hash, str(episode.provenance.get("tokenizer", "")))
            sample = unweighted_samples(episode)[0]
            tasks.setdefault(key, {}).setdefault(sample.ids, []).append((episode.reward, sample))
    for (task, content, _), played in tasks.items():
        worth = [(math.fsum(reward for reward, _ in group) / len(group), group[0][1]) for group in played.values()]
        for (one, first), (other, second) in itertools.combinations(worth, 2):
            if one != other:
                better, worse = (first, second) if one > other else (second, first)
                yield (task, content), MinedPair(task, f"trajectory_{task}", 0, better, worse, abs(one - other))


MINERS: Mapping[str, Callable[[Sequence[Trajectory]], Iterator[tuple[tuple[str, str], MinedPair]]]] = {
    "same_state": _same_state,
    "trajectory": _trajectory,
}


def _order(pair: MinedPair) -> tuple[float, int, str, Ids, Ids]:
    return (-pair.margin, pair.turn, pair.key, pair.chosen.ids, pair.rejected.ids)


def _reply(visit: Visit) -> Sample:
    span = visit.turn.spans[-1]
    sample = reply_sample(prompt_ids(visit.episode, visit.number), span.ids)
    if span.logprobs is None:
        return sample
    logprobs = np.zeros(len(sample.ids), dtype=np.float32)
    logprobs[sample.mask] = span.logprobs
    return replace(sample, sampling_logprobs=logprobs)
