"""The console view of one episode."""

from __future__ import annotations

import asyncio
import io

from practicum.agent import Agent
from practicum.chat.console import ConsoleEpisodeWatcher
from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environments.math import MathEnvironment
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.rollout import run_episodes
from practicum.trajectory import plan_attempts
from practicum.utils.terminal import printable
from tests.test_rollout import CALL, TASK, Says


def test_the_console_prints_an_episode_turn_by_turn(renderer: Renderer) -> None:
    stream = io.StringIO()
    watcher = ConsoleEpisodeWatcher(renderer, stream=stream)
    engine = Says(renderer, CALL, "not it \x1b[2J")
    asyncio.run(run_episodes(plan_attempts([TASK], 1, 0), MathEnvironment, Agent(), engine, renderer, watcher=watcher))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("[system]")
    assert lines[1].startswith("[user]")
    assert lines[2] == f"[agent] {CALL}  ‖ end"
    assert lines[3] == "[tool] 34"
    assert "\x1b" not in stream.getvalue()  # what a model wrote does not drive the terminal
    assert lines[-1].startswith("[failure] reward 0")


def test_the_console_prints_tokens_of_the_first_episode_as_they_are_sampled() -> None:
    loaded = loader.load_tiny(0)
    renderer = Renderer(loaded.tokenizer)
    written: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            written.append(text)
            return super().write(text)

    stream = Stream()

    async def run() -> list[str]:
        engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=8)
        agent = Agent(max_turns=1, sampling=Sampling(max_tokens=12))
        planned = plan_attempts(MathEnvironment().tasks("train", 3), 1, 0)
        episodes = await run_episodes(
            planned, MathEnvironment, agent, engine, renderer, watcher=ConsoleEpisodeWatcher(renderer, stream=stream)
        )
        await engine.close()
        return [episode.turns[0].reply for episode in episodes]

    replies = asyncio.run(run())
    assert printable(replies[0]) in stream.getvalue()
    assert stream.getvalue().count("[agent]") == 1
    assert len(written) > 8  # piece by piece
