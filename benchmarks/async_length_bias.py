"""Which episodes does an asynchronous trainer learn from? Waiting for stale ones against dropping them.

    python benchmarks/async_length_bias.py [--seeds 20] [--steps 100] [--out FILE.json]

The schedulers are the real ones; time is simulated by a clock that jumps to the next event, so that the figures depend
on no machine. Tasks need one to four tool calls, equally often. A call takes a time from a Pareto distribution of shape
1.5 (at least 0.1 s, mean 0.3 s, cut at 60 s), as tools do whose slowest calls take most of the time; a reply takes
0.05 s, an update 0.5 s. Steps of 4 tasks with 4 episodes each; new weights are there from the next reply on. Ways to
make the batch of a step:

* `synchronous`: all episodes of a step from the weights of the step; nothing runs during an update.
* `wait N` (`trainer.max_staleness=N`): the groups of step n are begun at step n - N, and the learner waits for them.
* `drop N`: as many groups are under way; the learner takes those that end first, and a group in which a turn is more
  than N steps old when it has ended is thrown away, as trainers with a limit on staleness and no admission do.

For each: tool calls per trained episode (2.5 in the tasks), their difference from the synchronous run of the seed, the
share of trained groups whose task needs four, seconds of tool time per trained episode, the share of episodes thrown
away, and seconds per step, with 95 % intervals over the seeds. The learner changes nothing here: what is measured is
which episodes it would learn from.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.agent import Agent
from practicum.environment import Action
from practicum.environments.math import MathEnvironment
from practicum.evaluation.stats.intervals import clustered_mean
from practicum.task import Task
from practicum.training.async_source import AsyncSource
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnEpisode, OnlineSource, group_scored, rollout_metrics
from practicum.training.settings import RLSettings
from practicum.trajectory import Attempt, Origin, Outcome, Span, StopReason, Trajectory, Turn

TASKS, CHAINS, MAX_CALLS = 4, 4, 4
SHAPE, SHORTEST, LONGEST = 1.5, 0.1, 60.0
"""Of the time of a tool call, in seconds."""
REPLY_SECONDS, UPDATE_SECONDS = 0.05, 0.5
CASES = (("synchronous", 0), ("wait", 1), ("wait", 2), ("wait", 4), ("drop", 1), ("drop", 2), ("drop", 4))
SAMPLED = (Span(Origin.SAMPLED, (1,), (0.0,)),)


class SimulatedClock(asyncio.SelectorEventLoop):
    """An event loop whose time jumps to the next event instead of waiting for it."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:  # type: ignore[attr-defined]
            self.now = max(self.now, self._scheduled[0].when())  # type: ignore[attr-defined]
        super()._run_once()  # type: ignore[misc]


def calls_of(task: Task) -> int:
    return int(task.id.rsplit("-", 1)[-1]) % MAX_CALLS + 1


class SimulatedPolicy:
    """Replies and tools that take simulated time; `version` counts the updates."""

    def __init__(self, rng: random.Random) -> None:
        self.version, self.concurrency, self.rng = 0, 1024, rng
        self.role_engines: dict[str, Any] = {}

    async def roll_out(self, planned: Sequence[Attempt], *rest: Any, on_done: OnEpisode | None, **options: Any) -> Any:
        return await asyncio.gather(*(self.run(attempt, on_done) for attempt in planned))

    async def run(self, attempt: Attempt, on_done: OnEpisode | None) -> Trajectory:
        turns: list[Turn] = []
        seconds = 0.0
        for _ in range(calls_of(attempt.task)):
            version = self.version
            await asyncio.sleep(REPLY_SECONDS)
            turns.append(Turn(SAMPLED, False, (), "", Action("", ""), "policy", version, StopReason.END, 0))
            tool = min(LONGEST, SHORTEST * self.rng.paretovariate(SHAPE))
            seconds += tool
            await asyncio.sleep(tool)
        episode = Trajectory(
            attempt.task, attempt.number, attempt.group, Outcome.SUCCESS, tuple(turns), self.rng.random(), {},
            attempt.seeds, tool_seconds={"tool": (seconds,)},
        )  # fmt: skip
        if on_done is not None:
            on_done(episode)
        return episode


@dataclass
class Group:
    """A group that is under way."""

    number: int
    task: asyncio.Task[list[Trajectory]]


class DropSource(AsyncSource):
    """Takes the groups that end first; throws away those with a turn that has become too old."""

    def __init__(self, source: OnlineSource) -> None:
        super().__init__(source)
        self.groups: dict[int, Group] = {}
        self.finished: list[list[Trajectory]] = []
        self.num_begun = self.num_dropped = 0

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        self._first_versions.append((step, self.source.policy.version))
        while True:
            while len(self.groups) + len(self.finished) < (self.max_staleness + 1) * TASKS:
                self._begin()
            self._sort_out(step)
            if len(self.finished) >= TASKS:
                groups, self.finished = self.finished[:TASKS], self.finished[TASKS:]
                episodes = [episode for group in groups for episode in group]
                return RolloutBatch(step, episodes, group_scored(episodes), {}, rollout_metrics(episodes))
            await asyncio.wait([group.task for group in self.groups.values()], return_when="FIRST_COMPLETED")
            for group in [group for group in self.groups.values() if group.task.done()]:
                self.finished.append(self.groups.pop(group.number).task.result())

    def _sort_out(self, step: int) -> None:
        """Throw away what has become too old, also while it waited to be trained on."""
        fresh = [episodes for episodes in self.finished if step - self._step_of(episodes) <= self.max_staleness]
        self.num_dropped += CHAINS * (len(self.finished) - len(fresh))
        self.finished = fresh

    def _step_of(self, episodes: list[Trajectory]) -> int:
        """The step whose weights have sampled the oldest turn."""
        oldest = min(turn.policy_version for episode in episodes for turn in episode.turns)
        return max(step for step, version in self._first_versions if version <= oldest)

    def _begin(self) -> None:
        index, self.num_begun = self.num_begun, self.num_begun + 1
        rollout = self.source._roll_out(self.source.stream.take(1), CHAINS, f"group-{index}/", self.agent)
        self.groups[index] = Group(index, asyncio.create_task(rollout))

    async def close(self) -> None:
        for group in self.groups.values():
            group.task.cancel()
        await asyncio.gather(*(group.task for group in self.groups.values()), return_exceptions=True)


MAKE: dict[str, Callable[[OnlineSource], Any]] = {
    "synchronous": lambda episodes: episodes,
    "wait": AsyncSource,
    "drop": DropSource,
}


def run(kind: str, staleness: int, seed: int, steps: int) -> dict[str, float]:
    """Simulate one training; returns what was trained on."""
    policy: Any = SimulatedPolicy(random.Random(seed))
    settings = RLSettings(
        total_training_steps=steps, train_batch_size=TASKS, num_chains=CHAINS, adv_estimator="grpo",
        max_staleness=staleness, seed=seed,
    )  # fmt: skip
    tasks = MathEnvironment().tasks("train", 4 * steps * TASKS)
    order = random.Random(seed + 1000)
    shuffled = order.sample(list(tasks), len(tasks))
    trained: list[Trajectory] = []

    async def run_steps() -> tuple[float, int]:
        source = MAKE[kind](OnlineSource(policy, shuffled, MathEnvironment, Agent(), settings))
        for step in range(steps):
            batch = await source.collect(step)
            trained.extend(batch.episodes)
            await asyncio.sleep(UPDATE_SECONDS)
            policy.version += 1
        seconds = asyncio.get_running_loop().time()
        if isinstance(source, AsyncSource):
            await source.close()
        return seconds, source.num_dropped if isinstance(source, DropSource) else 0

    loop = SimulatedClock()
    try:
        seconds, dropped = loop.run_until_complete(run_steps())
    finally:
        loop.close()
    calls = [calls_of(episode.task) for episode in trained]
    return {
        "calls": sum(calls) / len(calls),
        "share of four calls": calls.count(MAX_CALLS) / len(calls),
        "tool seconds": sum(episode.tool_seconds["tool"][0] for episode in trained) / len(trained),
        "dropped": dropped / (dropped + len(trained)),
        "seconds per step": seconds / steps,
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    table, reference = [], []
    for kind, staleness in CASES:
        rows = [run(kind, staleness, seed, args.steps) for seed in range(args.seeds)]
        reference = reference or rows
        for row, synchronous in zip(rows, reference, strict=True):
            row["calls more than synchronous"] = row["calls"] - synchronous["calls"]
        line: dict[str, Any] = {"case": f"{kind} {staleness}" if staleness else kind, "seeds": len(rows)}
        for name in rows[0]:
            estimate = clustered_mean([row[name] for row in rows], range(len(rows)))
            values = (estimate.mean, estimate.interval.low, estimate.interval.high)
            line[name] = [round(value, 4) for value in values]
        table.append(line)
        print(json.dumps(line), flush=True)
        if args.out is not None:
            args.out.write_text(json.dumps({"steps": args.steps, "cases": table}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
