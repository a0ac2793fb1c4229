"""Connections to MCP servers: started when needed, watched, started again, and gone when the process ends.

All of them live in one background thread, each in a task of its own, since a connection must be closed
by the task that opened it. Episodes may call from any thread and event loop.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import json
import math
import os
import shlex
import shutil
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from typing import Any, TextIO, TypeVar

from practicum.errors import UserError
from practicum.tools.errors import ToolFailure

try:
    import anyio
    from mcp import Client, MCPError, StdioServerParameters, stdio_client
    from mcp.client.streamable_http import streamable_http_client
    from mcp.types import INVALID_PARAMS
except ImportError as _missing:
    raise UserError("MCP servers need the package mcp (2.3 or newer): pip install 'practicum[mcp]'.") from _missing

T = TypeVar("T")
START_SECONDS = 60.0
STOP_SECONDS = 10.0
ALIVE_SECONDS = 5.0
"""How long a server may take to show that it lives, after a call that was given up."""
STARTS = 3
"""How often a server that ends at once is started again for one call."""
STDERR_KEPT = 2000
RESERVED_CODES = range(-32768, -31999)
"""Error codes of JSON-RPC and MCP; all others are a server's own."""


class Hub:
    """The background thread in which all connections live."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.connected: set[Server] = set()
        self.process = os.getpid()
        threading.Thread(target=self.loop.run_forever, name="practicum-mcp", daemon=True).start()
        atexit.register(self.close)

    def run(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Do something there and wait for it here."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def close(self) -> None:
        """Stop every server, all at the same time."""
        if self.process == os.getpid():  # a forked process has none of its parent's threads
            with contextlib.suppress(TimeoutError):
                self.run(self._close(), STOP_SECONDS)

    async def _close(self) -> None:
        await asyncio.gather(*(server.stop() for server in list(self.connected)))


_making = threading.Lock()
_hubs: dict[int, Hub] = {}


def hub() -> Hub:
    """This process's own."""
    with _making:
        if os.getpid() not in _hubs:
            _hubs[os.getpid()] = Hub()
        return _hubs[os.getpid()]


class Server:
    """One connection to the server at an http address, or that a command starts.

    `start`, `reset`, `close` and `call` are for everybody; the other coroutines run in the hub.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.remote = target.startswith(("http://", "https://"))
        self.command = [] if self.remote else command_of(target)
        self.offers: Sequence[Any] = ()
        """The tools that it listed when it was last started."""
        self._client: Client | None = None
        self._life: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._stderr = b""
        self._used = False

    def start(self) -> Server:
        """Wait until it is there; ToolFailure says why it is not."""
        hub().run(self._ready())
        return self

    def reset(self) -> None:
        """New for an episode that has it to itself."""
        if self._used:
            self.close()
            self._used = False
        self.start()

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            hub().run(self.stop(), STOP_SECONDS)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """A tool's answer as text. Its own errors are ValueErrors; everything else that fails is a ToolFailure."""
        self._used = True
        home = hub()
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._call(name, arguments), home.loop))
        except asyncio.CancelledError:
            if not self.remote:  # somebody gave up waiting: does it hang?
                asyncio.run_coroutine_threadsafe(self._prove_alive(), home.loop)
            raise

    async def stop(self) -> None:
        """End the connection, and the process with it."""
        self._end()
        if self._life is not None:
            await asyncio.wait([self._life])

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        client = await self._ready()
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code == INVALID_PARAMS or error.code not in RESERVED_CODES:
                raise ValueError(error.message) from None
            if self.remote and client is self._client:
                self._end()  # the next call connects anew: the server may have lost the session
            raise self._failure(error.message) from error
        except Exception as error:  # an answer that breaks the protocol or the tool's own output schema
            raise self._failure(f"{type(error).__name__}: {error}") from error
        text = "\n".join(block.text if block.type == "text" else f"[{block.type}]" for block in result.content)
        if not result.content and result.structured_content is not None:
            text = json.dumps(result.structured_content, ensure_ascii=False)
        if result.is_error:
            raise ValueError(text or "the tool failed")
        return text

    async def _ready(self) -> Client:
        for _ in range(STARTS):
            if self._life is None or self._life.done():
                self._started = asyncio.get_running_loop().create_future()
                self._started.add_done_callback(lambda done: done.exception())  # heard, even if nobody waits
                self._scope = anyio.CancelScope(deadline=anyio.current_time() + START_SECONDS)
                self._life = asyncio.create_task(self._live(self._scope, self._started))
            elif self._client is None and self._started is not None and self._started.done():
                await asyncio.wait([self._life])  # on its way out
                continue
            assert self._started is not None
            await asyncio.shield(self._started)
            if self._client is not None:
                return self._client
        raise self._failure("it ends as soon as it is started")

    async def _live(self, scope: anyio.CancelScope, started: asyncio.Future[None]) -> None:
        """From the start of the server to its end."""
        fault = ""
        home = hub()
        home.connected.add(self)
        begun = anyio.current_time()
        try:
            with scope:
                async with Client(self._transport(scope)) as client:
                    self.offers = await _listed(client)
                    self._client, scope.deadline = client, math.inf
                    started.set_result(None)
                    await anyio.sleep_forever()
        except Exception as error:
            fault = _cause(error)
        finally:
            self._client = None
            home.connected.discard(self)
            if not started.done():
                late = anyio.current_time() - begun >= START_SECONDS
                fault = fault or (
                    f"it was not ready within {START_SECONDS:g} s" if late else "it ended before it was ready"
                )
                written = self._stderr.decode(errors="replace").strip()
                started.set_exception(
                    self._failure(f"{fault} (it wrote: {written.splitlines()[-1]})" if written else fault)
                )

    @contextlib.asynccontextmanager
    async def _transport(self, scope: anyio.CancelScope) -> AsyncIterator[Any]:
        """The way to the server; when it comes to its end, so does the connection."""

        def ended() -> None:
            self._client = None
            scope.cancel()

        async with contextlib.AsyncExitStack() as stack:
            if self.remote:
                read, write = await stack.enter_async_context(streamable_http_client(self.target))
            else:
                wanted = os.environ.get("PRACTICUM_MCP_ENV", "").split(",")
                extra = {name: os.environ[name] for name in wanted if name in os.environ}
                parameters = StdioServerParameters(command=self.command[0], args=self.command[1:], env=extra)
                with self._listen(stack) as errors:
                    read, write = await stack.enter_async_context(stdio_client(parameters, errors))
            yield _Ending(read, ended), write

    def _listen(self, stack: contextlib.AsyncExitStack) -> TextIO:
        """A file for the server to write its complaints to; the last of them are kept."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        loop = asyncio.get_running_loop()
        self._stderr = b""

        def hear() -> None:
            try:
                piece = os.read(reading, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                loop.remove_reader(reading)
            self._stderr = (self._stderr + piece)[-STDERR_KEPT:]

        def leave() -> None:
            hear()
            loop.remove_reader(reading)
            os.close(reading)

        loop.add_reader(reading, hear)
        stack.callback(leave)
        return os.fdopen(writing, "w")

    def _end(self) -> None:
        self._client = None
        if self._scope is not None:
            self._scope.cancel()

    async def _prove_alive(self) -> None:
        """A server that does not even list its tools hangs: it is ended, and the next call starts another."""
        client = self._client
        if client is None:
            return
        with anyio.move_on_after(ALIVE_SECONDS), contextlib.suppress(Exception):
            await client.list_tools(cache_mode="refresh")
            return
        if client is self._client:
            self._end()

    def _failure(self, text: str) -> ToolFailure:
        return ToolFailure(f"the MCP server '{self.target}' failed: {text}")


class _Ending:
    """A read stream that says when it has come to its end; all else is the stream's own."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self.stream, self.ended = stream, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __aiter__(self) -> _Ending:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.stream.__anext__()
        except StopAsyncIteration:
            self.ended()
            raise

    async def __aenter__(self) -> _Ending:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        answer: bool | None = await self.stream.__aexit__(*error)
        return answer


def command_of(target: str) -> list[str]:
    """A command line in words; `python` is the interpreter that runs this."""
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise UserError(f"The command of 'mcp:{target}' cannot be read: {error}.") from None
    if words and words[0] in ("python", "python3"):
        words[0] = sys.executable
    if not words or shutil.which(words[0]) is None:
        raise UserError(f"There is no program '{words[0] if words else ''}' to start 'mcp:{target}' with.")
    return words


async def _listed(client: Client) -> list[Any]:
    """All tools of a server, page by page."""
    page = await client.list_tools()
    found = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _cause(error: BaseException) -> str:
    """The innermost reason within groups of exceptions."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def close_servers() -> None:
    """Stop all servers now; a tool that is called afterwards starts its own again."""
    for home in list(_hubs.values()):
        home.close()
