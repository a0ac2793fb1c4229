"""From a turn's request to its reply: the queue, the engine, the reader of tokens; the same for every API.

`TurnRunner.run` yields the pieces of a reply as they come. A whole answer is the same pieces joined (`complete`).
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, TypeVar

from jinja2 import TemplateError

from practicum.chat.formats.hermes import CLOSE_TAG, HermesFormat
from practicum.chat.renderer import LONG_TEXT, Renderer
from practicum.chat.response_format import JSON_SPACING, resolve_response_format
from practicum.engines.base import Engine, Generation, Request, SampledToken, Sampling
from practicum.engines.local.runner import STOP_WINDOW
from practicum.environment import Message, Observation
from practicum.errors import ContextFull, EngineError, UserError
from practicum.policy import NO_TASK
from practicum.serving.errors import APIError, bad_request
from practicum.serving.fair_queue import FairQueue
from practicum.serving.metrics import Metrics
from practicum.serving.reply_reader import ReplyReader, sampled_tokens
from practicum.serving.served_models import ServedModels
from practicum.serving.turn import (
    FUNCTION,
    REQUIRED,
    ChatMessage,
    Completion,
    CompletionChoice,
    Delta,
    Finish,
    TurnRequest,
    template_messages,
)
from practicum.trajectory import Span, derive_seed

MAX_SEED = 2**63 - 1
MIN_TEMPERATURE = 1e-5
"""Lower temperatures are greedy, as in vLLM: logits divided by them would leave the range of a float32."""
T = TypeVar("T")


@dataclass(frozen=True)
class ClientLimits:
    """What one client may take."""

    max_body_bytes: int = 16 << 20
    max_waiting: int = 1024
    """Requests that may wait for the engine."""
    seconds: float = 600.0
    """Seconds that a request may take, the wait included."""
    send_seconds: float = 60.0
    """Seconds in which a client must take what is sent to it."""
    max_choices: int = 128


@dataclass(frozen=True)
class PreparedTurn:
    """A turn that is ready for the engine."""

    model: str
    """The name that the answer states."""
    engine: Engine
    renderer: Renderer
    ids: tuple[int, ...]
    samplings: Sequence[Sampling]
    """One per choice."""
    adapter: str = ""
    session: str = ""
    fingerprint: str = ""
    conversation: tuple[Message, ...] = ()
    """The messages, for an engine that works on them and not on ids."""
    id: str = field(default_factory=lambda: secrets.token_hex(12))
    """The name of the answer."""
    response_format: Mapping[str, Any] | None = None
    recorded: Sequence[Generation] = ()
    """The replies, of a request that was answered before and is repeated."""
    complete: Callable[[Sequence[CompletionChoice], Sequence[Generation]], None] = lambda choices, generations: None
    """Called with the choices when all are there, before the last one is passed on."""


@dataclass(frozen=True, slots=True)
class TurnStarted:
    """The beginning of a reply: from here on nothing but the engine can fail."""

    id: str
    model: str
    created: int
    prompt_ids: tuple[int, ...]
    fingerprint: str
    renderer: Renderer


Event = TurnStarted | Delta | Finish


class Backend(Protocol):
    """What answers the requests of a key: the server's models, or an episode that is recorded."""

    def open(self, turn: TurnRequest) -> AbstractAsyncContextManager[PreparedTurn]:
        """Prepare a turn; an APIError where it cannot be answered."""

    def renderer(self, model: str) -> Renderer:
        """The renderer of a model, to count tokens."""

    def context(self, model: str) -> int:
        """Tokens that prompt and reply may have together."""


class ModelBackend:
    """Answers with the models of a server."""

    def __init__(self, models: ServedModels) -> None:
        self.models = models

    @contextlib.asynccontextmanager
    async def open(self, turn: TurnRequest) -> AsyncIterator[PreparedTurn]:
        with self.models.lease(turn.model) as model:
            ids = await run_in_thread_if_long(
                turn.num_characters, lambda: prompt_ids(turn, model.renderer, model.context)
            )  # fmt: skip
            sampling = turn_sampling(turn, Sampling(max_tokens=MAX_SEED), len(ids), model.context)
            seed = secrets.randbits(63) if turn.seed is None else turn.seed
            yield PreparedTurn(
                model=turn.model,
                engine=model.engine,
                renderer=model.renderer,
                ids=ids,
                samplings=[sampling.with_seed(choice_seed(seed, index)) for index in range(turn.n)],
                adapter=model.adapter,
                session=f"served#{secrets.token_hex(8)}",
                fingerprint=model.fingerprint,
                response_format=await turn_response_format(turn, model.renderer),
            )

    def renderer(self, model: str) -> Renderer:
        return self.models.get(model).renderer

    def context(self, model: str) -> int:
        return self.models.get(model).context


async def turn_response_format(turn: TurnRequest, renderer: Renderer) -> Mapping[str, Any] | None:
    """The form that a turn's replies must have: a forced call, a response format, or either of both; None: any text."""
    forced = turn.tool_choice.mode in (REQUIRED, FUNCTION)
    name, tools = turn.tool_choice.name, turn.tools
    tools = tuple(tool for tool in tools if not name or tool["function"]["name"] == name)
    form = turn.response_format
    if forced:
        form = {"type": "tool_calls"}
    elif form is not None and turn.may_call and form["type"] in ("json_object", "json_schema"):
        form = _call_or_json(form, tools)
    try:
        form = resolve_response_format(form, HermesFormat(), tools)
        if form is not None and not renderer.grammars.is_compiled(form):
            await asyncio.to_thread(renderer.grammars.matcher, form)
    except UserError as error:
        raise bad_request(str(error), "tools" if forced else turn.response_format_param) from None
    return form


def _call_or_json(form: Mapping[str, Any], tools: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """The grammar of a reply that is a tool call, or JSON of a schema."""
    schema = form["json_schema"]["schema"] if form["type"] == "json_schema" else {"type": "object"}
    call = HermesFormat().tool_call_grammar(tools).replace("start:", "reply:", 1)
    json_rule = f"json: %json {json.dumps({'x-guidance': JSON_SPACING, **schema})}"
    return {"type": "grammar", "grammar": f"start: reply | json\n{call}{json_rule}\n"}


def choice_seed(seed: int, index: int) -> int:
    """The seed of a choice: the first one has the request's own, so that it is what the engine samples under it."""
    return seed if index == 0 else derive_seed(seed, "choice", index)


def turn_sampling(turn: TurnRequest, default: Sampling, num_prompt: int, context: int) -> Sampling:
    """The sampling parameters of a turn; what it does not name is `default`'s."""
    if num_prompt >= context:
        raise bad_request(
            f"The prompt has {num_prompt} tokens; the model's window is {context}.", "messages",
            "context_length_exceeded",
        )  # fmt: skip
    for text in turn.stop:
        if not text or len(text) > STOP_WINDOW:
            raise bad_request(f"A stop string must have 1 to {STOP_WINDOW} characters.", "stop")
    is_greedy = turn.temperature is not None and turn.temperature < MIN_TEMPERATURE
    temperature = 0.0 if is_greedy else turn.temperature
    given_sampling: dict[str, Any] = {"temperature": temperature, "top_p": turn.top_p, "top_k": turn.top_k}
    chosen = replace(default, **{name: value for name, value in given_sampling.items() if value is not None})
    most = default.max_tokens if turn.max_tokens is None else turn.max_tokens
    stop = turn.stop if turn.tool_choice.parallel or not turn.may_call else (*turn.stop, CLOSE_TAG)
    return replace(chosen, max_tokens=min(most, context - num_prompt), stop=stop)


async def run_in_thread_if_long(num_characters: int, work: Callable[[], T]) -> T:
    """The result of rendering or encoding a text; of a long one in a thread: others are answered meanwhile."""
    return await asyncio.to_thread(work) if num_characters > LONG_TEXT else work()


def check_length(renderer: Renderer, texts: Iterable[str], context: int, param: str) -> None:
    """Refuse texts that cannot fit the window, before they are encoded."""
    if renderer.cannot_fit("".join(texts), context):
        raise bad_request(
            f"The prompt is too long; the model's window is {context} tokens.", param, "context_length_exceeded"
        )


def prompt_ids(turn: TurnRequest, renderer: Renderer, context: int) -> tuple[int, ...]:
    """The ids of a turn's prompt."""
    if turn.prompt_ids is not None:
        if not turn.prompt_ids:
            raise bad_request("The prompt is empty.", "prompt")
        return turn.prompt_ids
    check_messages(turn.messages, renderer, context)
    spans = render(renderer, template_messages(turn.messages), turn.tools if turn.tool_choice.mode != "none" else ())
    return tuple(token for span in spans for token in span.ids)


def check_messages(messages: Sequence[ChatMessage], renderer: Renderer, context: int) -> None:
    """Refuse messages that cannot fit the window; templates may trim contents and drop reasoning of an assistant."""
    texts = (message.text.strip() for message in messages if message.role != "assistant")
    check_length(renderer, texts, context, "messages")


def render(renderer: Renderer, messages: tuple[Message, ...], tools: Sequence[Mapping[str, Any]]) -> tuple[Span, ...]:
    """The spans of a first prompt; a template that lists tools below the system message gets an empty one."""
    try:
        try:
            return renderer.start(messages, tools)
        except TemplateError:
            if not tools or messages[0].role == "system":
                raise
            return renderer.start((Message("system", ""), *messages), tools)
    except UserError as error:
        raise bad_request(str(error), "tools" if tools else "messages", "unsupported_value") from None
    except (TemplateError, TypeError, ValueError) as error:
        raise bad_request(f"The chat template does not take these messages: {error}", "messages") from None


class TurnRunner:
    """Runs turns over the engine, as many at once as the queue lets through."""

    def __init__(self, queue: FairQueue, limits: ClientLimits, metrics: Metrics) -> None:
        self.queue, self.limits, self.metrics = queue, limits, metrics

    async def run(self, turn: TurnRequest, backend: Backend) -> AsyncGenerator[Event, None]:
        """Yield the beginning, the pieces of all choices, and the end of each; the same text in any grouping."""
        started = time.monotonic()
        async with contextlib.AsyncExitStack() as stack:
            try:
                async with asyncio.timeout(self.limits.seconds):
                    prepared = await stack.enter_async_context(backend.open(turn))
            except TimeoutError:
                raise APIError(504, "The prompt took too long to prepare.", None, "timeout") from None
            if prepared.recorded:
                for event in self._replay(prepared, turn):
                    yield event
                return
            try:
                async with asyncio.timeout(self.limits.seconds - (time.monotonic() - started)):
                    weight = await self.queue.acquire(turn.client, turn.n)
            except TimeoutError:
                raise APIError(504, "The request waited too long for the engine.", None, "timeout") from None
            except APIError:
                self.metrics.rejected += 1
                raise
            self.metrics.request_queue_time.observe(time.monotonic() - started)
            reasons: list[str] = []
            try:
                yield _turn_started(prepared)
                async with contextlib.aclosing(self._generate(turn, prepared, started)) as events:
                    async for event in events:
                        if isinstance(event, Finish):
                            reasons.append(event.reason)
                        yield event
            finally:
                for reason in (*reasons, *["abort"] * (turn.n - len(reasons))):
                    self.metrics.finished["stop" if reason == "tool_calls" else reason] += 1
                self.queue.release(weight, time.monotonic() - started)

    async def _generate(
        self, turn: TurnRequest, prepared: PreparedTurn, started: float
    ) -> AsyncGenerator[Delta | Finish, None]:
        events: asyncio.Queue[tuple[int, Sequence[SampledToken] | Generation | Exception]] = asyncio.Queue()
        tasks = [
            asyncio.get_running_loop().create_task(self._choice(turn, prepared, index, events))
            for index in range(turn.n)
        ]
        replies = _OpenChoices(turn, prepared)
        last_token: float | None = None
        try:
            while replies.num_open:
                left = self.limits.seconds - (time.monotonic() - started)
                try:
                    async with asyncio.timeout(left):
                        batch = [await events.get()]
                except TimeoutError:
                    raise APIError(504, "The request took too long.", None, "timeout") from None
                while not events.empty():
                    batch.append(events.get_nowait())
                if turn.stream:
                    last_token = self._observe_tokens(batch, started, last_token)
                else:
                    self._observe_whole(batch, started)
                for event in replies.read(batch):
                    yield event
            self._observe_end(replies, started)
        finally:
            self.metrics.prompt_tokens += len(prepared.ids)
            self.metrics.generation_tokens += replies.num_sampled
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    @staticmethod
    async def _choice(
        turn: TurnRequest, prepared: PreparedTurn, index: int, events: asyncio.Queue[tuple[int, Any]]
    ) -> None:
        request = Request(
            ids=prepared.ids,
            sampling=prepared.samplings[index],
            task=NO_TASK,
            observation=Observation(prepared.conversation[-1:]),
            conversation=prepared.conversation,
            tools=turn.tools,
            session=f"{prepared.session}/{index}" if index else prepared.session,
            adapter=prepared.adapter,
            top_logprobs=turn.top_logprobs,
            response_format=prepared.response_format,
            on_tokens=(lambda tokens: events.put_nowait((index, tokens))) if turn.stream else None,
        )
        try:
            events.put_nowait((index, await prepared.engine.generate(request)))
        except Exception as error:
            events.put_nowait((index, error))

    def _observe_tokens(
        self, batch: Sequence[tuple[int, Any]], started: float, last_token: float | None
    ) -> float | None:
        count = sum(len(item) for _, item in batch if isinstance(item, list))
        if not count:
            return last_token
        now = time.monotonic()
        if last_token is None:
            self.metrics.time_to_first_token.observe(now - started)
            count -= 1
        if count:
            self.metrics.inter_token_latency.observe((now - (last_token or now)) / count, count)
        return now

    def _observe_whole(self, batch: Sequence[tuple[int, Any]], started: float) -> None:
        """Observe replies that are not streamed: their tokens after the first one have the mean latency."""
        for _, item in batch:
            if isinstance(item, Generation) and item.first_token_time is not None:
                self.metrics.time_to_first_token.observe(item.first_token_time - started)
                if (count := len(item.ids) - 1) > 0:
                    self.metrics.inter_token_latency.observe((time.monotonic() - item.first_token_time) / count, count)

    def _observe_end(self, replies: _OpenChoices, started: float) -> None:
        self.metrics.e2e_request_latency.observe(time.monotonic() - started)
        self.metrics.prompt_tokens_per_request.observe(len(replies.prepared.ids))
        self.metrics.generation_tokens_per_request.observe(replies.num_sampled)

    @staticmethod
    def _replay(prepared: PreparedTurn, turn: TurnRequest) -> list[Event]:
        """The events of a request that was answered before."""
        replies = _OpenChoices(turn, replace(prepared, complete=lambda choices, generations: None))
        return [_turn_started(prepared), *replies.read(list(enumerate(prepared.recorded)))]

    async def complete(self, turn: TurnRequest, backend: Backend) -> Completion:
        """The whole answer."""
        choices = [CompletionChoice(index) for index in range(turn.n)]
        started: TurnStarted | None = None
        async with contextlib.aclosing(self.run(turn, backend)) as events:
            async for event in events:
                if isinstance(event, TurnStarted):
                    started = event
                elif isinstance(event, Delta):
                    choices[event.index].add(event)
                else:
                    choices[event.index].finish = event
        assert started is not None, "a turn begins before it ends"
        cached = max(choice.finish.usage.cached_tokens for choice in choices if choice.finish)
        return Completion(
            started.id, started.model, started.created, started.prompt_ids, cached, started.fingerprint,
            started.renderer, choices,
        )  # fmt: skip


def _turn_started(prepared: PreparedTurn) -> TurnStarted:
    return TurnStarted(
        prepared.id, prepared.model, int(time.time()), prepared.ids, prepared.fingerprint,
        prepared.renderer,
    )  # fmt: skip


class _OpenChoices:
    """The choices of a turn while they come."""

    def __init__(self, turn: TurnRequest, prepared: PreparedTurn) -> None:
        self.prepared, self.turn = prepared, turn
        prefix = f"call_{prepared.id}"
        self.readers = [
            ReplyReader(index, prepared.renderer, turn.stop, turn.may_call, f"{prefix}_{index}_")
            for index in range(turn.n)
        ]
        self.choices = [CompletionChoice(index) for index in range(turn.n)]
        self.generations: dict[int, Generation] = {}
        self.num_open = turn.n

    @property
    def num_sampled(self) -> int:
        """Tokens of all choices up to now."""
        return sum(len(choice.tokens) for choice in self.choices)

    def read(
        self, batch: Sequence[tuple[int, Sequence[SampledToken] | Generation | Exception]]
    ) -> list[Delta | Finish]:
        """The events of a batch of tokens and ended replies."""
        events: list[Delta | Finish] = []
        tokens: dict[int, list[SampledToken]] = {}
        for index, item in batch:
            if isinstance(item, Exception):
                raise _api_error(item) from item
            if isinstance(item, Generation):
                self.generations[index] = item
            else:
                tokens.setdefault(index, []).extend(item)
        for index in dict.fromkeys(index for index, _ in batch):
            events += self._read_choice(index, tokens.get(index, []))
        for event in events:
            if isinstance(event, Delta):
                self.choices[event.index].add(event)
            else:
                self.choices[event.index].finish = event
        if not self.num_open:
            self.prepared.complete(self.choices, [self.generations[index] for index in range(self.turn.n)])
        return events

    def _read_choice(self, index: int, tokens: list[SampledToken]) -> list[Delta | Finish]:
        """The events of one choice: of new tokens, and of its end where it has ended."""
        reader, generation = self.readers[index], self.generations.get(index)
        if generation is not None:
            tokens = sampled_tokens(generation)[reader.num_tokens :]
        events: list[Delta | Finish] = [reader.push(tokens)] if tokens else []
        if generation is not None:
            delta, finish = reader.finish(generation, len(self.prepared.ids))
            events += [delta, finish] if delta.parts else [finish]
            self.num_open -= 1
        return events


def _api_error(error: Exception) -> APIError:
    if isinstance(error, APIError):
        return error
    if isinstance(error, ContextFull):
        return bad_request(str(error), "messages", "context_length_exceeded")
    if isinstance(error, UserError):
        return bad_request(str(error), None)
    if isinstance(error, EngineError):
        return APIError(503, str(error), None, "engine_error", retry_after=1)
    return APIError(500, f"The engine failed: {type(error).__name__}.", None, "engine_error")
