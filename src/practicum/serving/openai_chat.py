"""OpenAI's chat completions API."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from typing import Any

from practicum.engines.base import MAX_TOP_LOGPROBS, SampledToken
from practicum.environment import Usage
from practicum.serving.body import Body
from practicum.serving.dialect import APIRequest, Tokenize, sse
from practicum.serving.errors import APIError, bad_request
from practicum.serving.openai_fields import (
    HARMLESS,
    MAX_TOKENS,
    logprobs_json,
    read_messages,
    read_response_format,
    read_sampling,
    read_tool,
    read_tool_choice,
    usage_json,
)
from practicum.serving.service import Event, TurnStarted
from practicum.serving.turn import Completion, Delta, Finish, FunctionCall, TurnRequest

UNSUPPORTED: dict[str, Sequence[Any]] = {
    "audio": (), "modalities": (["text"],), "prediction": (), "web_search_options": (), "functions": ([],),
    "function_call": ("none", "auto"), "reasoning_effort": ("none",), "verbosity": ("medium",), "moderation": (),
    "chat_template_kwargs": ({},), "chat_template": (), "prompt_logprobs": (0,), "echo": (False,),
}  # fmt: skip
DONE = "data: [DONE]\n\n"


class ChatCompletions:
    """The dialect of /v1/chat/completions. `tokens_as_ids` is the default of `return_tokens_as_token_ids`."""

    def __init__(self, tokens_as_ids: bool = False) -> None:
        self.tokens_as_ids = tokens_as_ids

    def read(self, body: Body, client: str, tokenize: Tokenize) -> APIRequest:
        turn = read_chat_turn(body)
        options = body.object("stream_options")
        include_usage = False
        if options is not None:
            if not turn.stream:
                raise bad_request("'stream_options' is for streams only.", "stream_options")
            include_usage = options.boolean("include_usage")
            options.accept("include_obfuscation")
            options.finish()
        logprobs = body.boolean("logprobs")
        token_ids = body.boolean("return_token_ids")
        as_ids = body.boolean("return_tokens_as_token_ids", self.tokens_as_ids)
        body.finish()
        if turn.top_logprobs and not logprobs:
            raise bad_request("'top_logprobs' needs 'logprobs': true.", "top_logprobs")
        return APIRequest([turn], logprobs, token_ids, as_ids, include_usage)

    def answer(self, api_request: APIRequest, completions: Sequence[Completion]) -> dict[str, Any]:
        [completion] = completions
        renderer = completion.renderer
        choices = []
        for choice in completion.choices:
            calls = choice.calls
            message: dict[str, Any] = {"role": "assistant", "content": choice.text or (None if calls else "")}
            message["refusal"] = None
            if calls:
                message["tool_calls"] = [call_json(call) for call in calls]
            assert choice.finish is not None, "all choices have ended"
            rows = logprobs_json(renderer, choice.tokens, api_request.tokens_as_ids) if api_request.logprobs else []
            choices.append({
                "index": choice.index,
                "message": message,
                "logprobs": {"content": rows} if api_request.logprobs else None,
                "finish_reason": choice.finish.reason,
                **({"token_ids": choice.ids} if api_request.token_ids else {}),
            })  # fmt: skip
        return {
            "id": f"chatcmpl-{completion.id}",
            "object": "chat.completion",
            "created": completion.created,
            "model": completion.model,
            "system_fingerprint": completion.fingerprint,
            "choices": choices,
            "usage": usage_json(completion.usage),
            **({"prompt_token_ids": list(completion.prompt_ids)} if api_request.token_ids else {}),
        }

    async def stream(self, api_request: APIRequest, events: AsyncIterator[Event]) -> AsyncIterator[str]:
        chunks: _Chunks | None = None
        async for event in events:
            if isinstance(event, TurnStarted):
                chunks = _Chunks(api_request, event)
                for text in chunks.begin():
                    yield text
            elif chunks is not None:
                for text in chunks.write(event):
                    yield text
        if chunks is not None and api_request.include_usage:
            yield chunks.chunk([], usage=usage_json(chunks.usage))
        yield DONE

    def error(self, error: APIError) -> dict[str, Any]:
        return error.openai()

    def error_event(self, error: APIError) -> str:
        return sse(error.openai())


class _Chunks:
    """Writes the chunks of one stream."""

    def __init__(self, api_request: APIRequest, started: TurnStarted) -> None:
        self.api_request, self.renderer = api_request, started.renderer
        self.head = {
            "id": f"chatcmpl-{started.id}",
            "object": "chat.completion.chunk",
            "created": started.created,
            "model": started.model,
            "system_fingerprint": started.fingerprint,
        }
        self.prompt_ids = started.prompt_ids
        self.usage = Usage(len(started.prompt_ids), 0)
        self.num_calls = [0] * api_request.turn.n
        self.waiting: list[list[SampledToken]] = [[] for _ in range(api_request.turn.n)]
        """Tokens whose text is still held back."""

    def chunk(self, choices: list[dict[str, Any]], **more: Any) -> str:
        usage = {"usage": None} if self.api_request.include_usage else {}
        return sse({**self.head, "choices": choices, **usage, **more})

    def begin(self) -> list[str]:
        more = {"prompt_token_ids": list(self.prompt_ids)} if self.api_request.token_ids else {}
        delta = {"role": "assistant", "content": ""}
        choices = [
            {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}
            for index in range(self.api_request.turn.n)
        ]
        return [self.chunk([choice], **more) for choice in choices]

    def write(self, event: Delta | Finish) -> list[str]:
        waiting = self.waiting[event.index]
        if isinstance(event, Finish):
            used = event.usage
            cached = max(self.usage.cached_tokens, used.cached_tokens)
            self.usage = Usage(used.prompt_tokens, self.usage.completion_tokens + used.completion_tokens, cached)
            return [self._choice(event.index, {}, event.reason)]
        if self.api_request.logprobs or self.api_request.token_ids:
            waiting += event.tokens
        texts = []
        for part in event.parts:
            if isinstance(part, FunctionCall):
                call = {"index": self.num_calls[event.index], **call_json(part)}
                self.num_calls[event.index] += 1
                texts.append(self._choice(event.index, {"tool_calls": [call]}))
            else:
                texts.append(self._choice(event.index, {"content": part}))
        return texts

    def _choice(self, index: int, delta: dict[str, Any], reason: str | None = None) -> str:
        tokens, self.waiting[index] = self.waiting[index], []
        choice: dict[str, Any] = {"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}
        if self.api_request.logprobs and tokens:
            choice["logprobs"] = {"content": logprobs_json(self.renderer, tokens, self.api_request.tokens_as_ids)}
        if self.api_request.token_ids and tokens:
            choice["token_ids"] = [token.id for token in tokens]
        return self.chunk([choice])


def call_json(call: FunctionCall) -> dict[str, Any]:
    return {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}}


def read_chat_turn(body: Body) -> TurnRequest:
    """The turn of a chat request; the caller reads what concerns the form of the answer."""
    body.accept(*HARMLESS, "add_generation_prompt", "add_special_tokens", "skip_special_tokens")
    body.refuse(UNSUPPORTED)
    tools = []
    for tool in body.objects("tools"):
        kind, function = tool.require("type"), tool.object("function")
        if kind != "function" or function is None:
            raise bad_request(f"'{tool.name('type')}' must be function.", tool.name("type"), "unsupported_value")
        tools.append(read_tool(function))
        function.finish()
        tool.finish()
    parallel = body.boolean("parallel_tool_calls", True)
    limits = [body.integer(name, 1, MAX_TOKENS) for name in ("max_completion_tokens", "max_tokens")]
    return TurnRequest(
        model=str(body.text("model") or body.require("model")),
        messages=read_messages(body),
        tools=tuple(tools),
        tool_choice=read_tool_choice(body.get("tool_choice"), "tool_choice", tools, parallel),
        response_format=read_response_format(body.get("response_format"), "response_format"),
        n=body.integer("n", 1, 128) or 1,
        max_tokens=next((limit for limit in limits if limit is not None), None),
        top_logprobs=body.integer("top_logprobs", 0, MAX_TOP_LOGPROBS) or 0,
        stream=body.boolean("stream"),
        **read_sampling(body),
    )
