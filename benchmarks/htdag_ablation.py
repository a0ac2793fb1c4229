"""Which credit does a planner learn from? Flow-GRPO, GRPO on the last decision, and turn-level credit, from one start.

    python benchmarks/htdag_ablation.py --start runs/htdag/sft [--seeds 1,2,3] [--steps 40] [--jobs 9]

With `--jobs` the nine runs are processes of their own, one core each; a run that is done is not done again.

* flow_grpo: an episode's reward, compared within its group, is the advantage of all of its decisions.
* grpo_last_turn: the same number for the last decision alone; the decisions before it are not trained.
* turn_gae: every decision has its own reward and an advantage from a critic's values of the states between decisions.

Everything else is the recipe's and the same for all: requests, batches, learning rate, number of steps. A model is the
best of its validations. Every model is evaluated greedily on the same 400 requests of held-out templates.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.data.run_folder import write_atomic
from practicum.engines.base import Sampling
from practicum.environments.htdag.environment import MAX_STEPS, HTDAGEnvironment
from practicum.evaluation.metric_delta import MetricDelta, metric_delta
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.stats.intervals import rate_interval
from practicum.planner.benchmark import MAX_TOKENS, held_out_panel
from practicum.training import build
from practicum.training.estimators import ESTIMATORS, Advantages, Estimator, EstimatorSettings, Groups
from practicum.training.trainable_policy import TrainablePolicy

RESULTS = Path(__file__).parent / "results" / "htdag_ablation.json"
START = "start"
KEYS: Mapping[str, tuple[str, ...]] = {
    "flow_grpo": (),
    "grpo_last_turn": (),
    "turn_gae": ("algorithm.turn_rewards=true", "algorithm.lam=0.95", "critic.optim.lr=1e-3"),
}
"""The estimators, with the keys that only they read."""


def last_turn(groups: Groups, settings: EstimatorSettings) -> Advantages:
    """GRPO's advantage for the tokens of the last turn, zero for those of the turns before it."""
    everywhere = ESTIMATORS["grpo"].function(groups, settings).advantages
    return Advantages(
        [
            [np.where(sample.turns == sample.turns.max(), row, 0.0) for sample, row in zip(group, rows, strict=True)]
            for group, rows in zip(groups, everywhere, strict=True)
        ]
    )


ESTIMATORS["grpo_last_turn"] = Estimator(last_turn, min_group_size=2, aggregation=ESTIMATORS["flow_grpo"].aggregation)


async def run_one(name: str, seed: int, steps: int, start: Path, out: Path, panel: Panel, extra: list[str]) -> None:
    """Train with one estimator, evaluate, and write the result; what is there already is not done again."""
    file = out / f"{name}-{seed}.json"
    if file.is_file():
        return
    config = resolve_train(
        [
            "recipe=htdag-tiny", f"actor_rollout_ref.model.path={start}", f"algorithm.adv_estimator={name}",
            f"trainer.seed={seed}", f"trainer.total_training_steps={steps}", "trainer.log_file=null",
            f"trainer.default_local_dir={out / 'runs'}", f"trainer.experiment_name={name}-{seed}",
            "trainer.logger=[]", "trainer.save_freq=-1", *KEYS[name], *extra,
        ]
    ).config  # fmt: skip
    clock = time.monotonic()
    run = build.build_run(config, say=lambda text: None)
    try:
        if not (out / f"{START}.json").is_file():
            (await evaluate(run.policy, START, panel)).write(out / f"{START}.json")
        await run.train()
        minutes = (time.monotonic() - clock) / 60
        result = await evaluate(run.policy, name, panel)
    finally:
        await run.policy.close()
    result.write(file)
    print(f"{name}, seed {seed}: {100 * result.success_rate:.1f} % after {steps} steps, {minutes:.1f} min", flush=True)


async def evaluate(policy: TrainablePolicy, label: str, panel: Panel) -> EvalResult:
    agent = Agent(max_turns=MAX_STEPS, sampling=Sampling(0.0, max_tokens=MAX_TOKENS))
    result, _ = await policy.evaluate(label, panel, HTDAGEnvironment, agent)
    return result


def read_all(out: Path) -> dict[str, dict[int, EvalResult]]:
    """Return the results that are there: by estimator, then by seed."""
    return {
        name: {int(file.stem.rpartition("-")[2]): read_result(file) for file in sorted(out.glob(f"{name}-*.json"))}
        for name in KEYS
    }


def mean_by_task(results: Mapping[int, EvalResult]) -> dict[str, float]:
    """Return for every request the share of seeds whose model solves it."""
    flags = [result.success_by_task() for result in results.values()]
    return {task: sum(results[task] for results in flags) / len(flags) for task in flags[0]}


def difference(first: Mapping[str, float], second: Mapping[str, float], clusters: Mapping[str, str]) -> MetricDelta:
    return metric_delta("success", first, second, clusters, rate=True, share=1.0)


def lines(out: Path) -> Iterator[str]:
    """Yield the table, and write the figures."""
    runs, start = read_all(out), read_result(out / f"{START}.json")
    base, clusters = start.success_by_task(), start.clusters
    names = list(base)
    base_rate = rate_interval([base[task] for task in names], [clusters[task] for task in names])
    flow = mean_by_task(runs["flow_grpo"])
    record: dict[str, object] = {"start": start.success_rate, "requests": len(base), "rows": {}}
    yield (
        "| credit | "
        + " | ".join(f"seed {seed}" for seed in runs["flow_grpo"])
        + " | mean | over the start | against Flow-GRPO |"
    )
    yield "|---|" + "---|" * (len(runs["flow_grpo"]) + 3)
    no_seeds = " | ".join(["–"] * len(runs["flow_grpo"]))
    limits = f"[{100 * base_rate.low:.1f}, {100 * base_rate.high:.1f}]"
    yield f"| start (SFT) | {no_seeds} | {100 * start.success_rate:.1f} % {limits} | | |"
    rows: dict[str, object] = {}
    for name, results in runs.items():
        if not results:
            continue
        mean = mean_by_task(results)
        gain, against = difference(base, mean, clusters), difference(flow, mean, clusters)
        cells = " | ".join(f"{100 * result.success_rate:.1f} %" for result in results.values())
        beside = "" if name == "flow_grpo" else points(against)
        yield f"| {name} | {cells} | {100 * sum(mean.values()) / len(mean):.1f} % | {points(gain)} | {beside} |"
        rows[name] = {
            "seeds": {seed: result.success_rate for seed, result in results.items()},
            "over_start": gain.record(),
            "against_flow_grpo": against.record(),
        }
    record["rows"] = rows
    write_atomic(RESULTS, (json.dumps(record, indent=1) + "\n").encode())


def points(delta: MetricDelta) -> str:
    return (
        f"{100 * delta.difference:+.1f} [{100 * delta.interval.low:.1f}, {100 * delta.interval.high:.1f}], "
        f"p = {delta.p_value:.1g}"
    )


def run_process(case: tuple[str, int], args: argparse.Namespace) -> int:
    """Run one case in a process of its own, on one thread; return its exit code."""
    name, seed = case
    words = [sys.executable, __file__, "--only", name, "--seeds", seed, "--steps", args.steps, "--start", args.start,
             "--out", args.out, "--requests", args.requests, *args.keys]  # fmt: skip
    return subprocess.run(list(map(str, words)), env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False).returncode


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--start", type=Path, default=Path("runs/htdag/sft"), help="the SFT model")
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--requests", type=int, default=400, help="held-out requests of the evaluation")
    parser.add_argument("--only", default=",".join(KEYS), help="comma-separated estimators")
    parser.add_argument("--out", type=Path, default=Path("runs/htdag-ablation"))
    parser.add_argument("--jobs", type=int, default=1, help="processes at the same time (default: 1)")
    parser.add_argument("keys", nargs="*", help="further keys of `practicum train`")
    args = parser.parse_args()
    panel = held_out_panel(args.requests)
    args.out.mkdir(parents=True, exist_ok=True)
    cases = [(name, int(seed)) for name in args.only.split(",") for seed in args.seeds.split(",")]
    if args.jobs > 1:
        with ThreadPoolExecutor(args.jobs) as pool:
            codes = pool.map(lambda case: run_process(case, args), cases)
        if any(codes):
            raise SystemExit("a run failed; run again to go on")
    else:
        for name, seed in cases:
            asyncio.run(run_one(name, seed, args.steps, args.start, args.out, panel, args.keys))
    if set(args.only.split(",")) == set(KEYS):
        print("\n".join(lines(args.out)))


if __name__ == "__main__":
    main()
