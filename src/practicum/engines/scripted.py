"""Engines without a model: replies of an expert, a random or null policy, or of recorded episodes."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

from practicum.chat.formats.base import Format
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request
from practicum.environment import Environment, ScriptedPolicy
from practicum.errors import EngineError
from practicum.task import Task
from practicum.trajectory import ActionSource, Origin, StopReason, Trajectory

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
    def of(cls, source: str, environment: Environment, format: Format, renderer: Renderer) -> ScriptedEngine:
        """Return the engine of the environment's `expert`, `random` or `null` policy."""
        makers: Mapping[str, MakePolicy] = {
            "expert": lambda task, seed: environment.expert(task),
            "random": environment.random,
            "null": lambda task, seed: environment.null(task),
        }
        ready = environment.ready_expert if source == "expert" else None
        return cls(makers[source], ActionSource(source), format, renderer, ready)

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


class ReplayEngine:
    """Repeats the replies of recorded episodes id for id; the environment may answer differently."""

    name = "replay"

    def __init__(self, episodes: Mapping[str, Trajectory]) -> None:
        self.episodes = episodes
        self._next_turn: dict[str, int] = {}

    async def generate(self, request: Request) -> Generation:
        index = self._next_turn.get(request.session, 0)
        recorded = self.episodes.get(request.task.id)
        if recorded is None or index >= len(recorded.turns):
            raise EngineError(f"no recorded turn {index} for task '{request.task.id}'")
        self._next_turn[request.session] = index + 1
        turn = recorded.turns[index]
        span = next(span for span in turn.spans if span.origin is Origin.SAMPLED)
        return Generation(span.ids, span.logprobs, turn.stop_reason, turn.policy_version, ActionSource.REPLAY)

    def end_session(self, session: str) -> None:
        self._next_turn.pop(session, None)

    async def close(self) -> None:
        self._next_turn.clear()
