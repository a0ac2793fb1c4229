"""The adapters of an engine: their names, the version that each has now, and a view of the engine with one of them.

A version is what was loaded under a name at one time. A request is answered by the version that the name had when the
engine received it, also where the adapter is replaced or dropped before it ends; what it computes is cached for that
version alone.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from itertools import count

from practicum.engines.base import Engine, Generation, Request
from practicum.errors import UserError, did_you_mean
from practicum.models.multi_lora import BASE, Adapter, MultiLoRA


@dataclass(frozen=True)
class AdapterVersion:
    """One version of a named adapter. `number`: the policy version that its replies report; None: the engine's."""

    name: str
    key: str
    number: int | None = None


class NamedAdapters:
    """The current version of each name; versions without a name are removed when no request uses them.

    All methods but `check` and `names` are called from the engine's thread.
    """

    def __init__(self, matrices: MultiLoRA) -> None:
        self.matrices = matrices
        self._current: dict[str, AdapterVersion] = {}
        self._retired: list[AdapterVersion] = []
        self._loads = count(1)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._current)

    @property
    def any_retired(self) -> bool:
        """Whether versions wait for the end of their last request."""
        return bool(self._retired)

    def check(self, name: str) -> None:
        if name not in self._current:
            raise UserError(f"There is no adapter '{name}' on this engine.{did_you_mean(name, self.names)}")

    def current(self, name: str) -> AdapterVersion:
        self.check(name)
        return self._current[name]

    def put(self, name: str, adapter: Adapter, number: int | None) -> None:
        """Give a name to an adapter; the one that had the name is retired."""
        if name == BASE:
            raise UserError("An adapter needs a name.")
        version = AdapterVersion(name, f"{name}#{next(self._loads)}", number)
        self.matrices.add(version.key, adapter)
        before = self._current.get(name)
        self._current[name] = version  # in one step: other threads look the name up at any time
        if before is not None:
            self._retired.append(before)

    def remove(self, name: str) -> None:
        """Take the name from an adapter, which is retired."""
        self.check(name)
        self._retired.append(self._current.pop(name))

    def remove_unused(self, used: Collection[str]) -> list[str]:
        """Remove the retired versions whose keys are not in use; their keys."""
        removed = [version.key for version in self._retired if version.key not in used]
        self._retired = [version for version in self._retired if version.key in used]
        for key in removed:
            self.matrices.remove(key)
        return removed


class AdapterEngine:
    """An engine bound to one of its adapters: its callers need not handle the others."""

    def __init__(self, engine: Engine, adapter: str) -> None:
        self.engine, self.adapter = engine, adapter
        self.name = engine.name

    async def generate(self, request: Request) -> Generation:
        session = self._session(request.session) if request.session else ""
        return await self.engine.generate(replace(request, adapter=self.adapter, session=session))

    def end_session(self, session: str) -> None:
        self.engine.end_session(self._session(session))

    def _session(self, session: str) -> str:
        """A session name that is unique per adapter: two adapters may work on the same task at once."""
        return f"{self.adapter}/{session}"

    async def close(self) -> None:
        """Leave the engine open: its owner closes it."""
