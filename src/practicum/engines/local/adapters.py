"""A view of an engine that answers every request with one adapter."""

from __future__ import annotations

from dataclasses import replace

from practicum.engines.base import Engine, Generation, Request


class AdapterEngine:
    """An engine bound to one of its adapters: a caller that rolls out with it need not know of the others."""

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
