"""Runs the cases of a benchmark in processes of their own."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path


def run_phases(script: str, phases: Sequence[Sequence[Sequence[str]]], jobs: int, logs: Path, threads: int = 1) -> None:
    """Run `python script ARGUMENTS` for all arguments of a phase, `jobs` at a time with `threads` each; a phase begins
    when the one before it has ended.

    What a process prints goes to a file in `logs`; the last line of it is printed when the process ends. A process that
    fails ends everything, with the last lines of its log.
    """
    logs.mkdir(parents=True, exist_ok=True)
    environment = os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}

    def run(arguments: Sequence[str]) -> None:
        name = "_".join(arguments).replace("/", "-").replace("--", "")
        path = logs / f"{Path(script).stem}_{name}.log"
        with path.open("wb") as log:
            done = subprocess.run(
                [sys.executable, script, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment, check=False
            )
        lines = path.read_text(errors="replace").splitlines() or [""]
        print(f"{' '.join(arguments)}: {lines[-1]}", flush=True)
        if done.returncode:
            raise SystemExit("\n".join([f"{path}: ended with {done.returncode}", *lines[-15:]]))

    for phase in phases:
        with ThreadPoolExecutor(jobs) as pool:
            list(pool.map(run, phase))
