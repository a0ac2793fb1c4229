"""What `affine:sat`, `affine:abd` and `affine:ded` share: one question, an answer that is checked, and its reward.

A reply in which no answer can be read is not an answer: the world says what is missing and waits for another.
An answer that can be read is checked, and ends the episode unless it is wrong and tries are left.
"""

from __future__ import annotations

import abc
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, TypeVar

from practicum.chat.formats.registry import make_format
from practicum.environment import SPLITS, Action, Environment, Message, Observation, Step
from practicum.errors import UserError, did_you_mean
from practicum.task import Task, content_hash

REWARDS = ("native", "shaped")
STEP_REWARD, COMPLETION_REWARD, PENALTY = 0.2, 1.0, -0.05
"""Shaped: what a wrong answer that is nearly right earns at most, what a right one earns, what a broken reply costs."""
SPLIT_OF_BUCKET = ("train",) * 8 + ("val", "test")
TRIES = 5000
"""Tasks drawn in vain, one after the other, before the levels count as used up."""

Answer = TypeVar("Answer")


class Unreadable(Exception):
    """A reply without an answer in it; its text is what the agent is told."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the check of an answer found."""

    success: bool
    share: float
    """How much of the answer is right, from 0 to 1: clauses, lines of output, tests."""
    text: str
    """What the agent is told. It never holds what is hidden."""
    components: Mapping[str, float]
    """Counts that are logged beside the reward and never trained on."""


@dataclass(frozen=True)
class Drawn:
    """A generated task before it is made: `key` names what must not be in two splits."""

    key: object
    make: Callable[[], Mapping[str, Any]]
    """Its fields, worked out only for a task of the split that is wanted."""

    @property
    def split(self) -> str:
        return SPLIT_OF_BUCKET[int(content_hash(self.key), 16) % 10]


class AffineEnvironment(Environment, Generic[Answer]):
    """One question with a checkable answer; a subclass makes tasks, reads answers and checks them."""

    formats = ("hf",)
    floor = 0.0
    system = ""
    once: ClassVar[bool] = True
    """Whether two tasks of a split must differ in their keys, not in their contents alone."""

    def __init__(self, format: str, reward: str, tries: int, levels: Sequence[int], most: int) -> None:
        if reward not in REWARDS:
            raise UserError(f"{self.name} has no reward '{reward}'.{did_you_mean(str(reward), REWARDS)}")
        if not _is_whole(tries) or tries < 1:
            raise UserError(f"{self.name} needs tries of at least 1, got {tries}.")
        self.levels = tuple(levels) if not isinstance(levels, str) else ()
        if not self.levels or not all(_is_whole(level) and 1 <= level <= most for level in self.levels):
            raise UserError(f"{self.name} levels must be whole numbers from 1 to {most}, got {levels}.")
        self.format = make_format(format)
        self.shaped, self.tries = reward == "shaped", tries
        if self.shaped:
            self.invalid_reward = PENALTY
        self._task: Task | None = None
        self._left = 0
        self._best = 0.0

    @abc.abstractmethod
    def question(self, task: Task) -> str:
        """What the agent is asked; UserError where the task lacks a field."""

    @abc.abstractmethod
    def read(self, text: str) -> Answer:
        """The answer in a reply; Unreadable where there is none."""

    @abc.abstractmethod
    async def judge(self, task: Task, answer: Answer) -> Verdict:
        """Whether the answer is right."""

    @abc.abstractmethod
    def draw(self, rng: random.Random, level: int) -> Drawn:
        """One task of a level."""

    async def reset(self, task: Task, seed: int) -> Observation:
        """Ask. The world has no chance in it, so the seed changes nothing."""
        self._task, self._left, self._best = task, self.tries, 0.0
        return Observation((Message("system", self.system), Message("user", self.question(task))))

    async def step(self, action: Action) -> Step:
        assert self._task is not None, "reset comes before step"
        if self._left == 0:
            return self._end("The episode is over.", {}, success=self._best == 1.0)
        try:
            if action.calls:
                raise Unreadable("There are no tools here; reply with the answer.")
            answer = self.read(action.content)
        except Unreadable as fault:
            text = f"Your reply could not be used: {fault}"
            earned = self._earned({"penalty": PENALTY})
            return Step(self._say(text), sum(earned.values()), earned, progress=self._best, info={"valid": False})
        verdict = await self.judge(self._task, answer)
        self._left -= 1
        self._best = 1.0 if verdict.success else max(self._best, min(verdict.share, 0.999))
        if verdict.success:
            self._left = 0
            return self._end(verdict.text, {"completion": COMPLETION_REWARD}, True, verdict.components)
        if self._left:
            return Step(
                self._say(verdict.text), components={**self._earned({}), **verdict.components}, progress=self._best
            )
        # Only the last answer is paid for being nearly right, so more tries cannot be farmed.
        return self._end(verdict.text, {"step": STEP_REWARD * verdict.share}, False, verdict.components)

    async def truncate(self) -> Step:
        return Step(truncated=True, success=False, progress=self._best)

    def _say(self, text: str) -> Observation:
        return Observation((Message("user", text),))

    def _earned(self, earned: Mapping[str, float]) -> dict[str, float]:
        """Of what was earned, the native reward counts completion only."""
        names = ("step", "completion", "penalty") if self.shaped else ("completion",)
        return {name: earned.get(name, 0.0) for name in names}

    def _end(
        self, text: str, earned: Mapping[str, float], success: bool, components: Mapping[str, float] | None = None
    ) -> Step:
        counted = self._earned(earned)
        return Step(
            self._say(text),
            reward=sum(counted.values()),
            components={**counted, **(components or {})},
            terminated=True,
            success=success,
            progress=self._best,
        )

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Generated tasks, the levels in turn. A task's own key says its split, so no seed can leak one into another.

        An id names the content, not the place: the same on every machine and for every seed.
        """
        self.check_split(split)
        rng = random.Random(f"{self.name}/{split}/{seed}")
        tasks: list[Task] = []
        seen: set[str] = set()
        vain = 0
        while len(tasks) < count:
            drawn = self.draw(rng, self.levels[len(tasks) % len(self.levels)])
            task = self._make_task(drawn) if drawn.split == split else None
            name = "" if task is None else content_hash(drawn.key) if self.once else task.id
            if task is None or name in seen:
                vain += 1
                if vain > TRIES:
                    raise UserError(
                        f"{self.name} has about {len(tasks)} different '{split}' tasks of these levels; ask for fewer."
                    )
                continue
            vain = 0
            seen.add(name)
            tasks.append(task)
        return tasks

    def _make_task(self, drawn: Drawn) -> Task:
        fields = drawn.make()
        return Task(f"{self.name.replace(':', '-')}-{content_hash(fields)}", self.name, drawn.split, fields)

    def check_split(self, split: str) -> None:
        if split not in SPLITS:
            raise UserError(f"{self.name} has no split '{split}'.{did_you_mean(split, SPLITS)}")


def _is_whole(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
