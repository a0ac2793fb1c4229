"""The web application of the live page: read-only routes."""

from __future__ import annotations

import asyncio
import contextlib
import threading
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
from practicum.report.comparisons import PairCache, compare_parts
from practicum.report.index import FIELDS
from practicum.report.live.watcher import FolderWatcher
from practicum.report.run_state import run_state
from practicum.report.run_view import RunView
from practicum.report.tokens import Tokenizers
from practicum.utils.escape import encode
from practicum.utils.terminal import escape_invisible

NUM_SHOWN_RUNS = 6
"""Runs that a page shows before any are selected."""
MAX_QUEUED_MESSAGES = 2000
"""Messages queued for a page that reads slowly; one that falls further behind has to reconnect."""
HEARTBEAT_SECONDS = 15.0
HEADERS = {
    "Content-Security-Policy": page.SERVED_POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class Hub:
    """Sends the messages of the watcher, which runs in a thread of its own, to every connected page."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.pages: set[asyncio.Queue[bytes | None]] = set()

    def publish(self, message: dict[str, Any]) -> None:
        if self.loop is not None and self.pages:
            with contextlib.suppress(RuntimeError):  # the server is shutting down
                self.loop.call_soon_threadsafe(self._enqueue, encode(message))

    def _enqueue(self, data: bytes) -> None:
        for queue in list(self.pages):
            try:
                queue.put_nowait(data)
            except asyncio.QueueFull:
                self.pages.discard(queue)
                queue.get_nowait()
                queue.put_nowait(None)

    def close(self) -> None:
        """End every page's stream, because a server that stops waits for them. May be called from any thread."""
        if self.loop is not None:
            self.loop.call_soon_threadsafe(self._end_streams)

    def _end_streams(self) -> None:
        for queue in list(self.pages):
            with contextlib.suppress(asyncio.QueueFull):
                queue.put_nowait(None)


class LivePage:
    """The request handlers. Reading files and comparing is done in a thread."""

    def __init__(self, top: Path) -> None:
        self.hub = Hub()
        self.watcher = FolderWatcher(top, self.hub.publish)
        self.tokenizers = Tokenizers()
        self.comparing, self.pairs = threading.Lock(), PairCache()
        self.title = f"Practicum: {top.resolve().name or top}"

    async def front(self, request: Request) -> Response:
        return Response(page.served(self.title), media_type="text/html")

    async def style(self, request: Request) -> Response:
        return Response(page.asset("style.css"), media_type="text/css")

    async def script(self, request: Request) -> Response:
        return Response(page.script(), media_type="text/javascript")

    async def runs(self, request: Request) -> Response:
        def answer() -> dict[str, Any]:
            views = list(self.watcher.views.values())
            return {
                "fields": FIELDS,
                "shown": NUM_SHOWN_RUNS,
                "runs": [
                    {
                        "key": view.run.key,
                        "name": escape_invisible(view.name),
                        "folder": escape_invisible(str(view.run.folder)),
                        "episodes": len(view.index.rows),
                        "waiting": len(view.index.pending),
                        "age": self.watcher.age(view),
                        **run_state(view.run.folder),
                    }
                    for view in views
                ],
            }

        return await self._json_response(answer)

    async def run(self, request: Request) -> Response:
        return await self._run_response(request, lambda view: view.record())

    async def episodes(self, request: Request) -> Response:
        start = _number(request, "from")

        def answer(view: RunView) -> dict[str, Any]:
            index = view.index
            with view.lock:
                rows, count = index.rows[start:], len(index.rows)
                waiting, generation = len(index.pending), index.generation
            records = [row.record() for row in rows]
            return {"rows": records, "count": count, "waiting": waiting, "generation": generation}

        return await self._run_response(request, answer)

    async def episode(self, request: Request) -> Response:
        number = _number(request, "number")

        def answer(view: RunView) -> dict[str, Any]:
            if number >= len(view.index.rows):
                return {"fault": "there is no such episode (any more)"}
            return view.episode(view.index.rows[number], self.tokenizers)

        return await self._run_response(request, answer)

    async def search(self, request: Request) -> Response:
        """The episodes of a run with a word in their text."""
        word = request.query_params.get("word", "").lower()

        def answer(view: RunView) -> dict[str, Any]:
            with view.lock:
                return {"rows": sorted(view.index.words.rows_with(word)) if word else []}

        return await self._run_response(request, answer)

    async def compare(self, request: Request) -> Response:
        keys = request.query_params.get("runs", "").split(",")[:12]

        def answer() -> dict[str, Any]:
            views = [view for key in keys if (view := self.watcher.get(key)) is not None]
            with self.comparing:
                return {"comparisons": compare_parts([part for view in views for part in view.parts()], self.pairs)}

        return await self._json_response(answer)

    async def events(self, request: Request) -> Response:
        queue: asyncio.Queue[bytes | None] = asyncio.Queue(MAX_QUEUED_MESSAGES)
        self.hub.pages.add(queue)

        async def stream() -> AsyncIterator[bytes]:
            try:
                yield b"retry: 1000\n\n"
                while True:
                    try:
                        data = await asyncio.wait_for(queue.get(), HEARTBEAT_SECONDS)
                    except TimeoutError:
                        yield b": still here\n\n"
                        continue
                    if data is None:
                        return
                    yield b"data: " + data + b"\n\n"
            finally:
                self.hub.pages.discard(queue)

        return StreamingResponse(stream(), media_type="text/event-stream")

    async def _run_response(self, request: Request, answer: Callable[[RunView], dict[str, Any]]) -> Response:
        view = self.watcher.get(request.query_params.get("run", ""))
        if view is None:
            return JSONResponse({"fault": "there is no such run (any more)"}, 404)
        return await self._json_response(lambda: answer(view))

    async def _json_response(self, answer: Callable[[], dict[str, Any]]) -> Response:
        body = await run_in_threadpool(lambda: encode(answer()))
        return Response(body, media_type="application/json")

    @contextlib.asynccontextmanager
    async def lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.hub.loop = asyncio.get_running_loop()
        self.watcher.start()
        try:
            yield
        finally:
            await run_in_threadpool(self.watcher.stop)


class SecurityHeaders:
    """Adds the security headers to every response, and refuses every method but GET and HEAD."""

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
            inner = Response("This page is for view only.", 405)
        await inner(scope, receive, send_guarded)


def make_app(top: Path, hosts: list[str]) -> Starlette:
    """The application over a folder. `hosts` are the accepted host names: a foreign page that points its own name here
    (DNS rebinding) gets no answer."""
    live = LivePage(top)
    routes = [
        Route("/", live.front),
        Route("/style.css", live.style),
        Route("/page.js", live.script),
        Route("/api/runs", live.runs),
        Route("/api/run", live.run),
        Route("/api/episodes", live.episodes),
        Route("/api/episode", live.episode),
        Route("/api/search", live.search),
        Route("/api/compare", live.compare),
        Route("/api/events", live.events),
    ]
    middleware = [
        Middleware(SecurityHeaders),
        Middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False),
        Middleware(GZipMiddleware, minimum_size=2000, compresslevel=3),
    ]
    app = Starlette(routes=routes, middleware=middleware, lifespan=live.lifespan)
    app.state.live = live
    return app


def _number(request: Request, name: str) -> int:
    text = request.query_params.get(name, "")
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0
