"""Runs the cases of a benchmark in processes of their own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
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


STOP_SECONDS = 20.0
"""Time to write a checkpoint after SIGTERM."""


class TimedProcesses:
    """Runs the cases of a benchmark in processes of their own, all of which are stopped at a deadline."""

    def __init__(self, script: str, jobs: int, minutes: float, logs: Path) -> None:
        """`jobs` is the number of processes at a time, and of cores; `minutes` are counted from now."""
        self.script, self.jobs, self.logs = script, jobs, logs
        self.deadline = time.monotonic() + 60 * minutes

    def run(self, cases: Mapping[str, Sequence[str]]) -> None:
        """Run `python script ARGUMENTS` for every case; fewer cases than cores have several threads each.

        One that fails or is stopped does not end the others. What a process prints goes to `logs`/NAME.log.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        threads = max(1, self.jobs // max(1, len(cases)))
        with ThreadPoolExecutor(self.jobs) as pool:
            list(pool.map(lambda case: self._run(case[0], case[1], threads), cases.items()))

    def _run(self, name: str, arguments: Sequence[str], threads: int) -> None:
        seconds_left = self.deadline - time.monotonic()
        if seconds_left <= 0:
            return
        started, environment = time.monotonic(), os.environ | {"OMP_NUM_THREADS": str(threads), "PYTHONUNBUFFERED": "1"}
        with (self.logs / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                [sys.executable, self.script, *arguments], stdout=log, stderr=subprocess.STDOUT, env=environment
            )
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds_left)
            if stopped := process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(STOP_SECONDS)
                except subprocess.TimeoutExpired:
                    process.kill()
                    process.wait()
        ending = "stopped" if stopped else f"ended with {process.returncode}"
        print(f"{name}: {ending} after {(time.monotonic() - started) / 60:.1f} min", flush=True)
