"""A runner: what computes for the engine's scheduler on one kind of device.

`LocalEngine` decides which requests run (`RunningRequest`); a runner computes their prompts and their next tokens over
a `KVCache`. There is one for a CPU (`CpuRunner`) and one for a CUDA GPU (`CudaRunner`). `SlotState` is what both keep
per slot besides keys and values: the next token's input and how to sample. `append_tokens` says where a reply ends,
`Wave` which waiting requests have their prompts computed together, and `resolve_all` and `notify_all` hand results and
new tokens to the event loops.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor
from transformers import PreTrainedTokenizerBase

from practicum.chat.grammar import GrammarMatcher
from practicum.chat.sampling_mask import encode_kept
from practicum.engines.base import Generation, Request, SampledToken, TopLogprobs
from practicum.engines.local.adapters import AdapterVersion
from practicum.engines.local.kv_cache import BLOCK_TOKENS, NO_MATCH, CachedPrefix, KVCache, PrefixKV, PrefixMatch
from practicum.engines.local.sampling import is_filtered
from practicum.errors import EngineError
from practicum.models.decoder import Decoder
from practicum.models.multi_lora import MultiLoRA
from practicum.trajectory import ActionSource, StopReason
from practicum.utils.concurrency import QueuedWait, queued_wait

STOP_WINDOW = 24
"""Tokens decoded to look for a stop string; longer strings are refused."""


class StopStrings:
    """A search for stop strings in the text of a tokenizer's ids."""

    def __init__(self, tokenizer: PreTrainedTokenizerBase) -> None:
        self.tokenizer = tokenizer
        self._token_texts: dict[int, str] = {}
        """The text of single tokens, of those that were looked up."""

    def reached(self, ids: Sequence[int], stops: Sequence[str]) -> bool:
        """Whether a reply that has just got its last id contains one of the strings in its last tokens."""
        if not self._can_end(ids[-1], stops):
            return False
        tail = self._text(ids[-STOP_WINDOW:])
        return any(text in tail for text in stops)

    def _can_end(self, token: int, stops: Sequence[str]) -> bool:
        """Whether one of the strings can end in this token.

        An ASCII character is always within one token; spaces may be missing from a token that is decoded alone.
        """
        if token not in self._token_texts:
            self._token_texts[token] = self._text([token])
        token_text = self._token_texts[token]
        return any(not text[-1].isascii() or text[-1].isspace() or text[-1] in token_text for text in stops if text)

    def _text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=False))


def append_tokens(
    running: RunningRequest, ids: Sequence[int], logprobs: Sequence[float], end_ids: Sequence[int], stops: StopStrings
) -> StopReason | None:
    """Append new tokens to a request up to where it stops; the reason, or None if it continues."""
    if running.per_token:
        size = 1
    else:
        size = next((index + 1 for index, token in enumerate(ids) if token in end_ids), len(ids))
        size = min(size, running.max_new_tokens - len(running.new_ids))
    start = 0
    while start < len(ids):
        new = ids[start : start + size]
        running.new_ids += new
        running.ids += new
        running.logprobs += logprobs[start : start + size]
        start += size
        reason = _stop_reason(running, end_ids, stops)
        if reason is not None:
            return reason
    return None


def _stop_reason(running: RunningRequest, end_ids: Sequence[int], stops: StopStrings) -> StopReason | None:
    if running.new_ids[-1] in end_ids:
        return StopReason.END
    sampling = running.request.sampling
    if sampling.stop and stops.reached(running.new_ids, sampling.stop):
        return StopReason.STRING
    if len(running.new_ids) >= running.max_new_tokens:
        return StopReason.CONTEXT if running.max_new_tokens < sampling.max_tokens else StopReason.LENGTH
    return None


@dataclass(eq=False, slots=True)
class RunningRequest:
    """One request with its tokens so far and its place in the batch and the KV cache."""

    request: Request
    future: asyncio.Future[Generation]
    loop: asyncio.AbstractEventLoop
    ids: list[int]
    """The prompt's ids, then those that were generated."""
    max_new_tokens: int
    hashes: list[int] = field(default_factory=list)
    """Hashes of the prompt's blocks (`block_hashes`)."""
    num_cached: int = 0
    """Prompt tokens whose keys and values came from the cache."""
    num_computed: int = 0
    """Prompt tokens that were computed for it, in one piece or several."""
    shared_kv: PrefixKV = ()
    """The cached pages that the prompt begins with, on a CPU: they are kept again without a copy."""
    continues_session: bool = False
    """Whether the prefix was cached by an earlier turn of the same session."""
    awaited: bool = False
    """Whether another request waits for the prompt that this one is about to compute."""
    new_ids: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    top_logprobs: list[TopLogprobs] = field(default_factory=list)
    """The most likely tokens at the position of every new id, where the request asks for them."""
    prefix_match: PrefixMatch = NO_MATCH
    """What the prefix cache held of the prompt at admission, until a slot is allocated."""
    num_scheduled: int = 0
    """Tokens requested from a runner, whether or not they have been returned."""
    finished: bool = False
    alone: bool = False
    """Whether it is admitted by itself, after it was admitted with others and that failed."""
    admitted: int = 0
    """The number of its admission, counted over all requests."""
    num_streamed: int = 0
    """Tokens that a listener has got."""
    index: int = -1
    """Index in the running batch."""
    slot: int = -1
    """Slot of the KV cache."""
    adapter: AdapterVersion | None = None
    """The version of its adapter that answers it, which stays the same until it ends."""
    piece_end: int | None = None
    """The prompt's tokens are computed up to here, where the rest is computed later."""
    computed: CachedPrefix | None = None
    """The keys and values of a long prompt's first pieces, until the rest is computed."""
    kept: list[NDArray[np.integer]] = field(default_factory=list)
    """The ids that each token was sampled among, where the request leaves some out and is not greedy."""
    matcher: GrammarMatcher | None = None
    """The grammar of a reply that must have a response format."""
    first_token_time: float | None = None
    """When the first token was there (`time.monotonic`)."""
    wait: QueuedWait | None = field(default_factory=queued_wait)
    """The caller's wait, whose deadline is paused while the request is in the engine's queue."""
    per_token: bool = field(init=False)
    """Whether each token must be looked at alone, for a stop string or a listener."""
    is_filtered: bool = field(init=False)
    """Whether it samples among its most likely tokens only (top-k, top-p, min-p)."""

    def sampled_tokens(self, start: int) -> list[SampledToken]:
        """The new tokens from an index on."""
        top = self.top_logprobs[start:] if self.request.top_logprobs else [()] * (len(self.new_ids) - start)
        new = zip(self.new_ids[start:], self.logprobs[start:], top, strict=False)
        return [SampledToken(token, logprob, most) for token, logprob, most in new]

    def generation(self, reason: StopReason, version: int) -> Generation:
        """The reply, which has ended for a reason. `version`: the engine's; that of an adapter goes before it."""
        own_version = None if self.adapter is None else self.adapter.number
        return Generation(
            ids=tuple(self.new_ids),
            logprobs=tuple(self.logprobs),
            stop_reason=reason,
            policy_version=version if own_version is None else own_version,
            source=ActionSource.POLICY,
            prompt_cached=self.prompt_end - self.num_computed,
            top_logprobs=tuple(self.top_logprobs[: len(self.new_ids)]),
            response_format=self.request.response_format,
            kept=encode_kept(self.kept[: len(self.new_ids)]) if self.records_kept else None,
            first_token_time=self.first_token_time,
        )

    def restarted(self) -> RunningRequest:
        """A copy of the request that starts over. Its tokens depend on its seed alone: they will be the same again.

        It takes the place of this one, whose decode calls may still be under way: their tokens are dropped.
        """
        self.finished = True
        copy = RunningRequest(self.request, self.future, self.loop, list(self.request.ids), self.max_new_tokens)
        copy.hashes, copy.adapter, copy.alone = self.hashes, self.adapter, self.alone
        copy.num_streamed, copy.first_token_time, copy.wait = self.num_streamed, self.first_token_time, self.wait
        if self.matcher is not None and self.request.response_format is not None:
            copy.matcher = self.matcher.grammars.matcher(self.request.response_format)
        return copy

    @property
    def prompt_end(self) -> int:
        """The number of prompt tokens that are computed before the first decode step, which is fed the last one."""
        return len(self.request.ids) - 1 if self.piece_end is None else self.piece_end

    @property
    def adapter_key(self) -> str:
        """What the version of its adapter is called in `MultiLoRA` and in the prefix cache; "": it has none."""
        return "" if self.adapter is None else self.adapter.key

    @property
    def records_kept(self) -> bool:
        """Whether the tokens that it samples among are recorded."""
        return self.is_filtered and self.request.sampling.temperature > 0

    def __post_init__(self) -> None:
        self.per_token = bool(self.request.sampling.stop) or self.request.on_tokens is not None
        self.is_filtered = is_filtered(self.request.sampling)


class Wave:
    """Requests are added in their order; a prompt whose next uncached block another one is about to compute waits.

    Of a long prompt only the next piece is computed, so that other requests need not wait for all of it: one such
    prompt per wave, which is the wave's last.
    """

    def __init__(self, budget: int, piece_tokens: int) -> None:
        self.budget, self.piece_tokens = budget, piece_tokens
        """Prompt tokens that may still be computed, and those of a piece of a long prompt."""
        self.requests: list[RunningRequest] = []
        self.postponed: list[RunningRequest] = []
        self.piece: RunningRequest | None = None
        self._computing: dict[int, RunningRequest] = {}

    @property
    def num_slots(self) -> int:
        """Slots that the requests need, postponed ones included."""
        return len(self.requests) + len(self.postponed) + (self.piece is not None)

    @property
    def is_full(self) -> bool:
        return self.budget <= 0 and bool(self.members)

    @property
    def members(self) -> list[RunningRequest]:
        """The requests to admit."""
        return self.requests if self.piece is None else [*self.requests, self.piece]

    def add(self, req: RunningRequest, in_pieces: bool) -> None:
        """Add a request whose prefix was matched. `in_pieces`: others would wait for a long prompt."""
        length = req.prefix_match.length
        num_tokens = len(req.ids) - 1 - length
        is_long = in_pieces and num_tokens > self.piece_tokens
        following = req.hashes[length // BLOCK_TOKENS : length // BLOCK_TOKENS + 1]
        if following and following[0] in self._computing:
            self._computing[following[0]].awaited = True
            self.postponed.append(req)
        elif is_long and self.piece is not None:
            self.postponed.append(req)
        elif is_long:
            self.piece, req.piece_end = req, length + self.piece_tokens
            blocks = slice(length // BLOCK_TOKENS, req.piece_end // BLOCK_TOKENS)
            self._computing.update(dict.fromkeys(req.hashes[blocks], req))
            self.budget -= self.piece_tokens
        else:
            req.piece_end = None
            self._computing.update(dict.fromkeys(following, req))
            self.budget -= num_tokens
            self.requests.append(req)


@dataclass(eq=False)
class AdapterChange:
    """A change of the adapters, made by the engine's thread between two decode calls."""

    action: Callable[[], None]
    future: asyncio.Future[None]
    loop: asyncio.AbstractEventLoop

    def apply(self) -> None:
        try:
            self.action()
        except Exception as error:
            resolve(self, error)
        else:
            resolve(self, None)


class Signal(enum.Enum):
    """Messages of the event loop to the engine's thread besides requests, adapter changes and policy versions."""

    END_SESSIONS = enum.auto()
    CLOSE = enum.auto()


Result = Generation | Exception | None


def failed_step(error: Exception) -> EngineError:
    """The error that the caller of a request gets whose step has failed."""
    return EngineError(f"the local engine failed: {type(error).__name__}: {error}")


def resolve(item: RunningRequest | AdapterChange, value: Result) -> None:
    """Set the result of one future from the engine's thread; a cancelled future is left alone."""
    resolve_all([(item, value)])


def resolve_all(results: Sequence[tuple[RunningRequest | AdapterChange, Result]]) -> None:
    """Set the results of many futures from the engine's thread, waking each event loop once."""
    for loop in dict.fromkeys(item.loop for item, _ in results):
        with contextlib.suppress(RuntimeError):  # nobody waits on a loop that is closed
            loop.call_soon_threadsafe(_set_results, [(item, value) for item, value in results if item.loop is loop])


def _set_results(results: Sequence[tuple[RunningRequest | AdapterChange, Result]]) -> None:
    for item, value in results:
        if item.future.done():
            continue
        if isinstance(value, Exception):
            item.future.set_exception(value)
        else:
            item.future.set_result(value)  # type: ignore[arg-type]


def notify_all(streamed: Sequence[tuple[RunningRequest, list[SampledToken]]]) -> None:
    """Pass new tokens to the listeners of their requests, waking each event loop once."""
    for loop in dict.fromkeys(req.loop for req, _ in streamed):
        with contextlib.suppress(RuntimeError):  # nobody listens on a loop that is closed
            loop.call_soon_threadsafe(_call_listeners, [item for item in streamed if item[0].loop is loop])


def _call_listeners(streamed: Sequence[tuple[RunningRequest, list[SampledToken]]]) -> None:
    for req, tokens in streamed:
        if req.request.on_tokens is not None and not req.future.cancelled():
            req.request.on_tokens(tokens)


def notify_queued(requests: Sequence[RunningRequest], is_queued: bool) -> None:
    """Tell the callers of requests whether these are in the queue from here on, waking each event loop once."""
    waits = [(req.loop, req.wait) for req in requests if req.wait is not None]
    for loop in dict.fromkeys(loop for loop, _ in waits):
        with contextlib.suppress(RuntimeError):  # nobody waits on a loop that is closed
            loop.call_soon_threadsafe(_set_queued, [wait for own, wait in waits if own is loop], is_queued)


def _set_queued(waits: Sequence[QueuedWait], is_queued: bool) -> None:
    for wait in waits:
        wait.set_queued(is_queued)


def requeue(waiting: deque[RunningRequest], requests: Sequence[RunningRequest]) -> None:
    """Let requests that were admitted wait again, before all others."""
    waiting.extendleft(reversed(requests))
    notify_queued(requests, True)


class UnansweredRequests:
    """Requests whose callers wait. While a request is in the queue, its caller's deadline is paused."""

    def __init__(self) -> None:
        self._requests: set[RunningRequest] = set()

    async def answer(self, req: RunningRequest, send: Callable[[RunningRequest], None]) -> Generation:
        """Put a request into the queue and wait for its reply."""
        if req.wait is None:
            send(req)
            return await req.future
        req.wait.set_queued(True)
        self._requests.add(req)
        try:
            send(req)
            return await req.future
        except asyncio.CancelledError:
            # Perhaps its time ran out because the engine's thread hangs. Those in the queue must not wait for ever
            # then: their time counts from here on.
            notify_queued(list(self._requests), False)
            raise
        finally:
            self._requests.discard(req)
            req.wait.end()


class SlotState:
    """Tensors indexed by slot of the KV cache, on the decoder's device; a captured CUDA graph reads them in place."""

    def __init__(self, num_slots: int, noise_length: int, device: torch.device) -> None:
        self.last_id = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """The id that the next step feeds."""
        self.position = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.temperature = torch.ones(num_slots, device=device)
        self.top_k = torch.zeros(num_slots, dtype=torch.int64, device=device)
        self.top_p = torch.ones(num_slots, device=device)
        self.min_p = torch.zeros(num_slots, device=device)
        self.step = torch.zeros(num_slots, dtype=torch.int64, device=device)
        """Tokens sampled so far: the column of `noise` that the next one uses."""
        self.noise = torch.zeros(num_slots, noise_length, device=device)
        """Uniform random numbers [slots, tokens], drawn from each request's own seed."""
        self.adapter_index = torch.full((num_slots,), -1, device=device)
        """The index of a request's adapter (`MultiLoRA.index`), on a GPU."""

    def tensors(self) -> tuple[Tensor, ...]:
        return (
            self.last_id, self.position, self.temperature, self.top_k, self.top_p, self.min_p, self.step,
            self.noise, self.adapter_index,
        )  # fmt: skip

    def reserve_noise(self, num_tokens: int) -> None:
        """Make room for this many random numbers per slot."""
        if num_tokens > self.noise.shape[1]:
            self.noise = F.pad(self.noise, (0, num_tokens - self.noise.shape[1]))

    def copy(self, source: int, target: int) -> None:
        for tensor in self.tensors():
            tensor[target] = tensor[source]

    def permute(self, order: Sequence[int]) -> None:
        """Give slot i the state of slot order[i], for the first slots."""
        moved = [slot for slot, source in enumerate(order) if slot != source]
        targets, sources = torch.tensor(moved), torch.tensor([order[slot] for slot in moved])
        for tensor in self.tensors():
            tensor[targets] = tensor[sources]


BATCH_MULTIPLE = 8
"""Rows of a batch are padded to a multiple of this."""


@dataclass(frozen=True)
class RunnerSettings:
    """Sizes that the engine's caller may choose."""

    steps_per_decode: int
    """Decode steps per call of `Runner.decode`."""
    prefill_tokens: int
    """Prompt tokens computed at once, at most."""
    piece_tokens: int
    """Tokens of a long prompt that are computed between two decode steps of other requests."""
    decode_threads: int
    """Threads of one product of a decode step."""
    prefill_threads: int
    """Threads of one product of a long prompt."""
    row_threads: int = 1
    """Threads among which the rows of a batch are divided, on a CPU."""


DecodedTokens = list[tuple[RunningRequest, list[int], list[float], bool]]
"""Per request its new ids, their log-probs, and whether an end id may be among them."""


@dataclass(frozen=True)
class DecodeOutput:
    """What a call of `decode` gave. An asynchronous runner gives the tokens of an earlier call, or none yet."""

    num_steps: int
    """Steps that this call started."""
    tokens: DecodedTokens


class Runner(Protocol):
    """Prefill and decode over a KV cache. All methods are called from the engine's thread."""

    asynchronous: bool
    """Whether `decode` returns before its tokens are there: it pays to start with as many requests as are coming in."""
    masks_adapters: bool
    """Whether adapters are computed for all rows of a batch, and added to their own (`MultiLoRA`)."""
    admission_interval: int
    """Decode steps between two admissions: prompts are computed more cheaply together, and a reply is many steps."""

    def stream(self) -> AbstractContextManager[None]:
        """A context around all calls; when it ends, no work that needs the buffers is under way."""

    def synchronize(self) -> None:
        """Wait for weights or adapters that other threads have written."""

    def set_adapters(self, adapters: MultiLoRA, running: Sequence[RunningRequest]) -> None:
        """Use these adapters from here on; called again after every change of them."""

    def grow(self, num_tokens: int) -> None:
        """Make room for requests of this many tokens, prompt and reply."""

    def set_sampling_params(self, wave: Sequence[RunningRequest]) -> None:
        """Store the sampling parameters and first inputs of requests whose slots have just been allocated."""

    def prefill(self, wave: Sequence[RunningRequest]) -> None:
        """Compute keys and values of prompts behind what is cached, except for each prompt's last token."""

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        """Sample the next tokens of the running requests; may reorder `running`, and then sets each `index`."""

    def reset(self) -> None:
        """Drop everything that is under way, after a failure; every request begins anew."""

    def release(self, request: RunningRequest, last: RunningRequest) -> None:
        """Free the slot of a request that has left the batch, whose index `last` has taken (itself, if it was last)."""


class RunnerFactory(Protocol):
    """A class of runners: what makes one, and the type of KV cache that it works on."""

    kv_cache_type: type[KVCache]

    def __call__(self, decoder: Decoder, kv_cache: KVCache, settings: RunnerSettings, /) -> Runner: ...


def runner_for(device: torch.device) -> RunnerFactory:
    """The runner for a device."""
    if device.type == "cuda":
        from practicum.engines.local.cuda_runner import CudaRunner  # needs Triton

        return CudaRunner
    from practicum.engines.local.cpu_runner import CpuRunner

    return CpuRunner


def any_constrained(running: Sequence[RunningRequest]) -> bool:
    """Whether the reply of any request must have a response format."""
    return any(req.matcher is not None for req in running)


def any_filtered(running: Sequence[RunningRequest]) -> bool:
    """Whether any request samples among its most likely tokens only (top-k, top-p, min-p)."""
    return any(req.is_filtered for req in running)


def any_top_logprobs(running: Sequence[RunningRequest]) -> bool:
    """Whether any request asks for the most likely tokens."""
    return any(req.request.top_logprobs > 0 for req in running)


def any_adapter(running: Sequence[RunningRequest]) -> bool:
    """Whether any request is answered by an adapter."""
    return any(req.adapter is not None for req in running)
