"""Rollout and training step of two versions of this package, in alternation: medians and ratios.

    git archive COMMIT src | tar -x -C /tmp/old
    python benchmarks/versions.py /tmp/old . [--kinds expert sampled step] [--repeats 40] [--out FILE.json]

Each version is a process of its own that waits for requests; the two alternate, so that other load on the machine
affects both, and the order within a pair alternates too. Beside the wall-clock time there is the processor time of all
threads of the process, which varies less on a busy machine. The interval is the 95 % interval of the median of the
pairs' ratios, by order statistics.

* `expert`: 256 episodes of `math` with the expert's replies, 64 at once: the agent loop without a model.
* `sampled`: 128 episodes of `math` with replies of `tiny`, 2 turns of 16 tokens: a rollout.
* `step`: one GRPO step of `tiny` on `math`, 16 tasks × 8 chains, 2 turns of 16 tokens: rollout, advantages, update.
  Rewards are drawn: an untrained model earns none, and groups without a signal are not trained on.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from scipy.stats import binom

KINDS = ("expert", "sampled", "step")
EPISODES, TASKS, CHAINS, TURNS, TOKENS = 256, 16, 8, 2, 16


def measure(version: Path, kind: str) -> None:
    """Read a line from stdin, run one `kind`, print seconds and processor seconds; until there are no more lines."""
    import torch

    from practicum.agent import Agent
    from practicum.engines.base import Sampling
    from practicum.engines.scripted import ScriptedEngine
    from practicum.environment import Step
    from practicum.environments.math import MathEnvironment
    from practicum.models import loader
    from practicum.registry import make_format
    from practicum.rollout import run_episodes
    from practicum.training.objective import Objective
    from practicum.training.rl_trainer import RLTrainer
    from practicum.training.rollout_source import OnlineSource
    from practicum.training.settings import RLSettings
    from practicum.training.trainable_policy import TrainablePolicy
    from practicum.trajectory import plan_attempts

    class DrawnRewards(MathEnvironment):
        rng = random.Random(0)

        async def truncate(self) -> Step:
            return replace(await super().truncate(), reward=self.rng.random())

    assert Path(sys.modules["practicum"].__file__ or "").is_relative_to(version.resolve())
    torch.set_num_threads(1)
    policy = TrainablePolicy(loader.load_tiny(0), max_batch=TASKS * CHAINS)
    environment = MathEnvironment(levels=(1, 2))
    expert = ScriptedEngine.of("expert", environment, make_format("hf"), policy.renderer)
    agent = Agent(format="hf", max_turns=TURNS, sampling=Sampling(1.0, max_tokens=TOKENS))
    settings = RLSettings(
        total_training_steps=10_000, train_batch_size=TASKS, num_chains=CHAINS, adv_estimator="grpo", lr=1e-6,
        objective=Objective(entropy_coeff=0.0, kl_loss_coef=0.0),
    )  # fmt: skip
    source = OnlineSource(policy, environment.tasks("train", 4000), lambda: environment, agent, settings)
    source.make_environment = lambda: DrawnRewards(levels=(1, 2))
    trainer = RLTrainer(policy, source, settings)
    tasks = environment.tasks("train", EPISODES)

    async def run(index: int) -> None:
        make = source.make_environment
        if kind == "expert":
            planned = plan_attempts(tasks, 1, index)
            await run_episodes(planned, make, Agent(max_turns=6), expert, policy.renderer, concurrency=64)
        elif kind == "sampled":
            planned = plan_attempts(tasks[:TASKS], CHAINS, index)
            policy.set_version(policy.version)
            await run_episodes(planned, make, agent, policy.engine, policy.renderer, concurrency=TASKS * CHAINS)
        else:
            policy.set_version(policy.version)
            await trainer.step(index)

    async def serve() -> None:
        for index in range(3):
            await run(index)
        print("ready", flush=True)
        while line := await asyncio.to_thread(sys.stdin.readline):
            wall, cpu = time.perf_counter(), time.process_time()
            await run(int(line))
            print(json.dumps([time.perf_counter() - wall, time.process_time() - cpu]), flush=True)
        await policy.close()

    asyncio.run(serve())


class Side:
    """A process with one version: per line of its stdin it runs what is measured once, and prints both seconds."""

    def __init__(self, command: Sequence[str], cwd: Path | None = None, **environment: str) -> None:
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=cwd,
            env={**os.environ, "GOMP_SPINCOUNT": "0", **environment},
        )  # fmt: skip
        assert self._line() == "ready"
        self.seconds: list[tuple[float, float]] = []

    def _line(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def run(self, index: int) -> None:
        assert self.process.stdin is not None
        print(index, file=self.process.stdin, flush=True)
        wall, cpu = json.loads(self._line())
        self.seconds.append((wall, cpu))

    def close(self) -> None:
        self.process.communicate()


def start(version: Path, kind: str) -> Side:
    """A process that measures a kind of a version, with one thread."""
    command = [sys.executable, __file__, str(version), str(version), "--measure", kind]
    return Side(command, PYTHONPATH=str(version / "src"), OMP_NUM_THREADS="1")


def median_interval(values: list[float]) -> tuple[float, float]:
    """The 95 % interval of the median, by order statistics."""
    ordered, rank = sorted(values), int(binom.ppf(0.025, len(values), 0.5))
    return ordered[max(0, rank - 1)], ordered[min(len(values) - 1, len(values) - rank)]


def compare(sides: Sequence[Side], repeats: int) -> dict[str, Any]:
    """Medians of the old and the new version, and the median of the ratios of pairs with its interval."""
    for repeat in range(repeats):
        for side in sides if repeat % 2 == 0 else sides[::-1]:
            side.run(3 + repeat)
    for side in sides:
        side.close()
    result: dict[str, Any] = {"repeats": repeats}
    for index, clock in enumerate(("wall", "processor")):
        before, after = ([pair[index] for pair in side.seconds] for side in sides)
        ratios = [second / first for first, second in zip(before, after, strict=True)]
        result[clock] = {
            "old": statistics.median(before), "new": statistics.median(after),
            "ratio": statistics.median(ratios), "interval": list(median_interval(ratios)),
        }  # fmt: skip
    return result


def show(results: Mapping[str, Mapping[str, Any]]) -> None:
    """Print a line per kind and clock."""
    width = max(map(len, results)) + 2
    print(f"{'':<{width}}{'clock':<12}{'old':>9}{'new':>9}{'ratio':>8}  95 %")
    for kind, result in results.items():
        for clock in ("wall", "processor"):
            row, (low, high) = result[clock], result[clock]["interval"]
            times = f"{row['old']:>8.3f}s{row['new']:>8.3f}s{row['ratio']:>8.3f}"
            print(f"{kind:<{width}}{clock:<12}{times}  {low:.3f} {high:.3f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("old", type=Path, help="folder with src/ of the older version")
    parser.add_argument("new", type=Path, help="folder with src/ of the newer version")
    parser.add_argument("--repeats", type=int, default=40)
    parser.add_argument("--out", type=Path, help="JSON file for the figures")
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS)
    parser.add_argument("--measure", choices=KINDS, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        measure(arguments.new, arguments.measure)
        return
    old, new = arguments.old, arguments.new
    results = {kind: compare([start(old, kind), start(new, kind)], arguments.repeats) for kind in arguments.kinds}
    show(results)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
