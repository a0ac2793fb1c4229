"""HTDAG's whole week with a small model: baseline, SFT, Flow-GRPO, evaluation, comparison, promotion, flag on.

    python benchmarks/htdag.py [--model tiny] [--out runs/htdag] [--figures docs/images] [KEY=VALUE ...]

Every stage is a command of `practicum`, printed before it runs; KEY=VALUE are further keys of `practicum train`. A
stage that is done is not done again; SFT and training continue from their last checkpoints. The planner learns from
training and validation requests alone; the panel of 100 requests and a larger one, both of held-out templates, are
looked at once, at the end.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import functools
import json
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from resumable_stages import run_command, run_stages

from practicum.data.run_folder import write_atomic
from practicum.environments.htdag.drawing import write_drawing
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.plots import read_curve
from practicum.evaluation.result import EvalResult, read_result
from practicum.planner import Planner, TaskDAG, benchmark
from practicum.planner.benchmark import PlanResult
from practicum.utils.tables import table

ROOT = Path(__file__).parents[1]
RESULTS = Path(__file__).parent / "results" / "htdag.json"
INTEGRATION_TEST = ROOT / "tests" / "planner" / "test_trained_policy.py"
SCRIPTED = ("random", "heuristic", "adapt", "expert")
BUDGETS: Mapping[str, str] = {
    "baseline": "2 h",
    "sft": "–",
    "train": "48–72 h",
    "evaluate": "4 h",
    "compare": "–",
    "promote": "2 h",
    "integration test": "–",
}
"""The stages, with the time that HTDAG plans for each."""


@dataclass(frozen=True)
class Plan:
    """Where everything is, and the sizes of SFT."""

    model: str
    out: Path
    seed: int
    requests: int
    whole: int
    epochs: int
    larger: int
    force: str
    keys: tuple[str, ...]

    @property
    def results(self) -> Path:
        return self.out / benchmark.FOLDER

    @property
    def sft(self) -> Path:
        return self.out / "sft"

    @property
    def rl(self) -> Path:
        return self.out / "runs" / "practicum" / "htdag-tiny"

    @property
    def registry(self) -> Path:
        return self.out / "registry"


def baseline(plan: Plan) -> None:
    run_command("htdag", "baseline", "--out", plan.results)


def sft(plan: Plan) -> None:
    rows = plan.out / "demonstrations.jsonl"
    if not rows.is_file():
        run_command(
            "htdag", "demonstrations", rows, "--requests", plan.requests, "--whole", plan.whole, "--seed", plan.seed
        )
    run_command(
        "sft", "--dataset-path", rows, "--model", plan.model, "--full", "--out", plan.sft, "--epochs", plan.epochs,
        "--seed", plan.seed, *SFT_KEYS,
    )  # fmt: skip


SFT_KEYS = (
    "--lr", "1.5e-3", "--batch-size", "24", "--warmup", "50", "training.weight_decay=0.3", "training.bf16=false",
    "training.min_lr_ratio=0.03", "data.group_by_task=true",
    "training.eval_steps=200", "training.save_steps=200", "training.save_total_limit=1", "data.val_share=0.005",
)  # fmt: skip


def train(plan: Plan) -> None:
    run_command(
        "train", "recipe=htdag-tiny", f"actor_rollout_ref.model.path={plan.sft}", f"trainer.seed={plan.seed}",
        f"trainer.default_local_dir={plan.out / 'runs'}", *plan.keys,
    )  # fmt: skip


def evaluate(plan: Plan) -> None:
    """Evaluate the SFT model and the trained one on both panels, and the scripted planners on the larger one."""
    panels: Mapping[str, Panel] = {
        "panel": benchmark.benchmark_panel(),
        "larger": benchmark.held_out_panel(plan.larger),
    }
    for name, panel in panels.items():
        for policy in SCRIPTED:
            results = benchmark.run_policy(policy, panel.tasks)
            benchmark.write_results(results, policy, plan.out / name / f"{policy}_results.json")
            benchmark.eval_result(results, policy, panel).write(plan.out / name / f"{policy}_eval.json")
        for policy, folder in (("sft", plan.sft), ("trained", plan.rl)):
            file = plan.out / name / f"{policy}_eval.json"
            _, results = benchmark.evaluate_policy(str(folder), file, progress=False, panel=panel)
            benchmark.write_results(results, policy, plan.out / name / f"{policy}_results.json")
    run_command("htdag", "evaluate", plan.rl, "--out", plan.results)


def compare(plan: Plan) -> None:
    run_command(
        "compare", plan.results / benchmark.BASELINE_EVAL, plan.results / benchmark.TRAINING_EVAL,
        "--oracle", plan.out / "panel" / "expert_eval.json", "--json", plan.out / "comparison.json",
    )  # fmt: skip


def promote(plan: Plan) -> None:
    run_command(
        "promote", plan.rl, "--name", "htdag", "--registry", plan.registry,
        "--baseline", plan.results / benchmark.BASELINE_EVAL, "--trained", plan.results / benchmark.TRAINING_EVAL,
        *(("--force", plan.force) if plan.force else ()),
    )  # fmt: skip


def integration_test(plan: Plan) -> None:
    """Run the integration test with the flag off and on."""
    for flag in ("false", "true"):
        environment = {**os.environ, "HTDAG_USE_TRAINED_POLICY": flag, "HTDAG_REGISTRY": str(plan.registry.resolve())}
        print(f"\n$ HTDAG_USE_TRAINED_POLICY={flag} pytest {INTEGRATION_TEST.relative_to(ROOT)}", flush=True)
        words = [sys.executable, "-m", "pytest", "-q", "-s", "-k", "panel", str(INTEGRATION_TEST)]
        if subprocess.run(words, env=environment, cwd=ROOT, check=False).returncode:
            raise SystemExit(f"the integration test fails with HTDAG_USE_TRAINED_POLICY={flag}")


STAGES: Mapping[str, Callable[[Plan], None]] = {
    "baseline": baseline,
    "sft": sft,
    "train": train,
    "evaluate": evaluate,
    "compare": compare,
    "promote": promote,
    "integration test": integration_test,
}


def check_plan(plan: Plan) -> None:
    """Refuse to go on in a folder in which another plan was begun."""
    file, text = plan.out / "plan.json", json.dumps(asdict(plan), default=str) + "\n"
    if file.is_file() and file.read_text() != text:
        raise SystemExit(f"Another plan was begun in '{plan.out}' ({file.read_text().strip()}); choose another --out.")
    write_atomic(file, text.encode())


def summary(plan: Plan, minutes: Mapping[str, Mapping[str, float]]) -> dict[str, Any]:
    """Return all figures: policies on both panels, comparisons, times, the curve of validations."""
    record: dict[str, Any] = {"model": plan.model, "seed": plan.seed, "stages": dict(minutes), "policies": {}}
    for name in ("panel", "larger"):
        for policy in (*SCRIPTED, "sft", "trained"):
            file = plan.out / name / f"{policy}_results.json"
            record["policies"].setdefault(policy, {})[name] = json.loads(file.read_text())["aggregated_metrics"]
        for before, after in (("heuristic", "trained"), ("sft", "trained"), ("heuristic", "sft")):
            pair = compare_pair(read(plan, name, before), read(plan, name, after))
            record.setdefault("comparisons", {})[f"{name}: {before} → {after}"] = pair.record()
    curve = read_curve(plan.rl / "metrics.jsonl")
    record["curve"] = [[row["step"], row["val/success/mean"]] for row in curve if "val/success/mean" in row]
    return record


def read(plan: Plan, panel: str, policy: str) -> EvalResult:
    return read_result(plan.out / panel / f"{policy}_eval.json")


def print_tables(record: Mapping[str, Any]) -> None:
    rows = []
    for policy, panels in record["policies"].items():
        cells = [policy]
        for name in ("panel", "larger"):
            panel = panels[name]
            limits = f"[{100 * panel['success_low']:.0f}, {100 * panel['success_high']:.0f}]"
            cells.append(f"{100 * panel['success_rate']:.1f} % {limits}")
        panel = panels["larger"]
        cells += [f"{100 * panel['mean_waste']:.1f} %", f"{100 * panel['cycle_error_rate']:.1f} %"]
        rows.append([*cells, f"{panel['mean_reward']:.2f}"])
    num_tasks = record["policies"]["expert"]["larger"]["total_tasks"]
    print(table(["policy", "panel of 100", f"{num_tasks} requests", "waste", "cycles", "reward"], rows))
    times = [
        [name, f"{stage['minutes']:.1f} min", f"{stage['processor_minutes']:.1f} min", BUDGETS[name]]
        for name, stage in record["stages"].items()
    ]
    total = [sum(stage[key] for stage in record["stages"].values()) for key in ("minutes", "processor_minutes")]
    times.append(["together", *(f"{value:.1f} min" for value in total), "one week"])
    print(table(["stage", "time", "processor time", "HTDAG's budget"], times))


def draw_figures(plan: Plan, folder: Path) -> None:
    """Draw the curve of validations, and one request as the SFT model and the trained one plan it."""
    draw_curve(read_curve(plan.rl / "metrics.jsonl"), folder / "htdag-curve.svg")
    before, after = (results_of(plan, policy) for policy in ("sft", "trained"))
    solved = [task_id for task_id, result in after.items() if result.success and not before[task_id].success]
    request = (after[solved[0]] if solved else next(iter(after.values()))).task_description
    for name, run in (("before", plan.sft), ("after", plan.rl)):
        dag = asyncio.run(planned(run, request))
        for suffix in ("svg", "png", "txt"):
            write_drawing(dag, folder / f"htdag-{name}.{suffix}", f"{name} training: {request}")


def draw_curve(rows: Sequence[Mapping[str, float]], path: Path) -> None:
    """Draw the success of training episodes (sampled) and on validation requests (greedy)."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "htdag", "svg.fonttype": "none", "font.size": 9}):
        figure = Figure(figsize=(6.4, 3.0), layout="constrained")
        axes = figure.add_subplot()
        for key, label, style in (
            ("success/mean", "training requests, sampled", {"color": "#9ab", "linewidth": 1.0}),
            ("val/success/mean", "validation requests, greedy", {"color": "#c60", "marker": "o", "markersize": 3}),
        ):
            points = [(row["step"], 100 * row[key]) for row in rows if key in row]
            axes.plot(*zip(*points, strict=True), label=label, **style)
        axes.set_xlabel("training step")
        axes.set_ylabel("requests solved, %")
        axes.grid(alpha=0.3)
        axes.legend(fontsize=8)
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, metadata={"Date": None})


def results_of(plan: Plan, policy: str) -> dict[str, PlanResult]:
    content = json.loads((plan.out / "panel" / f"{policy}_results.json").read_text())
    return {row["task_id"]: PlanResult(**row) for row in content["individual_results"]}


async def planned(run: Path, request: str) -> TaskDAG:
    return await Planner.from_checkpoint(run).plan(request)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny", help="what SFT starts from (default: tiny)")
    parser.add_argument("--out", type=Path, default=Path("runs/htdag"))
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=30000, help="training requests that the expert shows")
    parser.add_argument("--whole", type=int, default=10000, help="of these, requests of which all decisions are shown")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--larger", type=int, default=400, help="requests of the larger panel")
    parser.add_argument("--force", default="", metavar="REASON", help="promote even if the gate says no, and why")
    parser.add_argument("--figures", type=Path, help="folder for the curve and the drawings")
    parser.add_argument("keys", nargs="*", metavar="KEY=VALUE", help="further keys of `practicum train`")
    args = parser.parse_args()
    plan = Plan(
        args.model, args.out, args.seed, args.requests, args.whole, args.epochs, args.larger, args.force, (*args.keys,)
    )
    plan.out.mkdir(parents=True, exist_ok=True)
    check_plan(plan)
    minutes = run_stages(
        plan.out / "stages.json", {name: functools.partial(stage, plan) for name, stage in STAGES.items()}
    )
    record = summary(plan, minutes)
    write_atomic(plan.out / "summary.json", (json.dumps(record, indent=1) + "\n").encode())
    print_tables(record)
    if args.figures is not None:
        draw_figures(plan, args.figures)
        write_atomic(RESULTS, (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
