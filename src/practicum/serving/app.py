"""The web application: routes, keys, and what all APIs have in common."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from practicum import __version__
from practicum.engines.local.engine import LocalEngine
from practicum.errors import UserError
from practicum.serving.anthropic_messages import Messages
from practicum.serving.body import Body, parse_json
from practicum.serving.dialect import APIRequest, Dialect
from practicum.serving.errors import APIError, bad_request, internal_error
from practicum.serving.fair_queue import FairQueue
from practicum.serving.http import ClientGone, EventStream, json_response, read_body, until_disconnect
from practicum.serving.metrics import Metrics
from practicum.serving.openai_chat import ChatCompletions, read_chat_turn
from practicum.serving.openai_completions import Completions
from practicum.serving.openai_responses import Responses
from practicum.serving.openapi import openapi
from practicum.serving.promotion import PromotionFollower
from practicum.serving.served_models import ServedModel, ServedModels
from practicum.serving.service import (
    Backend,
    ClientLimits,
    Event,
    ModelBackend,
    TurnRunner,
    check_length,
    prompt_ids,
    run_in_thread_if_long,
)
from practicum.serving.turn import Completion, TurnRequest

T = TypeVar("T")
Handler = Callable[[Request], Awaitable[Response]]
WAITING_IN_ENGINE_DIVISOR = 4
"""A quarter of a batch may wait in the engine itself, so that it never waits for the queue."""


@dataclass
class ModelServer:
    """The state of a server: its models, its queue, its keys. Without models it answers episodes only."""

    models: ServedModels | None
    limits: ClientLimits = field(default_factory=ClientLimits)
    api_keys: Sequence[str] = ()
    may_load_adapters: bool = True
    """Whether adapters can be loaded and unloaded through the API."""
    max_batch: int = 64
    metrics: Metrics = field(default_factory=Metrics)
    episodes: dict[str, Backend] = field(default_factory=dict)
    """What answers the requests of an episode, by the episode's key."""
    follower: PromotionFollower | None = None
    """What takes up newly promoted versions, on a server of promoted models."""
    tokens_as_ids: bool = False
    """Whether log-probs name tokens as token_id:N, unless a request says otherwise."""
    draining: bool = False

    def __post_init__(self) -> None:
        self.queue = FairQueue(self.max_batch + self.max_batch // WAITING_IN_ENGINE_DIVISOR, self.limits.max_waiting)
        self.runner = TurnRunner(self.queue, self.limits, self.metrics)
        self.backend = None if self.models is None else ModelBackend(self.models)
        self.responses = Responses()

    def authorize(self, request: Request) -> tuple[Backend, str]:
        """What answers a request, and whose it is."""
        scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
        key = bearer.strip() if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if key in self.episodes:
            return self.episodes[key], key
        allowed = any(hmac.compare_digest(key.encode(), api_key.encode()) for api_key in self.api_keys)
        if self.backend is None or (self.api_keys and not allowed):
            raise APIError(401, "The API key is missing or wrong.", None, "invalid_api_key")
        host = request.client.host if request.client else ""
        return self.backend, key or host

    def tokenize(self, backend: Backend, model: str, prompt: str | Sequence[int]) -> tuple[int, ...]:
        """The ids of a prompt; ids are checked against the vocabulary."""
        renderer = backend.renderer(model)
        if isinstance(prompt, str):
            check_length(renderer, [prompt], backend.context(model), "prompt")
            return tuple(renderer.encode(prompt)[0])
        size = len(renderer.tokenizer)
        if any(not 0 <= token < size for token in prompt):
            raise bad_request(f"Token ids must be from 0 to {size - 1}.", "prompt")
        return tuple(prompt)

    # -- turns ------------------------------------------------------------------------------------------------------

    def turn_handler(self, dialect: Dialect) -> Handler:
        """The handler of an API whose requests are turns."""

        async def handle(request: Request) -> Response:
            try:
                return await self._answer(request, dialect)
            except APIError as error:
                return json_response(dialect.error(error), error.status, error.headers)

        return handle

    async def _answer(self, request: Request, dialect: Dialect) -> Response:
        backend, client = self.authorize(request)
        data = await read_body(request, self.limits.max_body_bytes)
        if self.draining:
            raise APIError(503, "The server is shutting down.", None, "shutting_down", retry_after=1)

        def read() -> APIRequest:
            return dialect.read(
                Body(parse_json(data)), client, lambda model, prompt: self.tokenize(backend, model, prompt)
            )

        api_request = await self._run_in_thread_if_long(len(data), read)
        retry_count = request.headers.get("x-stainless-retry-count", "0")
        more: dict[str, Any] = {"client": client, "body_hash": hashlib.sha256(data).hexdigest()}
        more["is_retry"] = retry_count.isdecimal() and int(retry_count) > 0
        api_request = replace(api_request, turns=[replace(turn, **more) for turn in api_request.turns])
        if any(turn.n > self.limits.max_choices for turn in api_request.turns):
            raise bad_request(f"'n' may be at most {self.limits.max_choices}.", "n")
        if api_request.turn.stream:
            events = self._events(api_request, backend)
            first = await until_disconnect(request.receive, _first_event(events))
            texts = dialect.stream(api_request, _chain_events(first, events))
            return EventStream(texts, dialect, self.limits.send_seconds)
        completions = await until_disconnect(request.receive, self._complete(api_request, backend))
        return json_response(dialect.answer(api_request, completions))

    async def _complete(self, api_request: APIRequest, backend: Backend) -> list[Completion]:
        return [await self.runner.complete(turn, backend) for turn in api_request.turns]

    async def _events(self, api_request: APIRequest, backend: Backend) -> AsyncIterator[Event]:
        for turn in api_request.turns:
            async with contextlib.aclosing(self.runner.run(turn, backend)) as events:
                async for event in events:
                    yield event

    # -- everything else --------------------------------------------------------------------------------------------

    async def _body(self, request: Request) -> Body:
        return Body(parse_json(await read_body(request, self.limits.max_body_bytes)))

    async def _run_in_thread_if_long(self, num_characters: int, work: Callable[[], T]) -> T:
        """The result of reading or encoding a text, within the time that a request may take."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await run_in_thread_if_long(num_characters, work)
        except TimeoutError:
            raise APIError(504, "The request took too long to read.", None, "timeout") from None

    async def _prompt_ids(self, turn: TurnRequest, backend: Backend) -> tuple[int, ...]:
        renderer, context = backend.renderer(turn.model), backend.context(turn.model)
        return await self._run_in_thread_if_long(turn.num_characters, lambda: prompt_ids(turn, renderer, context))

    def _default_model(self) -> str:
        if self.models is None:
            raise bad_request("'model' is missing.", "model", "missing_required_parameter")
        return self.models.default.name

    async def count_tokens(self, request: Request) -> Response:
        """Anthropic's count of a prompt's tokens."""
        backend, _ = self.authorize(request)
        body = await self._body(request)
        turn = Messages().read_turn(body)
        body.finish()
        return json_response({"input_tokens": len(await self._prompt_ids(turn, backend))})

    async def tokenize_prompt(self, request: Request) -> Response:
        """The ids of a text, or of messages under the chat template."""
        backend, _ = self.authorize(request)
        body = await self._body(request)
        if body.values.get("messages") is not None:
            body.values.setdefault("model", self._default_model())
            turn = read_chat_turn(body)
            body.accept("return_token_strs")
            body.finish()
            model, ids = turn.model, await self._prompt_ids(turn, backend)
        else:
            model = body.text("model") or self._default_model()
            text = (body.require("prompt") and body.text("prompt")) or ""
            body.accept("add_special_tokens", "return_token_strs")
            body.finish()
            ids = await self._run_in_thread_if_long(len(text), lambda: self.tokenize(backend, model, text))
        answer: dict[str, Any] = {"count": len(ids), "max_model_len": backend.context(model), "tokens": list(ids)}
        if body.values.get("return_token_strs"):
            answer["token_strs"] = backend.renderer(model).tokenizer.convert_ids_to_tokens(list(ids))
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        backend, _ = self.authorize(request)
        body = await self._body(request)
        model = body.text("model") or self._default_model()
        tokens = body.require("tokens")
        body.finish()
        if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
            raise bad_request("'tokens' must be a list of token ids.", "tokens", "invalid_type")
        ids = list(self.tokenize(backend, model, tokens))
        tokenizer = backend.renderer(model).tokenizer
        text = await self._run_in_thread_if_long(
            len(ids), lambda: str(tokenizer.decode(ids, skip_special_tokens=False))
        )
        return json_response({"prompt": text})

    async def render_chat(self, request: Request) -> Response:
        """The prompt that a chat request gives, as text and as ids."""
        backend, _ = self.authorize(request)
        body = await self._body(request)
        turn = read_chat_turn(body)
        body.accept("stream_options", "logprobs", "return_token_ids", "return_tokens_as_token_ids")
        body.finish()
        renderer = backend.renderer(turn.model)
        ids = await self._prompt_ids(turn, backend)
        text = str(renderer.tokenizer.decode(list(ids), skip_special_tokens=False))
        return json_response({"model": turn.model, "prompt": text, "token_ids": list(ids)})

    async def list_models(self, request: Request) -> Response:
        self.authorize(request)
        models = [] if self.models is None else self.models.list_models()
        return json_response({"object": "list", "data": [_model_json(model) for model in models]})

    async def get_model(self, request: Request) -> Response:
        self.authorize(request)
        name = request.path_params["model"]
        for model in [] if self.models is None else self.models.list_models():
            if model.name == name:
                return json_response(_model_json(model))
        raise APIError(404, f"The model '{name}' does not exist.", "model", "model_not_found")

    async def load_adapter(self, request: Request) -> Response:
        """Load or replace an adapter while the server runs, as vLLM's endpoint of the name does."""
        models = self._models_to_change(request)
        body = await self._body(request)
        name, path = body.require("lora_name") and body.text("lora_name"), body.require("lora_path")
        body.accept("lora_path", "load_inplace", "base_model_name")
        body.finish()
        if not name or not isinstance(path, str) or "\0" in path:
            raise bad_request("'lora_name' and 'lora_path' must be strings that are not empty.", "lora_name")
        model = await models.load_adapter(name, path)
        return json_response(_model_json(model))

    async def unload_adapter(self, request: Request) -> Response:
        models = self._models_to_change(request)
        body = await self._body(request)
        name = body.require("lora_name") and body.text("lora_name")
        body.accept("lora_int_id")
        body.finish()
        models.remove_adapter(name or "")
        return json_response({"unloaded": name})

    def _models_to_change(self, request: Request) -> ServedModels:
        self.authorize(request)
        if self.models is None or not self.may_load_adapters:
            raise APIError(
                403, "Adapters can be loaded on a server for this machine only, or on one with an --api-key.", None,
                "adapters_fixed",
            )  # fmt: skip
        return self.models

    async def get_response(self, request: Request) -> Response:
        _, client = self.authorize(request)
        return json_response(self.responses.kept(client, request.path_params["response_id"]))

    async def delete_response(self, request: Request) -> Response:
        _, client = self.authorize(request)
        name = request.path_params["response_id"]
        self.responses.delete(client, name)
        return json_response({"id": name, "object": "response.deleted", "deleted": True})

    async def health(self, request: Request) -> Response:
        failures = (
            [] if self.models is None else [m.engine.failure for m in self.models.list_models() if m.engine.failure]
        )
        if failures or self.draining:
            return json_response({"status": failures[0] if failures else "shutting down"}, 503)
        return json_response({"status": "ok"})

    async def version(self, request: Request) -> Response:
        return json_response({"version": __version__})

    async def get_metrics(self, request: Request) -> Response:
        gauges: dict[str, float] = {"vllm:num_requests_running": self.queue.running}
        gauges["vllm:num_requests_waiting"] = self.queue.waiting
        counters: dict[str, float] = {}
        name = "episodes"
        if self.models is not None:
            name = self.models.default.name
        if self.models is not None and isinstance(engine := self.models.default.engine, LocalEngine):
            counters["vllm:prefix_cache_queries_total"] = engine.stats.reused + engine.stats.prefilled
            counters["vllm:prefix_cache_hits_total"] = engine.stats.reused
            counters["practicum:decode_steps_total"] = engine.stats.decode_steps
            counters["vllm:num_preemptions_total"] = engine.stats.preempted
            gauges["vllm:num_requests_running"] = engine.num_running
            gauges["vllm:num_requests_waiting"] += engine.num_waiting
            gauges["vllm:kv_cache_usage_perc"] = engine.kv_cache.usage(self.models.default.context)
            gauges["practicum:prefix_cache_bytes"] = engine.prefixes.bytes
        if self.follower is not None:
            gauges["practicum:promoted_version"] = self.follower.version
            counters["practicum:refused_versions_total"] = len(self.follower.refused)
        return Response(self.metrics.text(name, gauges, counters), media_type="text/plain; version=0.0.4")

    async def openapi(self, request: Request) -> Response:
        return json_response(
            openapi([] if self.models is None else [model.name for model in self.models.list_models()])
        )


def _model_json(model: ServedModel) -> dict[str, Any]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "practicum",
        "root": model.root,
        "parent": model.parent,
        "max_model_len": model.context,
        **({"version": model.version} if model.version is not None else {}),
    }


async def _first_event(events: AsyncIterator[Event]) -> Event:
    return await anext(events)


async def _chain_events(first: Event, rest: AsyncIterator[Event]) -> AsyncIterator[Event]:
    try:
        yield first
        async for event in rest:
            yield event
    finally:
        await rest.aclose()  # type: ignore[attr-defined]


def plain_handler(handler: Handler) -> Handler:
    """A handler whose errors are answered in OpenAI's shape."""

    async def handle(request: Request) -> Response:
        try:
            return await handler(request)
        except UserError as error:
            raise bad_request(str(error), None) from None

    return handle


async def _api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, APIError)
    return json_response(error.openai(), error.status, error.headers)


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    path, method = request.url.path, request.method
    text = f"There is no {path} here." if error.status_code == 404 else f"{method} {path}: {error.detail}."
    fault = APIError(error.status_code, text, None, "not_found" if error.status_code == 404 else None)
    return json_response(fault.openai(), error.status_code, error.headers)


async def _client_gone(request: Request, error: Exception) -> Response:
    return Response(status_code=499)  # nobody reads it


async def _unexpected_error(request: Request, error: Exception) -> Response:
    return json_response(internal_error(error).openai(), 500)


def make_app(server: ModelServer, hosts: Sequence[str] = ("*",), routes: Sequence[Route] = ()) -> Starlette:
    """The application; `hosts` are the host names that a request may be for."""
    turns: dict[str, Dialect] = {
        "/v1/chat/completions": ChatCompletions(server.tokens_as_ids),
        "/v1/completions": Completions(),
        "/v1/responses": server.responses,
        "/v1/messages": Messages(),
    }
    posts: dict[str, Handler] = {
        "/v1/messages/count_tokens": server.count_tokens,
        "/v1/chat/completions/render": server.render_chat,
        "/tokenize": server.tokenize_prompt,
        "/detokenize": server.detokenize,
        "/v1/load_lora_adapter": server.load_adapter,
        "/v1/unload_lora_adapter": server.unload_adapter,
    }
    gets: dict[str, Handler] = {
        "/v1/models": server.list_models,
        "/v1/models/{model:path}": server.get_model,
        "/v1/responses/{response_id}": server.get_response,
        "/health": server.health,
        "/version": server.version,
        "/metrics": server.get_metrics,
        "/openapi.json": server.openapi,
    }
    table = [
        *routes,
        *(Route(path, server.turn_handler(dialect), methods=["POST"]) for path, dialect in turns.items()),
        *(Route(path, plain_handler(handler), methods=["POST"]) for path, handler in posts.items()),
        *(Route(path, plain_handler(handler), methods=["GET"]) for path, handler in gets.items()),
        Route("/v1/responses/{response_id}", plain_handler(server.delete_response), methods=["DELETE"]),
    ]
    handlers: dict[Any, Any] = {
        APIError: _api_error,
        HTTPException: _http_error,
        ClientGone: _client_gone,
        Exception: _unexpected_error,
    }
    middleware = [Middleware(TrustedHostMiddleware, allowed_hosts=list(hosts))]
    app = Starlette(routes=table, exception_handlers=handlers, middleware=middleware)
    app.state.server = server
    return app
