"""How strongly a program is shut in: levels in order, and the command that starts each."""

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
FEWEST_IDS = 10_000
"""Root of a container that owns fewer user ids than this cannot give every program one of its own."""
INIT_PROGRAM = Path(__file__).with_name("init.py")
BOOTSTRAP = "import marshal, sys; source = open(int(sys.argv[1]), 'rb'); exec(marshal.load(source))"
"""All that stands on the command line: the guest itself comes compiled through a pipe, its job behind it."""


class Level(enum.IntEnum):
    """Weakest first. What is weaker than `NAMESPACES` is no isolation: use it for code you trust."""

    RLIMITS = 1
    """A process with limits on time, memory and files. It can read what you can read."""
    NAMESPACES = 2
    """Namespaces set up by our own first program: no network, no files but the Python runtime, no other processes."""
    BUBBLEWRAP = 3
    """The same, set up by bubblewrap, which many have tried to break."""

    @classmethod
    def named(cls, name: str) -> Level:
        known = {level.name.lower(): level for level in cls}
        if name not in known:
            raise UserError(f"Unknown sandbox level '{name}'.{did_you_mean(name, known)}")
        return known[name]

    @property
    def title(self) -> str:
        return self.name.lower()


@dataclass(frozen=True)
class Launcher:
    """Starts the guest at one level: as root, who gives every program a user id of its own, or as a plain user."""

    level: Level
    runtime: Runtime
    ids: range | None
    """User ids to take one from; none when not root: then a user namespace does the counting."""

    @classmethod
    def make(cls, level: Level, runtime: Runtime) -> Launcher:
        return cls(level, runtime, user_ids() if level > Level.RLIMITS else None)

    @property
    def isolated(self) -> bool:
        return self.level > Level.RLIMITS

    @property
    def command(self) -> list[str]:
        """The command line, up to the two descriptor numbers that the guest is given."""
        guest = [self.runtime.executable, "-P", "-s", "-S", "-B", "-X", "utf8", "-c", BOOTSTRAP]
        if self.level is Level.BUBBLEWRAP:
            return [*self._bubblewrap(), "--", *guest]
        if self.level is Level.NAMESPACES:
            return [*self._unshare(), "--", *guest]
        return guest

    def job(self) -> dict[str, object]:
        """What the guest must know of how it was started."""
        runtime = self.runtime
        plan = {"paths": runtime.paths, "hidden": runtime.hidden, "devices": runtime.devices}
        return {
            "uid": random.SystemRandom().choice(self.ids) if self.ids is not None else None,
            "build": plan if self.level is Level.NAMESPACES else None,
            "isolated": self.isolated,
            # Counted beside the program's own: process 1 and the program, and `unshare`, which is in there with them.
            "counted": 3 if self.level is Level.NAMESPACES and self.ids is None else 2,
        }

    def _bubblewrap(self) -> list[str]:
        words = [program("bwrap", "bubblewrap"), "--die-with-parent", "--new-session", "--as-pid-1"]
        words += ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
        # The guest mounts its working folder itself, because bubblewrap cannot bound the number of files in it.
        capabilities = ["CAP_SYS_ADMIN"]
        if self.ids is None:
            words += ["--unshare-user", "--uid", str(NOBODY), "--gid", str(NOBODY)]
        else:
            capabilities += ["CAP_SETUID", "CAP_SETGID"]
        words += ["--cap-drop", "ALL", *(word for name in capabilities for word in ("--cap-add", name))]
        words += ["--clearenv", "--setenv", "PYTHONHASHSEED", "0", "--hostname", "sandbox"]
        for folder in above((*self.runtime.paths, *self.runtime.devices)):
            words += ["--dir", folder]  # bubblewrap's own idea of a parent folder is one that only root may enter
        for path in self.runtime.paths:
            words += ["--ro-bind", path, path]
        for path in self.runtime.hidden:
            words += ["--tmpfs", path, "--remount-ro", path]
        for path in self.runtime.devices:
            words += ["--dev-bind", path, path]
        return [*words, "--proc", "/proc", "--dir", "/tmp", "--remount-ro", "/", "--chdir", "/"]

    def _unshare(self) -> list[str]:
        words = [program("unshare", "util-linux"), "--mount", "--net", "--pid", "--ipc", "--uts", "--fork"]
        return [*words, "--user", "--map-root-user"] if self.ids is None else words


@functools.cache
def init_code() -> bytes:
    """The guest's code for an interpreter of this one's version."""
    return marshal.dumps(compile(INIT_PROGRAM.read_text(encoding="utf-8"), "<init>", "exec"))


def above(paths: Iterable[str]) -> list[str]:
    """Every folder on the way to the paths, outermost first."""
    return sorted({str(folder) for path in paths for folder in Path(path).parents if str(folder) != "/"})


def program(name: str, package: str) -> str:
    found = shutil.which(name)
    if found is None:
        raise SandboxError(f"'{name}' is not installed (package {package})")
    return found


def user_ids() -> range | None:
    """User ids that root may give away, far above those of people; None where we are not such a root.

    The kernel counts processes per user and never counts root's, so a program must not be root.
    """
    if os.geteuid() != 0:
        return None
    ranges = []
    for line in Path("/proc/self/uid_map").read_text().splitlines():
        first, _, count = map(int, line.split())
        ranges.append(range(max(first, FEWEST_IDS), min(first + count, 2**31 - 1)))
    largest = max(ranges, key=len)
    return largest[len(largest) // 2 :] if len(largest) >= FEWEST_IDS else None
