"""A vLLM server that runs already, as the engine of `practicum serve`: vLLM samples, everything else is ours.

Prompts go as ids and come back as ids with their log-probs, token by token, so that replies are rendered, read and
streamed as those of the local engine. A client that goes away closes its connection to vLLM, which then stops sampling.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import httpx
from transformers import PreTrainedTokenizerBase

from practicum.chat.formats.hermes import CLOSE_TAG, OPEN_TAG, TAGGED_CALL
from practicum.chat.renderer import Renderer
from practicum.chat.response_format import lark_grammar_of
from practicum.engines.base import Generation, Request, SampledToken, TopLogprobs
from practicum.engines.vllm.protocol import completion_body, cut_reply
from practicum.errors import ContextFull, EngineError, UserError
from practicum.trajectory import ActionSource

CACHE_SALT = "practicum"
TOKEN_ID = "token_id:"
"""How vLLM names a token by its id."""
ERROR_BODY_BYTES = 600
MAX_REQUESTS = 4096
"""Connections at once; the server's own queue is ahead of them."""
UNLOAD_SECONDS = 10.0
"""Time that the server gets at the end to unload the adapters that were loaded into it."""


class RunningVLLM:
    """Ids in, ids and log-probs out. The window, the name of its model and those of its adapters are the server's."""

    name = "vllm"
    failure: str | None = None

    def __init__(self, renderer: Renderer, url: str, key: str | None = None, timeout: float = 600.0) -> None:
        self.renderer = renderer
        self.url = url.rstrip("/").removesuffix("/v1")
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            answer = httpx.get(f"{self.url}/v1/models", headers=headers, timeout=30, trust_env=False)
            rows = answer.raise_for_status().json()["data"]
            [base] = [row for row in rows if not row.get("parent")]
            self.model_name, self.context = str(base["id"]), int(base["max_model_len"])
        except (httpx.HTTPError, httpx.InvalidURL, KeyError, TypeError, ValueError) as error:
            raise UserError(f"--vllm-url {url}: no vLLM server with one model answers there ({error}).") from None
        self.adapter_names = [str(row["id"]) for row in rows if row.get("parent")]
        self._loaded: set[str] = set()
        """Adapters that were loaded into the server here, and not by others."""
        self._check_tokenizer(headers)
        limits = httpx.Limits(max_connections=MAX_REQUESTS, max_keepalive_connections=MAX_REQUESTS)
        self._client = httpx.AsyncClient(
            base_url=self.url, headers=headers, timeout=timeout, limits=limits, trust_env=False
        )

    def _check_tokenizer(self, headers: Mapping[str, str]) -> None:
        text = f"Ids of {self.renderer.tokenizer.decode([self.renderer.close_id])} must be ours: 12 × 3 = 36."
        body = {"model": self.model_name, "prompt": text, "add_special_tokens": False}
        answer = httpx.post(f"{self.url}/tokenize", json=body, headers=headers, timeout=30, trust_env=False)
        own = self.renderer.tokenizer(text, add_special_tokens=False)["input_ids"]
        if answer.status_code == httpx.codes.OK and answer.json().get("tokens") != own:
            raise UserError(f"The server at {self.url} has another tokenizer than the model that was named.")

    # -- replies ----------------------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        sampling, end_ids = request.sampling, self.renderer.end_ids
        if len(request.ids) >= self.context:
            raise ContextFull(f"the prompt has {len(request.ids)} tokens; the server's window is {self.context}")
        most = min(sampling.max_tokens, self.context - len(request.ids))
        body = completion_body(
            request.adapter or self.model_name, request.ids, sampling, most, end_ids, CACHE_SALT
        ) | {"stream": True, "stream_options": {"include_usage": True}, "logprobs": request.top_logprobs}  # fmt: skip
        if request.top_logprobs:
            body["return_tokens_as_token_ids"] = True
        if request.response_format is not None:
            body["structured_outputs"] = structured_outputs(request.response_format, self.renderer.tokenizer)
        tokens: list[SampledToken] = []
        finish_reason, num_cached, first_token_time = "", 0, None
        async for chunk in self._chunks(body):
            for choice in chunk["choices"]:
                new = _tokens(choice, request.top_logprobs)
                tokens += new
                first_token_time = first_token_time or (time.monotonic() if new else None)
                if new and request.on_tokens is not None:
                    request.on_tokens(new)
                finish_reason = choice.get("finish_reason") or finish_reason
            details = (chunk.get("usage") or {}).get("prompt_tokens_details") or {}
            num_cached = int(details.get("cached_tokens") or num_cached)
        if finish_reason not in ("stop", "length") or not tokens:
            raise EngineError(f"the vLLM server broke off the reply ({finish_reason or 'without an end'})")
        ids = tuple(token.id for token in tokens)
        full = len(request.ids) + sampling.max_tokens > self.context
        count, reason = cut_reply(self.renderer.tokenizer, ids, end_ids, sampling, finish_reason, full)
        reply_tokens = tokens[:count]
        return Generation(
            ids=ids[:count],
            logprobs=tuple(token.logprob for token in reply_tokens),
            stop_reason=reason,
            policy_version=0,
            source=ActionSource.POLICY,
            prompt_cached=num_cached,
            top_logprobs=tuple(token.top for token in reply_tokens) if request.top_logprobs else (),
            first_token_time=first_token_time,
        )

    async def _chunks(self, body: dict[str, Any]) -> AsyncIterator[Any]:
        """The events of a streamed completion."""
        try:
            async with self._client.stream("POST", "/v1/completions", json=body) as answer:
                if answer.status_code != httpx.codes.OK:
                    raise _error(answer.status_code, (await answer.aread())[:ERROR_BODY_BYTES])
                async for line in answer.aiter_lines():
                    if line.startswith("data: {"):
                        chunk = json.loads(line[6:])
                        if "error" in chunk:
                            raise EngineError(f"the vLLM server failed: {chunk['error']}")
                        yield chunk
        except httpx.HTTPError as error:
            raise EngineError(f"the vLLM server at {self.url} did not answer: {type(error).__name__}") from None

    # -- adapters ---------------------------------------------------------------------------

    async def load_adapter(self, name: str, folder: str | Path) -> None:
        """Load an adapter into the server, which must see the same disk."""
        await self._post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(Path(folder).resolve())})
        self._loaded.add(name)

    async def unload_adapter(self, name: str) -> None:
        await self._post("/v1/unload_lora_adapter", {"lora_name": name})
        self._loaded.discard(name)

    async def model_names(self) -> set[str]:
        """The names that the server has now, its model's among them: others may load adapters into it too."""
        try:
            answer = await self._client.get("/v1/models")
            return {str(row["id"]) for row in answer.raise_for_status().json()["data"]}
        except (httpx.HTTPError, KeyError, TypeError, ValueError) as error:
            raise EngineError(f"the vLLM server at {self.url} listed no models: {type(error).__name__}") from None

    async def _post(self, path: str, body: Mapping[str, str]) -> None:
        try:
            answer = await self._client.post(path, json=dict(body))
        except httpx.HTTPError as error:
            raise EngineError(f"the vLLM server at {self.url} did not answer: {type(error).__name__}") from None
        if answer.status_code != httpx.codes.OK:
            raise UserError(
                f"The vLLM server at {self.url} refused {path} ({answer.text[:ERROR_BODY_BYTES]}); start it with "
                "--enable-lora and VLLM_ALLOW_RUNTIME_LORA_UPDATING=1, on the same disk."
            )

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        """Unload the adapters that were loaded here: the server keeps running, and the next start loads them again."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(UNLOAD_SECONDS):
                for name in sorted(self._loaded):
                    with contextlib.suppress(EngineError, UserError):
                        await self.unload_adapter(name)
        await self._client.aclose()


def structured_outputs(response_format: Mapping[str, Any], tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """A response format as vLLM's `structured_outputs`: always the grammar that the local engine follows.

    vLLM has one backend for structured outputs, which with `auto` the first request decides. A grammar that is marked
    as llguidance's is taken by the backend `guidance` alone, so that formats of all types can be mixed. Where the tags
    of a tool call are tokens of their own, they are named by id: to vLLM's llguidance such tokens are control tokens,
    which no text of a grammar matches.
    """
    grammar, own_tokens = lark_grammar_of(response_format), tokenizer.get_added_vocab()
    if OPEN_TAG in own_tokens and CLOSE_TAG in own_tokens:
        tagged = f"<[{own_tokens[OPEN_TAG]}]> call <[{own_tokens[CLOSE_TAG]}]>"
        grammar = grammar.replace(TAGGED_CALL, tagged)
    return {"grammar": grammar}


def _tokens(choice: Mapping[str, Any], num_top: int) -> list[SampledToken]:
    """The tokens of one event, with their log-probs and, where they were requested, the most likely ones."""
    ids: Sequence[int] = choice.get("token_ids") or ()
    logprobs = choice.get("logprobs") or {}
    values = logprobs.get("token_logprobs") or ()
    if len(values) != len(ids):
        raise EngineError("the server answered without token ids and log-probs; it must know return_token_ids")
    tops: Sequence[TopLogprobs] = [()] * len(ids)
    if num_top:
        tops = [_most_likely(row, num_top) for row in logprobs["top_logprobs"]]
    return [SampledToken(int(token), float(value), top) for token, value, top in zip(ids, values, tops, strict=True)]


def _most_likely(row: Mapping[str, float], num_top: int) -> TopLogprobs:
    pairs = [(int(name.removeprefix(TOKEN_ID)), float(value)) for name, value in row.items()]
    return tuple(sorted(pairs, key=lambda pair: (-pair[1], pair[0]))[:num_top])


def _error(status: int, content: bytes) -> Exception:
    detail = content.decode("utf-8", "replace")
    if status == httpx.codes.BAD_REQUEST:
        return ContextFull(detail) if "context length" in detail else UserError(f"The vLLM server refused it: {detail}")
    return EngineError(f"the vLLM server answered {status}: {detail}")
