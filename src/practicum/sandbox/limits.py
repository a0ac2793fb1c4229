"""What a program may use, and how its run ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

from practicum.errors import UserError

KIB, MIB = 1024, 1024 * 1024


class SandboxError(Exception):
    """The sandbox could not run the program; this says nothing about the program."""


class Reason(enum.StrEnum):
    """How a run ended."""

    OK = "ok"
    """It ran to its end with exit status 0."""
    ERROR = "error"
    """It exited with another status: an uncaught exception, `sys.exit(1)`."""
    TIMEOUT = "timeout"
    """It exceeded its wall or CPU time."""
    MEMORY = "memory"
    """It exceeded its memory limit and did not catch the MemoryError."""
    OUTPUT = "output"
    """It wrote more output than allowed."""
    KILLED = "killed"
    """It was ended by a signal."""


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits of one program. Memory and CPU time apply to each of its processes."""

    wall: float = 10.0
    """Wall seconds from the start of the program until it is killed."""
    cpu: int = 5
    """Seconds of CPU time."""
    memory: int = 256 * MIB
    """Bytes of address space; the interpreter itself takes about 15 MiB of them."""
    output: int = 64 * KIB
    """Bytes of standard output, and as many of standard error."""
    processes: int = 8
    """Processes and threads besides the first one."""
    disk: int = 16 * MIB
    """Bytes in its working folder, which is also the most one file can hold."""
    files: int = 256
    """Files and folders in its working folder."""
    open_files: int = 64
    """Open files of a process."""

    def __post_init__(self) -> None:
        for entry in fields(self):
            value = getattr(self, entry.name)
            if value < (0 if entry.name == "processes" else 1e-3):
                raise UserError(f"sandbox limit '{entry.name}' must be above zero, got {value}.")


@dataclass(frozen=True, slots=True)
class Result:
    """Output of a program and how it ended. `status` is the exit status, or minus the number of the signal."""

    stdout: str
    stderr: str
    status: int | None
    reason: Reason
    seconds: float

    @property
    def ok(self) -> bool:
        return self.reason is Reason.OK
