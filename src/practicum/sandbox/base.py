"""`Sandbox`: runs model-written Python at the strongest isolation level that this machine supports.

Every program gets its own sandbox, created for it and removed after it. The level is found by trying: a small program
reports from inside what it can see, and a level that does not isolate it is not used. If the machine supports only
weaker levels than the configured one, that is a UserError.
"""

from __future__ import annotations

import asyncio
import marshal
import os
import shutil
import sys
import tempfile
import threading
from dataclasses import asdict, dataclass

from practicum.errors import UserError
from practicum.sandbox.levels import Launcher, Level, init_code
from practicum.sandbox.limits import Limits, Result, SandboxError
from practicum.sandbox.process import KILL_SECONDS, Channel, Stop, Stopped, connect, execute
from practicum.sandbox.runtime import find_runtime
from practicum.sandbox.seccomp import filter_program
from practicum.utils.concurrency import in_thread, pause_deadline_while_queued, slot, with_queue_callback

INSPECTION = """
import os
status = dict(line.split(":", 1) for line in open("/proc/self/status").read().splitlines())
print(*(int(status.get(name, "0"), 16) for name in ("Seccomp", "CapEff", "CapPrm", "NoNewPrivs")))
print(sum(name.isdigit() for name in os.listdir("/proc")), *os.listdir("/"))
"""


class Sandbox:
    """Runs programs, at most `concurrency` at once, for any number of threads and event loops.

    While a caller waits for a slot, the deadline of its episode is paused; see `slots`.
    """

    def __init__(self, launcher: Launcher, concurrency: int | None = None) -> None:
        self.launcher = launcher
        self.filter = filter_program()
        self.concurrency = concurrency or max(2, len(os.sched_getaffinity(0)))
        self.slots = threading.BoundedSemaphore(self.concurrency)
        self._command = launcher.command
        self.seccomp = self._inspect()

    @classmethod
    def open(cls, level: str = "namespaces", concurrency: int | None = None, *, only: str | None = None) -> Sandbox:
        """Open the strongest sandbox that works here, not weaker than `level`; `only` tries exactly one level."""
        minimum = Level.named(level)
        if concurrency is not None and concurrency < 1:
            raise UserError(f"sandbox.concurrency must be at least 1, got {concurrency}.")
        candidates = [Level.named(only)] if only is not None else [step for step in reversed(Level) if step >= minimum]
        faults = []
        for step in candidates:
            try:
                return cls(Launcher.make(step, find_runtime()), concurrency)
            except SandboxError as error:
                faults.append(f"{step.title}: {error}")
        raise UserError(
            f"Model-written code needs a sandbox of level '{minimum.title}' and none works here ({'; '.join(faults)}): "
            "install bubblewrap (apt-get install bubblewrap), or, for code you trust, lower sandbox.level to 'rlimits'."
        )

    def describe(self) -> str:
        """Return a text that names the level and the mechanisms in force."""
        mechanisms = ["namespaces"] if self.launcher.isolated else []
        mechanisms += ["rlimits"] + (["seccomp"] if self.seccomp else [])
        names = {
            Level.BUBBLEWRAP: "bubblewrap",
            Level.NAMESPACES: "plain namespaces",
            Level.RLIMITS: "no isolation",
        }
        return f"{names[self.launcher.level]} ({', '.join(mechanisms)})"

    async def run(self, code: str, stdin: str = "", limits: Limits | None = None, *, show_last: bool = False) -> Result:
        """Run a program. A cancelled caller waits until the program has ended, which takes milliseconds."""
        stop = Stop()
        with pause_deadline_while_queued() as on_queue:
            work = in_thread(with_queue_callback(on_queue, self._run), code, stdin, limits, show_last, stop)
            running = asyncio.ensure_future(work)
            try:
                return await asyncio.shield(running)
            except asyncio.CancelledError:
                if stop.request():
                    await asyncio.wait([running], timeout=KILL_SECONDS + 1)
                running.add_done_callback(lambda done: done.cancelled() or done.exception())
                raise

    def run_sync(self, code: str, stdin: str = "", limits: Limits | None = None, *, show_last: bool = False) -> Result:
        """Run a program and block until it ends."""
        return self._run(code, stdin, limits, show_last, Stop())

    def run_connected(self, server: str, client: str, limits: Limits | None = None) -> tuple[Result | None, Result]:
        """Run two programs in two sandboxes connected by pipes: each reads from file descriptor 0 and writes to 3.

        Both stop when the client ends; a server that still runs then is killed and its result is None.
        """
        stop = Stop()
        server_results: list[Result | BaseException] = []
        client_channel, server_channel = connect()

        def serve() -> None:
            try:
                server_results.append(self.execute(server, server_channel, limits, False, stop))
            except Exception as error:
                server_results.append(error)
            finally:
                server_channel.close()

        with slot(self.slots):
            thread = threading.Thread(target=serve, name="practicum-sandbox", daemon=True)
            thread.start()
            try:
                client_result = self.execute(client, client_channel, limits, False, Stop())
            finally:
                client_channel.close()
                stop.request()
                thread.join()
        server_result = server_results[0]
        if isinstance(server_result, Stopped):
            return None, client_result
        if isinstance(server_result, BaseException):
            raise server_result
        return server_result, client_result

    def _run(self, code: str, stdin: str, limits: Limits | None, show_last: bool, stop: Stop) -> Result:
        with slot(self.slots):
            return self.execute(code, stdin.encode("utf-8", "replace"), limits, show_last, stop)

    def execute(self, code: str, feed: bytes | Channel, limits: Limits | None, show_last: bool, stop: Stop) -> Result:
        limits = limits or Limits()
        text = code.encode("utf-8", "replace").decode()  # a lone surrogate cannot be encoded
        job = {**asdict(limits), **self.launcher.job(), "filter": self.filter, "code": text, "show_last": show_last}
        job["channel"] = feed.writer if isinstance(feed, Channel) else None
        folder = "/" if self.launcher.isolated else tempfile.mkdtemp(prefix="practicum-sandbox-")
        try:
            return execute(
                self._command, init_code() + marshal.dumps(job), feed, limits, stop, folder, self.launcher.isolated
            )
        finally:
            if not self.launcher.isolated:
                shutil.rmtree(folder, ignore_errors=True)

    def _inspect(self) -> bool:
        """Run a program that inspects its sandbox; SandboxError if it is not isolated. Return whether seccomp is on."""
        result = self.run_sync(INSPECTION)
        if not result.ok:
            last_line = (result.stderr.strip() or result.reason).splitlines()[-1]
            raise SandboxError(f"a program inside it fails ({last_line[:200]})")
        seccomp, effective, permitted, no_new_privileges, processes, *entries = result.stdout.split()
        runtime = self.launcher.runtime
        expected = {path.split("/")[1] for path in (*runtime.paths, *runtime.devices, "/proc", "/tmp")}
        faults = [
            text
            for wrong, text in (
                (effective != "0" or permitted != "0", "it keeps capabilities"),
                (no_new_privileges != "1", "it can gain privileges"),
                (processes != "2", "it sees other processes"),
                (not expected.issuperset(entries), "it sees other folders of the host"),
            )
            if wrong
        ]
        if faults and self.launcher.isolated:
            raise SandboxError(f"a program inside it is not shut in: {', '.join(faults)}")
        return seccomp == "2"


@dataclass(frozen=True)
class Settings:
    """Sandbox settings of this process (`sandbox.level`, `sandbox.concurrency`)."""

    level: str = "namespaces"
    concurrency: int | None = None


settings = Settings()
"""The sandbox that tools and rewards of this process use from now on; it is opened on first use."""
_lock = threading.Lock()
opened: dict[Settings, Sandbox] = {}


def current() -> Sandbox:
    """Return the process's sandbox, opened on first use; UserError if the configured level is not supported."""
    with _lock:
        if settings not in opened:
            opened[settings] = Sandbox.open(settings.level, settings.concurrency)
            print(f"sandbox: {opened[settings].describe()}", file=sys.stderr)
        return opened[settings]
