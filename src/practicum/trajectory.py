"""The record of an episode, token by token: what the agent was shown, what it sampled, what reward it got.

Every token has an origin from the moment it is rendered or sampled. Loss masks are derived from the origins; nothing
searches for them in text.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Mapping
from collections.abc import Sequence as SequenceABC
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from practicum.environment import DEFAULT_ROLE, Action, Message
from practicum.task import Task

TRAIN_ROLES = "train_roles"
"""The entry of a record's provenance that names the roles in training; only where several act."""

EXTERNAL_AGENT = "external_agent"
"""The entry of a record's provenance that names the agent's own program, where it has one."""

SAME_PROMPT = "another reply to the same prompt"
"""The `branch_reason` of a reply to a prompt that an external agent has sent before, or asked several replies for."""

ABANDONED = "abandoned"
"""Entry of a turn's info: the agent went on from another reply to the same prompt, and this one is not trained."""


@dataclass(frozen=True)
class Attempt:
    """One episode to run: a task, the index of the attempt at it, and the seeds it runs under.

    Episodes of one `group` are compared with each other by group-relative estimators; "" means the task's id.
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
        for attempt in range(attempts_per_task):
            sampling_seed = derive_seed("sampling", seed, label, task.id, attempt)
            planned.append(Attempt(task, attempt, Seeds(environment_seed, sampling_seed), f"{label}{task.id}"))
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
    """What produced a reply. A turn may name another source, such as a cache or a macro."""

    POLICY = "policy"
    EXPERT = "expert"
    RANDOM = "random"
    NULL = "null"
    SCRIPTED = "scripted"  # a further policy of the environment
    REPLAY = "replay"


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive tokens of one origin. `logprobs`, one per token and of sampled spans only, are the engine's.

    `kept`: the tokens that each was sampled among (`chat/sampling_mask.py`), where top-k, top-p or min-p left some out.
    """

    origin: Origin
    ids: tuple[int, ...]
    logprobs: tuple[float, ...] | None = None
    kept: str | None = None

    def __post_init__(self) -> None:
        if self.logprobs is not None and len(self.logprobs) != len(self.ids):
            raise ValueError(f"{len(self.ids)} ids but {len(self.logprobs)} log-probs")
        if self.logprobs is not None and self.origin is not Origin.SAMPLED:
            raise ValueError("only sampled spans carry log-probs")


@dataclass(frozen=True, slots=True)
class Turn:
    """One turn of one role: the new spans of its prompt, then the sampled span, then reward, progress and info.

    The spans follow those of the turn `continues`; None means the role's last turn that has spans. `restart` is
    true when the prompt continues no turn (a role's first turn, a fresh prompt, or a history from which something was
    removed): the learner then begins a new sequence. An action that no model wrote has no sampled span, and no spans at
    all where no prompt shows it.
    """

    spans: tuple[Span, ...]
    restart: bool
    messages: tuple[Message, ...]
    reply: str
    action: Action
    source: str
    policy_version: int
    stop_reason: StopReason
    seed: int
    reward: float = 0.0
    components: Mapping[str, float] = field(default_factory=dict)
    progress: float | None = None
    info: Mapping[str, Any] = field(default_factory=dict)
    role: str = DEFAULT_ROLE
    continues: int | None = None
    temperature: float | None = None
    """The temperature that the reply was sampled at; None: that of the episode."""
    role_rewards: Mapping[str, float] = field(default_factory=dict)
    branch_reason: str = ""
    """Why a role's prompt does not go on from its last turn, in words for a reader."""
    response_format: Mapping[str, Any] | None = None
    """The form that the engine held every token of the reply to; its log-probs are of the tokens that it allows."""

    @property
    def is_abandoned(self) -> bool:
        """Whether an external agent went on from another reply to the same prompt."""
        return ABANDONED in self.info

    def with_step(
        self,
        reward: float,
        components: Mapping[str, float],
        progress: float | None,
        info: Mapping[str, Any],
        role_rewards: Mapping[str, float],
    ) -> Turn:
        """Return the turn with what a step of the environment gave; faster than `dataclasses.replace`."""
        return Turn(
            self.spans, self.restart, self.messages, self.reply, self.action, self.source, self.policy_version,
            self.stop_reason, self.seed, reward, components, progress, info, self.role, self.continues,
            self.temperature, role_rewards, self.branch_reason, self.response_format,
        )  # fmt: skip

    @property
    def num_sampled(self) -> int:
        """The number of sampled tokens."""
        return sum([len(span.ids) for span in self.spans if span.origin is Origin.SAMPLED])


def reply_confidence(logprobs: SequenceABC[float] | None) -> float | None:
    """Return the geometric mean of the probabilities of a reply's tokens; None where they are not known."""
    return math.exp(min(0.0, sum(logprobs) / len(logprobs))) if logprobs else None


def continued_turns(turns: SequenceABC[Turn]) -> list[int | None]:
    """Return for every turn the index of the turn whose ids it extends; None where it begins anew or has no spans."""
    last_of_role: dict[str, int] = {}
    continued: list[int | None] = []
    for index, turn in enumerate(turns):
        parent = last_of_role.get(turn.role) if turn.continues is None else turn.continues
        continued.append(None if turn.restart or not turn.spans else parent)
        if turn.spans:
            last_of_role[turn.role] = index
    return continued


def conversation_parents(turns: SequenceABC[Turn]) -> list[int | None]:
    """Return for every turn the index of the turn whose conversation its messages follow; None where there is none.

    Where something was removed from a history, its ids begin anew and its messages still follow the earlier ones.
    """
    last_of_role: dict[str, int] = {}
    parents: list[int | None] = []
    for index, turn in enumerate(turns):
        parent = last_of_role.get(turn.role) if turn.continues is None else turn.continues
        is_fresh = turn.restart and turn.continues is None and bool(turn.branch_reason)
        parents.append(None if is_fresh or not turn.spans else parent)
        if turn.spans:
            last_of_role[turn.role] = index
    return parents


def describe_branch(turns: SequenceABC[Turn], index: int) -> str:
    """Return why the prompt of a turn does not go on from the role's last turn; "" where it does, or is its first."""
    turn = turns[index]
    if turn.branch_reason or not turn.restart:
        return turn.branch_reason
    return "rewritten history" if any(earlier.role == turn.role and earlier.spans for earlier in turns[:index]) else ""


def path_to(continued: SequenceABC[int | None], index: int) -> list[int]:
    """Return the indices of the turns whose spans are the ids up to the end of a turn, from the first to that one."""
    path = [index]
    while (parent := continued[path[-1]]) is not None:
        path.append(parent)
    return path[::-1]


@dataclass(frozen=True, slots=True)
class Seeds:
    """The environment's seed and the sampling seed."""

    environment: int
    sampling: int


@dataclass(frozen=True, slots=True)
class Sequence:
    """Ids that are one input of the model, with origin, log-prob and index of the turn per token.

    The first `num_repeated` tokens are those of an earlier sequence, from which this one branches off.
    """

    ids: tuple[int, ...]
    origins: tuple[Origin, ...]
    logprobs: tuple[float | None, ...]
    turns: tuple[int, ...]
    num_repeated: int = 0

    @property
    def sampled(self) -> tuple[bool, ...]:
        """Which tokens were sampled; those of an earlier sequence do not count again."""
        return tuple(
            origin is Origin.SAMPLED and position >= self.num_repeated for position, origin in enumerate(self.origins)
        )


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
    tool_seconds: Mapping[str, tuple[float, ...]] = field(default_factory=dict, compare=False, repr=False)
    """Seconds of each tool call, by tool, of an episode that was just run. Files of episodes hold no times."""

    @property
    def scored(self) -> bool:
        return self.outcome.scored

    @property
    def environment_figures(self) -> dict[str, float]:
        """The numbers in the `info` of the last step."""
        info = self.turns[-1].info if self.turns else {}
        return {
            name: float(value)
            for name, value in info.items()
            if isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
        }

    @property
    def invalid_replies(self) -> int:
        return sum(turn.action.error is not None for turn in self.turns)

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles that acted, in the order of their first turns."""
        return tuple(dict.fromkeys(turn.role for turn in self.turns))

    def paths(self) -> list[list[int]]:
        """Return the turns of every sequence, as indices: a path ends in a turn that no other turn extends."""
        continued = continued_turns(self.turns)
        extended = {parent for parent in continued if parent is not None}
        last_turns = [index for index, turn in enumerate(self.turns) if turn.spans and index not in extended]
        return [path_to(continued, last_turn) for last_turn in last_turns]

    def sequences(self) -> tuple[Sequence, ...]:
        """Return the episode's sequences, one per path; a sampled span belongs to the first that has it."""
        sequences: list[Sequence] = []
        seen: set[int] = set()
        for path in self.paths():
            ids: list[int] = []
            origins: list[Origin] = []
            logprobs: list[float | None] = []
            turns: list[int] = []
            num_repeated = 0
            for index in path:
                for span in self.turns[index].spans:
                    ids.extend(span.ids)
                    origins.extend([span.origin] * len(span.ids))
                    logprobs.extend(span.logprobs if span.logprobs is not None else [None] * len(span.ids))
                    turns.extend([index] * len(span.ids))
                if index in seen:
                    num_repeated = len(ids)
            seen.update(path)
            sequences.append(Sequence(tuple(ids), tuple(origins), tuple(logprobs), tuple(turns), num_repeated))
        return tuple(sequences)


def learned_roles(episode: Trajectory, roles: Collection[str] | None = None) -> Collection[str] | None:
    """Return the roles whose replies are learned from a recorded episode; None: all.

    They are `roles` where these are named, else the ones that the episode records as trained: the policy's own.
    """
    recorded = episode.provenance.get(TRAIN_ROLES)
    if roles is None and isinstance(recorded, list | tuple) and all(isinstance(role, str) for role in recorded):
        return tuple(recorded)
    return roles


def is_trained(turn: Turn, roles: Collection[str] | None) -> bool:
    """Whether the sampled tokens of a turn are trained; `roles` are the trained ones, None: all."""
    return roles is None or turn.role in roles
