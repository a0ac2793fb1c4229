"""Check that the temperature changes a policy's replies: one task, the same seeds, two temperatures.

A collection at a high temperature that repeats the greedy one is useless for preference pairs and RL, and the cause (a
server that ignores the setting, a policy that is certain of everything) shows in no other metric.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from pathlib import Path

from practicum.collector import CollectSettings, first_attempt
from practicum.data import store
from practicum.rollout import run_episode
from practicum.rollout_settings import check_temperature
from practicum.rollout_setup import RolloutSetup
from practicum.trajectory import Attempt, Outcome, Trajectory


class ExplorationStatus(IntEnum):
    """Whether the replies differ; the number is the exit code of `collect --verify-exploration`."""

    DIVERGED = 0
    RUN_FAILED = 1
    SAME = 2
    TEMPERATURE_NOT_RECORDED = 3


@dataclass(frozen=True)
class RepliesComparison:
    """The status and one sentence about it."""

    status: ExplorationStatus
    sentence: str


@dataclass(frozen=True)
class ExplorationCheck:
    """How the replies at two temperatures compare, and the folder with the two episodes."""

    replies: RepliesComparison
    folder: Path


def verify_exploration(
    settings: CollectSettings, task_id: str, temperatures: tuple[float, float] = (0.0, 0.7), num_steps: int = 10
) -> ExplorationCheck:
    """Run one task at two temperatures, write both episodes, and compare_replies their first `num_steps` replies."""
    for flag, temperature in zip(("--temperature-a", "--temperature-b"), temperatures, strict=True):
        check_temperature(flag, temperature)
    return asyncio.run(_verify(settings, task_id, temperatures, num_steps))


async def _verify(
    settings: CollectSettings, task_id: str, temperatures: tuple[float, float], num_steps: int
) -> ExplorationCheck:
    attempt = first_attempt(settings, task_id)
    setup = settings.make_setup(temperatures[0])
    try:
        trajectories = await run_at_temperatures(setup, attempt, temperatures, settings.policy)
    finally:
        await setup.engine.close()
    name = f"verify-{settings.environment}-{settings.policy.strip('/.~')}-seed{settings.task_seed}"
    folder = settings.folder(name)
    episodes = [store.read_episode(store.write_episode(folder, episode)) for episode in trajectories]
    return ExplorationCheck(compare_replies(episodes, temperatures, num_steps), folder)


def compare_replies(episodes: Sequence[Trajectory], temperatures: Sequence[float], num_steps: int) -> RepliesComparison:
    """Compare the first `num_steps` replies of two episodes; that one episode ends earlier is a difference too."""
    for episode, temperature in zip(episodes, temperatures, strict=True):
        if not episode.scored:
            error = episode.error or "no reason given"
            return RepliesComparison(
                ExplorationStatus.RUN_FAILED,
                f"at temperature {temperature:g} the run ended in {episode.outcome}: {error}",
            )
    for episode, temperature in zip(episodes, temperatures, strict=True):
        recorded = episode.provenance.get("temperature")
        if recorded != temperature:
            value = "none" if recorded is None else f"{recorded}"
            sentence = f"temperature {temperature:g} was asked for, but the record says {value}"
            return RepliesComparison(ExplorationStatus.TEMPERATURE_NOT_RECORDED, sentence)
    first, second = ([turn.reply for turn in episode.turns[:num_steps]] for episode in episodes)
    for step, (first_reply, second_reply) in enumerate(zip(first, second, strict=False), 1):
        if first_reply != second_reply:
            return RepliesComparison(ExplorationStatus.DIVERGED, f"the replies differ from step {step} on")
    if len(first) != len(second):
        ended = min(len(first), len(second))
        return RepliesComparison(ExplorationStatus.DIVERGED, f"one run ended after step {ended}, the other continued")
    steps = "the only step" if len(first) == 1 else f"all {len(first)} steps compared"
    return RepliesComparison(
        ExplorationStatus.SAME,
        f"{steps} had the same reply at temperatures {temperatures[0]:g} and {temperatures[1]:g}",
    )


async def run_at_temperatures(
    setup: RolloutSetup, attempt: Attempt, temperatures: Sequence[float], policy: str
) -> list[Trajectory]:
    """Run the attempt at each temperature with the same seeds; the episodes are numbered in that order."""
    episodes = []
    for index, temperature in enumerate(temperatures):
        agent = replace(setup.agent, sampling=replace(setup.agent.sampling, temperature=temperature))
        episode = await run_episode(
            replace(attempt, number=index),
            setup.make_environment,
            agent,
            setup.engine,
            setup.renderer,
            {**setup.provenance, "policy": policy},
            resources=setup.resources,
        )
        if episode.outcome is Outcome.CANCELLED:
            raise asyncio.CancelledError
        episodes.append(episode)
    return episodes
