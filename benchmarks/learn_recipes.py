"""Does each `tiny` recipe improve held-out reward over its SFT model?

    python benchmarks/learn_recipes.py [--only search-tiny] [--parts rl] [--jobs 6] [--seed 0] [--out runs/learn]

For each recipe: a few demonstrations of the expert, SFT to its best validation, RL by the recipe itself, and the same
300 test tasks before and after, greedy, compared pairwise (part `rl`); beside it SFT on ten times the demonstrations
(part `ten-times`). The search agent is also evaluated without its search tool. A model or part that is finished is not
trained again, and neither part needs the other, so that all of them may run in processes of their own. Minutes are
wall-clock time; processor time is recorded beside them, since on a busy machine wall-clock time says little.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from parallel_jobs import run_phases

from practicum import registry
from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.config.train import TrainConfig
from practicum.data.run_folder import write_atomic
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.evaluation.compare import SCORE, compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.models import loader
from practicum.quickstart import DEMONSTRATION_LEVELS, DEMONSTRATIONS, MODEL
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.training import build, settings
from practicum.training.sft import SFTSettings, train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory, plan_attempts
from practicum.utils.memory import cpu_seconds


@dataclass(frozen=True)
class SFTPlan:
    """How the SFT model is trained: the best of its validations on `checked` tasks is the result."""

    demonstrations: int
    epochs: int = 30
    environment_args: Mapping[str, Any] = field(default_factory=dict)
    """Options of the environment that the demonstrations are of, where they are not the recipe's."""
    checked: int = 100
    check_every: int = 75


SFT_PLANS = {
    "math-tiny": SFTPlan(DEMONSTRATIONS, epochs=25, environment_args={"levels": DEMONSTRATION_LEVELS}),
    "search-tiny": SFTPlan(300),
    "code-tiny": SFTPlan(300, checked=50),  # every demonstration needs two sandboxes
}

PARTS = ("rl", "ten-times")


def sft_plan(name: str, times: int) -> SFTPlan:
    """The plan of a recipe's SFT with a multiple of its demonstrations; ten times as many get a tenth of the epochs."""
    plan = SFT_PLANS[name]
    return replace(plan, demonstrations=times * plan.demonstrations, epochs=max(4, plan.epochs // times))


def agent_of(config: TrainConfig, components: build.RunComponents, temperature: float) -> Agent:
    return Agent(
        format=components.format,
        max_turns=config.agent.max_turns,
        sampling=Sampling(temperature, max_tokens=settings.max_reply_tokens(config)),
    )


@dataclass(frozen=True)
class Stopwatch:
    """Wall-clock and processor minutes, child processes included, since `start`."""

    clock: float
    processor: float

    @classmethod
    def start(cls) -> Stopwatch:
        return cls(time.monotonic(), cpu_seconds())

    def read(self) -> dict[str, float]:
        return {
            "minutes": (time.monotonic() - self.clock) / 60,
            "processor_minutes": (cpu_seconds() - self.processor) / 60,
        }


async def make_sft_model(name: str, plan: SFTPlan, config: TrainConfig, out: Path, seed: int) -> Path:
    """Return the folder of the SFT run, trained once, with its cost in `sft_cost.json` beside `model/`."""
    folder = out / f"start-{name}-{plan.demonstrations}-{seed}"
    if (folder / "sft_cost.json").exists():
        return folder
    stopwatch = Stopwatch.start()
    components = build.build_components(config)
    policy = TrainablePolicy(loader.load(MODEL), max_batch=128)
    agent = agent_of(config, components, 1.0)
    engine = ScriptedEngine.of("expert", components.environment, make_format(agent.format), policy.renderer)
    arguments = {**config.agent.environment_args, **plan.environment_args}
    demonstrated = registry.environment_class(config.agent.environment)(**arguments)
    planned = plan_attempts(demonstrated.tasks("train", plan.demonstrations, 1000 * seed + 1), 1, seed)
    episodes = await run_episodes(planned, components.make_environment, agent, engine, policy.renderer)
    panel = Panel(tuple(components.environment.tasks("val", plan.checked, 1000 * seed)), seed)

    async def validate() -> EvalResult:
        result, _ = await policy.evaluate("val", panel, components.make_environment, agent_of(config, components, 0.0))
        print(f"  {name}: validation {100 * result.success_rate:.0f} %", flush=True)
        return result

    sft_settings = SFTSettings(
        num_epochs=plan.epochs, batch_size=8, gradient_accumulation_steps=1, learning_rate=1e-3, warmup_steps=30,
        weight_decay=1.0, scheduler_type="cosine", seed=seed, check_every=plan.check_every,
    )  # fmt: skip
    try:
        state = await train_sft(policy, episodes, sft_settings, folder, evaluate=validate)
        figures = {"steps": state.step, "best_step": state.best_step, "demonstrations": len(episodes)}
        figures |= stopwatch.read()
        (folder / "sft_cost.json").write_text(json.dumps(figures) + "\n")
    finally:
        await policy.close()
    return folder


async def evaluate(
    policy: TrainablePolicy, label: str, panel: Panel, config: TrainConfig, components: build.RunComponents
) -> tuple[EvalResult, list[Trajectory]]:
    return await policy.evaluate(label, panel, components.make_environment, agent_of(config, components, 0.0))


def held_out_panel(components: build.RunComponents, tasks: int, seed: int) -> Panel:
    return Panel(tuple(components.environment.tasks("test", tasks, 1000 * seed)), seed)


async def train_ten_times(name: str, out: Path, seed: int, tasks: int, extra: list[str]) -> dict[str, Any]:
    """SFT on ten times the demonstrations, and its result on the held-out tasks."""
    config = resolve_train([f"recipe={name}", *extra]).config
    components = build.build_components(config)
    folder = await make_sft_model(name, sft_plan(name, 10), config, out, seed)
    policy = TrainablePolicy(loader.load(str(folder / "model")), max_batch=128)
    try:
        result, _ = await evaluate(policy, "sft 10x", held_out_panel(components, tasks, seed), config, components)
    finally:
        await policy.close()
    return {"sft_10x": result.summary(), "sft_10x_training": json.loads((folder / "sft_cost.json").read_text())}


async def train_recipe(name: str, out: Path, seed: int, tasks: int, extra: list[str]) -> dict[str, Any]:
    """SFT and RL by the recipe, and the results of both on the held-out tasks."""
    plain = resolve_train([f"recipe={name}", *extra]).config
    components = build.build_components(plain)
    start = await make_sft_model(name, sft_plan(name, 1), plain, out, seed)
    shutil.rmtree(out / "runs" / "recipes" / f"{name}-{seed}", ignore_errors=True)
    config = resolve_train(
        [
            f"recipe={name}", f"actor_rollout_ref.model.path={start / 'model'}", f"trainer.seed={seed}",
            f"trainer.default_local_dir={out / 'runs'}", "trainer.project_name=recipes",
            f"trainer.experiment_name={name}-{seed}", "trainer.val_before_train=false", "trainer.test_freq=-1",
            "trainer.logger=[]", *extra,
        ]
    ).config  # fmt: skip
    panel = held_out_panel(components, tasks, seed)
    run = build.build_run(config)
    try:
        before, _ = await evaluate(run.policy, "sft", panel, config, components)
        stopwatch = Stopwatch.start()
        await run.train()
        cost = {"steps": run.state.step, **stopwatch.read()}
        after, episodes = await evaluate(run.policy, name, panel, config, components)
        comparison = compare_pair(before, after)
        gain = comparison.success
        interval = next(delta.interval for delta in comparison.deltas if delta.name == SCORE)
        row: dict[str, Any] = {
            "sft": before.summary(), "rl": after.summary(),
            "difference": gain.difference, "low": gain.interval.low, "high": gain.interval.high, "p": gain.p_value,
            "reward_difference": [interval.low, interval.high], "rl_training": cost,
            "sft_training": json.loads((start / "sft_cost.json").read_text()),
            "tool_calls": sum(len(t.action.calls) for e in episodes for t in e.turns) / len(episodes),
        }  # fmt: skip
        if name == "search-tiny":
            searches = [sum(c.name == "google_search" for t in e.turns for c in t.action.calls) for e in episodes]
            without_search = build.build_components(replace_tools(config, ["answer"]))
            ablated, _ = await evaluate(run.policy, "no search", panel, config, without_search)
            row |= {
                "searches": sum(searches) / len(searches), "never_searched": searches.count(0),
                "no_search": ablated.summary(), "p_no_search": compare_pair(ablated, after).success.p_value,
            }  # fmt: skip
    finally:
        await run.policy.close()
    return row


def replace_tools(config: TrainConfig, tools: list[str]) -> TrainConfig:
    return replace(config, agent=replace(config.agent, tools=tools))


def planned_processes(names: Sequence[str], common: Sequence[str]) -> list[list[str]]:
    """The arguments of the processes that train all parts: none needs another, and the longest ones are first."""
    return [[f"--only={name}", f"--parts={part}", *common] for part in reversed(PARTS) for name in names]


async def run_part(part: str, name: str, out: Path, seed: int, tasks: int, extra: list[str]) -> dict[str, Any]:
    """What a part of a recipe found; it is trained where that is not there yet."""
    path = out / f"recipe-{seed}" / f"{name}-{part}.json"
    if not path.exists():
        train = train_recipe if part == "rl" else train_ten_times
        write_atomic(path, (json.dumps(await train(name, out, seed, tasks, extra) | {"seed": seed}) + "\n").encode())
    row: dict[str, Any] = json.loads(path.read_text())
    return row


def lines(name: str, row: Mapping[str, Any]) -> Iterator[str]:
    """The figures of a recipe's finished parts."""
    if "sft_10x" in row:
        result, cost = row["sft_10x"], row["sft_10x_training"]
        yield (
            f"{name}: SFT on ten times the demonstrations {100 * result['success_rate']:.1f} % "
            f"[{100 * result['low']:.1f}, {100 * result['high']:.1f}], best of {cost['steps']} steps: "
            f"{cost['best_step']}; {cost['processor_minutes']:.1f} minutes of the processor"
        )
    if "rl" in row:
        yield (
            f"{name}: "
            f"{100 * row['sft']['success_rate']:.1f} % (reward {row['sft']['mean_reward']:.3f}) → "
            f"{100 * row['rl']['success_rate']:.1f} % (reward {row['rl']['mean_reward']:.3f}), "
            f"{100 * row['difference']:+.1f} points [{100 * row['low']:.1f}, {100 * row['high']:.1f}], "
            f"p = {row['p']:.1g}; SFT {row['sft_training']['minutes']:.1f} and RL "
            f"{row['rl_training']['minutes']:.1f} minutes ({row['sft_training']['processor_minutes']:.1f} and "
            f"{row['rl_training']['processor_minutes']:.1f} of the processor)"
        )
    if "no_search" in row:
        yield (
            f"  {row['searches']:.2f} searches an episode, F1 without the tool "
            f"{row['no_search']['mean_reward']:.3f} (p = {row['p_no_search']:.1g})"
        )


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated recipes")
    parser.add_argument("--parts", default=",".join(PARTS), help="comma-separated (default: both)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=300)
    parser.add_argument("--jobs", type=int, default=1, help="processes of one core each (default: 1, this one)")
    parser.add_argument("--out", type=Path, default=Path("runs/learn"))
    parser.add_argument("extra", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args()
    names, parts = args.only.split(",") if args.only else list(SFT_PLANS), args.parts.split(",")
    for kind, chosen, available in (("recipe", names, SFT_PLANS), ("part", parts, PARTS)):
        if unknown := set(chosen) - set(available):
            raise SystemExit(f"unknown {kind} {', '.join(sorted(unknown))}; there are {', '.join(available)}")
    if args.jobs > 1:
        common = [f"--{key}={getattr(args, key)}" for key in ("seed", "tasks", "out")] + args.extra
        run_phases(__file__, [planned_processes(names, common)], args.jobs, args.out / "logs")
    rows: dict[str, dict[str, Any]] = {}
    for name in names:
        rows[name] = {}
        for part in parts:
            rows[name] |= await run_part(part, name, args.out, args.seed, args.tasks, args.extra)
        print("\n".join(lines(name, rows[name])), flush=True)
    if not args.only and set(parts) == set(PARTS):
        results = Path(__file__).parent / "results" / "learn_recipes.json"
        write_atomic(results, (json.dumps(rows, indent=1) + "\n").encode())


if __name__ == "__main__":
    asyncio.run(main())
