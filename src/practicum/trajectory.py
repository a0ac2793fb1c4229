"""The record of an episode, token by token: what the agent was shown, what it sampled, what reward it got.

Every token has an origin from the moment it is rendered or sampled. Loss masks are derived from the origins; nothing
searches for them in text.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from practicum.environment import Action, Message
from practicum.task import Task


@dataclass(frozen=True)
class Attempt:
    """One episode to run: a task, the index of the attempt at it, and the seeds it runs under.

    Episodes of one `group` are compared with each other by group-relative estimators; "" stands for the task's id.
    """

    task: Task
    number: int
    seeds: Seeds
    group: str = ""


def derive_seed(*names: object) -> int:
    """Return a 63-bit seed made of names and numbers, the same on every machine."""
    digest = hashlib.sha256("/".join(map(str, names)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def plan_attempts(tasks: Iterable[Task], attempts_per_task: int, seed: int, label: str = "") -> list[Attempt]:
    """Return `attempts_per_task` attempts at every task, those of one task next to each other.

    Attempts at one task share the environment's seed and differ in the sampling seed. `label` sets the seeds and groups
    of one plan apart from those of another with the same seed.
    """
    planned = []
    for task in tasks:
        environment_seed = derive_seed("environment", seed, label, task.id)
        for number in range(attempts_per_task):
            sampling_seed = derive_seed("sampling", seed, label, task.id, number)
            planned.append(Attempt(task, number, Seeds(environment_seed, sampling_seed), f"{label}{task.id}"))
    return planned


class Outcome(StrEnum):
    """How an episode ended. Only scored outcomes may reach a baseline or a loss."""

    SUCCESS = "success"
    FAILURE = "failure"
    TRUNCATED = "truncated"
    TIMEOUT = "timeout"
    ENV_ERROR = "env_error"
    ENGINE_ERROR = "engine_error"
    JUDGE_ERROR = "judge_error"
    CANCELLED = "cancelled"

    @property
    def scored(self) -> bool:
        return self in (Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED)


class Origin(StrEnum):
    """Where a token came from."""

    TEMPLATE = "template"
    OBSERVATION = "observation"
    SAMPLED = "sampled"


class StopReason(StrEnum):
    """Why the engine stopped a reply."""

    END = "end"  # the end-of-turn token
    STRING = "string"  # a stop string
    LENGTH = "length"  # the turn's token limit
    CONTEXT = "context"  # no room left in the model's window


class ActionSource(StrEnum):
    """What produced a reply."""

    POLICY = "policy"
    EXPERT = "expert"
    RANDOM = "random"
    NULL = "null"
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one origin. `logprobs`, one per token and of sampled spans only, are the engine's."""

    origin: Origin
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if self.logprobs is not None and len(self.logprobs) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} log-probs")
        if self.logprobs is not None and self.origin is not Origin.SAMPLED:
            raise ValueError("only sampled spans carry log-probs")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn: the new spans of the prompt, then the sampled span, then reward, progress and info of the reply.

    `restart` is true when the prompt does not continue the ids of the turn before (the first turn, or a history from
    which something was removed): the learner then begins a new sequence.
    """

    spans: tuple[Span, ...]
    restart: bool
    messages: tuple[Message, ...]
    reply: str
    action: Action
    source: ActionSource
    policy_version: int
    stop_reason: StopReason
    seed: int
    reward: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    progress: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Seeds:
    """The environment's seed and the sampling seed."""

    environment: int
    sampling: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """Ids that are one input of the model, with origin, log-prob and index of the turn per token."""

    ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[float | None, ...]
    turns: tuple[int, ...]

    @property
    def sampled(self) -> tuple[bool, ...]:
        return tuple(origin is Origin.SAMPLED for origin in self.origins)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """An episode: its task, its turns, its outcome, and where it came from (`provenance`)."""

    task: Task
    attempt: int
    group: str
    outcome: Outcome
    turns: tuple[Turn, ...]
    reward: float
    components: Mapping[str, float]
    seeds: Seeds
    closing: tuple[Message, ...] = ()
    """The messages after the last reply, which no reply answers."""
    error: str | None = None
    provenance: Mapping[str, Any] = field(default_factory=dict)
    traceback: str | None = None
    """Traceback of the exception of an environment or reward that ended the episode."""

    @property
    def scored(self) -> bool:
        return self.outcome.scored

    @property
    def invalid_replies(self) -> int:
        return sum(turn.action.error is not None for turn in self.turns)

    def runs(self) -> list[list[Span]]:
        """Return the episode's spans as one list per sequence; a sequence ends where a turn restarts the prompt."""
        sequences: list[list[Span]] = []
        for turn in self.turns:
            if turn.restart or not sequences:
                sequences.append([])
            sequences[-1].extend(turn.spans)
        return sequences

    def sequences(self) -> tuple[Sequence, ...]:
        """Return the episode's sequences; a sequence ends where a turn restarts the prompt."""
        runs: list[tuple[list[int], list[Origin], list[float | None], list[int]]] = []
        for index, turn in enumerate(self.turns):
            if turn.restart or not runs:
                runs.append(([], [], [], []))
            ids, origins, logprobs, turns = runs[-1]
            for span in turn.spans:
                ids.extend(span.ids)
                origins.extend([span.origin] * len(span.ids))
                logprobs.extend(span.logprobs if span.logprobs is not None else [None] * len(span.ids))
                turns.extend([index] * len(span.ids))
        return tuple(Sequence(tuple(a), tuple(b), tuple(c), tuple(d)) for a, b, c, d in runs)
