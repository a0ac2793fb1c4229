"""Decode steps on a GPU while the replies of some requests must have a response format.

The tokens that may be sampled next depend on the last token, which the host has to see: a graph of several steps is not
possible. A step is two graphs, one up to the logits and one that samples, and behind each sampling the logits of the
next step are started. While the GPU computes them the engine looks at the tokens and the host computes the masks, so it
waits only where that takes longer than the logits. A request that has ended takes one step more; its token is dropped.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from practicum.engines.local.runner import (
    DecodeOutput,
    RunningRequest,
    any_constrained,
    any_filtered,
    any_top_logprobs,
)
from practicum.engines.local.sampling_mask_buffers import append_kept
from practicum.engines.local.token_masks import BatchMasks, batch_masks
from practicum.engines.local.top_logprob_buffers import append_top_logprobs

if TYPE_CHECKING:
    from practicum.engines.local.cuda_runner import CudaRunner


@dataclass(frozen=True)
class StepBatch:
    """The requests of a step in the order of its rows, and what the step has to do for any of them."""

    requests: list[RunningRequest]
    num_rows: int
    adapters: tuple[str, ...]
    joint: bool
    """Whether a shared prefix is read jointly."""
    filtered: bool
    with_top: bool


class ConstrainedSteps:
    """Single decode steps of a `CudaRunner`; a call returns the tokens of one and starts the logits of the next."""

    def __init__(self, runner: CudaRunner, running: Sequence[RunningRequest]) -> None:
        self.runner = runner
        num_slots = runner.kv_cache.num_slots
        masks = batch_masks(running, num_slots, pin_memory=runner.capturing)
        assert masks is not None, "no request has a response format"
        self.masks: BatchMasks = masks
        self._device_masks = torch.full_like(masks.tensor, -1, device=runner.device)
        self._copy_stream: Any = torch.cuda.Stream(runner.device) if runner.capturing else None  # type: ignore[no-untyped-call]
        self._logits = torch.empty(0, runner.decoder.shape.vocabulary, device=runner.device)
        """The logits of a step [rows, V], which one graph writes and the other reads."""
        self._batch: StepBatch | None = None
        """The batch whose next logits are computed or on their way."""
        self._forward_graphs: dict[tuple[int, tuple[str, ...], bool], Any] = {}
        self._sample_graphs: dict[tuple[int, bool, bool], Any] = {}

    @property
    def is_pending(self) -> bool:
        """Whether logits are on their way that nothing was sampled from yet."""
        if self._batch is not None and all(req.finished for req in self._batch.requests):
            self._batch = None
        return self._batch is not None

    @property
    def has_graphs(self) -> bool:
        return bool(self._forward_graphs or self._sample_graphs)

    def reset(self) -> None:
        """Forget the logits that are on their way."""
        self._batch = None

    def reset_graphs(self) -> None:
        """Drop captured graphs after buffers have moved."""
        self._forward_graphs.clear()
        self._sample_graphs.clear()

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        """Sample from the logits that are on their way, start those of the next step of `running`, and return the
        tokens that were sampled."""
        from practicum.engines.local.cuda_runner import decoded_tokens, record_event

        if not self.is_pending:
            self._launch(self._next_batch(running, None))
        batch, self._batch = self._batch, None
        assert batch is not None, "no request needs a token"
        next_batch = self._next_batch(running, batch)
        results, kept, top = self._sample(batch)
        done = record_event(self.runner.device)
        self._launch(next_batch)
        if done is not None:
            done.synchronize()
        self.masks.append(batch.requests, results[: len(batch.requests), 0, 0].numpy().astype(int).tolist())
        if kept is not None:
            append_kept(batch.requests, kept[:, :1])
        if top is not None:
            append_top_logprobs(batch.requests, top[:, :1])
        return DecodeOutput(1, decoded_tokens(batch.requests, results[:, :1], end_ids))

    def _next_batch(self, running: list[RunningRequest], last: StepBatch | None) -> StepBatch | None:
        """The batch whose logits are computed next, if any request needs them; `last` is the one before it.

        Tokens that are still to be sampled count too: a request may turn out to have ended, no more.
        """
        if not any_constrained(running) or all(req.num_scheduled >= req.max_new_tokens for req in running):
            return None
        runner, requests = self.runner, list(running)
        if last is not None and last.requests == requests:
            filtered, with_top = last.filtered, last.with_top
        else:
            filtered, with_top = any_filtered(requests), any_top_logprobs(requests)
        adapters, joint = runner.adapters_of(requests), runner.groups.update(requests)
        return StepBatch(requests, runner.batch_size(len(requests)), adapters, joint, filtered, with_top)

    def _launch(self, batch: StepBatch | None) -> None:
        """Start to compute the next logits of a batch."""
        self._batch = batch
        if batch is None:
            return
        runner = self.runner
        if batch.num_rows > len(self._logits):
            self.reset_graphs()
            self._logits = torch.empty(batch.num_rows, self._logits.shape[1], device=runner.device)
        runner.send_slots([req.slot for req in batch.requests], batch.num_rows)
        for req in batch.requests:
            req.num_scheduled += 1
        key = (batch.num_rows, batch.adapters, batch.joint)
        if not runner.capturing:
            self._forward(*key)
            return
        if key not in self._forward_graphs:
            self._forward_graphs[key] = runner.capture(lambda: self._forward(*key), lambda: self._forward(*key))
        self._forward_graphs[key].replay()

    @torch.inference_mode()
    def _forward(self, num_rows: int, adapters: tuple[str, ...], joint: bool) -> None:
        self.runner.next_logits(num_rows, adapters, joint, self._logits[:num_rows])

    def _sample(self, batch: StepBatch) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Sample from the logits of a batch and copy what comes of it to the host: where it will be.

        The slot of a request that has ended since may belong to another one already: its row has the padding slot.
        """
        runner, num_rows = self.runner, batch.num_rows
        kept = runner.kept_buffers(batch.requests) if batch.filtered else None
        top = runner.top_buffers(batch.requests) if batch.with_top else None
        padding = runner.kv_cache.padding_slot
        runner.send_slots([padding if req.finished else req.slot for req in batch.requests], num_rows)
        self.masks.compute(batch.requests)
        self._send_masks(num_rows)
        key = (num_rows, batch.filtered, batch.with_top)
        if runner.capturing:
            if key not in self._sample_graphs:
                self._sample_graphs[key] = self._capture_sampling(key)
            self._sample_graphs[key].replay()
        else:
            self._sample_rows(*key)
        results = runner.host_results.copy_to_host(num_rows)
        host_kept = None if kept is None else kept.copy_to_host(num_rows)
        host_top = None if top is None else top.copy_to_host(num_rows)
        return results, host_kept, host_top

    def _send_masks(self, num_rows: int) -> None:
        """Copy the masks to the device beside the logits that are on their way; the last sampling is over."""
        if self._copy_stream is None:
            self._device_masks[:num_rows].copy_(self.masks.tensor[:num_rows])
            return
        with torch.cuda.stream(self._copy_stream):
            self._device_masks[:num_rows].copy_(self.masks.tensor[:num_rows], non_blocking=True)
        torch.cuda.current_stream().wait_stream(self._copy_stream)

    @torch.inference_mode()
    def _sample_rows(self, num_rows: int, filtered: bool, with_top: bool) -> None:
        self.runner.sample(self._logits[:num_rows], filtered, with_top, 0, self._device_masks[:num_rows])

    def _capture_sampling(self, key: tuple[int, bool, bool]) -> Any:
        """A graph that samples; running it to build its kernels leaves no trace in the state."""
        state = self.runner.state
        return self.runner.capture_unchanged(
            (state.last_id, state.position, state.step),
            lambda: self._sample_rows(*key),
            lambda: self._sample_rows(*key),
        )
