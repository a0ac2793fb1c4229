"""SFT of the planner under different settings, as parallel processes, scored on validation requests.

    python benchmarks/htdag_tuning.py --jobs 8 [--threads 2] [--model tiny] [--requests 30000] [--out runs/htdag-tuning]

The held-out requests of `make htdag` are not looked at. What is done is not done again, and SFT that was interrupted
goes on from its last checkpoint, so that the same command in the same folder finishes what did not fit into its time.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import itertools
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from practicum.environments.htdag.environment import MAX_STEPS
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.stats.intervals import LEVEL
from practicum.planner.benchmark import MAX_TOKENS
from practicum.utils.tables import table

GRID = {"lr": (1e-3, 2e-3), "weight_decay": (0.3, 1.0), "batch_size": (16, 32), "epochs": (1,)}
PRACTICUM = (sys.executable, "-c", "import sys; from practicum.cli.main import main; sys.exit(main(sys.argv[1:]))")


@dataclass(frozen=True)
class Setting:
    """One run of SFT."""

    lr: float
    weight_decay: float
    batch_size: int
    epochs: int

    @property
    def name(self) -> str:
        return f"lr{self.lr:g}-wd{self.weight_decay:g}-batch{self.batch_size}-epochs{self.epochs}"


def command(*words: object, log: Path, threads: int = 1) -> None:
    """Run a command of `practicum` as a process; what it prints is added to `log`."""
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as opened:
        subprocess.run([*PRACTICUM, *map(str, words)], env=environment, check=True, stdout=opened, stderr=opened)


def score(setting: Setting, rows: Path, args: argparse.Namespace) -> EvalResult:
    """Train and evaluate, and print the share of validation requests that are solved."""
    run, file, log = args.out / setting.name, args.out / f"{setting.name}.json", args.out / f"{setting.name}.log"
    started = time.monotonic()
    if not file.is_file():
        command(
            "sft", "--dataset-path", rows, "--model", args.model, "--full", "--out", run, "--lr", setting.lr,
            "--batch-size", setting.batch_size, "--epochs", setting.epochs, "--warmup", 50,
            f"training.weight_decay={setting.weight_decay}", "training.min_lr_ratio=0.03", "training.bf16=false",
            "training.eval_steps=200", "training.save_steps=200", "training.save_total_limit=1",
            "data.group_by_task=true", "data.val_share=0.005", "model.device=cpu", log=log,
            threads=args.threads,
        )  # fmt: skip
        command(
            "eval", "--env", "htdag", "--split", "val", "--tasks", args.validation, "--policy", run, "--max-turns",
            MAX_STEPS, "--max-tokens", MAX_TOKENS, "--device", "cpu", "--out", file, log=log,
            threads=args.threads,
        )  # fmt: skip
    result = read_result(file)
    print(
        f"{setting.name}: {100 * result.success_rate:.1f} % in {(time.monotonic() - started) / 60:.1f} min", flush=True
    )
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=2, help="processes at the same time")
    parser.add_argument("--threads", type=int, default=1, help="threads of each process")
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--requests", type=int, default=30000, help="training requests that the expert shows")
    parser.add_argument("--whole", type=int, default=10000, help="of these, requests of which all decisions are shown")
    parser.add_argument("--validation", type=int, default=200, help="validation requests")
    parser.add_argument("--out", type=Path, default=Path("runs/htdag-tuning"))
    args = parser.parse_args()
    rows = args.out / "demonstrations.jsonl"
    if not rows.is_file():
        command(
            "htdag",
            "demonstrations",
            rows,
            "--requests",
            args.requests,
            "--whole",
            args.whole,
            log=args.out / "demonstrations.log",
        )
    settings = [Setting(*values) for values in itertools.product(*GRID.values())]
    with ThreadPoolExecutor(args.jobs) as pool:
        futures = {pool.submit(score, setting, rows, args): setting for setting in settings}
        results = {futures[future]: future.result() for future in as_completed(futures)}
    cells = []
    for setting, result in sorted(results.items(), key=lambda item: -item[1].success_rate):
        limits = result.interval(LEVEL)
        interval = f"[{100 * limits.low:.1f}, {100 * limits.high:.1f}]"
        cells.append([setting.name, f"{100 * result.success_rate:.1f} %", interval])
    print(table(["setting", "validation", "95 %"], cells))


if __name__ == "__main__":
    main()
