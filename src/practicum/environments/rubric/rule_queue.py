"""Runs code rules of any number of episodes in few sandboxes: what waits while a sandbox runs shares the next one."""

from __future__ import annotations

import functools
import marshal
import re
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from practicum.environments.affine.program_runner import MEMORY_BYTES, RunResult, read_result, sandbox_program
from practicum.sandbox import base
from practicum.sandbox.limits import KIB, Limits

CPU_SECONDS = 1
"""Seconds of CPU time of a rule over all outputs."""
MAX_BATCH_SECONDS = 30.0
"""Wall seconds of a sandbox; rules that have not run by then run in another one."""
MIN_BATCH, MAX_BATCH = 40, 256
"""Rules of a sandbox: fewer than the first are not divided between free processors."""
MAX_OUTPUT_BYTES = 64 * KIB
RUNNER_CPU_SECONDS = 20
"""CPU seconds of the process in a sandbox that starts the rules; each rule has its own limit."""

IMPORT = re.compile(r"^\s*(?:import|from)\s+(\w+)", re.MULTILINE)
COMMON_MODULES = frozenset(
    ("ast", "bisect", "collections", "csv", "dataclasses", "datetime", "decimal", "difflib", "enum", "functools",
     "heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "typing")
)  # fmt: skip
"""Modules that are imported once per sandbox where a rule imports them: that takes longer than most rules."""


@dataclass(eq=False)
class RuleRun:
    """A rule on some outputs, and how it ended."""

    source: str
    task_input: str
    outputs: Sequence[str]
    is_queued: bool = False
    result: RunResult | None = None
    error: Exception | None = None

    @property
    def ended(self) -> bool:
        return self.result is not None or self.error is not None


class RuleQueue:
    """Runs rules in batches, for any number of threads.

    Every thread that waits for its rules may run a batch, at most as many at once as the sandbox allows.
    """

    def __init__(self, cpu_seconds: int = CPU_SECONDS, seconds: float = MAX_BATCH_SECONDS) -> None:
        self.cpu_seconds, self.seconds = cpu_seconds, seconds
        self.num_sandboxes = 0
        """Sandboxes that were started so far."""
        self._waiting: list[RuleRun] = []
        self._num_running = 0
        self._changed = threading.Condition()

    def add(self, runs: Sequence[RuleRun]) -> None:
        """Queue rules; those that another episode has queued already are not queued again."""
        with self._changed:
            self._waiting += [run for run in runs if not run.is_queued]
            for run in runs:
                run.is_queued = True

    def wait(self, runs: Sequence[RuleRun]) -> list[RunResult]:
        """Return the results of rules that were added; block until all have ended, and run batches meanwhile."""
        max_running = base.current().concurrency
        while True:
            with self._changed:
                self._changed.wait_for(
                    lambda: all(run.ended for run in runs) or (self._waiting and self._num_running < max_running)
                )
                if all(run.ended for run in runs):
                    return [_result(run) for run in runs]
                batch = self._take(max_running - self._num_running)
                self._num_running += 1
            try:
                self._run_batch(batch)
            except Exception as error:  # of the sandbox: all who wait for this batch get it
                for run in batch:
                    run.error = error
            finally:
                with self._changed:
                    self._num_running -= 1
                    self._changed.notify_all()

    def _take(self, num_free: int) -> list[RuleRun]:
        count = min(MAX_BATCH, max(MIN_BATCH, -(-len(self._waiting) // num_free)))
        batch, self._waiting = self._waiting[:count], self._waiting[count:]
        return batch

    def _run_batch(self, batch: Sequence[RuleRun]) -> None:
        """Run all rules of a batch. One that ends its sandbox runs again alone, and the rest without it."""
        while batch:
            results = self._run_in_sandbox(batch)
            for index, run in enumerate(batch[: len(results) + 1]):
                result = results[index] if index < len(results) else RunResult("killed")
                if result.outcome == "killed" and len(batch) > 1:  # perhaps the machine is out of memory
                    result = (self._run_in_sandbox([run]) or [result])[0]
                run.result = result
            batch = batch[len(results) + 1 :]

    def _run_in_sandbox(self, batch: Sequence[RuleRun]) -> list[RunResult]:
        """Return the results of the rules that ended: all, or those before one that ended the sandbox."""
        self.num_sandboxes += 1
        texts: dict[str, int] = {}

        def index(text: str) -> int:
            return texts.setdefault(text, len(texts))

        rules = [(index(r.source), index(r.task_input), [index(text) for text in r.outputs]) for r in batch]
        # More than the CPU time: on a busy machine a program waits for a processor.
        wall = 3.0 * self.cpu_seconds + 2
        limits = Limits(
            wall=min(wall * len(batch) + 2, self.seconds),
            cpu=RUNNER_CPU_SECONDS,
            memory=MEMORY_BYTES,
            output=4 * KIB + len(batch) * 7 * MAX_OUTPUT_BYTES,  # a byte may take six characters in JSON
        )
        sandbox = base.current()
        call = f"score_all({self.cpu_seconds}, {wall}, {MAX_OUTPUT_BYTES}, {sandbox.launcher.isolated})"
        imported = {name for run in batch for name in IMPORT.findall(run.source)}
        modules = sorted(COMMON_MODULES & imported)
        feed = marshal.dumps((list(texts), rules, modules)).decode("latin-1")
        result = sandbox.run_sync(f"{_program()}\n{call}\n", feed, limits)
        return [read_result(line) for line in result.stdout.splitlines()][: len(batch)]


def _result(run: RuleRun) -> RunResult:
    if run.error is not None:
        raise run.error
    assert run.result is not None
    return run.result


@functools.cache
def _program() -> str:
    return sandbox_program() + Path(__file__).with_name("rule_program.py").read_text(encoding="utf-8")
