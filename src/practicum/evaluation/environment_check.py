"""Checks an environment: expert and null policy, determinism here and in another process, splits, speed, memory."""

from __future__ import annotations

import asyncio
import hashlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.data.store import encode_episode
from practicum.environment import SPLITS, Environment
from practicum.environments.worker import close_pools
from practicum.errors import UserError
from practicum.evaluation.stats.intervals import jeffreys
from practicum.rollout import run_episodes
from practicum.rollout_setup import RolloutSetup, make_rollout_setup
from practicum.trajectory import Outcome, Trajectory, plan_attempts
from practicum.utils.memory import release_free_memory, tree_resident_megabytes

MIN_EXPERT_SHARE = 0.95
"""Share of its ceiling that the expert must reach; the interval of its success rate decides."""
EXPERT_INTERVAL_LEVEL = 0.98
"""Confidence level of that interval."""
NUM_REPLAYED_TASKS = 10
"""Number of tasks that another process plays too."""
MAX_OPEN_EPISODES = 64
"""Number of episodes that are open at once, if there are as many tasks."""
MAX_EXPERT_TURNS, MAX_NULL_TURNS = 200, 5


@dataclass(frozen=True)
class CheckResult:
    """Result of checking one environment."""

    tasks: int
    oracle: float
    ceiling: float
    null: float
    floor: float
    repeats: bool
    """The same seed gave the same episode twice in this process."""
    replays: bool
    """The same seed gave the same episode in another process."""
    disjoint: bool
    speed: float
    """Steps per second of all episodes together, with the expert and rendering."""
    num_open: int
    num_wanted: int
    megabytes: float
    """Memory of the open episodes and their processes."""

    @property
    def faults(self) -> list[str]:
        """Return a sentence for each fault; an environment without any is sound."""
        expert_interval = jeffreys(round(self.oracle * self.tasks), self.tasks, EXPERT_INTERVAL_LEVEL)
        checks = (
            (expert_interval.high < MIN_EXPERT_SHARE * self.ceiling, "the expert fails"),
            (self.null > self.floor + 1e-9, "the null policy is above its floor"),
            (not self.repeats, "the same seed gave another episode"),
            (not self.replays, "another process gave another episode"),
            (not self.disjoint, "splits overlap"),
            (
                self.num_open < self.num_wanted,
                f"only {self.num_open} of {self.num_wanted} episodes could be open at once",
            ),
        )
        return [text for failed, text in checks if failed]


class ReplayProcess:
    """Another process that plays the same tasks of several environments, one after the other, at the same time."""

    def __init__(self, names: Sequence[str], count: int, options: Mapping[str, Any]) -> None:
        flags = [word for key, value in options.items() for word in ("--env-arg", f"{key}={json.dumps(value)}")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "practicum.cli", "envs", "digest", ",".join(names), "--tasks", str(count), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._digests: dict[str, str] = {}

    def digest(self, name: str) -> str | None:
        """Return the digest of the other process's episodes; None if it could not play the environment."""
        assert self._process.stdout is not None
        while name not in self._digests:
            line = self._process.stdout.readline()
            if not line:
                return None
            if line.startswith("digest "):
                environment, _, value = line.removeprefix("digest ").rstrip().rpartition(" ")
                self._digests[environment] = value
        return self._digests[name]

    def megabytes_without_replay(self) -> float:
        """Return the memory of this process tree without the replay process and its children."""
        return tree_resident_megabytes() - tree_resident_megabytes(self._process.pid)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def check_environments(
    names: Sequence[str], count: int, options: Mapping[str, Any]
) -> Iterator[tuple[str, CheckResult | UserError]]:
    """Check environments one after the other on `count` tasks; an error instead of a result if one cannot run."""
    replay = ReplayProcess(names, count, options)
    try:
        for name in names:
            try:
                yield name, asyncio.run(check(name, count, options, replay))
            except UserError as error:
                yield name, error
    finally:
        replay.close()


async def check(name: str, count: int, options: Mapping[str, Any], replay: ReplayProcess) -> CheckResult:
    """Check one environment with `count` tasks."""
    release_free_memory()
    megabytes_before = replay.megabytes_without_replay()
    setup = make_rollout_setup(name, "expert", max_turns=MAX_EXPERT_TURNS, options=options)
    try:
        num_open, num_wanted = await hold_open(setup, min(count, MAX_OPEN_EPISODES))
        megabytes = max(0.0, replay.megabytes_without_replay() - megabytes_before)
        started_at = time.perf_counter()
        episodes = await play(setup, count)
        speed = sum(len(episode.turns) for episode in episodes) / (time.perf_counter() - started_at)
        repeated = await play(setup, count)
        null_episodes = await play(make_rollout_setup(name, "null", max_turns=MAX_NULL_TURNS, options=options), count)
        splits = [{task.hash for task in setup.environment.tasks(split, count)} for split in SPLITS]
        return CheckResult(
            tasks=len(episodes),
            oracle=success_rate(episodes),
            ceiling=setup.environment.ceiling,
            null=success_rate(null_episodes),
            floor=setup.environment.floor,
            repeats=episodes == repeated,
            replays=replay.digest(name) == episodes_digest(episodes[:NUM_REPLAYED_TASKS]),
            disjoint=sum(map(len, splits)) == len(set().union(*splits)),
            speed=speed,
            num_open=num_open,
            num_wanted=num_wanted,
            megabytes=megabytes,
        )
    finally:
        close_pools()


async def hold_open(setup: RolloutSetup, count: int) -> tuple[int, int]:
    """Open `count` episodes at once and take a step in each; return how many worked and how many there were."""
    tasks = setup.environment.tasks("train", count)
    environments: list[Environment] = []

    async def reset_and_step(environment: Environment, index: int) -> bool:
        observation = await environment.reset(tasks[index], index)
        await environment.ready_expert(tasks[index])
        await environment.step(environment.expert(tasks[index])(observation))
        return True

    try:
        for _ in tasks:
            environments.append(setup.make_environment())
        results = await asyncio.gather(
            *(reset_and_step(environment, index) for index, environment in enumerate(environments)),
            return_exceptions=True,
        )
        user_error = next((result for result in results if isinstance(result, UserError)), None)
        if user_error is not None:
            raise user_error
        return sum(result is True for result in results), len(tasks)
    finally:
        for environment in environments:
            await environment.close()


async def digest(name: str, count: int, options: Mapping[str, Any]) -> str:
    """Return the digest of the expert's episodes of an environment's first tasks, played by this process."""
    try:
        setup = make_rollout_setup(name, "expert", max_turns=MAX_EXPERT_TURNS, options=options)
        return episodes_digest(await play(setup, min(count, NUM_REPLAYED_TASKS)))
    finally:
        close_pools()


async def play(setup: RolloutSetup, count: int) -> list[Trajectory]:
    """Play one episode of each of the first `count` training tasks."""
    planned = plan_attempts(setup.environment.tasks("train", count), 1, 0)
    return await run_episodes(planned, setup.make_environment, setup.agent, setup.engine, setup.renderer)


def episodes_digest(episodes: Sequence[Trajectory]) -> str:
    """Return a hash of everything that is recorded of the episodes."""
    return hashlib.sha256(b"".join(map(encode_episode, episodes))).hexdigest()[:16]


def success_rate(episodes: Sequence[Trajectory]) -> float:
    return sum(episode.outcome is Outcome.SUCCESS for episode in episodes) / len(episodes)
