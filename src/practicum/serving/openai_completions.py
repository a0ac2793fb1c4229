"""OpenAI's completions API: a prompt as text or ids, without a chat template."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from practicum.chat.renderer import Renderer
from practicum.engines.base import MAX_TOP_LOGPROBS, SampledToken
from practicum.environment import Usage
from practicum.serving.body import Body
from practicum.serving.dialect import APIRequest, Tokenize, sse
from practicum.serving.errors import APIError, bad_request
from practicum.serving.openai_chat import DONE
from practicum.serving.openai_fields import (
    HARMLESS,
    MAX_TOKENS,
    read_response_format,
    read_sampling,
    token_text,
    usage_json,
)
from practicum.serving.service import Event, TurnStarted
from practicum.serving.turn import Completion, Finish, TurnRequest

DEFAULT_MAX_TOKENS = 16
"""The API's own default."""
MAX_PROMPTS = 256
UNSUPPORTED: dict[str, Sequence[Any]] = {
    "suffix": ("",), "echo": (False,), "best_of": (1,), "prompt_logprobs": (0,), "prompt_embeds": (),
    "truncate_prompt_tokens": (),
}  # fmt: skip


class Completions:
    """The dialect of /v1/completions."""

    def read(self, body: Body, client: str, tokenize: Tokenize) -> APIRequest:
        body.accept(*HARMLESS, "add_special_tokens", "skip_special_tokens")
        body.refuse(UNSUPPORTED)
        model = str(body.text("model") or body.require("model"))
        top = body.integer("logprobs", 0, MAX_TOP_LOGPROBS)
        options, stream = body.object("stream_options"), body.boolean("stream")
        include_usage = False
        if options is not None:
            include_usage = options.boolean("include_usage")
            options.accept("include_obfuscation")
            options.finish()
        common: dict[str, Any] = {
            "n": body.integer("n", 1, 128) or 1,
            "max_tokens": body.integer("max_tokens", 1, MAX_TOKENS) or DEFAULT_MAX_TOKENS,
            "top_logprobs": top or 0,
            "stream": stream,
            "response_format": read_response_format(body.get("response_format"), "response_format"),
            **read_sampling(body),
        }
        token_ids = body.boolean("return_token_ids")
        prompts = _prompts(body.require("prompt"))
        body.finish()
        turns = [TurnRequest(model, prompt_ids=tokenize(model, prompt), **common) for prompt in prompts]
        return APIRequest(turns, top is not None, token_ids, include_usage=include_usage)

    def answer(self, api_request: APIRequest, completions: Sequence[Completion]) -> dict[str, Any]:
        first = completions[0]
        renderer = first.renderer
        choices = []
        for number, completion in enumerate(completions):
            for choice in completion.choices:
                assert choice.finish is not None, "all choices have ended"
                index = number * api_request.turn.n + choice.index
                more = {"prompt_token_ids": list(completion.prompt_ids)} if api_request.token_ids else {}
                row = _choice(api_request, renderer, index, choice.text, choice.tokens, 0, choice.finish.reason)
                choices.append({**row, **more})
        usages = [completion.usage for completion in completions]
        total = Usage(
            sum(usage.prompt_tokens for usage in usages),
            sum(usage.completion_tokens for usage in usages),
            sum(usage.cached_tokens for usage in usages),
        )
        head = {"id": f"cmpl-{first.id}", "object": "text_completion", "created": first.created, "model": first.model}
        return {**head, "choices": choices, "usage": usage_json(total)}

    async def stream(self, api_request: APIRequest, events: AsyncIterator[Event]) -> AsyncIterator[str]:
        """Prompts are answered one after the other; `events` has a beginning for each."""
        number, renderer = -1, None
        head: dict[str, Any] = {}
        total = Usage(0, 0)
        offsets: dict[int, int] = {}
        waiting: dict[int, list[SampledToken]] = {}
        async for event in events:
            if isinstance(event, TurnStarted):
                number += 1
                total = Usage(total.prompt_tokens + len(event.prompt_ids), total.completion_tokens)
                renderer = event.renderer
                head = head or {"id": f"cmpl-{event.id}", "object": "text_completion", "created": event.created,
                                "model": event.model}  # fmt: skip
                continue
            assert renderer is not None, "a turn begins before it ends"
            index, reason, text = number * api_request.turn.n + event.index, None, ""
            if isinstance(event, Finish):
                reason = event.reason
                total = Usage(total.prompt_tokens, total.completion_tokens + event.usage.completion_tokens)
            else:
                text = "".join(part for part in event.parts if isinstance(part, str))
                waiting.setdefault(index, []).extend(event.tokens)
            if text or reason:
                tokens, offset = waiting.pop(index, []), offsets.get(index, 0)
                offsets[index] = offset + sum(len(token_text(renderer, token.id)[0]) for token in tokens)
                row = _choice(api_request, renderer, index, text, tokens, offset, reason)
                yield sse({**head, "choices": [row], **({"usage": None} if api_request.include_usage else {})})
        if api_request.include_usage:
            yield sse({**head, "choices": [], "usage": usage_json(total)})
        yield DONE

    def error(self, error: APIError) -> dict[str, Any]:
        return error.openai()

    def error_event(self, error: APIError) -> str:
        return sse(error.openai())


def _choice(
    api_request: APIRequest,
    renderer: Renderer,
    index: int,
    text: str,
    tokens: Sequence[SampledToken],
    offset: int,
    reason: str | None,
) -> dict[str, Any]:
    logprobs = None
    if api_request.logprobs:
        texts = [token_text(renderer, token.id)[0] for token in tokens]
        offsets = [offset + sum(map(len, texts[:index])) for index in range(len(texts))]
        top = [{token_text(renderer, other)[0]: value for other, value in token.top} for token in tokens]
        logprobs = {
            "tokens": texts,
            "token_logprobs": [token.logprob for token in tokens],
            "top_logprobs": top if api_request.turn.top_logprobs else None,
            "text_offset": offsets,
        }
    more = {"token_ids": [token.id for token in tokens]} if api_request.token_ids else {}
    return {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason, **more}


def _prompts(value: Any) -> list[str | list[int]]:
    """A text, ids, a list of texts, or a list of ids."""
    if isinstance(value, str) or _is_ids(value):
        return [value]
    kinds = (lambda prompt: isinstance(prompt, str), _is_ids)
    if isinstance(value, list) and 0 < len(value) <= MAX_PROMPTS and any(all(map(kind, value)) for kind in kinds):
        return list(value)
    raise bad_request(
        f"'prompt' must be a string, a list of token ids, or a list of 1 to {MAX_PROMPTS} of either.", "prompt",
        "invalid_type",
    )  # fmt: skip


def _is_ids(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and all(type(token) is int for token in value)
