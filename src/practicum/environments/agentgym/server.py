"""An HTTP server that speaks the routes of AgentGym's own, so that AgentGym's clients can use a world from here.

POST /create, /reset, /step, /close; GET /, /observation, /detail, /list_envs and the facts that a world tells. How
ids, indices and texts are called is the world's `Wire`. As there, what goes wrong with an environment is answered
with status 200 and an `error`; a request that is none gets 400 or 404.

Requests come in on threads of their own; worlds are only ever touched by the event loop, one request at a time
for each, because not all engines can bear another thread.
"""

from __future__ import annotations

import asyncio
import json
import threading
import urllib.parse
from collections.abc import Callable, Mapping
from concurrent.futures import CancelledError
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from practicum.environments.agentgym.base import AgentGymEnvironment
from practicum.errors import UserError
from practicum.registry import environment_class, environment_maker

MAX_ENVIRONMENTS = 1024
"""AgentGym's clients never close; beyond so many the one longest unused is closed for them."""
MAX_BODY = 1 << 20
Answer = tuple[int, Any]


class Wrong(Exception):
    """What a client is told in `error`."""


@dataclass
class Room:
    """One client's world and what it last said."""

    world: AgentGymEnvironment
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    last: dict[str, Any] | None = None
    known: dict[str, Any] = field(default_factory=dict)
    """What `/detail` tells: all that was said at the reset, brought up to date by each step."""
    text: str = ""
    score: float = 0.0
    ended: bool = False


class House:
    """The worlds of all clients, by number."""

    def __init__(self, make: Callable[[], AgentGymEnvironment], limit: int = MAX_ENVIRONMENTS) -> None:
        self.make, self.limit = make, limit
        self.first = make()  # wrong settings and missing packages show at the start
        self.wire = self.first.wire
        self.rooms: dict[int, Room] = {}
        self._next = 0

    async def answer(self, method: str, path: str, query: Mapping[str, str], body: Mapping[str, Any]) -> Answer:
        """The status and JSON for one request."""
        name = path.strip("/")
        try:
            if method == "GET" and not name:
                return 200, f"This is environment {self.first.name}."
            if method == "GET" and name == "list_envs":
                return 200, list(self.rooms)
            if method == "GET" and name in ("observation", "detail", *self.wire.facts):
                return 200, await self.told(name, self._number(query))
            if method == "POST" and name in ("create", "reset", "step", "close"):
                act = {"create": self.create, "reset": self.reset, "step": self.step, "close": self.close}[name]
                return 200, await act(body)
        except (Wrong, UserError) as error:
            return 200, {"error": str(error)}
        except Exception as error:  # a world that fails must not take the others' server with it
            return 200, {"error": f"{type(error).__name__}: {error}"}
        return 404, {"error": f"There is no {method} /{name} here."}

    async def create(self, body: Mapping[str, Any]) -> Any:
        number, self._next = self._next, self._next + 1
        if len(self.rooms) >= self.limit:
            await self._remove(next(iter(self.rooms)))
        world = self.make()
        world.speak_plainly()
        self.rooms[number] = Room(world)
        if self.wire.bare:
            return number
        if not self.wire.started:
            return {self.wire.id: number}
        begun: dict[str, Any] = await self.reset({self.wire.id: number, self.wire.index: number})
        return begun

    async def reset(self, body: Mapping[str, Any]) -> Any:
        number = self._number(body)
        room = self._room(number)
        index = body.get(self.wire.index)
        if index is None:
            index = number
        if isinstance(index, bool) or not isinstance(index, int):
            raise Wrong(f"{self.wire.index} must be a whole number.")
        async with room.lock:
            reply = await room.world.start(room.world.task_at(index), 0)
            facts = {name: room.world.fact(name) for name in self.wire.in_reset}
            told = {self.wire.text: reply.text, "reward": 0.0, "score": 0.0, "done": False, **facts}
            room.text, room.score, room.ended = told[self.wire.text], 0.0, False
            room.last, room.known = told, dict(told)
        return [reply.text, None] if self.wire.bare else {self.wire.id: number, **told}

    async def step(self, body: Mapping[str, Any]) -> Any:
        room = self._room(self._number(body))
        action = body.get("action")
        if not isinstance(action, str):
            raise Wrong("action must be a text.")
        async with room.lock:
            if room.last is None:
                raise Wrong("Reset the environment before its first step.")
            reply = await room.world.take(action)
            reward = sum(room.world.pay(reply, again=room.ended).values())
            room.text, room.score, room.ended = reply.text, room.score + reward, reply.done
            facts = {name: room.world.fact(name) for name in self.wire.in_step}
            told = {self.wire.text: reply.text, "reward": reward, "score": room.score, "done": reply.done, **facts}
            room.last = {**told, "info": None} if self.wire.bare else told
            room.known.update(room.last)
            return room.last

    async def told(self, name: str, number: int) -> Any:
        room = self._room(number)
        async with room.lock:
            if room.last is None:
                raise Wrong("Reset the environment first.")
            if name == "observation":
                return room.text
            if name == "detail":
                return room.known
            return await room.world.ask(name)

    async def close(self, body: Mapping[str, Any]) -> Any:
        number = self._number(body)
        if number not in self.rooms:
            return {"closed": False}
        await self._remove(number)
        return {"closed": True}

    async def close_all(self) -> None:
        for number in list(self.rooms):
            await self._remove(number)
        await self.first.close()

    async def _remove(self, number: int) -> None:
        room = self.rooms.pop(number)
        async with room.lock:
            await room.world.close()

    def _number(self, asked: Mapping[str, Any]) -> int:
        # Either spelling of the id does, so that one client can talk to every world.
        number = asked.get(self.wire.id, asked.get("id", asked.get("env_idx")))
        try:
            return int(str(number))
        except ValueError:
            raise Wrong(f"{self.wire.id} must be the number that /create gave.") from None

    def _room(self, number: int) -> Room:
        room = self.rooms.pop(number, None)
        if room is None:
            raise Wrong(f"The {self.wire.id} {number} is not valid.")
        self.rooms[number] = room  # last in the line of those to be closed
        return room


class _Http(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 128


class Server:
    """The house behind a port. Use it within a running event loop: `async with Server(house, port=0) as server`."""

    def __init__(self, house: House, host: str = "127.0.0.1", port: int = 0) -> None:
        self.house = house
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

    async def __aenter__(self) -> Server:
        self.loop = asyncio.get_running_loop()
        self._thread.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await asyncio.to_thread(self._http.shutdown)
        self._http.server_close()
        await self.house.close_all()


def _handler(server: Server) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        """One connection: reads a request, lets the event loop answer it."""

        protocol_version = "HTTP/1.1"
        disable_nagle_algorithm = True
        wbufsize = -1  # headers and body leave in one piece

        def do_GET(self) -> None:
            self._serve({})

        def do_POST(self) -> None:
            try:
                length = int(self.headers.get("Content-Length") or 0)
                if not 0 <= length <= MAX_BODY:
                    raise ValueError(f"a body may have {MAX_BODY} bytes")
                body = json.loads(self.rfile.read(length) or b"{}")
                if body is not None and not isinstance(body, dict):
                    raise ValueError("a body must be a JSON object")
            except ValueError as error:
                self.close_connection = True
                self._write(400, {"error": f"The request cannot be read: {error}."})
                return
            self._serve(body or {})

        def _serve(self, body: Mapping[str, Any]) -> None:
            url = urllib.parse.urlsplit(self.path)
            query = dict(urllib.parse.parse_qsl(url.query))
            assert server.loop is not None
            coming = server.house.answer(self.command, url.path, query, body)
            try:
                self._write(*asyncio.run_coroutine_threadsafe(coming, server.loop).result())
            except (CancelledError, RuntimeError):  # the loop has gone: the server is closing
                self.close_connection = True

        def _write(self, status: int, content: Any) -> None:
            text = json.dumps(content, ensure_ascii=False).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: Any) -> None:
            """One line a request would drown what matters."""

    return Handler


async def serve(name: str, host: str, port: int, options: Mapping[str, Any], on_start: Callable[[str], None]) -> None:
    """Serve one of AgentGym's environments until the task is cancelled; `on_start` gets the address."""
    if not issubclass(environment_class(name), AgentGymEnvironment):
        raise UserError(f"'{name}' is not an environment of AgentGym; only agentgym:… can be served.")
    make_environment, _ = environment_maker(name, None, options)

    def make() -> AgentGymEnvironment:
        environment = make_environment()
        assert isinstance(environment, AgentGymEnvironment)
        return environment

    async with Server(House(make), host, port) as server:
        on_start(server.address)
        await asyncio.Event().wait()
