"""Variants of `make web`'s budget × seeds as parallel processes, without a browser, on validation templates.

    python benchmarks/web_tuning.py --jobs 16 [--model tiny] [--seeds 10,11] [--variants default,few] [KEY=VALUE ...]

The environment is `web_without_browser.py`. Each case is a run of `web_training.py` in a folder of its own, continued
where it stopped. Test templates are not touched: the budget that is chosen here is then run once with `make web`.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import web_training
from parallel_jobs import run_phases
from web_training import MODES

ENVIRONMENT = f"{Path(__file__).with_name('web_without_browser.py')}:WebWithoutBrowser"
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "rate-1e-4": ["grpo_lr=1e-4"],
    "rate-5e-5": ["grpo_lr=5e-5"],
    "kl": ["grpo_lr=1e-4", "grpo_kl=0.05"],
    "52-demonstrations": ["demonstrations=52", "bc_epochs=6", "grpo_lr=1e-4"],
    "52-demonstrations-12-epochs": ["demonstrations=52", "bc_epochs=12", "grpo_lr=1e-4", "grpo_kl=0.02"],
    "104-demonstrations": ["demonstrations=104", "bc_epochs=4", "grpo_lr=1e-4"],
    "104-demonstrations-8-epochs": ["demonstrations=104", "bc_epochs=8", "grpo_lr=1e-4"],
    "104-demonstrations-wide": ["demonstrations=104", "bc_epochs=4", "grpo_lr=2e-4", "grpo_tasks=24"],
    "13-templates": ["demonstrated_templates=13", "demonstrations=104", "bc_epochs=6", "grpo_lr=2e-4", "grpo_tasks=24"],
    "8-templates": ["demonstrated_templates=8", "demonstrations=96", "bc_epochs=6", "grpo_lr=2e-4", "grpo_tasks=24"],
    "13-templates-12-epochs": ["demonstrated_templates=13", "demonstrations=104", "bc_epochs=12", "grpo_lr=2e-4",
                               "grpo_tasks=24"],
    "13-templates-wide": ["demonstrated_templates=13", "demonstrations=104", "bc_epochs=6", "grpo_lr=2e-4",
                          "grpo_tasks=48", "grpo_steps=24"],
    "52-demonstrations-wide": ["demonstrations=52", "bc_epochs=12", "grpo_lr=2e-4", "grpo_tasks=24", "grpo_steps=40"],
}  # fmt: skip


def table(out: Path, cases: list[str]) -> Iterator[str]:
    """Success on the validation templates."""
    yield "| case | " + " | ".join(MODES) + " | p, bc → grpo | processor minutes |"
    yield "|---|" + "---|" * (len(MODES) + 2)
    for case in cases:
        record = json.loads((out / case / "results.json").read_text())
        rates = [f"{100 * record['policies'][mode]['success_rate']:.1f} %" for mode in MODES]
        p = f"{record['comparisons']['bc → grpo']['p']:.2g}"
        minutes = sum(stage["processor_minutes"] for stage in record["stages"].values())
        yield f"| {case} | {' | '.join(rates)} | {p} | {minutes:.1f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--seeds", default="10,11")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--out", type=Path, default=Path("runs/web-tuning"))
    parser.add_argument("--case", help="run this case alone: VARIANT-SEED")
    parser.add_argument("budget", nargs="*", metavar="KEY=VALUE", help="changes for all variants")
    args = parser.parse_args()
    common = ["--model", args.model, "--out", str(args.out)]
    if args.case is not None:
        variant, _, seed = args.case.rpartition("-")
        web_training.main([
            "--model", args.model, "--seed", seed, "--env", ENVIRONMENT, "--split", "val", "--out",
            str(args.out / args.case), *VARIANTS[variant], *args.budget,
        ])  # fmt: skip
        return
    cases = [f"{variant}-{seed}" for variant in args.variants.split(",") for seed in args.seeds.split(",")]
    run_phases(__file__, [[["--case", case, *common, *args.budget] for case in cases]], args.jobs, args.out / "logs")
    print("\n".join(table(args.out, cases)))


if __name__ == "__main__":
    main()
