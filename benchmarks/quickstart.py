"""Is the quickstart's SFT at its best, and how much does RL add to it? Variants × seeds in processes of their own.

    python benchmarks/quickstart.py --seeds 51,52,53 --jobs 16     # to choose a plan
    python benchmarks/quickstart.py --seeds 44,45,46 --jobs 16 --cases sft-cosine,rl-hard-1e-4,more,all-more

A task says which levels of `math` have demonstrations and which are evaluated. For each seed: SFT on the demonstrations
under several settings (`sft-...`), each the best of its validations; RL under several settings (`rl-...`) from the SFT
model whose best validation is the highest; and SFT on ten times these demonstrations (`more`), on as many
demonstrations of all levels (`all`) and on ten times those (`all-more`). All are evaluated on the same 400 held-out
tasks of all levels. Each case has a folder and is not run again once its `summary.json` is there; the table is of the
cases that are finished. Seeds 0, 1, 11 to 13, 21, 22, 31 to 33, 41 to 43 and 51 to 53 have been used to choose
plans, 44 to 50 and 54 and up have not.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from parallel_jobs import run_phases

from practicum.data.run_folder import write_atomic
from practicum.errors import UserError
from practicum.models import loader
from practicum.quickstart import DEMONSTRATIONS, Quickstart, QuickstartSettings, default_plan
from practicum.training.run import TrainState
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory


@dataclass(frozen=True)
class Levels:
    """Which levels have demonstrations (one that is listed twice has twice as many), and which are evaluated."""

    demonstrated: tuple[int, ...]
    evaluated: tuple[int, ...]


TASKS = {
    "easy": Levels((1, 2), (1, 2, 3)),
    "one-in-12": Levels((1, 2) * 5 + (1, 3), (1, 2, 3)),
    "one-in-16": Levels((1, 2) * 7 + (1, 3), (1, 2, 3)),
    "one-in-24": Levels((1, 2) * 11 + (1, 3), (1, 2, 3)),
    "same": Levels((1, 2), (1, 2)),
}
"""`one-in-12`: one demonstration in twelve is of level 3."""
STEADY = {"weight_decay": 1.0, "scheduler_type": "cosine"}
SFT_VARIANTS: dict[str, dict[str, Any]] = {
    "sft-decay-0.01": {"weight_decay": 0.01},
    "sft-decay-0.3": {"weight_decay": 0.3},
    "sft-decay-1": {"weight_decay": 1.0},
    "sft-cosine": STEADY,
    "sft-cosine-rate-2e-3": STEADY | {"learning_rate": 2e-3},
    "sft-cosine-48-epochs": STEADY | {"num_epochs": 48},
}
HARD = (2, 3, 3, 3)
RL_VARIANTS: dict[str, tuple[tuple[int, ...] | None, dict[str, Any]]] = {
    "rl": (None, {}),
    "rl-1e-4": (None, {"lr": 1e-4}),
    "rl-hard-1e-4": (HARD, {"lr": 1e-4}),
    "rl-hard-2e-4": (HARD, {"lr": 2e-4}),
    "rl-hard-1e-4-groups-of-16": (HARD, {"lr": 1e-4, "train_batch_size": 8, "num_chains": 16}),
    "rl-hard-1e-4-60-steps": (HARD, {"lr": 1e-4, "total_training_steps": 60}),
}
"""The levels of the problems that RL trains on (None: those that are evaluated), and what differs from its settings."""
SFT_VARIANT_FILE = "sft_variant.json"
"""In the folder of an RL case: the SFT variant that it began with."""
CASES = (*SFT_VARIANTS, *RL_VARIANTS, "more", "all", "all-more")


class RLFromModel(Quickstart):
    """The quickstart from an SFT model that is there."""

    model: Path

    async def _train_sft(self, demonstrations: list[Trajectory]) -> None:
        await self.policy.close()
        self.policy = TrainablePolicy(loader.load(str(self.model)), max_batch=128)
        self.sft_state = TrainState()


def plan_of(task: Levels, seed: int, case: str) -> QuickstartSettings:
    """The quickstart's plan with the levels of a task and the demonstrations and SFT settings of a case."""
    count = 10 * DEMONSTRATIONS if case.endswith("more") else DEMONSTRATIONS
    shown = task.evaluated if case.startswith("all") else task.demonstrated
    plan = replace(default_plan(seed, count, shown), levels=task.evaluated, check_tasks=120)
    variant = SFT_VARIANTS.get(case, STEADY)
    return replace(plan, sft=replace(plan.sft, **{"check_every": 150} | variant))


def summary_of(folder: Path, case: str) -> dict[str, Any] | None:
    """What a case found; None where it is not finished."""
    path = folder / case / "summary.json"
    if not path.exists():
        return None
    summary: dict[str, Any] = json.loads(path.read_text())
    chosen = folder / case / SFT_VARIANT_FILE
    return summary | ({"sft_variant": json.loads(chosen.read_text())} if case in RL_VARIANTS else {})


def best_variant(folder: Path) -> str:
    """The SFT variant with the highest validation of all; of equal ones, the first."""
    found = {case: summary for case in SFT_VARIANTS if (summary := summary_of(folder, case)) is not None}
    if not found:
        raise UserError(f"'{folder}' has no finished SFT case to train from; run those first: --cases {CASES[0]}")
    return max(found, key=lambda case: max(found[case]["sft_validations"]))


async def run_case(folder: Path, task: Levels, seed: int, case: str) -> None:
    if summary_of(folder, case) is not None:
        return
    if case in RL_VARIANTS:
        chosen = best_variant(folder)
        levels, changes = RL_VARIANTS[case]
        plan = plan_of(task, seed, chosen)
        quick = RLFromModel(folder / case, seed, replace(plan, rl_levels=levels, rl=replace(plan.rl, **changes)))
        quick.model = folder / chosen / "sft" / "model"
        write_atomic(folder / case / SFT_VARIANT_FILE, (json.dumps(chosen) + "\n").encode())
        await quick.run()
    else:
        await Quickstart(folder / case, seed, plan_of(task, seed, case), sft_only=True).run()


def cell(summary: Mapping[str, Any], policy: str) -> str:
    result, levels = summary[policy], summary["success_by_level"][policy]
    by_level = " / ".join(f"{100 * rate:.0f}" for rate in levels.values())
    return f"{100 * result['success_rate']:.1f} [{100 * result['low']:.1f}, {100 * result['high']:.1f}] ({by_level})"


def table(out: Path, seeds: Sequence[int]) -> Iterator[str]:
    """Success in % with its interval and by level; for SFT also its validations."""
    yield "success in % [95 %] (by level) on held-out tasks; for SFT, its validations in % below\n"
    yield f"| case | {' | '.join(f'seed {seed}' for seed in seeds)} |"
    yield "|---|" + "---|" * len(seeds)
    for case in CASES:
        found = {seed: summary_of(out / f"seed-{seed}", case) for seed in seeds}
        if not any(found.values()):
            continue
        policy = "rl" if case in RL_VARIANTS else "sft"
        yield f"| {case} | {' | '.join(cell(s, policy) if s else '' for s in found.values())} |"
        if case in RL_VARIANTS:
            gains = [
                f"{100 * s['difference']:+.1f} [{100 * s['difference_low']:.1f}, {100 * s['difference_high']:.1f}], "
                f"p = {s['p_value']:.1g}, from {s['sft_variant']}" if s else ""
                for s in found.values()
            ]  # fmt: skip
            yield f"| RL − SFT, points | {' | '.join(gains)} |"
        else:
            rates = [" ".join(f"{100 * v:.0f}" for v in s["sft_validations"]) if s else "" for s in found.values()]
            yield f"| · validations | {' | '.join(rates)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", choices=TASKS, default="one-in-24")
    parser.add_argument("--seeds", default="51,52,53")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one core each (default: 1, this one)")
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart_plan"))
    args = parser.parse_args()
    seeds, cases = [int(seed) for seed in args.seeds.split(",")], args.cases.split(",")
    if unknown := set(cases) - set(CASES):
        raise SystemExit(f"unknown case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    out = args.out / args.task
    if args.jobs > 1:
        common = [f"--task={args.task}", f"--out={args.out}"]
        phases = [[case for case in cases if (case in RL_VARIANTS) == is_rl] for is_rl in (False, True)]
        planned = [[[f"--seeds={s}", f"--cases={c}", *common] for c in phase for s in seeds] for phase in phases]
        run_phases(__file__, planned, args.jobs, args.out / "logs")
    for seed in seeds:
        for case in sorted(cases, key=lambda name: name in RL_VARIANTS):
            asyncio.run(run_case(out / f"seed-{seed}", TASKS[args.task], seed, case))
    print("\n".join(table(out, seeds)))


if __name__ == "__main__":
    main()
