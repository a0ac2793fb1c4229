"""The only network that a page has: an HTTP proxy on the loopback address that answers for the hosts of one episode.

The browser context of an episode sends every request to its own gateway: documents, scripts, redirects, workers, web
sockets. A host that the episode does not have gets status 403 and is noted; so does every encrypted connection, but
those to the episode's remote hosts, if it has any. Handlers are Python functions, so pages have the same address in
every episode and no port is open for a site.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import mimetypes
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

import httpx

ADDRESS = "127.0.0.1"
MAX_HEAD_BYTES = 65_536
MAX_BODY_BYTES = 1_000_000
MAX_NOTED_HOSTS = 20
IDLE_CONNECTION_SECONDS = 30.0
CONNECT_SECONDS = 10.0
FORWARD_SECONDS = 20.0
HOP_HEADERS = frozenset(("connection", "proxy-connection", "keep-alive", "host", "content-length", "accept-encoding"))
"""Headers of a request that are not passed on."""
REASONS = {200: "OK", 204: "No Content", 302: "Found", 303: "See Other", 403: "Forbidden", 404: "Not Found",
           405: "Method Not Allowed", 413: "Content Too Large", 500: "Internal Server Error",
           502: "Bad Gateway"}  # fmt: skip


@dataclass(frozen=True, slots=True)
class HttpRequest:
    """A request of a page; `headers` have names in lower case, `query` is not decoded."""

    method: str
    host: str
    path: str
    query: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """The answer to a request."""

    status: int = 200
    body: bytes = b""
    content_type: str = "text/html; charset=utf-8"
    headers: Mapping[str, str] = field(default_factory=dict)


Handler = Callable[[HttpRequest], Awaitable[HttpResponse]]


class SiteGateway:
    """Answers the requests of one episode by the handler of their host, such as `shop.test`.

    Encrypted connections to port 443 of a remote host are passed on to its address.
    """

    def __init__(self, handlers: Mapping[str, Handler], remote: Mapping[str, tuple[str, int]] | None = None) -> None:
        self.handlers, self.remote = dict(handlers), dict(remote or {})
        self.refused: dict[str, None] = {}
        """Hosts that pages wanted and did not get, in the order of the first request."""
        self.num_in_flight = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._server: asyncio.Server | None = None
        self._connections: set[asyncio.StreamWriter] = set()

    @property
    def url(self) -> str:
        """The address of the proxy."""
        assert self._server is not None, "open comes first"
        return f"http://{ADDRESS}:{self._server.sockets[0].getsockname()[1]}"

    async def open(self) -> None:
        self._server = await asyncio.start_server(self._serve, ADDRESS, 0, limit=MAX_HEAD_BYTES)

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        for writer in list(self._connections):
            writer.close()
        self._connections.clear()

    async def idle(self) -> None:
        """Wait until no request is being answered."""
        await self._idle.wait()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._connections.add(writer)
        try:
            while await self._serve_one(reader, writer):
                pass
        except (asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError, TimeoutError, ValueError):
            pass  # the browser went away, or sent what is no request
        finally:
            self._connections.discard(writer)
            with contextlib.suppress(Exception):
                writer.close()

    async def _tunnel(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, address: tuple[str, int]
    ) -> None:
        """Pass the bytes of a connection on to a remote host, and back, until one side ends it."""
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                far_reader, far_writer = await asyncio.open_connection(*address)
        except (OSError, TimeoutError):
            await self._send(writer, "CONNECT", HttpResponse(502), keep=False)
            return
        self._connections.add(far_writer)
        try:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
            await asyncio.gather(_copy(reader, far_writer), _copy(far_reader, writer))
        finally:
            self._connections.discard(far_writer)
            far_writer.close()

    async def _serve_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; return whether the connection stays open."""
        async with asyncio.timeout(IDLE_CONNECTION_SECONDS):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.split("\r\n")
        method, target, _ = first.split(" ", 2)
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        host, _, port = target.lower().rpartition(":")
        if method == "CONNECT" and port == "443" and host in self.remote:
            await self._tunnel(reader, writer, self.remote[host])
            return False
        self.num_in_flight += 1
        self._idle.clear()
        try:
            length = headers.get("content-length", "0")
            if not length.isdecimal() or int(length) > MAX_BODY_BYTES or "transfer-encoding" in headers:
                response, keep = HttpResponse(413), False
            else:
                body = await reader.readexactly(int(length))
                response, keep = await self._answer(method, target, headers, body), method != "CONNECT"
            await self._send(writer, method, response, keep)
            return keep
        finally:
            self.num_in_flight -= 1
            if self.num_in_flight == 0:
                self._idle.set()

    async def _answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> HttpResponse:
        parts = urlsplit(target if method != "CONNECT" else f"//{target}")
        handler = self.handlers.get(parts.netloc.lower()) if parts.scheme == "http" else None
        if handler is None:
            if len(self.refused) < MAX_NOTED_HOSTS:
                self.refused[parts.netloc.lower()[:200]] = None
            return HttpResponse(403, b"This host is not part of the task.")
        if parts.path == "/favicon.ico":
            return HttpResponse(204)
        try:
            request = HttpRequest(method, parts.netloc.lower(), parts.path or "/", parts.query, headers, body)
            return await handler(request)
        except Exception:  # a site that fails answers as a server would; it must not end the browser's connection
            return HttpResponse(500, b"<title>Server error</title><h1>Server error</h1>")

    async def _send(self, writer: asyncio.StreamWriter, method: str, response: HttpResponse, keep: bool) -> None:
        lines = [f"HTTP/1.1 {response.status} {REASONS.get(response.status, 'Status')}"]
        headers = {
            "Content-Type": response.content_type,
            "Content-Length": str(len(response.body)),
            "Connection": "keep-alive" if keep else "close",
            **response.headers,
        }
        lines += [f"{name}: {value}".replace("\r", "").replace("\n", "") for name, value in headers.items()]
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1", "replace"))
        if method != "HEAD":
            writer.write(response.body)
        await writer.drain()


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Write to one connection what comes from another."""
    try:
        while data := await reader.read(MAX_HEAD_BYTES):
            writer.write(data)
            await writer.drain()
    except ConnectionError:
        pass
    finally:
        with contextlib.suppress(Exception):
            writer.close()


@functools.lru_cache(maxsize=512)
def _file(path: Path) -> bytes:
    return path.read_bytes()


def folder_handler(root: Path) -> Handler:
    """Return a handler that serves the files of a folder, and nothing outside of it."""
    root = root.resolve()

    async def handle(request: HttpRequest) -> HttpResponse:
        if request.method not in ("GET", "HEAD"):
            return HttpResponse(405)
        path = (root / unquote(request.path).lstrip("/")).resolve()
        if not path.is_relative_to(root) or not path.is_file():
            return HttpResponse(404, b"<title>Not found</title><h1>Not found</h1>")
        kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
        kind += "; charset=utf-8" if kind.startswith("text/") else ""
        return HttpResponse(body=_file(path), content_type=kind)

    return handle


def forward_handler(address: str) -> Handler:
    """Return a handler that passes requests on to a server, such as http://127.0.0.1:3000."""

    async def handle(request: HttpRequest) -> HttpResponse:
        query = f"?{request.query}" if request.query else ""
        headers = {name: value for name, value in request.headers.items() if name and name not in HOP_HEADERS}
        async with httpx.AsyncClient(timeout=FORWARD_SECONDS, trust_env=False) as client:
            answer = await client.request(
                request.method, f"{address}{request.path}{query}", content=request.body, headers=headers
            )
        kept = {
            name: answer.headers[name] for name in ("location", "set-cookie", "cache-control") if name in answer.headers
        }
        kind = answer.headers.get("content-type", "application/octet-stream")
        return HttpResponse(answer.status_code, answer.content, kind, kept)

    return handle
