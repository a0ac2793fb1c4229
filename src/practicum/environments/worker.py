"""Environment engines in worker processes: a pool of workers, each with one engine that many episodes share.

An engine that needs Java, that is not thread-safe, or that may crash its process runs in a worker
(`worker_child.py`). An episode has a `WorkerSession` with one worker. If a worker dies, is killed or hangs, the next
call of each of its episodes raises `WorkerDied`, which ends them as `env_error`; the next session is opened with
another worker or a new one. Workers end with this process, however it ends.

A worker processes one call at a time. How long a call is queued says nothing about the environment, so an episode's
deadline is paused until its call begins; a call that hangs is ended by the worker's own time limit.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import itertools
import json
import os
import queue
import select
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import IO, Any, BinaryIO, cast

from practicum.environments.worker_child import read_frame, write_frame
from practicum.errors import UserError
from practicum.utils.concurrency import queued
from practicum.utils.memory import tree_cpu_seconds

START_CALL = ""
"""Name of the first call to every worker, which creates its engine."""
CALL_LIMIT_SECONDS = 120.0
"""Seconds that one call may take in the engine before its process counts as hung and is killed; see `is_starved`."""
MIN_CPU_SHARE = 0.01
"""Processor seconds per second below which a process waits for something other than processor time."""
MAX_LIMIT_FACTOR = 10
"""A call on an overloaded machine may take at most this many times the limit."""
STDERR_TAIL_CHARS = 400
"""Number of characters of a dead process's standard error that the exception quotes."""
MAX_CONCURRENT_STARTS = max(1, (os.cpu_count() or 2) // 2)
"""Number of engines that start at the same time: a Java process that starts keeps more than one core busy."""
_start_semaphore = threading.Semaphore(MAX_CONCURRENT_STARTS)


class WorkerDied(Exception):
    """The worker process that held this episode's environment has ended, and the episode with it."""


class WorkerFault(Exception):
    """The engine raised an exception in this call; its process continues."""


@dataclass(frozen=True, slots=True)
class _Call:
    future: Future[Any]
    name: str
    arguments: Mapping[str, Any]
    on_begin: Callable[[], None] | None = None
    """Called on the worker's thread when the call begins."""


class Worker:
    """One worker process. A thread of this process sends it one call at a time and cleans up when it ends."""

    def __init__(self, host: str, options: Mapping[str, Any], limit: float = CALL_LIMIT_SECONDS) -> None:
        self.host, self.limit = host, limit
        self.sessions: set[int] = set()
        self._queue: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._dead_reason: str | None = None
        self._exit_info = ""
        self._is_user_error = False
        self._stderr = tempfile.TemporaryFile()  # noqa: SIM115 - closed in _reap
        # Sets and dictionaries of strings must have one order in all workers, or episodes would not repeat.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "practicum.environments.worker_child", host],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._stderr, bufsize=0, env=environment,
            process_group=0,
        )  # fmt: skip
        self.submit(START_CALL, options)
        name = f"practicum-worker-{self.process.pid}"
        self._thread = threading.Thread(target=self._run_calls, name=name, daemon=True)
        self._thread.start()

    @property
    def alive(self) -> bool:
        return self._dead_reason is None and self.process.poll() is None

    def submit(
        self, call: str, arguments: Mapping[str, Any], on_begin: Callable[[], None] | None = None
    ) -> Future[Any]:
        """Queue a call; the future gets its value, or a `WorkerFault`, `UserError` or `WorkerDied`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._dead_reason is None:
                self._queue.put(_Call(future, call, arguments, on_begin))
                return future
        future.set_exception(self._error())
        return future

    async def call(self, call: str, arguments: Mapping[str, Any]) -> Any:
        """Return the value of a call. The deadline in force counts from when the worker begins the call."""
        loop, started = asyncio.get_running_loop(), asyncio.Event()

        def on_begin() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(started.set)

        answer = asyncio.wrap_future(self.submit(call, arguments, on_begin))
        answer.add_done_callback(lambda _: started.set())  # a worker that dies answers calls that never begin
        try:
            with queued():
                await started.wait()
            return await answer
        except asyncio.CancelledError:
            answer.cancel()  # if it has not begun, it is never executed
            raise

    def end(self) -> None:
        """Kill the process and wait until it has ended; pending calls raise `WorkerDied`."""
        self._mark_dead("it was stopped")
        self._queue.put(None)
        self._thread.join()

    def _run_calls(self) -> None:
        unanswered: _Call | None = None
        while self._dead_reason is None:
            item = self._queue.get()
            if item is None or not item.future.set_running_or_notify_cancel():
                continue
            if item.on_begin is not None:
                item.on_begin()
            try:
                with self._start_slot() if item.name == START_CALL else contextlib.nullcontext():
                    answer = self._exchange(item)
            except TimeoutError as error:
                self._mark_dead(str(error))
            except (OSError, ValueError) as error:
                self._mark_dead(f"talking to it failed ({error})")
            else:
                if answer is not None:
                    self._set_result(item, answer)
                    continue
                self._mark_dead("it ended")
            unanswered = item
        self._reap(unanswered)

    def _exchange(self, item: _Call) -> Any:
        """Send a call and return the answer; None if the process ended instead."""
        write_frame(self._pipe(self.process.stdin), {"call": item.name, "arguments": item.arguments})
        # Most calls return at once; reading the processor time of all processes would take longer than they do.
        cpu_seconds = [] if self._wait_readable(self.limit / 100) else [tree_cpu_seconds(self.process.pid)]
        while cpu_seconds and not self._wait_readable(self.limit):
            cpu_seconds.append(tree_cpu_seconds(self.process.pid))
            if not is_starved(cpu_seconds, self.limit):
                call = f"'{item.name}'" if item.name else "its start"
                raise TimeoutError(f"{call} took longer than {self.limit:g} s")
        return read_frame(self._pipe(self.process.stdout))

    def _wait_readable(self, seconds: float) -> bool:
        return bool(select.select([self._pipe(self.process.stdout)], [], [], seconds)[0])

    @contextlib.contextmanager
    def _start_slot(self) -> Iterator[None]:
        """Wait until this engine may start; a worker that is marked dead stops waiting."""
        acquired = False
        while not acquired and self._dead_reason is None:
            acquired = _start_semaphore.acquire(timeout=0.1)
        try:
            yield
        finally:
            if acquired:
                _start_semaphore.release()

    def _set_result(self, item: _Call, answer: Mapping[str, Any]) -> None:
        if "value" in answer:
            item.future.set_result(answer["value"])
            return
        error = UserError(answer["user"]) if "user" in answer else WorkerFault(answer["fault"])
        item.future.set_exception(error)
        if item.name == START_CALL:
            # Without an engine no call can succeed: pending calls get the reason.
            self._mark_dead(str(error))
            self._is_user_error = isinstance(error, UserError)

    def _mark_dead(self, reason: str) -> None:
        """Mark this worker as dead and kill its process group; the first reason is kept."""
        with self._lock:
            if self._dead_reason is None:
                self._dead_reason = reason
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _reap(self, unanswered: _Call | None) -> None:
        """Wait for the process, close its pipes, and set the exception of all pending calls."""
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                self._pipe(pipe).close()
        self._exit_info = f" (exit status {code}){self._stderr_tail()}"
        error = self._error()
        if unanswered is not None:
            unanswered.future.set_exception(error)
        while not self._queue.empty():
            item = self._queue.get()
            if item is not None and item.future.set_running_or_notify_cancel():
                item.future.set_exception(error)

    def _error(self) -> Exception:
        if self._is_user_error:
            return UserError(str(self._dead_reason))
        return WorkerDied(
            f"the process of {self.host.rpartition(':')[2]} is gone, {self._dead_reason}{self._exit_info}"
        )

    def _stderr_tail(self) -> str:
        size = self._stderr.seek(0, os.SEEK_END)
        self._stderr.seek(max(0, size - STDERR_TAIL_CHARS))
        tail = " ".join(self._stderr.read().decode(errors="replace").split())
        self._stderr.close()
        return f": {tail}" if tail else ""

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> BinaryIO:
        assert pipe is not None
        return cast(BinaryIO, pipe)


def is_starved(cpu_seconds: Sequence[float], limit: float) -> bool:
    """Return whether a call is late because the machine is busy: it computes but has had little processor time.

    `cpu_seconds` is the processor time of the worker's process tree at the start and after each `limit` seconds since.
    """
    progressing = cpu_seconds[-1] - cpu_seconds[-2] > MIN_CPU_SHARE * limit
    return progressing and cpu_seconds[-1] - cpu_seconds[0] < limit / 2 and len(cpu_seconds) <= MAX_LIMIT_FACTOR


class WorkerSession:
    """One episode's share of a worker: its calls carry the id of this session."""

    def __init__(self, pool: WorkerPool, worker: Worker, session_id: int) -> None:
        self.pool, self.worker, self.session_id = pool, worker, session_id

    @property
    def alive(self) -> bool:
        return self.worker.alive

    async def call(self, name: str, **arguments: Any) -> Any:
        """Call the engine for this episode."""
        return await self.worker.call(name, {"session": self.session_id, **arguments})

    def ask(self, name: str, **arguments: Any) -> Any:
        """Call the engine for this episode and block until it returns."""
        return self.worker.submit(name, {"session": self.session_id, **arguments}).result()

    def close(self) -> None:
        """End the session; the engine drops its state of this episode. Does not wait."""
        if self.session_id in self.worker.sessions:
            self.worker.sessions.discard(self.session_id)
            self.worker.submit("close_session", {"session": self.session_id})


class WorkerPool:
    """At most `size` workers with the same engine, started when needed; sessions are spread evenly."""

    def __init__(self, host: str, options: Mapping[str, Any], size: int = 1, limit: float = CALL_LIMIT_SECONDS) -> None:
        self.host, self.options, self.size, self.limit = host, dict(options), size, limit
        self.workers: list[Worker] = []
        self._session_ids = itertools.count(1)
        self._owner_pid = os.getpid()
        self._lock = threading.Lock()

    def open_session(self) -> WorkerSession:
        """Open a session with the worker that has the fewest, or with a new one while there are fewer than `size`."""
        with self._lock:
            for worker in [worker for worker in self.workers if not worker.alive]:
                self.workers.remove(worker)
                worker.end()
            least_busy = min(self.workers, key=lambda worker: len(worker.sessions), default=None)
            if least_busy is None or (least_busy.sessions and len(self.workers) < self.size):
                least_busy = Worker(self.host, self.options, self.limit)
                self.workers.append(least_busy)
            session_id = next(self._session_ids)
            least_busy.sessions.add(session_id)
            return WorkerSession(self, least_busy, session_id)

    def ask(self, name: str, **arguments: Any) -> Any:
        """Call the engine outside of any episode and block until it returns; on an event loop use `call`."""
        session = self.open_session()
        try:
            return session.worker.submit(name, arguments).result()
        finally:
            session.worker.sessions.discard(session.session_id)

    async def call(self, name: str, **arguments: Any) -> Any:
        """Call the engine outside of any episode."""
        session = self.open_session()
        try:
            return await session.worker.call(name, arguments)
        finally:
            session.worker.sessions.discard(session.session_id)

    def close(self) -> None:
        """End all workers; the next session starts a new one."""
        with self._lock:
            workers, self.workers = self.workers, []
        if os.getpid() != self._owner_pid:
            return  # a forked child: the workers belong to its parent
        for worker in workers:
            worker.end()


_pools: dict[tuple[str, str, int], WorkerPool] = {}
_pools_lock = threading.Lock()


def shared_pool(host: str, options: Mapping[str, Any], size: int) -> WorkerPool:
    """Return the pool of this engine, options and size, which all environments of this process share."""
    key = (host, json.dumps(dict(options), sort_keys=True), size)
    with _pools_lock:
        if not _pools:
            atexit.register(close_pools)
        if key not in _pools:
            _pools[key] = WorkerPool(host, options, size)
        return _pools[key]


def close_pools() -> None:
    """End the workers of every shared pool."""
    for pool in list(_pools.values()):
        pool.close()
