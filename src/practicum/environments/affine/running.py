"""Runs stdin/stdout programs in the sandbox, many inputs in one guest, and compares what they print."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import UserError
from practicum.sandbox import base
from practicum.sandbox.limits import KIB, MIB, Limits
from practicum.sandbox.slots import in_thread_with_slots

CPU_SECONDS = 2
"""Computing time of one run; Affine's own executor gives 10."""
MEMORY = 512 * MIB
OUTPUT = MIB
MAX_TOTAL_SECONDS = 100.0
"""Less than an agent waits for a step."""


@dataclass(frozen=True, slots=True)
class Job:
    """A program and the text on its standard input."""

    program: str
    given: str


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run ended (`done`, `killed`, `timeout`, `output`, or `skipped` after one that took too long)."""

    ended: str
    output: str = ""
    error: str = ""

    @property
    def fine(self) -> bool:
        """It came to its end and complained of nothing. The exit status does not count."""
        return self.ended == "done" and not self.error.strip()

    @property
    def fault(self) -> str:
        """What went wrong, in one line."""
        if self.error.strip():
            return self.error.strip().splitlines()[-1][:200]
        return {"timeout": "it took too long", "output": "it printed too much", "killed": "it was killed"}.get(
            self.ended, ""
        )


@functools.cache
def _guest() -> str:
    return Path(__file__).with_name("guest.py").read_text(encoding="utf-8")


def check_cpu_seconds(seconds: object) -> int:
    if not isinstance(seconds, int) or isinstance(seconds, bool) or not 1 <= seconds <= 60:
        raise UserError(f"cpu_seconds must be a whole number from 1 to 60, got {seconds}.")
    return seconds


def run_jobs(jobs: Sequence[Job], cpu_seconds: int = CPU_SECONDS, patience: int = 1) -> list[Ran]:
    """All the jobs in one sandbox, one after the other; after `patience` that ran out of time the rest is skipped."""
    programs = list(dict.fromkeys(job.program for job in jobs))
    numbers = {program: number for number, program in enumerate(programs)}
    asked = [(numbers[job.program], job.given) for job in jobs]
    # Longer than the computing time: on a busy machine a program waits for its turn, and that is not its fault.
    wall = 3.0 * cpu_seconds + 2
    call = f"run_all({programs!r}, {asked!r}, {wall!r}, {OUTPUT!r}, {patience!r})"
    limits = Limits(
        wall=min(wall * len(jobs) + 2, MAX_TOTAL_SECONDS),
        cpu=cpu_seconds,
        memory=MEMORY,
        output=4 * KIB + len(jobs) * 7 * OUTPUT,  # a byte may take six as a JSON text
    )
    result = base.current().run_sync(f"{_guest()}\n{call}\n", limits=limits)
    ran = [_read(line) for line in result.stdout.splitlines()]
    return [*ran, *[Ran("skipped")] * (len(jobs) - len(ran))][: len(jobs)]


async def run_jobs_async(jobs: Sequence[Job], cpu_seconds: int = CPU_SECONDS) -> list[Ran]:
    return await in_thread_with_slots(run_jobs, jobs, cpu_seconds)


def _read(line: str) -> Ran:
    ended, _, texts = line.partition(" ")
    try:
        output, error = json.loads(texts)
    except ValueError:  # the guest was stopped in the middle of a line
        return Ran("killed")
    return Ran(ended, output, error)


def stdin_text(value: object) -> str:
    """What a row says of an input or output, as text: lists line by line, other things as JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, list | tuple):
        return "\n".join(map(stdin_text, value))
    return json.dumps(value, ensure_ascii=False)


def with_newline(text: str) -> str:
    return text if text.endswith("\n") else f"{text}\n"


def same_output(expected: str, given: str) -> bool:
    """Equal as they stand, or trimmed and with one kind of line end, or line by line without blanks at the ends."""
    if expected == given:
        return True
    one, other = (text.strip().replace("\r\n", "\n") for text in (expected, given))
    return one == other or [x.rstrip() for x in one.splitlines()] == [x.rstrip() for x in other.splitlines()]


def lines_agreeing(expected: str, given: str) -> float:
    """The share of lines that are the same in the same place."""
    one, other = ([line.rstrip() for line in text.strip().splitlines()] for text in (expected, given))
    most = max(len(one), len(other))
    return sum(x == y for x, y in zip(one, other, strict=False)) / most if most else 1.0
