"""The engine without a model: replies of an expert, a random, a null or another scripted policy."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from practicum.chat.formats.base import Format
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request
from practicum.environment import Environment, ScriptedPolicy
from practicum.task import Task
from practicum.trajectory import ActionSource, StopReason

MakePolicy = Callable[[Task, int], ScriptedPolicy]
Ready = Callable[[Task], Awaitable[None]]


class ScriptedEngine:
    """Takes each action from a scripted policy and writes it in the agent's reply format.

    The ids are those that the tokenizer gives for that text, closed by the end token; there are no log-probs, because
    nothing was sampled.
    """

    name = "scripted"

    def __init__(
        self,
        make_policy: MakePolicy,
        source: ActionSource,
        format: Format,
        renderer: Renderer,
        ready: Ready | None = None,
    ) -> None:
        """`ready` is awaited before a task's policy is made, so that `make_policy` need not block other episodes."""
        self.make_policy = make_policy
        self.ready = ready
        self.source = source
        self.format = format
        self.renderer = renderer
        self._policies: dict[str, ScriptedPolicy] = {}

    @classmethod
    def of(cls, policy: str, environment: Environment, format: Format, renderer: Renderer) -> ScriptedEngine:
        """Return the engine of the environment's `expert`, `random`, `null` or further scripted policy."""
        makers: Mapping[str, MakePolicy] = {
            "expert": lambda task, seed: environment.expert(task),
            "random": environment.random,
            "null": lambda task, seed: environment.null(task),
        }
        if policy not in makers:
            return cls(partial(environment.scripted, policy), ActionSource.SCRIPTED, format, renderer)
        ready = environment.ready_expert if policy == "expert" else None
        return cls(makers[policy], ActionSource(policy), format, renderer, ready)

    async def generate(self, request: Request) -> Generation:
        policy = self._policies.get(request.session)
        if policy is None:
            if self.ready is not None:
                await self.ready(request.task)
            policy = self._policies[request.session] = self.make_policy(request.task, request.sampling.seed)
        text = self.format.write(policy(request.observation), bool(request.tools))
        ids = self.renderer.encode_reply(text)
        return Generation(ids, None, StopReason.END, 0, self.source)

    def end_session(self, session: str) -> None:
        self._policies.pop(session, None)

    async def close(self) -> None:
        self._policies.clear()
