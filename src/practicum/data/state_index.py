"""Where episodes meet: the states that their replies were given in, and what became of each reply.

Two replies can be compared only if they were given in one state: the same task, and the same ids before the reply. A
world is taken to be steady (the same state and reply are always answered alike) until the episodes themselves show that
it is not; then the seed of the world is part of the state as well.
"""

from __future__ import annotations

import hashlib
import re
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from practicum.trajectory import Outcome, Trajectory, Turn

TOOL_ERROR = re.compile(r"(Observation: |Output:\n)?Error: ")
"""How an observation begins when a tool says that a call failed, in every reply format."""


@dataclass(frozen=True, slots=True)
class State:
    """What a reply was given in. `history` names the ids shown; `seed` is None in a steady world."""

    task: str
    content: str
    history: str
    seed: int | None = None

    @property
    def key(self) -> str:
        return f"{self.task}_{self.history[:16]}"


@dataclass(frozen=True, slots=True)
class Visit:
    """One reply: the episode it belongs to and its turn."""

    episode: Trajectory
    number: int

    @property
    def turn(self) -> Turn:
        return self.episode.turns[self.number]


def prompt_ids(episode: Trajectory, number: int) -> tuple[int, ...]:
    """All ids that the policy was shown before the reply of a turn."""
    first = max(place for place in range(number + 1) if place == 0 or episode.turns[place].restart)
    held = [i for turn in episode.turns[first:number] for span in turn.spans for i in span.ids]
    return (*held, *(i for span in episode.turns[number].spans[:-1] for i in span.ids))


def histories(episode: Trajectory) -> Iterator[str]:
    """For each turn a name of what was shown before its reply: ids, the vocabulary they belong to, and images."""
    begin = hashlib.sha256(str(episode.provenance.get("tokenizer", "")).encode())
    running = begin.copy()
    for turn in episode.turns:
        if turn.restart:
            running = begin.copy()
        for span in turn.spans[:-1]:
            running.update(array("q", span.ids))
        for image in (image for message in turn.messages for image in message.images):
            running.update(image.encode())  # ids say only that there is an image, not which
        yield running.hexdigest()
        running.update(array("q", turn.spans[-1].ids))


def visits(episodes: Sequence[Trajectory]) -> dict[State, list[Visit]]:
    """Every reply of the scored episodes under the state that it was given in, in the order of the episodes."""
    unsteady = unsteady_worlds(episodes)
    found: dict[State, list[Visit]] = {}
    for episode in episodes:
        if episode.scored:
            task = episode.task
            seed = episode.seeds.environment if task.environment in unsteady else None
            for number, history in enumerate(histories(episode)):
                found.setdefault(State(task.id, task.hash, history, seed), []).append(Visit(episode, number))
    return found


def unsteady_worlds(episodes: Sequence[Trajectory]) -> set[str]:
    """Environments that answered the same reply in the same state in two ways."""
    answers: dict[tuple[str, str, str], object] = {}
    unsteady: set[str] = set()
    for episode in episodes:
        for number, history in enumerate(histories(episode)):
            answer = _answer(episode, number)
            place = (episode.task.hash, history, episode.turns[number].reply)
            if answer is not None and answers.setdefault(place, answer) != answer:
                unsteady.add(episode.task.environment)
    return unsteady


def failed(episode: Trajectory, number: int) -> bool:
    """Whether the action of a turn failed. That is seen in what followed it, never in what stood before it."""
    turn = episode.turns[number]
    if turn.action.error is not None or turn.info.get("valid") is False:
        return True
    if turn.info.get("error") or turn.info.get("last_action_error"):
        return True
    after = episode.turns[number + 1].messages if number + 1 < len(episode.turns) else episode.closing
    return any(TOOL_ERROR.match(message.content) for message in after)


def progress(episode: Trajectory) -> float:
    """The furthest an episode came; its reward where the world tells no progress."""
    told = [turn.progress for turn in episode.turns if turn.progress is not None]
    return max(told) if told else episode.reward


def _answer(episode: Trajectory, number: int) -> object:
    """What the world said to a reply; None where a cut or a crash leaves that unknown."""
    turn = episode.turns[number]
    if number + 1 < len(episode.turns):
        return (episode.turns[number + 1].messages, turn.reward)
    if episode.outcome in (Outcome.SUCCESS, Outcome.FAILURE):
        return (episode.closing, turn.reward, episode.outcome)
    return None
