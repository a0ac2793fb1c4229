"""Preference pairs from trajectories: two replies, or two whole episodes, of which one had the higher reward.

Pairs hold the ids that were sampled, never text tokenised again; only rows that come from a file are tokenised.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from practicum.chat.renderer import Renderer
from practicum.data import state_index
from practicum.data.export import DPO_FIELDS
from practicum.data.jsonl import check_row
from practicum.data.pair_mining import Value, ranked_pairs, same_state_pairs
from practicum.data.state_index import Visit
from practicum.errors import UserError
from practicum.training.dpo import Pair
from practicum.training.micro_batches import Sample
from practicum.training.samples import unweighted_samples
from practicum.training.sft import report_too_long
from practicum.training.text_dataset import Prompts, reply_sample
from practicum.trajectory import Trajectory

TokenIds = tuple[int, ...]
TaskKey = tuple[str, str]
"""Id and hash of a task."""


@dataclass(frozen=True)
class MinedPair:
    """Two replies or trajectories of one task; `margin` is the reward of the chosen one minus that of the other."""

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
    """Return the pairs of the scored episodes, each once: tasks in their order, the widest margins of a task first.

    `same_state`: replies to the same ids; the value of a reply is the mean reward of the episodes that gave it there,
    and only the reply is trained on. `trajectory`: whole episodes of one task; all that the policy sampled is trained
    on. An episode that rewrote its history is no single sequence and makes no trajectory pair. Ties make no pair.
    """
    if strategy not in MINERS:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(MINERS)}.")
    if limit_per_task is not None and limit_per_task < 1:
        raise UserError("limit_per_task must be at least 1.")
    by_task: dict[TaskKey, list[MinedPair]] = {}
    for task, pair in MINERS[strategy]([episode for episode in episodes if episode.scored]):
        by_task.setdefault(task, []).append(pair)
    return [pair for pairs in by_task.values() for pair in sorted(pairs, key=_widest_first)[:limit_per_task]]


def pairs_from_rows(rows: Iterable[Mapping[str, Any]], renderer: Renderer, name: str = "dpo.jsonl") -> list[Pair]:
    """Return the pairs of rows of `dpo.jsonl`; both replies are closed by the end token."""
    prompts = Prompts(renderer)
    pairs: list[Pair] = []
    for number, row in enumerate(rows, 1):
        location = f"'{name}', row {number}"
        checked = check_row(row, DPO_FIELDS[:3], location)
        prompt, chosen, rejected = (str(checked[field]) for field in DPO_FIELDS[:3])
        if chosen == rejected:
            raise UserError(f"{location}: 'chosen' and 'rejected' are the same text; leave that row out.")
        prompt_ids = prompts.ids(prompt, location)
        pairs.append(Pair(*(reply_sample(prompt_ids, renderer.encode_reply(text)) for text in (chosen, rejected))))
    return pairs


def fitting_pairs(pairs: Sequence[Pair], window: int) -> list[Pair]:
    """Return the pairs both of whose sides fit into a model's context window, and print how many others there are."""
    fitting = [pair for pair in pairs if max(len(pair.chosen.ids), len(pair.rejected.ids)) <= window]
    report_too_long("pairs", len(pairs) - len(fitting), len(pairs), window)
    return fitting


def _same_state(episodes: Sequence[Trajectory]) -> Iterator[tuple[TaskKey, MinedPair]]:
    for pair in same_state_pairs(episodes, _reply_ids, _mean_reward):
        state, margin = pair.state, pair.chosen_value[0] - pair.rejected_value[0]
        samples = _reply_sample(pair.chosen), _reply_sample(pair.rejected)
        yield (state.task, state.content), MinedPair(state.task, state.key, pair.chosen.number, *samples, margin)


def _reply_ids(visit: Visit) -> TokenIds | None:
    """The sampled ids of a reply, or None if there is none."""
    return visit.turn.spans[-1].ids or None


def _mean_reward(same_reply: Sequence[Visit]) -> Value:
    return (math.fsum(visit.episode.reward for visit in same_reply) / len(same_reply),)


def _trajectory(episodes: Sequence[Trajectory]) -> Iterator[tuple[TaskKey, MinedPair]]:
    tasks: dict[tuple[str, str, str], dict[TokenIds, list[tuple[float, Sample]]]] = {}
    for episode in episodes:
        sequences = episode.sequences()
        if len(sequences) == 1 and any(sequences[0].sampled):
            key = (episode.task.id, episode.task.hash, str(episode.provenance.get("tokenizer", "")))
            sample = unweighted_samples(episode)[0]
            tasks.setdefault(key, {}).setdefault(sample.ids, []).append((episode.reward, sample))
    for (task, content, _), by_ids in tasks.items():
        valued = [((math.fsum(reward for reward, _ in same) / len(same),), same[0][1]) for same in by_ids.values()]
        for ((better,), chosen), ((worse,), rejected) in ranked_pairs(valued):
            yield (task, content), MinedPair(task, f"trajectory_{task}", 0, chosen, rejected, better - worse)


MINERS: Mapping[str, Callable[[Sequence[Trajectory]], Iterator[tuple[TaskKey, MinedPair]]]] = {
    "same_state": _same_state,
    "trajectory": _trajectory,
}


def _widest_first(pair: MinedPair) -> tuple[float, int, str, TokenIds, TokenIds]:
    return (-pair.margin, pair.turn, pair.key, pair.chosen.ids, pair.rejected.ids)


def _reply_sample(visit: Visit) -> Sample:
    """A reply after its prompt, with its sampling log-probs where they are known."""
    span = visit.turn.spans[-1]
    sample = reply_sample(state_index.prompt_ids(visit.episode, visit.number), span.ids)
    if span.logprobs is None:
        return sample
    logprobs = np.zeros(len(sample.ids), dtype=np.float32)
    logprobs[sample.mask] = span.logprobs
    return replace(sample, sampling_logprobs=logprobs)
