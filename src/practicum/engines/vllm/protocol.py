"""What goes over the wire to a vLLM server: JSON on kept connections, completions with token ids."""

from __future__ import annotations

import http.client
import json
import math
import socket
import threading
import urllib.parse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from transformers import PreTrainedTokenizerBase

from practicum.engines.base import Sampling
from practicum.engines.local.stop_strings import STOP_WINDOW, StopStrings
from practicum.errors import EngineError, UserError
from practicum.trajectory import StopReason


class Refused(EngineError):
    """The server answered with an error."""

    def __init__(self, url: str, status: int, detail: str) -> None:
        super().__init__(f"{url} answered {status}: {detail}")
        self.status = status
        self.detail = detail


class Unreachable(EngineError):
    """No answer came: no connection, or one that broke."""


class Call:
    """One request under way; `abort` breaks its connection, on which the server stops sampling for it."""

    def __init__(self) -> None:
        self.connection: http.client.HTTPConnection | None = None
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True
        held = self.connection
        if held is not None and held.sock is not None:
            try:
                held.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # already gone


class HTTPConnection:
    """Requests to one server from any number of threads, each on a connection of its own that is used again."""

    def __init__(self, url: str, timeout: float = 600.0, key: str | None = None) -> None:
        self.url = url.rstrip("/").removesuffix("/v1")
        parts = urllib.parse.urlsplit(self.url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise UserError(
                f"actor_rollout_ref.rollout.vllm.url={url} is not a server's address; write http://HOST:PORT."
            )
        self._kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._place = (parts.hostname, parts.port)
        self._prefix = parts.path
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.timeout = timeout
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def get(self, path: str, timeout: float | None = None) -> Any:
        return self._send("GET", path, None, Call(), timeout)

    def post(self, path: str, body: Mapping[str, Any], call: Call | None = None) -> Any:
        """The answer's JSON, or its text where it is none."""
        return self._send("POST", path, json.dumps(body).encode(), call or Call(), None)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _send(self, method: str, path: str, data: bytes | None, call: Call, timeout: float | None) -> Any:
        while True:
            connection, used = self._take(timeout)
            call.connection = connection
            try:
                connection.request(method, self._prefix + path, data, self._headers)
                response = connection.getresponse()
                text = response.read()
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if used and not call.aborted and not isinstance(error, TimeoutError):
                    continue  # an idle connection that the server had given up; the seed makes asking twice harmless
                raise Unreachable(f"{self.url} did not answer: {type(error).__name__}: {error}") from None
            finally:
                call.connection = None
            with self._lock:
                self._idle.append(connection)
            if response.status >= 400:
                raise Refused(self.url, response.status, text[:600].decode("utf-8", "replace"))
            return _parsed(text)

    def _take(self, timeout: float | None) -> tuple[http.client.HTTPConnection, bool]:
        seconds = timeout or self.timeout
        with self._lock:
            if self._idle:
                connection = self._idle.pop()
                if connection.sock is not None:
                    connection.sock.settimeout(seconds)
                    return connection, True
        host, port = self._place
        return self._kind(host, port, timeout=seconds), False


def _parsed(text: bytes) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text.decode("utf-8", "replace")


def completion(
    model: str, ids: Sequence[int], sampling: Sampling, limit: int, end_ids: Sequence[int], salt: str
) -> dict[str, Any]:
    """A completion request that leaves nothing to the server's defaults.

    The salt is part of the server's prefix cache key: keys and values of one version are never used for another.
    """
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": limit,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": 0.0,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": sampling.seed % 2**63,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(end_ids),
        "ignore_eos": True,  # the ends are ours to name: those above
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "add_special_tokens": False,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
        "cache_salt": salt,
    }


@dataclass(frozen=True)
class Choice:
    """What came back for one prompt."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: str
    cached: int
    prompt_logprobs: tuple[float, ...] = ()


def read_choice(answer: Any, prompt: Sequence[int]) -> Choice:
    """The one choice of an answer, with ids and log-probs that belong together."""
    try:
        choice = answer["choices"][0]
        ids = tuple(int(token) for token in choice["token_ids"])
        logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
        heard = choice.get("prompt_token_ids")
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        rows = choice.get("prompt_logprobs") or ()
        scored = tuple(float(row[str(token)]["logprob"]) for row, token in zip(rows, prompt, strict=False) if row)
        result = Choice(ids, logprobs, str(choice["finish_reason"]), int(details.get("cached_tokens") or 0), scored)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"the server answered without token ids and log-probs ({type(error).__name__}: {error}); "
            "it must be a vLLM that knows return_token_ids"
        ) from None
    if heard is not None and list(heard) != list(prompt):
        raise EngineError(f"the server read a prompt of {len(heard)} ids, not the {len(prompt)} that were sent")
    if len(ids) != len(logprobs) or not ids:
        raise EngineError(f"the server answered with {len(ids)} ids and {len(logprobs)} log-probs")
    if not all(math.isfinite(value) for value in (*logprobs, *scored)):
        raise EngineError("the server answered with a log-prob that is not a number")
    if result.finish not in ("stop", "length"):
        raise EngineError(f"the server broke off the reply ({result.finish})")
    return result


def ending(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], end_ids: Sequence[int], stop: Sequence[str]
) -> tuple[int, StopReason | None]:
    """How many ids the local engine would have kept, and why it would have stopped there; None: it would go on."""
    whole = str(tokenizer.decode(list(ids), skip_special_tokens=False)) if stop else ""
    looked_for = [text for text in stop if text in whole]
    stops = StopStrings(tokenizer)
    for count, token in enumerate(ids, 1):
        if token in end_ids:
            return count, StopReason.END
        if looked_for and stops.reached(ids[max(0, count - STOP_WINDOW) : count], looked_for):
            return count, StopReason.STRING
    return len(ids), None
