"""`practicum serve`: the application on a socket, until a signal ends it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from types import FrameType

import uvicorn
from starlette.applications import Starlette

from practicum.errors import UserError
from practicum.serving.app import ModelServer, make_app

LOOPBACK = ("127.0.0.1", "localhost", "::1")
BACKLOG = 2048


class HTTPServer(uvicorn.Server):
    """uvicorn's server. A first signal lets replies under way end and refuses new ones; a second ends at once."""

    def __init__(self, config: uvicorn.Config, server: ModelServer) -> None:
        super().__init__(config)
        self.model_server = server

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Like uvicorn's own, but the signal is not raised again: it is the normal way to end the command."""
        self.model_server.draining = True
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True


def allowed_hosts(host: str) -> list[str]:
    """The accepted host names: this machine's own, or all where it listens on all addresses."""
    return ["*"] if host in ("0.0.0.0", "::") else [*LOOPBACK, "[::1]", host]


def listen(host: str, port: int) -> socket.socket:
    """A listening socket; a UserError where the address cannot be had."""
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(f"Cannot listen on {host}:{port} ({error.strerror}); choose another --port.") from None
    return listener


def listen_at(path: Path) -> socket.socket:
    """A listening Unix socket."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        listener.bind(str(path))
        listener.listen(BACKLOG)
    except OSError as error:
        listener.close()
        raise UserError(f"Cannot listen at {path} ({error}); set TMPDIR to another folder.") from None
    return listener


def http_server(app: Starlette, drain_seconds: float) -> HTTPServer:
    # The application has no lifespan events; uvicorn would log a traceback where Ctrl-C cancels the waiting for them.
    config = uvicorn.Config(
        app, log_level="warning", timeout_graceful_shutdown=int(drain_seconds), timeout_keep_alive=30, backlog=BACKLOG,
        lifespan="off",
    )  # fmt: skip
    return HTTPServer(config, app.state.server)


async def serve(server: ModelServer, listener: socket.socket, host: str, drain_seconds: float) -> None:
    """Serve until a signal ends it; then close the models."""
    following = asyncio.create_task(server.follower.follow()) if server.follower is not None else None
    try:
        await http_server(make_app(server, allowed_hosts(host)), drain_seconds).serve(sockets=[listener])
    finally:
        if following is not None:
            following.cancel()
            await asyncio.gather(following, return_exceptions=True)
        if server.models is not None:
            await server.models.close()


@contextlib.asynccontextmanager
async def serve_in_background(app: Starlette, listener: socket.socket, drain_seconds: float = 5) -> AsyncIterator[str]:
    """Serve an application within this event loop while the block runs; yields its address (Unix socket: path)."""
    name = listener.getsockname()
    server = http_server(app, drain_seconds)
    server.capture_signals = contextlib.nullcontext  # type: ignore[method-assign,assignment]
    task = asyncio.create_task(server.serve(sockets=[listener]))
    try:
        while not server.started:
            if task.done():
                await task
            await asyncio.sleep(0.002)
        yield name if isinstance(name, str) else f"http://127.0.0.1:{name[1]}"
    finally:
        server.should_exit = True
        await task
