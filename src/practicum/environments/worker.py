"""Worlds that live in processes of their own: a pool of workers, each with one engine that many episodes share.

An engine that needs Java, that is not safe in threads, or that may take its process down with it runs in a worker
(`worker_child.py`). An episode has a `Seat` at one worker. A worker that dies, is killed or hangs costs the
episodes that sit at it: their next call raises `WorkerDied`, which ends them as `env_error`. The next seat is at
another worker or a new one. Workers end with this process, however it ends.

A worker does one call after another. How long a call waits for its turn says nothing about the world, so an episode's
deadline stands still until its call begins; a call that hangs is ended by the worker's own limit, and with it the wait.
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
from practicum.utils.deadline import queued
from practicum.utils.memory import tree_cpu_seconds

START = ""
"""The call that every worker begins with: its engine is made."""
LIMIT = 120.0
"""Seconds that one call may take in the engine before its process counts as hung and is killed; see `_starved`."""
STIRS = 0.01
"""Processor time in a second of waiting, below which a process is not short of it but waits for something else."""
PATIENCE = 10
"""How many times the limit a call may take on a machine that has no time for it."""
LAST_WORDS = 400
"""Characters of a dead process's own messages that are told."""
STARTS = max(1, (os.cpu_count() or 2) // 2)
"""Engines that are made at the same time: a Java process that starts keeps more than one core busy."""
_starting = threading.Semaphore(STARTS)


class WorkerDied(Exception):
    """The process that held this episode's world is gone, and the episode with it."""


class WorkerFault(Exception):
    """The engine raised in this call; its process goes on."""


@dataclass(frozen=True, slots=True)
class _Call:
    future: Future[Any]
    name: str
    arguments: Mapping[str, Any]
    begun: Callable[[], None] | None = None
    """Told, on the worker's thread, when the call's turn has come."""


class Worker:
    """One process. A thread of its own hands it one call after another and, at its end, cleans up."""

    def __init__(self, host: str, options: Mapping[str, Any], limit: float = LIMIT) -> None:
        self.host, self.limit = host, limit
        self.seats: set[int] = set()
        self._waiting: queue.SimpleQueue[_Call | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._death: str | None = None
        self._epitaph = ""
        self._misfit = False
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the process is buried
        # Sets and dictionaries of strings must have one order in all workers, or episodes would not repeat.
        environment = {**os.environ, "PYTHONHASHSEED": "0", "OMP_NUM_THREADS": "1"}
        self.process = subprocess.Popen(
            [sys.executable, "-m", "practicum.environments.worker_child", host],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._errors, bufsize=0, env=environment,
            process_group=0,
        )  # fmt: skip
        self.submit(START, options)
        name = f"practicum-worker-{self.process.pid}"
        self._driver = threading.Thread(target=self._drive, name=name, daemon=True)
        self._driver.start()

    @property
    def alive(self) -> bool:
        return self._death is None and self.process.poll() is None

    def submit(self, call: str, arguments: Mapping[str, Any], begun: Callable[[], None] | None = None) -> Future[Any]:
        """A call's answer, some day: a value, a `WorkerFault`, a `UserError` or `WorkerDied`."""
        future: Future[Any] = Future()
        with self._lock:
            if self._death is None:
                self._waiting.put(_Call(future, call, arguments, begun))
                return future
        future.set_exception(self._error())
        return future

    async def call(self, call: str, arguments: Mapping[str, Any]) -> Any:
        """A call's answer, waited for; the deadline in force counts from when the worker begins with it."""
        loop, turn = asyncio.get_running_loop(), asyncio.Event()

        def begun() -> None:
            with contextlib.suppress(RuntimeError):  # the loop has gone: nobody waits
                loop.call_soon_threadsafe(turn.set)

        answer = asyncio.wrap_future(self.submit(call, arguments, begun))
        answer.add_done_callback(lambda _: turn.set())  # a worker that dies answers calls that never begin
        try:
            with queued():
                await turn.wait()
            return await answer
        except asyncio.CancelledError:
            answer.cancel()  # if its turn has not come, it is never done
            raise

    def end(self) -> None:
        """Stop the process and wait until it is gone; whoever waits for an answer hears `WorkerDied`."""
        self._condemn("it was stopped")
        self._waiting.put(None)
        self._driver.join()

    def _drive(self) -> None:
        left: _Call | None = None
        while self._death is None:
            item = self._waiting.get()
            if item is None or not item.future.set_running_or_notify_cancel():
                continue
            if item.begun is not None:
                item.begun()
            try:
                with self._turn_to_start() if item.name == START else contextlib.nullcontext():
                    answer = self._ask(item)
            except TimeoutError as error:
                self._condemn(str(error))
            except (OSError, ValueError) as error:
                self._condemn(f"talking to it failed ({error})")
            else:
                if answer is not None:
                    self._settle(item, answer)
                    continue
                self._condemn("it ended")
            left = item
        self._bury(left)

    def _ask(self, item: _Call) -> Any:
        """The answer to a call; None if the process ended instead."""
        write_frame(self._pipe(self.process.stdin), {"call": item.name, "arguments": item.arguments})
        # Most calls are over at once; looking through all processes would take longer than they do.
        used = [] if self._answered(self.limit / 100) else [tree_cpu_seconds(self.process.pid)]
        while used and not self._answered(self.limit):
            used.append(tree_cpu_seconds(self.process.pid))
            if not self._starved(used):
                what = f"'{item.name}'" if item.name else "its start"
                raise TimeoutError(f"{what} took longer than {self.limit:g} s")
        return read_frame(self._pipe(self.process.stdout))

    def _answered(self, seconds: float) -> bool:
        return bool(select.select([self._pipe(self.process.stdout)], [], [], seconds)[0])

    def _starved(self, used: Sequence[float]) -> bool:
        """Whether a call is late because the machine is busy: it computes, and has not yet had its time.

        `used` is the processor time of the worker's processes at the start and after each `limit` seconds since.
        """
        moving = used[-1] - used[-2] > STIRS * self.limit
        return moving and used[-1] - used[0] < self.limit / 2 and len(used) <= PATIENCE

    @contextlib.contextmanager
    def _turn_to_start(self) -> Iterator[None]:
        """Wait until an engine may be made; one that is condemned meanwhile waits no longer."""
        held = False
        while not held and self._death is None:
            held = _starting.acquire(timeout=0.1)
        try:
            yield
        finally:
            if held:
                _starting.release()

    def _settle(self, item: _Call, answer: Mapping[str, Any]) -> None:
        if "value" in answer:
            item.future.set_result(answer["value"])
            return
        failed = UserError(answer["user"]) if "user" in answer else WorkerFault(answer["fault"])
        item.future.set_exception(failed)
        if item.name == START:
            # What did not start cannot be asked; those who wait are told why it did not.
            self._condemn(str(failed))
            self._misfit = isinstance(failed, UserError)

    def _condemn(self, why: str) -> None:
        """From now on this worker is dead, with all processes of its own; the first reason counts."""
        with self._lock:
            if self._death is None:
                self._death = why
        with contextlib.suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)

    def _bury(self, left: _Call | None) -> None:
        """Wait for the process, close what is open, and tell all who wait."""
        code = self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):
                self._pipe(pipe).close()
        self._epitaph = f" (exit status {code}){self._last_words()}"
        error = self._error()
        if left is not None:
            left.future.set_exception(error)
        while not self._waiting.empty():
            item = self._waiting.get()
            if item is not None and item.future.set_running_or_notify_cancel():
                item.future.set_exception(error)

    def _error(self) -> Exception:
        if self._misfit:
            return UserError(str(self._death))
        return WorkerDied(f"the process of {self.host.rpartition(':')[2]} is gone, {self._death}{self._epitaph}")

    def _last_words(self) -> str:
        size = self._errors.seek(0, os.SEEK_END)
        self._errors.seek(max(0, size - LAST_WORDS))
        words = " ".join(self._errors.read().decode(errors="replace").split())
        self._errors.close()
        return f": {words}" if words else ""

    @staticmethod
    def _pipe(pipe: IO[bytes] | None) -> BinaryIO:
        assert pipe is not None
        return cast(BinaryIO, pipe)


class WorkerSession:
    """One episode's place at a worker."""

    def __init__(self, pool: WorkerPool, worker: Worker, number: int) -> None:
        self.pool, self.worker, self.number = pool, worker, number

    @property
    def alive(self) -> bool:
        return self.worker.alive

    async def call(self, name: str, **arguments: Any) -> Any:
        """Ask the engine about this episode."""
        return await self.worker.call(name, {"seat": self.number, **arguments})

    def ask(self, name: str, **arguments: Any) -> Any:
        """The same, waited for here."""
        return self.worker.submit(name, {"seat": self.number, **arguments}).result()

    def leave(self) -> None:
        """Give the place back; the engine drops what it held for this episode. Does not wait."""
        if self.number in self.worker.seats:
            self.worker.seats.discard(self.number)
            self.worker.submit("leave", {"seat": self.number})


class WorkerPool:
    """Workers of one kind, started when they are needed, up to `size` of them; episodes spread evenly."""

    def __init__(self, host: str, options: Mapping[str, Any], size: int = 1, limit: float = LIMIT) -> None:
        self.host, self.options, self.size, self.limit = host, dict(options), size, limit
        self.workers: list[Worker] = []
        self._numbers = itertools.count(1)
        self._owner = os.getpid()
        self._lock = threading.Lock()

    def seat(self) -> WorkerSession:
        """A place at the live worker with the fewest episodes, or at a new one while there may be more."""
        with self._lock:
            for worker in [worker for worker in self.workers if not worker.alive]:
                self.workers.remove(worker)
                worker.end()
            idle = min(self.workers, key=lambda worker: len(worker.seats), default=None)
            if idle is None or (idle.seats and len(self.workers) < self.size):
                idle = Worker(self.host, self.options, self.limit)
                self.workers.append(idle)
            number = next(self._numbers)
            idle.seats.add(number)
            return WorkerSession(self, idle, number)

    def ask(self, name: str, **arguments: Any) -> Any:
        """A question about no episode, waited for here. Not for an event loop with much else to do: see `call`."""
        seat = self.seat()
        try:
            return seat.worker.submit(name, arguments).result()
        finally:
            seat.worker.seats.discard(seat.number)

    async def call(self, name: str, **arguments: Any) -> Any:
        """The same, for an event loop."""
        seat = self.seat()
        try:
            return await seat.worker.call(name, arguments)
        finally:
            seat.worker.seats.discard(seat.number)

    def close(self) -> None:
        """End all workers; the next seat starts a new one."""
        with self._lock:
            gone, self.workers = self.workers, []
        if os.getpid() != self._owner:
            return  # a forked copy of this process: the workers are not its own
        for worker in gone:
            worker.end()


_pools: dict[tuple[str, str, int], WorkerPool] = {}
_pools_lock = threading.Lock()


def shared_pool(host: str, options: Mapping[str, Any], size: int) -> WorkerPool:
    """The pool of this kind that all environments of this process share."""
    key = (host, json.dumps(dict(options), sort_keys=True), size)
    with _pools_lock:
        if not _pools:
            atexit.register(close_pools)
        if key not in _pools:
            _pools[key] = WorkerPool(host, options, size)
        return _pools[key]


def close_pools() -> None:
    """End every shared pool's workers."""
    for pool in list(_pools.values()):
        pool.close()
