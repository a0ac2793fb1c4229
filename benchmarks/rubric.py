"""Does a small model learn to write rubrics? Untrained, SFT and GRPO on held-out families, probes and a planted judge.

    python benchmarks/rubric.py [--seeds 0] [--cases learn,more-demonstrations,planted,probes] [--jobs 2]

`learn`: SFT on 30 of the expert's dialogues of the training families until it gets no better (the best validation on
other families is kept), then GRPO by `recipe=rubric`, then SFT on its own replies, so that it keeps their form.
All policies are evaluated on the same tasks of four families of which no workflow was seen, and compared in pairs.
`more-demonstrations`: SFT alone on ten times the dialogues.
`planted`: training on a judge that can be flattered must be stopped by the held-out judge. `probes`: what rubrics that
judge nothing earn. The other cases (`PLANS`) are `learn` with other settings.

With `--jobs`, every case and seed is a process of its own on one core; a result that exists is not computed again, so
that a run that was cut short goes on. Seed 0 has been used to choose the settings.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import functools
import json
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parallel_jobs import run_phases

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.data.run_folder import write_atomic
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.environments.rubric.environment import RubricEnvironment
from practicum.environments.rubric.rewards import REWARDS
from practicum.environments.rubric.short_form import SHORT_REPLIES
from practicum.errors import UserError
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult, result_from_episodes
from practicum.models import loader
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.training import build
from practicum.training.sft import SFTSettings, train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Outcome, Trajectory, plan_attempts

MAX_TOKENS = 64
METRICS = ("agreement", "spearman", "l1", "l2", "precision_at_3", "coverage", "questions", "num_rules", "valid")
PROBES = ("expert", "constant", "keywords", "generic", "opposite", "flatterer", "random")
FORM: dict[str, Any] = {"type": "regex", "regex": SHORT_REPLIES}
OWN_FORM = "GRPO, then its own form"
MIN_VALIDITY = 0.5
"""Share of valid rubrics that SFT must reach before RL begins."""
BEST_OF, BEST_OF_TASKS = 8, 60


@dataclass(frozen=True)
class Plan:
    """Settings of SFT and RL; the other settings of RL are those of the recipe."""

    demonstrations: int = 30
    epochs: int = 100
    sft_lr: float = 1e-3
    weight_decay: float = 1.0
    check_every: int = 40
    steps: int = 120
    tasks: int = 240
    form_lr: float = 3e-4
    imitated: int = 400
    """Training tasks whose replies under constrained decoding the model imitates after RL, without the constraint."""
    keys: tuple[str, ...] = ()


MORE = "more-demonstrations"
PLANS = {
    "learn": Plan(),
    MORE: Plan(demonstrations=300, epochs=20, check_every=75, steps=0),
    "rate-1e-4": Plan(keys=("actor_rollout_ref.actor.optim.lr=1e-4",)),
    "60-demonstrations": Plan(demonstrations=60, epochs=60, keys=("actor_rollout_ref.actor.optim.lr=1e-4",)),
    "800-demonstrations": Plan(demonstrations=800, epochs=12, check_every=150),
    "longer-sft": Plan(epochs=200, steps=0),
    "little-weight-decay": Plan(weight_decay=0.1, steps=0),
    "reinforce": Plan(keys=("algorithm.adv_estimator=reinforce",)),
    "more-dropout": Plan(keys=("agent.environment_args.criterion_dropout=0.2",)),
    "composite": Plan(keys=("agent.environment_args.reward=composite",)),
}


def environment(reward: str = "agreement") -> RubricEnvironment:
    return RubricEnvironment(form="short", reward=reward)


def agent(temperature: float, constrained: bool = True) -> Agent:
    sampling = Sampling(temperature, max_tokens=MAX_TOKENS)
    return Agent(format="hf", max_turns=3, sampling=sampling, response_format=FORM if constrained else None)


def figures(result: EvalResult) -> dict[str, float]:
    """Means over a panel; an attempt without a valid rubric counts with what the environment gave it."""
    rows = result.scored
    present = [name for name in METRICS if any(name in row.env_metrics for row in rows)]
    means = {name: statistics.fmean(row.env_metrics.get(name, 0.0) for row in rows) for name in present}
    verifier = statistics.fmean(row.components.get("verifier", 0.0) for row in rows)
    return {**means, "verifier": verifier, "reward": statistics.fmean(row.reward for row in rows),
            "success": result.success_rate}  # fmt: skip


def say(name: str, values: dict[str, float]) -> None:
    print(f"{name:<22} " + "  ".join(f"{key} {value:.3f}" for key, value in values.items()), flush=True)


def gains(panel: Panel, results: dict[str, EvalResult]) -> dict[str, Any]:
    """What RL changed: every metric with its interval and p, and the mean agreement in each family."""
    if "GRPO" not in results:
        return {}
    first, second = results["SFT"], results["GRPO"]
    deltas = compare_pair(first, second).deltas
    family = {task.id: str(task.fields["family"]) for task in panel.tasks}
    by_family: dict[str, list[float]] = defaultdict(list)
    before = {row.task: row.env_metrics["agreement"] for row in first.scored}
    for row in second.scored:
        by_family[family[row.task]].append(row.env_metrics["agreement"] - before[row.task])
    return {
        "differences": {d.name: [d.difference, d.interval.low, d.interval.high, d.p_value] for d in deltas},
        **own_form_gain(results),
        "families": {name: statistics.fmean(values) for name, values in by_family.items()},
    }


def own_form_gain(results: dict[str, EvalResult]) -> dict[str, Any]:
    """The difference in agreement between SFT and the model that has imitated its own form."""
    if OWN_FORM not in results:
        return {}
    deltas = {delta.name: delta for delta in compare_pair(results["SFT"], results[OWN_FORM]).deltas}
    mean = deltas["Mean agreement"]
    return {"own form - SFT": [mean.difference, mean.interval.low, mean.interval.high, mean.p_value]}


async def demonstrations(policy: TrainablePolicy, count: int, seed: int) -> list[Trajectory]:
    engine = ScriptedEngine.of("expert", environment(), make_format("hf"), policy.renderer)
    planned = plan_attempts(environment().tasks("train", count, seed + 1), 1, seed)
    return await run_episodes(planned, environment, agent(1.0, False), engine, policy.renderer)


async def train_start(policy: TrainablePolicy, plan: Plan, folder: Path, seed: int) -> None:
    """SFT; the weights of the best validation are kept."""
    expert_episodes = await demonstrations(policy, plan.demonstrations, seed)
    check = Panel(tuple(environment().tasks("val", min(100, plan.tasks), seed)), seed)
    settings = SFTSettings(
        num_epochs=plan.epochs, batch_size=16, gradient_accumulation_steps=1, learning_rate=plan.sft_lr,
        warmup_steps=20, weight_decay=plan.weight_decay, scheduler_type="cosine", check_every=plan.check_every,
        seed=seed,
    )  # fmt: skip

    async def evaluate() -> EvalResult:
        result, _ = await policy.evaluate("val", check, environment, agent(0.0))
        say("SFT, val", figures(result))
        return result

    await train_sft(policy, expert_episodes, settings, folder / "sft", evaluate=evaluate, say=lambda text: None)


async def train_form(policy: TrainablePolicy, plan: Plan, folder: Path, seed: int) -> None:
    """SFT on the model's own replies under constrained decoding, so that it keeps the form by itself.

    RL computes log-probs over the tokens that the form allows, so nothing holds down the others.
    """
    planned = plan_attempts(environment().tasks("train", plan.imitated, seed + 2), 1, seed)
    episodes = await policy.roll_out(planned, environment, agent(0.0))
    successes = [episode for episode in episodes if episode.outcome is Outcome.SUCCESS]
    say("imitated", {"episodes": len(successes)})
    if not successes:
        return
    settings = SFTSettings(
        num_epochs=2, batch_size=16, gradient_accumulation_steps=1, learning_rate=plan.form_lr, warmup_steps=5,
        scheduler_type="cosine", seed=seed,
    )  # fmt: skip
    await train_sft(policy, successes, settings, folder / "form", say=lambda text: None)


def rl_config(folder: Path, start: str, plan: Plan, seed: int, *keys: str) -> Any:
    return resolve_train(
        [
            "recipe=rubric", f"actor_rollout_ref.model.path={start}", f"trainer.default_local_dir={folder}",
            f"trainer.seed={seed}", "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]",
            "trainer.save_freq=-1", *plan.keys, *keys,
        ]
    ).config  # fmt: skip


async def best_of(policy: TrainablePolicy, panel: Panel) -> float:
    """The mean over tasks of the best agreement among eight sampled rubrics: what a perfect choice would reach."""
    planned = plan_attempts(panel.tasks[:BEST_OF_TASKS], BEST_OF, panel.seed)
    episodes = await policy.roll_out(planned, environment, agent(1.0))
    best: dict[str, float] = defaultdict(float)
    for episode in episodes:
        best[episode.task.id] = max(best[episode.task.id], float(episode.turns[-1].info.get("agreement", 0.0)))
    return statistics.fmean(best.values())


async def learn(plan: Plan, folder: Path, seed: int, model: str) -> dict[str, Any]:
    """SFT and GRPO, evaluated on held-out families."""
    panel = Panel(tuple(environment().tasks("test", plan.tasks, seed)), seed)
    started, results, unconstrained = time.monotonic(), {}, {}
    policy = TrainablePolicy(loader.load_tiny(seed) if model == "tiny" else loader.load(model), max_batch=128)

    async def evaluate(name: str, acting: TrainablePolicy) -> None:
        free, _ = await acting.evaluate(name, panel, environment, agent(0.0, False))
        unconstrained[name] = figures(free)["valid"]
        results[name], _ = await acting.evaluate(name, panel, environment, agent(0.0))
        say(name, {**figures(results[name]), "valid without constraint": unconstrained[name],
                   "minutes": (time.monotonic() - started) / 60, "processor": time.process_time() / 60})  # fmt: skip

    try:
        await evaluate("untrained", policy)
        await train_start(policy, plan, folder, seed)
        await evaluate("SFT", policy)
        best = await best_of(policy, panel)
    finally:
        await policy.close()
    if unconstrained["SFT"] < MIN_VALIDITY:
        print(f"Only {100 * unconstrained['SFT']:.0f} % of the SFT rubrics are valid without constrained decoding.")
    if plan.steps:
        keys = (f"trainer.total_training_steps={plan.steps}", "trainer.experiment_name=rl")
        run = build.build_run(rl_config(folder, str(folder / "sft" / "model"), plan, seed, *keys), say=print)
        try:
            await run.train()
            await evaluate("GRPO", run.policy)
            if plan.imitated:
                await train_form(run.policy, plan, folder, seed)
                await evaluate(OWN_FORM, run.policy)
        finally:
            await run.policy.close()
    return {
        "demonstrations": plan.demonstrations, "SFT best of 8": best, "valid unconstrained": unconstrained,
        "policies": {name: figures(result) for name, result in results.items()}, **gains(panel, results),
        "minutes": (time.monotonic() - started) / 60, "processor minutes": time.process_time() / 60,
    }  # fmt: skip


async def planted(plan: Plan, folder: Path, seed: int, model: str) -> dict[str, Any]:
    """Train on the judge that can be flattered, from random weights under constrained decoding; it should stop."""
    keys = (
        "trainer.experiment_name=planted", "agent.environment_args={form: short, reward: flattered, max_turns: 1}",
        "agent.max_turns=1", "trainer.total_training_steps=40", "data.val_batch_size=4", "data.train_batch_size=4",
        "actor_rollout_ref.actor.optim.lr=1e-3",
    )  # fmt: skip
    run = build.build_run(rl_config(folder, model, plan, seed, *keys), say=lambda text: None)
    sentence = ""
    try:
        await run.train()
    except UserError as error:
        sentence = str(error)
    finally:
        await run.policy.close()
    (path,) = (folder / "practicum" / "planted").glob("metrics.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    curve = [(line["reward/mean"], line.get("hacking/verifier/mean", 0.0)) for line in lines if "reward/mean" in line]
    print(f"planted judge: {len(curve)} steps; reward {curve[0][0]:.3f} -> {curve[-1][0]:.3f}, verifier "
          f"{curve[0][1]:.3f} -> {curve[-1][1]:.3f}\n{sentence}")  # fmt: skip
    return {"steps": len(curve), "curve": curve, "sentence": sentence}


async def probes(plan: Plan, folder: Path, seed: int, model: str) -> dict[str, Any]:
    """The mean reward of scripted rubrics under every reward."""
    policy = TrainablePolicy(loader.load_tiny(0), max_batch=8)
    panel = Panel(tuple(RubricEnvironment().tasks("test", min(200, plan.tasks), seed)), seed)
    rows: dict[str, Any] = {}
    for name in PROBES:
        rows[name] = {}
        for reward in REWARDS:
            engine = ScriptedEngine.of(name, RubricEnvironment(reward=reward), make_format("hf"), policy.renderer)
            maker = functools.partial(RubricEnvironment, reward=reward)
            episodes = await run_episodes(panel.attempts(), maker, agent(1.0, False), engine, policy.renderer)
            rows[name][reward] = figures(result_from_episodes(name, panel, episodes))["reward"]
        say(name, rows[name])
    await policy.close()
    return rows


Case = Callable[[Plan, Path, int, str], Awaitable[dict[str, Any]]]
CASES: dict[str, Case] = {**dict.fromkeys(PLANS, learn), "planted": planted, "probes": probes}


def run_case(name: str, seed: int, args: argparse.Namespace) -> None:
    """Run one case and seed in this process and write its result, unless it exists."""
    folder = args.out / f"{name}-{seed}"
    if (folder / "result.json").is_file():
        return
    plan = PLANS.get(name, Plan())
    if args.small:
        keys = (*plan.keys, "data.train_batch_size=2")
        plan = replace(plan, demonstrations=16, epochs=1, check_every=1, steps=min(1, plan.steps), tasks=4, keys=keys)
    folder.mkdir(parents=True, exist_ok=True)
    result = asyncio.run(CASES[name](plan, folder, seed, args.model))
    write_atomic(folder / "result.json", (json.dumps(result, indent=1) + "\n").encode())


def read_results(out: Path, cases: Sequence[str], seeds: Sequence[str]) -> dict[str, Any]:
    return {
        f"{name}, seed {seed}": json.loads((out / f"{name}-{seed}" / "result.json").read_text())
        for seed in seeds for name in cases
    }  # fmt: skip


def print_table(results: dict[str, Any]) -> None:
    """Questions, and the share of valid rubrics without constrained decoding, are after SFT, GRPO and its own form."""
    columns = ("case", "demonstrations", "untrained", "SFT", "SFT, best of 8", "GRPO", "GRPO − SFT [95 %]", "p")
    print(f"| {' | '.join((*columns, 'questions', 'valid'))} |\n|{'---|' * (len(columns) + 2)}")
    for label, result in results.items():
        if "policies" in result:
            print(f"| {label} | {' | '.join(cells(result))} |")
    for label, result in results.items():
        if "sentence" in result:
            print(f"{label}: {result['steps']} steps. {result['sentence']}")
        elif "constant" in result:
            for name, values in result.items():
                say(name, values)


def cells(result: dict[str, Any]) -> list[str]:
    """The cells of a case's row: the agreement of its policies, and what RL changed."""
    rows = result["policies"]
    agreement = {name: f"{row['agreement']:.3f}" for name, row in rows.items()}
    start = [str(result["demonstrations"]), agreement["untrained"], agreement["SFT"], f"{result['SFT best of 8']:.3f}"]
    names = [name for name in rows if name != "untrained"]
    questions = " → ".join(f"{rows[name]['questions']:.2f}" for name in names)
    free = " → ".join(f"{100 * result['valid unconstrained'][name]:.0f} %" for name in names)
    if "GRPO" not in rows:
        return [*start, "", "", "", questions, free]
    difference, low, high, p_value = result["differences"]["Mean agreement"]
    return [
        *start,
        agreement["GRPO"],
        f"{difference:+.3f} [{low:+.3f}, {high:+.3f}]",
        f"{p_value:.1g}",
        questions,
        free,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--cases", default=f"learn,{MORE},planted,probes", help=f"of {', '.join(CASES)}, or `all`")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one core each (default: 1, this one)")
    parser.add_argument("--model", default="tiny-pretrained")
    parser.add_argument("--small", action="store_true", help="a few updates only: does everything run?")
    parser.add_argument("--out", type=Path, default=Path("runs/rubric"))
    args = parser.parse_args()
    cases, seeds = list(CASES) if args.cases == "all" else args.cases.split(","), args.seeds.split(",")
    if unknown := [name for name in cases if name not in CASES]:
        sys.exit(f"There is no case {', '.join(unknown)}; the cases are {', '.join(CASES)}.")
    started = time.monotonic()
    if args.jobs > 1:
        common = [f"--model={args.model}", f"--out={args.out}", *(["--small"] if args.small else [])]
        jobs = [[f"--seeds={seed}", f"--cases={name}", *common] for seed in seeds for name in cases]
        run_phases(__file__, [jobs], args.jobs, args.out / "logs")
    for seed in seeds:
        for name in cases:
            run_case(name, int(seed), args)
    print_table(read_results(args.out, cases, seeds))
    print(f"{(time.monotonic() - started) / 60:.1f} minutes; figures in {args.out}/CASE-SEED/result.json")


if __name__ == "__main__":
    main()
