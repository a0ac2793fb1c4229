"""The states in which replies were given, and what followed each reply.

Two replies can be compared only if they were given in one state: the same task, the same role, and the same ids before
the reply. An environment is taken to be deterministic (the same state and reply always get the same answer) until the
episodes themselves show that it is not; then the environment's seed is part of the state as well.

Within one episode several replies may follow the same prompt: a retry, or alternatives of which one is continued. Each
of them is worth what followed it, and not what followed the others.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from practicum.environment import DEFAULT_ROLE, Message
from practicum.trajectory import (
    SAME_PROMPT,
    Outcome,
    Trajectory,
    Turn,
    continued_turns,
    conversation_parents,
    is_trained,
    learned_roles,
    path_to,
)

TOOL_ERROR = re.compile(r"(Observation: |Output:\n)?Error: ")
"""How an observation begins when a tool call failed, in every reply format."""
ALTERNATIVE_REASONS = ("alternative", "retry", SAME_PROMPT)
"""What a fresh prompt is called (`branch_reason`) that asks for another reply in the same situation."""


@dataclass(frozen=True, slots=True)
class State:
    """The state of a reply. `history` is a hash of the ids shown; `seed` is None in a deterministic environment."""

    task: str
    content: str
    history: str
    seed: int | None = None

    @property
    def key(self) -> str:
        return f"{self.task}_{self.history[:16]}"


@dataclass(frozen=True)
class Visit:
    """One reply: its episode, the index of its turn, and all turns of the episode that reply to the same prompt, where
    there are several."""

    episode: Trajectory
    number: int
    alternatives: tuple[int, ...] = ()

    @property
    def turn(self) -> Turn:
        return self.episode.turns[self.number]

    @property
    def reward(self) -> float:
        """The episode's reward, without what followed other replies to the same prompt."""
        return sum(turn.reward for turn in self._turns) if self.alternatives else self.episode.reward

    @property
    def succeeded(self) -> bool:
        """Whether the episode succeeded, and with this reply rather than with another one to the same prompt."""
        if self.episode.outcome is not Outcome.SUCCESS:
            return False
        return not self.alternatives or self._turns[-1] is self.episode.turns[-1]

    @property
    def progress(self) -> float:
        """The largest progress; the reward where the environment reports no progress."""
        if not self.alternatives:
            return progress(self.episode)
        values = [turn.progress for turn in self._turns if turn.progress is not None]
        return max(values) if values else self.reward

    @cached_property
    def _turns(self) -> list[Turn]:
        owners = branch_owners(self.episode.turns, self.alternatives)
        turns = zip(self.episode.turns, owners, strict=True)
        return [turn for turn, owner in turns if owner is None or owner == self.number]


def branch_owners(turns: Sequence[Turn], alternatives: Sequence[int]) -> list[int | None]:
    """Return for every turn the alternative that it follows; None where it follows none of them.

    A turn of the same role follows the alternative on whose ids its prompt is built. A turn of another role, or with a
    fresh prompt, follows what the turn before it follows: the environment requested it in answer to that.
    """
    continued = continued_turns(turns)
    owners: list[int | None] = []
    for index, turn in enumerate(turns):
        parent = continued[index]
        if index in alternatives:
            owners.append(index)
        elif parent is not None and turn.role == turns[alternatives[0]].role:
            owners.append(owners[parent])
        else:
            owners.append(owners[index - 1] if index else None)
    return owners


def prompt_ids(episode: Trajectory, turn_index: int) -> tuple[int, ...]:
    """Return all ids that the role was shown before the reply of a turn."""
    *earlier, last = path_to(continued_turns(episode.turns), turn_index)
    shown = [i for index in earlier for span in episode.turns[index].spans for i in span.ids]
    return (*shown, *(i for span in episode.turns[last].spans[:-1] for i in span.ids))


def histories(episode: Trajectory) -> Iterator[str]:
    """Yield for each turn a hash of what its role was shown before its reply: ids, their vocabulary, and images."""
    vocabulary = str(episode.provenance.get("tokenizer", ""))
    after: list[hashlib._Hash] = []
    for turn, parent in zip(episode.turns, continued_turns(episode.turns), strict=True):
        if parent is None:
            role = "" if turn.role == DEFAULT_ROLE else f"/{turn.role}"
            running = hashlib.sha256(f"{vocabulary}{role}".encode())
        else:
            running = after[parent].copy()
        for span in turn.spans[:-1]:
            running.update(array("q", span.ids))
        for image in (image for message in turn.messages for image in message.images):
            running.update(image.encode())  # ids say only that there is an image, not which
        yield running.hexdigest()
        if turn.spans:
            running.update(array("q", turn.spans[-1].ids))
        after.append(running)


def visits(episodes: Sequence[Trajectory], roles: Collection[str] | None = None) -> dict[State, list[Visit]]:
    """Return the replies of the scored episodes by the state that they were given in, in the order of the episodes.

    `roles`: whose replies; None: those in training, as each episode records them.
    """
    nondeterministic = nondeterministic_environments(episodes)
    by_state: dict[State, list[Visit]] = {}
    for episode in episodes:
        if not episode.scored:
            continue
        task, learned = episode.task, learned_roles(episode, roles)
        seed = episode.seeds.environment if task.environment in nondeterministic else None
        hashes = list(histories(episode))
        alternatives = replies_to_one_prompt(episode.turns, hashes)
        for index, (turn, history) in enumerate(zip(episode.turns, hashes, strict=True)):
            if turn.spans and is_trained(turn, learned):
                visit = Visit(episode, index, alternatives.get(index, ()))
                by_state.setdefault(State(task.id, task.hash, history, seed), []).append(visit)
    return by_state


def replies_to_one_prompt(turns: Sequence[Turn], hashes: Sequence[str]) -> dict[int, tuple[int, ...]]:
    """Return for every turn that is one of several replies to the same prompt all of these.

    They continue the same turn, or are fresh prompts that the environment calls an alternative or a retry: a prompt may
    also look the same again because the episode has come back to where it was. Replies that an external agent asked for
    are such a choice where it went on from some of them only: else it may have used all, as in a vote.
    """
    groups: dict[tuple[int | None, str], list[int]] = {}
    for index, (turn, parent) in enumerate(zip(turns, continued_turns(turns), strict=True)):
        key = (parent, hashes[index])
        if turn.spans and (parent is not None or key not in groups or turn.branch_reason in ALTERNATIVE_REASONS):
            groups.setdefault(key, []).append(index)
    choices = [group for group in groups.values() if len(group) > 1 and _is_choice([turns[i] for i in group])]
    return {index: tuple(group) for group in choices for index in group}


def _is_choice(replies: Sequence[Turn]) -> bool:
    """Whether not all of several replies to one prompt were used."""
    asked_again = any(turn.branch_reason == SAME_PROMPT for turn in replies)
    return not asked_again or any(turn.is_abandoned for turn in replies)


def nondeterministic_environments(episodes: Sequence[Trajectory]) -> set[str]:
    """Return the environments that answered the same reply in the same state in two ways."""
    answers: dict[tuple[str, str, str], object] = {}
    environments: set[str] = set()
    for episode in episodes:
        for index, history in enumerate(_environment_histories(episode)):
            answer = _answer(episode, index)
            key = (episode.task.hash, history, episode.turns[index].reply)
            if answer is not None and answers.setdefault(key, answer) != answer:
                environments.add(episode.task.environment)
    return environments


def _environment_histories(episode: Trajectory) -> list[str]:
    """A hash per turn of all that the environment saw before its reply: every role's turns, where several act or
    prompts do not follow each other."""
    own_hashes = list(histories(episode))
    parents = conversation_parents(episode.turns)
    if parents == [None, *range(len(parents) - 1)]:
        return own_hashes
    hashes, running = [], hashlib.sha256()
    for turn, own_hash in zip(episode.turns, own_hashes, strict=True):
        running.update(own_hash.encode())
        hashes.append(running.hexdigest())
        running.update(turn.reply.encode())
    return hashes


def failed(episode: Trajectory, index: int) -> bool:
    """Whether the action of a turn failed, by what followed it and not by what preceded it."""
    turn = episode.turns[index]
    if turn.action.error is not None or turn.info.get("valid") is False:
        return True
    if turn.info.get("error") or turn.info.get("last_action_error"):
        return True
    return any(TOOL_ERROR.match(message.content) for message in _messages_after(episode, index))


def _messages_after(episode: Trajectory, turn_index: int) -> Sequence[Message]:
    """The messages that answered the reply of a turn: to another role they are no answer to this one."""
    turns = episode.turns
    if turn_index + 1 == len(turns):
        return episode.closing
    parents = conversation_parents(turns)
    following = next((index for index in range(turn_index + 1, len(turns)) if parents[index] == turn_index), None)
    if following is not None:
        return turns[following].messages
    after = turns[turn_index + 1]
    return after.messages if after.restart and after.role == turns[turn_index].role else ()


def progress(episode: Trajectory) -> float:
    """Return the largest progress of an episode; its reward where the environment reports no progress."""
    values = [turn.progress for turn in episode.turns if turn.progress is not None]
    return max(values) if values else episode.reward


def _answer(episode: Trajectory, index: int) -> object:
    """Return the environment's answer to a reply; None where a truncation or a failure leaves it unknown."""
    turn = episode.turns[index]
    if index + 1 < len(episode.turns):
        return (episode.turns[index + 1].messages, turn.reward)
    if episode.outcome in (Outcome.SUCCESS, Outcome.FAILURE):
        return (episode.closing, turn.reward, episode.outcome)
    return None
