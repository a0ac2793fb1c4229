"""`Sandbox`: runs model-written Python at the strongest level that this machine has.

Every program gets a sandbox of its own, made for it and gone with it. The level is found by trying:
a small program reports from inside what it can see, and a level that does not hold is not used. A
machine that has only weaker levels than the configured one is refused with a sentence.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import shutil
import socket
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass

from practicum.errors import UserError
from practicum.sandbox.levels import Launcher, Level, init_code
from practicum.sandbox.limits import Limits, Result, SandboxError
from practicum.sandbox.process import KILL_SECONDS, Stop, Stopped, execute
from practicum.sandbox.runtime import find_runtime
from practicum.sandbox.seccomp import filter_program
from practicum.sandbox.slots import listening, place, telling
from practicum.utils.threads import in_thread

INSPECTION = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(*(int(status.get(name, "0"), 16) for name in ("Seccomp", "CapEff", "CapPrm", "NoNewPrivs")))
print(sum(name.isdigit() for name in os.listdir("/proc")), *os.listdir("/"))
"""


class Sandbox:
    """Runs programs, a bounded number of them at once, for any number of threads and event loops.

    While a caller waits for a place, an episode's deadline stands still; see `places`.
    """

    def __init__(self, launcher: Launcher, concurrency: int | None = None) -> None:
        self.launcher = launcher
        self.filter = filter_program()
        self.concurrency = concurrency or max(2, len(os.sched_getaffinity(0)))
        self._slots = threading.BoundedSemaphore(self.concurrency)
        self._command = launcher.command
        self.seccomp = self._inspect()

    @classmethod
    def open(cls, level: str = "namespaces", concurrency: int | None = None, *, only: str | None = None) -> Sandbox:
        """The strongest sandbox that works here, not weaker than `level`; `only` asks for one level and no other."""
        wanted = Level.named(level)
        tried = [Level.named(only)] if only is not None else [step for step in reversed(Level) if step >= wanted]
        faults = []
        for step in tried:
            try:
                return cls(Launcher.make(step, find_runtime()), concurrency)
            except SandboxError as error:
                faults.append(f"{step.title}: {error}")
        raise UserError(
            f"Model-written code needs a sandbox of level '{wanted.title}' and none works here ({'; '.join(faults)}): "
            "install bubblewrap (apt-get install bubblewrap), or, for code you trust, lower sandbox.level to 'rlimits'."
        )

    def describe(self) -> str:
        """What is in force, in words."""
        walls = ["namespaces"] if self.launcher.isolated else []
        walls += ["rlimits"] + (["seccomp"] if self.seccomp else [])
        names = {
            Level.BUBBLEWRAP: "bubblewrap",
            Level.NAMESPACES: "plain namespaces",
            Level.RLIMITS: "no isolation",
        }
        return f"{names[self.launcher.level]} ({', '.join(walls)})"

    async def run(self, code: str, stdin: str = "", limits: Limits | None = None, *, show_last: bool = False) -> Result:
        """Run a program. A caller that is cancelled waits until the program is gone, which takes milliseconds."""
        stop = Stop()
        with listening() as tell:
            work = in_thread(telling(tell, self._run), code, stdin, limits, show_last, stop)
            running = asyncio.ensure_future(work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                if stop.request():
                    await asyncio.wait([running], timeout=KILL_SECONDS + 1)
                running.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise

    def run_sync(self, code: str, stdin: str = "", limits: Limits | None = None, *, show_last: bool = False) -> Result:
        """The same for a caller in a thread of its own."""
        return self._run(code, stdin, limits, show_last, Stop())

    def converse(self, server: str, client: str, limits: Limits | None = None) -> tuple[Result | None, Result]:
        """Two programs in two sandboxes that share one line: descriptor 0 of each is an end of it.

        The client's end ends the talk; a server that then still runs is stopped and has no result.
        """
        stop = Stop()
        heard: list[Result | BaseException] = []
        ours, theirs = socket.socketpair()

        def serve() -> None:
            try:
                with theirs:
                    heard.append(self._execute(server, theirs.fileno(), limits, False, stop))
            except Exception as error:
                heard.append(error)

        with place(self._slots):
            thread = threading.Thread(target=serve, name="practicum-sandbox", daemon=True)
            thread.start()
            try:
                with ours:
                    answer = self._execute(client, ours.fileno(), limits, False, Stop())
            finally:
                stop.request()
                thread.join()
        served = heard[0]
        if isinstance(served, Stopped):
            return None, answer
        if isinstance(served, BaseException):
            raise served
        return served, answer

    def _run(self, code: str, stdin: str, limits: Limits | None, show_last: bool, stop: Stop) -> Result:
        with place(self._slots):
            return self._execute(code, stdin.encode("utf-8", "replace"), limits, show_last, stop)

    def _execute(self, code: str, feed: bytes | int, limits: Limits | None, show_last: bool, stop: Stop) -> Result:
        limits = limits or Limits()
        text = code.encode("utf-8", "replace").decode()  # half a surrogate pair cannot be handed over
        job = {**asdict(limits), **self.launcher.job(), "filter": self.filter, "code": text, "show_last": show_last}
        folder = "/" if self.launcher.isolated else tempfile.mkdtemp(prefix="practicum-sandbox-")
        try:
            return execute(
                self._command, init_code() + marshal.dumps(job), feed, limits, stop, folder, self.launcher.isolated
            )
        finally:
            if not self.launcher.isolated:
                shutil.rmtree(folder, ignore_errors=True)

    def _inspect(self) -> bool:
        """Run a program that looks around; SandboxError unless what it saw fits the level. Whether seccomp is on."""
        result = self.run_sync(INSPECTION)
        if not result.ok:
            said = (result.stderr.strip() or result.reason).splitlines()[-1]
            raise SandboxError(f"a program inside it fails ({said[:200]})")
        seccomp, effective, permitted, sealed, processes, *seen = result.stdout.split()
        runtime = self.launcher.runtime
        shown = {path.split("/")[1] for path in (*runtime.paths, *runtime.devices, "/proc", "/tmp")}
        faults = [
            text
            for wrong, text in (
                (effective != "0" or permitted != "0", "it keeps capabilities"),
                (sealed != "1", "it can gain privileges"),
                (processes != "2", "it sees other processes"),
                (not shown.issuperset(seen), "it sees other folders of the host"),
            )
            if wrong
        ]
        if faults and self.launcher.isolated:
            raise SandboxError(f"a program inside it is not shut in: {', '.join(faults)}")
        return seccomp == "2"


@dataclass(frozen=True)
class Settings:
    """What the whole process asks of its sandbox (`sandbox.level`, `sandbox.concurrency`)."""

    level: str = "namespaces"
    concurrency: int | None = None


_lock = threading.Lock()
_settings = Settings()
_opened: dict[Settings, Sandbox] = {}


def configure(level: str = "namespaces", concurrency: int | None = None) -> None:
    """Set what tools and rewards of this process use from now on."""
    global _settings
    Level.named(level)
    if concurrency is not None and concurrency < 1:
        raise UserError(f"sandbox.concurrency must be at least 1, got {concurrency}.")
    with _lock:
        _settings = Settings(level, concurrency)


def current() -> Sandbox:
    """The process's sandbox, opened on first use; UserError when the machine has none of the configured level."""
    with _lock:
        if _settings not in _opened:
            _opened[_settings] = Sandbox.open(_settings.level, _settings.concurrency)
            print(f"sandbox: {_opened[_settings].describe()}", file=sys.stderr)
        return _opened[_settings]
