"""Preference pairs from trajectories: two replies, or two whole episodes, of which one had the higher reward.

Pairs hold the ids that were sampled, never text tokenised again; only rows that come from a file are tokenised.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from practicum.chat.renderer import Renderer
from practicum.data import state_index
from practicum.data.export import DPO_FIELDS
from practicum.data.jsonl import check_row
from practicum.data.preferences import mine_preferences
from practicum.data.state_index import Visit
from practicum.errors import UserError
from practicum.training.dpo import Pair
from practicum.training.micro_batches import Sample, unweighted_samples
from practicum.training.sft import report_too_long
from practicum.training.text_dataset import PromptTokenizer, reply_sample
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
    episodes: Sequence[Trajectory],
    strategy: str = "same_state",
    limit_per_task: int | None = None,
    roles: Collection[str] | None = None,
) -> list[MinedPair]:
    """Return the pairs of the scored episodes, each once: tasks in their order, the widest margins of a task first.

    `same_state`: replies to the same ids; the value of a reply is the mean reward of the episodes that gave it there,
    and only the reply is trained on. `trajectory`: whole episodes of one task; all that the policy sampled is trained
    on. An episode that rewrote its history is no single sequence and makes no trajectory pair. Ties make no pair.
    `roles`: whose replies are compared and trained; None: those in training, as the episodes record them.
    """
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(STRATEGIES)}.")
    if limit_per_task is not None and limit_per_task < 1:
        raise UserError("limit_per_task must be at least 1.")
    mined_by, sample = STRATEGIES[strategy]
    by_task: dict[TaskKey, list[MinedPair]] = {}
    for mined in mine_preferences([episode for episode in episodes if episode.scored], mined_by, roles):
        chosen, task = mined.chosen, mined.chosen.episode.task
        pair = MinedPair(task.id, mined.key, chosen.number, sample(chosen), sample(mined.rejected), mined.margin)
        by_task.setdefault((task.id, task.hash), []).append(pair)
    return [pair for pairs in by_task.values() for pair in sorted(pairs, key=_widest_first)[:limit_per_task]]


def pairs_from_rows(rows: Iterable[Mapping[str, Any]], renderer: Renderer, name: str = "dpo.jsonl") -> list[Pair]:
    """Return the pairs of rows of `dpo.jsonl`; both replies are closed by the end token."""
    prompts = PromptTokenizer(renderer)
    pairs: list[Pair] = []
    for line_number, row in enumerate(rows, 1):
        location = f"'{name}', row {line_number}"
        checked = check_row(row, DPO_FIELDS[:3], location)
        prompt, chosen, rejected = (str(checked[field]) for field in DPO_FIELDS[:3])
        if chosen == rejected:
            raise UserError(f"{location}: 'chosen' and 'rejected' are the same text; leave that row out.")
        prompt_ids = prompts.ids(prompt, location)
        pairs.append(Pair(*(reply_sample(prompt_ids, renderer.encode_reply(text)) for text in (chosen, rejected))))
    return pairs


def fitting_pairs(pairs: Sequence[Pair], window: int, log: Callable[[str], None] = print) -> list[Pair]:
    """Return the pairs both of whose sides fit into a model's context window, and log how many others there are."""
    fitting = [pair for pair in pairs if max(len(pair.chosen.ids), len(pair.rejected.ids)) <= window]
    report_too_long("pairs", len(pairs) - len(fitting), len(pairs), window, log)
    return fitting


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


def _episode_sample(visit: Visit) -> Sample:
    """All that a role sampled in an episode, which is one sequence."""
    return unweighted_samples(visit.episode, roles=(visit.turn.role,))[0]


STRATEGIES: Mapping[str, tuple[str, Callable[[Visit], Sample]]] = {
    "same_state": ("same_ids", _reply_sample),
    "trajectory": ("trajectory", _episode_sample),
}
"""Values of `data.pairing`: the strategy of `data.preferences` that mines, and what of a side is trained on."""
