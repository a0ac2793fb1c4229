"""An HTTP server with the routes of AgentGym's servers, so that AgentGym's clients can use these environments.

POST /create, /reset, /step, /close; GET /, /observation, /detail, /list_envs and the facts that an environment offers.
The names of ids, indices and texts are the environment's `ServerFields`. As in AgentGym, an error of an environment is
answered with status 200 and an `error`; an invalid request gets 400 or 404.

It is for programs on this machine: a request that names another host (a foreign page that points its own name here,
DNS rebinding) or comes from a web page is refused with 403.

Requests arrive on threads of their own; environments are only used by the event loop, one request at a time for each,
because not all engines are thread-safe.
"""

from __future__ import annotations

import asyncio
import email.message
import json
import threading
import urllib.parse
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from practicum.environments.agentgym.base import AgentGymEnvironment
from practicum.errors import UserError
from practicum.registry import environment_class, environment_maker

MAX_ENVIRONMENTS = 1024
"""AgentGym's clients never close their environments; beyond this number the least recently used one is closed."""
MAX_BODY_BYTES = 1 << 20
READ_TIMEOUT_SECONDS = 60.0
"""Seconds to wait for a client's next bytes before its connection is closed."""
LOOPBACK = ("127.0.0.1", "localhost", "::1")
ALL_ADDRESSES = ("", "0.0.0.0", "::")
Response = tuple[int, Any]


class RequestError(Exception):
    """An invalid request; its text is the `error` of the response."""


@dataclass
class Session:
    """One client's environment and its last response."""

    environment: AgentGymEnvironment
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last_response: dict[str, Any] | None = None
    details: dict[str, Any] = field(default_factory=dict)
    """The response to `/detail`: the response to the reset, updated by each step."""
    text: str = ""
    score: float = 0.0
    done: bool = False


class Sessions:
    """The sessions of all clients, by id."""

    def __init__(self, make: Callable[[], AgentGymEnvironment], limit: int = MAX_ENVIRONMENTS) -> None:
        self.make, self.limit = make, limit
        self.first = make()  # wrong settings and missing packages are errors at the start
        self.server_fields = self.first.server_fields
        self.by_id: dict[int, Session] = {}
        self._next_id = 0

    async def answer(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Response:
        """Return the status and the JSON of the response to one request."""
        name = path.strip("/")
        try:
            if method == "GET" and not name:
                return 200, f"This is environment {self.first.name}."
            if method == "GET" and name == "list_envs":
                return 200, list(self.by_id)
            if method == "GET" and name in ("observation", "detail", *self.server_fields.facts):
                return 200, await self.values(name, self._session_id(query))
            if method == "POST" and name in ("create", "reset", "step", "close"):
                handler = {"create": self.create, "reset": self.reset, "step": self.step, "close": self.close}[name]
                return 200, await handler(body)
        except (RequestError, UserError) as error:
            return 200, {"error": str(error)}
        except Exception as error:  # an environment that fails must not end the server
            return 200, {"error": f"{type(error).__name__}: {error}"}
        return 404, {"error": f"There is no {method} /{name} here."}

    async def create(self, body: Mapping[str, Any]) -> Any:
        session_id, self._next_id = self._next_id, self._next_id + 1
        if len(self.by_id) >= self.limit:
            await self._remove(next(iter(self.by_id)))
        environment = self.make()
        environment.omit_client_text()
        self.by_id[session_id] = Session(environment)
        if self.server_fields.bare:
            return session_id
        if not self.server_fields.started:
            return {self.server_fields.id: session_id}
        response: dict[str, Any] = await self.reset({self.server_fields.id: session_id})
        return response

    async def reset(self, body: Mapping[str, Any]) -> Any:
        session_id = self._session_id(body)
        session = self._session(session_id)
        index = body.get(self.server_fields.index)
        if index is None:  # the server's own choice, so it is one of the tasks
            count = session.environment.num_indices
            index = session_id if count is None else session_id % count
        if isinstance(index, bool) or not isinstance(index, int):
            raise RequestError(f"{self.server_fields.index} must be a whole number.")
        async with session.lock:
            reply = await session.environment.start(session.environment.task_at(index), 0)
            facts = {name: session.environment.fact(name) for name in self.server_fields.in_reset}
            values = {self.server_fields.text: reply.text, "reward": 0.0, "score": 0.0, "done": False, **facts}
            session.text, session.score, session.done = values[self.server_fields.text], 0.0, False
            session.last_response, session.details = values, dict(values)
        return [reply.text, None] if self.server_fields.bare else {self.server_fields.id: session_id, **values}

    async def step(self, body: Mapping[str, Any]) -> Any:
        session = self._session(self._session_id(body))
        action = body.get("action")
        if not isinstance(action, str):
            raise RequestError("action must be a text.")
        async with session.lock:
            if session.last_response is None:
                raise RequestError("Reset the environment before its first step.")
            reply = await session.environment.take(action)
            reward = sum(session.environment.reward_components(reply, again=session.done).values())
            session.text, session.score, session.done = reply.text, session.score + reward, reply.done
            facts = {name: session.environment.fact(name) for name in self.server_fields.in_step}
            values = {
                self.server_fields.text: reply.text,
                "reward": reward,
                "score": session.score,
                "done": reply.done,
                **facts,
            }
            session.last_response = {**values, "info": None} if self.server_fields.bare else values
            session.details.update(session.last_response)
            return session.last_response

    async def values(self, name: str, session_id: int) -> Any:
        session = self._session(session_id)
        async with session.lock:
            if session.last_response is None:
                raise RequestError("Reset the environment first.")
            if name == "observation":
                return session.text
            if name == "detail":
                return session.details
            return await session.environment.ask(name)

    async def close(self, body: Mapping[str, Any]) -> Any:
        session_id = self._session_id(body)
        if session_id not in self.by_id:
            return {"closed": False}
        await self._remove(session_id)
        return {"closed": True}

    async def close_all(self) -> None:
        for session_id in list(self.by_id):
            await self._remove(session_id)
        await self.first.close()

    async def _remove(self, session_id: int) -> None:
        session = self.by_id.pop(session_id)
        async with session.lock:
            await session.environment.close()

    def _session_id(self, parameters: Mapping[str, Any]) -> int:
        # Both spellings of the id are accepted, so that one client can use every environment.
        session_id = parameters.get(self.server_fields.id, parameters.get("id", parameters.get("env_idx")))
        try:
            return int(str(session_id))
        except ValueError:
            raise RequestError(f"{self.server_fields.id} must be the number that /create gave.") from None

    def _session(self, session_id: int) -> Session:
        session = self.by_id.pop(session_id, None)
        if session is None:
            raise RequestError(f"The {self.server_fields.id} {session_id} is not valid.")
        self.by_id[session_id] = session  # most recently used
        return session


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class EnvironmentServer:
    """The HTTP server of `Sessions`. Use it in a running event loop: `async with Server(sessions) as server`."""

    def __init__(self, sessions: Sessions, host: str = "127.0.0.1", port: int = 0) -> None:
        self.sessions = sessions
        self.hosts = None if host in ALL_ADDRESSES else {*LOOPBACK, host}
        """Host names that requests may name; None: any, for a server that listens on all addresses."""
        try:
            self._http = _Http((host, port), _handler(self))
        except OSError as error:
            raise UserError(f"Cannot listen on {host}:{port}: {error.strerror}; choose another --port.") from None
        self.loop: asyncio.AbstractEventLoop | None = None
        self._thread = threading.Thread(target=self._http.serve_forever, daemon=True)

    @property
    def address(self) -> str:
        host, port = self._http.server_address[:2]
        return f"http://{host!s}:{port}"

    async def __aenter__(self) -> EnvironmentServer:
        self.loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._http.shutdown)
        self._http.server_close()
        await self.sessions.close_all()


def _handler(server: EnvironmentServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One connection: reads a request and lets the event loop answer it."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body are sent together
        timeout = READ_TIMEOUT_SECONDS

        def do_GET(self) -> None:
            self._serve({})

        def do_POST(self) -> None:
            try:
                if self.headers.get("Transfer-Encoding"):
                    raise ValueError("a body needs its Content-Length")
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 <= length <= MAX_BODY_BYTES:
                    raise ValueError(f"a body may have {MAX_BODY_BYTES} bytes")
                body = json.loads(self.rfile.read(length) or b"{}")
                if body is not None and not isinstance(body, dict):
                    raise ValueError("a body must be a JSON object")
            except (ValueError, RecursionError) as error:
                self.close_connection = True
                self._write(400, {"error": f"The request cannot be read: {error}."})
                return
            self._serve(body or {})

        def _serve(self, body: Mapping[str, Any]) -> None:
            if (fault := foreign_request(self.headers, server.hosts)) is not None:
                self.close_connection = True
                self._write(403, {"error": fault})
                return
            try:
                url = urllib.parse.urlsplit(self.path)
            except ValueError as error:
                self._write(400, {"error": f"The request cannot be read: {error}."})
                return
            query = dict(urllib.parse.parse_qsl(url.query))
            assert server.loop is not None
            response = server.sessions.answer(self.command, url.path, query, body)
            try:
                self._write(*asyncio.run_coroutine_threadsafe(response, server.loop).result())
            except (CancelledError, RuntimeError):  # the loop is closed: the server is closing
                self.close_connection = True

        def _write(self, status: int, content: Any) -> None:
            # A lone surrogate has no UTF-8 form; as an escape it is JSON all the same.
            text = json.dumps(content, ensure_ascii=False).encode("utf-8", "backslashreplace")
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """Log nothing: one line per request would hide what matters."""

    return Handler


def foreign_request(headers: email.message.Message, hosts: Collection[str] | None) -> str | None:
    """Return why a request is refused: it names a host that is not ours, or a browser sent it for a web page."""
    if headers.get("Origin") is not None or headers.get("Sec-Fetch-Site", "none") != "none":
        return "This server is for programs; requests of web pages are refused."
    named = headers.get("Host", "")
    try:
        host = urllib.parse.urlsplit(f"//{named}").hostname or ""
    except ValueError:
        host = ""
    if hosts is not None and host not in hosts:
        return f"This server is not '{named}'; start it with --host to be reached by other names."
    return None


async def serve(name: str, host: str, port: int, options: Mapping[str, Any], on_start: Callable[[str], None]) -> None:
    """Serve one of AgentGym's environments until the task is cancelled; `on_start` gets the address."""
    if not issubclass(environment_class(name), AgentGymEnvironment):
        raise UserError(f"'{name}' is not an environment of AgentGym; only agentgym:… can be served.")
    make_environment, _ = environment_maker(name, None, options)

    def make() -> AgentGymEnvironment:
        environment = make_environment()
        assert isinstance(environment, AgentGymEnvironment)
        return environment

    async with EnvironmentServer(Sessions(make), host, port) as server:
        on_start(server.address)
        await asyncio.Event().wait()
