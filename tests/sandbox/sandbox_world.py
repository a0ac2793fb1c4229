"""What lies around a sandbox in the tests of attacks, and how an attack is written down."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import textwrap
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from practicum.sandbox.limits import KIB, MIB, Limits, Reason, Result
from practicum.sandbox.seccomp import COMMON, MACHINES

LIMITS = Limits(wall=5.0, cpu=1, memory=128 * MIB, output=16 * KIB, processes=6, disk=2 * MIB, files=50)
QUICK = Limits(wall=1.2, cpu=1, memory=128 * MIB, output=16 * KIB, processes=6, disk=2 * MIB, files=50)
SECRET = "the-planted-secret-7c1f"
CALLS = {**COMMON, **MACHINES[platform.machine()][1]} if platform.machine() in MACHINES else COMMON


@dataclass
class World:
    """Things to steal, to reach, to break."""

    folder: Path
    port: int
    bystander: subprocess.Popen[bytes]
    reached: list[str] = field(default_factory=list)

    def fill(self, code: str) -> str:
        """Attackers are told where everything is: hiding is not what keeps them in. `@bpf@` is a call's number."""
        messages = {"FOLDER": str(self.folder), "PORT": str(self.port), "PID": str(self.bystander.pid),
                "HOST": str(os.getpid()), "NAME": f"practicum-{self.port}"}  # fmt: skip
        return re.sub(r"@(\w+)@", lambda found: str(messages.get(found[1]) or CALLS[found[1]]), textwrap.dedent(code))


@dataclass(frozen=True)
class Attack:
    """A program that prints `tried` before it tries, the limits it runs under, and what proves that it failed."""

    name: str
    code: str
    proof: Callable[[Result, World], bool]
    limits: Limits = LIMITS


def nothing_gained(result: Result, world: World) -> bool:
    """It ran to its end, and every attempt was refused."""
    return result.stdout.startswith("tried") and "GOT" not in result.stdout and result.ok


def ended(*reasons: Reason) -> Callable[[Result, World], bool]:
    """It ran, and ended for one of these reasons."""
    return lambda result, world: result.reason in reasons and result.stdout.startswith("tried")


def attempts(*expressions: str) -> str:
    """A program that evaluates expressions and says GOT for each that is not refused."""
    return f"""
import ctypes, os, resource, socket, sys
print("tried", flush=True)
libc = ctypes.CDLL(None, use_errno=True)
def call(name, *arguments):
    if getattr(libc, name)(*arguments) == -1:
        raise OSError(ctypes.get_errno(), name)
    return name
def kernel(number, *arguments):
    return call("syscall", number, *arguments)
for expression in {expressions!r}:
    try:
        result = eval(expression)
    except (OSError, ValueError, AttributeError) as error:
        print("refused", type(error).__name__)
    else:
        print("GOT", expression, result)
"""


def sandbox_processes() -> list[str]:
    """Live processes that belong to sandboxes of this test run."""
    results = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if f"sandbox-of-{os.getpid()}" in line:
                results.append(f"{entry.name}: {line[-80:]}")
    return results


def zombies() -> list[str]:
    """Children of this test run that ended and were never collected."""
    results = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                state, parent = (entry / "stat").read_text().rpartition(")")[2].split()[:2]
            except OSError:
                continue
            if state == "Z" and int(parent) == os.getpid():
                results.append(entry.name)
    return results
