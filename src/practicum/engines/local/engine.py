"""The in-process engine: continuous batching over the trainer's own weights.

`LocalEngine` is the scheduler: it admits requests, batches them, stops them and returns results. What is computed
for them is a `Runner`'s, and their keys and values are in a `KVCache`. One thread does all of this; requests come from
the event loop and results go back to it, so a slow tool delays no other episode.

A prompt's KV is computed up to its last token; the last token is fed by the first decode step, so prefill needs no
logits and a fully cached prompt needs no prefill.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from practicum.chat.grammar import GrammarMatcher
from practicum.chat.renderer import Renderer
from practicum.engines.base import MAX_TOP_LOGPROBS, Generation, Request, SampledToken, Weights
from practicum.engines.local.adapters import AdapterEngine, NamedAdapters
from practicum.engines.local.cuda_kv_cache import free_bytes
from practicum.engines.local.kv_cache import (
    BLOCK_TOKENS,
    NO_MATCH,
    CachedPrefix,
    KVCacheFull,
    PrefixCache,
    PrefixMatch,
    PromptHashes,
    block_hashes,
)
from practicum.engines.local.runner import (
    BATCH_MULTIPLE,
    STOP_WINDOW,
    AdapterChange,
    DecodedTokens,
    Result,
    RunnerFactory,
    RunnerSettings,
    RunningRequest,
    Signal,
    StopStrings,
    UnansweredRequests,
    Wave,
    append_tokens,
    failed_step,
    notify_all,
    notify_queued,
    requeue,
    resolve,
    resolve_all,
    runner_for,
)
from practicum.engines.local.stats import EngineStats
from practicum.errors import ContextFull, EngineError, UserError
from practicum.models.decoder import Decoder
from practicum.models.multi_lora import BASE, MultiLoRA, read_adapter
from practicum.trajectory import StopReason
from practicum.utils.concurrency import RequestGate
from practicum.utils.garbage_collection import freeze_gc

CPU_PIECE_TOKENS, GPU_PIECE_TOKENS = 512, 16384
"""Tokens of a long prompt that are computed between two decode steps of other requests."""
GPU_STEPS_PER_DECODE = 4
"""Decode steps on a GPU between two looks from the host."""
EARLY_PREFILL_REQUESTS = 64
"""Waiting requests from which on their prompts are computed while more are coming in."""
BATCH_WAIT_SECONDS = 0.002
"""Seconds without a new request after which an idle GPU begins: the requests of a rollout come together."""


class LocalEngine:
    """Ids in, ids and log-probs out, from a decoder in this process.

    `max_batch`: requests decoded at once. `prefill_tokens`: prompt tokens computed at once. `cache_bytes`: of prefixes
    kept beyond their requests. `kv_bytes`: of keys and values (on a CPU, of running requests only); None: no bound on a
    CPU, and `gpu_memory_utilization` of what is free now on a GPU. Requests wait until there is room, and the last one
    is begun anew later where the others need it. `threads`, `prefill_threads`: of a CPU's decode steps and prompts.
    `runner`: by default that of the decoder's device.
    """

    name = "local"

    def __init__(
        self,
        decoder: Decoder,
        renderer: Renderer,
        *,
        max_batch: int = 64,
        prefill_tokens: int | None = None,
        cache_bytes: int | None = None,
        kv_bytes: int | None = None,
        gpu_memory_utilization: float = 0.5,
        steps_per_decode: int | None = None,
        threads: int | None = None,
        prefill_threads: int | None = None,
        runner: RunnerFactory | None = None,
    ) -> None:
        if max_batch < 1:
            raise UserError("The engine needs room for at least one request (actor_rollout_ref.rollout.max_num_seqs).")
        self.decoder, self.renderer = decoder, renderer
        self.max_batch = -(-max_batch // BATCH_MULTIPLE) * BATCH_MULTIPLE
        on_gpu, is_small = decoder.device.type == "cuda", decoder.shape.hidden < 512
        self.settings = RunnerSettings(
            steps_per_decode=steps_per_decode or (GPU_STEPS_PER_DECODE if on_gpu else 1),
            prefill_tokens=prefill_tokens or (32768 if on_gpu else 2048),
            piece_tokens=GPU_PIECE_TOKENS if on_gpu else CPU_PIECE_TOKENS,
            # Two threads on small matrices lose more to waking up than they gain: rows are divided among them instead.
            decode_threads=threads or (1 if is_small else torch.get_num_threads()),
            prefill_threads=prefill_threads or torch.get_num_threads(),
            row_threads=torch.get_num_threads() if is_small and threads is None and prefill_threads is None else 1,
        )
        if kv_bytes is None and on_gpu:
            kv_bytes = int(gpu_memory_utilization * free_bytes(decoder.device))
        default = kv_bytes if on_gpu and kv_bytes else 1 << 30  # on a GPU prefixes are dropped for requests
        self.prefixes = PrefixCache(default if cache_bytes is None else cache_bytes)
        runner = runner or runner_for(decoder.device)
        self.kv_cache = runner.kv_cache_type(
            decoder.shape, self.max_batch, decoder.dtype, decoder.device, self.prefixes
        )
        self.kv_cache.max_bytes = kv_bytes
        self.runner = runner(decoder, self.kv_cache, self.settings)
        self.adapters: NamedAdapters | None = None
        self.stats = EngineStats()
        self._running: list[RunningRequest] = []
        self._admitting: list[RunningRequest] = []
        """Requests that no longer wait and do not decode yet."""
        self.waiting: deque[RunningRequest] = deque()
        self._unanswered = UnansweredRequests()
        self._inbox: queue.SimpleQueue[RunningRequest | AdapterChange | Signal | int] = queue.SimpleQueue()
        """Requests, adapter changes, signals and new policy versions, processed in this order."""
        self._ended_sessions: deque[str] = deque()
        self._ended_sessions_lock = threading.Lock()
        self._stop_strings = StopStrings(renderer.tokenizer)
        self._prompt_hashes = PromptHashes()
        self.gate = RequestGate()
        self._thread: threading.Thread | None = None
        self._failure: str | None = None
        self._steps_since_admission = self._num_admitted = 0
        self._steps_ahead = self.settings.steps_per_decode + self.runner.asynchronous
        """Steps that a decode call starts, at most."""
        self._batch_limit = self.max_batch
        """Requests decoded at once, at most: fewer after a failed step, until the engine has nothing to do."""

    @property
    def failure(self) -> str | None:
        """Why the engine answers no more; None while it does."""
        return self._failure

    @property
    def num_running(self) -> int:
        return len(self._running)

    @property
    def num_waiting(self) -> int:
        return len(self.waiting) + self._inbox.qsize()

    # -- called from the event loop ----------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        if self._failure:
            raise EngineError(self._failure)
        context = self.decoder.shape.context
        if not request.ids:
            raise EngineError("the prompt is empty")
        if len(request.ids) >= context:
            raise ContextFull(f"the prompt has {len(request.ids)} tokens; the model's window is {context}")
        if request.sampling.stop and any(len(text) > STOP_WINDOW for text in request.sampling.stop):
            raise UserError(f"Stop strings may have at most {STOP_WINDOW} characters.")
        if request.adapter != BASE:
            self._named_adapters().check(request.adapter)
        if request.top_logprobs > MAX_TOP_LOGPROBS:
            raise UserError(f"At most {MAX_TOP_LOGPROBS} of the most likely tokens (top_logprobs) are reported.")
        max_new_tokens = min(request.sampling.max_tokens, context - len(request.ids))
        loop = asyncio.get_running_loop()
        running = RunningRequest(request, loop.create_future(), loop, list(request.ids), max_new_tokens)
        if request.adapter == BASE:  # else they depend on the version, which is known when the request is received
            running.hashes = self._prompt_hashes.of(request.ids)
        if request.response_format is not None:
            running.matcher = await self.make_matcher(request.response_format)
        await self.gate.enter()
        try:
            return await self._unanswered.answer(running, self._send)
        finally:
            self.gate.leave()

    async def make_matcher(self, response_format: Mapping[str, Any]) -> GrammarMatcher:
        """The grammar of a reply; one that is new is compiled beside the event loop."""
        grammars = self.renderer.grammars
        if grammars.is_compiled(response_format):
            return grammars.matcher(response_format)
        return await asyncio.to_thread(grammars.matcher, response_format)

    def _send(self, item: RunningRequest | AdapterChange) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="practicum-engine", daemon=True)
            self._thread.start()
        self._inbox.put(item)

    def _named_adapters(self) -> NamedAdapters:
        if self.adapters is None:
            self.adapters = NamedAdapters(MultiLoRA(self.decoder, self.runner.masks_adapters))
        return self.adapters

    async def load_adapter(self, name: str, source: str | Path | nn.Module, version: int | None = None) -> None:
        """Serve a LoRA adapter under a name, beside the others, from a PEFT folder or as a PEFT model has it now.

        Requests that are under way go on, those of an adapter that had the name with that one; later ones get the new
        adapter. `version`: the policy version that its replies report, by default the engine's.
        """
        adapters = self._named_adapters()
        adapter = await asyncio.to_thread(read_adapter, source, self.decoder)
        await self._change_adapters(lambda: adapters.put(name, adapter, version))

    async def unload_adapter(self, name: str) -> None:
        """Take an adapter away; requests that are under way with it go on to their end."""
        adapters = self._named_adapters()
        adapters.check(name)
        await self._change_adapters(lambda: adapters.remove(name))

    async def _change_adapters(self, change: Callable[[], None]) -> None:
        """Change the adapters between two decode calls."""

        def action() -> None:
            change()
            self._remove_unused_adapters()
            self.runner.set_adapters(self._named_adapters().matrices, self._running)

        loop = asyncio.get_running_loop()
        item = AdapterChange(action, loop.create_future(), loop)
        self._send(item)
        await item.future

    def _remove_unused_adapters(self) -> None:
        adapters = self._named_adapters()
        removed = adapters.remove_unused({req.adapter_key for req in (*self._running, *self.waiting)})
        for key in removed:
            self.prefixes.remove_adapter(key)
        if removed:
            self.runner.set_adapters(adapters.matrices, self._running)

    def _set_adapter(self, req: RunningRequest) -> bool:
        """Choose the version of a request's adapter; whether there is one."""
        if req.request.adapter == BASE:
            return True
        try:
            req.adapter = self._named_adapters().current(req.request.adapter)
        except UserError as error:
            resolve(req, error)
            return False
        req.hashes = block_hashes(req.request.ids[:-1], req.adapter_key)
        return True

    def with_adapter(self, adapter: str) -> AdapterEngine:
        """A view of this engine that answers every request with one adapter."""
        return AdapterEngine(self, adapter)

    def end_session(self, session: str) -> None:
        with self._ended_sessions_lock:  # other event loops may have sessions too
            self._ended_sessions.append(session)
            if len(self._ended_sessions) == 1:  # else the signal is in the inbox already
                self._inbox.put(Signal.END_SESSIONS)

    async def close(self) -> None:
        if self._thread is not None:
            self._inbox.put(Signal.CLOSE)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def update_weights(self, version: int, weights: Weights) -> None:
        """Begin a new policy version. The trainer changes the decoder's own tensors: only the cache must be emptied."""
        self.weights_changed(version)

    def weights_changed(self, version: int) -> None:
        """Count replies from here on to `version`. No request may be under way."""
        if self.gate.num_open:
            raise EngineError("weights changed while requests were under way")
        self._inbox.put(version)

    # -- the engine's thread -----------------------------------------------------------------

    def _run(self) -> None:
        if self.runner.asynchronous:  # a collection of all modules takes longer than many steps, and the GPU waits
            freeze_gc(self)
        try:
            with torch.inference_mode(), self.runner.stream():
                while self._receive():
                    self._admit()
                    if self._running:
                        self._decode_or_retry()
        except Exception as error:  # a failed step must not leave episodes waiting for ever
            self._failure = f"the local engine failed: {type(error).__name__}: {error}"
            self._fail_all(self._failure)
            while (item := self._inbox.get()) is not Signal.CLOSE:  # sent before the sender could know
                if isinstance(item, RunningRequest | AdapterChange):
                    resolve(item, EngineError(self._failure))
                elif item is Signal.END_SESSIONS:
                    self._ended_sessions.clear()

    def _receive(self) -> bool:
        """Process the inbox; wait only when there is nothing to decode. False: close.

        With an asynchronous runner an idle engine sleeps until no more requests come, rather than wake up for each:
        Python runs one thread at a time, and the sender has others to start. Prompts of those that have come are
        computed meanwhile.
        """
        idle = not self._running and not self.waiting
        if self.adapters is not None and self.adapters.any_retired:
            self._remove_unused_adapters()
        if idle:
            self._batch_limit = self.max_batch
        gather, num_received, num_seen = idle and self.runner.asynchronous, 0, 0
        while True:
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                if not gather or num_received == num_seen or num_received >= self.max_batch:
                    if gather:
                        self._admit(at_once=True)
                    return True
                num_seen = num_received
                if len(self.waiting) >= EARLY_PREFILL_REQUESTS:
                    self._admit(at_once=True)
                time.sleep(BATCH_WAIT_SECONDS)
                continue
            if item is Signal.CLOSE:
                self._fail_all("the engine was closed")
                return False
            if item is Signal.END_SESSIONS:
                if idle and gather:
                    time.sleep(BATCH_WAIT_SECONDS)
                self._end_sessions()
            elif isinstance(item, int):
                self._set_version(item)
            elif isinstance(item, AdapterChange):
                self.runner.synchronize()
                item.apply()
            elif isinstance(item, RunningRequest):
                if idle:
                    torch.set_num_threads(self.settings.decode_threads)
                idle = False
                num_received += 1
                if self._set_adapter(item):
                    self.waiting.append(item)

    def _end_sessions(self) -> None:
        while self._ended_sessions:
            self.prefixes.end_session(self._ended_sessions.popleft())

    def _set_version(self, version: int) -> None:
        self.prefixes.set_version(version)
        for req in self._running:  # cancelled and not yet gone: their keys are of the old weights
            req.hashes = []
        self.runner.synchronize()

    def _fail_all(self, reason: str) -> None:
        failed = [*self._running, *self._admitting, *self.waiting]
        while not self._inbox.empty():
            item = self._inbox.get()
            if item is Signal.CLOSE:
                self._inbox.put(Signal.CLOSE)
                break
            if isinstance(item, RunningRequest):
                failed.append(item)
            if isinstance(item, AdapterChange):
                resolve(item, EngineError(reason))
        self._running.clear()
        self.waiting.clear()
        self.kv_cache.free_all_but([])
        for req in failed:
            req.finished = True  # a decode call may still be under way with it
            resolve(req, EngineError(reason))
        self._end_sessions()

    def _admit(self, at_once: bool = False) -> None:
        """Admit waiting requests in waves: a prompt whose next uncached block another one is about to compute waits.

        `at_once`: the engine was idle, and none of those that came together waits for the others' first steps.
        """
        interval = 0 if at_once else self.runner.admission_interval
        if self._running and self._steps_since_admission < interval:
            return
        self._steps_since_admission = 0
        decoding = (bool(self._running) and not at_once) or not self.runner.asynchronous
        while self.waiting and len(self._running) < self._batch_limit:
            try:
                wave = self._next_wave()
                if not wave.members:
                    return
                self._start(wave.members)
            except Exception as error:  # it ends no request but those that fail by themselves
                if self._retry_admission(error):
                    continue
                return
            self._admitting = []
            if (wave.budget <= 0 and decoding) or (wave.piece is not None and self._running):
                return  # the others decode a step before the next wave; an idle GPU computes all prompts first

    def _next_wave(self) -> Wave:
        """Waiting requests whose prompts can be computed together."""
        wave = Wave(self.settings.prefill_tokens, self.settings.piece_tokens)
        free = self._batch_limit - len(self._running)
        while self.waiting and wave.num_slots < free and not wave.is_full:
            if self._admitting and (self.waiting[0].alone or self._admitting[-1].alone):
                break
            req = self.waiting.popleft()
            if req.future.cancelled():
                continue
            self._admitting.append(req)
            req.prefix_match = self._match(req)
            if not self.kv_cache.can_admit(self._running, wave.members, req, self._steps_ahead):
                req.prefix_match = NO_MATCH  # what it refers to would stay
                self.waiting.appendleft(self._admitting.pop())
                break
            wave.add(req, in_pieces=bool(self._running or self.waiting or wave.members))
        self.waiting.extendleft(reversed(wave.postponed))
        self._admitting = wave.members
        return wave

    def _match(self, req: RunningRequest) -> PrefixMatch:
        """What is cached of a prompt, or what was computed of it in pieces."""
        request = req.request
        match = self.prefixes.match(request.ids[:-1], request.session, req.adapter_key, req.hashes)
        if req.computed is not None and len(req.computed.ids) > match.length:
            return PrefixMatch(req.computed, len(req.computed.ids))
        return match

    def _start(self, wave: list[RunningRequest]) -> None:
        """Give requests their slots, copy what is cached, compute the rest of their prompts."""
        notify_queued(wave, False)
        self.runner.grow(max(len(req.ids) + req.max_new_tokens for req in wave))
        started = time.perf_counter()
        self.kv_cache.allocate(wave)
        for index, req in enumerate(wave, len(self._running)):
            req.index = index
            self._num_admitted += 1
            req.admitted = self._num_admitted
        self.runner.set_sampling_params(wave)
        self.runner.prefill(wave)
        admitted: list[RunningRequest] = []
        for req in wave:
            self.stats.prefilled += req.prompt_end - req.num_cached
            req.num_computed += req.prompt_end - req.num_cached
            if req.piece_end is not None:
                self._postpone(req)
                continue
            length = len(req.ids) - 1
            self.stats.reused += length - req.num_computed
            # Other samples of a fresh prompt will come; a later turn is kept when it ends.
            if not req.continues_session and req.num_cached < length:
                kv = self.kv_cache.extract(req.slot, length, req.shared_kv)
                req.shared_kv = self.kv_cache.shareable(kv, length)
                self.prefixes.put(tuple(req.ids[:length]), kv, adapter=req.adapter_key, hashes=req.hashes)
            admitted.append(req)
        self._running.extend(admitted)
        self.stats.prefill_seconds += time.perf_counter() - started

    def _postpone(self, req: RunningRequest) -> None:
        """Let a request wait for the next piece of its prompt; others decode meanwhile."""
        ids, version = tuple(req.ids[: req.prompt_end]), self.prefixes.version
        session = req.request.session if req.continues_session else ""
        kv = self.kv_cache.extract(req.slot, len(ids), req.shared_kv)
        req.computed = CachedPrefix(ids, kv, version, session, req.adapter_key)
        hashes = req.hashes[: len(ids) // BLOCK_TOKENS]
        self.prefixes.put(ids, kv, adapter=req.adapter_key, hashes=hashes)  # for prompts that begin alike
        self.runner.release(req, req)
        req.index = req.slot = -1
        self.waiting.appendleft(req)

    def _retry_admission(self, error: Exception) -> bool:
        """Admit each of the requests whose admission failed by itself; end the one that has failed by itself.

        Running requests are not concerned. The prefix cache is emptied: that may be the memory which was missing.
        False: they have to wait until running ones have left their pages.
        """
        failed, self._admitting = [req.restarted() for req in self._admitting], []
        self.prefixes.set_version(self.prefixes.version)
        self.kv_cache.free_all_but([req.slot for req in self._running])
        waits = isinstance(error, KVCacheFull) and bool(self._running)
        if len(failed) == 1 and not waits:
            resolve(failed[0], failed_step(error))
            failed = []
        for req in failed:
            req.alone = not waits
        requeue(self.waiting, failed)
        return not waits

    def _decode_or_retry(self) -> None:
        """One decode call. If it fails, all running requests begin anew, half as many at once; one alone is ended.

        Their tokens depend on their seeds alone, so a request that is computed again gives the same reply.
        """
        try:
            while not self.kv_cache.reserve_steps(self._running, self._steps_ahead):
                self._preempt()
            self._decode()
        except Exception as error:
            failed, self._running = self._running, []
            self.runner.reset()
            self.prefixes.set_version(self.prefixes.version)
            self.kv_cache.free_all_but([])
            self._batch_limit = max(1, len(failed) // 2)
            if len(failed) == 1:
                failed[0].finished = True
                resolve(failed[0], failed_step(error))
                return
            requeue(self.waiting, [req.restarted() for req in failed])

    def _preempt(self) -> None:
        """Let the request that came last wait again, so that the others have its room."""
        req = max(self._running, key=lambda running: running.admitted)
        self._leave_batch(req)
        requeue(self.waiting, [req.restarted()])
        self.stats.preempted += 1

    def _leave_batch(self, req: RunningRequest) -> None:
        """Give the index of a request to the last one."""
        last = self._running.pop()
        if last is not req:
            self._running[req.index] = last
            last.index = req.index
        self.runner.release(req, last)

    def _decode(self) -> None:
        """One decode call for all running requests; those that it ends leave the batch."""
        started = time.perf_counter()
        output = self.runner.decode(self._running, self.renderer.end_ids)
        self.stats.decode_steps += output.num_steps
        self._steps_since_admission += output.num_steps
        finished = self._append(output.tokens)
        self.stats.decode_seconds += time.perf_counter() - started
        results: list[tuple[RunningRequest, Result]] = []
        try:
            for req, reason in sorted(finished, key=lambda item: -item[0].index):
                self._finish(req, reason, results)
        finally:  # the callers of those that have left the batch would wait for ever
            resolve_all(results)

    def _append(self, tokens: DecodedTokens) -> list[tuple[RunningRequest, StopReason | None]]:
        """Append new tokens to their requests: those that are finished, and why (None: the caller gave up)."""
        finished: list[tuple[RunningRequest, StopReason | None]] = []
        streamed: list[tuple[RunningRequest, list[SampledToken]]] = []
        now = time.monotonic()
        for req, ids, logprobs, may_end in tokens:
            if req.finished:
                continue
            if req.first_token_time is None:
                req.first_token_time = now
            reason, start = None, len(req.new_ids)
            if may_end or req.per_token or start + len(ids) >= req.max_new_tokens:
                reason = append_tokens(req, ids, logprobs, self.renderer.end_ids, self._stop_strings)
            else:
                req.new_ids += ids
                req.ids += ids
                req.logprobs += logprobs
            if req.per_token and req.request.on_tokens is not None:
                start = max(start, req.num_streamed)  # a request that was begun anew repeats its tokens
                req.num_streamed = max(start, len(req.new_ids))
                if len(req.new_ids) > start:
                    streamed.append((req, req.sampled_tokens(start)))
            if req.matcher is not None and req.matcher.error:
                reason = StopReason.LENGTH  # `_finish` makes an error of it
            if reason is not None or req.future.cancelled():
                req.finished = True
                # A caller may have given up because of new weights: what was computed since belongs to no version.
                finished.append((req, None if req.future.cancelled() else reason))
        notify_all(streamed)
        return finished

    def _finish(
        self, req: RunningRequest, reason: StopReason | None, results: list[tuple[RunningRequest, Result]]
    ) -> None:
        """Keep the KV for the session's next turn, give the index to the last request, and add the result."""
        length = len(req.ids) - 1
        request = req.request
        if request.session and not request.final and reason is not None:
            kv = self.kv_cache.extract(req.slot, length, req.shared_kv)
            self.prefixes.put(tuple(req.ids[:length]), kv, request.session, req.adapter_key, req.hashes)
        self._leave_batch(req)
        self.stats.generated += len(req.new_ids)
        if reason is None:
            return
        if req.matcher is not None and req.matcher.error:
            results.append((req, EngineError(f"the response format could not be followed: {req.matcher.error}")))
            return
        results.append((req, req.generation(reason, self.prefixes.version)))
