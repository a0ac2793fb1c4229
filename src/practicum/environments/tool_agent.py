"""A question, some tools, a reward: the environment behind every tool agent."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from practicum import registry
from practicum.environment import Action, Environment, Message, Observation, Step, ToolCall
from practicum.errors import UserError, nearest
from practicum.formats import make_format
from practicum.task import Task, read_task_file
from practicum.threads import in_thread
from practicum.tools.base import ToolResult


class ToolEnvironment(Environment):
    """Tasks with a `question`; the agent calls tools until it answers, then the reward scores it.

    Tasks come from JSON files (`files`: split to path) or, in a subclass, from a generator. A
    `verifier` is a second reward whose score is recorded beside the first and never trained on.
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
        files: dict[str, str] | None = None,
        system: str | None = None,
        verifier: str | None = None,
    ) -> None:
        if not (reward or self.default_reward):
            raise UserError(f"Environment '{self.name}' needs a reward (agent.reward_name, or --reward).")
        self.tools = {tool.name: tool for tool in map(registry.tool, self.default_tools if tools is None else tools)}
        self.reward = registry.reward(reward or self.default_reward)
        self.verifier = registry.reward(verifier) if verifier else None
        self.format = make_format(format)
        self.files = dict(files or {})
        self.prompt = self.system if system is None else system
        self._task: Task | None = None
        self._calls: list[ToolCall] = []

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        if split in self.files:
            return read_task_file(self.files[split], self.name, split)[:count]
        return self.generate(split, count, seed)

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        """Tasks made from nothing; a subclass that can, does."""
        raise UserError(f"Environment '{self.name}' has no '{split}' tasks; give it a JSON file for that split.")

    async def reset(self, task: Task, seed: int) -> Observation:
        self._task, self._calls = task, []
        schemas = tuple(tool.schema for tool in self.tools.values())
        if "messages" in task.fields:
            given = tuple(Message(m["role"], m["content"]) for m in task.fields["messages"])
            return Observation(given, schemas)
        guide = self.format.instructions(schemas)
        system = "\n".join(part for part in (self.prompt, guide) if part)
        messages = (Message("system", system),) if system else ()
        return Observation((*messages, Message("user", task.fields["question"])), schemas)

    async def step(self, action: Action) -> Step:
        if not action.calls:
            return await self._finish(action.content)
        messages = []
        for call in action.calls:
            result = await self._run(call)
            if not result.failed:
                self._calls.append(call)
            if result.finish and not result.failed:
                return await self._finish(result.text)
            messages.append(self.format.observe(call.name, result.text))
        return Step(Observation(tuple(messages)))

    async def truncate(self) -> Step:
        return await self._finish(None)

    async def _run(self, call: ToolCall) -> ToolResult:
        tool = self.tools.get(call.name)
        if tool is None:
            return ToolResult(f"Error: there is no tool '{call.name}'.{nearest(call.name, self.tools)}", failed=True)
        return await tool.call(call.arguments)

    async def _finish(self, answer: str | None) -> Step:
        assert self._task is not None, "reset comes before step"
        score = await in_thread(self.reward.score, self._task, answer, tuple(self._calls))
        parts = dict(score.parts)
        if self.verifier is not None:
            parts["verifier"] = (await in_thread(self.verifier.score, self._task, answer, tuple(self._calls))).reward
        return Step(
            reward=score.reward,
            parts=parts,
            terminated=answer is not None,
            truncated=answer is None,
            success=score.success,
        )
