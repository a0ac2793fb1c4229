"""HALO's worker in a real Chromium: collect → export → BC → DPO → GRPO → matrix, each by its own command.

    python benchmarks/web_training.py [--model tiny-pretrained] [--seed 0] [--out runs/web] [--smoke] [KEY=VALUE ...]

An expert plays training tasks; BC imitates it, and its best checkpoint on tasks of validation templates is kept. The BC
model then plays some of these tasks, several episodes each: DPO learns from pairs of replies in one state, of which one
led to success, GRPO from new episodes of new training tasks. GRPO's best validation is kept too, on other tasks of the
same templates; the BC model itself is the first of them. All are evaluated, greedily, on tasks of held-out templates,
and neighbours are compared by McNemar's mid-p test. Every policy, also the model without training, chooses among the
actions that are legal on the page.
KEY=VALUE changes one number of the budget; --smoke is the smallest one. Run again, it continues where it stopped.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import random
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).parent))
from resumable_stages import run_command, run_stages

from practicum.data.run_folder import METRICS, checkpoint_path, checkpoint_steps, write_atomic
from practicum.environments.web.tasks import select_templates
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import read_panel
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.stats.intervals import LEVEL

ENVIRONMENT = {"observe": "brief", "prompt": "page", "text": False, "levels": [1, 2], "element_thoughts": True}
RESPONSE_FORMAT, MAX_TOKENS = "legal", 48
STAGES = ("collect", "bc", "log", "dpo", "grpo", "matrix")
MODES = ("zero", "bc", "dpo", "grpo")
STEPS = (("zero", "bc"), ("bc", "dpo"), ("bc", "grpo"), ("dpo", "grpo"))
"""Earlier and later stage of each comparison."""
ACTOR = "actor_rollout_ref.actor"
CHOICE = "choice.json"
"""In the folder of the BC model: success of its checkpoints on the validation templates, and the best one's update."""
VALIDATION = "val/success/mean"


@dataclass
class Budget:
    """What the stages may use."""

    demonstrations: int = 104
    """Tasks that the expert plays, one episode each."""
    demonstrated_templates: int = 0
    """Training templates that the expert's tasks are of, drawn by the seed; 0 for all 26. GRPO's tasks are of all."""
    bc_epochs: int = 8
    bc_validations: int = 4
    """Checkpoints of BC, the same number of updates apart, of which the best on validation templates is kept: more
    updates give more success on the training templates and less on others."""
    bc_batch: int = 16
    bc_lr: float = 5e-4
    validation: int = 78
    """Tasks of the validation templates on which checkpoints of BC and of GRPO are evaluated."""
    logged_tasks: int = 24
    """Tasks that the BC model plays for DPO."""
    logged_chains: int = 8
    """Episodes of each."""
    dpo_epochs: int = 2
    dpo_lr: float = 5e-5
    grpo_steps: int = 36
    grpo_tasks: int = 12
    """Tasks of one step."""
    grpo_chains: int = 8
    grpo_updates: int = 1
    """Updates of one step, of as many tasks each."""
    grpo_lr: float = 2e-4
    grpo_temperature: float = 1.0
    """At 1 a model that imitates hardly varies its replies, and all episodes of a task end alike."""
    grpo_kl: float = 0.05
    """Coefficient of the KL divergence to the BC model in GRPO's loss."""
    grpo_validations: int = 6
    """Validations after the first step, the same number of steps apart."""
    held_out: int = 198
    """Tasks of the held-out templates that every policy is evaluated on."""
    max_turns: int = 10


SMOKE = Budget(
    demonstrations=3, bc_epochs=2, bc_validations=2, validation=2, logged_tasks=2, logged_chains=1, dpo_epochs=1,
    grpo_steps=1, grpo_tasks=1, grpo_chains=2, grpo_validations=1, held_out=2, max_turns=3,
)  # fmt: skip
"""The smallest numbers that pass through every stage."""


AnyBudget = TypeVar("AnyBudget", bound=Any)


def run_commands(stage: Callable[[], Iterator[list[str]]]) -> None:
    for command in stage():
        run_command(*command)


def demonstrated_templates(seed: int, budget: Budget) -> list[str]:
    """The names of the templates whose tasks the expert plays; empty for all."""
    names = [template.name for template in select_templates("train", levels=ENVIRONMENT["levels"], text=False)]
    return sorted(random.Random(seed).sample(names, budget.demonstrated_templates))


class Stages:
    """The commands of one run, in one folder."""

    def __init__(
        self, out: Path, model: str, seed: int, budget: Budget, environment: str = "web", split: str = "test"
    ) -> None:
        self.out, self.model, self.seed, self.budget = out, model, seed, budget
        self.environment, self.split = environment, split
        self.bc_folder = out / "bc"
        """Where the BC model is; another run's, for several runs of GRPO from one model."""
        self.modes = MODES
        """The policies that are evaluated."""
        self.spent: dict[str, dict[str, float]] = {}
        """Minutes, and minutes of processor time, of the finished stages."""

    def run(self, names: Sequence[str] = STAGES) -> None:
        """Run those of the named stages that are not finished."""
        self.spent = run_stages(
            self.out / "stages.json", {name: functools.partial(run_commands, getattr(self, name)) for name in names}
        )

    def results(self) -> dict[str, EvalResult]:
        """Every policy's result on the held-out templates."""
        return {name: read_result(self.out / "matrix" / f"{name}.json") for name in self.modes}

    @property
    def bc_model(self) -> str:
        return str(self.bc_folder / "model")

    @property
    def episode_flags(self) -> list[str]:
        """Flags of commands that run episodes."""
        return self.make_episode_flags(ENVIRONMENT)

    @property
    def demonstration_flags(self) -> list[str]:
        """Flags of commands that run the tasks of the demonstrations."""
        return self.make_episode_flags(ENVIRONMENT | {"templates": demonstrated_templates(self.seed, self.budget)})

    def make_episode_flags(self, environment: Mapping[str, Any]) -> list[str]:
        options = [f"{key}={json.dumps(value)}" for key, value in environment.items()]
        flags = [flag for option in options for flag in ("--env-arg", option)]
        return ["--env", self.environment, *flags, "--max-turns", str(self.budget.max_turns),
                "--max-tokens", str(MAX_TOKENS), "--seed", str(self.seed)]  # fmt: skip

    def folder(self, name: str) -> str:
        return str(self.out / name)

    def collect(self) -> Iterator[list[str]]:
        folder, tasks = self.folder("episodes/shown"), str(self.budget.demonstrations)
        yield ["collect", *self.demonstration_flags, "--policy", "expert", "--tasks", tasks, "--out", folder]
        yield ["export", "--input_dir", folder, "--output_dir", self.folder("data"), "--format", "bc"]

    def bc(self) -> Iterator[list[str]]:
        """SFT with checkpoints; the one that solves most tasks of the validation templates becomes the BC model."""
        budget, rows, sft = self.budget, self.out / "data" / "bc.jsonl", self.bc_folder / "sft"
        num_updates = budget.bc_epochs * math.ceil(len(rows.read_text().splitlines()) / budget.bc_batch)
        yield [
            "sft", "--dataset_path", str(rows), "--model", self.model, "--full", "--output_dir", str(sft),
            f"training.num_epochs={budget.bc_epochs}", f"training.batch_size={budget.bc_batch}", "data.val_share=0",
            "training.gradient_accumulation_steps=1", f"training.learning_rate={budget.bc_lr}",
            "training.warmup_steps=20", "training.scheduler_type=cosine", "training.bf16=false",
            "training.gradient_checkpointing=false", "training.eval_steps=-1", "training.save_total_limit=null",
            f"training.save_steps={math.ceil(num_updates / budget.bc_validations)}", f"training.seed={self.seed}",
        ]  # fmt: skip
        steps, validations = checkpoint_steps(sft), self.bc_folder / "validations"
        modes = (f"step-{step}={checkpoint_path(sft, step)}" for step in steps)
        yield ["matrix", "--mode", *modes, *self.episode_flags, "--response-format", RESPONSE_FORMAT, "--split", "val",
               "--tasks", str(budget.validation), "--out", str(validations)]  # fmt: skip
        rates = {step: read_result(validations / f"step-{step}.json").success_rate for step in steps}
        best = max(steps, key=lambda step: (rates[step], step))
        shutil.copytree(checkpoint_path(sft, best) / "actor", self.bc_model, dirs_exist_ok=True)
        write_atomic(self.bc_folder / CHOICE, (json.dumps({"best": best, "validations": rates}) + "\n").encode())
        shutil.rmtree(sft)

    def log(self) -> Iterator[list[str]]:
        """Episodes of the BC model on tasks that the expert has played too."""
        budget = self.budget
        yield [
            "collect", *self.demonstration_flags, "--response-format", RESPONSE_FORMAT,
            "--policy", self.bc_model, "--tasks", str(budget.logged_tasks),
            "--rollouts_per_task", str(budget.logged_chains), "--temperature", "1",
            "--out", self.folder("episodes/logged"),
        ]  # fmt: skip
        yield ["export", "--input_dir", self.folder("episodes"), "--output_dir", self.folder("data"), "--format", "dpo",
               "--pairing_strategy", "same_state", "--skip-empty"]  # fmt: skip

    def dpo(self) -> Iterator[list[str]]:
        budget = self.budget
        yield [
            "dpo", "--dataset_path", self.folder("data/dpo.jsonl"), "--model", self.bc_model, "--full",
            "--output_dir", self.folder("dpo"), f"training.num_epochs={budget.dpo_epochs}", "training.batch_size=16",
            "training.gradient_accumulation_steps=1", f"training.learning_rate={budget.dpo_lr}",
            "training.bf16=false", "training.gradient_checkpointing=false", "training.save_steps=-1",
            f"training.seed={self.seed}",
        ]  # fmt: skip

    def grpo(self) -> Iterator[list[str]]:
        """The result is the best validation's model, where that of the first is the BC model's."""
        budget = self.budget
        yield [
            "train", "recipe=web-tiny", f"agent.environment={self.environment}",
            f"actor_rollout_ref.model.path={self.bc_model}", f"agent.num_chains={budget.grpo_chains}",
            f"agent.max_turns={budget.max_turns}", f"data.train_batch_size={budget.grpo_tasks}",
            f"data.val_batch_size={budget.validation}", "trainer.val_before_train=true",
            f"trainer.test_freq={math.ceil(budget.grpo_steps / budget.grpo_validations)}",
            f"{ACTOR}.ppo_mini_batch_size={budget.grpo_tasks // budget.grpo_updates}",
            f"{ACTOR}.optim.lr={budget.grpo_lr}", f"actor_rollout_ref.rollout.temperature={budget.grpo_temperature}",
            *([f"{ACTOR}.use_kl_loss=true", f"{ACTOR}.kl_loss_coef={budget.grpo_kl}"] if budget.grpo_kl else []),
            f"trainer.total_training_steps={budget.grpo_steps}", "trainer.save_freq=3", f"trainer.seed={self.seed}",
            f"trainer.default_local_dir={self.out}", "trainer.project_name=grpo", "trainer.experiment_name=run",
        ]  # fmt: skip

    def matrix(self) -> Iterator[list[str]]:
        policies = {"zero": self.model, "bc": self.bc_model, "dpo": f"{self.folder('dpo')}/model",
                    "grpo": self.folder("grpo/run")}  # fmt: skip
        modes = [f"{name}={policies[name]}" for name in self.modes]
        yield ["matrix", "--mode", *modes, *self.episode_flags, "--response-format", RESPONSE_FORMAT,
               "--tasks", str(self.budget.held_out), "--split", self.split, "--baseline", "bc",
               "--out", self.folder("matrix")]  # fmt: skip

    def validations(self) -> dict[str, dict[str, float]]:
        """Success on the validation templates by update of BC and by step of GRPO, as far as there are any."""
        choice, metrics = self.bc_folder / CHOICE, self.out / "grpo" / "run" / METRICS
        rates: dict[str, dict[str, float]] = {}
        if choice.is_file():
            rates["bc"] = json.loads(choice.read_text())["validations"]
        if metrics.is_file():
            rows = [json.loads(line) for line in metrics.read_text().splitlines()]
            rates["grpo"] = {row["step"]: row[VALIDATION] for row in rows if VALIDATION in row}
        return rates

    def templates(self) -> dict[str, str]:
        """The template of every held-out task, by the task's id."""
        panel = read_panel(self.out / "matrix" / "bc.run" / "panel.json")
        return {task.id: str(task.fields["template"]) for task in panel.tasks}


def score(result: EvalResult) -> str:
    interval = result.interval(LEVEL)
    return f"{100 * result.success_rate:.1f} % [{100 * interval.low:.1f}, {100 * interval.high:.1f}]"


def stage_table(results: Mapping[str, EvalResult]) -> Iterator[str]:
    """Every policy with its interval, then every comparison."""
    yield "| policy | success [95 %] |"
    yield "|---|---|"
    for name, result in results.items():
        yield f"| {name} | {score(result)} |"
    yield ""
    yield "| step | difference, points [95 %] | p | verdict |"
    yield "|---|---|---|---|"
    for first, second in STEPS:
        comparison = compare_pair(results[first], results[second])
        gain = comparison.success
        low, high = 100 * gain.interval.low, 100 * gain.interval.high
        difference = f"{100 * gain.difference:+.1f} [{low:.1f}, {high:.1f}]"
        yield f"| {first} → {second} | {difference} | {gain.p_value:.1g} | {comparison.conclusion} |"


def template_rates(results: Mapping[str, EvalResult], templates: Mapping[str, str]) -> dict[str, dict[str, float]]:
    """The success rate of every policy on every held-out template."""
    rates: dict[str, dict[str, float]] = {}
    for template in sorted(set(templates.values())):
        rates[template] = {}
        for name, result in results.items():
            scores = [value for task, value in result.success_by_task().items() if templates[task] == template]
            rates[template][name] = sum(scores) / len(scores)
    return rates


def template_table(rates: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    names = list(next(iter(rates.values())))
    yield "| held-out template | " + " | ".join(names) + " |"
    yield "|---|" + "---|" * len(names)
    for template, row in rates.items():
        yield f"| `{template}` | " + " | ".join(f"{100 * row[name]:.0f} %" for name in names) + " |"


def comparison_record(first: EvalResult, second: EvalResult, modes: bool = False) -> dict[str, Any]:
    """With `modes`, settings of the agent may differ."""
    comparison = compare_pair(first, second, modes=modes)
    gain = comparison.success
    return {"difference": gain.difference, "low": gain.interval.low, "high": gain.interval.high, "p": gain.p_value,
            "verdict": comparison.conclusion}  # fmt: skip


def time_line(spent: Mapping[str, Mapping[str, float]]) -> str:
    parts = ", ".join(f"{name} {row['minutes']:.1f} ({row['processor_minutes']:.1f})" for name, row in spent.items())
    minutes, processor_minutes = (sum(row[key] for row in spent.values()) for key in ("minutes", "processor_minutes"))
    return f"{minutes:.1f} minutes, {processor_minutes:.1f} of processor time: {parts}"


def read_budget(changes: Sequence[str], start: AnyBudget) -> AnyBudget:
    """A budget with some of its numbers changed by KEY=VALUE."""
    types = {field.name: type(field.default) for field in fields(start)}
    values: dict[str, Any] = {}
    for change in changes:
        key, _, value = change.partition("=")
        if key not in types:
            raise SystemExit(f"The budget has no '{key}': {', '.join(types)}.")
        values[key] = types[key](value)
    return replace(start, **values)


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny-pretrained")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("runs/web"))
    parser.add_argument("--env", default="web", help="another environment with the same options")
    parser.add_argument("--split", default="test", help="templates to evaluate on; val for tuning")
    parser.add_argument("--until", choices=STAGES, default=STAGES[-1], help="stop after this stage")
    parser.add_argument("--results", type=Path, help="JSON file for the figures")
    parser.add_argument("--smoke", action="store_true", help="the smallest budget: a minute")
    parser.add_argument("budget", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_args(argv)
    budget = read_budget(args.budget, SMOKE if args.smoke else Budget())
    stages = Stages(args.out, args.model, args.seed, budget, args.env, args.split)
    stages.run(STAGES[: STAGES.index(args.until) + 1])
    if args.until != STAGES[-1]:
        return
    results = stages.results()
    rates = template_rates(results, stages.templates())
    print("\n" + "\n".join([*stage_table(results), "", *template_table(rates)]))
    print("\n" + time_line(stages.spent))
    record = {
        "model": args.model,
        "seed": args.seed,
        "budget": asdict(stages.budget),
        "stages": stages.spent,
        "validations": stages.validations(),
        "policies": {name: result.summary() for name, result in results.items()},
        "comparisons": {f"{a} → {b}": comparison_record(results[a], results[b]) for a, b in STEPS},
        "templates": rates,
    }
    write_atomic(args.results or args.out / "results.json", (json.dumps(record, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
