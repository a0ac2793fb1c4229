"""One adapter of an engine that serves several."""

from __future__ import annotations

from dataclasses import replace

from practicum.engines.base import Engine, Generation, Request


class AdapterEngine:
    """An engine as one of its adapters: who rolls out with it need not know that there are others."""

    def __init__(self, engine: Engine, adapter: str) -> None:
        self.engine, self.adapter = engine, adapter
        self.name = engine.name

    async def generate(self, request: Request) -> Generation:
        own = self._own(request.session) if request.session else ""
        return await self.engine.generate(replace(request, adapter=self.adapter, session=own))

    def end_session(self, session: str) -> None:
        self.engine.end_session(self._own(session))

    def _own(self, session: str) -> str:
        """Two adapters may be at the same task at once."""
        return f"{self.adapter}/{session}"

    async def close(self) -> None:
        """The engine is closed by whoever made it."""
