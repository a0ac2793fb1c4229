"""Is the quickstart's SFT at its best, and how much does RL add to it? Variants × seeds in processes of their own.

    python benchmarks/quickstart.py --seeds 98,99,100 --jobs 2

For each seed: SFT on the demonstrations under several settings (`sft...`), each the best of its validations; RL from
the SFT model whose best validation is the highest; and SFT on ten times the demonstrations (`more`). All are evaluated
on the same 400 held-out tasks. Each case has a folder and is not run again once its `summary.json` is there; the table
is of the cases that are finished. Seeds 81 to 85 and 91 to 94 have been used to choose the plan.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
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

SFT_VARIANTS: dict[str, dict[str, Any]] = {
    "sft": {},
    "sft-twice-the-epochs": {"num_epochs": 50, "check_every": 156},
    "sft-half-the-epochs": {"num_epochs": 12, "check_every": 37},
    "sft-decay-0.1": {"weight_decay": 0.1},
    "sft-rate-5e-4": {"learning_rate": 5e-4},
}
RL_CASE = "rl"
SFT_VARIANT_FILE = "sft_variant.json"
"""In the folder of an RL case: the SFT variant that it began with."""
CASES = (*SFT_VARIANTS, RL_CASE, "more")


class RLFromModel(Quickstart):
    """The quickstart from an SFT model that is there."""

    model: Path

    async def _train_sft(self, demonstrations: list[Trajectory]) -> None:
        await self.policy.close()
        self.policy = TrainablePolicy(loader.load(str(self.model)), max_batch=128)
        self.sft_state = TrainState()


def plan_of(seed: int, case: str) -> QuickstartSettings:
    """The quickstart's plan with the demonstrations and SFT settings of a case."""
    plan = default_plan(seed, 10 * DEMONSTRATIONS if case == "more" else DEMONSTRATIONS)
    return replace(plan, sft=replace(plan.sft, **SFT_VARIANTS.get(case, {})))


def summary_of(folder: Path, case: str) -> dict[str, Any] | None:
    """What a case found; None where it is not finished."""
    path = folder / case / "summary.json"
    if not path.exists():
        return None
    summary: dict[str, Any] = json.loads(path.read_text())
    chosen = folder / case / SFT_VARIANT_FILE
    return summary | ({"sft_variant": json.loads(chosen.read_text())} if case == RL_CASE else {})


def best_variant(folder: Path) -> str:
    """The SFT variant with the highest validation of all; of equal ones, the first."""
    summaries = {case: summary for case in SFT_VARIANTS if (summary := summary_of(folder, case)) is not None}
    if not summaries:
        raise UserError(f"'{folder}' has no finished SFT case to train from; run those first: --cases {CASES[0]}")
    return max(summaries, key=lambda case: max(summaries[case]["sft_validations"]))


async def run_case(folder: Path, seed: int, case: str) -> None:
    if summary_of(folder, case) is not None:
        return
    if case == RL_CASE:
        chosen = best_variant(folder)
        quick = RLFromModel(folder / case, seed, plan_of(seed, chosen))
        quick.model = folder / chosen / "sft" / "model"
        write_atomic(folder / case / SFT_VARIANT_FILE, (json.dumps(chosen) + "\n").encode())
        await quick.run()
    else:
        await Quickstart(folder / case, seed, plan_of(seed, case), sft_only=True).run()


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
        summaries = {seed: summary_of(out / f"seed-{seed}", case) for seed in seeds}
        if not any(summaries.values()):
            continue
        policy = "rl" if case == RL_CASE else "sft"
        yield f"| {case} | {' | '.join(cell(s, policy) if s else '' for s in summaries.values())} |"
        if case == RL_CASE:
            gains = [
                f"{100 * s['difference']:+.1f} [{100 * s['difference_low']:.1f}, {100 * s['difference_high']:.1f}], "
                f"p = {s['p_value']:.1g}, from {s['sft_variant']}" if s else ""
                for s in summaries.values()
            ]  # fmt: skip
            yield f"| RL − SFT, points | {' | '.join(gains)} |"
        else:
            rates = [" ".join(f"{100 * v:.0f}" for v in s["sft_validations"]) if s else "" for s in summaries.values()]
            yield f"| · validations | {' | '.join(rates)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="98,99,100")
    parser.add_argument("--cases", default=",".join(CASES), help="comma-separated (default: all)")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one core each (default: 1, this one)")
    parser.add_argument("--out", type=Path, default=Path("runs/quickstart_plan"))
    args = parser.parse_args()
    seeds, cases = [int(seed) for seed in args.seeds.split(",")], args.cases.split(",")
    if unknown := set(cases) - set(CASES):
        raise SystemExit(f"unknown case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    if args.jobs > 1:
        phases = [[case for case in cases if (case == RL_CASE) == is_rl] for is_rl in (False, True)]
        planned = [
            [[f"--seeds={s}", f"--cases={c}", f"--out={args.out}"] for c in phase for s in seeds] for phase in phases
        ]
        run_phases(__file__, planned, args.jobs, args.out / "logs")
    for seed in seeds:
        for case in sorted(cases, key=lambda name: name == RL_CASE):
            asyncio.run(run_case(args.out / f"seed-{seed}", seed, case))
    print("\n".join(table(args.out, seeds)))


if __name__ == "__main__":
    main()
