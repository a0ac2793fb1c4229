"""Waits of an episode: deadlines, plain functions in threads, and slots that threads wait for.

`Deadline` is a timeout in which time in a queue does not count, since it depends on other work. It knows
how much of its time programs of the agent have taken: whose clock ran out decides whether an episode is a failure of
the agent or an error of its environment.

`in_thread` runs a plain function off the event loop, in a daemon thread of its own. `asyncio.to_thread` shares a small
pool: a few slow tools would make every other tool wait, and one that hangs would keep the process from ending. Here
there are as many threads as running calls. A thread that has finished a call waits for another one, since starting a
thread costs more than most tools do. Each call has the context variables of a new thread (NumPy's and decimal's
settings are such); values of a `threading.local` remain from earlier calls.

Programs in a sandbox are run by such threads, a limited number at once (`slot`), and deadlines belong to the event
loop: a thread tells the coroutine that waits for it when it begins to wait for a slot and when it has one, and the
deadline is paused in between.

`run_async` is `asyncio.run` with an event loop that every signal wakes.

`RequestGate` stands before an engine: it counts the requests under way, and holds new ones back while weights change.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import functools
import inspect
import math
import os
import queue
import signal
import socket
import threading
import types
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Generator, Iterator
from contextlib import AbstractAsyncContextManager
from contextvars import ContextVar, Token
from typing import Any, ParamSpec, TypeVar

_current: ContextVar[Deadline | None] = ContextVar("practicum_deadline", default=None)
MAX_JUDGE_SHARE = 0.8
"""Share of the time left that a judge may use: the rest is for starting and ending what it runs."""


class Deadline:
    """A timeout that names what was waited for and is paused within `queued()`."""

    def __init__(self, seconds: float, subject: str) -> None:
        self.subject, self.seconds = subject, seconds
        self._loop = asyncio.get_running_loop()
        self._due_at: float | None = self._loop.time() + seconds
        self._timer: asyncio.Timeout | None = None
        self._token: Token[Deadline | None] | None = None
        self._seconds_left = seconds
        self._num_pauses = 0
        self._outer = _current.get()
        """The deadline within which this one is: what does not count here does not count there either."""
        self.agent_seconds = 0.0
        """Seconds of this deadline in which programs of the agent ran."""

    async def of(self, awaitable: Awaitable[T]) -> T:
        """Await something under this deadline; TimeoutError if it takes too long."""
        token = _current.set(self)
        try:
            return await with_timer(awaitable, self)
        finally:
            _current.reset(token)

    async def __aenter__(self) -> Deadline:
        self._timer = asyncio.timeout_at(self._due_at)
        await self._timer.__aenter__()
        self._token = _current.set(self)
        return self

    async def __aexit__(self, kind: Any, error: Any, trace: Any) -> None:
        assert self._token is not None
        assert self._timer is not None
        token, self._token = self._token, None  # it refers to this deadline and to the task: no cycle
        _current.reset(token)
        try:
            await self._timer.__aexit__(kind, error, trace)
        except TimeoutError:
            raise TimeoutError(f"{self.subject} did not answer within {self.seconds:g} s") from None

    @property
    def seconds_left(self) -> float:
        """Seconds until it expires, at least 0."""
        return max(0.0, self._seconds_left if self._due_at is None else self._due_at - self._loop.time())

    @property
    def expired_on_agent(self) -> bool:
        """Whether programs of the agent have taken most of its time."""
        return self.agent_seconds > self.seconds / 2

    def pause(self) -> None:
        """Pause the deadline until `resume`; after several pauses, the last `resume` restarts it."""
        if self._num_pauses == 0 and self._due_at is not None and not self._expired():
            self._seconds_left = self._due_at - self._loop.time()
            self._set(None)
        self._num_pauses += 1
        if self._outer is not None:
            self._outer.pause()

    def resume(self) -> None:
        """Restart the deadline with the time that was left."""
        if self._outer is not None:
            self._outer.resume()
        self._num_pauses -= 1
        if self._num_pauses == 0 and not self._expired():
            self._set(self._loop.time() + max(0.0, self._seconds_left))

    def _expired(self) -> bool:
        return self._timer is not None and self._timer.expired()

    def _set(self, due: float | None) -> None:
        self._due_at = due
        if self._timer is not None:
            self._timer.reschedule(due)


async def with_timer(awaitable: Awaitable[T], timer: AbstractAsyncContextManager[Any]) -> T:
    """Await something under a timer that is started only if it has to wait.

    Most environments answer without waiting, and a timer costs more than that.
    """
    steps = (awaitable if type(awaitable) is types.CoroutineType else _as_coroutine(awaitable)).__await__()
    try:
        yielded = steps.send(None)
    except StopIteration as done:
        result: T = done.value
        return result
    async with timer:
        return await _continue(steps, yielded)


async def _as_coroutine(awaitable: Awaitable[T]) -> T:
    """Wrap any awaitable in a coroutine."""
    return await awaitable


@types.coroutine
def _continue(steps: Generator[Any, Any, T], yielded: Any) -> Generator[Any, Any, T]:
    """Continue a coroutine that was started by hand and has yielded."""
    try:
        while True:
            try:
                value = yield yielded
            except BaseException as error:
                yielded = steps.throw(error)
            else:
                yielded = steps.send(value)
    except StopIteration as done:
        result: T = done.value
        return result


@contextlib.contextmanager
def queued() -> Iterator[None]:
    """Pause the deadline in force, if there is one: what is waited for in here has not begun."""
    deadline = _current.get()
    if deadline is None:
        yield
        return
    deadline.pause()
    try:
        yield
    finally:
        deadline.resume()


def seconds_left() -> float:
    """Return the seconds until the deadline in force expires; infinity without one."""
    deadline = _current.get()
    return math.inf if deadline is None else deadline.seconds_left


def half_used() -> bool:
    """Return whether half of the time of the deadline in force is used up."""
    deadline = _current.get()
    return deadline is not None and deadline.seconds_left < deadline.seconds / 2


def judge_seconds(maximum: float) -> float:
    """Return the seconds that a judge of the agent's program may take: it must end before the deadline in force."""
    return min(maximum, MAX_JUDGE_SHARE * seconds_left())


@contextlib.contextmanager
def agent_time() -> Iterator[None]:
    """Count the time in here, without waits in a queue, as that of a program of the agent."""
    deadline = _current.get()
    before = 0.0 if deadline is None else deadline.seconds_left
    try:
        yield
    finally:
        if deadline is not None:
            deadline.agent_seconds += before - deadline.seconds_left


P = ParamSpec("P")
T = TypeVar("T")
IDLE_SECONDS = 2.0
"""Seconds after which a thread without a call ends."""


class _WorkerThread(threading.Thread):
    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="practicum-worker", daemon=True)
        self.calls: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self.calls.put(work)

    def run(self) -> None:
        while (work := self._next()) is not None:
            contextvars.Context().run(work)
            del work  # do not keep the call and its arguments alive while idle
            _idle.append(self)

    def _next(self) -> Callable[[], None] | None:
        try:
            return self.calls.get(timeout=IDLE_SECONDS)
        except queue.Empty:
            pass
        try:
            _idle.remove(self)
        except ValueError:  # another thread has just taken it: a call is coming
            return self.calls.get()
        return None


_idle: deque[_WorkerThread] = deque()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_idle.clear)  # the threads do not exist in the child


def _start(work: Callable[[], None]) -> None:
    try:
        _idle.pop().calls.put(work)
    except IndexError:
        _WorkerThread(work).start()


async def in_thread(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Return the function's value or raise its exception. If the caller is cancelled, the thread still finishes."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def set_outcome(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type]

    def work() -> None:
        value: T | None = None
        error_raised: BaseException | None = None
        try:
            value = function(*args, **kwargs)
        except StopIteration as error:  # a future cannot carry one
            error_raised = RuntimeError(f"StopIteration: {error}")
        except Exception as error:
            error_raised = error
        except BaseException as error:  # sys.exit() in a tool ends the tool, not the program
            error_raised = RuntimeError(f"{type(error).__name__}: {error}")
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(set_outcome, value, error_raised)
        value = error_raised = None  # the traceback refers to this frame and would keep the arguments alive

    _start(work)
    return await future


QueueCallback = Callable[[bool], None]
"""Called with True when a thread begins to wait for a slot, and with False when it has one."""

_queue_callback: ContextVar[QueueCallback | None] = ContextVar("practicum_sandbox_tell", default=None)


@contextlib.contextmanager
def slot(slots: threading.Semaphore) -> Iterator[None]:
    """Hold one of the slots; wait for one if none is free."""
    if not slots.acquire(blocking=False):
        on_queue = _queue_callback.get() or (lambda waiting: None)
        on_queue(True)
        slots.acquire()
        on_queue(False)
    try:
        yield
    finally:
        slots.release()


class QueuedWait:
    """A wait that is in a queue at times; the deadline in force at its begin is paused then.

    All methods are called in the event loop.
    """

    __slots__ = ("_deadline", "_has_ended", "_is_paused")

    def __init__(self) -> None:
        self._deadline = _current.get()
        self._is_paused = self._has_ended = False

    def set_queued(self, is_queued: bool) -> None:
        """Whether it is in the queue from here on; ignored after its end."""
        if self._deadline is not None and self._is_paused != (is_queued and not self._has_ended):
            self._is_paused = not self._is_paused
            (self._deadline.pause if self._is_paused else self._deadline.resume)()

    def end(self) -> None:
        self._has_ended = True
        self.set_queued(False)


def queued_wait() -> QueuedWait | None:
    """A wait that begins now; None where no deadline is in force, which there would be nothing to pause of."""
    return None if _current.get() is None else QueuedWait()


@contextlib.contextmanager
def pause_deadline_while_queued() -> Iterator[QueueCallback]:
    """Yield a callback for a thread: while the thread waits for a slot, this coroutine's deadline is paused."""
    loop, wait = asyncio.get_running_loop(), QueuedWait()

    def on_queue(waiting: bool) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
            loop.call_soon_threadsafe(wait.set_queued, waiting)

    try:
        yield on_queue
    finally:
        wait.end()


def with_queue_callback(on_queue: QueueCallback, function: Callable[P, T]) -> Callable[P, T]:
    """Wrap a function that runs in a thread so that its waits for a slot call `on_queue`."""

    def wrapper(*args: P.args, **kwargs: P.kwargs) -> T:
        _queue_callback.set(on_queue)
        return function(*args, **kwargs)

    return wrapper


async def in_thread_with_slots(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run a function that uses the sandbox in a thread; its waits for a slot do not count against the deadline."""
    with pause_deadline_while_queued() as on_queue:
        return await in_thread(with_queue_callback(on_queue, function), *args, **kwargs)


async def perform(function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Call a function: a coroutine function is awaited, any other runs in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*args, **kwargs)
    return await in_thread(functools.partial(function, *args, **kwargs))  # an argument may have any name


def run_async(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine as `asyncio.run` does, in an event loop that a signal wakes at once.

    Python runs signal handlers in the main thread, between two of its instructions. A signal that arrives just before
    the loop begins to wait for events, or in another thread, is noted and interrupts nothing: with nothing else to do
    the loop would wait forever, and SIGTERM would have no effect.
    """

    async def run() -> T:
        with _signals_wake(asyncio.get_running_loop()):
            return await coroutine

    return asyncio.run(run())


@contextlib.contextmanager
def _signals_wake(loop: asyncio.AbstractEventLoop) -> Iterator[None]:
    """Let every signal write a byte to a socket that the loop reads; outside the main thread nothing is done."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    reader, writer = socket.socketpair()
    with reader, writer:
        reader.setblocking(False)
        writer.setblocking(False)
        loop.add_reader(reader, reader.recv, 4096)
        before = signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
        try:
            yield
        finally:
            signal.set_wakeup_fd(before)
            loop.remove_reader(reader)


class RequestGate:
    """Requests pass while the gate is open. `paused` closes it and waits for those that have passed."""

    def __init__(self) -> None:
        self.num_open = 0
        """Requests that have passed and are not answered yet."""
        self._num_pauses = 0
        self._waiting: list[asyncio.Future[None]] = []
        """Requests that wait for the end of a pause, and pauses that wait for the end of requests."""

    async def enter(self) -> None:
        """Begin a request, once no pause is in progress.

        No context manager: a thousand requests come at once, and a generator for each costs more than the rest of this.
        """
        while self._num_pauses:
            with queued():
                await self._change()
        self.num_open += 1

    def leave(self) -> None:
        """End a request."""
        self.num_open -= 1
        if self._waiting:
            self._wake()

    @contextlib.asynccontextmanager
    async def paused(self) -> AsyncIterator[None]:
        """A time in which no request is under way: those that are end first, new ones wait."""
        self._num_pauses += 1
        try:
            while self.num_open:
                await self._change()
            yield
        finally:
            self._num_pauses -= 1
            self._wake()

    async def _change(self) -> None:
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(future)
        await future

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, []
        for future in waiting:
            if not future.done():
                future.get_loop().call_soon_threadsafe(_resolve, future)


def _resolve(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
