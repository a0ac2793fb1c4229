"""One run of one program: started, fed, listened to, stopped in time, reaped to the last process."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from practicum.sandbox.init import OUT_OF_MEMORY
from practicum.sandbox.limits import Limits, Reason, Result, SandboxError

START_SECONDS = 30.0
"""How long a sandbox may take to get ready; a program's own time begins after that."""
KILL_SECONDS = 5.0
PIECE = 65536


class Stopped(Exception):
    """The caller no longer wants the result."""


class Stop:
    """A caller's wish to end a run early, heard by the thread that runs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._wanted = False
        self._signal: int | None = None

    def begin(self) -> int:
        """The run begins: a descriptor that becomes readable when it shall end."""
        with self._lock:
            if self._wanted:
                raise Stopped
            self._signal = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return self._signal

    def end(self) -> None:
        with self._lock:
            if self._signal is not None:
                os.close(self._signal)
                self._signal = None

    def request(self) -> bool:
        """Ask for the end; whether something is running that has to be waited for."""
        with self._lock:
            self._wanted = True
            if self._signal is None:
                return False
            os.eventfd_write(self._signal, 1)
            return True


class Run:
    """A sandboxed process while it lives. Used by one thread, which stays until the process is gone.

    That matters: the kernel kills a sandbox when the *thread* that started it ends.
    """

    def __init__(self, command: Sequence[str], job: bytes, feed: bytes | int, limits: Limits, folder: str) -> None:
        self.limits = limits
        self.verdict: Reason | None = None
        self.heard = {"stdout": bytearray(), "stderr": bytearray(), "report": bytearray()}
        self.selector = selectors.DefaultSelector()
        self.open: set[int] = set()
        self.begun = time.monotonic()
        self.ready_at: float | None = None
        self.process = self._start(command, job, feed, folder)

    def _start(self, command: Sequence[str], job: bytes, feed: bytes | int, folder: str) -> subprocess.Popen[bytes]:
        inner: list[int] = []
        process: subprocess.Popen[bytes] | None = None

        def feeds(content: bytes) -> int:
            reader, writer = os.pipe()
            inner.append(reader)
            self._watch(writer, selectors.EVENT_WRITE, bytearray(content))
            return reader

        def hears(name: str) -> int:
            reader, writer = os.pipe()
            inner.append(writer)
            self._watch(reader, selectors.EVENT_READ, name)
            return writer

        try:
            given = (feeds(job), hears("report"))
            process = subprocess.Popen(
                [*command, *map(str, given), f"sandbox-of-{os.getpid()}"],  # so that a list of processes says whose
                stdin=feeds(feed) if isinstance(feed, bytes) else feed,
                stdout=hears("stdout"),
                stderr=hears("stderr"),
                pass_fds=given,
                cwd=folder,
                env={"PYTHONHASHSEED": "0"},  # the order of a set is then the same in every run
                start_new_session=True,
            )
            self.handle = os.pidfd_open(process.pid)
            self._watch(self.handle, selectors.EVENT_READ, "ended")
        except OSError as error:
            self.close()
            if process is not None:
                process.kill()
                process.wait()
            raise SandboxError(f"the sandbox did not start: {error}") from error
        finally:
            for descriptor in inner:
                os.close(descriptor)
        return process

    def _watch(self, descriptor: int, event: int, what: str | bytearray) -> None:
        os.set_blocking(descriptor, False)
        self.open.add(descriptor)
        self.selector.register(descriptor, event, what)

    def _forget(self, descriptor: int) -> None:
        self.selector.unregister(descriptor)
        self.open.discard(descriptor)
        os.close(descriptor)

    def wait(self, stop: int) -> None:
        """Feed and listen until the process has ended by itself or must be ended."""
        self.selector.register(stop, selectors.EVENT_READ, "stop")
        ended = False
        while not ended and self.verdict is None:
            limit = self.begun + START_SECONDS if self.ready_at is None else self.ready_at + self.limits.wall
            left = limit - time.monotonic()
            if left <= 0:
                self.verdict = Reason.TIMEOUT
            for key, _ in self.selector.select(max(left, 0)):
                if key.data == "stop":
                    raise Stopped
                if key.data == "ended":
                    ended = True
                elif isinstance(key.data, bytearray):
                    self._write(key.fd, key.data)
                else:
                    self._read(key.fd, key.data)
        for descriptor in list(self.open):  # what it said last
            name = self.selector.get_key(descriptor).data
            while isinstance(name, str) and name in self.heard and self._read(descriptor, name):
                pass
        self.ended_at = time.monotonic()

    def _write(self, descriptor: int, text: bytearray) -> None:
        try:
            del text[: os.write(descriptor, text[:PIECE])]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it does not want to hear the rest
            text.clear()
        if not text:
            self._forget(descriptor)

    def _read(self, descriptor: int, name: str) -> bool:
        """Take what is there; whether there may be more."""
        try:
            piece = os.read(descriptor, PIECE)
        except BlockingIOError:
            return False
        if not piece:
            self._forget(descriptor)
            return False
        text = self.heard[name]
        text += piece
        if name == "report":
            if self.ready_at is None and b"\n" in text:
                self.ready_at = time.monotonic()
        elif len(text) > self.limits.output:
            del text[self.limits.output :]
            self.verdict = self.verdict or Reason.OUTPUT
            return False
        return True

    def kill(self, isolated: bool) -> None:
        """End everything and collect the process that we started, whatever state it is in.

        The first process inside goes first: its starter then collects it and ends by itself. The
        other way round would leave a corpse to the machine's own process 1, which may never look.
        """
        for descriptor in self.open - {self.handle}:  # whoever waits to be heard waits no longer
            self._forget(descriptor)
        limit = time.monotonic() + KILL_SECONDS
        while self.process.poll() is None:
            if not isolated or time.monotonic() > limit:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self.process.pid, signal.SIGKILL)
                self.process.kill()
                self.process.wait()
            elif not kill_children(self.process.pid):
                self.process.kill()
            with selectors.DefaultSelector() as waiter:
                waiter.register(self.handle, selectors.EVENT_READ)
                waiter.select(0.01)
        if not isolated:  # what it left behind in its own group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def result(self) -> Result:
        """What it said and how it ended."""
        report = self.heard["report"].decode().splitlines()
        texts = {name: bytes(self.heard[name]).decode("utf-8", "replace") for name in ("stdout", "stderr")}
        if self.ready_at is None:
            detail = texts["stderr"].strip().splitlines()[-1:] or [f"nothing heard within {START_SECONDS:g} s"]
            raise SandboxError(f"the sandbox did not start: {detail[0][:300]}")
        status, reason = read_ending(report[1] if len(report) > 1 else "")
        if self.verdict is not None:
            status, reason = None, self.verdict
        return Result(texts["stdout"], texts["stderr"], status, reason, self.ended_at - self.ready_at)

    def close(self) -> None:
        for descriptor in list(self.open):
            self._forget(descriptor)
        self.selector.close()


def execute(
    command: Sequence[str], job: bytes, feed: bytes | int, limits: Limits, stop: Stop, folder: str, isolated: bool
) -> Result:
    """Run to the end. Nothing of it is left when this returns, and none when it raises."""
    signalled = stop.begin()
    try:
        run = Run(command, job, feed, limits, folder)
        try:
            try:
                run.wait(signalled)
            finally:
                run.kill(isolated)
            return run.result()
        finally:
            run.close()
    finally:
        stop.end()


def read_ending(text: str) -> tuple[int | None, Reason]:
    """The guest's last word as a status and a reason."""
    word, _, number = text.partition(" ")
    if word == "exit":
        status = int(number)
        if status == 0:
            return 0, Reason.OK
        return status, Reason.MEMORY if status == OUT_OF_MEMORY else Reason.ERROR
    if word == "signal":
        return -int(number), Reason.TIMEOUT if int(number) == signal.SIGXCPU else Reason.KILLED
    return None, Reason.KILLED  # the whole sandbox was killed from outside, for instance for want of memory


def kill_children(parent: int) -> bool:
    """Kill the children of a process that we have not reaped; False where the kernel does not tell them."""
    listed = Path(f"/proc/{parent}/task/{parent}/children")
    try:
        children = listed.read_text().split()
    except OSError:
        return False
    for child in map(int, children):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(child)
            try:
                # Still its child now that we hold it: the number cannot have gone to somebody else.
                if str(child) in listed.read_text().split():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return True
