"""Episodes as rows of text for behaviour cloning and preference training, with the fields that HALO uses.

`bc.jsonl` has a row per step, `dpo.jsonl` a row per pair of replies, `sft.jsonl` a row per conversation. Rows are for
training elsewhere; Practicum itself trains on the episodes, whose ids are never made again from text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from practicum.data.preferences import Preference, group_by_task, rank, source_of
from practicum.data.state_index import failed, prompt_ids
from practicum.environment import Message
from practicum.errors import UserError
from practicum.task import Task
from practicum.trajectory import Outcome, Trajectory

BC_FIELDS = ("prompt", "action", "task_id", "site_id", "step_idx", "action_source")
DPO_FIELDS = ("prompt", "chosen", "rejected", "task_id", "site_id", "state_key")
STRATEGIES = ("default", "progress_ranked", "same_state")
RANKED_SHARE = 0.2
"""The share of a task's episodes that `progress_ranked` takes by default."""

Row = dict[str, Any]
MakePrompt = Callable[[Trajectory, int], str]
"""Returns the prompt of an episode's turn as text."""


# -- which episodes -------------------------------------------------------------


def successful_episodes(
    episodes: Sequence[Trajectory], strategy: str, top_percent: float | None = None, include_failed: bool = False
) -> list[Trajectory]:
    """Return the episodes to train on by imitation, in their order.

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
        for group in group_by_task(eligible)
        for episode in sorted(group, key=rank)[: max(1, math.ceil(share * len(group) - 1e-9))]
    }
    return [episode for episode in eligible if id(episode) in kept]


def check_strategy(strategy: str, top_percent: float | None = None) -> None:
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(STRATEGIES)}.")
    if top_percent is not None and not 0 < top_percent <= 1:
        raise UserError("--top_percent is a share: above 0 and at most 1.")


# -- rows ---------------------------------------------------------------------------------------


def bc_rows(episodes: Iterable[Trajectory], prompt: MakePrompt) -> Iterator[Row]:
    """Yield a row for every step whose action worked; steps count from 1."""
    for episode in episodes:
        for number, turn in enumerate(episode.turns):
            if turn.reply.strip() and not failed(episode, number):
                values = (prompt(episode, number), turn.reply, episode.task.id, site_of(episode.task), number + 1,
                          source_of(turn))  # fmt: skip
                yield dict(zip(BC_FIELDS, values, strict=True))


def dpo_rows(pairs: Iterable[Preference], prompt: MakePrompt) -> Iterator[Row]:
    """Yield a row per pair; the prompt is that of the chosen reply."""
    for pair in pairs:
        task = pair.chosen.episode.task
        values = (prompt(pair.chosen.episode, pair.chosen.number), pair.chosen.turn.reply, pair.rejected.turn.reply,
                  task.id, site_of(task), pair.key)  # fmt: skip
        yield dict(zip(DPO_FIELDS, values, strict=True))


def sft_rows(episodes: Iterable[Trajectory]) -> Iterator[Row]:
    """Yield a row per episode: its messages in order, each with whether it is trained on, which only replies are."""
    for episode in episodes:
        messages: list[Row] = []
        for turn in episode.turns:
            messages += [
                {"role": m.role, "content": _content(m), **({"name": m.name} if m.name else {}), "train": False}
                for m in turn.messages
            ]
            messages.append({"role": "assistant", "content": turn.reply, "train": True})
        tools = episode.provenance.get("tools")
        schemas = {"tools": tools} if tools else {}
        yield {"messages": messages, **schemas, "task_id": episode.task.id, "site_id": site_of(episode.task)}


def has_images(episode: Trajectory) -> bool:
    """Whether the policy was shown images; a prompt of text alone is then not what it saw."""
    return any(message.images for turn in episode.turns for message in turn.messages)


def one_conversation(episode: Trajectory) -> bool:
    """Whether each prompt continues the one before; an episode that rewrote its history is no single conversation."""
    return bool(episode.turns) and not any(turn.restart for turn in episode.turns[1:])


def _content(message: Message) -> str | list[Row]:
    """Return a content as text, or as a list of parts where there are images."""
    if not message.images:
        return message.content
    images = [{"type": "image_url", "image_url": {"url": image}} for image in message.images]
    return [{"type": "text", "text": message.content}, *images]


def site_of(task: Task) -> str:
    """Return the site of a task: its own field, the name within a versioned id (v2.omnizon-13), or its environment."""
    for field in ("site_id", "site"):
        value = task.fields.get(field)
        if isinstance(value, str) and value:
            return value
    named = re.fullmatch(r"v\d+\.(.+)-\d+", task.id)
    return named[1] if named else task.environment


# -- prompts ------------------------------------------------------------------------------------


def plain_prompt(episode: Trajectory, number: int) -> str:
    """Return the messages before a turn's reply, each under its role, for models with another chat template."""
    sections = []
    for index, turn in enumerate(episode.turns[: number + 1]):
        sections += [f"[{message.role}]\n{message.content}" for message in turn.messages]
        if index < number:
            sections.append(f"[assistant]\n{turn.reply}")
    return "\n\n".join(sections)


class RenderedPrompts:
    """The text that the policy was shown: the prompt's ids, decoded by the tokenizer that they belong to.

    What is trained from rows is then what is served. `tokenizer` replaces the model that the episodes name.
    """

    def __init__(self, tokenizer: str | None = None) -> None:
        self.tokenizer_name = tokenizer
        self._decoders: dict[tuple[str, str | None], Any] = {}

    def __call__(self, episode: Trajectory, number: int) -> str:
        ids = list(prompt_ids(episode, number))
        return str(self._tokenizer(episode).decode(ids, skip_special_tokens=False, clean_up_tokenization_spaces=False))

    def _tokenizer(self, episode: Trajectory) -> Any:
        from practicum.models import loader  # torch is slow to import: not for plain prompts

        name = self.tokenizer_name or str(episode.provenance.get("model", ""))
        vocabulary = episode.provenance.get("tokenizer")
        if (name, vocabulary) not in self._decoders:
            if not name:
                raise UserError(
                    f"Episodes of task '{episode.task.id}' do not name their model; give --tokenizer or --prompt plain."
                )
            tokenizer = loader.load_tokenizer(name)
            if vocabulary is not None and loader.tokenizer_hash(tokenizer) != vocabulary:
                raise UserError(
                    f"Episodes of task '{episode.task.id}' hold tokens of another vocabulary than that of '{name}'; "
                    "give the right --tokenizer, or --prompt plain."
                )
            self._decoders[name, vocabulary] = tokenizer
        return self._decoders[name, vocabulary]
