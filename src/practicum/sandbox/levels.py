"""Isolation levels in order, and the command that starts a program at each."""

from __future__ import annotations

import enum
import functools
import marshal
import os
import random
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from practicum.errors import UserError, did_you_mean
from practicum.sandbox.limits import SandboxError
from practicum.sandbox.runtime import Runtime

NOBODY = 65534
MIN_USER_IDS = 10_000
"""Root of a container with fewer user ids than this cannot give every program its own user id."""
INIT_PROGRAM = Path(__file__).with_name("init.py")
BOOTSTRAP = "import marshal, sys; source = open(int(sys.argv[1]), 'rb'); exec(marshal.load(source))"
"""The program on the command line: it reads `init.py` as compiled code from a pipe, followed by the job."""


class Level(enum.IntEnum):
    """Isolation levels, weakest first. `RLIMITS` does not isolate: use it for code you trust."""

    RLIMITS = 1
    """A process with limits on time, memory and files. It can read what you can read."""
    NAMESPACES = 2
    """Namespaces set up by `init.py`: no network, no files but the Python runtime, no other processes."""
    BUBBLEWRAP = 3
    """The same namespaces, set up by bubblewrap, which is widely used and audited."""

    @classmethod
    def named(cls, name: str) -> Level:
        levels = {level.name.lower(): level for level in cls}
        if name not in levels:
            raise UserError(f"Unknown sandbox level '{name}'.{did_you_mean(name, levels)}")
        return levels[name]

    @property
    def title(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Launcher:
    """Starts programs at one level: as root, with a user id per program, or as an unprivileged user."""

    level: Level
    runtime: Runtime
    ids: range | None
    """User ids to choose from; None when not root: then processes are counted per user namespace."""

    @classmethod
    def make(cls, level: Level, runtime: Runtime) -> Launcher:
        return cls(level, runtime, user_ids() if level > Level.RLIMITS else None)

    @property
    def isolated(self) -> bool:
        return self.level > Level.RLIMITS

    @property
    def command(self) -> list[str]:
        """The command line, up to the two file descriptors that are appended for `init.py`."""
        init_command = [self.runtime.executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP]
        if self.level is Level.BUBBLEWRAP:
            return [*self._bubblewrap(), "--", *init_command]
        if self.level is Level.NAMESPACES:
            return [*self._unshare(), "--", *init_command]
        return init_command

    def job(self) -> dict[str, object]:
        """Return the part of the job that depends on how `init.py` is started."""
        runtime = self.runtime
        plan = {"paths": runtime.paths, "hidden": runtime.hidden, "devices": runtime.devices}
        return {
            "uid": random.SystemRandom().choice(self.ids) if self.ids is not None else None,
            "build": plan if self.level is Level.NAMESPACES else None,
            "isolated": self.isolated,
            # Counted besides the program's own: process 1, the program, and `unshare`, which is in the same namespace.
            "counted": 3 if self.level is Level.NAMESPACES and self.ids is None else 2,
        }

    def _bubblewrap(self) -> list[str]:
        arguments = [find_program("bwrap", "bubblewrap"), "--die-with-parent", "--new-session", "--as-pid-1"]
        arguments += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        # init.py mounts the working folder itself, because bubblewrap cannot bound the number of files in it.
        capabilities = ["CAP_SYS_ADMIN"]
        if self.ids is None:
            arguments += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        else:
            capabilities += ["CAP_SETUID", "CAP_SETGID"]
        arguments += ["--cap-drop", "ALL", *(word for name in capabilities for word in ("--cap-add", name))]
        arguments += ["--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--hostname", "sandbox"]
        for folder in parent_folders((*self.runtime.paths, *self.runtime.devices)):
            arguments += [
                "--dir",
                folder,
            ]  # those that bubblewrap creates can be entered by root only
        for path in self.runtime.paths:
            arguments += ["--ro-bind", path, path]
        for path in self.runtime.hidden:
            arguments += ["--tmpfs", path, "--remount-ro", path]
        for path in self.runtime.devices:
            arguments += ["--dev-bind", path, path]
        return [*arguments, "--proc", "/proc", "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/"]

    def _unshare(self) -> list[str]:
        arguments = [find_program("unshare", "util-linux"), "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"]
        return [*arguments, "--user", "--map-root-user"] if self.ids is None else arguments


@functools.cache
def init_code() -> bytes:
    """Return the compiled code of `init.py`, for an interpreter of this version."""
    return marshal.dumps(compile(INIT_PROGRAM.read_text(encoding="utf-8"), "<init>", "exec"))


def parent_folders(paths: Iterable[str]) -> list[str]:
    """Return every parent folder of the paths, outermost first."""
    return sorted({str(folder) for path in paths for folder in Path(path).parents if str(folder) != "/"})


def find_program(name: str, package: str) -> str:
    path = shutil.which(name)
    if path is None:
        raise SandboxError(f"'{name}' is not installed (package {package})")
    return path


def user_ids() -> range | None:
    """Return user ids that root may assign, far above those of people; None if this process is not such a root.

    The kernel counts processes per user and never counts root's, so a program must not be root.
    """
    if os.geteuid() != 0:
        return None
    ranges = []
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        ranges.append(range(max(first, MIN_USER_IDS), min(first + count, 2**31 - 1)))
    largest = max(ranges, key=len)
    return largest[len(largest) // 2 :] if len(largest) >= MIN_USER_IDS else None
