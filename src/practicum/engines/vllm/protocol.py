"""The protocol of a vLLM server: JSON over HTTP on kept connections, completions with token ids.

The connections are `http.client`'s and not an HTTP library's for one reason: a rollout that is cancelled must stop the
server from sampling on, also before the first byte of the answer, and the request waits in a thread.
`PendingCall.abort` shuts that thread's socket down; httpx gives no access to the socket of a request that waits for its
answer.
"""

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
from practicum.engines.local.runner import STOP_WINDOW, StopStrings
from practicum.errors import EngineError, UserError
from practicum.trajectory import StopReason

ERROR_BODY_BYTES = 600
"""Bytes of an error's body that its message quotes."""


MAX_ANSWER_BYTES = 256 * 2**20
"""Bytes of an answer. Ids and log-probs of a prompt of 100,000 tokens have less than 32 MiB."""


class ErrorStatus(EngineError):
    """The server answered with a status of 300 or above."""

    def __init__(self, url: str, status: int, detail: str) -> None:
        super().__init__(f"{url} answered {status}: {detail}")
        self.status = status
        self.detail = detail


class Unreachable(EngineError):
    """No answer came: there was no connection, or it broke."""


class PendingCall:
    """One request that waits for its answer; `abort` breaks its connection, on which the server stops sampling."""

    def __init__(self) -> None:
        self.connection: http.client.HTTPConnection | None = None
        self.aborted = False

    def abort(self) -> None:
        self.aborted = True
        connection = self.connection
        if connection is not None and connection.sock is not None:
            try:
                connection.sock.shutdown(socket.SHUT_RDWR)
            except OSError:
                return  # already closed


class ConnectionPool:
    """Requests to one server from any number of threads, each on its own connection; idle ones are used again."""

    def __init__(self, url: str, timeout: float = 600.0, key: str | None = None) -> None:
        """`timeout` is in seconds per socket operation; `key` is sent as a bearer token."""
        self.url = url.rstrip("/").removesuffix("/v1")
        address = urllib.parse.urlsplit(self.url)
        if address.scheme not in ("http", "https") or not address.hostname:
            raise UserError(
                f"actor_rollout_ref.rollout.vllm.url={url} is not a server's address; write http://HOST:PORT."
            )
        is_https = address.scheme == "https"
        self._connection_class = http.client.HTTPSConnection if is_https else http.client.HTTPConnection
        self._address = (address.hostname, address.port)
        self._prefix = address.path
        self._headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.timeout = timeout
        self._idle: list[http.client.HTTPConnection] = []
        self._lock = threading.Lock()

    def get(self, path: str, timeout: float | None = None) -> Any:
        """Return the answer's JSON, or its text where it is not JSON."""
        return self._send("GET", path, None, PendingCall(), timeout)

    def post(self, path: str, body: Mapping[str, Any], call: PendingCall | None = None) -> Any:
        """Return the answer's JSON, or its text where it is not JSON."""
        return self._send("POST", path, json.dumps(body).encode(), call or PendingCall(), None)

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def _send(self, method: str, path: str, data: bytes | None, call: PendingCall, timeout: float | None) -> Any:
        while True:
            connection, reused = self._take_connection(timeout)
            call.connection = connection
            try:
                connection.request(method, self._prefix + path, data, self._headers)
                response = connection.getresponse()
                content = response.read(MAX_ANSWER_BYTES + 1)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if reused and not call.aborted and not isinstance(error, TimeoutError):
                    continue  # an idle connection that the server had closed; the seed makes asking twice harmless
                raise Unreachable(f"{self.url} did not answer: {type(error).__name__}: {error}") from None
            finally:
                call.connection = None
            if len(content) > MAX_ANSWER_BYTES:
                connection.close()
                raise EngineError(f"{self.url} answered with more than {MAX_ANSWER_BYTES >> 20} MiB")
            with self._lock:
                self._idle.append(connection)
            if response.status >= 300:  # redirects are not followed: the key is for the server that was named
                detail = content[:ERROR_BODY_BYTES].decode("utf-8", "replace")
                raise ErrorStatus(self.url, response.status, detail)
            return _json_or_text(content)

    def _take_connection(self, timeout: float | None) -> tuple[http.client.HTTPConnection, bool]:
        """Return an idle connection and True, or a new one and False."""
        seconds = timeout or self.timeout
        with self._lock:
            if self._idle:
                connection = self._idle.pop()
                if connection.sock is not None:
                    connection.sock.settimeout(seconds)
                    return connection, True
        host, port = self._address
        return self._connection_class(host, port, timeout=seconds), False


def _json_or_text(content: bytes) -> Any:
    try:
        return json.loads(content)
    except (ValueError, RecursionError):
        return content.decode("utf-8", "replace")


def completion_body(
    model: str, ids: Sequence[int], sampling: Sampling, max_tokens: int, end_ids: Sequence[int], salt: str
) -> dict[str, Any]:
    """Return the body of a completion request that leaves nothing to the server's defaults.

    The salt is part of the server's prefix cache key: keys and values of one version are never used for another.
    """
    return {
        "model": model,
        "prompt": list(ids),
        "max_tokens": max_tokens,
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repetition_penalty": 1.0,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "seed": sampling.seed % 2**63,
        "stop": list(sampling.stop),
        "include_stop_str_in_output": True,
        "stop_token_ids": list(end_ids),
        "ignore_eos": True,  # the end tokens are those named above
        "skip_special_tokens": False,
        "spaces_between_special_tokens": False,
        "add_special_tokens": False,
        "logprobs": 0,  # of the sampled token alone
        "return_token_ids": True,
        "cache_salt": salt,
    }


@dataclass(frozen=True)
class Choice:
    """The server's answer to one prompt: ids and log-probs of the same length."""

    ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish_reason: str
    num_cached_tokens: int
    prompt_logprobs: tuple[float, ...] = ()
    """Of the prompt's tokens but the first, where they were requested."""


def read_choice(answer: Any, prompt: Sequence[int]) -> Choice:
    """Return the one choice of an answer; raise EngineError where ids, log-probs or prompt do not fit together."""
    try:
        choice = answer["choices"][0]
        ids = tuple(int(token) for token in choice["token_ids"])
        logprobs = tuple(float(value) for value in choice["logprobs"]["token_logprobs"])
        echoed_prompt = choice.get("prompt_token_ids")
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        rows = choice.get("prompt_logprobs") or ()
        prompt_logprobs = tuple(
            float(row[str(token)]["logprob"]) for row, token in zip(rows, prompt, strict=False) if row
        )
        num_cached_tokens = int(details.get("cached_tokens") or 0)
        result = Choice(ids, logprobs, str(choice["finish_reason"]), num_cached_tokens, prompt_logprobs)
    except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
        raise EngineError(
            f"the server answered without token ids and log-probs ({type(error).__name__}: {error}); "
            "it must be a vLLM that knows return_token_ids"
        ) from None
    if echoed_prompt is not None and list(echoed_prompt) != list(prompt):
        raise EngineError(f"the server read a prompt of {len(echoed_prompt)} ids, not the {len(prompt)} that were sent")
    if len(ids) != len(logprobs) or not ids:
        raise EngineError(f"the server answered with {len(ids)} ids and {len(logprobs)} log-probs")
    if not all(math.isfinite(value) for value in (*logprobs, *prompt_logprobs)):
        raise EngineError("the server answered with a log-prob that is not a number")
    if result.finish_reason not in ("stop", "length"):
        raise EngineError(f"the server broke off the reply ({result.finish_reason})")
    return result


def cut_reply(
    tokenizer: PreTrainedTokenizerBase,
    ids: Sequence[int],
    end_ids: Sequence[int],
    sampling: Sampling,
    finish_reason: str,
    context_is_full: bool,
) -> tuple[int, StopReason]:
    """Return how many ids of a reply the local engine would have kept, and why it ends there; `context_is_full` says
    whether the window and not the request's own limit was the limit of its length."""
    count, reason = find_stop(tokenizer, ids, end_ids, sampling.stop)
    if reason is None and finish_reason == "length":
        reason = StopReason.CONTEXT if context_is_full else StopReason.LENGTH
    return count, reason or (StopReason.STRING if sampling.stop else StopReason.END)


def find_stop(
    tokenizer: PreTrainedTokenizerBase, ids: Sequence[int], end_ids: Sequence[int], stop: Sequence[str]
) -> tuple[int, StopReason | None]:
    """Return how many ids the local engine would have kept, and the reason why it would have stopped there.

    The reason is None where neither an end token nor a stop string is in the ids.
    """
    text = str(tokenizer.decode(list(ids), skip_special_tokens=False)) if stop else ""
    contained = [string for string in stop if string in text]
    stops = StopStrings(tokenizer)
    for count, token in enumerate(ids, 1):
        if token in end_ids:
            return count, StopReason.END
        if contained and stops.reached(ids[max(0, count - STOP_WINDOW) : count], contained):
            return count, StopReason.STRING
    return len(ids), None
