"""Does a trained manager help? HALO's worker alone against a manager that gives it sub-goals, on multi-step tasks.

    python benchmarks/web_manager.py [--seeds 0] [--variants default] [--jobs 16] [--split val] [KEY=VALUE ...]

For each variant of the budget and each seed, all from the same model and the same training tasks:
  alone        SFT of a worker on the expert's episodes, then GRPO of it;
  guided       SFT of one model in both roles on the expert's episodes under a manager (`manager_calls=return`: the
               worker is shown a sub-goal in place of the goal, and comes back to the manager when it is done);
  manager      GRPO of the manager, the worker being frozen;
  both         GRPO of both roles, with an adapter each over the guided model.
All are evaluated, greedily, on the same multi-step tasks (level 3, no typing) of held-out templates, with the scripted
manager as a bound beside them, and compared with the better worker alone by McNemar's mid-p test. Jobs are processes of
their own; run again, all continue where they stopped. Tune with `--split val`, then `--split test` once.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parent))
from parallel_jobs import TimedProcesses
from resumable_stages import run_command, run_stages
from web_training import RESPONSE_FORMAT, comparison_record, read_budget, score, template_rates, template_table

from practicum.data.run_folder import write_atomic
from practicum.evaluation.panel import read_panel
from practicum.evaluation.result import EvalResult, read_result

WITHOUT_BROWSER = f"{Path(__file__).with_name('web_without_browser.py')}:WebWithoutBrowser"
ENVIRONMENT = {"observe": "brief", "prompt": "page", "text": False, "element_thoughts": True}
MANAGED = {"manager": "model", "manager_calls": "return"}
MULTI_STEP = [3]
MAX_TOKENS = 160
"""More than the longest sub-goal has."""
PHASES = (("alone", "guided"), ("alone-grpo", "manager", "both"))
"""Jobs of a case; those of a phase need nothing but the phases before it."""
POLICIES = {
    "worker-sft": "alone", "worker-grpo": "alone-grpo", "scripted-manager": "guided", "sft-manager": "guided",
    "grpo-manager": "manager", "grpo-both": "both",
}  # fmt: skip
"""The job that evaluates each policy."""
ALONE = ("worker-sft", "worker-grpo")
ACTOR = "actor_rollout_ref.actor"


@dataclass(frozen=True)
class Budget:
    """What the jobs may use."""

    demonstrations: int = 400
    """Training tasks of all levels that the expert plays, once alone and once under a manager."""
    wander: int = 0
    """Links that are followed at random before an expert's episode, at most: a sub-goal begins on any page."""
    manager_demonstrations: int = 400
    """Multi-step training tasks, also with typing, of which the manager's replies are learned."""
    sft_epochs: int = 2
    sft_lr: float = 5e-4
    grpo_steps: int = 12
    grpo_tasks: int = 6
    """Multi-step training tasks of one step."""
    grpo_chains: int = 8
    worker_lr: float = 1e-4
    manager_lr: float = 1e-4
    adapter_lr: float = 5e-4
    adapter_rank: int = 16
    reward: str = "success"
    validation: int = 60
    """Multi-step tasks of the validation templates on which every training by GRPO is evaluated; the best is kept."""
    validations: int = 4
    """Of them after the first step, the same number of steps apart."""
    held_out: int = 210
    """Tasks of the held-out templates that every policy is evaluated on."""
    max_turns: int = 20


SMOKE = Budget(
    demonstrations=3,
    manager_demonstrations=2,
    sft_epochs=1,
    grpo_steps=1,
    grpo_tasks=1,
    grpo_chains=2,
    validation=2,
    validations=1,
    held_out=3,
    max_turns=16,
)
"""The smallest numbers that pass through every job."""
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "fast": ["manager_lr=3e-4", "adapter_lr=1e-3", "worker_lr=3e-4"],
    "progress": ["reward=progress"],
    "few": ["manager_demonstrations=100"],
    "wander": ["wander=2", "demonstrations=800", "sft_epochs=4"],
}


def env_flags(options: Mapping[str, Any]) -> list[str]:
    return [word for key, value in options.items() for word in ("--env-arg", f"{key}={json.dumps(value)}")]


class Case:
    """The jobs of one variant and seed, in one folder."""

    def __init__(self, out: Path, model: str, seed: int, budget: Budget, environment: str, split: str) -> None:
        self.out, self.model, self.seed, self.budget = out, model, seed, budget
        self.environment, self.split = environment, split

    def run(self, job: str) -> None:
        """Run the stages of a job that are not finished."""
        trainings: dict[str, Callable[[], None]] = {
            "alone": self.train_worker_alone,
            "guided": self.train_guided_worker_and_manager,
            "alone-grpo": self.train_worker,
            "manager": self.train_manager,
            "both": self.train_both,
        }
        evaluations = [name for name, owner in POLICIES.items() if owner == job]
        stages = {"train": trainings[job]}
        stages |= {f"{self.split}-{name}": functools.partial(self.evaluate, name) for name in evaluations}
        run_stages(self.out / f"stages-{job}.json", stages)

    def episode_flags(self, options: Mapping[str, Any]) -> list[str]:
        """Flags of commands that run episodes."""
        return ["--env", self.environment, *env_flags(ENVIRONMENT | options), "--max-turns",
                str(self.budget.max_turns), "--max-tokens", str(MAX_TOKENS), "--seed", str(self.seed)]  # fmt: skip

    def folder(self, name: str) -> str:
        return str(self.out / name)

    def train_worker_alone(self) -> None:
        """SFT of a worker on the expert's episodes."""
        self.collect_demonstrations(
            "alone/worker", {"wander": self.budget.wander}, self.budget.demonstrations, "policy"
        )
        self.sft("alone")

    def train_guided_worker_and_manager(self) -> None:
        """SFT of one model as worker, on the same tasks, and as manager, on multi-step tasks, also with typing: of the
        other tasks almost all have one part, so that a manager would learn to finish after the first."""
        self.collect_demonstrations(
            "guided/worker", MANAGED | {"wander": self.budget.wander}, self.budget.demonstrations, "worker"
        )
        options = MANAGED | {"levels": MULTI_STEP, "text": True}
        self.collect_demonstrations("guided/manager", options, self.budget.manager_demonstrations, "manager")
        self.sft("guided")

    def collect_demonstrations(self, name: str, options: Mapping[str, Any], num_tasks: int, role: str) -> None:
        """The expert's episodes, and the replies of one role in them."""
        episodes = self.folder(f"{name}/episodes")
        run_command(
            "collect", *self.episode_flags(options), "--policy", "expert", "--tasks", num_tasks, "--out", episodes
        )
        run_command("export", "--input_dir", episodes, "--output_dir", self.folder(name), "--format", "bc",
                    "--roles", role)  # fmt: skip

    def sft(self, name: str) -> None:
        """SFT on the replies of all roles that were shown."""
        rows, budget = self.out / name / "bc.jsonl", self.budget
        write_atomic(rows, b"".join(path.read_bytes() for path in sorted(rows.parent.glob("*/bc.jsonl"))))
        run_command(
            "sft", "--dataset_path", rows, "--model", self.model, "--full", "--output_dir", self.folder(f"{name}/sft"),
            f"training.num_epochs={budget.sft_epochs}", "training.batch_size=16",
            "training.gradient_accumulation_steps=1", f"training.learning_rate={budget.sft_lr}",
            "training.warmup_steps=20", "training.scheduler_type=cosine", "training.bf16=false",
            "training.gradient_checkpointing=false", "training.eval_steps=-1", "training.save_steps=-1",
            f"training.seed={self.seed}",
        )  # fmt: skip

    def train_worker(self) -> None:
        self.grpo("alone-grpo", "alone", {}, f"{ACTOR}.optim.lr={self.budget.worker_lr}")

    def train_manager(self) -> None:
        self.grpo(
            "manager", "guided", MANAGED, "agent.train_roles=[manager]", f"{ACTOR}.optim.lr={self.budget.manager_lr}",
            f"agent.roles.worker.model={self.folder('guided/sft/model')}",
        )  # fmt: skip

    def train_both(self) -> None:
        self.grpo(
            "both", "guided", MANAGED, "agent.train_roles=[worker,manager]", "agent.roles.worker.adapter=true",
            "agent.roles.manager.adapter=true", f"actor_rollout_ref.model.lora_rank={self.budget.adapter_rank}",
            f"actor_rollout_ref.model.lora_alpha={2 * self.budget.adapter_rank}",
            f"{ACTOR}.optim.lr={self.budget.adapter_lr}",
        )  # fmt: skip

    def grpo(self, name: str, start: str, options: Mapping[str, Any], *keys: str) -> None:
        """GRPO from an SFT model on multi-step training tasks."""
        budget = self.budget
        options = ENVIRONMENT | options | {"levels": MULTI_STEP, "reward": budget.reward}
        run_command(
            "train", "recipe=web-tiny", f"agent.environment={self.environment}",
            *(f"agent.environment_args.{key}={json.dumps(value)}" for key, value in options.items()),
            f"actor_rollout_ref.model.path={self.folder(f'{start}/sft/model')}",
            f"agent.num_chains={budget.grpo_chains}", f"agent.max_turns={budget.max_turns}",
            f"agent.max_tokens_per_turn={MAX_TOKENS}", f"data.train_batch_size={budget.grpo_tasks}",
            f"{ACTOR}.use_kl_loss=false", f"{ACTOR}.kl_loss_coef=0.001", "trainer.save_freq=3",
            f"trainer.total_training_steps={budget.grpo_steps}", f"trainer.seed={self.seed}",
            f"data.val_batch_size={budget.validation}", "trainer.val_before_train=true",
            f"trainer.test_freq={math.ceil(budget.grpo_steps / budget.validations)}",
            f"trainer.default_local_dir={self.out}", "trainer.project_name=grpo", f"trainer.experiment_name={name}",
            *keys,
        )  # fmt: skip

    def evaluate(self, name: str) -> None:
        """Success of a policy on multi-step tasks of the split's templates."""
        guided = self.folder("guided/sft/model")
        policy, options, roles = {
            "worker-sft": (self.folder("alone/sft/model"), {}, []),
            "worker-grpo": (self.folder("grpo/alone-grpo"), {}, []),
            "scripted-manager": (guided, MANAGED | {"manager": "scripted"}, []),
            "sft-manager": (guided, MANAGED, []),
            "grpo-manager": (self.folder("grpo/manager"), MANAGED, ["--role", f"worker={guided}"]),
            "grpo-both": (self.folder("grpo/both"), MANAGED, []),
        }[name]
        run_command(
            "eval", *self.episode_flags(options | {"levels": MULTI_STEP}), "--policy", policy, *roles,
            "--response-format", RESPONSE_FORMAT, "--split", self.split, "--tasks", self.budget.held_out,
            "--name", name, "--out", self.result_path(name),
        )  # fmt: skip

    def result_path(self, name: str) -> Path:
        return self.out / self.split / f"{name}.json"

    @property
    def is_evaluated(self) -> bool:
        return all(self.result_path(name).is_file() for name in POLICIES)

    def results(self) -> dict[str, EvalResult]:
        return {name: read_result(self.result_path(name)) for name in POLICIES}

    def templates(self) -> dict[str, str]:
        """The template of every held-out task, by the task's id."""
        panel = read_panel(self.result_path("worker-sft").with_suffix(".run") / "panel.json")
        return {task.id: str(task.fields["template"]) for task in panel.tasks}

    def minutes(self) -> dict[str, float]:
        """Processor minutes of every job."""
        return {
            job: sum(row["processor_minutes"] for row in json.loads(path.read_text()).values())
            for phase in PHASES
            for job in phase
            if (path := self.out / f"stages-{job}.json").is_file()
        }


def best_alone(results: Mapping[str, EvalResult]) -> str:
    return max(ALONE, key=lambda name: results[name].success_rate)


def case_table(results: Mapping[str, EvalResult]) -> Iterator[str]:
    """Every policy with its interval and its difference to the better worker alone."""
    best = best_alone(results)
    yield f"| policy | success [95 %] | difference to {best}, points [95 %] | p | verdict |"
    yield "|---|---|---|---|---|"
    for name, result in results.items():
        if name in ALONE:
            yield f"| {name} | {score(result)} | | | |"
            continue
        row = comparison_record(results[best], result, modes=True)
        difference = f"{100 * row['difference']:+.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        yield f"| {name} | {score(result)} | {difference} | {row['p']:.1g} | {row['verdict']} |"


def case_record(case: Case) -> dict[str, Any]:
    results = case.results()
    best = best_alone(results)
    pairs = [(best, name) for name in POLICIES if name not in ALONE]
    pairs += [("worker-sft", "worker-grpo"), ("sft-manager", "grpo-manager"), ("sft-manager", "grpo-both")]
    return {
        "seed": case.seed, "budget": asdict(case.budget), "split": case.split,
        "policies": {name: result.summary() for name, result in results.items()},
        "comparisons": {f"{a} → {b}": comparison_record(results[a], results[b], modes=True) for a, b in pairs},
        "templates": template_rates(results, case.templates()), "processor_minutes": case.minutes(),
    }  # fmt: skip


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--env", default=WITHOUT_BROWSER, help="environment (default: web without a browser)")
    parser.add_argument("--model", default="tiny-pretrained")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--variants", default="default", help=f"comma-separated: {', '.join(VARIANTS)}")
    parser.add_argument("--split", default="val", choices=("val", "test"), help="templates to evaluate on")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="after which all jobs are stopped")
    parser.add_argument("--phase", type=int, choices=(1, 2), help="1: the jobs of SFT alone, 2: those of GRPO")
    parser.add_argument("--out", type=Path, default=Path("runs/web-manager"))
    parser.add_argument("--results", type=Path, help="JSON file for the figures (default: OUT/results-SPLIT.json)")
    parser.add_argument("--smoke", action="store_true", help="the smallest budget")
    parser.add_argument("--job", help="run this job of one case alone")
    parser.add_argument("budget", nargs="*", metavar="KEY=VALUE", help="changes for all variants")
    args = parser.parse_args(argv)
    cases: dict[str, Case] = {}
    for variant in args.variants.split(","):
        if variant not in VARIANTS:
            raise SystemExit(f"There is no variant '{variant}': {', '.join(VARIANTS)}.")
        budget = read_budget([*VARIANTS[variant], *args.budget], SMOKE if args.smoke else Budget())
        for seed in args.seeds.split(","):
            name = f"{variant}-{seed}"
            cases[name] = Case(args.out / name, args.model, int(seed), budget, args.env, args.split)
    if args.job is not None:
        for case in cases.values():
            case.run(args.job)
        return
    phases = [PHASES[args.phase - 1]] if args.phase else PHASES
    if args.jobs > 1:
        common = ["--env", args.env, "--model", args.model, "--split", args.split, "--out", str(args.out), *args.budget]
        common += ["--smoke"] if args.smoke else []
        processes = TimedProcesses(__file__, args.jobs, args.minutes, args.out / "logs")
        for phase in phases:
            processes.run({f"{name}-{job}": ["--variants", name.rpartition("-")[0], "--seeds", name.rpartition("-")[2],
                                             "--job", job, *common] for job in phase for name in cases})  # fmt: skip
    else:
        for case in cases.values():
            for job in (job for phase in phases for job in phase):
                case.run(job)
    cases = {name: case for name, case in cases.items() if case.is_evaluated}
    if not cases:
        print("No case has all policies evaluated; run it again to go on.")
        return
    for name, case in cases.items():
        results = case.results()
        rates = template_rates(results, case.templates())
        print(f"\n{name}, {args.split}\n\n" + "\n".join([*case_table(results), "", *template_table(rates)]))
    record = {name: case_record(case) for name, case in cases.items()}
    path = args.results or args.out / f"results-{args.split}.json"
    write_atomic(path, (json.dumps(record, indent=1) + "\n").encode())
    print(f"\nFigures in {path}")


if __name__ == "__main__":
    main()
