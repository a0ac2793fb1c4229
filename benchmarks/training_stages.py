"""Does every training stage improve on the one before? `math` with `tiny-pretrained`, three seeds, one fixed budget.

    python benchmarks/training_stages.py [--seeds 3,4,5] [--jobs 6] [--out runs/training_stages]

For each seed: base (`tiny-pretrained`) → BC (SFT on the quickstart's demonstrations, the best of its validations) →
DPO on pairs mined from the BC agent's own rollouts, and offline GRPO on the same rollouts → online GRPO from BC.
Rollouts and online GRPO are of the problems of the quickstart's RL, mostly the hardest. Every policy is evaluated on
the same held-out tasks of all levels, greedy; pairs of stages are compared by McNemar's mid-p test, over the tasks of
each seed and over those of all seeds together, with p-values also corrected over all pairs of either kind (Holm).
The budget is the same for every seed; rates and steps after BC were chosen on seeds 10 and 11, where SFT was stopped
early. A stage that is finished is not trained again, so that stages and seeds may run in processes of their own; the
table is printed when all are there.
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
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from parallel_jobs import run_phases

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.data import store
from practicum.data.run_folder import write_atomic
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.environments.math import MathEnvironment
from practicum.evaluation.compare import Comparison, compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.stats.intervals import LEVEL
from practicum.evaluation.stats.multiple_testing import holm
from practicum.models import loader
from practicum.quickstart import DEMONSTRATION_LEVELS, DEMONSTRATIONS, LEVELS, MODEL, RL_LEVELS, SFT_VALIDATIONS
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.training import build
from practicum.training.dpo import DPOSettings, train_dpo
from practicum.training.preference_pairs import mine_pairs
from practicum.training.sft import SFTSettings, planned_steps, train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory, plan_attempts

SEEDS = (3, 4, 5)
HELD_OUT = 300
ACTOR = "actor_rollout_ref.actor"
CLOCKS = ("minutes", "cpu_minutes")
TEN_TIMES = "BC on ten times the demonstrations"
STEPS = (
    ("base", "BC"), ("BC", "DPO"), ("BC", "offline GRPO"), ("BC", "online GRPO"), ("DPO", "online GRPO"),
    ("offline GRPO", "online GRPO"), ("online GRPO", TEN_TIMES),
)  # fmt: skip
"""Earlier and later policy of each comparison."""
STAGES = ("imitation", "ten_times", "rollouts", "preference", "offline", "online")
"""Methods of `StageComparison`. `rollouts` and `online` need `imitation`; the two between them need `rollouts`."""


@dataclass(frozen=True)
class Budget:
    """The budget of every seed. The BC model is the best of the validations of SFT on `demonstrations`; what SFT
    reaches on ten times as many is evaluated beside it."""

    demonstrations: int = DEMONSTRATIONS
    imitation_epochs: int = 25
    ten_times_epochs: int = 10
    imitation_batch: int = 8
    imitation_weight_decay: float = 1.0
    logged_tasks: int = 400
    logged_chains: int = 8
    pairs_a_task: int = 4
    preference_epochs: int = 2
    preference_lr: float = 5e-5
    preference_beta: float = 0.1
    offline_steps: int = 80
    offline_lr: float = 1e-4
    offline_floor: float = 0.5
    offline_cap: float = 1.5
    offline_kl: float = 0.01
    online_steps: int = 50


BUDGET = Budget()


def make_environment() -> MathEnvironment:
    return MathEnvironment(levels=LEVELS)


def agent(temperature: float) -> Agent:
    return Agent(format="hf", max_turns=max(LEVELS) + 2, sampling=Sampling(temperature, max_tokens=32))


def tasks(split: str, count: int, seed: int, stream: int, levels: Sequence[int] = LEVELS) -> list[Task]:
    return list(MathEnvironment(levels=levels).tasks(split, count, 1000 * seed + stream))


async def evaluate(policy: TrainablePolicy, name: str, panel: Panel) -> EvalResult:
    result, _ = await policy.evaluate(name, panel, make_environment, agent(0.0))
    return result


class StageComparison:
    """The stages of one seed, in a folder of their own."""

    def __init__(self, folder: Path, seed: int, budget: Budget = BUDGET) -> None:
        self.folder, self.seed, self.budget = folder, seed, budget
        self.panel = Panel(tuple(tasks("test", HELD_OUT, seed, 0)), seed)
        self.figures: dict[str, float] = {}

    @property
    def start(self) -> Path:
        return self.folder / "bc" / "model"

    @property
    def log(self) -> Path:
        return self.folder / "rollouts"

    async def run(self, stages: Sequence[str]) -> dict[str, EvalResult]:
        """Run the named stages that are not finished; returns the results of all that are."""
        for stage in stages:
            if self._path(stage).exists():
                continue
            started, cpu_started = time.monotonic(), time.process_time()
            self.figures = {}
            results = await getattr(self, stage)()
            for name, result in results.items():
                result.write(self._path(stage).with_name(f"{name}.json"))
            record = {
                "policies": list(results),
                "minutes": (time.monotonic() - started) / 60,
                "cpu_minutes": (time.process_time() - cpu_started) / 60,
                "figures": self.figures,
            }
            write_atomic(self._path(stage), (json.dumps(record) + "\n").encode())
        return self.finished()

    def _path(self, stage: str) -> Path:
        return self.folder / "results" / f"stage-{stage}.json"

    def records(self) -> dict[str, dict[str, Any]]:
        """What is recorded of every finished stage."""
        return {stage: json.loads(self._path(stage).read_text()) for stage in STAGES if self._path(stage).exists()}

    def finished(self) -> dict[str, EvalResult]:
        names = [name for record in self.records().values() for name in record["policies"]]
        return {name: read_result(self.folder / "results" / f"{name}.json") for name in names}

    async def imitation(self) -> dict[str, EvalResult]:
        """The untrained model, and the model trained on demonstrations (BC)."""
        policy, budget = TrainablePolicy(loader.load(MODEL), max_batch=128), self.budget
        try:
            base = await evaluate(policy, "base", self.panel)
        finally:
            await policy.close()
        first_stage = await self._imitate("BC", self.folder / "bc", budget.demonstrations, budget.imitation_epochs)
        return {"base": base, "BC": first_stage}

    async def ten_times(self) -> dict[str, EvalResult]:
        """A model trained on ten times the demonstrations."""
        budget = self.budget
        epochs = budget.ten_times_epochs
        return {TEN_TIMES: await self._imitate(TEN_TIMES, self.folder / "bc-10x", 10 * budget.demonstrations, epochs)}

    async def _imitate(self, name: str, folder: Path, demonstrations: int, epochs: int) -> EvalResult:
        """SFT to the best of eight or nine validations, written to `folder`/model, and its score on the panel."""
        policy = TrainablePolicy(loader.load(MODEL), max_batch=128)
        try:
            engine = ScriptedEngine.of("expert", make_environment(), make_format("hf"), policy.renderer)
            demonstrated = tasks("train", demonstrations, self.seed, 1, DEMONSTRATION_LEVELS)
            planned = plan_attempts(demonstrated, 1, self.seed)
            shown = await run_episodes(planned, make_environment, agent(1.0), engine, policy.renderer)
            settings = SFTSettings(
                num_epochs=epochs, batch_size=self.budget.imitation_batch, gradient_accumulation_steps=1,
                learning_rate=1e-3, warmup_steps=30, weight_decay=self.budget.imitation_weight_decay,
                scheduler_type="cosine", seed=self.seed,
            )  # fmt: skip
            settings = replace(settings, check_every=max(1, planned_steps(len(shown), settings) // SFT_VALIDATIONS))
            check = Panel(tuple(tasks("val", 100, self.seed, 0)), self.seed)
            shutil.rmtree(folder, ignore_errors=True)
            await train_sft(policy, shown, settings, folder, evaluate=lambda: evaluate(policy, "val", check))
            return await evaluate(policy, name, self.panel)
        finally:
            await policy.close()

    async def rollouts(self) -> dict[str, EvalResult]:
        """The BC agent's own episodes, on disk: what DPO and offline GRPO learn from."""
        shutil.rmtree(self.log, ignore_errors=True)
        policy, budget = TrainablePolicy(loader.load(str(self.start)), max_batch=128), self.budget
        try:
            logged = tasks("train", budget.logged_tasks, self.seed, 2, RL_LEVELS)
            planned = plan_attempts(logged, budget.logged_chains, self.seed)
            episodes = await policy.roll_out(planned, make_environment, agent(1.0))
        finally:
            await policy.close()
        for episode in episodes:
            store.write_episode(self.log, episode)
        self.figures["logged_episodes"] = len(episodes)
        self.figures["logged_success"] = sum(e.reward > 0 for e in episodes) / len(episodes)
        return {}

    async def preference(self) -> dict[str, EvalResult]:
        budget = self.budget
        logged: list[Trajectory] = list(store.read_episodes(self.log))
        pairs = [mined.pair for mined in mine_pairs(logged, "same_state", budget.pairs_a_task)]
        self.figures["pairs"] = len(pairs)
        policy = TrainablePolicy(loader.load(str(self.start)), max_batch=128)
        settings = DPOSettings(
            num_epochs=budget.preference_epochs,
            batch_size=16,
            gradient_accumulation_steps=1,
            learning_rate=budget.preference_lr,
            weight_decay=0.0,
            beta=budget.preference_beta,
            seed=self.seed,
        )
        try:
            await train_dpo(policy, pairs, settings)
            return {"DPO": await evaluate(policy, "DPO", self.panel)}
        finally:
            await policy.close()

    async def offline(self) -> dict[str, EvalResult]:
        budget = self.budget
        return await self._train(
            "offline GRPO", budget.offline_steps, f"data.from_trajectories={self.log}", f"{ACTOR}.use_kl_loss=true",
            f"{ACTOR}.optim.lr={budget.offline_lr}", f"{ACTOR}.kl_loss_coef={budget.offline_kl}",
            f"{ACTOR}.clip_ratio_low={1 - budget.offline_floor}", f"{ACTOR}.clip_ratio_high={budget.offline_cap - 1}",
        )  # fmt: skip

    async def online(self) -> dict[str, EvalResult]:
        return await self._train("online GRPO", self.budget.online_steps)

    async def _train(self, name: str, steps: int, *extra_overrides: str) -> dict[str, EvalResult]:
        """`practicum train` from the BC model, then the panel."""
        label = name.replace(" ", "-")
        shutil.rmtree(self.folder / "training_stages" / label, ignore_errors=True)
        overrides = [
            "recipe=math-tiny", f"actor_rollout_ref.model.path={self.start}", f"trainer.total_training_steps={steps}",
            f"trainer.seed={self.seed}", f"trainer.default_local_dir={self.folder}",
            "trainer.project_name=training_stages",
            f"trainer.experiment_name={label}", "trainer.val_before_train=false", "trainer.test_freq=-1",
            "trainer.logger=[]", *extra_overrides,
        ]  # fmt: skip
        run = build.build_run(resolve_train(overrides).config)
        try:
            await run.train()
            return {name: await evaluate(run.policy, name, self.panel)}
        finally:
            await run.policy.close()


def pooled(results: Mapping[int, EvalResult]) -> EvalResult:
    """One policy's scores on the tasks of all seeds: every seed has its own model and its own tasks."""
    first = next(iter(results.values()))
    return replace(
        first,
        panel="all seeds",
        num_tasks=sum(result.num_tasks for result in results.values()),
        attempts=tuple(
            replace(
                attempt,
                task=f"{seed}/{attempt.task}",
                cluster=f"{seed}/{attempt.cluster}",
                goal=None if attempt.goal is None else f"{seed}/{attempt.goal}",
            )
            for seed, result in results.items()
            for attempt in result.attempts
        ),
    )


def compare_steps(results_by_seed: Mapping[int, Mapping[str, EvalResult]]) -> dict[str, dict[str, Comparison]]:
    """The comparisons of every step, by seed and over `all` seeds.

    P-values are corrected (Holm) over the steps of all seeds, and those over all seeds over the steps.
    """
    single = {
        (a, b, str(seed)): compare_pair(stages[a], stages[b])
        for a, b in STEPS
        for seed, stages in results_by_seed.items()
    }
    together = {
        (a, b, "all"): compare_pair(
            *(pooled({seed: stages[name] for seed, stages in results_by_seed.items()}) for name in (a, b))
        )
        for a, b in STEPS
    }
    comparisons: dict[str, dict[str, Comparison]] = {f"{a} → {b}": {} for a, b in STEPS}
    for family in (single, together):
        corrected = holm([pair.p_corrected for pair in family.values()])
        for ((a, b, seed), pair), p_value in zip(family.items(), corrected, strict=True):
            comparisons[f"{a} → {b}"][seed] = replace(pair, p_corrected=p_value, num_comparisons=len(family))
    return comparisons


def row(label: str, seed: str, comparison: Comparison) -> str:
    gain = comparison.success
    return (
        f"| {label} | {seed} | {100 * comparison.baseline.success_rate:.1f} % | "
        f"{100 * comparison.trained.success_rate:.1f} % | {100 * gain.difference:+.1f} "
        f"[{100 * gain.interval.low:.1f}, {100 * gain.interval.high:.1f}] | {gain.p_value:.1g} | "
        f"{comparison.p_corrected:.1g} | {comparison.conclusion} |"
    )


def comparison_record(comparison: Comparison) -> dict[str, Any]:
    gain = comparison.success
    return {"difference": gain.difference, "low": gain.interval.low, "high": gain.interval.high, "p": gain.p_value,
            "p_holm": comparison.p_corrected, "num_comparisons": comparison.num_comparisons, "n": gain.num_tasks,
            "verdict": comparison.conclusion}  # fmt: skip


def table(results_by_seed: Mapping[int, Mapping[str, EvalResult]]) -> Iterator[str]:
    """Every policy with its interval, then every comparison, each seed's and all seeds' together."""
    yield "| policy | " + " | ".join(f"seed {seed} [95 %]" for seed in results_by_seed) + " |"
    yield "|---|" + "---|" * len(results_by_seed)
    for name in next(iter(results_by_seed.values())):
        results = [stages[name] for stages in results_by_seed.values()]
        pairs = ((r.success_rate, r.interval(LEVEL)) for r in results)
        cells = (
            f"{100 * rate:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]" for rate, interval in pairs
        )
        yield f"| {name} | " + " | ".join(cells) + " |"
    yield ""
    yield "| step | seed | lower | higher | difference, points [95 %] | p | p (Holm) | verdict |"
    yield "|---|---|---|---|---|---|---|---|"
    for label, by_seed in compare_steps(results_by_seed).items():
        for seed, comparison in by_seed.items():
            yield row(f"**{label}**" if seed == "all" else label, seed, comparison)


def seed_record(
    comparison: StageComparison, results: Mapping[str, EvalResult], steps: Mapping[str, Mapping[str, Comparison]]
) -> dict[str, Any]:
    stages, seed = comparison.records(), str(comparison.seed)
    figures = {name: value for stage in stages.values() for name, value in stage["figures"].items()}
    return {
        "panel": comparison.panel.hash,
        "policies": {name: result.summary() for name, result in results.items()},
        "comparisons": {label: comparison_record(by_seed[seed]) for label, by_seed in steps.items()},
        "minutes": {name: stage["minutes"] for name, stage in stages.items()},
        "cpu_minutes": {name: stage["cpu_minutes"] for name, stage in stages.items()},
        **figures,
    }


def planned_phases(seeds: Sequence[str], out: Path) -> list[list[list[str]]]:
    """The arguments of the processes that train all stages: those of a phase need nothing but the phases before it."""
    phases = (("imitation", "ten_times"), ("rollouts", "online"), ("preference", "offline"))
    return [
        [["--seeds", seed, "--stages", stage, "--out", str(out)] for stage in stages for seed in seeds]
        for stages in phases
    ]


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default=",".join(map(str, SEEDS)))
    parser.add_argument("--stages", default=",".join(STAGES), help="comma-separated (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one core each (default: 1, this one)")
    parser.add_argument("--out", type=Path, default=Path("runs/training_stages"))
    parser.add_argument("--results", type=Path, default=Path(__file__).parent / "results" / "training_stages.json")
    args = parser.parse_args()
    if args.jobs > 1:
        run_phases(__file__, planned_phases(args.seeds.split(","), args.out), args.jobs, args.out / "logs")
    comparisons = {seed: StageComparison(args.out / f"seed-{seed}", seed) for seed in map(int, args.seeds.split(","))}
    results_by_seed: dict[int, dict[str, EvalResult]] = {}
    for seed, comparison in comparisons.items():
        results_by_seed[seed] = await comparison.run(args.stages.split(","))
        scores = ", ".join(
            f"{name} {100 * result.success_rate:.1f} %" for name, result in results_by_seed[seed].items()
        )
        print(f"seed {seed}: {scores}", flush=True)
    if any(set(comparison.records()) != set(STAGES) for comparison in comparisons.values()):
        print("Not all stages are finished; the table comes when they are.")
        return
    steps = compare_steps(results_by_seed)
    record = {
        "budget": asdict(BUDGET),
        "held_out": HELD_OUT,
        "seeds": {
            seed: seed_record(comparison, results_by_seed[seed], steps) for seed, comparison in comparisons.items()
        },
        "pooled": {label: comparison_record(by_seed["all"]) for label, by_seed in steps.items()},
    }
    write_atomic(args.results, (json.dumps(record, indent=1) + "\n").encode())
    print()
    print("\n".join(table(results_by_seed)))
    minutes = [sum(stage[k] for c in comparisons.values() for stage in c.records().values()) for k in CLOCKS]
    print(f"\n{minutes[0]:.1f} minutes in all, {minutes[1]:.1f} of processor time; figures in {args.results}")


if __name__ == "__main__":
    asyncio.run(main())
