"""The states in which replies were given, and what followed each reply.

Two replies can be compared only if they were given in one state: the same task, and the same ids before the reply. An
environment is taken to be deterministic (the same state and reply always get the same answer) until the episodes
themselves show that it is not; then the environment's seed is part of the state as well.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from practicum.trajectory import Outcome, Trajectory, Turn

TOOL_ERROR = re.compile(r"(Observation: |Output:\n)?Error: ")
"""How an observation begins when a tool call failed, in every reply format."""


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


@dataclass(frozen=True, slots=True)
class Visit:
    """One reply: its episode and the index of its turn."""

    episode: Trajectory
    number: int

    @property
    def turn(self) -> Turn:
        return self.episode.turns[self.number]


def prompt_ids(episode: Trajectory, number: int) -> tuple[int, ...]:
    """Return all ids that the policy was shown before the reply of a turn."""
    first = max(index for index in range(number + 1) if index == 0 or episode.turns[index].restart)
    earlier = [i for turn in episode.turns[first:number] for span in turn.spans for i in span.ids]
    return (*earlier, *(i for span in episode.turns[number].spans[:-1] for i in span.ids))


def histories(episode: Trajectory) -> Iterator[str]:
    """Yield for each turn a hash of what was shown before its reply: ids, their vocabulary, and images."""
    empty = hashlib.sha256(str(episode.provenance.get("tokenizer", "")).encode())
    running = empty.copy()
    for turn in episode.turns:
        if turn.restart:
            running = empty.copy()
        for span in turn.spans[:-1]:
            running.update(array("q", span.ids))
        for image in (image for message in turn.messages for image in message.images):
            running.update(image.encode())  # ids say only that there is an image, not which
        yield running.hexdigest()
        running.update(array("q", turn.spans[-1].ids))


def visits(episodes: Sequence[Trajectory]) -> dict[State, list[Visit]]:
    """Return the replies of the scored episodes by the state that they were given in, in the order of the episodes."""
    nondeterministic = nondeterministic_environments(episodes)
    by_state: dict[State, list[Visit]] = {}
    for episode in episodes:
        if episode.scored:
            task = episode.task
            seed = episode.seeds.environment if task.environment in nondeterministic else None
            for number, history in enumerate(histories(episode)):
                by_state.setdefault(State(task.id, task.hash, history, seed), []).append(Visit(episode, number))
    return by_state


def nondeterministic_environments(episodes: Sequence[Trajectory]) -> set[str]:
    """Return the environments that answered the same reply in the same state in two ways."""
    answers: dict[tuple[str, str, str], object] = {}
    environments: set[str] = set()
    for episode in episodes:
        for number, history in enumerate(histories(episode)):
            answer = _answer(episode, number)
            key = (episode.task.hash, history, episode.turns[number].reply)
            if answer is not None and answers.setdefault(key, answer) != answer:
                environments.add(episode.task.environment)
    return environments


def failed(episode: Trajectory, number: int) -> bool:
    """Whether the action of a turn failed, by what followed it and not by what preceded it."""
    turn = episode.turns[number]
    if turn.action.error is not None or turn.info.get("valid") is False:
        return True
    if turn.info.get("error") or turn.info.get("last_action_error"):
        return True
    after = episode.turns[number + 1].messages if number + 1 < len(episode.turns) else episode.closing
    return any(TOOL_ERROR.match(message.content) for message in after)


def progress(episode: Trajectory) -> float:
    """Return the largest progress of an episode; its reward where the environment reports no progress."""
    values = [turn.progress for turn in episode.turns if turn.progress is not None]
    return max(values) if values else episode.reward


def _answer(episode: Trajectory, number: int) -> object:
    """Return the environment's answer to a reply; None where a truncation or a failure leaves it unknown."""
    turn = episode.turns[number]
    if number + 1 < len(episode.turns):
        return (episode.turns[number + 1].messages, turn.reward)
    if episode.outcome in (Outcome.SUCCESS, Outcome.FAILURE):
        return (episode.closing, turn.reward, episode.outcome)
    return None
