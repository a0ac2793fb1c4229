"""The common base of `affine:sat`, `affine:abd` and `affine:ded`: one question, a checked answer, and its reward.

A reply without a readable answer is not an answer: the environment says what is missing and waits for another. An
answer that can be read is checked, and ends the episode unless it is wrong and tries are left.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from practicum.environment import SPLITS, Action, Environment, Message, Observation, Step
from practicum.errors import UserError, did_you_mean
from practicum.registry import make_format
from practicum.task import Task, content_hash, split_of_content

REWARDS = ("native", "shaped")
STEP_REWARD, COMPLETION_REWARD, PENALTY = 0.2, 1.0, -0.05
"""Shaped reward: at most for a wrong answer, for a right answer, for an unreadable reply."""
MAX_FAILED_DRAWS = 5000
"""Number of draws in a row without a new task after which the levels count as exhausted."""

Answer = TypeVar("Answer")


class UnreadableAnswer(Exception):
    """A reply without a readable answer; the text of the exception is shown to the agent."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of checking an answer."""

    success: bool
    share: float
    """Share of the answer that is right, from 0 to 1: clauses, lines of output, tests."""
    text: str
    """The text shown to the agent. It never contains what is hidden."""
    components: Mapping[str, float]
    """Counts that are recorded with the reward and are not part of it."""


@dataclass(frozen=True)
class TaskDraft:
    """A generated task before its fields are computed: tasks with the same `key` are in the same split."""

    key: object
    make: Callable[[], Mapping[str, Any]]
    """Returns the fields; called only for a task of the wanted split."""

    @property
    def split(self) -> str:
        return split_of_content(self.key)


class AffineEnvironment(Environment, Generic[Answer]):
    """One question with a checkable answer; a subclass generates tasks, reads answers and checks them."""

    formats = ("hf",)
    floor = 0.0
    system = ""
    unique_keys: ClassVar[bool] = True
    """Whether two tasks of a split must differ in their keys, not only in their content."""

    def __init__(self, format: str, reward: str, tries: int, levels: Sequence[int], max_level: int) -> None:
        if reward not in REWARDS:
            raise UserError(f"{self.name} has no reward '{reward}'.{did_you_mean(str(reward), REWARDS)}")
        if not _is_int(tries) or tries < 1:
            raise UserError(f"{self.name} needs tries of at least 1, got {tries}.")
        self.levels = tuple(levels) if not isinstance(levels, str) else ()
        if not self.levels or not all(_is_int(level) and 1 <= level <= max_level for level in self.levels):
            raise UserError(f"{self.name} levels must be whole numbers from 1 to {max_level}, got {levels}.")
        self.format = make_format(format)
        self.shaped, self.tries = reward == "shaped", tries
        if self.shaped:
            self.invalid_reward = PENALTY
        self._task: Task | None = None
        self._tries_left = 0
        self._best = 0.0

    @abc.abstractmethod
    def question(self, task: Task) -> str:
        """Return the question; UserError if the task lacks a field."""

    @abc.abstractmethod
    def read(self, text: str) -> Answer:
        """Return the answer of a reply; Unreadable if there is none."""

    @abc.abstractmethod
    async def judge(self, task: Task, answer: Answer) -> Verdict:
        """Check an answer."""

    @abc.abstractmethod
    def draw(self, rng: random.Random, level: int) -> TaskDraft:
        """Draw one task of a level."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Ask the question. The environment is deterministic, so the seed has no effect."""
        self._task, self._tries_left, self._best = task, self.tries, 0.0
        return Observation((Message("system", self.system), Message("user", self.question(task))))

    async def step(self, action: Action) -> Step:
        assert self._task is not None, "reset comes before step"
        if self._tries_left == 0:
            return self._end("The episode is over.", {}, success=self._best == 1.0)
        try:
            if action.calls:
                raise UnreadableAnswer("There are no tools here; reply with the answer.")
            answer = self.read(action.content)
        except UnreadableAnswer as error:
            text = f"Your reply could not be used: {error}"
            earned = self._paid_components({"penalty": PENALTY})
            return Step(
                self._observation(text),
                sum(earned.values()),
                earned,
                progress=self._best,
                info={"valid": False},
            )
        verdict = await self.judge(self._task, answer)
        self._tries_left -= 1
        self._best = 1.0 if verdict.success else max(self._best, min(verdict.share, 0.999))
        if verdict.success:
            self._tries_left = 0
            return self._end(verdict.text, {"completion": COMPLETION_REWARD}, True, verdict.components)
        if self._tries_left:
            return Step(
                self._observation(verdict.text),
                components={**self._paid_components({}), **verdict.components},
                progress=self._best,
            )
        # Only the last answer is rewarded for its share, so that repeated tries cannot collect rewards.
        return self._end(verdict.text, {"step": STEP_REWARD * verdict.share}, False, verdict.components)

    async def truncate(self) -> Step:
        return Step(truncated=True, success=False, progress=self._best)

    def _observation(self, text: str) -> Observation:
        return Observation((Message("user", text),))

    def _paid_components(self, earned: Mapping[str, float]) -> dict[str, float]:
        """Return the components that count; of the native reward this is completion only."""
        names = ("step", "completion", "penalty") if self.shaped else ("completion",)
        return {name: earned.get(name, 0.0) for name in names}

    def _end(
        self,
        text: str,
        earned: Mapping[str, float],
        success: bool,
        components: Mapping[str, float] | None = None,
    ) -> Step:
        paid = self._paid_components(earned)
        return Step(
            self._observation(text),
            reward=sum(paid.values()),
            components={**paid, **(components or {})},
            terminated=True,
            success=success,
            progress=self._best,
        )

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return generated tasks of all levels in turn. A task's key decides its split, so that no seed moves it.

        An id is a hash of the content and not of the index: it is the same on every machine and for every seed.
        """
        self.check_split(split)
        rng = random.Random(f"{self.name}/{split}/{seed}")
        tasks: list[Task] = []
        seen: set[str] = set()
        num_failed_draws = 0
        while len(tasks) < count:
            drawn = self.draw(rng, self.levels[len(tasks) % len(self.levels)])
            task = self._make_task(drawn) if drawn.split == split else None
            name = "" if task is None else content_hash(drawn.key) if self.unique_keys else task.id
            if task is None or name in seen:
                num_failed_draws += 1
                if num_failed_draws > MAX_FAILED_DRAWS:
                    raise UserError(
                        f"{self.name} has about {len(tasks)} different '{split}' tasks of these levels; ask for fewer."
                    )
                continue
            num_failed_draws = 0
            seen.add(name)
            tasks.append(task)
        return tasks

    def _make_task(self, drawn: TaskDraft) -> Task:
        fields = drawn.make()
        return Task(f"{self.name.replace(':', '-')}-{content_hash(fields)}", self.name, drawn.split, fields)

    def check_split(self, split: str) -> None:
        if split not in SPLITS:
            raise UserError(f"{self.name} has no split '{split}'.{did_you_mean(split, SPLITS)}")


def _is_int(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
