"""What all episodes of a run share: a browser, a search index, a cache.

A `Resource` is opened once per run, before the first episode that needs it, checked before and after every episode,
opened again after it failed, and closed on every exit of the run. One that has state is part of the checkpoint.

Shared state is frozen while episodes run: they read what was committed before and never each other's writes. What they
write is collected, put in the order of the plan (tasks, then attempts) whatever the order in which episodes end, and
committed at the end of the step. So the result depends neither on the number of concurrent episodes nor on a restart.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from practicum.errors import UserError, describe_exception
from practicum.task import Task
from practicum.utils.concurrency import perform

OPEN_SECONDS = 300.0
"""Seconds that opening a resource may take by default."""
HEALTH_SECONDS = 10.0
"""Seconds after which a health check that does not answer counts as failed."""
CLOSE_SECONDS = 30.0
"""Seconds that closing may take; the run does not wait longer."""
MAX_FAILED_OPENS = 3
"""Failures to open in a row after which the run stops."""


class ResourceError(Exception):
    """A resource could not be opened or failed during an episode; the episode is not scored."""


class Resource:
    """Something that all episodes of a run share. Override what it needs; everything has a default.

    `open`, `healthy` and `close` are awaited on the event loop of the episodes, all in one task of their own; written
    as a plain `def`, each is run in a thread. Two resources that are equal (`==`) are opened once and shared.
    """

    def check(self) -> None:
        """Raise UserError where it is clear before anything is loaded that it cannot be opened; must be quick."""

    async def open(self) -> None:
        """Start it. Called once per run, and again after it failed: state must be kept in this object."""

    async def healthy(self) -> bool:
        """Whether it works; called before and after every episode that uses it, so it must be quick."""
        return True

    async def close(self) -> None:
        """End it. Also called after an `open` that failed, and after it failed itself."""

    def state_dict(self) -> Any:
        """Return its state as plain JSON, for the checkpoint; None: it has no state. It need not be open."""
        return None

    def load_state_dict(self, state: Any) -> None:
        """Continue from a state. It need not be open."""
        raise NotImplementedError(f"{type(self).__name__} has a state and no `load_state_dict`")

    def commit(self, writes: Sequence[Any]) -> None:
        """Add what the episodes of a step wrote, in the order of tasks and attempts. It is the only change of state."""
        raise NotImplementedError(f"{type(self).__name__} has no `commit`")


class _OpenResource:
    """A resource and the task in which it is opened and closed.

    That task is cancelled when the event loop ends, and closes the resource then: so it is closed even where nobody
    called `close`. A resource whose library binds it to one task (anyio's cancel scopes) works too.
    """

    def __init__(self, name: str, resource: Resource) -> None:
        self.name, self.resource = name, resource
        self.num_opened = 0
        self.has_state = resource.state_dict() is not None
        self._num_failures = 0
        self._fatal: UserError | None = None
        self._task: asyncio.Task[None] | None = None
        self._opened: asyncio.Future[None] | None = None
        self._end: asyncio.Event | None = None
        self._lock = asyncio.Lock()

    async def ready(self, open_seconds: float) -> int:
        """Open it if it is not open, and again if it failed; return how often it was opened."""
        async with self._lock:
            if self._fatal is not None:
                raise self._fatal
            if self._task is not None and not await self._is_healthy():
                await self.close()
            if self._task is None:
                self._opened, self._end = asyncio.get_running_loop().create_future(), asyncio.Event()
                self._task = asyncio.create_task(self._run(self._opened, self._end, open_seconds))
            assert self._opened is not None
            try:
                await asyncio.shield(self._opened)  # whoever waits may be cancelled, the others still need it
            except Exception as error:
                await self.close()
                raise self._failure(error) from error
            self._num_failures = 0
            return self.num_opened

    async def is_same(self, num_opened: int) -> bool:
        """Whether it works and was not opened again since."""
        return num_opened == self.num_opened and self._task is not None and await self._is_healthy()

    async def close(self) -> None:
        """Close it, if it is open."""
        task, self._task = self._task, None
        if task is not None and self._end is not None and not task.done():
            self._end.set()
            await asyncio.wait({task})

    async def _is_healthy(self) -> bool:
        assert self._task is not None
        assert self._opened is not None
        if self._task.done():  # the event loop that it belonged to has ended
            return False
        if not self._opened.done():
            return True  # it is being opened
        try:
            async with asyncio.timeout(HEALTH_SECONDS):
                return bool(await perform(self.resource.healthy))
        except Exception:  # a check that fails is an answer
            return False

    async def _run(self, opened: asyncio.Future[None], end: asyncio.Event, open_seconds: float) -> None:
        try:
            async with asyncio.timeout(open_seconds):
                await perform(self.resource.open)
            self.num_opened += 1
            if not opened.done():
                opened.set_result(None)
            await end.wait()
        except Exception as error:
            timed_out = isinstance(error, TimeoutError) and not str(error)
            reason = TimeoutError(f"it was not open after {open_seconds:g} s") if timed_out else error
            opened.set_exception(reason)
            opened.exception()  # whoever waited may be gone; the loop must not complain
        finally:
            opened.cancel()
            with contextlib.suppress(Exception):  # it is not used any more
                async with asyncio.timeout(CLOSE_SECONDS):
                    await perform(self.resource.close)

    def _failure(self, error: Exception) -> Exception:
        """What an episode gets that needed it. A resource that never opens stops the run."""
        if isinstance(error, UserError):
            self._fatal = error
            return error
        self._num_failures += 1
        sentence = f"the resource '{self.name}' could not be opened: {describe_exception(error)}"
        if self._num_failures < MAX_FAILED_OPENS:
            return ResourceError(sentence)
        self._fatal = UserError(f"{sentence[0].upper()}{sentence[1:]} ({self._num_failures} times in a row).")
        return self._fatal


class RunResources:
    """The resources of a run by name; episodes get them through `bind`."""

    def __init__(self, resources: Mapping[str, Resource] | None = None, open_seconds: float = OPEN_SECONDS) -> None:
        """Without `resources`, they are those of the first environment that is bound."""
        self.open_seconds = open_seconds
        self._resources: dict[str, _OpenResource] | None = None
        self._initial: dict[str, Any] = {}
        self._collected: dict[int, list[tuple[str, Any]]] = {}
        """Writes of finished episodes, by the identity of what was planned."""
        self._queue: list[tuple[str, Any]] = []
        """Writes in their order, to be committed."""
        self._states_outside: dict[str, Any] | None = None
        """Within `evaluation`: the states from before it."""
        if resources is not None:
            self._declare(resources)

    def _declare(self, resources: Mapping[str, Resource]) -> dict[str, _OpenResource]:
        self._resources = {}
        for name, resource in resources.items():
            same = next(
                (open_resource for open_resource in self._resources.values() if open_resource.resource == resource),
                None,
            )
            self._resources[name] = same or _OpenResource(name, resource)
        self._initial = _as_stored(self.state_dict())
        self.load_state_dict(self._initial)
        return self._resources

    def __getitem__(self, name: str) -> _OpenResource:
        return (self._resources or {})[name]

    def names(self) -> tuple[str, ...]:
        return tuple(self._resources or {})

    def check(self) -> None:
        """Raise UserError where a resource cannot be opened."""
        for open_resource in self._unique():
            open_resource.resource.check()

    def bind(self, make_resources: Callable[[], Mapping[str, Resource]] = dict) -> EpisodeResources:
        """Return what one episode gets. `make_resources` is called where the resources are not declared yet."""
        if self._resources is None:
            self._declare(make_resources())
        return EpisodeResources(self) if self._resources else NO_RESOURCES

    async def open(self, names: Sequence[str] | None = None) -> None:
        """Open resources, by default all, before the first episode; one that fails is tried again."""
        for name in self.names() if names is None else names:
            while True:  # the last of MAX_FAILED_OPENS failures is another error
                with contextlib.suppress(ResourceError):
                    await self[name].ready(self.open_seconds)
                    break

    async def close(self) -> None:
        """Close whatever is open, the last one first."""
        for open_resource in reversed(self._unique()):
            await open_resource.close()

    # -- state ------------------------------------------------------------------------------

    def collect(self, planned: object, writes: Sequence[tuple[str, Any]]) -> None:
        """Note what an episode wrote."""
        if writes:
            self._collected[id(planned)] = list(writes)

    def queue(self, writes: Iterable[Sequence[Any]]) -> None:
        """Queue writes (name and value) in their order; `commit` makes them visible."""
        self._queue += [(name, value) for name, value in writes]

    def queue_in_order(self, planned: Sequence[object]) -> None:
        """Queue what the episodes of a plan wrote, in the order of the plan; `commit` makes it visible."""
        collected, self._collected = self._collected, {}
        for attempt in planned if collected else ():
            self.queue(collected.get(id(attempt), ()))

    def commit(self) -> None:
        """Make what episodes wrote visible to those that begin after this."""
        queue, self._queue = self._queue, []
        for open_resource in self._unique() if queue else ():
            writes = [value for name, value in queue if self[name] is open_resource]
            if writes:
                open_resource.resource.commit(writes)
                self._load(open_resource, open_resource.resource.state_dict())

    def discard(self) -> None:
        """Forget what episodes wrote since the last `commit`, such as those of a step that was cut short."""
        self._collected, self._queue = {}, []

    def state_dict(self) -> dict[str, Any]:
        """The states of the resources that have one, by name; within `evaluation`, those from before it: they are what
        a checkpoint of a run that is stopped there must have."""
        if self._states_outside is not None:
            return self._states_outside
        return {
            open_resource.name: open_resource.resource.state_dict()
            for open_resource in self._unique()
            if open_resource.has_state
        }

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Continue from the states of a checkpoint; a resource without one there keeps its own."""
        by_name = {open_resource.name: open_resource for open_resource in self._unique() if open_resource.has_state}
        for name, state in states.items():
            if name not in by_name:
                raise UserError(f"The checkpoint has the state of a resource '{name}', which the environment has not.")
            self._load(by_name[name], state)

    @property
    def has_state(self) -> bool:
        """Whether one of them has state."""
        return any(open_resource.has_state for open_resource in self._unique())

    @contextlib.contextmanager
    def evaluation(self) -> Iterator[None]:
        """All resources have their first state in here, and their own again afterwards; writes are dropped."""
        states, queue = _as_stored(self.state_dict()), self._queue
        self._queue, self._states_outside = [], states
        self.load_state_dict(self._initial)
        try:
            yield
        finally:
            self.discard()
            self.load_state_dict(states)
            self._queue, self._states_outside = queue, None

    def _unique(self) -> list[_OpenResource]:
        return list({id(open_resource): open_resource for open_resource in (self._resources or {}).values()}.values())

    def _load(self, open_resource: _OpenResource, state: Any) -> None:
        """Load a state as it comes back from a checkpoint, so that a resumed run has the very same."""
        open_resource.resource.load_state_dict(_as_stored(state))


def _as_stored(state: Any) -> Any:
    """A copy of a state as it comes back from a checkpoint: JSON has no tuples, and a checkpoint sorts the keys."""
    return json.loads(json.dumps(state, sort_keys=True, allow_nan=False))


class EpisodeResources(Mapping[str, Any]):
    """The resources of a run as one episode sees them: `resources["cache"]` is the `Resource` itself, only to be read;
    `write` is how an episode adds to it."""

    def __init__(self, run: RunResources, prefix: str = "", root: EpisodeResources | None = None) -> None:
        self._run, self._prefix = run, prefix
        self._root = root or self
        self.writes: list[tuple[str, Any]] = []
        """What this episode wrote: name and value."""
        self._used: dict[str, int] = {}

    def __getitem__(self, name: str) -> Any:
        try:
            return self._run[self._prefix + name].resource
        except KeyError:
            reason = "return it from `make_resources`, and run the episode with `run_episodes`"
            raise KeyError(f"there is no resource '{name}': {reason}") from None

    def __iter__(self) -> Iterator[str]:
        length = len(self._prefix)
        return (name[length:] for name in self._run.names() if name.startswith(self._prefix))

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def write(self, name: str, value: Any) -> None:
        """Write plain JSON to a resource; episodes see it after the step, in `commit` of the resource."""
        resource = self[name]
        if type(resource).commit is Resource.commit:
            raise TypeError(f"{type(resource).__name__} has no `commit`: nothing can be written to '{name}'")
        # A copy: what the episode does with the value later must not change it.
        self._root.writes.append((self._prefix + name, json.loads(json.dumps(value, allow_nan=False))))

    def part(self, name: str) -> EpisodeResources:
        """The resources whose names begin with `name`/, for a member of a mix; writes are those of this episode."""
        return EpisodeResources(self._run, f"{self._prefix}{name}/", self._root)

    async def ready(self, names: Sequence[str]) -> None:
        """Open these resources, or those of them that failed."""
        for name in names:
            self._used[name] = await self._run[self._prefix + name].ready(self._run.open_seconds)

    async def check(self) -> None:
        """Raise ResourceError where one of the used resources failed since `ready`."""
        for name, num_opened in self._used.items():
            if not await self._run[self._prefix + name].is_same(num_opened):
                raise ResourceError(f"the resource '{self._prefix}{name}' died during the episode")


NO_RESOURCES = EpisodeResources(RunResources({}))


@contextlib.asynccontextmanager
async def shared_by(
    planned: Sequence[object], resources: RunResources | None, open_seconds: float
) -> AsyncIterator[RunResources]:
    """Yield the resources of episodes: those of their run, or some of their own, which are closed afterwards.

    What the episodes wrote is queued in the order of the plan; where they did not all end, it is dropped.
    """
    shared = resources if resources is not None else RunResources(open_seconds=open_seconds)
    try:
        yield shared
        shared.queue_in_order(planned)
    except BaseException:
        shared.discard()
        raise
    finally:
        if resources is None:
            await shared.close()


class SharesResources:
    """The part of an environment that is about resources; without an override it shares nothing."""

    resources: EpisodeResources = NO_RESOURCES
    """What all episodes of the run share, by name (see `make_resources`); they are open when `reset` is called."""

    def make_resources(self) -> Mapping[str, Resource]:
        """Return what all episodes of a run share, by name: a browser, an index, a cache. Called once per run."""
        return {}

    def resource_names(self, task: Task) -> Sequence[str]:
        """Return the names of the resources that a task needs; they are opened before its `reset`."""
        return tuple(self.resources)

    def run_resources(self, open_seconds: float) -> RunResources:
        """Return what all episodes of a run share, checked and not yet open; this environment has it too, for its
        experts."""
        resources = RunResources(self.make_resources(), open_seconds)
        resources.check()
        self.resources = resources.bind()
        return resources
