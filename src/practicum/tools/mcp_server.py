"""Connections to MCP servers: started when needed, restarted when they end, stopped when the process ends.

All of them run in one background thread, each in a task of its own, since a connection must be closed by the task that
opened it. Episodes may call from any thread and event loop.
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
PING_SECONDS = 5.0
"""Seconds that a server may take to list its tools after a cancelled call; else it counts as hung."""
MAX_STARTS = 3
"""Number of times that a server that ends at once is started for one call."""
STDERR_TAIL_BYTES = 2000
RESERVED_CODES = range(-32768, -31999)
"""Error codes of JSON-RPC and MCP; all others are defined by the server."""


class ConnectionThread:
    """The background thread in which all connections run."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.connected: set[MCPConnection] = set()
        self.process = os.getpid()
        threading.Thread(target=self.loop.run_forever, name="practicum-mcp", daemon=True).start()
        atexit.register(self.close)

    def run(self, work: Coroutine[Any, Any, T], seconds: float | None = None) -> T:
        """Run a coroutine in that thread and block until it returns."""
        return asyncio.run_coroutine_threadsafe(work, self.loop).result(seconds)

    def close(self) -> None:
        """Stop every server, all at the same time."""
        if self.process == os.getpid():  # a forked child has none of its parent's threads
            with contextlib.suppress(TimeoutError):
                self.run(self._close(), STOP_SECONDS)

    async def _close(self) -> None:
        await asyncio.gather(*(server.stop() for server in list(self.connected)))


_lock = threading.Lock()
_connection_threads: dict[int, ConnectionThread] = {}


def connection_thread() -> ConnectionThread:
    """Return this process's connection thread."""
    with _lock:
        if os.getpid() not in _connection_threads:
            _connection_threads[os.getpid()] = ConnectionThread()
        return _connection_threads[os.getpid()]


class MCPConnection:
    """One connection to the server at an http address, or to the server that a command starts.

    `start`, `reset`, `close` and `call` may be called from any thread; the other coroutines run in the connection
    thread.
    """

    def __init__(self, target: str) -> None:
        self.target = target
        self.remote = target.startswith(("http://", "https://"))
        self.command = [] if self.remote else command_of(target)
        self.offers: Sequence[Any] = ()
        """The tools that the server listed when it was last started."""
        self._client: Client | None = None
        self._task: asyncio.Task[None] | None = None
        self._started: asyncio.Future[None] | None = None
        self._scope: anyio.CancelScope | None = None
        self._stderr = b""
        self._used = False

    def start(self) -> MCPConnection:
        """Wait until the server is ready; ToolFailure says why it is not."""
        connection_thread().run(self._ready())
        return self

    def reset(self) -> None:
        """Restart the server for an episode of its own, if it has been used."""
        if self._used:
            self.close()
            self._used = False
        self.start()

    def close(self) -> None:
        with contextlib.suppress(TimeoutError):
            connection_thread().run(self.stop(), STOP_SECONDS)

    async def call(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Return a tool's answer as text. The tool's own errors are ValueErrors; all other errors are ToolFailures."""
        self._used = True
        thread = connection_thread()
        try:
            return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(self._call(name, arguments), thread.loop))
        except asyncio.CancelledError:
            if not self.remote:  # the caller was cancelled: the server may hang
                asyncio.run_coroutine_threadsafe(self._stop_if_hung(), thread.loop)
            raise

    async def stop(self) -> None:
        """End the connection and the process of the server."""
        self._disconnect()
        if self._task is not None:
            await asyncio.wait([self._task])

    async def _call(self, name: str, arguments: Mapping[str, Any]) -> str:
        client = await self._ready()
        try:
            result = await client.call_tool(name, dict(arguments))
        except MCPError as error:
            if error.code == INVALID_PARAMS or error.code not in RESERVED_CODES:
                raise ValueError(error.message) from None
            if self.remote and client is self._client:
                self._disconnect()  # the next call reconnects: the server may have lost the session
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
        for _ in range(MAX_STARTS):
            if self._task is None or self._task.done():
                self._started = asyncio.get_running_loop().create_future()
                self._started.add_done_callback(lambda done: done.exception())  # retrieved, even if nobody waits
                self._scope = anyio.CancelScope(deadline=anyio.current_time() + START_SECONDS)
                self._task = asyncio.create_task(self._run(self._scope, self._started))
            elif self._client is None and self._started is not None and self._started.done():
                await asyncio.wait([self._task])  # it is stopping
                continue
            assert self._started is not None
            await asyncio.shield(self._started)
            if self._client is not None:
                return self._client
        raise self._failure("it ends as soon as it is started")

    async def _run(self, scope: anyio.CancelScope, started: asyncio.Future[None]) -> None:
        """Run the connection from the start of the server to its end."""
        problem = ""
        thread = connection_thread()
        thread.connected.add(self)
        started_at = anyio.current_time()
        try:
            with scope:
                async with Client(self._transport(scope)) as client:
                    self.offers = await _list_tools(client)
                    self._client, scope.deadline = client, math.inf
                    started.set_result(None)
                    await anyio.sleep_forever()
        except Exception as error:
            problem = _cause(error)
        finally:
            self._client = None
            thread.connected.discard(self)
            if not started.done():
                timed_out = anyio.current_time() - started_at >= START_SECONDS
                problem = problem or (
                    f"it was not ready within {START_SECONDS:g} s" if timed_out else "it ended before it was ready"
                )
                stderr = self._stderr.decode(errors="replace").strip()
                started.set_exception(
                    self._failure(f"{problem} (it wrote: {stderr.splitlines()[-1]})" if stderr else problem)
                )

    @contextlib.asynccontextmanager
    async def _transport(self, scope: anyio.CancelScope) -> AsyncIterator[Any]:
        """Open the transport to the server; when it ends, the connection ends."""

        def ended() -> None:
            self._client = None
            scope.cancel()

        async with contextlib.AsyncExitStack() as stack:
            if self.remote:
                read, write = await stack.enter_async_context(streamable_http_client(self.target))
            else:
                names = os.environ.get("PRACTICUM_MCP_ENV", "").split(",")
                extra = {name: os.environ[name] for name in names if name in os.environ}
                parameters = StdioServerParameters(command=self.command[0], args=self.command[1:], env=extra)
                with self._stderr_file(stack) as errors:
                    read, write = await stack.enter_async_context(stdio_client(parameters, errors))
            yield _EndNotifyingStream(read, ended), write

    def _stderr_file(self, stack: contextlib.AsyncExitStack) -> TextIO:
        """Return a file for the server's standard error, of which the last bytes are kept."""
        reading, writing = os.pipe()
        os.set_blocking(reading, False)
        loop = asyncio.get_running_loop()
        self._stderr = b""

        def read_stderr() -> None:
            try:
                piece = os.read(reading, 1 << 16)
            except BlockingIOError:
                return
            if not piece:
                loop.remove_reader(reading)
            self._stderr = (self._stderr + piece)[-STDERR_TAIL_BYTES:]

        def close_pipe() -> None:
            read_stderr()
            loop.remove_reader(reading)
            os.close(reading)

        loop.add_reader(reading, read_stderr)
        stack.callback(close_pipe)
        return os.fdopen(writing, "w")

    def _disconnect(self) -> None:
        self._client = None
        if self._scope is not None:
            self._scope.cancel()

    async def _stop_if_hung(self) -> None:
        """End a server that does not list its tools in time; the next call starts another."""
        client = self._client
        if client is None:
            return
        with anyio.move_on_after(PING_SECONDS), contextlib.suppress(Exception):
            await client.list_tools(cache_mode="refresh")
            return
        if client is self._client:
            self._disconnect()

    def _failure(self, text: str) -> ToolFailure:
        return ToolFailure(f"the MCP server '{self.target}' failed: {text}")


class _EndNotifyingStream:
    """A read stream that calls `ended` at its end; everything else is delegated to the stream."""

    def __init__(self, stream: Any, ended: Callable[[], None]) -> None:
        self.stream, self.ended = stream, ended

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)

    def __aiter__(self) -> _EndNotifyingStream:
        return self

    async def __anext__(self) -> Any:
        try:
            return await self.stream.__anext__()
        except StopAsyncIteration:
            self.ended()
            raise

    async def __aenter__(self) -> _EndNotifyingStream:
        await self.stream.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> bool | None:
        answer: bool | None = await self.stream.__aexit__(*error)
        return answer


def command_of(target: str) -> list[str]:
    """Split a command line; `python` is replaced by the interpreter that runs this."""
    try:
        words = shlex.split(target)
    except ValueError as error:
        raise UserError(f"The command of 'mcp:{target}' cannot be read: {error}.") from None
    if words and words[0] in ("python", "python3"):
        words[0] = sys.executable
    if not words or shutil.which(words[0]) is None:
        raise UserError(f"There is no program '{words[0] if words else ''}' to start 'mcp:{target}' with.")
    return words


async def _list_tools(client: Client) -> list[Any]:
    """Return all tools of a server, page by page."""
    page = await client.list_tools()
    tools = list(page.tools)
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        tools += page.tools
    return tools


def _cause(error: BaseException) -> str:
    """Return the text of the first innermost exception of an exception group."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def close_servers() -> None:
    """Stop all servers now; a tool that is called afterwards starts its server again."""
    for thread in list(_connection_threads.values()):
        thread.close()
