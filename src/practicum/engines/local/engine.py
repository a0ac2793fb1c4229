"""The in-process engine: continuous batching over the learner's own weights.

One thread decodes; requests come from the event loop and answers go back to it, so a slow tool
holds up nobody else. Rows that decode stand in slots 0..B-1 over one static KV buffer; a finished row's
place is taken by the last one. What is computed for them is `CpuSteps`' and, on a GPU, `CudaSteps`'.

A prompt's KV is computed up to its last token; the last token is fed by the first decode step, so
prefill needs no logits and a fully cached prompt needs no prefill.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Weights
from practicum.engines.local.adapters import AdapterEngine
from practicum.engines.local.attention import KEY_BUCKET
from practicum.engines.local.cpu_runner import ROW_BUCKET, CpuRunner
from practicum.engines.local.kv_cache import KVSlots
from practicum.engines.local.prefix_cache import BLOCK, CachedPrefix, PrefixCache, block_hashes
from practicum.engines.local.request import AdapterChange, Completions, RunningRequest, resolve, resolve_all
from practicum.engines.local.stop_strings import STOP_WINDOW, StopStrings, append_tokens
from practicum.errors import ContextFull, EngineError, UserError
from practicum.models.decoder import Decoder
from practicum.models.multi_lora import BASE, MultiLoRA, read_adapter
from practicum.trajectory import ActionSource, StopReason

if TYPE_CHECKING:
    from practicum.engines.local.cuda_runner import CudaRunner

ADMIT_EVERY = 4
"""Decode steps between two admissions: prompts go better in company, and a reply is many steps long."""
BURST = 4
"""Decode steps on a GPU between two looks from the host."""
FORGET = "forget"
"""Says that sessions are over."""
EARLY = 64
"""Requests that have come, from which on their prompts are computed while more come."""
IDLE_THREAD_SECONDS = 0.002
"""Seconds without a new request after which a GPU that had nothing to do begins; those of a batch come together."""


@dataclass
class EngineStats:
    """Counters since the start."""

    generated: int = 0
    decode_steps: int = 0
    prefilled: int = 0
    reused: int = 0
    decode_seconds: float = 0.0
    prefill_seconds: float = 0.0


class LocalEngine:
    """Ids in, ids and log-probs out, from a decoder in this process."""

    name = "local"

    def __init__(
        self,
        decoder: Decoder,
        renderer: Renderer,
        *,
        max_batch: int = 64,
        prefill_tokens: int | None = None,
        cache_bytes: int | None = None,
        burst: int | None = None,
        threads: int | None = None,
    ) -> None:
        if max_batch < 1:
            raise UserError("The engine needs room for at least one request (actor_rollout_ref.rollout.max_num_seqs).")
        self.decoder = decoder
        self.renderer = renderer
        self.max_batch = -(-max_batch // ROW_BUCKET) * ROW_BUCKET
        on_gpu = decoder.device.type == "cuda"
        self.prefill_tokens = prefill_tokens or (32768 if on_gpu else 2048)
        self.burst = burst or (BURST if on_gpu else 1)
        # Two threads on small matrices lose more to waking up than they gain; a prompt's are large enough.
        self.all_threads = torch.get_num_threads()
        self.threads = threads or (1 if decoder.shape.hidden < 512 else self.all_threads)
        self.prefixes = PrefixCache((8 << 30 if on_gpu else 1 << 30) if cache_bytes is None else cache_bytes)
        self.stats = EngineStats()
        self._kv = torch.empty(0)
        self._capacity = 0
        self._rows: list[RunningRequest] = []
        self._entering: list[RunningRequest] = []
        """Rows on their way from those that wait to those that decode."""
        self._waiting: deque[RunningRequest] = deque()
        self.adapters: MultiLoRA | None = None
        self._inbox: queue.SimpleQueue[RunningRequest | AdapterChange | str | int | None] = queue.SimpleQueue()
        """A request, a change, FORGET, a new policy version, or None to close: taken in this order."""
        self._forgotten: deque[str] = deque()
        self._forgetting = threading.Lock()
        self._stops = StopStrings(renderer.tokenizer)
        self._under_way = 0
        self._thread: threading.Thread | None = None
        self._broken: str | None = None
        self._steps_since_admission = 0
        device = decoder.device
        self._homes = KVSlots(self.max_batch, self.prefixes)
        slots = self._homes.count
        self._last = torch.zeros(slots, dtype=torch.int64, device=device)
        self._position = torch.zeros(slots, dtype=torch.int64, device=device)
        self._temperature = torch.ones(slots, device=device)
        self._top_k = torch.zeros(slots, dtype=torch.int64, device=device)
        self._top_p = torch.ones(slots, device=device)
        self._step = torch.zeros(slots, dtype=torch.int64, device=device)
        self._noise = torch.zeros(slots, decoder.shape.context if on_gpu else 64, device=device)
        self._columns = torch.zeros(slots, 0, device=device)
        """What of the adapters' matrices each home's row lets through."""
        self._cpu = CpuRunner(self)
        self._steps: CudaRunner | None = None
        if on_gpu:
            from practicum.engines.local.cuda_runner import CudaRunner  # needs Triton

            self._steps = CudaRunner(self, self.burst)

    # -- the event loop's side ---------------------------------------------------------------

    async def generate(self, request: Request) -> Generation:
        if self._broken:
            raise EngineError(self._broken)
        context = self.decoder.shape.context
        if not request.ids:
            raise EngineError("the prompt is empty")
        if len(request.ids) >= context:
            raise ContextFull(f"the prompt has {len(request.ids)} tokens; the model's window is {context}")
        if any(len(text) > STOP_WINDOW for text in request.sampling.stop):
            raise UserError(f"Stop strings may have at most {STOP_WINDOW} characters.")
        if request.adapter != BASE:
            self._bank().check(request.adapter)
        limit = min(request.sampling.max_tokens, context - len(request.ids))
        loop = asyncio.get_running_loop()
        row = RunningRequest(request, loop.create_future(), loop, list(request.ids), limit)
        row.hashes = block_hashes(request.ids[:-1], request.adapter)
        self._hand_over(row)
        self._under_way += 1
        try:
            return await row.future
        finally:
            self._under_way -= 1

    def _hand_over(self, item: RunningRequest | AdapterChange) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="practicum-engine", daemon=True)
            self._thread.start()
        self._inbox.put(item)

    def _bank(self) -> MultiLoRA:
        if self.adapters is None:
            self.adapters = MultiLoRA(self.decoder)
        return self.adapters

    async def load_adapter(self, name: str, folder: str | Path) -> None:
        """Serve a LoRA adapter from a PEFT folder under a name, beside those there are; requests go on meanwhile."""
        bank = self._bank()
        adapter = await asyncio.to_thread(read_adapter, folder, self.decoder)
        await self._change(name, lambda: bank.add(name, adapter))

    async def unload_adapter(self, name: str) -> None:
        bank = self._bank()
        bank.check(name)
        await self._change(name, lambda: bank.remove(name))

    async def _change(self, name: str, do: Callable[[], None]) -> None:
        """Do something to the bank while nobody decodes, unless a reply under way wears what is to be changed."""

        def work() -> None:
            if any(row.request.adapter == name for row in (*self._rows, *self._waiting)):
                raise UserError(f"Adapter '{name}' is answering a request; change it when it is not.")
            do()
            self.prefixes.disown(name)
            worn = self._bank().columns([row.request.adapter for row in self._rows])
            self._columns = worn.new_zeros(self._homes.count, worn.shape[1])
            self._columns[self._homes.of[: len(self._rows)]] = worn
            if self._steps is not None:
                self._steps.reset_graphs()

        loop = asyncio.get_running_loop()
        change = AdapterChange(work, loop.create_future(), loop)
        self._hand_over(change)
        await change.future

    def wearing(self, adapter: str) -> AdapterEngine:
        """This engine, every reply by one adapter."""
        return AdapterEngine(self, adapter)

    def end_session(self, session: str) -> None:
        with self._forgetting:  # other event loops may have sessions too
            self._forgotten.append(session)
            if len(self._forgotten) == 1:  # else somebody has said so already
                self._inbox.put(FORGET)

    async def close(self) -> None:
        if self._thread is not None:
            self._inbox.put(None)
            await asyncio.to_thread(self._thread.join)
            self._thread = None

    async def update_weights(self, version: int, weights: Weights) -> None:
        """The learner changes the very tensors that are decoded with: only what was cached must go."""
        self.weights_changed(version)

    def weights_changed(self, version: int) -> None:
        """From here on replies belong to `version`. No request may be under way."""
        if self._under_way:
            raise EngineError("weights changed while requests were under way")
        self._inbox.put(version)

    # -- the engine thread's side -------------------------------------------------------------

    def _run(self) -> None:
        on_its_own = contextlib.nullcontext() if self._steps is None else self._steps.line()
        try:
            with torch.inference_mode(), on_its_own:
                while self._collect():
                    self._admit()
                    if self._rows:
                        self._decode()
        except Exception as error:  # one bad step must not leave episodes waiting for ever
            self._broken = f"the local engine failed: {type(error).__name__}: {error}"
            self._fail_all(self._broken)
            while (item := self._inbox.get()) is not None:  # who asked before they could know
                if isinstance(item, RunningRequest | AdapterChange):
                    resolve(item, EngineError(self._broken))
                elif isinstance(item, str):
                    self._forgotten.clear()

    def _collect(self) -> bool:
        """Take what has come in; wait only when there is nothing to decode. False: close.

        A GPU that had nothing to do sleeps until no more come, rather than wake up for each: Python runs in one thread
        at a time, and who asks has others to start. Prompts of those that have come are computed meanwhile.
        """
        idle = not self._rows and not self._waiting
        linger, come, known = idle and self._steps is not None, 0, 0
        while True:
            try:
                item = self._inbox.get(block=idle)
            except queue.Empty:
                if not linger or come == known or come >= self.max_batch:
                    if linger:  # none of those that came together waits for the others' first steps
                        self._admit(at_once=True)
                    return True
                known = come
                if len(self._waiting) >= EARLY:
                    self._admit(at_once=True)
                time.sleep(IDLE_THREAD_SECONDS)
                continue
            if item is None:
                self._fail_all("the engine was closed")
                return False
            if isinstance(item, str):
                if idle and linger:
                    time.sleep(IDLE_THREAD_SECONDS)
                self._let_go()
                continue
            if isinstance(item, int):
                self.prefixes.set_version(item)
                for row in self._rows:  # given up and not yet gone: their keys are of the old weights
                    row.hashes = []
                self._catch_up()
                continue
            if isinstance(item, AdapterChange):
                self._catch_up()
                item.make()
                continue
            if idle:
                torch.set_num_threads(self.threads)
            idle = False
            come += 1
            self._waiting.append(item)

    def _let_go(self) -> None:
        """Of sessions that are over."""
        while self._forgotten:
            self.prefixes.end_session(self._forgotten.popleft())

    def _catch_up(self) -> None:
        if self._steps is not None:
            self._steps.catch_up()

    def _fail_all(self, reason: str) -> None:
        rows = [*self._rows, *self._entering, *self._waiting]
        while not self._inbox.empty():
            item = self._inbox.get()
            if item is None:
                self._inbox.put(None)
                break
            if isinstance(item, RunningRequest):
                rows.append(item)
            if isinstance(item, AdapterChange):
                resolve(item, EngineError(reason))
        self._rows.clear()
        self._waiting.clear()
        for row in rows:
            row.over = True  # a burst may still be under way with it
            resolve(row, EngineError(reason))
        self._let_go()

    def _admit(self, at_once: bool = False) -> None:
        """Fill free slots in waves: a prompt whose next uncached block another is about to compute waits for it."""
        pause = 0 if at_once else ADMIT_EVERY if self._steps is None else 2 * self.burst
        if self._rows and self._steps_since_admission < pause:
            return
        self._steps_since_admission = 0
        decoding = bool(self._rows) or self._steps is None
        while self._waiting and len(self._rows) < self.max_batch:
            wave: list[RunningRequest] = []
            coming: dict[int, RunningRequest] = {}
            later: deque[RunningRequest] = deque()
            budget = self.prefill_tokens
            free = self.max_batch - len(self._rows)
            while self._waiting and len(wave) + len(later) < free and (budget > 0 or not wave):
                row = self._waiting.popleft()
                if row.future.cancelled():
                    continue
                self._entering.append(row)
                row.found = self._match(row)
                length = row.found[1]
                following = row.hashes[length // BLOCK : length // BLOCK + 1]
                if following and following[0] in coming:
                    coming[following[0]].awaited = True
                    later.append(row)
                    continue
                coming.update(dict.fromkeys(following, row))
                budget -= len(row.ids) - 1 - length
                wave.append(row)
            self._waiting = later + self._waiting
            self._entering = wave
            if not wave:
                return
            self._start(wave)
            self._entering = []
            if budget <= 0 and decoding:
                return  # let the others decode a step before the next wave; a GPU that had nothing to do fills up first

    def _match(self, row: RunningRequest) -> tuple[CachedPrefix | None, int]:
        return self.prefixes.match(tuple(row.request.ids[:-1]), row.request.session, row.request.adapter, row.hashes)

    def _start(self, wave: list[RunningRequest]) -> None:
        """Give rows their slots, copy what is cached, compute the rest."""
        self._reserve(max(len(row.ids) + row.limit for row in wave))
        begun = time.perf_counter()
        first = len(self._rows)
        self._homes.let_in(wave, first, self._kv)
        self._configure(first, wave)
        if self._steps is None:
            self._cpu.fill(wave)
        else:
            prompts = [(row.slot, row.ids[row.cached : -1], row.cached) for row in wave]
            self._steps.fill(prompts, any(row.request.adapter for row in wave))
        for row in wave:
            known = len(row.ids) - 1
            self.stats.reused += row.cached
            self.stats.prefilled += known - row.cached
            # Of a fresh prompt other chains will come asking (a later turn is kept when it ends); or they wait already.
            shared = not row.continues if self._steps is None else row.awaited
            if shared and row.cached < known:
                fresh = self._kv[:, :, self._homes.of[row.slot], :, :known].clone()
                self.prefixes.put(tuple(row.ids[:known]), fresh, owner=row.request.adapter, hashes=row.hashes)
        self._rows.extend(wave)
        self.stats.prefill_seconds += time.perf_counter() - begun

    def _configure(self, first: int, wave: list[RunningRequest]) -> None:
        """Settings of new rows."""
        longest = max(row.limit for row in wave)
        if longest > self._noise.shape[1]:
            self._noise = F.pad(self._noise, (0, longest - self._noise.shape[1]))
        if self._steps is not None:
            self._steps.settle(wave, self._homes.of[first : first + len(wave)], longest)
        else:
            self._cpu.settle(first, wave, longest)

    def _reserve(self, length: int) -> None:
        """Make the KV buffer [layers, 2, homes, K, keys, D] hold rows of this length."""
        wanted = -(-(length + 2 * self.burst) // KEY_BUCKET) * KEY_BUCKET  # a row may run on for two bursts, unheard
        if wanted <= self._capacity:
            return
        wanted = max(wanted, min(2 * self._capacity, self.decoder.shape.context + KEY_BUCKET))
        shape = self.decoder.shape
        kv = torch.zeros(
            shape.layers, 2, self._homes.count, shape.kv_heads, wanted, shape.head_size,
            dtype=self.decoder.dtype, device=self.decoder.device,
        )  # fmt: skip
        self._homes.carry(len(self._rows), self._kv, kv)
        self._kv, self._capacity = kv, wanted
        if self._steps is not None:
            self._steps.reset_graphs()

    def _decode(self) -> None:
        """One burst of decode steps for every row, then the host's look at what came out."""
        begun = time.perf_counter()
        if self._steps is not None:
            heard = self._launch_and_take(self._steps)
        else:
            heard = self._cpu.burst()
            self.stats.decode_steps += self.burst
            self._steps_since_admission += self.burst
        finished: list[tuple[int, StopReason | None]] = []
        for row, new, given, ended in heard:
            if row.over:
                continue
            reason = None
            if ended or not row.plain or len(row.new) + len(new) >= row.limit:
                reason = append_tokens(row, new, given, self.renderer.end_ids, self._stops)
            else:
                row.new += new
                row.ids += new
                row.logprobs += given
            if reason is not None or row.future.cancelled():
                row.over = True
                # Who gave up may have done so for new weights' sake: what was computed since belongs to no version.
                finished.append((row.slot, None if row.future.cancelled() else reason))
        self.stats.decode_seconds += time.perf_counter() - begun
        answers: list[tuple[RunningRequest, Generation]] = []
        try:
            for slot, reason in sorted(finished, key=lambda item: -item[0]):
                self._finish(slot, reason, answers)
        finally:  # who is out of the rows already would wait for ever
            resolve_all(answers)

    def _launch_and_take(self, steps: CudaRunner) -> Completions:
        """Start a burst and hear the one before it, so that the GPU does not wait for the host.

        Rows whose last token is on its way are not worth a further burst.
        """
        count = len(self._rows)
        if any(row.asked < row.limit for row in self._rows):
            for row in self._rows:
                row.asked += self.burst
            dressed = any(row.request.adapter for row in self._rows)
            steps.launch(list(self._rows), steps.bucket(count), self.filtered, dressed)
            self.stats.decode_steps += self.burst
            self._steps_since_admission += self.burst
            if steps.flights < 2:
                return []
        return steps.take(self.renderer.end_ids)

    @property
    def filtered(self) -> bool:
        """Whether any row samples among its most likely only."""
        return any(row.request.sampling.top_k or row.request.sampling.top_p < 1 for row in self._rows)

    def _finish(self, slot: int, reason: StopReason | None, answers: list[tuple[RunningRequest, Generation]]) -> None:
        """Keep the KV for the next turn and let the last row take the place; an answer, if anybody waits for it."""
        row = self._rows[slot]
        known = len(row.ids) - 1
        if row.request.session and not row.request.final and reason is not None:
            kept = self._kv[:, :, slot, :, :known].clone() if self._steps is None else self._homes.of[slot]
            self.prefixes.put(tuple(row.ids[:known]), kept, row.request.session, row.request.adapter, row.hashes)
        last = len(self._rows) - 1
        if slot != last:
            self._rows[slot] = self._rows[last]
            self._rows[slot].slot = slot
            if self._steps is None:
                self._cpu.move(last, slot, len(self._rows[last].ids) - 1)
            else:
                self._homes.swap(slot, last)
        self._rows.pop()
        self.stats.generated += len(row.new)
        if reason is None:
            return
        reply = Generation(
            ids=tuple(row.new),
            logprobs=tuple(row.logprobs),
            stop_reason=reason,
            policy_version=self.prefixes.version,
            source=ActionSource.POLICY,
            prompt_cached=row.cached,
        )
        answers.append((row, reply))
