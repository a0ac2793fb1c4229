"""The environment of tool agents: a question, tools, and a reward."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

from practicum import registry
from practicum.data.task_file import read_task_file
from practicum.environment import TRAJECTORY, Action, Environment, Message, Observation, Step, ToolCall
from practicum.errors import UserError, did_you_mean
from practicum.registry import make_format
from practicum.rewards.base import JUDGE, Reward, Score
from practicum.task import Task
from practicum.tools.base import Tool, ToolResult, timed_call
from practicum.tools.pool import Lease, StatePool
from practicum.utils.concurrency import agent_time, half_used, in_thread_with_slots, judge_seconds

MAX_CALLS_PER_REPLY = 16
TOO_MANY_CALLS = f"Error: not run, a reply may have at most {MAX_CALLS_PER_REPLY} calls"
OUT_OF_TIME = "Error: not run, the calls of this reply have used up their time"
"""Calls get half of the time of a step, so that no reply can use up the time in which it is judged."""


class ToolEnvironment(Environment):
    """Tasks with a `question`; the agent calls tools until it answers, then the reward scores it.

    Tasks come from JSON files (`files`: split to path) or, in a subclass, from a generator. A `verifier` is a second
    reward whose score is recorded and not trained on. States of stateful tools are leased at the first call and
    released in `close`.
    """

    name = "tools"
    system: ClassVar[str] = "Answer the question."
    default_tools: ClassVar[tuple[str, ...]] = ()
    default_reward: ClassVar[str] = ""

    def __init__(
        self,
        tools: Sequence[str] | None = None,
        reward: str | None = None,
        format: str = "hf",
        files: dict[str, Any] | None = None,
        system: str | None = None,
        verifier: str | None = None,
    ) -> None:
        if not (reward or self.default_reward):
            raise UserError(f"Environment '{self.name}' needs a reward (agent.reward_name, or --reward).")
        self.tools: dict[str, Tool] = {}
        for tool in (
            tool for name in (self.default_tools if tools is None else tools) for tool in registry.tools(name)
        ):
            if tool.name in self.tools:
                raise UserError(f"Two of the tools are named '{tool.name}'; leave one out.")
            self.tools[tool.name] = tool
        self.reward = registry.reward(reward or self.default_reward)
        self.verifier = registry.reward(verifier) if verifier else None
        self.format = make_format(format)
        self.files = dict(files or {})
        self.prompt = self.system if system is None else system
        self._task: Task | None = None
        self._seed = 0
        self._calls: list[ToolCall] = []
        self._leases: dict[StatePool, Lease] = {}

    def model_names(self) -> tuple[str, ...]:
        rewards = (self.reward,) if self.verifier is None else (self.reward, self.verifier)
        return (JUDGE,) if any(JUDGE in reward.parameters for reward in rewards) else ()

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        if split in self.files:
            return read_task_file(self.files[split], self.name, split)[:count]
        return self.generate(split, count, seed)

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Generate tasks; a subclass with a generator overrides this."""
        raise UserError(f"Environment '{self.name}' has no '{split}' tasks; give it a JSON file for that split.")

    async def reset(self, task: Task, seed: int) -> Observation:
        self._release()
        self._task, self._seed, self._calls = task, seed, []
        schemas = tuple(tool.schema for tool in self.tools.values())
        if "messages" in task.fields:
            messages_of_task = tuple(Message(m["role"], m["content"]) for m in task.fields["messages"])
            return Observation(messages_of_task, schemas)
        guide = self.format.instructions(schemas)
        system = "\n".join(part for part in (self.prompt, guide) if part)
        messages = (Message("system", system),) if system else ()
        return Observation((*messages, Message("user", task.fields["question"])), schemas)

    async def step(self, action: Action) -> Step:
        if not action.calls:
            return await self._finish(action.content)
        messages: list[Message] = []
        tool_infos: list[dict[str, Any]] = []
        for index, call in enumerate(action.calls):
            result = await self._run(call) if index < MAX_CALLS_PER_REPLY else ToolResult(TOO_MANY_CALLS, failed=True)
            if result.info:
                tool_infos.append({"name": call.name, **result.info})
            if not result.failed:
                self._calls.append(call)
            if result.finish and not result.failed:
                step = await self._finish(result.text)
                break
            messages.append(self.format.observe(call.name, result.text))
        else:
            step = Step(Observation(tuple(messages)))
        return replace(step, info={**step.info, "tools": tool_infos}) if tool_infos else step

    async def truncate(self) -> Step:
        return await self._finish(None)

    async def close(self) -> None:
        self._release()

    async def _run(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if tool is None:
            tool = next((self.tools[name] for name in registry.other_names(call.name) if name in self.tools), None)
        if tool is None:
            return ToolResult(
                f"Error: there is no tool '{call.name}'.{did_you_mean(call.name, self.tools)}", failed=True
            )
        if half_used() and not tool.finish:
            return ToolResult(OUT_OF_TIME, failed=True)
        if tool.pool is None or tool.check(call.arguments) is not None:
            return await timed_call(call.name, tool.call(call.arguments, seconds=self.tool_seconds))
        await self._lease_states()
        running = tool.call(call.arguments, self._leases[tool.pool], self.tool_seconds)
        return await timed_call(call.name, running)

    async def _finish(self, answer: str | None) -> Step:
        assert self._task is not None, "reset comes before step"
        rewards = (self.reward,) if self.verifier is None else (self.reward, self.verifier)
        reward_parameters = {name for reward in rewards for name in reward.parameters}
        scored_tools = [
            tool for tool in self.tools.values() if tool.pool is not None and tool.name in reward_parameters
        ]
        if scored_tools:
            await self._lease_states()
        async with contextlib.AsyncExitStack() as stack:
            state_of_pool = {
                pool: await stack.enter_async_context(self._leases[pool].use()) for pool in self._pools(scored_tools)
            }
            states = {tool.name: state_of_pool[tool.pool] for tool in scored_tools if tool.pool is not None}
            scores = [await self._score(reward.with_arguments(states), answer) for reward in rewards]
        components = dict(scores[0].components)
        if self.verifier is not None:
            components["verifier"] = scores[1].reward
        return Step(
            reward=scores[0].reward,
            components=components,
            terminated=answer is not None,
            truncated=answer is None,
            success=scores[0].success,
        )

    async def _score(self, reward: Reward, answer: str | None) -> Score:
        """Score the episode. A reward that takes `judge_seconds` runs the agent's program: that is the agent's time."""
        assert self._task is not None, "reset comes before step"
        arguments = (self._task, answer, tuple(self._calls))
        if TRAJECTORY in reward.parameters:
            reward = reward.with_arguments({TRAJECTORY: self.trajectory_so_far()})
        if reward.is_async:
            return await reward.with_arguments(self.models).score_async(*arguments)
        if "judge_seconds" not in reward.parameters:
            return await in_thread_with_slots(reward.score, *arguments)
        limited = reward.with_arguments({"judge_seconds": judge_seconds(math.inf)})
        with agent_time():
            return await in_thread_with_slots(limited.score, *arguments)

    # -- states -----------------------------------------------------------------------------

    @staticmethod
    def _pools(tools: Sequence[Tool]) -> list[StatePool]:
        """Return the pools of tools in the order in which they are acquired, so that no two episodes deadlock."""
        return sorted({tool.pool for tool in tools if tool.pool is not None}, key=lambda pool: pool.number)

    async def _lease_states(self) -> None:
        """Lease all states of this episode."""
        assert self._task is not None, "reset comes before step"
        fields = {**self._task.fields, "task": self._task, "seed": self._seed}
        for pool in self._pools(list(self.tools.values())):
            if pool not in self._leases:
                self._leases[pool] = await pool.lease(fields)

    def _release(self) -> None:
        """Release all states without waiting, so that an episode cancelled while it closes releases them too."""
        while self._leases:
            self._leases.popitem()[1].release()
