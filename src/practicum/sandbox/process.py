"""One run of one program: start it, pass its input, read its output, enforce its time limit, reap all processes."""

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
from typing import NamedTuple

from practicum.sandbox.init import MEMORY_EXIT_STATUS
from practicum.sandbox.limits import Limits, Reason, Result, SandboxError

START_SECONDS = 30.0
"""Seconds that a sandbox may take to get ready; a program's own time begins after that."""
KILL_SECONDS = 5.0
READ_BYTES = 65536


class Channel(NamedTuple):
    """Two ends of pipes: the program reads from one as descriptor 0 and writes to the other as `init.CHANNEL_OUT`."""

    reader: int
    writer: int

    def close(self) -> None:
        os.close(self.reader)
        os.close(self.writer)


def connect() -> tuple[Channel, Channel]:
    """Return the two sides of a connection. Pipes and not a socket, which would belong to the host's network."""
    first_reader, first_writer = os.pipe()
    second_reader, second_writer = os.pipe()
    return Channel(first_reader, second_writer), Channel(second_reader, first_writer)


class Stopped(Exception):
    """The caller requested the end of the run."""


class Stop:
    """A request to end a run early, from the caller to the thread that runs it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requested = False
        self._eventfd: int | None = None

    def begin(self) -> int:
        """Begin the run; return a file descriptor that becomes readable when the run must end."""
        with self._lock:
            if self._requested:
                raise Stopped
            self._eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            return self._eventfd

    def end(self) -> None:
        with self._lock:
            if self._eventfd is not None:
                os.close(self._eventfd)
                self._eventfd = None

    def request(self) -> bool:
        """Request the end; return whether a run has begun that has to be waited for."""
        with self._lock:
            self._requested = True
            if self._eventfd is None:
                return False
            os.eventfd_write(self._eventfd, 1)
            return True


class RunningProgram:
    """A running sandboxed process. Used by one thread, which stays until the process has ended.

    The thread must stay because the kernel kills a sandbox when the *thread* that started it ends.
    """

    def __init__(self, command: Sequence[str], job: bytes, feed: bytes | Channel, limits: Limits, folder: str) -> None:
        self.limits = limits
        self.verdict: Reason | None = None
        self.output = {"stdout": bytearray(), "stderr": bytearray(), "report": bytearray()}
        self.selector = selectors.DefaultSelector()
        self.open: set[int] = set()
        self.started_at = time.monotonic()
        self.ready_at: float | None = None
        self.process = self._start(command, job, feed, folder)

    def _start(self, command: Sequence[str], job: bytes, feed: bytes | Channel, folder: str) -> subprocess.Popen[bytes]:
        child_ends: list[int] = []
        process: subprocess.Popen[bytes] | None = None

        def input_pipe(content: bytes) -> int:
            reader, writer = os.pipe()
            child_ends.append(reader)
            self._watch(writer, selectors.EVENT_WRITE, bytearray(content))
            return reader

        def output_pipe(name: str) -> int:
            reader, writer = os.pipe()
            child_ends.append(writer)
            self._watch(reader, selectors.EVENT_READ, name)
            return writer

        try:
            descriptors = (input_pipe(job), output_pipe("report"))
            process = subprocess.Popen(
                [*command, *map(str, descriptors), f"sandbox-of-{os.getpid()}"],  # a process list shows the owner
                stdin=input_pipe(feed) if isinstance(feed, bytes) else feed.reader,
                stdout=output_pipe("stdout"),
                stderr=output_pipe("stderr"),
                pass_fds=(*descriptors, feed.writer) if isinstance(feed, Channel) else descriptors,
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
            for descriptor in child_ends:
                os.close(descriptor)
        return process

    def _watch(self, descriptor: int, event: int, content: str | bytearray) -> None:
        os.set_blocking(descriptor, False)
        self.open.add(descriptor)
        self.selector.register(descriptor, event, content)

    def _close_descriptor(self, descriptor: int) -> None:
        self.selector.unregister(descriptor)
        self.open.discard(descriptor)
        os.close(descriptor)

    def wait(self, stop: int) -> None:
        """Write input and read output until the process has ended or must be killed."""
        self.selector.register(stop, selectors.EVENT_READ, "stop")
        ended = False
        while not ended and self.verdict is None:
            limit = self.started_at + START_SECONDS if self.ready_at is None else self.ready_at + self.limits.wall
            seconds_left = limit - time.monotonic()
            if seconds_left <= 0:
                self.verdict = Reason.TIMEOUT
            for key, _ in self.selector.select(max(seconds_left, 0)):
                if key.data == "stop":
                    raise Stopped
                if key.data == "ended":
                    ended = True
                elif isinstance(key.data, bytearray):
                    self._write(key.fd, key.data)
                else:
                    self._read(key.fd, key.data)
        for descriptor in list(self.open):  # read the remaining output
            name = self.selector.get_key(descriptor).data
            while isinstance(name, str) and name in self.output and self._read(descriptor, name):
                pass
        self.ended_at = time.monotonic()

    def _write(self, descriptor: int, text: bytearray) -> None:
        try:
            del text[: os.write(descriptor, text[:READ_BYTES])]
        except BlockingIOError:
            return
        except BrokenPipeError:  # it has closed its standard input
            text.clear()
        if not text:
            self._close_descriptor(descriptor)

    def _read(self, descriptor: int, name: str) -> bool:
        """Read what is available; return whether there may be more."""
        try:
            chunk = os.read(descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if not chunk:
            self._close_descriptor(descriptor)
            return False
        text = self.output[name]
        text += chunk
        if name == "report":
            if self.ready_at is None and b"\n" in text:
                self.ready_at = time.monotonic()
        elif len(text) > self.limits.output:
            del text[self.limits.output :]
            self.verdict = self.verdict or Reason.OUTPUT
            return False
        return True

    def kill(self, isolated: bool) -> None:
        """Kill all processes and reap the one that we started, whatever state it is in.

        The first process inside is killed first: its parent then reaps it and exits. The other way round would leave a
        zombie to the machine's process 1, which may never reap it.
        """
        for descriptor in self.open - {self.handle}:  # a process that blocks on a pipe wakes up
            self._close_descriptor(descriptor)
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
        if not isolated:  # processes that remain in its group
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def result(self) -> Result:
        """Return the output and how the program ended."""
        report = self.output["report"].decode().splitlines()
        texts = {name: bytes(self.output[name]).decode("utf-8", "replace") for name in ("stdout", "stderr")}
        if self.ready_at is None:
            detail = texts["stderr"].strip().splitlines()[-1:] or [f"no output within {START_SECONDS:g} s"]
            raise SandboxError(f"the sandbox did not start: {detail[0][:300]}")
        status, reason = read_exit_line(report[1] if len(report) > 1 else "")
        if self.verdict is not None:
            status, reason = None, self.verdict
        return Result(texts["stdout"], texts["stderr"], status, reason, self.ended_at - self.ready_at)

    def close(self) -> None:
        for descriptor in list(self.open):
            self._close_descriptor(descriptor)
        self.selector.close()


def execute(
    command: Sequence[str], job: bytes, feed: bytes | Channel, limits: Limits, stop: Stop, folder: str, isolated: bool
) -> Result:
    """Run a program to its end. No process of it remains when this returns or raises."""
    stop_descriptor = stop.begin()
    try:
        run = RunningProgram(command, job, feed, limits, folder)
        try:
            try:
                run.wait(stop_descriptor)
            finally:
                run.kill(isolated)
            return run.result()
        finally:
            run.close()
    finally:
        stop.end()


def read_exit_line(text: str) -> tuple[int | None, Reason]:
    """Parse the report of the first process inside (`exit STATUS` or `signal NUMBER`) into a status and a reason."""
    kind, _, number = text.partition(" ")
    if kind == "exit":
        status = int(number)
        if status == 0:
            return 0, Reason.OK
        return status, Reason.MEMORY if status == MEMORY_EXIT_STATUS else Reason.ERROR
    if kind == "signal":
        return -int(number), Reason.TIMEOUT if int(number) == signal.SIGXCPU else Reason.KILLED
    return None, Reason.KILLED  # the whole sandbox was killed from outside, for instance by the out-of-memory killer


def kill_children(parent: int) -> bool:
    """Kill the children of a process that we have not reaped; return False if the kernel does not list them."""
    children_file = Path(f"/proc/{parent}/task/{parent}/children")
    try:
        children = children_file.read_text().split()
    except OSError:
        return False
    for child in map(int, children):
        with contextlib.suppress(OSError):
            handle = os.pidfd_open(child)
            try:
                # Still a child now that we hold the descriptor: the pid has not been reused.
                if str(child) in children_file.read_text().split():
                    signal.pidfd_send_signal(handle, signal.SIGKILL)
            finally:
                os.close(handle)
    return True
