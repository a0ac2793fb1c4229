"""The server of the live page: a few addresses to read from, none to write to."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.concurrency import run_in_threadpool
from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from practicum.report import page
from practicum.report.cohorts import comparisons
from practicum.report.index import FIELDS
from practicum.report.live.watcher import FolderWatcher
from practicum.report.run_view import RunView
from practicum.report.tokens import Tokenizers
from practicum.utils.escape import encode, shown

SHOWN = 6
"""Runs that a page shows before anybody chooses."""
WAITING = 2000
"""Messages kept for a page that reads slowly; one that falls further behind connects anew."""
HEARTBEAT = 15.0
HEADERS = {
    "Content-Security-Policy": page.SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Hub:
    """Hands what the watch tells, from its own thread, to every page that listens."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pages: set[asyncio.Queue[bytes | None]] = set()

    def tell(self, message: dict[str, Any]) -> None:
        if self.loop is not None and self.pages:
            with contextlib.suppress(RuntimeError):  # the server is on its way out
                self.loop.call_soon_threadsafe(self._hand, encode(message))

    def _hand(self, data: bytes) -> None:
        for queue in list(self.pages):
            try:
                queue.put_nowait(data)
            except asyncio.QueueFull:
                self.pages.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)

    def close(self) -> None:
        """End every page's stream: a server that is asked to stop waits for them. May be called from any thread."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._end)

    def _end(self) -> None:
        for queue in list(self.pages):
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)


class Live:
    """The answers. Whatever takes longer than a moment is done in a thread."""

    def __init__(self, top: Path) -> None:
        self.hub = Hub()
        self.watch = FolderWatcher(top, self.hub.tell)
        self.tokenizers = Tokenizers()
        self.title = f"Practicum: {top.resolve().name or top}"

    async def front(self, request: Request) -> Response:
        return Response(page.served(self.title), media_type="text/html")

    async def style(self, request: Request) -> Response:
        return Response(page.asset("style.css"), media_type="text/css")

    async def script(self, request: Request) -> Response:
        return Response(page.script(), media_type="text/javascript")

    async def runs(self, request: Request) -> Response:
        def answer() -> dict[str, Any]:
            readings = list(self.watch.readings.values())
            return {
                "fields": FIELDS,
                "shown": SHOWN,
                "runs": [{"key": r.run.key, "name": shown(r.name), "folder": shown(str(r.run.folder)),
                          "episodes": len(r.index.rows), "waiting": len(r.index.waiting), "age": self.watch.age(r)}
                         for r in readings],
            }  # fmt: skip

        return await self._answered(answer)

    async def run(self, request: Request) -> Response:
        return await self._of(request, lambda reading: reading.record())

    async def episodes(self, request: Request) -> Response:
        start = _number(request, "from")

        def answer(reading: RunView) -> dict[str, Any]:
            index = reading.index
            with reading.lock:
                rows, count = index.rows[start:], len(index.rows)
                waiting, generation = len(index.waiting), index.generation
            records = [row.record() for row in rows]
            return {"rows": records, "count": count, "waiting": waiting, "generation": generation}

        return await self._of(request, answer)

    async def episode(self, request: Request) -> Response:
        place = _number(request, "number")

        def answer(reading: RunView) -> dict[str, Any]:
            if place >= len(reading.index.rows):
                return {"fault": "there is no such episode (any more)"}
            return reading.episode(reading.index.rows[place], self.tokenizers)

        return await self._of(request, answer)

    async def compare(self, request: Request) -> Response:
        keys = request.query_params.get("runs", "").split(",")[:12]

        def answer() -> dict[str, Any]:
            found = [reading for key in keys if (reading := self.watch.get(key)) is not None]
            return {"comparisons": comparisons([cohort for reading in found for cohort in reading.cohorts()])}

        return await self._answered(answer)

    async def events(self, request: Request) -> Response:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(WAITING)
        self.hub.pages.add(queue)

        async def stream() -> AsyncIterator[bytes]:
            try:
                yield b"retry: 1000\n\n"
                while True:
                    try:
                        data = await asyncio.wait_for(queue.get(), HEARTBEAT)
                    except TimeoutError:
                        yield b": still here\n\n"
                        continue
                    if data is None:
                        return
                    yield b"data: " + data + b"\n\n"
            finally:
                self.hub.pages.discard(queue)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _of(self, request: Request, answer: Callable[[RunView], dict[str, Any]]) -> Response:
        reading = self.watch.get(request.query_params.get("run", ""))
        if reading is None:
            return JSONResponse({"fault": "there is no such run (any more)"}, 404)
        return await self._answered(lambda: answer(reading))

    async def _answered(self, answer: Callable[[], dict[str, Any]]) -> Response:
        body = await run_in_threadpool(lambda: encode(answer()))
        return Response(body, media_type="application/json")

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.loop = asyncio.get_running_loop()
        self.watch.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.watch.stop)


class Guarded:
    """Puts the security headers on every answer, and refuses everything that does not only read."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_guarded(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = [(k.lower().encode(), v.encode()) for k, v in HEADERS.items()]
                message["headers"] = [*message.get("headers", ()), *headers]
            await send(message)

        inner: Callable[[Scope, Receive, Send], Awaitable[None]] = self.app
        if scope["method"] not in ("GET", "HEAD"):
            inner = Response("This page is for reading only.", 405)
        await inner(scope, receive, send_guarded)


def make_app(top: Path, hosts: list[str]) -> Starlette:
    """The application over a folder. `hosts` are the names it may be called by: a foreign page that lets its own name
    point here gets no answer."""
    live = Live(top)
    routes = [
        Route("/", live.front),
        Route("/style.css", live.style),
        Route("/page.js", live.script),
        Route("/api/runs", live.runs),
        Route("/api/run", live.run),
        Route("/api/episodes", live.episodes),
        Route("/api/episode", live.episode),
        Route("/api/compare", live.compare),
        Route("/api/events", live.events),
    ]
    middleware = [
        Middleware(Guarded),
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
        Middleware(GZipMiddleware, minimum_size=2000, compresslevel=3),
    ]
    app = Starlette(routes=routes, middleware=middleware, lifespan=live.lifespan)
    app.state.live = live
    return app


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
