"""Runs stdin/stdout programs in the sandbox, many inputs in one sandbox, and compares their output."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from practicum.sandbox import base
from practicum.sandbox.limits import KIB, MIB, Limits
from practicum.utils.concurrency import agent_time, in_thread_with_slots, judge_seconds

CPU_SECONDS = 2
"""Seconds of CPU time per run; Affine's own executor allows 10."""
MEMORY_BYTES = 512 * MIB
MAX_OUTPUT_BYTES = MIB
MAX_TOTAL_SECONDS = 100.0
"""Less than the default deadline of a step."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program and the text on its standard input."""

    program: str
    stdin: str


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended (`done`, `killed`, `timeout`, `output`, or `skipped` after a timeout) and its output."""

    outcome: str
    output: str = ""
    error: str = ""

    @property
    def ok(self) -> bool:
        """Whether the run ended by itself without writing to stderr. The exit status does not count."""
        return self.outcome == "done" and not self.error.strip()

    @property
    def problem(self) -> str:
        """The error in one line."""
        if self.error.strip():
            return self.error.strip().splitlines()[-1][:200]
        return {"timeout": "it took too long", "output": "it printed too much", "killed": "it was killed"}.get(
            self.outcome, ""
        )


@functools.cache
def sandbox_program() -> str:
    """Return the program that runs jobs inside a sandbox."""
    return Path(__file__).with_name("sandbox_program.py").read_text(encoding="utf-8")


def run_jobs(
    jobs: Sequence[Job], cpu_seconds: int = CPU_SECONDS, max_timeouts: int = 1, seconds: float = MAX_TOTAL_SECONDS
) -> list[RunResult]:
    """Run all jobs in one sandbox, one after the other, within `seconds` in all.

    After `max_timeouts` timeouts the others are skipped.
    """
    programs = list(dict.fromkeys(job.program for job in jobs))
    program_index = {program: index for index, program in enumerate(programs)}
    indexed_jobs = [(program_index[job.program], job.stdin) for job in jobs]
    # More than the CPU time: on a busy machine a program waits for a processor.
    wall = 3.0 * cpu_seconds + 2
    call = f"run_all({programs!r}, {indexed_jobs!r}, {wall!r}, {MAX_OUTPUT_BYTES!r}, {max_timeouts!r})"
    limits = Limits(
        wall=min(wall * len(jobs) + 2, seconds),
        cpu=cpu_seconds,
        memory=MEMORY_BYTES,
        output=4 * KIB + len(jobs) * 7 * MAX_OUTPUT_BYTES,  # a byte may take six characters in JSON
    )
    result = base.current().run_sync(f"{sandbox_program()}\n{call}\n", limits=limits)
    results = [read_result(line) for line in result.stdout.splitlines()]
    return [*results, *[RunResult("skipped")] * (len(jobs) - len(results))][: len(jobs)]


async def run_jobs_async(jobs: Sequence[Job], cpu_seconds: int = CPU_SECONDS) -> list[RunResult]:
    """Run jobs in a thread. Their time is the agent's: it ends before the deadline in force."""
    with agent_time():
        return await in_thread_with_slots(run_jobs, jobs, cpu_seconds, seconds=judge_seconds(MAX_TOTAL_SECONDS))


def read_result(line: str) -> RunResult:
    """Read a line that the program in the sandbox printed."""
    outcome, _, texts = line.partition(" ")
    try:
        output, error = json.loads(texts)
    except ValueError:  # the sandbox was stopped in the middle of a line
        return RunResult("killed")
    return RunResult(outcome, output, error)


def stdin_text(value: object) -> str:
    """Return an input or output of a dataset row as text: a list line by line, other values as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "\n".join(map(stdin_text, value))
    return json.dumps(value, ensure_ascii=False)


def with_newline(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def same_output(expected: str, actual: str) -> bool:
    """Return whether two outputs are equal apart from line ends and from blanks at the ends of lines and text."""
    if expected == actual:
        return True
    first, second = (text.strip().replace("\r\n", "\n") for text in (expected, actual))
    return first == second or [x.rstrip() for x in first.splitlines()] == [x.rstrip() for x in second.splitlines()]


def matching_line_share(expected: str, actual: str) -> float:
    """Return the share of lines that are equal at the same index."""
    first, second = ([line.rstrip() for line in text.strip().splitlines()] for text in (expected, actual))
    num_lines = max(len(first), len(second))
    return sum(x == y for x, y in zip(first, second, strict=False)) / num_lines if num_lines else 1.0
