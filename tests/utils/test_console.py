"""The console view of one episode."""

from __future__ import annotations

import asyncio
import io

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environments.math import MathEnvironment
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.rollout import attempts, run_episodes
from practicum.utils.console import ConsoleEpisodeWatcher
from tests.test_rollout import CALL, TASK, Says


def test_an_episode_is_told_turn_by_turn(renderer: Renderer) -> None:
    stream = io.StringIO()
    watcher = ConsoleEpisodeWatcher(renderer, stream=stream)
    engine = Says(renderer, CALL, "not it \x1b[2J")
    asyncio.run(run_episodes(attempts([TASK], 1, 0), MathEnvironment, Agent(), engine, renderer, watcher=watcher))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("[system]")
    assert lines[1].startswith("[user]")
    assert lines[2] == f"[agent] {CALL}  ‖ end"
    assert lines[3] == "[tool] 34"
    assert "\x1b" not in stream.getvalue()  # what a model wrote does not drive the terminal
    assert lines[-1].startswith("[failure] reward 0")


def test_tokens_are_heard_as_they_are_sampled_and_only_of_the_first_episode() -> None:
    loaded = loader.load_tiny(0)
    renderer = Renderer(loaded.tokenizer)
    heard: list[str] = []

    class Stream(io.StringIO):
        def write(self, text: str) -> int:
            heard.append(text)
            return super().write(text)

    stream = Stream()

    async def run() -> list[str]:
        engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=8)
        agent = Agent(max_turns=1, sampling=Sampling(max_tokens=12))
        planned = attempts(MathEnvironment().tasks("train", 3), 1, 0)
        episodes = await run_episodes(
            planned, MathEnvironment, agent, engine, renderer, watcher=ConsoleEpisodeWatcher(renderer, stream=stream)
        )
        await engine.close()
        return [episode.turns[0].reply for episode in episodes]

    replies = asyncio.run(run())
    from practicum.utils.console import escape_control_chars

    assert escape_control_chars(replies[0]) in stream.getvalue()
    assert stream.getvalue().count("[agent]") == 1
    assert len(heard) > 8  # piece by piece
