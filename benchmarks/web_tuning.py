"""Variants of `make web`'s budget × seeds as parallel processes, without a browser, on validation templates.

    python benchmarks/web_tuning.py --jobs 16 [--minutes 9] [--seeds 20] [--variants default,kl] [KEY=VALUE ...]
    python benchmarks/web_tuning.py --jobs 16 --test --seeds 31,32,33 --variants kl    # the chosen one, other seeds

Several variants of GRPO begin with one BC model (`STARTS`), which is trained first where it is not there. Each case has
a folder of its own and goes on where it stopped; after `--minutes` all are stopped, and the table shows the validations
until then. The environment is `web_without_browser.py`. Test templates are not touched without `--test`, which
evaluates BC and GRPO on them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from parallel_jobs import TimedProcesses
from web_training import Budget, Stages, comparison_record, read_budget, score

from practicum.data.run_folder import METRICS

ENVIRONMENT = f"{Path(__file__).with_name('web_without_browser.py')}:WebWithoutBrowser"
STARTS: dict[str, list[str]] = {
    "104": [],
    "52": ["demonstrations=52", "bc_epochs=16"],
    "208": ["demonstrations=208", "bc_epochs=4"],
    "13-templates": ["demonstrated_templates=13"],
}
"""Budgets of BC."""
VARIANTS: dict[str, tuple[str, list[str]]] = {
    "default": ("104", []),
    "rate-1e-4": ("104", ["grpo_lr=1e-4", "grpo_kl=0"]),
    "updates": ("104", ["grpo_updates=3", "grpo_lr=5e-5", "grpo_kl=0"]),
    "hot": ("104", ["grpo_temperature=2"]),
    "52": ("52", []),
    "52-rate-1e-4": ("52", ["grpo_lr=1e-4", "grpo_kl=0"]),
    "52-hotter": ("52", ["grpo_temperature=3", "grpo_kl=0.01"]),
    "208": ("208", []),
    "13-templates": ("13-templates", []),
    "13-templates-hot": ("13-templates", ["grpo_temperature=2", "grpo_kl=0.02"]),
}
"""Start and budget of GRPO."""


def start_of(case: str) -> str:
    """The start that a variant's case needs: START-SEED."""
    variant, _, seed = case.rpartition("-")
    return f"{VARIANTS[variant][0]}-{seed}"


def stages_of(case: str, out: Path, model: str, changes: Sequence[str]) -> Stages:
    """The stages of `start:START-SEED` or `VARIANT-SEED`."""
    name, _, seed = case.removeprefix("start:").rpartition("-")
    start, variant = (name, []) if case.startswith("start:") else VARIANTS[name]
    folder = out / "starts" / f"{start}-{seed}"
    budget = read_budget([*STARTS[start], *variant, *changes], Budget())
    stages = Stages(folder if case.startswith("start:") else out / case, model, int(seed), budget, ENVIRONMENT, "val")
    stages.bc_folder = folder / "bc"
    return stages


def table(out: Path, cases: Sequence[str], model: str) -> Iterator[str]:
    """Success on the validation templates, of the BC model and by step of GRPO, and sampled in training."""
    yield "| case | BC by update | GRPO by step | sampled success, first and last five steps |"
    yield "|---|---|---|---|"
    for case in cases:
        stages = stages_of(case, out, model, ())
        rates = stages.validations()
        cells = [", ".join(f"{step}: {100 * rate:.1f}" for step, rate in rates.get(name, {}).items())
                 for name in ("bc", "grpo")]  # fmt: skip
        metrics = stages.out / "grpo" / "run" / METRICS
        rows = [json.loads(line) for line in metrics.read_text().splitlines()] if metrics.is_file() else []
        sampled = [row["success/mean"] for row in rows if "success/mean" in row]
        ends = [f"{100 * sum(part) / len(part):.1f}" for part in (sampled[:5], sampled[-5:]) if part]
        yield f"| {case} | {' | '.join(cells)} | {', '.join(ends)} ({len(sampled)} steps) |"


def test_table(out: Path, cases: Sequence[str], model: str) -> Iterator[str]:
    """BC and GRPO on held-out templates, where both are evaluated."""
    yield "| case | BC [95 %] | GRPO [95 %] | difference, points [95 %] | p | verdict |"
    yield "|---|---|---|---|---|---|"
    for case in cases:
        stages = test_stages(stages_of(case, out, model, ()))
        if not (stages.out / "matrix" / "grpo.json").is_file():
            continue
        bc, grpo = stages.results().values()
        row = comparison_record(bc, grpo)
        difference = f"{100 * row['difference']:+.1f} [{100 * row['low']:.1f}, {100 * row['high']:.1f}]"
        yield f"| {case} | {score(bc)} | {score(grpo)} | {difference} | {row['p']:.1g} | {row['verdict']} |"


def test_stages(stages: Stages) -> Stages:
    """The stages, with BC and GRPO evaluated on the test templates."""
    stages.split, stages.modes = "test", ("bc", "grpo")
    return stages


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=1e6, help="after which everything is stopped")
    parser.add_argument("--model", default="tiny-pretrained")
    parser.add_argument("--seeds", default="20")
    parser.add_argument("--variants", default=",".join(VARIANTS))
    parser.add_argument("--test", action="store_true", help="evaluate BC and GRPO on the test templates")
    parser.add_argument("--starts-only", action="store_true", help="train the BC models and stop")
    parser.add_argument("--out", type=Path, default=Path("runs/web-tuning"))
    parser.add_argument("--case", help="run this case alone: start:START-SEED or VARIANT-SEED")
    parser.add_argument("budget", nargs="*", metavar="KEY=VALUE", help="changes for all variants")
    args = parser.parse_args()
    if args.case is not None:
        stages = stages_of(args.case, args.out, args.model, args.budget)
        names = ["collect", "bc"] if args.case.startswith("start:") else ["grpo"]
        if args.test and not args.case.startswith("start:"):
            stages, names = test_stages(stages), [*names, "matrix"]
        stages.run(names)
        return
    seeds, variants = args.seeds.split(","), args.variants.split(",")
    if unknown := set(variants) - set(VARIANTS):
        raise SystemExit(f"unknown variant {', '.join(sorted(unknown))}; there are {', '.join(VARIANTS)}")
    cases = [f"{variant}-{seed}" for variant in variants for seed in seeds]
    common = ["--model", args.model, "--out", str(args.out), *(["--test"] if args.test else []), *args.budget]
    processes = TimedProcesses(__file__, args.jobs, args.minutes, args.out / "logs")
    processes.run({f"start-{start}": ["--case", f"start:{start}", *common] for start in map(start_of, cases)})
    if not args.starts_only:
        processes.run({case: ["--case", case, *common] for case in cases})
    print("\n".join(table(args.out, cases, args.model)))
    if args.test:
        print("\n" + "\n".join(test_table(args.out, cases, args.model)))


if __name__ == "__main__":
    main()
