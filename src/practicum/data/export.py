"""Episodes as rows of text for behaviour cloning and preference training, with the fields that HALO uses.

`bc.jsonl` has a row per step, `dpo.jsonl` a row per pair of replies, `sft.jsonl` a row per conversation: an episode in
which several roles act, or with fresh prompts or branches, has several. Rows are for training elsewhere; Practicum
itself trains on the episodes, whose ids are never made again from text.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from practicum.data.preferences import PreferencePair, group_by_task, rank, source_of
from practicum.data.state_index import failed, prompt_ids
from practicum.environment import DEFAULT_ROLE, Message
from practicum.errors import UserError, did_you_mean
from practicum.task import Task
from practicum.trajectory import (
    Origin,
    Outcome,
    Trajectory,
    Turn,
    conversation_parents,
    is_trained,
    learned_roles,
    path_to,
)

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
    best = {
        id(episode)
        for group in group_by_task(eligible)
        for episode in sorted(group, key=rank)[: max(1, math.ceil(share * len(group) - 1e-9))]
    }
    return [episode for episode in eligible if id(episode) in best]


def check_strategy(strategy: str, top_percent: float | None = None) -> None:
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown pairing strategy '{strategy}'. Known: {', '.join(STRATEGIES)}.")
    if top_percent is not None and not 0 < top_percent <= 1:
        raise UserError("--top_percent is a share: above 0 and at most 1.")


def check_roles(episodes: Sequence[Trajectory], roles: Collection[str] | None, setting: str) -> None:
    """Refuse the name of a role that acts in none of the episodes."""
    roles_present = sorted({role for episode in episodes for role in episode.roles})
    for role in roles or ():
        if episodes and role not in roles_present:
            hint = did_you_mean(role, roles_present)
            raise UserError(
                f"{setting}: no episode has a role '{role}', their roles are {', '.join(roles_present)}.{hint}"
            )


# -- rows ---------------------------------------------------------------------------------------


def bc_rows(episodes: Iterable[Trajectory], prompt: MakePrompt, roles: Collection[str] | None = None) -> Iterator[Row]:
    """Yield a row for every step whose action worked; steps count from 1. A turn without a prompt makes none, nor does
    a reply that its agent made no use of."""
    for episode in episodes:
        learned = learned_roles(episode, roles)
        for index, turn in enumerate(episode.turns):
            used = turn.spans and not turn.is_abandoned
            if turn.reply.strip() and used and is_trained(turn, learned) and not failed(episode, index):
                values = (prompt(episode, index), turn.reply, episode.task.id, site_of(episode.task), index + 1,
                          source_of(turn))  # fmt: skip
                yield dict(zip(BC_FIELDS, values, strict=True))


def dpo_rows(pairs: Iterable[PreferencePair], prompt: MakePrompt) -> Iterator[Row]:
    """Yield a row per pair; the prompt is that of the chosen reply."""
    for pair in pairs:
        task = pair.chosen.episode.task
        values = (prompt(pair.chosen.episode, pair.chosen.number), pair.chosen.turn.reply, pair.rejected.turn.reply,
                  task.id, site_of(task), pair.key)  # fmt: skip
        yield dict(zip(DPO_FIELDS, values, strict=True))


def sft_rows(episodes: Iterable[Trajectory], roles: Collection[str] | None = None) -> Iterator[Row]:
    """Yield a row per conversation: its messages in order, each with whether it is trained on.

    Trained are the replies of the learned roles that a model or a demonstrator wrote, each in the first conversation
    that has it; a conversation without one makes no row.
    """
    for episode in episodes:
        learned, trained = learned_roles(episode, roles), set[int]()
        for path in conversations(episode):
            new = {n for n in path if n not in trained and _is_learned(episode.turns[n], learned)}
            trained |= new
            if not new:
                continue
            messages: list[Row] = []
            for index in path:
                turn = episode.turns[index]
                messages += [
                    {"role": m.role, "content": _content(m), **({"name": m.name} if m.name else {}), "train": False}
                    for m in turn.messages
                ]
                messages.append({"role": "assistant", "content": turn.reply, "train": index in new})
            role = episode.turns[path[-1]].role
            tools = role_tools(episode, role)
            schemas = {"tools": tools} if tools else {}
            role_field = {} if role == DEFAULT_ROLE else {"agent_role": role}
            yield {
                "messages": messages,
                **schemas,
                **role_field,
                "task_id": episode.task.id,
                "site_id": site_of(episode.task),
            }


def conversations(episode: Trajectory) -> list[list[int]]:
    """Return the turns of every conversation, as indices: one ends in a turn that no other turn follows."""
    parents = conversation_parents(episode.turns)
    followed = {parent for parent in parents if parent is not None}
    last_turns = [index for index, turn in enumerate(episode.turns) if turn.spans and index not in followed]
    return [path_to(parents, last_turn) for last_turn in last_turns]


def _is_learned(turn: Turn, learned: Collection[str] | None) -> bool:
    return is_trained(turn, learned) and turn.spans[-1].origin is Origin.SAMPLED


def role_tools(episode: Trajectory, role: str) -> Any:
    """Return the tool schemas of a role, if it has any; the record's `tools` are those of the role that acted first."""
    if episode.turns[0].role == role:
        return episode.provenance.get("tools")
    of_roles = episode.provenance.get("role_tools")
    return of_roles.get(role) if isinstance(of_roles, dict) else None


def has_images(episode: Trajectory) -> bool:
    """Whether the policy was shown images; a prompt of text alone is then not what it saw."""
    return any(message.images for turn in episode.turns for message in turn.messages)


def has_whole_histories(episode: Trajectory) -> bool:
    """Whether the messages are all that was shown: of a history that was rewritten they are not."""
    parents = conversation_parents(episode.turns)
    rewritten = (turn.restart and parent is not None for turn, parent in zip(episode.turns, parents, strict=True))
    return bool(episode.turns) and not any(rewritten)


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


def plain_prompt(episode: Trajectory, turn_index: int) -> str:
    """Return the messages before a turn's reply, each under its role, for models with another chat template."""
    sections = []
    for index in path_to(conversation_parents(episode.turns), turn_index):
        turn = episode.turns[index]
        sections += [f"[{message.role}]\n{message.content}" for message in turn.messages]
        if index != turn_index:
            sections.append(f"[assistant]\n{turn.reply}")
    return "\n\n".join(sections)


class RenderedPrompts:
    """The text that the policy was shown: the prompt's ids, decoded by the tokenizer that they belong to.

    What is trained from rows is then what is served. `tokenizer` replaces the model that the episodes name.
    """

    def __init__(self, tokenizer: str | None = None) -> None:
        self.tokenizer_name = tokenizer
        self._decoders: dict[tuple[str, str | None], Any] = {}

    def __call__(self, episode: Trajectory, index: int) -> str:
        ids = list(prompt_ids(episode, index))
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
