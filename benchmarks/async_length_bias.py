"""Which episodes does an asynchronous trainer learn from? Waiting for stale ones against dropping them.

    python benchmarks/async_length_bias.py [--seeds 8] [--steps 30] [--jobs 1] [--out FILE.json]

Tasks need one to four tool calls, equally often; every call takes a time from a Pareto distribution of shape 1.5 (at
least 0.1 s, mean 0.3 s, at most 30 s), as tools do whose slowest calls take most of the time. The built-in model `tiny`
is trained by GRPO, and its weights change while episodes are under way. Three ways to make the batch of a step:

* `synchronous`: all episodes of a step from the weights of the step; nothing runs during an update.
* `wait N` (`trainer.max_staleness=N`): the groups of step n are begun at step n - N, and the learner waits for them.
* `drop N`: as many groups are under way; the learner takes those that end first, and a group in which a turn is more
  than N steps old when it has ended is thrown away, as trainers with a limit on staleness and no admission do.

For each: tool calls per trained episode (2.5 in the tasks), the share of trained groups whose task needs four, the
share of episodes thrown away, and seconds per step; with 95 % intervals over the seeds. An update takes 0.3 s at least,
so that how long a step is beside a tool call does not depend on the machine.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.agent import Agent
from practicum.engines.base import Sampling
from practicum.environment import Action, Message, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.evaluation.stats.intervals import clustered_mean
from practicum.models import loader
from practicum.task import Task
from practicum.training.async_source import AsyncSource
from practicum.training.objective import Objective
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_batch import RolloutBatch
from practicum.training.rollout_source import OnEpisode, OnlineSource, group_scored, rollout_metrics
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory

TASKS, CHAINS, MAX_CALLS = 4, 4, 4
SHAPE, SHORTEST, LONGEST = 1.5, 0.1, 30.0
"""Of the time of a tool call, in seconds."""
UPDATE_SECONDS = 0.3
CASES = (("drop", 1), ("wait", 1), ("drop", 2), ("wait", 2), ("drop", 4), ("wait", 4), ("synchronous", 0))


class HeavyTailedTools(MathEnvironment):
    """One to four tool calls, by the task; a reply is paid for its lower-case letters."""

    rng = random.Random(0)

    async def reset(self, task: Task, seed: int) -> Observation:
        self._left, self._paid = calls_of(task), 0.0
        return await super().reset(task, seed)

    async def step(self, action: Action) -> Step:
        await asyncio.sleep(min(LONGEST, SHORTEST * self.rng.paretovariate(SHAPE)))
        self._left -= 1
        reply = self.trajectory_so_far().turns[-1].reply
        share = sum(character.islower() for character in reply) / max(1, len(reply))
        return Step(Observation((Message("user", "next"),)), reward=share, terminated=self._left == 0)

    async def truncate(self) -> Step:
        return Step(truncated=True)


def calls_of(task: Task) -> int:
    return int(task.id.rsplit("-", 1)[-1]) % MAX_CALLS + 1


@dataclass
class Group:
    """A group that is under way: its task, the step at which it was begun, and its episodes when it has ended."""

    number: int
    begun: int
    task: asyncio.Task[list[Trajectory]]


class DropSource(AsyncSource):
    """Takes the groups that end first; throws away those with a turn that has become too old."""

    def __init__(self, source: OnlineSource) -> None:
        super().__init__(source)
        self.groups: dict[int, Group] = {}
        self.num_begun = self.num_dropped = 0

    async def collect(self, step: int, on_episode: OnEpisode | None = None) -> RolloutBatch:
        taken: list[list[Trajectory]] = []
        self._first_versions.append((step, self.source.policy.version))
        begun = time.perf_counter()
        while True:
            while len(self.groups) < (self.max_staleness + 1) * TASKS - len(taken):
                self._begin(step)
            done, _ = await asyncio.wait([one.task for one in self.groups.values()], return_when="FIRST_COMPLETED")
            for group in [one for one in self.groups.values() if one.task in done]:
                del self.groups[group.number]
                episodes = group.task.result()
                if step - self._age_in_steps(episodes) > self.max_staleness:
                    self.num_dropped += len(episodes)
                else:
                    taken.append(episodes)
                if len(taken) == TASKS:
                    played = [episode for own in taken for episode in own]
                    seconds = time.perf_counter() - begun
                    groups = group_scored(played)
                    return RolloutBatch(step, played, groups, {}, rollout_metrics(played), {}, seconds)

    def _age_in_steps(self, episodes: list[Trajectory]) -> int:
        """The step whose weights have sampled the oldest turn."""
        oldest = min(turn.policy_version for episode in episodes for turn in episode.turns)
        return max(step for step, version in self._first_versions if version <= oldest)

    def _begin(self, step: int) -> None:
        number, self.num_begun = self.num_begun, self.num_begun + 1
        tasks = self.source.stream.take(1)
        rollout = self.source._roll_out(tasks, CHAINS, f"group-{number}/", self.agent)
        self.groups[number] = Group(number, step, asyncio.create_task(rollout))

    async def close(self) -> None:
        for group in self.groups.values():
            group.task.cancel()
        await asyncio.gather(*(group.task for group in self.groups.values()), return_exceptions=True)


class SlowLearner(RLTrainer):
    """Takes the time of an update of a larger model."""

    def _train(self, step: int, batch: RolloutBatch) -> dict[str, float]:
        begun = time.perf_counter()
        metrics = super()._train(step, batch)
        time.sleep(max(0.0, UPDATE_SECONDS - (time.perf_counter() - begun)))
        return metrics


def run(kind: str, staleness: int, seed: int, steps: int) -> dict[str, Any]:
    """Train once; returns what was trained on."""
    HeavyTailedTools.rng = random.Random(f"{seed}")
    settings = RLSettings(
        total_training_steps=steps, train_batch_size=TASKS, num_chains=CHAINS, adv_estimator="grpo", lr=1e-4,
        lr_warmup_steps=0, objective=Objective("pg", entropy_coeff=0.0, kl_loss_coef=0.0), mismatch_limit=0.1,
        max_staleness=staleness, tis_imp_ratio_cap=2.0 if staleness else 0.0, seed=seed,
    )  # fmt: skip
    policy = TrainablePolicy(loader.load_tiny(0), separate_engine_weights=staleness > 0)
    agent = Agent(max_turns=MAX_CALLS, sampling=Sampling(max_tokens=8))
    tasks = HeavyTailedTools().tasks("train", (steps + 8) * TASKS * 3)
    online = OnlineSource(policy, tasks, HeavyTailedTools, agent, settings)
    source = {"synchronous": lambda: online, "wait": lambda: AsyncSource(online), "drop": lambda: DropSource(online)}
    made = source[kind]()
    begun, trained = time.perf_counter(), Counter[int]()
    trainer = SlowLearner(policy, made, settings)
    ages: list[float] = []

    async def whole() -> None:
        try:
            for step in range(steps):
                result = await trainer.step(step)
                trained.update(calls_of(episode.task) for episode in result.episodes)
                if "staleness/logprob/mean" in result.metrics:
                    ages.append(result.metrics["staleness/logprob/mean"])
        finally:
            await trainer.close()
            await policy.close()

    asyncio.run(whole())
    dropped = made.num_dropped if isinstance(made, DropSource) else 0
    return {
        "kind": kind, "staleness": staleness, "seed": seed, "trained": [trained[n] for n in range(1, MAX_CALLS + 1)],
        "dropped": dropped, "seconds_per_step": (time.perf_counter() - begun) / steps,
        "staleness_logprob": sum(ages) / len(ages) if ages else 0.0,
    }  # fmt: skip


def summary(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """By case: means over the seeds with 95 % intervals."""
    table = []
    for kind, staleness in CASES:
        own = [row for row in rows if (row["kind"], row["staleness"]) == (kind, staleness)]
        if not own:
            continue
        line: dict[str, Any] = {"case": f"{kind} {staleness}" if staleness else kind, "seeds": len(own)}
        measures = {
            "calls": [sum(n * c for n, c in enumerate(r["trained"], 1)) / sum(r["trained"]) for r in own],
            "share of four calls": [r["trained"][-1] / sum(r["trained"]) for r in own],
            "dropped": [r["dropped"] / (r["dropped"] + sum(r["trained"])) for r in own],
            "seconds per step": [r["seconds_per_step"] for r in own],
        }
        for name, values in measures.items():
            estimate = clustered_mean(values, range(len(values)))
            line[name] = [round(value, 4) for value in (estimate.mean, estimate.interval.low, estimate.interval.high)]
        table.append(line)
    return table


def run_all(args: argparse.Namespace) -> list[dict[str, Any]]:
    """One process per seed, `jobs` at a time; results are written as they come."""
    waiting, running, rows = list(range(args.seeds)), [], []
    while waiting or running:
        while waiting and len(running) < args.jobs:
            command = [sys.executable, __file__, "--seed", str(waiting.pop(0)), "--steps", str(args.steps)]
            running.append(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
        process = running.pop(0)
        assert process.stdout is not None
        for line in process.stdout:
            rows.append(json.loads(line))
            print(line, end="", flush=True)
            if args.out is not None:
                args.out.write_text(json.dumps({"summary": summary(rows), "rows": rows}, indent=1) + "\n")
        if process.wait():
            raise SystemExit(f"a seed failed with exit status {process.returncode}")
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seed", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.seed is not None:
        for kind, staleness in CASES:
            print(json.dumps(run(kind, staleness, args.seed, args.steps)), flush=True)
        return 0
    for line in summary(run_all(args)):
        print(json.dumps(line))
    return 0


if __name__ == "__main__":
    sys.exit(main())
