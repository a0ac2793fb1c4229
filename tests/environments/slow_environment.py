"""An environment that is slow at one chosen point, and counts the episodes that run at the same time."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

from practicum.environment import Action, Message, Observation, ScriptedPolicy, Step, ToolCall
from practicum.environments.tool_agent import ToolEnvironment
from practicum.resources import Resource
from practicum.rewards.base import reward
from practicum.task import Task
from practicum.tools.base import tool

running: set[int] = set()
"""Identities of the environments of running episodes."""


@tool
async def look(place: str) -> str:
    """Look somewhere.

    Args:
        place: where
    """
    await asyncio.sleep(1 if place == "tool" else 0.01)
    return "nothing"


@reward
def one(answer_given: str) -> float:
    return 1.0


class Door(Resource):
    def __init__(self, seconds: float) -> None:
        self.seconds = seconds

    async def open(self) -> None:
        await asyncio.sleep(self.seconds)


class Slow(ToolEnvironment):
    """`slow`: what takes a second; `log`: a file for the greatest number of episodes at the same time."""

    name = "slow"
    formats = ("hf",)

    def __init__(self, slow: str = "", log: str | None = None, format: str = "hf") -> None:
        path = Path(__file__)
        super().__init__([f"{path}:look"], f"{path}:one", format)
        self.slow, self.log = slow, log

    def model_names(self) -> tuple[str, ...]:
        return ("judge",) if self.slow == "judge" else ()

    def make_resources(self) -> Mapping[str, Resource]:
        return {"door": Door(1.0)} if self.slow == "open" else {}

    async def _wait(self, point: str) -> None:
        await asyncio.sleep(1 if self.slow == point else 0.01)

    async def reset(self, task: Task, seed: int) -> Observation:
        running.add(id(self))
        if self.log is not None:
            with Path(self.log).open("a") as file:
                file.write(f"{len(running)}\n")
        await self._wait("reset")
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        await self._wait("step")
        if self.slow == "judge":
            await self.models["judge"].reply([Message("user", "Right?")])
        if self.slow == "tool":
            await self._run(ToolCall("look", {"place": "tool"}))
        return Step(reward=1.0, terminated=True)

    async def truncate(self) -> Step:
        return await self.step(Action())

    async def close(self) -> None:
        running.discard(id(self))
        await super().close()

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        return [Task(f"{split} {seed} {n}", "slow", split, {"question": str(n)}) for n in range(count)]

    def expert(self, task: Task) -> ScriptedPolicy:
        return lambda observation: Action(content="yes")
