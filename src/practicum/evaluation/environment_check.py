"""Is an environment sound? Its expert, a null policy, repetition here and in another process, splits, speed, room."""

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

from practicum.data.attempts import plan_attempts
from practicum.data.store import dump
from practicum.environment import SPLITS, Environment
from practicum.environments.worker import close_pools
from practicum.errors import UserError
from practicum.evaluation.stats.intervals import jeffreys
from practicum.rollout import run_episodes
from practicum.rollout_setup import RolloutSetup, make_rollout_setup
from practicum.trajectory import Outcome, Trajectory
from practicum.utils.memory import release_free_memory, tree_resident_megabytes

ENOUGH = 0.95
"""Share of its ceiling that the expert must be able to reach, as far as so many tasks can tell."""
SURE = 0.98
"""Level of the interval that says what they can tell."""
AGAIN = 10
"""Tasks that another process plays too."""
HELD = 64
"""Episodes that are held open at once, where there are as many tasks."""
EXPERT_TURNS, NULL_TURNS = 200, 5


@dataclass(frozen=True)
class Findings:
    """What a check found."""

    tasks: int
    oracle: float
    ceiling: float
    null: float
    floor: float
    repeats: bool
    """The same seed gave the same episode twice in this process."""
    elsewhere: bool
    """And in another one."""
    disjoint: bool
    speed: float
    """Steps a second of all episodes together, expert, rendering and all."""
    held: int
    wanted: int
    megabytes: float
    """Memory that the open episodes and their processes took."""

    @property
    def faults(self) -> list[str]:
        found = (
            (
                jeffreys(round(self.oracle * self.tasks), self.tasks, SURE).high < ENOUGH * self.ceiling,
                "the expert fails",
            ),
            (self.null > self.floor + 1e-9, "the null policy is above its floor"),
            (not self.repeats, "the same seed gave another episode"),
            (not self.elsewhere, "another process gave another episode"),
            (not self.disjoint, "splits overlap"),
            (self.held < self.wanted, f"only {self.held} of {self.wanted} episodes could be open at once"),
        )
        return [text for wrong, text in found if wrong]


class Elsewhere:
    """Another process that plays the same tasks, one environment after the other, while this one does."""

    def __init__(self, names: Sequence[str], count: int, options: Mapping[str, Any]) -> None:
        flags = [word for key, value in options.items() for word in ("--env-arg", f"{key}={json.dumps(value)}")]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "practicum.cli", "envs", "digest", ",".join(names), "--tasks", str(count), *flags],
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._told: dict[str, str] = {}

    def digest(self, name: str) -> str | None:
        """What the other process made of an environment; None where it could not play it."""
        assert self._process.stdout is not None
        while name not in self._told:
            line = self._process.stdout.readline()
            if not line:
                return None
            if line.startswith("digest "):
                told, _, value = line.removeprefix("digest ").rstrip().rpartition(" ")
                self._told[told] = value
        return self._told[name]

    def megabytes_without(self) -> float:
        """Memory of this process and all that it started, the other one and its own left out."""
        return tree_resident_megabytes() - tree_resident_megabytes(self._process.pid)

    def close(self) -> None:
        self._process.kill()
        self._process.communicate()


def check_environments(
    names: Sequence[str], count: int, options: Mapping[str, Any]
) -> Iterator[tuple[str, Findings | UserError]]:
    """Check environments one after the other on `count` tasks; an error instead of findings where one cannot run."""
    elsewhere = Elsewhere(names, count, options)
    try:
        for name in names:
            try:
                yield name, asyncio.run(check(name, count, options, elsewhere))
            except UserError as error:
                yield name, error
    finally:
        elsewhere.close()


async def check(name: str, count: int, options: Mapping[str, Any], elsewhere: Elsewhere) -> Findings:
    """Everything about one environment."""
    release_free_memory()
    before = elsewhere.megabytes_without()
    bench = make_rollout_setup(name, "expert", max_turns=EXPERT_TURNS, options=options)
    try:
        held, wanted = await hold_open(bench, min(count, HELD))
        grown = max(0.0, elsewhere.megabytes_without() - before)
        begun = time.perf_counter()
        solved = await play(bench, count)
        speed = sum(len(episode.turns) for episode in solved) / (time.perf_counter() - begun)
        again = await play(bench, count)
        idle = await play(make_rollout_setup(name, "null", max_turns=NULL_TURNS, options=options), count)
        splits = [{task.hash for task in bench.environment.tasks(split, count)} for split in SPLITS]
        return Findings(
            tasks=len(solved),
            oracle=successes(solved),
            ceiling=bench.environment.ceiling,
            null=successes(idle),
            floor=bench.environment.floor,
            repeats=solved == again,
            elsewhere=elsewhere.digest(name) == digest_of(solved[:AGAIN]),
            disjoint=sum(map(len, splits)) == len(set().union(*splits)),
            speed=speed,
            held=held,
            wanted=wanted,
            megabytes=grown,
        )
    finally:
        close_pools()


async def hold_open(bench: RolloutSetup, count: int) -> tuple[int, int]:
    """Begin so many episodes, take a step in each while all are open, then close them; how many went well."""
    tasks = bench.environment.tasks("train", count)
    open_: list[Environment] = []

    async def begin_and_step(world: Environment, place: int) -> bool:
        observation = await world.reset(tasks[place], place)
        await world.ready_expert(tasks[place])
        await world.step(world.expert(tasks[place])(observation))
        return True

    try:
        for _ in tasks:
            open_.append(bench.make_environment())
        done = await asyncio.gather(
            *(begin_and_step(world, place) for place, world in enumerate(open_)), return_exceptions=True
        )
        wrong = next((found for found in done if isinstance(found, UserError)), None)
        if wrong is not None:
            raise wrong
        return sum(found is True for found in done), len(tasks)
    finally:
        for world in open_:
            await world.close()


async def digest(name: str, count: int, options: Mapping[str, Any]) -> str:
    """What this process makes of an environment's first tasks."""
    try:
        bench = make_rollout_setup(name, "expert", max_turns=EXPERT_TURNS, options=options)
        return digest_of(await play(bench, min(count, AGAIN)))
    finally:
        close_pools()


async def play(bench: RolloutSetup, count: int) -> list[Trajectory]:
    planned = plan_attempts(bench.environment.tasks("train", count), 1, 0)
    return await run_episodes(planned, bench.make_environment, bench.agent, bench.engine, bench.renderer)


def digest_of(episodes: Sequence[Trajectory]) -> str:
    """Names episodes by all that is recorded of them."""
    return hashlib.sha256(b"".join(map(dump, episodes))).hexdigest()[:16]


def successes(episodes: Sequence[Trajectory]) -> float:
    return sum(episode.outcome is Outcome.SUCCESS for episode in episodes) / len(episodes)
