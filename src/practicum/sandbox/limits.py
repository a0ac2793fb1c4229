"""What a program may use, and how its run ended."""

from __future__ import annotations

import enum
from dataclasses import dataclass, fields

from practicum.errors import UserError

KIB, MIB = 1024, 1024 * 1024


class SandboxError(Exception):
    """The sandbox itself could not run the program: nothing can be said about the program."""


class Reason(enum.StrEnum):
    """How a run ended."""

    OK = "ok"
    """It ran to its end with exit status 0."""
    ERROR = "error"
    """It ended by itself with another status: an exception that nobody caught, `sys.exit(1)`."""
    TIMEOUT = "timeout"
    """Its wall or CPU time was up."""
    MEMORY = "memory"
    """An allocation beyond its limit that nobody caught."""
    OUTPUT = "output"
    """It wrote more than it may."""
    KILLED = "killed"
    """A signal ended it."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What one program may use. Memory and CPU time hold for each of its processes."""

    wall: float = 10.0
    """Seconds from the moment it may start until it is killed."""
    cpu: int = 5
    """Whole seconds of computing."""
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
    """What a program wrote and how it ended. `status` is its exit status, minus the signal where one ended it."""

    stdout: str
    stderr: str
    status: int | None
    reason: Reason
    seconds: float

    @property
    def ok(self) -> bool:
        return self.reason is Reason.OK
