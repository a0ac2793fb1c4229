"""Prefill and decode on a CUDA GPU: several decode steps are captured as one graph per batch size and then replayed.

The host starts a graph and reads its tokens while the next one runs. A request that ends within a graph runs on to its
end, and the surplus tokens are dropped. Prompts are computed packed, end to end.
"""

from __future__ import annotations

import contextlib
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from practicum.engines.local.constrained_steps import ConstrainedSteps
from practicum.engines.local.cuda_kv_cache import CudaKVCache
from practicum.engines.local.host_copies import HostCopies
from practicum.engines.local.kv_cache import KVCache
from practicum.engines.local.runner import (
    DecodedTokens,
    DecodeOutput,
    RunnerSettings,
    RunningRequest,
    SlotState,
    any_adapter,
    any_constrained,
    any_filtered,
    any_top_logprobs,
)
from practicum.engines.local.sampling import filtered_logits, sample
from practicum.engines.local.sampling_mask_buffers import KeptBuffers, append_kept
from practicum.engines.local.shared_prefix import SharedPrefixGroups
from practicum.engines.local.token_masks import masked_logits
from practicum.engines.local.top_logprob_buffers import TopLogprobBuffers, append_top_logprobs
from practicum.kernels import CAPTURING, decode_attention, fused_matmul, prefill_attention, slot_init
from practicum.kernels.fused_layers import add_norm, rope_
from practicum.kernels.lm_head import float32_matmul
from practicum.kernels.narrow_matmul import ProductChoices
from practicum.kernels.online_softmax import KEY_BLOCK
from practicum.kernels.packed_forward import prefill_forward
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.multi_lora import MultiLoRA

CAPTURED_PREFILL_TOKENS = (256, 512, 1024, 2048, 4096, 8192)
"""Sizes of prompt passes that are captured; longer ones keep a GPU busy enough without."""
SMALL_BATCH_SIZES = (8, 16, 32, 64, 96, 128, 192, 256)
LARGE_BATCH_MULTIPLE = 128
SWITCH_INTERVAL_SECONDS = 0.0002
"""Seconds for which a busy thread may hold Python's lock while another waits for it. The engine's thread releases it
whenever it waits for the GPU; with Python's own 0.005 it would get it back later than the GPU has run a whole graph."""
GraphKey = tuple[int, bool, bool, tuple[str, ...], bool]
"""What decode steps are captured for: rows, whether any request filters its tokens, whether any asks for the most
likely ones, the adapters that are computed, and whether any request is in a group that reads its shared prefix
jointly."""


@dataclass(frozen=True)
class PendingDecode:
    """A decode call under way, and where on the host its results will be."""

    running: list[RunningRequest]
    results: Tensor  # [slots, steps, 2] ids and log-probs, pinned
    done: Any
    kept: Tensor | None = None  # [slots, steps, words] the tokens that were sampled among, pinned
    top: Tensor | None = None  # [slots, steps, count, 2] the most likely tokens, pinned


class CudaRunner:
    """A `Runner` whose decode calls return the tokens of the call before.

    On a CPU device (Triton's interpreter, in tests) it runs the same kernels without capturing graphs.
    """

    asynchronous = True
    masks_adapters = True
    kv_cache_type: ClassVar[type[KVCache]] = CudaKVCache

    def __init__(self, decoder: Decoder, kv_cache: KVCache, settings: RunnerSettings) -> None:
        assert isinstance(kv_cache, CudaKVCache), "a GPU has pages of its own kind"
        self.decoder, self.kv_cache, self.settings = decoder, kv_cache, settings
        self.admission_interval = 2 * settings.steps_per_decode
        self.adapters: MultiLoRA | None = None
        self._used_adapters: tuple[str, ...] = ()
        sys.setswitchinterval(min(SWITCH_INTERVAL_SECONDS, sys.getswitchinterval()))
        num_slots, device = kv_cache.num_slots, decoder.device
        self.device = device
        self.capturing = device.type == "cuda"
        if self.capturing:
            loader.set_batch_invariant_matmul()
        self.state = SlotState(num_slots + 1, decoder.shape.context, device)
        self.results = torch.zeros(num_slots, settings.steps_per_decode, 2, dtype=torch.float64, device=device)
        """Ids and log-probs of a decode call: both are exact in float64, and one copy transfers them."""
        self._slots = torch.arange(num_slots, device=device)
        """The slot of each row."""
        self._sent_slots = list(range(num_slots))
        """What `_slots` holds, on the host."""
        shape = decoder.shape
        group_size = decode_attention.group_size(shape.heads, shape.kv_heads)
        self.groups = SharedPrefixGroups(num_slots, group_size, KEY_BLOCK, kv_cache.bytes_per_token, device)
        self.products = ProductChoices()
        self._outs, self._downs = [req.out for req in decoder.layers], [req.down for req in decoder.layers]
        self._decode_graphs: dict[GraphKey, Any] = {}
        self._prefill_graphs: dict[int, tuple[Any, Tensor]] = {}
        self._pool: Any = None
        self._stream: Any = high_priority_stream(device) if self.capturing else None
        self._capture_stream: Any = high_priority_stream(device) if self.capturing else None
        self._pending: deque[PendingDecode] = deque()
        self.host_results = HostCopies(self.results, self.capturing)
        self._constrained: ConstrainedSteps | None = None
        self._uses_min_p = False
        self.kept: KeptBuffers | None = None
        """The tokens that filtered requests sample among, once there is such a request."""
        self.top: TopLogprobBuffers | None = None
        """The most likely tokens, once there is a request that asks for them."""

    def batch_size(self, count: int) -> int:
        """The number of rows in which `count` requests are decoded; each size is captured when it is first needed."""
        fitting = next((size for size in SMALL_BATCH_SIZES if size >= count), None)
        return min(fitting or -(-count // LARGE_BATCH_MULTIPLE) * LARGE_BATCH_MULTIPLE, self.kv_cache.num_slots)

    @property
    def captured(self) -> list[GraphKey]:
        """What decode graphs there are."""
        return list(self._decode_graphs)

    def reset_graphs(self) -> None:
        """Drop captured graphs after buffers have moved; their memory pool is freed with the last of them."""
        constrained = self._constrained is not None and self._constrained.has_graphs
        if not (self._decode_graphs or self._prefill_graphs or constrained):
            return
        if self.capturing:
            torch.cuda.current_stream().synchronize()  # nothing is dropped that still runs
        self._decode_graphs.clear()
        self._prefill_graphs.clear()
        if self._constrained is not None:
            self._constrained.reset_graphs()
        self._pool = None
        if self.capturing:
            torch.cuda.empty_cache()  # a pool's memory is of no use to anything else until then

    @contextlib.contextmanager
    def stream(self) -> Iterator[None]:
        if not self.capturing:
            yield
            return
        with torch.cuda.stream(self._stream):
            self.synchronize()
            yield
            self._stream.synchronize()

    def synchronize(self) -> None:
        """Wait, on the GPU, for what others have written on the default stream."""
        if self.capturing:
            self._stream.wait_stream(torch.cuda.default_stream(self.device))

    def set_adapters(self, adapters: MultiLoRA, running: Sequence[RunningRequest]) -> None:
        self.adapters = adapters
        self._used_adapters = ()
        self.state.adapter_index.fill_(-1)
        self._send_adapter_indices(running)
        self.reset_graphs()

    def _send_adapter_indices(self, requests: Sequence[RunningRequest]) -> None:
        if self.adapters is None or not requests:
            return
        indices = [(req.slot, self.adapters.index(req.adapter_key)) for req in requests]
        on_device = torch.tensor(indices).to(self.device, non_blocking=True)
        self.state.adapter_index[on_device[:, 0]] = on_device[:, 1]

    def adapters_of(self, running: Sequence[RunningRequest]) -> tuple[str, ...]:
        """The adapters that the next steps compute: none, or all that were in use since the adapters last changed.

        Those that are loaded and not used cost nothing, and there are few graphs.
        """
        if not any_adapter(running):
            return ()
        new = {req.adapter_key for req in running if req.adapter is not None}.difference(self._used_adapters)
        self._used_adapters += tuple(sorted(new))
        return self._used_adapters

    def grow(self, num_tokens: int) -> None:
        """A finished request runs on for up to two decode calls before the host reads that it ended."""
        if self.kv_cache.grow(num_tokens + 2 * self.settings.steps_per_decode):
            self.reset_graphs()

    def reset(self) -> None:
        self._pending.clear()
        if self._constrained is not None:
            self._constrained.reset()
        self.reset_graphs()
        self.groups.update([])

    def release(self, request: RunningRequest, last: RunningRequest) -> None:
        self.kv_cache.release(request.slot)
        self.kv_cache.free(request.slot)

    def set_sampling_params(self, wave: Sequence[RunningRequest]) -> None:
        state = self.state
        params = slot_init.pack([
            slot_init.SlotParams(req.slot, req.ids[-1], len(req.ids) - 1, p.top_k, p.seed, p.temperature, p.top_p)
            for req, p in zip(wave, (req.request.sampling for req in wave), strict=True)
        ])  # fmt: skip
        fields = (state.last_id, state.position, state.temperature, state.top_k, state.top_p, state.step)
        longest = max(req.max_new_tokens for req in wave)
        slot_init.init_slots(params.to(self.device, non_blocking=True), longest, fields, state.noise)
        if self._uses_min_p or any(req.request.sampling.min_p for req in wave):
            self._uses_min_p = True
            numbers = torch.tensor([(req.slot, req.request.sampling.min_p) for req in wave], dtype=torch.float64)
            on_device = numbers.to(self.device, non_blocking=True)
            state.min_p[on_device[:, 0].long()] = on_device[:, 1].float()
        self._send_adapter_indices(wave)

    # -- prefill -----------------------------------------------------------------------------

    def prefill(self, wave: Sequence[RunningRequest]) -> None:
        """Prompts are packed end to end, at most `prefill_tokens` at once."""
        adapters = tuple(dict.fromkeys(req.adapter_key for req in wave if req.adapter is not None))
        pending = [(req.slot, req.ids[req.num_cached : req.prompt_end], req.num_cached) for req in wave]
        pending = [row for row in pending if row[1]]
        self.kv_cache.send_table()
        while pending:
            batch: list[tuple[int, list[int], int]] = []
            room = self.settings.prefill_tokens
            while pending and room:
                slot, ids, start = pending.pop(0)
                batch.append((slot, ids[:room], start))
                if len(ids) > room:
                    pending.insert(0, (slot, ids[room:], start + room))
                room -= len(batch[-1][1])
            self._prefill_batch(batch, adapters)

    def _prefill_batch(self, rows: Sequence[tuple[int, list[int], int]], adapters: tuple[str, ...]) -> None:
        """Keys and values of rows (slot, ids, position of the first), by a captured graph where one fits."""
        total, blocks = sum(len(ids) for _, ids, _ in rows), prefill_attention.num_query_blocks(rows)
        fitting = (size for size in CAPTURED_PREFILL_TOKENS if size >= total and max_query_blocks(size) >= blocks)
        size = None if adapters or not self.capturing else next(fitting, None)
        numbers, tokens, blocks = prefill_attention.pack(rows, *((size, max_query_blocks(size)) if size else ()))
        if self.capturing:
            numbers = numbers.pin_memory()
        if size is None:
            packed = prefill_attention.unpack(numbers.to(self.device, non_blocking=True), tokens, blocks)
            self._select_adapters(adapters, packed.slots.clamp(min=0))
            self._prefill_forward(packed)
            return
        if size not in self._prefill_graphs:
            self._prefill_graphs[size] = self._capture_prefill(numbers.to(self.device), tokens, blocks)
        graph, static = self._prefill_graphs[size]
        static.copy_(numbers, non_blocking=True)
        graph.replay()

    def _capture_prefill(self, numbers: Tensor, tokens: int, blocks: int) -> tuple[Any, Tensor]:
        packed = prefill_attention.unpack(numbers, tokens, blocks)
        self._select_adapters(())
        return self.capture(lambda: self._prefill_forward(packed), lambda: self._prefill_forward(packed)), numbers

    @torch.inference_mode()
    def _prefill_forward(self, packed: prefill_attention.PackedPrompts) -> None:
        decoder, shape = self.decoder, self.decoder.shape

        def attend(layer: int, joined: Tensor) -> Tensor:
            kv = self.kv_cache.layer(layer)
            rope_(joined, packed.positions, decoder.tables, shape.heads + shape.kv_heads, shape.head_size)
            prefill_attention.store_kv(joined, kv, packed, shape.heads)
            last = layer == shape.layers - 1
            return joined if last else prefill_attention.attend(joined, kv, packed, shape.heads)

        prefill_forward(decoder, packed.ids, attend)

    # -- decode ------------------------------------------------------------------------------

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        """Start decode steps and return the tokens of the call before, so that the GPU does not wait for the host.

        Requests whose last token is pending already are not worth a further call. While the reply of any request must
        have a response format, a call is one step (`ConstrainedSteps`).
        """
        if any_constrained(running) or (self._constrained is not None and self._constrained.is_pending):
            if self._pending:  # calls from before the first such request
                return DecodeOutput(0, self._take(end_ids))
            self._constrained = self._constrained or ConstrainedSteps(self, running)
            return self._constrained.decode(running, end_ids)
        num_steps = 0
        if any(req.num_scheduled < req.max_new_tokens for req in running):
            num_steps = self.settings.steps_per_decode
            for req in running:
                req.num_scheduled += num_steps
            self._launch(list(running))
            if len(self._pending) < 2:
                return DecodeOutput(num_steps, [])
        return DecodeOutput(num_steps, self._take(end_ids))

    def _launch(self, running: list[RunningRequest]) -> None:
        """Start decode steps for a batch; rows behind `running` only pad it."""
        num_rows = self.batch_size(len(running))
        joint = self.groups.update(running)
        key = (num_rows, any_filtered(running), any_top_logprobs(running), self.adapters_of(running), joint)
        self.send_slots([req.slot for req in running], num_rows)
        kept, top = self.kept_buffers(running), self.top_buffers(running)
        if self.capturing:
            if key not in self._decode_graphs:
                self._decode_graphs[key] = self.capture_decode(key)
            self._decode_graphs[key].replay()
        else:
            self._decode_steps(*key)
        results = self.host_results.copy_to_host(num_rows)
        copy = None if kept is None else kept.copy_to_host(num_rows)
        top_copy = None if top is None else top.copy_to_host(num_rows)
        self._pending.append(PendingDecode(running, results, record_event(self.device), copy, top_copy))

    def kept_buffers(self, running: Sequence[RunningRequest]) -> KeptBuffers | None:
        """The buffers of the tokens that are sampled among, where any request leaves some out."""
        if not any_filtered(running):
            return None
        if self.kept is None:
            shape = (self.kv_cache.num_slots, self.settings.steps_per_decode, self.decoder.shape.vocabulary)
            self.kept = KeptBuffers(*shape, self.device, self.capturing)
        return self.kept

    def top_buffers(self, running: Sequence[RunningRequest]) -> TopLogprobBuffers | None:
        """The buffers of the most likely tokens, where any request asks for them."""
        if not any_top_logprobs(running):
            return None
        if self.top is None:
            shape = (self.kv_cache.num_slots, self.settings.steps_per_decode, self.decoder.shape.vocabulary)
            self.top = TopLogprobBuffers(*shape, self.device, self.capturing)
        return self.top

    def send_slots(self, slots: list[int], num_rows: int) -> None:
        """Set the slots of the rows and the pages of the slots; rows behind `slots` only pad the batch."""
        self.kv_cache.send_table()
        slots = slots + [self.kv_cache.padding_slot] * (num_rows - len(slots))
        if slots != self._sent_slots[:num_rows]:
            self._slots[:num_rows].copy_(torch.tensor(slots), non_blocking=True)
            self._sent_slots[:num_rows] = slots

    def _take(self, end_ids: Sequence[int]) -> DecodedTokens:
        """The tokens of the oldest pending call, once they are there."""
        pending = self._pending.popleft()
        if pending.done is not None:
            pending.done.synchronize()
        if pending.kept is not None:
            append_kept(pending.running, pending.kept)
        if pending.top is not None:
            append_top_logprobs(pending.running, pending.top)
        return decoded_tokens(pending.running, pending.results, end_ids)

    def capture_decode(self, key: GraphKey) -> Any:
        """A graph of decode steps; the step that is run to build its kernels leaves no trace in the state."""
        state = (self.state.last_id, self.state.position, self.state.step)
        return self.capture_unchanged(state, lambda: self._decode_steps(*key), lambda: self._decode_step(*key, 0))

    def _decode_steps(self, *key: *GraphKey) -> None:
        """All steps of a call, as one graph: each launch releases Python's lock, and regains it late among episodes."""
        for step in range(self.settings.steps_per_decode):
            self._decode_step(*key, step)

    @torch.inference_mode()
    def _decode_step(
        self, num_rows: int, filtered: bool, with_top: bool, adapters: tuple[str, ...], joint: bool, step: int
    ) -> None:
        """Feed the last token of every row and sample the next."""
        self.sample(self.next_logits(num_rows, adapters, joint), filtered, with_top, step)

    def next_logits(self, num_rows: int, adapters: tuple[str, ...], joint: bool, out: Tensor | None = None) -> Tensor:
        """Feed the last token of every row: the logits of the next [W, V] in float32, in `out` where it is given."""
        decoder, state = self.decoder, self.state
        slots, groups = self._slots[:num_rows], self.groups.batch(num_rows)
        self._select_adapters(adapters, slots)
        epsilon, tables, heads = decoder.epsilon, decoder.tables, decoder.shape.heads
        embeddings = decoder.model.model.embed_tokens.weight
        x, positions = decode_attention.embed_last_ids(
            state.last_id, state.position, slots, embeddings, decoder.shape.context
        )
        delta: Tensor | None = None
        for index, layer in enumerate(decoder.layers):
            kv = self.kv_cache.layer(index)
            normed = add_norm(x, delta, layer.before_attention, epsilon, x)
            query = fused_matmul.project_qkv(layer, normed, kv, slots, positions, tables, heads, epsilon)
            attended = decode_attention.attend(query, kv, slots, positions, groups, joint)
            delta = self.products.linear(layer.out, attended, self._outs)
            normed = add_norm(x, delta, layer.before_mlp, epsilon, x)
            delta = self.products.linear(layer.down, fused_matmul.project_gate_up(layer.gate_up, normed), self._downs)
        hidden = add_norm(x, delta, decoder.final_norm, epsilon, x)
        head = decoder.model.lm_head
        plain = type(head) is torch.nn.Linear and head.bias is None
        if plain:
            return float32_matmul(hidden, head.weight, out)
        logits = decoder.logits(hidden).float()
        return logits if out is None else out.copy_(logits)

    def sample(self, logits: Tensor, filtered: bool, with_top: bool, step: int, masks: Tensor | None = None) -> None:
        """Sample a token per row of logits [W, V], among those of `masks` [W, words] where it is given.

        `with_top`: store the most likely tokens too, of the same distribution.
        """
        state, slots = self.state, self._slots[: len(logits)]
        allowed = masked_logits(logits, masks) if masks is not None and (filtered or with_top) else logits
        if filtered:
            temperature = state.temperature[slots]
            allowed = filtered_logits(allowed, temperature, state.top_k[slots], state.top_p[slots], state.min_p[slots])
        if with_top:
            assert self.top is not None, "there are no buffers for the most likely tokens"
            self.top.write(allowed, state.temperature[slots], step)
        if filtered:
            self._sample_filtered(allowed, slots, step)
            return
        inputs = (state.last_id, state.position, state.step)
        padding_slot = self.kv_cache.padding_slot
        decode_attention.sample(
            logits, state.noise, state.temperature, slots, inputs, self.results, step, padding_slot, masks
        )

    def _sample_filtered(self, logits: Tensor, slots: Tensor, step: int) -> None:
        """What `decode_attention.sample` does, among the tokens that filters have left."""
        state, num_rows, steps = self.state, len(slots), self.state.step[slots]
        noise, temperature = state.noise[slots, steps.clamp(max=state.noise.shape[1] - 1)], state.temperature[slots]
        assert self.kept is not None, "there are no buffers for the kept tokens"
        self.kept.write(logits, step)
        ids, logprobs = sample(logits, noise, temperature)
        state.last_id.index_copy_(0, slots, ids)
        positions = torch.where(slots == self.kv_cache.padding_slot, 0, state.position[slots] + 1)
        state.position.index_copy_(0, slots, positions)
        state.step.index_copy_(0, slots, steps + 1)
        self.results[:num_rows, step, 0], self.results[:num_rows, step, 1] = ids, logprobs

    # -- common ------------------------------------------------------------------------------

    def _select_adapters(self, adapters: Sequence[str], slots: Tensor | None = None) -> None:
        """Set the adapters of the next pass, whose tokens are of these slots."""
        if self.adapters is not None:
            self.adapters.select(adapters, self.state.adapter_index[slots] if adapters else None)

    def capture(self, work: Callable[[], None], warm_up: Callable[[], None]) -> Any:
        """A graph of `work`, captured after `warm_up`: its kernels must have been built before.

        `torch.cuda.graph` would give all cached memory back to the system first. A batch size may be new at any time,
        and the next allocation would wait for the system to hand the memory out again.
        """
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        try:
            return self._record(work, warm_up)
        except torch.cuda.OutOfMemoryError:  # during a capture, no cached memory is given back
            torch.cuda.empty_cache()
            return self._record(work, warm_up)

    def capture_unchanged(self, state: Sequence[Tensor], work: Callable[[], None], warm_up: Callable[[], None]) -> Any:
        """A graph of `work`, after which the tensors of `state` are as before."""
        saved = [tensor.clone() for tensor in state]
        graph = self.capture(work, warm_up)
        for tensor, before in zip(state, saved, strict=True):
            tensor.copy_(before)
        return graph

    def _record(self, work: Callable[[], None], warm_up: Callable[[], None]) -> Any:
        graph, side, current = torch.cuda.CUDAGraph(), self._capture_stream, torch.cuda.current_stream()
        side.wait_stream(current)
        with CAPTURING, torch.cuda.stream(side):
            warm_up()
            graph.capture_begin(pool=self._pool, capture_error_mode="thread_local")  # the trainer may be at work
            try:
                work()
            except BaseException:
                with contextlib.suppress(RuntimeError):  # the first error says more
                    graph.capture_end()
                raise
            graph.capture_end()
        current.wait_stream(side)
        return graph


def decoded_tokens(running: list[RunningRequest], results: Tensor, end_ids: Sequence[int]) -> DecodedTokens:
    """The tokens of a call from its results on the host [slots, steps, 2]."""
    numbers = results[: len(running)].numpy()
    ids = numbers[..., 0].astype(np.int64)
    ended: list[bool] = np.isin(ids, np.array(end_ids, dtype=np.int64)).any(axis=1).tolist()  # type: ignore[assignment]
    return list(zip(running, ids.tolist(), numbers[..., 1].tolist(), ended, strict=True))


def high_priority_stream(device: torch.device) -> Any:
    """A stream whose kernels go before a trainer's: a step is hundreds of small ones, and each would wait for a large
    one to make room. Graphs keep the priority of the stream they were captured on."""
    return torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]


def max_query_blocks(tokens: int) -> int:
    """Blocks of queries that a captured pass over this many tokens has room for: prompts may be short."""
    return tokens // prefill_attention.QUERY_BLOCK + tokens // 16


def record_event(device: torch.device) -> Any:
    """An event that is reached when everything launched so far is done; None on a CPU."""
    if device.type != "cuda":
        return None
    event = torch.cuda.Event()  # type: ignore[no-untyped-call]
    event.record()
    return event
