"""Agent: episodes per second of several turns with a real tool, and how much of the tools' time decoding hides.

The engine decodes every reply, token by token, with log-probs, and as many tokens as the expert's reply has; what the
environment then gets is the expert's reply. So the figures need no trained weights, every episode calls its tools,
and every tool call is a real one: the calculator, or a Python program in a sandbox of its own. The same episodes are
played once more with the tools' answers read from memory: the difference in time is what the tools cost.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from gpu_legs.common import Row, Size, load_real, synchronise
from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Environment, Observation, ScriptedPolicy, Step, ToolCall
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models.decoder import Decoder
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.sandbox import base as sandbox
from practicum.task import Task
from practicum.trajectory import plan_attempts
from practicum.utils.garbage_collection import freeze_gc


@dataclass
class Ledger:
    """The tools' results, by task and turn, and how long they took."""

    answers: dict[tuple[str, int], Step] = field(default_factory=dict)
    seconds: float = 0.0
    calls: int = 0


class Watched(MathEnvironment):
    """Word problems with the tool `tool`; `replay` returns recorded results instead."""

    def __init__(self, tool: str, ledger: Ledger, replay: bool) -> None:
        super().__init__(tools=[tool])
        self.tool, self.ledger, self.replay = tool, ledger, replay
        self.turn, self.task_id = 0, ""

    async def reset(self, task: Task, seed: int) -> Observation:
        self.turn, self.task_id = 0, task.id
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        key = (self.task_id, self.turn)
        self.turn += 1
        if self.replay and key in self.ledger.answers:
            return self.ledger.answers[key]
        started = time.perf_counter()
        step = await super().step(action)
        if action.calls:
            self.ledger.seconds += time.perf_counter() - started
            self.ledger.calls += 1
        self.ledger.answers[key] = step
        return step

    def expert(self, task: Task) -> ScriptedPolicy:
        plain = super().expert(task)

        def act(observation: Observation) -> Action:
            action = plain(observation)
            if self.tool == "calculator" or not action.calls:
                return action
            code = f"print(round({action.calls[0].arguments['expression']}))"
            return replace(action, calls=(ToolCall(self.tool, {"code": code}),))

        return act


class Following:
    """An engine that decodes like the policy and returns the expert's reply."""

    name = "following"

    def __init__(self, engine: LocalEngine, expert: ScriptedEngine) -> None:
        self.engine, self.expert = engine, expert
        self.tokens = 0

    async def generate(self, request: Request) -> Generation:
        reply = await self.expert.generate(request)
        sampling = replace(request.sampling, max_tokens=len(reply.ids))
        decoded = await self.engine.generate(replace(request, sampling=sampling))
        self.tokens += len(decoded.ids)
        return reply

    def end_session(self, session: str) -> None:
        self.engine.end_session(session)
        self.expert.end_session(session)

    async def close(self) -> None:
        await self.engine.close()


def make_engine(size: Size, **options: Any) -> tuple[LocalEngine, Renderer, str]:
    """An engine whose replies end at their token limit, and the name of its model."""
    loaded, what = load_real(size)
    template = "chatml" if what != "tiny" else None
    renderer, without_end = Renderer(loaded.tokenizer, template), Renderer(loaded.tokenizer, template)
    without_end.end_ids = ()  # for the engine only: the expert's replies are read up to their end token
    engine = LocalEngine(Decoder(loaded.model), without_end, max_batch=min(256, size.episodes), **options)
    return engine, renderer, what


async def play(size: Size, engine: LocalEngine, renderer: Renderer, tool: str, replay: bool, ledger: Ledger) -> Row:
    def make() -> Environment:
        return Watched(tool, ledger, replay)

    environment = make()
    agent = Agent(max_turns=6, sampling=Sampling(1.0, max_tokens=64))
    tasks: Sequence[Task] = environment.tasks("train", size.episodes)
    following = Following(engine, ScriptedEngine.of("expert", environment, make_format(agent.format), renderer))
    engine.weights_changed(engine.stats.generated + 1)
    freeze_gc(following)  # once per engine, and a training has one engine for all its steps
    synchronise(size)
    started = time.perf_counter()
    episodes = await run_episodes(
        plan_attempts(tasks, 1, 0), make, agent, following, renderer, concurrency=2 * engine.max_batch
    )
    seconds = time.perf_counter() - started
    solved = sum(episode.reward for episode in episodes)
    if solved < len(episodes):
        wrong = next(episode for episode in episodes if episode.reward < 1)
        raise SystemExit(f"the expert solved {solved:.0f} of {len(episodes)} ({wrong.outcome}: {wrong.error})")
    return {
        "tool": tool, "answers": "from memory" if replay else "real", "episodes": len(episodes),
        "episodes/s": len(episodes) / seconds, "turns": sum(len(episode.turns) for episode in episodes),
        "decoded tokens/s": following.tokens / seconds, "seconds": seconds, "tool calls": ledger.calls,
        "tool seconds, summed": ledger.seconds,
    }  # fmt: skip


def leg(size: Size) -> list[Row]:
    engine, renderer, what = make_engine(size)
    rows: list[Row] = []

    def measure(tool: str, replay: bool, ledger: Ledger) -> Row:
        return asyncio.run(play(size, engine, renderer, tool, replay, ledger))

    for tool in ("calculator", "python_executor"):
        if tool == "python_executor":
            try:
                sandbox.settings = sandbox.Settings()
                print(f"sandbox: {sandbox.current().describe()}", flush=True)
            except UserError as error:
                print(f"no sandbox here, so no Python tool: {error}", flush=True)
                continue
        ledger = Ledger()
        measure(tool, False, ledger)  # warms up, and fills the ledger
        remembered = measure(tool, True, ledger)
        real = measure(tool, False, fresh := Ledger())
        spent = fresh.seconds / max(1, sandbox.current().concurrency if tool == "python_executor" else 1)
        real["seconds without tools"] = remembered["seconds"]
        rows += [real, remembered]
        print(
            f"{tool} ({what}): {real['episodes/s']:,.0f} episodes/s of {real['turns'] / real['episodes']:.1f} turns, "
            f"{real['decoded tokens/s']:,.0f} decoded tokens/s; {fresh.calls} calls took {fresh.seconds:.2f} s in all "
            f"(waits for a slot included; at least {spent:.2f} s by the clock) and made the run "
            f"{real['seconds'] - remembered['seconds']:+.2f} s longer than {remembered['seconds']:.2f} s",
            flush=True,
        )
    asyncio.run(engine.close())
    return rows
