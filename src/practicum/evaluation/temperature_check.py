"""Does temperature change what a policy does? One task, the same seeds, two temperatures.

A collection at a high temperature that repeats the greedy one is worth nothing for preference or practice, and the
cause (a server that ignores the setting, a policy that is certain of everything) shows in no other number.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from practicum.collector import CollectSettings, first_attempt
from practicum.data import store
from practicum.data.attempts import Attempt
from practicum.rollout import run_episode
from practicum.rollout_settings import check_temperature
from practicum.rollout_setup import RolloutSetup
from practicum.trajectory import Outcome, Trajectory


class Finding(IntEnum):
    """What was found; the number is the command's exit code."""

    DIVERGED = 0
    RUN_FAILED = 1
    SAME = 2
    TEMPERATURE_NOT_RECORDED = 3


@dataclass(frozen=True)
class Verdict:
    """A finding and one sentence about it."""

    finding: Finding
    sentence: str


@dataclass(frozen=True)
class ExplorationCheck:
    """The verdict on a policy, and the folder with the two episodes."""

    verdict: Verdict
    folder: Path


def verify_exploration(
    settings: CollectSettings, task_id: str, temperatures: tuple[float, float] = (0.0, 0.7), num_steps: int = 10
) -> ExplorationCheck:
    """Run one task at two temperatures, write both episodes, and compare their first `num_steps` replies."""
    for flag, temperature in zip(("--temperature-a", "--temperature-b"), temperatures, strict=True):
        check_temperature(flag, temperature)
    return asyncio.run(_verify(settings, task_id, temperatures, num_steps))


async def _verify(
    settings: CollectSettings, task_id: str, temperatures: tuple[float, float], num_steps: int
) -> ExplorationCheck:
    attempt = first_attempt(settings, task_id)
    setup = settings.make_setup(temperatures[0])
    try:
        played = await play(setup, attempt, temperatures, settings.policy)
    finally:
        await setup.engine.close()
    name = f"verify-{settings.environment}-{settings.policy.strip('/.~')}-seed{settings.task_seed}"
    folder = settings.folder(name)
    episodes = [store.read_episode(store.write_episode(folder, episode)) for episode in played]
    return ExplorationCheck(compare(episodes, temperatures, num_steps), folder)


def compare(episodes: Sequence[Trajectory], temperatures: Sequence[float], window: int) -> Verdict:
    """Two episodes' replies, step by step within a window. That one of them ended there first is a difference too."""
    for episode, temperature in zip(episodes, temperatures, strict=True):
        if not episode.scored:
            why = episode.error or "no reason given"
            return Verdict(
                Finding.RUN_FAILED, f"at temperature {temperature:g} the run ended in {episode.outcome}: {why}"
            )
    for episode, temperature in zip(episodes, temperatures, strict=True):
        recorded = episode.provenance.get("temperature")
        if recorded != temperature:
            told = "none" if recorded is None else f"{recorded}"
            sentence = f"temperature {temperature:g} was asked for, but the record says {told}"
            return Verdict(Finding.TEMPERATURE_NOT_RECORDED, sentence)
    first, second = ([turn.reply for turn in episode.turns[:window]] for episode in episodes)
    for number, (one, other) in enumerate(zip(first, second, strict=False), 1):
        if one != other:
            return Verdict(Finding.DIVERGED, f"the replies differ from step {number} on")
    if len(first) != len(second):
        ended = min(len(first), len(second))
        return Verdict(Finding.DIVERGED, f"one run ended after step {ended}, the other went on")
    steps = "the only step" if len(first) == 1 else f"all {len(first)} steps compared"
    return Verdict(
        Finding.SAME, f"{steps} had the same reply at temperatures {temperatures[0]:g} and {temperatures[1]:g}"
    )


async def play(bench: RolloutSetup, attempt: Attempt, temperatures: Sequence[float], policy: str) -> list[Trajectory]:
    """The attempt at each temperature, numbered in that order; the seeds stay the same."""
    episodes = []
    for number, temperature in enumerate(temperatures):
        agent = replace(bench.agent, sampling=replace(bench.agent.sampling, temperature=temperature))
        episode = await run_episode(
            replace(attempt, number=number),
            bench.make_environment,
            agent,
            bench.engine,
            bench.renderer,
            {**bench.provenance, "policy": policy},
        )
        if episode.outcome is Outcome.CANCELLED:
            raise asyncio.CancelledError
        episodes.append(episode)
    return episodes
