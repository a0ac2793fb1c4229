"""HTTP around the turns: size limits of bodies, clients that disconnect, timeouts of event streams."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from practicum.serving.dialect import Dialect, to_json
from practicum.serving.errors import APIError, bad_request, internal_error

logger = logging.getLogger(__name__)

T = TypeVar("T")


class ClientGone(Exception):
    """The client has closed the connection."""


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(to_json(value), status, headers, "application/json")


async def read_body(request: Request, limit: int) -> bytes:
    """The body of a request of JSON; an APIError where it is too long or of another type.

    The type is insisted on because a page of another site may not send it without asking.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":
        raise APIError(415, "The body must be application/json.", None, "invalid_content_type")
    data = bytearray()
    async for chunk in request.stream():
        data += chunk
        if len(data) > limit:
            raise APIError(413, f"The body is longer than {limit} bytes.", None, "request_too_large")
    if not data:
        raise bad_request("The body is empty.", None, "invalid_json")
    return bytes(data)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def until_disconnect(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of some work, which is cancelled where the client goes away first."""
    task, disconnected = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnected}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        task.cancel()
        disconnected.cancel()
        await asyncio.gather(task, disconnected, return_exceptions=True)


class EventStream(Response):
    """Server-sent events. A client that goes away, or takes nothing for `send_seconds`, ends the stream."""

    def __init__(self, texts: AsyncIterator[str], dialect: Dialect, send_seconds: float) -> None:
        super().__init__(None, 200, {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}, "text/event-stream")
        del self.headers["content-length"]
        self.texts, self.dialect, self.send_seconds = texts, dialect, send_seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with contextlib.suppress(ClientGone):
            await until_disconnect(receive, self._send_all(send))

    async def _send_all(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        texts = self.texts
        try:
            async for text in texts:
                await self._send(send, text)
        except APIError as error:
            await self._send(send, self.dialect.error_event(error))
        except ClientGone:
            raise
        except Exception as error:  # the status was sent long ago: the client gets the error within the stream
            logger.exception("a stream failed")
            await self._send(send, self.dialect.error_event(internal_error(error)))
        finally:
            if isinstance(texts, contextlib.AbstractAsyncContextManager) or hasattr(texts, "aclose"):
                await texts.aclose()
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _send(self, send: Send, text: str) -> None:
        try:
            async with asyncio.timeout(self.send_seconds):
                await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        except TimeoutError:
            raise ClientGone from None
