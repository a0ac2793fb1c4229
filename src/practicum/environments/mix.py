"""`mix`: several environments as one. Every task is played by the environment that it names.

The tasks of a mix are those of its members, unchanged, interleaved by their shares; an episode is delegated to the
member that the task belongs to.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from practicum import registry
from practicum.environment import Action, Environment, Observation, ScriptedPolicy, Step
from practicum.errors import UserError, did_you_mean
from practicum.resources import Resource
from practicum.task import Task

Shaping = Callable[[Task, Action, Step], float]
"""A user's reward of a step, from the task, the action, and the environment's step with its own reward."""


class MixEnvironment(Environment):
    """Several environments as one, in shares; each task is played by its own environment."""

    name = "mix"
    has_one_answer = False
    formats = ("hf", "react", "code", "gui")

    def __init__(
        self,
        environments: Sequence[str] | Mapping[str, Mapping[str, Any] | None] = (),
        shares: Mapping[str, float] | None = None,
        reward: str | None = None,
        shaping: str | None = None,
        format: str = "hf",
    ) -> None:
        """Create a mix of `environments`: names, or names with the options of each. `shares` are weights, default 1.

        `reward` is passed to the members that have this option and do not set it; `shaping` is a function
        (`path/to/file.py:function`) whose value replaces the reward of a step.
        """
        members = environments if isinstance(environments, Mapping) else dict.fromkeys(environments)
        if isinstance(environments, str) or not members:
            raise UserError("A mix needs 'environments': a list of names, or a mapping of names to their options.")
        self.shares = dict.fromkeys(members, 1.0)
        for name, share in (shares or {}).items():
            if name not in members:
                raise UserError(f"mix: 'shares' names '{name}', which is not in the mix.{did_you_mean(name, members)}")
            if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < float("inf"):
                raise UserError(f"mix: the share of '{name}' must be a number above 0, got {share}.")
            self.shares[name] = float(share)
        self._makers = {name: _maker(name, format, options, reward) for name, options in members.items()}
        self._shaping: Shaping | None = None if shaping is None else registry.function(shaping)
        self._names = {registry.environment_class(name).name or name: name for name in members}
        shared = [set(registry.environment_class(name).scripted_policies) for name in members]
        self.scripted_policies = tuple(sorted(set.intersection(*shared)))
        roles = [role for name in members for role in registry.environment_class(name).roles]
        self.roles = tuple(dict.fromkeys(roles))
        self._members: dict[str, Environment] = {}
        self._task: Task | None = None

    def member(self, name: str) -> Environment:
        """Return the environment of that name, created when it is first needed."""
        key = self._names.get(name, name)
        if key not in self._makers:
            raise UserError(f"The mix has no environment '{name}' (it has: {', '.join(self._makers)}).")
        if key not in self._members:
            self._members[key] = self._makers[key]()
        member = self._members[key]
        if self.resources:
            member.resources = self.resources.part(key)
        return member

    def make_resources(self) -> Mapping[str, Resource]:
        """Return the resources of all members, as MEMBER/NAME."""
        return {
            f"{name}/{own}": resource
            for name in self._makers
            for own, resource in self.member(name).make_resources().items()
        }

    def resource_names(self, task: Task) -> Sequence[str]:
        key = self._names.get(task.environment, task.environment)
        return tuple(f"{key}/{name}" for name in self.member(key).resource_names(task))

    @classmethod
    def split_options(cls, options: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the options of the tasks and those of the agents of all members."""
        world, agent = super().split_options(options)
        members = options.get("environments")
        if not isinstance(members, Mapping):
            return world, agent
        parts = {
            name: registry.environment_class(name).split_options(own) if isinstance(own, Mapping) else (own, {})
            for name, own in members.items()
        }
        world["environments"] = {name: own for name, (own, _) in parts.items()}
        of_members = {name: own for name, (_, own) in parts.items() if own}
        return world, {**agent, **({"environments": of_members} if of_members else {})}

    def model_names(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(model for name in self._makers for model in self.member(name).model_names()))

    async def reset(self, task: Task, seed: int) -> Observation:
        member = self.member(task.environment)
        member.models, member.trajectory_so_far = self.models, self.trajectory_so_far  # type: ignore[method-assign]
        self._task, self.invalid_reward, member.tool_seconds = task, member.invalid_reward, self.tool_seconds
        return await member.reset(task, seed)

    async def step(self, action: Action) -> Step:
        return self._shaped(action, await self._current.step(action))

    async def truncate(self) -> Step:
        return self._shaped(Action(), await self._current.truncate())

    async def close(self) -> None:
        for member in self._members.values():
            await member.close()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return tasks of all members, interleaved: every prefix of the list keeps the shares."""
        order = interleave(self.shares, count)
        remaining = {}
        for name in dict.fromkeys(order):
            num_wanted = order.count(name)
            tasks = self.member(name).tasks(split, num_wanted, seed)
            if len(tasks) < num_wanted:
                raise UserError(
                    f"mix: '{name}' has {len(tasks)} '{split}' tasks and its share of {count} is {num_wanted}; "
                    "give it more, give it a smaller share, or ask for fewer tasks."
                )
            remaining[name] = iter(tasks)
        return [next(remaining[name]) for name in order]

    def plays(self, task: Task) -> bool:
        return self._names.get(task.environment, task.environment) in self._makers

    def expert(self, task: Task) -> ScriptedPolicy:
        return self.member(task.environment).expert(task)

    async def ready_expert(self, task: Task) -> None:
        await self.member(task.environment).ready_expert(task)

    def is_answer_unique(self, task: Task) -> bool:
        return self.member(task.environment).is_answer_unique(task)

    def wrong_attempts(self, task: Task, solution: Sequence[Action]) -> Sequence[Sequence[Action]]:
        return self.member(task.environment).wrong_attempts(task, solution)

    def null(self, task: Task) -> ScriptedPolicy:
        return self.member(task.environment).null(task)

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        return self.member(task.environment).random(task, seed)

    def scripted(self, name: str, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that every member has under this name, of the member that plays the task."""
        return self.member(task.environment).scripted(name, task, seed)

    @property
    def _current(self) -> Environment:
        assert self._task is not None, "reset comes before step"
        return self.member(self._task.environment)

    def _shaped(self, action: Action, step: Step) -> Step:
        """Return the step with the user's reward; success remains the environment's."""
        if self._shaping is None:
            return step
        assert self._task is not None
        success = step.success if step.success is not None or not step.terminated else step.reward > 0
        return dataclasses.replace(step, reward=float(self._shaping(self._task, action, step)), success=success)


def interleave(shares: Mapping[str, float], count: int) -> list[str]:
    """Return `count` names; next is always the one furthest behind its share, of equals the first."""
    total = sum(shares.values())
    counts = dict.fromkeys(shares, 0)
    order = []
    for position in range(1, count + 1):
        name = max(shares, key=lambda name: shares[name] / total * position - counts[name])
        counts[name] += 1
        order.append(name)
    return order


def _maker(name: str, format: str, options: Mapping[str, Any] | None, reward: str | None) -> Callable[[], Environment]:
    if options is not None and not isinstance(options, Mapping):
        raise UserError(f"mix: the options of '{name}' must be a mapping, got {options!r}.")
    chosen = dict(options or {})
    if reward is not None and "reward" not in chosen and registry.takes(name, "reward"):
        chosen["reward"] = reward
    return registry.environment_maker(name, format, chosen)[0]
