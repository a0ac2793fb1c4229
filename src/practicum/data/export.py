"""Episodes as rows of text for imitation and preference, with the fields of the founding paper.

`bc.jsonl` has a row a step, `dpo.jsonl` a row a pair of replies, `sft.jsonl` a row a whole conversation. Rows are for
those who train elsewhere; Practicum itself trains on the episodes, whose ids are never made again from text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.data.pair_mining import Value, same_state_pairs
from practicum.data.state_index import Visit, failed, histories, progress, prompt_ids
from practicum.environment import Message
from practicum.errors import UserError
from practicum.task import Task
from practicum.trajectory import Outcome, Trajectory, Turn

BC_FIELDS = ("prompt", "action", "task_id", "site_id", "step_idx", "action_source")
DPO_FIELDS = ("prompt", "chosen", "rejected", "task_id", "site_id", "state_key")
STRATEGIES = ("default", "progress_ranked", "same_state")
RANKED_SHARE = 0.2
"""The share of a task's episodes that `progress_ranked` imitates unless told otherwise."""

Row = dict[str, Any]
Prompting = Callable[[Trajectory, int], str]
"""The prompt of an episode's turn as text."""


@dataclass(frozen=True)
class Preference:
    """Two replies, the better one first, and the name of where they were given."""

    chosen: Visit
    rejected: Visit
    key: str

    @property
    def same_state(self) -> bool:
        names = [list(histories(v.episode))[v.number] for v in (self.chosen, self.rejected)]
        return self.chosen.episode.task.hash == self.rejected.episode.task.hash and names[0] == names[1]


# -- which episodes and which pairs -------------------------------------------------------------


def successful_episodes(
    episodes: Sequence[Trajectory], strategy: str, top_percent: float | None = None, include_failed: bool = False
) -> list[Trajectory]:
    """Episodes worth imitating, in their order.

    Successful ones (every scored one with `include_failed`), of each task the best `top_percent` where that is given.
    `progress_ranked` takes the best share of all scored episodes of a task, whether they succeeded or not.
    """
    check_strategy(strategy, top_percent)
    ranked = strategy == "progress_ranked"
    share = RANKED_SHARE if ranked and top_percent is None else top_percent
    eligible = [e for e in episodes if e.scored and (ranked or include_failed or e.outcome is Outcome.SUCCESS)]
    if share is None:
        return eligible
    kept = {
        id(episode)
        for group in by_task(eligible)
        for episode in sorted(group, key=rank)[: max(1, math.ceil(share * len(group) - 1e-9))]
    }
    return [episode for episode in eligible if id(episode) in kept]


def preferences(episodes: Sequence[Trajectory], strategy: str) -> list[Preference]:
    """Pairs of different replies, each pair once, in the order of the episodes.

    `default`: in one state, an action that worked over one that failed; where both worked, the one whose episodes
    succeeded more often. `same_state`: in one state, the reply whose episodes were rewarded more, then came further;
    luck that followed on a failed action does not put it above one that worked.
    `progress_ranked`: the paper's own: a task's best episode over its worst, step by step by their number, whatever
    state either was in.
    """
    check_strategy(strategy)
    if strategy == "progress_ranked":
        return _ranked(episodes)
    value_of = _worked if strategy == "default" else _rewarded
    return [
        Preference(pair.chosen, pair.rejected, f"{strategy}_{pair.state.key}")
        for pair in same_state_pairs(episodes, _reply_text, value_of)
        if not _failed(pair.chosen) or _failed(pair.rejected)
    ]


def check_strategy(strategy: str, top_percent: float | None = None) -> None:
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(STRATEGIES)}.")
    if top_percent is not None and not 0 < top_percent <= 1:
        raise UserError("--top_percent is a share: above 0 and at most 1.")


def rank(episode: Trajectory) -> tuple[float, int, int, str, int]:
    """Sorts the best first: furthest, then shortest, then least often rescued."""
    rescued = sum(source_of(turn).startswith("recovery") for turn in episode.turns)
    return (-progress(episode), len(episode.turns), rescued, episode.task.id, episode.attempt)


def is_held_out(episode: Trajectory) -> bool:
    """Whether the task is for examinations: who trains on it can no longer be examined by it."""
    return episode.task.split != "train"


def report_held_out(folder: Path, splits: Sequence[str], count: int, takes: str | None = None) -> None:
    """Says how many of `count` episodes below a folder are left out for their splits; none left is an error.

    `takes` is the setting that takes them too.
    """
    if not splits:
        return
    named = f"{len(splits)} episodes of held-out tasks ({', '.join(sorted(set(splits)))})"
    if len(splits) == count:
        otherwise = f", or take these by {takes}" if takes else ""
        raise UserError(f"Below '{folder}' there are only {named}; collect some with --split train{otherwise}.")
    print(f"{named} are left out" + (f"; {takes} takes them" if takes else ""), flush=True)


def by_task(episodes: Iterable[Trajectory]) -> list[list[Trajectory]]:
    groups: dict[tuple[str, str], list[Trajectory]] = {}
    for episode in episodes:
        groups.setdefault((episode.task.id, episode.task.hash), []).append(episode)
    return list(groups.values())


def _ranked(episodes: Sequence[Trajectory]) -> list[Preference]:
    found = []
    for group in by_task(e for e in episodes if e.scored):
        ordered = sorted(group, key=rank)
        best, worst = ordered[0], ordered[-1]
        for number in range(min(len(best.turns), len(worst.turns))):
            good, bad = Visit(best, number), Visit(worst, number)
            if best is not worst and good.turn.reply != bad.turn.reply and _reply_text(good) and _reply_text(bad):
                found.append(Preference(good, bad, f"progress_ranked_{best.task.id}_{number + 1}"))
    return found


def _worked(group: Sequence[Visit]) -> Value:
    """Whether the action worked; of actions that did, how often their episodes succeeded."""
    if any(map(_failed, group)):
        return (0.0,)
    return (1.0, math.fsum(v.episode.outcome is Outcome.SUCCESS for v in group) / len(group))


def _rewarded(group: Sequence[Visit]) -> Value:
    rewards = math.fsum(visit.episode.reward for visit in group) / len(group)
    return (rewards, math.fsum(progress(visit.episode) for visit in group) / len(group))


def _reply_text(visit: Visit) -> str | None:
    """The text of a reply, or None if it is blank."""
    return visit.turn.reply if visit.turn.reply.strip() else None


def _failed(visit: Visit) -> bool:
    return failed(visit.episode, visit.number)


# -- rows ---------------------------------------------------------------------------------------


def bc_rows(episodes: Iterable[Trajectory], prompt: Prompting) -> Iterator[Row]:
    """A row for every step whose action worked; steps count from 1."""
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            if turn.reply.strip() and not failed(episode, number):
                values = (prompt(episode, number), turn.reply, episode.task.id, site_of(episode.task), number + 1,
                          source_of(turn))  # fmt: skip
                yield dict(zip(BC_FIELDS, values, strict=True))


def dpo_rows(pairs: Iterable[Preference], prompt: Prompting) -> Iterator[Row]:
    """A row a pair; the prompt is the one that the chosen reply was given to."""
    for pair in pairs:
        task = pair.chosen.episode.task
        values = (prompt(pair.chosen.episode, pair.chosen.number), pair.chosen.turn.reply, pair.rejected.turn.reply,
                  task.id, site_of(task), pair.key)  # fmt: skip
        yield dict(zip(DPO_FIELDS, values, strict=True))


def sft_rows(episodes: Iterable[Trajectory]) -> Iterator[Row]:
    """A row an episode: its messages in order, and of each whether it is trained: the policy's are, nothing else is."""
    for episode in episodes:
        messages: list[Row] = []
        for turn in episode.turns:
            messages += [
                {"role": m.role, "content": _content(m), **({"name": m.name} if m.name else {}), "train": False}
                for m in turn.messages
            ]
            messages.append({"role": "assistant", "content": turn.reply, "train": True})
        tools = episode.provenance.get("tools")
        known = {"tools": tools} if tools else {}
        yield {"messages": messages, **known, "task_id": episode.task.id, "site_id": site_of(episode.task)}


def has_images(episode: Trajectory) -> bool:
    """Whether the policy was shown images: a prompt of text alone is then not what it saw."""
    return any(message.images for turn in episode.turns for message in turn.messages)


def one_conversation(episode: Trajectory) -> bool:
    """Whether the prompts only ever grew: an episode that rewrote its history is no single conversation."""
    return bool(episode.turns) and not any(turn.restart for turn in episode.turns[1:])


def _content(message: Message) -> str | list[Row]:
    """A text, or parts where there are images."""
    if not message.images:
        return message.content
    images = [{"type": "image_url", "image_url": {"url": image}} for image in message.images]
    return [{"type": "text", "text": message.content}, *images]


def site_of(task: Task) -> str:
    """The site a task plays on: its own field, the name within a versioned id (v2.omnizon-13), or its environment."""
    for field in ("site_id", "site"):
        value = task.fields.get(field)
        if isinstance(value, str) and value:
            return value
    named = re.fullmatch(r"v\d+\.(.+)-\d+", task.id)
    return named[1] if named else task.environment


def source_of(turn: Turn) -> str:
    """Who acted; a world that acts for the policy at times (a cache, a recovery) says so in its info."""
    said = turn.info.get("action_source")
    return said if isinstance(said, str) and said else turn.source.value


# -- prompts ------------------------------------------------------------------------------------


def plain_prompt(episode: Trajectory, number: int) -> str:
    """What was said before a turn's reply, each part under its role: for models with another chat template."""
    parts = []
    for place, turn in enumerate(episode.turns[: number + 1]):
        parts += [f"[{message.role}]\n{message.content}" for message in turn.messages]
        if place < number:
            parts.append(f"[assistant]\n{turn.reply}")
    return "\n\n".join(parts)


class RenderedPrompts:
    """The very text that the policy was shown: the prompt's ids, decoded by the tokenizer they belong to.

    So what is trained from rows is what is served. `tokenizer` replaces the model that the episodes name.
    """

    def __init__(self, tokenizer: str | None = None) -> None:
        self.named = tokenizer
        self._decoders: dict[tuple[str, str | None], Any] = {}

    def __call__(self, episode: Trajectory, number: int) -> str:
        ids = list(prompt_ids(episode, number))
        return str(self._tokenizer(episode).decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _tokenizer(self, episode: Trajectory) -> Any:
        from practicum.models import loader  # torch is slow to import: not for plain prompts

        name = self.named or str(episode.provenance.get("model", ""))
        vocabulary = episode.provenance.get("tokenizer")
        if (name, vocabulary) not in self._decoders:
            if not name:
                raise UserError(
                    f"Episodes of task '{episode.task.id}' do not name their model; give --tokenizer or --prompt plain."
                )
            made = loader.load_tokenizer(name)
            if vocabulary is not None and loader.tokenizer_hash(made) != vocabulary:
                raise UserError(
                    f"Episodes of task '{episode.task.id}' hold tokens of another vocabulary than that of '{name}'; "
                    "give the right --tokenizer, or --prompt plain."
                )
            self._decoders[name, vocabulary] = made
        return self._decoders[name, vocabulary]
