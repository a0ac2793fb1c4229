"""States of stateful tools: one object per episode, reused between episodes.

A state is a plain object: a browser, a game, a shell. Before an episode's first call its `reset` is called, if it has
one, with the fields of the task that its parameters name (and `task` and `seed`). `healthy`, if there is one, is called
before a state is reused. `close` frees its resources. A state that raises in `reset`, is not healthy, or was in use
when its call was cancelled is replaced.
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
from practicum.utils.concurrency import in_thread, perform

POOL_SIZE = 128
"""Default number of states; as many episodes run at once by default."""
_order = itertools.count()
_pools: weakref.WeakSet[StatePool] = weakref.WeakSet()
_shared: dict[Callable[..., Any], StatePool] = {}


class Lease:
    """One episode's hold on a state. Callers use the state within `use`."""

    def __init__(self, pool: StatePool, state: Any) -> None:
        self.pool, self.state = pool, state
        self.usable = True
        self._lock = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def use(self) -> AsyncIterator[Any]:
        """Yield the state to one caller at a time. If the caller is cancelled, the state is not usable any more."""
        async with self._lock:
            self.usable = False
            try:
                yield self.state
            except ToolFailure:
                raise
            except Exception:  # an ordinary error; after a cancellation the call may still run in its thread
                self.usable = True
                raise
            self.usable = True

    def release(self) -> None:
        """Return the state to the pool without waiting."""
        self.pool.release(self)


class StatePool:
    """At most `size` states of one kind, for several threads and event loops."""

    def __init__(self, make: Callable[[], Any], size: int | None = None, name: str | None = None) -> None:
        if size is not None and size < 1:
            raise ValueError("a pool of states needs a size of at least 1")
        self.make, self.size = make, size or POOL_SIZE
        self._size_is_set = size is not None
        self.name = name or getattr(make, "__name__", "state")
        self.number = next(_order)
        """Pools are acquired in this order, so that two episodes cannot deadlock."""
        self._lock = threading.Lock()
        self._free = self.size
        self._waiters: deque[Future[None]] = deque()
        self._idle: list[Any] = []
        self._alive: dict[int, Any] = {}
        self._process = os.getpid()
        _pools.add(self)

    def set_size(self, size: int) -> None:
        """Set the number of states; all tools that share the pool and set it must agree."""
        if self._size_is_set and size != self.size:
            raise TypeError(f"the tools that share {self.name} say pool_size={self.size} and pool_size={size}; say one")
        with self._lock:
            self._free += size - self.size
            self.size, self._size_is_set = size, True

    @property
    def free(self) -> int:
        """Number of slots that are not in use."""
        return self._free

    @property
    def warm(self) -> int:
        """Number of states that wait for an episode."""
        return len(self._idle)

    # -- for an episode ---------------------------------------------------------------------

    async def lease(self, fields: Mapping[str, Any]) -> Lease:
        """Wait for a slot and return a lease on a state that has been reset for this episode."""
        await self._acquire_slot()
        try:
            while True:
                state, fresh = await self._take()
                try:
                    await self._reset(state, fields)
                    return Lease(self, state)
                except BaseException as error:
                    self._discard(state)
                    if isinstance(error, (UserError, ToolFailure)) or not isinstance(error, Exception):
                        raise
                    if fresh:  # a reused state may be broken; a new one that fails has another cause
                        raise ToolFailure(f"{self.name} cannot be reset: {type(error).__name__}: {error}") from error
        except BaseException:
            self._release_slot()
            raise

    def add(self, state: Any) -> None:
        """Add a state that was created elsewhere."""
        _close_at_exit()
        with self._lock:
            self._alive[id(state)] = state
            self._idle.append(state)

    def release(self, lease: Lease) -> None:
        """End a lease."""
        if lease.usable:
            self._keep(lease.state)
        else:
            self._discard(lease.state)
        self._release_slot()

    # -- slots ------------------------------------------------------------------------------

    async def _acquire_slot(self) -> None:
        with self._lock:
            if self._free:
                self._free -= 1
                return
            waiter: Future[None] = Future()
            self._waiters.append(waiter)
        try:
            await asyncio.wrap_future(waiter)
        except BaseException:
            with self._lock:
                acquired = not waiter.cancel()
            if acquired:
                self._release_slot()
            raise

    def _release_slot(self) -> None:
        with self._lock:
            while self._waiters:
                waiter = self._waiters.popleft()
                if waiter.set_running_or_notify_cancel():
                    waiter.set_result(None)
                    return
            self._free += 1

    # -- states -----------------------------------------------------------------------------

    async def _take(self) -> tuple[Any, bool]:
        """Return an idle state that is healthy, or a new one, and whether it is new."""
        while True:
            with self._lock:
                state = self._idle.pop() if self._idle else None
            if state is None:
                return await self._create(), True
            if not hasattr(state, "healthy"):
                return state, False
            try:
                usable = bool(await perform(state.healthy))
            except Exception:
                usable = False
            except BaseException:
                self._discard(state)
                raise
            if usable:
                return state, False
            self._discard(state)

    async def _create(self) -> Any:
        """Create a state in a thread. If the caller is cancelled meanwhile, the state is kept for another episode."""
        abandoned = False
        created: list[Any] = []

        def build() -> Any:
            _close_at_exit()
            state = self.make()
            with self._lock:
                self._alive[id(state)] = state
                created.append(state)
                caller_left = abandoned
            if caller_left:
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
                abandoned, states = True, list(created)
            for state in states:
                self._keep(state)
            raise

    async def _reset(self, state: Any, fields: Mapping[str, Any]) -> None:
        reset = getattr(state, "reset", None)
        if reset is None:
            return
        arguments: dict[str, Any] = {}
        for key, parameter in inspect.signature(reset).parameters.items():
            if parameter.kind is parameter.VAR_KEYWORD:
                arguments |= {name: value for name, value in fields.items() if name not in arguments}
            elif key in fields:
                arguments[key] = fields[key]
            elif parameter.default is parameter.empty:
                raise ToolFailure(f"{self.name}.reset wants '{key}', which the task does not have")
        await perform(reset, **arguments)

    def _keep(self, state: Any) -> None:
        """Keep a state for the next episode, unless there are too many or the pool was closed meanwhile."""
        with self._lock:
            keep = id(state) in self._alive and len(self._alive) <= self.size
            if keep:
                self._idle.append(state)
        if not keep:
            self._discard(state)

    def _discard(self, state: Any) -> None:
        """Remove a state from the pool and close it in a thread, since closing may take long."""
        with self._lock:
            was_alive = self._alive.pop(id(state), None) is not None
        if was_alive and hasattr(state, "close"):
            threading.Thread(target=_close_quietly, args=(state,), name=f"close-{self.name}", daemon=True).start()

    def close(self, idle_only: bool = True) -> None:
        """Close the idle states, and those in use unless `idle_only`. The pool can be used again."""
        with self._lock:
            closing = self._idle if idle_only else list(self._alive.values())
            self._idle = []
            for state in closing:
                self._alive.pop(id(state), None)
        if self._process == os.getpid():  # a forked child does not own the states
            for state in closing:
                _close_quietly(state)


def pool_for(make: Callable[[], Any], size: int | None) -> StatePool:
    """Return the pool of a kind of state: tools with the same class or function share an episode's state."""
    if inspect.iscoroutinefunction(getattr(make, "close", None)):
        raise TypeError(f"{make.__name__}.close must be a plain function: it is also called when no event loop runs")
    if make not in _shared:
        _shared[make] = StatePool(make, size)
    pool = _shared[make]
    if size is not None:
        pool.set_size(size)
    return pool


def _close_quietly(state: Any) -> None:
    with contextlib.suppress(Exception):  # it is not used any more
        if hasattr(state, "close"):
            state.close()


@functools.cache
def _close_at_exit() -> None:
    atexit.register(_close_all)


def _close_all() -> None:
    for pool in list(_pools):
        pool.close(idle_only=False)
