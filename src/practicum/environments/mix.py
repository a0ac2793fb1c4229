"""`mix`: several environments as one. Every task is played by the environment that it names.

A mix has no world of its own. Its tasks are those of its members, unchanged, in turns that keep the shares; an episode
is handed to the member that the task belongs to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from practicum import registry
from practicum.environment import Action, Environment, Observation, Policy, Step
from practicum.errors import UserError, did_you_mean
from practicum.task import Task

Shaping = Callable[[Task, Action, Step], float]
"""A user's own reward for a step: the task, what was done, and the world's answer with its own reward."""


class MixEnvironment(Environment):
    """Several environments as one, in shares; each task is played by its own."""

    name = "mix"
    formats = ("hf", "react", "code", "gui")

    def __init__(
        self,
        environments: Sequence[str] | Mapping[str, Mapping[str, Any] | None] = (),
        shares: Mapping[str, float] | None = None,
        reward: str | None = None,
        shaping: str | None = None,
        format: str = "hf",
    ) -> None:
        """`environments`: names, or names with the options of each. `shares` are weights, 1 where none is given.

        `reward` is handed to the members that have such an option and were given none; `shaping` is a function
        (`path/to/file.py:function`) whose number is paid instead of a step's own reward.
        """
        given = environments if isinstance(environments, Mapping) else dict.fromkeys(environments)
        if isinstance(environments, str) or not given:
            raise UserError("A mix needs 'environments': a list of names, or a mapping of names to their options.")
        self.shares = dict.fromkeys(given, 1.0)
        for name, share in (shares or {}).items():
            if name not in given:
                raise UserError(f"mix: 'shares' names '{name}', which is not in the mix.{did_you_mean(name, given)}")
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < float("inf"):
                raise UserError(f"mix: the share of '{name}' must be a number above 0, got {share}.")
            self.shares[name] = float(share)
        self._makers = {name: _maker(name, format, options, reward) for name, options in given.items()}
        self._shaping: Shaping | None = None if shaping is None else registry.function(shaping)
        self._names = {registry.environment_class(name).name or name: name for name in given}
        self._members: dict[str, Environment] = {}
        self._task: Task | None = None

    def member(self, name: str) -> Environment:
        """The environment that a task names, made when it is first needed."""
        key = self._names.get(name, name)
        if key not in self._makers:
            raise UserError(f"The mix has no environment '{name}' (it has: {', '.join(self._makers)}).")
        if key not in self._members:
            self._members[key] = self._makers[key]()
        return self._members[key]

    async def reset(self, task: Task, seed: int) -> Observation:
        member = self.member(task.environment)
        self._task, self.invalid_reward = task, member.invalid_reward
        return await member.reset(task, seed)

    async def step(self, action: Action) -> Step:
        return self._shaped(action, await self._current.step(action))

    async def truncate(self) -> Step:
        return self._shaped(Action(), await self._current.truncate())

    async def close(self) -> None:
        for member in self._members.values():
            await member.close()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Tasks of all members, each as it is, in turns: any first part of the list keeps the shares."""
        turns = in_turns(self.shares, count)
        listed = {}
        for name in dict.fromkeys(turns):
            wanted = turns.count(name)
            tasks = self.member(name).tasks(split, wanted, seed)
            if len(tasks) < wanted:
                raise UserError(
                    f"mix: '{name}' has {len(tasks)} '{split}' tasks and its share of {count} is {wanted}; "
                    "give it more, give it a smaller share, or ask for fewer tasks."
                )
            listed[name] = iter(tasks)
        return [next(listed[name]) for name in turns]

    def plays(self, task: Task) -> bool:
        return self._names.get(task.environment, task.environment) in self._makers

    def expert(self, task: Task) -> Policy:
        return self.member(task.environment).expert(task)

    async def ready_expert(self, task: Task) -> None:
        await self.member(task.environment).ready_expert(task)

    def null(self, task: Task) -> Policy:
        return self.member(task.environment).null(task)

    def random(self, task: Task, seed: int) -> Policy:
        return self.member(task.environment).random(task, seed)

    @property
    def _current(self) -> Environment:
        assert self._task is not None, "reset comes before step"
        return self.member(self._task.environment)

    def _shaped(self, action: Action, step: Step) -> Step:
        """The step with the user's reward. Whether the episode succeeded stays the world's own word."""
        if self._shaping is None:
            return step
        assert self._task is not None
        success = step.success if step.success is not None or not step.terminated else step.reward > 0
        return dataclasses.replace(step, reward=float(self._shaping(self._task, action, step)), success=success)


def in_turns(shares: Mapping[str, float], count: int) -> list[str]:
    """`count` names, the one that is furthest behind its share next; of two alike, the first."""
    whole = sum(shares.values())
    taken = dict.fromkeys(shares, 0)
    turns = []
    for place in range(1, count + 1):
        name = max(shares, key=lambda name: shares[name] / whole * place - taken[name])
        taken[name] += 1
        turns.append(name)
    return turns


def _maker(name: str, format: str, options: Mapping[str, Any] | None, reward: str | None) -> Callable[[], Environment]:
    if options is not None and not isinstance(options, Mapping):
        raise UserError(f"mix: the options of '{name}' must be a mapping, got {options!r}.")
    wanted = dict(options or {})
    if reward is not None and "reward" not in wanted and registry.takes(name, "reward"):
        wanted["reward"] = reward
    return registry.environment_maker(name, format, wanted)[0]
