"""States of stateful tools: one object for one episode at a time, kept warm between episodes.

A state is a plain object: a browser, a game, a shell. Before an episode's first call its `reset` is
called, if it has one, with those fields of the task that it asks for by parameter name (and `task`
and `seed`). `healthy`, if there is one, is asked before a warm state is used again. `close` frees
what it holds. A state that raises, is not healthy, or was left in the middle of a call is replaced.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import inspect
import itertools
import os
import threading
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import Future
from typing import Any

from practicum.errors import UserError
from practicum.tools.errors import ToolFailure
from practicum.utils.threads import in_thread

POOL_SIZE = 128
"""As many as episodes are under way by default."""
_numbers = itertools.count()
_pools: weakref.WeakSet[StatePool] = weakref.WeakSet()
_shared: dict[Callable[..., Any], StatePool] = {}


async def perform(function: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    """Call a function: awaited if it is a coroutine function, else in a thread."""
    if inspect.iscoroutinefunction(function):
        return await function(*given, **named)
    return await in_thread(functools.partial(function, *given, **named))  # an argument may have any name


class Lease:
    """One episode's hold on a state. What uses the state does so within `borrowed`."""

    def __init__(self, pool: StatePool, state: Any) -> None:
        self.pool, self.state = pool, state
        self.sound = True
        self._turn = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def borrowed(self) -> AsyncIterator[Any]:
        """The state, for one user at a time. If the user does not come to an end, the state is not sound any more."""
        async with self._turn:
            self.sound = False
            try:
                yield self.state
            except ToolFailure:
                raise
            except Exception:  # an ordinary failure of the user; a cancelled one may still be at work in its thread
                self.sound = True
                raise
            self.sound = True

    def release(self) -> None:
        """Back to the pool, at once; nothing is waited for."""
        self.pool.take_back(self)


class StatePool:
    """At most `size` states of one kind. Safe to use from several threads and event loops."""

    def __init__(self, make: Callable[[], Any], size: int | None = None, name: str | None = None) -> None:
        if size is not None and size < 1:
            raise ValueError("a pool of states needs a size of at least 1")
        self.make, self.size = make, size or POOL_SIZE
        self._size_said = size is not None
        self.name = name or getattr(make, "__name__", "state")
        self.number = next(_numbers)
        """Pools are entered in this order, so that two episodes cannot wait for each other."""
        self._lock = threading.Lock()
        self._free = self.size
        self._waiting: deque[Future[None]] = deque()
        self._idle: list[Any] = []
        self._alive: dict[int, Any] = {}
        self._process = os.getpid()
        _pools.add(self)

    def settle_size(self, size: int) -> None:
        """One of the tools that share it says how many states there may be; all that say so must agree."""
        if self._size_said and size != self.size:
            raise TypeError(f"the tools that share {self.name} say pool_size={self.size} and pool_size={size}; say one")
        with self._lock:
            self._free += size - self.size
            self.size, self._size_said = size, True

    @property
    def free(self) -> int:
        """Places that nobody has."""
        return self._free

    @property
    def warm(self) -> int:
        """States that wait for an episode."""
        return len(self._idle)

    # -- for an episode ---------------------------------------------------------------------

    async def lease(self, offered: Mapping[str, Any]) -> Lease:
        """Wait for a place, then a state that has been reset for this episode."""
        await self._enter()
        try:
            while True:
                state, fresh = await self._take()
                try:
                    await self._reset(state, offered)
                    return Lease(self, state)
                except BaseException as error:
                    self._discard(state)
                    if isinstance(error, (UserError, ToolFailure)) or not isinstance(error, Exception):
                        raise
                    if fresh:  # a warm one may have been worn out, but a new one fails for another reason
                        raise ToolFailure(f"{self.name} cannot be reset: {type(error).__name__}: {error}") from error
        except BaseException:
            self._leave()
            raise

    def add(self, state: Any) -> None:
        """A state that was made elsewhere, warm."""
        _close_at_exit()
        with self._lock:
            self._alive[id(state)] = state
            self._idle.append(state)

    def take_back(self, lease: Lease) -> None:
        """The end of a lease."""
        if lease.sound:
            self._keep(lease.state)
        else:
            self._discard(lease.state)
        self._leave()

    # -- places -----------------------------------------------------------------------------

    async def _enter(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            place: Future[None] = Future()
            self._waiting.append(place)
        try:
            await asyncio.wrap_future(place)
        except BaseException:
            with self._lock:
                given = not place.cancel()
            if given:
                self._leave()
            raise

    def _leave(self) -> None:
        with self._lock:
            while self._waiting:
                place = self._waiting.popleft()
                if place.set_running_or_notify_cancel():
                    place.set_result(None)
                    return
            self._free += 1

    # -- states -----------------------------------------------------------------------------

    async def _take(self) -> tuple[Any, bool]:
        """A warm state that is healthy, or a new one; and whether it is new."""
        while True:
            with self._lock:
                state = self._idle.pop() if self._idle else None
            if state is None:
                return await self._new(), True
            if not hasattr(state, "healthy"):
                return state, False
            try:
                sound = bool(await perform(state.healthy))
            except Exception:
                sound = False
            except BaseException:
                self._discard(state)
                raise
            if sound:
                return state, False
            self._discard(state)

    async def _new(self) -> Any:
        """Make a state in a thread. If nobody waits for it any more, it is kept for the next one."""
        abandoned = False
        made: list[Any] = []

        def build() -> Any:
            _close_at_exit()
            state = self.make()
            with self._lock:
                self._alive[id(state)] = state
                made.append(state)
                late = abandoned
            if late:
                self._keep(state)
            return state

        try:
            return await in_thread(build)
        except (UserError, ToolFailure):
            raise
        except Exception as error:
            raise ToolFailure(f"{self.name} cannot be made: {type(error).__name__}: {error}") from error
        except BaseException:
            with self._lock:
                abandoned, left = True, list(made)
            for state in left:
                self._keep(state)
            raise

    async def _reset(self, state: Any, offered: Mapping[str, Any]) -> None:
        reset = getattr(state, "reset", None)
        if reset is None:
            return
        arguments: dict[str, Any] = {}
        for key, parameter in inspect.signature(reset).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= {name: value for name, value in offered.items() if name not in arguments}
            elif key in offered:
                arguments[key] = offered[key]
            elif parameter.default is parameter.empty:
                raise ToolFailure(f"{self.name}.reset wants '{key}', which the task does not have")
        await perform(reset, **arguments)

    def _keep(self, state: Any) -> None:
        """Warm for the next episode, unless there are too many by now or everything was closed meanwhile."""
        with self._lock:
            keep = id(state) in self._alive and len(self._alive) <= self.size
            if keep:
                self._idle.append(state)
        if not keep:
            self._discard(state)

    def _discard(self, state: Any) -> None:
        """Out of the pool; closed in a thread of its own, since closing may take its time."""
        with self._lock:
            known = self._alive.pop(id(state), None) is not None
        if known and hasattr(state, "close"):
            threading.Thread(target=_close_quietly, args=(state,), name=f"close-{self.name}", daemon=True).start()

    def close(self, idle_only: bool = True) -> None:
        """Close the warm states; also those in use, if asked to. The pool may be used again."""
        with self._lock:
            gone = self._idle if idle_only else list(self._alive.values())
            self._idle = []
            for state in gone:
                self._alive.pop(id(state), None)
        if self._process == os.getpid():  # what a forked process inherited is not its own to close
            for state in gone:
                _close_quietly(state)


def pool_for(make: Callable[[], Any], size: int | None) -> StatePool:
    """The pool of a kind of state: tools that name the same class or function share an episode's state."""
    if inspect.iscoroutinefunction(getattr(make, "close", None)):
        raise TypeError(f"{make.__name__}.close must be a plain function: it is also called when no event loop runs")
    if make not in _shared:
        _shared[make] = StatePool(make, size)
    pool = _shared[make]
    if size is not None:
        pool.settle_size(size)
    return pool


def _close_quietly(state: Any) -> None:
    with contextlib.suppress(Exception):  # it is being thrown away
        if hasattr(state, "close"):
            state.close()


@functools.cache
def _close_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for pool in list(_pools):
        pool.close(idle_only=False)
