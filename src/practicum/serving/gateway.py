"""The server that external agents talk to while their episodes run: on the loopback address, in this process.

It is there while an episode needs it, one per event loop, and answers nothing but episodes: the API key of a request
says which one it belongs to.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import tempfile
from collections import deque
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from practicum.chat.renderer import Renderer
from practicum.serving.app import ModelServer, make_app, plain_handler
from practicum.serving.body import Body, clean_text, parse_json
from practicum.serving.episode_recorder import EpisodeRecorder, PostedReward, episode_ended
from practicum.serving.errors import APIError, bad_request
from practicum.serving.http import json_response, read_body
from practicum.serving.server import listen, listen_at, serve_in_background
from practicum.serving.service import ClientLimits, PreparedTurn
from practicum.serving.turn import TurnRequest

MAX_ENDED = 10_000
"""Keys of ended episodes that are kept: a late request of one is answered with the error that it has ended."""
MAX_REQUESTS = 1 << 16
"""Requests at once: the engine has a queue of its own."""
MAX_SOCKET_FOLDER = 64
"""Bytes of the path of the folder for temporary files, at most, for a Unix socket below it: its path may have 107."""


class EndedEpisode:
    """What answers requests with the key of an episode that has ended."""

    def open(self, turn: TurnRequest) -> contextlib.AbstractAsyncContextManager[PreparedTurn]:
        raise episode_ended()

    def renderer(self, model: str) -> Renderer:
        raise episode_ended()

    def context(self, model: str) -> int:
        raise episode_ended()


ENDED = EndedEpisode()


class Gateway:
    """The server of the episodes of one event loop."""

    def __init__(self) -> None:
        limits = ClientLimits(max_waiting=MAX_REQUESTS, seconds=24 * 3600.0)
        self.server = ModelServer(None, limits, max_batch=MAX_REQUESTS)
        self.url = ""
        self._socket_path: Path | None = None
        self.num_users = 0
        self._tasks: dict[str, Mapping[str, Any]] = {}
        self._ended: deque[str] = deque()
        self._stack = contextlib.AsyncExitStack()
        self._lock = asyncio.Lock()

    async def enter(self) -> None:
        """Start the server with its first user."""
        async with self._lock:
            if self.num_users == 0:
                self.url = await self._stack.enter_async_context(
                    serve_in_background(self._app(), listen("127.0.0.1", 0), 1)
                )
            self.num_users += 1

    async def unix_socket(self) -> Path:
        """Return the path of a Unix socket of this server, for programs without a network; the first call makes it."""
        async with self._lock:
            if self._socket_path is None:
                usual = tempfile.gettempdir()
                parent = usual if len(os.fsencode(usual)) <= MAX_SOCKET_FOLDER else "/tmp"
                folder = tempfile.TemporaryDirectory(prefix="practicum-gateway-", dir=parent)
                path = Path(self._stack.enter_context(folder)) / "socket"
                await self._stack.enter_async_context(serve_in_background(self._app(), listen_at(path), 1))
                self._socket_path = path
            return self._socket_path

    @property
    def port(self) -> int:
        return int(self.url.rpartition(":")[2])

    async def leave(self) -> None:
        """Stop the server with its last user."""
        async with self._lock:
            self.num_users -= 1
            if not self.num_users:
                self._socket_path = None
                await self._stack.aclose()

    @contextlib.contextmanager
    def episode(self, recorder: EpisodeRecorder, task: Mapping[str, Any]) -> Any:
        """Answer the requests of an episode while the block runs; later ones get the error that it has ended."""
        self.server.episodes[recorder.key] = recorder
        self._tasks[recorder.key] = task
        try:
            yield
        finally:
            recorder.sealed = True
            del self._tasks[recorder.key]
            self.server.episodes[recorder.key] = ENDED  # not the recorder, which holds all tokens of the episode
            self._ended.append(recorder.key)
            if len(self._ended) > MAX_ENDED:
                del self.server.episodes[self._ended.popleft()]

    def _app(self) -> Starlette:
        routes = [
            Route("/episodes/{key}", plain_handler(self._get_task), methods=["GET"]),
            Route("/episodes/{key}/reward", plain_handler(self._post_reward), methods=["POST"]),
            Route("/episodes/{key}/answer", plain_handler(self._post_answer), methods=["POST"]),
        ]
        return make_app(self.server, ["127.0.0.1", "localhost"], routes)

    def _recorder(self, request: Request) -> EpisodeRecorder:
        recorder = self.server.episodes.get(request.path_params["key"])
        if recorder is ENDED:
            raise episode_ended()
        if not isinstance(recorder, EpisodeRecorder):
            raise APIError(404, "There is no such episode.", None, "episode_not_found")
        return recorder

    async def _body(self, request: Request) -> Body:
        return Body(parse_json(await read_body(request, self.server.limits.max_body_bytes)))

    async def _get_task(self, request: Request) -> Response:
        return json_response(self._tasks[self._recorder(request).key])

    async def _post_reward(self, request: Request) -> Response:
        """`{"reward": 1.0}`, for a turn with its `response_id`; `components` and `success` may be given."""
        recorder, body = self._recorder(request), await self._body(request)
        body.require("reward")
        reward = body.number("reward", -math.inf, math.inf)
        components = body.object("components")
        values = (
            {name: components.number(name, -math.inf, math.inf) for name in components.values} if components else {}
        )
        response_id = body.text("response_id")
        success = body.boolean("success") if body.get("success") is not None else None
        body.finish()
        if response_id is not None:
            response_id = response_id.rpartition("-")[2].rpartition("_")[2]  # chatcmpl-NAME, resp_NAME, msg_NAME
        numbers = {clean_text(name): value for name, value in values.items() if value is not None}
        recorder.post_reward(PostedReward(reward or 0.0, response_id, numbers, success))
        return json_response({"rewards": len(recorder.rewards)})

    async def _post_answer(self, request: Request) -> Response:
        """`{"answer": "12"}`: what the environment scores, instead of the last reply."""
        recorder, body = self._recorder(request), await self._body(request)
        answer = body.require("answer") and body.text("answer")
        body.finish()
        if answer is None:
            raise bad_request("'answer' must be a string.", "answer", "invalid_type")
        recorder.post_answer(answer)
        return json_response({"answer": answer})


_gateways: WeakKeyDictionary[asyncio.AbstractEventLoop, Gateway] = WeakKeyDictionary()


@contextlib.asynccontextmanager
async def shared_gateway() -> AsyncIterator[Gateway]:
    """The gateway of this event loop, which runs while anybody uses it."""
    loop = asyncio.get_running_loop()
    gateway = _gateways.setdefault(loop, Gateway())
    await gateway.enter()
    try:
        yield gateway
    finally:
        await asyncio.shield(gateway.leave())
