"""HTTP to an OpenAI-compatible server: one JSON request, tried again where that can help, with bounds on everything.

Nothing here blocks the event loop. A fault that may pass is tried again; a rate limit is waited for, for all requests
at once and for as long as the server asks, within a budget. A server that cannot be connected to is a UserError: it
would fail every episode, and a collection or evaluation continues where it stopped.
"""

from __future__ import annotations

import asyncio
import email.utils
import json
import os
import random
import ssl
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from practicum.errors import EngineError, UserError
from practicum.utils.concurrency import queued

if TYPE_CHECKING:
    import httpx

T = TypeVar("T")
FAULT_WAIT_SECONDS = (0.5, 2.0)
"""Waits before the second and the third try after a fault that may pass."""
CONNECT_WAIT_SECONDS = (0.5, 1.0, 2.0, 4.0, 8.0, 15.0)
"""Waits between tries to connect to a server that has answered before: one that restarts is given this long."""
FIRST_CONNECT_WAIT_SECONDS = (0.5, 1.0)
"""Waits between tries to connect to a server that has never answered: a refused connection is no slow server, and a
wrong address must be reported at once."""
RATE_LIMIT_WAIT_SECONDS = (1.0, 2.0, 4.0, 8.0, 16.0, 30.0)
"""Waits after rate limits without a Retry-After; the last one is repeated."""
RATE_LIMIT_BUDGET_SECONDS = 600.0
"""Seconds that one request waits for rate limits in all; they do not count against the reply's deadline."""
RATE_LIMIT_STATUS = 429
RETRY_STATUS = (408, 429, 500, 502, 503, 504)
MAX_FAILURES_IN_A_ROW = 32
"""Requests that may fail one after the other, without an answer in between, before the server counts as broken."""
ERROR_BODY_BYTES = 300
"""Bytes of an error's body that its message quotes."""
ERROR_BODY_SECONDS = 5.0
"""Seconds to wait for an error's body: the status is enough."""
MAX_ANSWER_BYTES = 8 * 2**20
"""Bytes of an answer. A reply of 100,000 tokens has less than 1 MiB."""


class Fault(Exception):
    """One try that failed and may succeed later; `retry_after` is the wait in seconds that the server asks for."""

    def __init__(self, message: str, status: int = 0, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.rate_limited = status == RATE_LIMIT_STATUS or retry_after is not None
        self.retry_after = retry_after


class ChatClient:
    """Asks one server for chat completions. The API key, if one is needed, comes from OPENAI_API_KEY.

    Redirects are not followed: the key is for the server that was named.
    """

    def __init__(self, base_url: str, timeout: float) -> None:
        """`base_url` ends before /chat/completions; `timeout` is in seconds, for each of connecting, sending and
        waiting for data."""
        self.url = base_url.rstrip("/") + "/chat/completions"
        self.timeout = timeout
        self._client: httpx.AsyncClient | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._resume_at = 0.0
        """Time of the loop until which the server's rate limit holds; no request is sent before."""
        self._num_failures = 0
        """Requests that failed since the last answer."""
        self._has_answered = False
        """Whether the server has ever answered, with whatever status."""

    async def first_choice(self, body: Mapping[str, Any], read: Callable[[Any], T]) -> T:
        """Return what `read` makes of the first choice of the answer; EngineError where it lacks what `read` needs."""
        answer = await self.post(body)
        try:
            return read(answer["choices"][0])
        except (KeyError, IndexError, TypeError, AttributeError) as error:
            raise EngineError(
                f"{self.url} answered without a usable choice ({type(error).__name__}: {error})"
            ) from None

    async def post(self, body: Mapping[str, Any]) -> Any:
        """Return the answer's JSON; raise EngineError where this request fails, UserError where every one would."""
        import httpx  # slow to import: only for those who use a server

        data = json.dumps(body).encode()
        fault_waits, num_connect_waits, rate_limit_waits = list(FAULT_WAIT_SECONDS), 0, 0
        budget = RATE_LIMIT_BUDGET_SECONDS
        while True:
            budget = await self._wait_for_rate_limit(budget)
            try:
                answer = await self._try_once(data)
                self._num_failures = 0
                return answer
            except httpx.ConnectError as error:
                connect_waits = CONNECT_WAIT_SECONDS if self._has_answered else FIRST_CONNECT_WAIT_SECONDS
                if num_connect_waits >= len(connect_waits):
                    raise UserError(
                        f"No server answers at {self.url} ({error}); start it and run the same command again: "
                        "what was done so far is kept."
                    ) from None
                await asyncio.sleep(connect_waits[num_connect_waits])
                num_connect_waits += 1
            except Fault as fault:
                if fault.rate_limited:
                    default = RATE_LIMIT_WAIT_SECONDS[min(rate_limit_waits, len(RATE_LIMIT_WAIT_SECONDS) - 1)]
                    wait = default if fault.retry_after is None else fault.retry_after
                    rate_limit_waits += 1
                    if wait > budget:
                        raise self._failure(f"{fault}; waited {RATE_LIMIT_BUDGET_SECONDS - budget:.0f} s") from None
                    self._resume_at = max(self._resume_at, asyncio.get_running_loop().time() + wait)
                elif fault_waits:
                    await asyncio.sleep(fault_waits.pop(0))
                else:
                    raise self._failure(str(fault)) from None

    def _failure(self, message: str) -> EngineError | UserError:
        """Return the error of a request that failed; a UserError if too many have failed one after the other."""
        self._num_failures += 1
        if self._num_failures < MAX_FAILURES_IN_A_ROW:
            return EngineError(message)
        return UserError(
            f"{self._num_failures} requests in a row failed (the last: {message}); look at the server and run the same "
            "command again: what was done so far is kept."
        )

    async def _wait_for_rate_limit(self, budget: float) -> float:
        """Wait until the rate limit is over; return what is left of the budget. The deadline in force is paused."""
        loop = asyncio.get_running_loop()
        start = loop.time()
        with queued():
            while (wait := self._resume_at - loop.time()) > 0:
                # Requests that all waited for the same moment must not arrive all at once.
                await asyncio.sleep(wait + random.uniform(0, min(1.0, wait / 4)))
        return budget - (loop.time() - start)

    async def _try_once(self, data: bytes) -> Any:
        """Send the request once; raise Fault where another try may help, EngineError where it cannot."""
        import httpx

        try:
            async with self.http_client().stream("POST", self.url, content=data, headers=headers()) as response:
                self._has_answered = True
                if response.is_success:
                    content = await _read(response, MAX_ANSWER_BYTES + 1)
                    if len(content) > MAX_ANSWER_BYTES:
                        raise EngineError(f"{self.url} answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
                    return json.loads(content)
                detail = await _error_detail(response)
                message = f"{self.url} answered {response.status_code}: {detail}"
                if response.status_code not in RETRY_STATUS:
                    raise EngineError(message)
                raise Fault(message, response.status_code, retry_after(response.headers.get("Retry-After")))
        except httpx.ConnectError:
            raise
        except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RecursionError) as error:
            raise Fault(f"{self.url} did not answer: {error or type(error).__name__}") from None

    def http_client(self) -> httpx.AsyncClient:
        """Return the client of the running event loop: connections belong to the loop that opened them."""
        import httpx

        loop = asyncio.get_running_loop()
        if self._client is None or self._loop is not loop:
            self._loop, self._resume_at = loop, 0.0
            limits = httpx.Limits(max_connections=None)  # the rollout decides how many requests run at once
            self._client = httpx.AsyncClient(timeout=self.timeout, limits=limits, **connection_options(self.url))
        return self._client

    async def close(self) -> None:
        client, self._client = self._client, None
        if client is not None and self._loop is asyncio.get_running_loop():
            await client.aclose()


async def _read(response: httpx.Response, max_bytes: int) -> bytes:
    """Return the body, or its first bytes if it has more than `max_bytes`."""
    content = bytearray()
    async for chunk in response.aiter_raw():  # as sent: a small compressed body can have any size unpacked
        content += chunk
        if len(content) >= max_bytes:
            break
    return bytes(content)


async def _error_detail(response: httpx.Response) -> str:
    """Return the beginning of an error's body, as far as it arrives in a few seconds."""
    try:
        async with asyncio.timeout(ERROR_BODY_SECONDS):
            content = await _read(response, ERROR_BODY_BYTES)
    except TimeoutError:
        return "(its body did not arrive)"
    return content[:ERROR_BODY_BYTES].decode("utf-8", "replace")


def retry_after(value: str | None) -> float | None:
    """Return the seconds that a Retry-After header asks for: a number, or a date."""
    if value is None:
        return None
    try:
        seconds = float(value)
    except ValueError:
        try:
            seconds = email.utils.parsedate_to_datetime(value).timestamp() - time.time()
        except ValueError:
            return None
    return max(0.0, seconds) if seconds == seconds else None


def headers() -> dict[str, str]:
    key = os.environ.get("OPENAI_API_KEY")
    return {
        "Content-Type": "application/json",
        "Accept-Encoding": "identity",
        **({"Authorization": f"Bearer {key}"} if key else {}),
    }


def connection_options(url: str) -> dict[str, Any]:
    """Return httpx's options: proxies and certificates as Python's own HTTP takes them from the environment.

    httpx by itself also reads ALL_PROXY, and fails on a SOCKS proxy there.
    """
    return {"proxy": _proxy(url), "verify": ssl.create_default_context(), "trust_env": False, "follow_redirects": False}


def _proxy(url: str) -> str | None:
    """Return the proxy that the environment names for a URL (http_proxy, https_proxy, no_proxy)."""
    address = urllib.parse.urlsplit(url)
    if urllib.request.proxy_bypass(address.hostname or ""):
        return None
    proxy = urllib.request.getproxies().get(address.scheme)
    return proxy if proxy is None or "://" in proxy else f"http://{proxy}"
