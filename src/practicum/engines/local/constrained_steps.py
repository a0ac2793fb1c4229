"""Decode steps on a GPU while the replies of some requests must have a response format.

The tokens that may be sampled next depend on the last token, which the host has to see: a graph of several steps is not
possible. A step is two graphs, one up to the logits and one that samples, and the logits of the next step are computed
while the host works on a step's tokens: a thread computes the masks, and the engine appends the tokens and looks for
their end meanwhile. So the GPU waits only where that takes longer than the logits, and a request that has ended takes
one more step, whose token is dropped.
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
class BatchFlags:
    """What the sampling of a batch has to do besides sampling; requests do not change in this."""

    batch: list[RunningRequest]
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
        self._logits = torch.empty(0, runner.decoder.shape.vocabulary, device=runner.device)
        """The logits of a step [rows, V], which one graph writes and the other reads."""
        self._batch: list[RunningRequest] | None = None
        """The requests whose next logits are computed or on their way, in the order of the rows."""
        self._flags = BatchFlags([], False, False)
        self._forward_graphs: dict[tuple[int, tuple[str, ...], bool], Any] = {}
        self._sample_graphs: dict[tuple[int, bool, bool], Any] = {}

    @property
    def is_pending(self) -> bool:
        """Whether logits are on their way that nothing was sampled from yet."""
        if self._batch is not None and all(req.finished for req in self._batch):
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

        num_steps = 0
        if not self.is_pending:
            num_steps += self._launch(running)
            self._start_masks()
        batch, self._batch = self._batch, None
        assert batch is not None, "there are no logits to sample from"
        results, kept, top = self._sample(batch)
        done = record_event(self.runner.device)
        num_steps += self._launch(running)
        if done is not None:
            done.synchronize()
        self.masks.append(batch, results[: len(batch), 0, 0].long().tolist())
        self._start_masks()
        if kept is not None:
            append_kept(batch, kept[:, :1])
        if top is not None:
            append_top_logprobs(batch, top[:, :1])
        return DecodeOutput(num_steps, decoded_tokens(batch, results[:, :1], end_ids))

    def _start_masks(self) -> None:
        """Start to compute the masks of the logits that are on their way."""
        if self._batch is not None:
            self.masks.start_beside_host(self._batch)

    def _launch(self, running: list[RunningRequest]) -> int:
        """Start to compute the logits of the next tokens, if any request needs them; the number of steps started.

        While another step is under way its tokens count too: a request may turn out to have ended, no more.
        """
        if not any_constrained(running) or all(req.num_scheduled >= req.max_new_tokens for req in running):
            return 0
        runner, num_rows = self.runner, self.runner.batch_size(len(running))
        if num_rows > len(self._logits):
            self.reset_graphs()
            self._logits = torch.empty(num_rows, self._logits.shape[1], device=runner.device)
        key = (num_rows, runner.adapters_of(running), runner.groups.update(list(running)))
        runner.send_slots([req.slot for req in running], num_rows)
        for req in running:
            req.num_scheduled += 1
        self._batch = list(running)
        if not runner.capturing:
            self._forward(*key)
            return 1
        if key not in self._forward_graphs:
            self._forward_graphs[key] = runner.capture(lambda: self._forward(*key), lambda: self._forward(*key))
        self._forward_graphs[key].replay()
        return 1

    @torch.inference_mode()
    def _forward(self, num_rows: int, adapters: tuple[str, ...], joint: bool) -> None:
        self._logits[:num_rows] = self.runner.next_logits(num_rows, adapters, joint)

    def _sample(self, batch: list[RunningRequest]) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Sample from the logits of a batch and copy what comes of it to the host: where it will be.

        The slot of a request that has ended since may belong to another one already: its row has the padding slot.
        """
        runner, num_rows = self.runner, self.runner.batch_size(len(batch))
        if batch != self._flags.batch:
            self._flags = BatchFlags(batch, any_filtered(batch), any_top_logprobs(batch))
        filtered, with_top = self._flags.filtered, self._flags.with_top
        kept = runner.kept_buffers(batch) if filtered else None
        top = runner.top_buffers(batch) if with_top else None
        padding = runner.kv_cache.padding_slot
        runner.send_slots([padding if req.finished else req.slot for req in batch], num_rows)
        self.masks.wait()
        self._device_masks[:num_rows].copy_(self.masks.tensor[:num_rows], non_blocking=True)
        key = (num_rows, filtered, with_top)
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
