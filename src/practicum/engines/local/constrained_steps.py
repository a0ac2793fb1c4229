"""Decode steps on a GPU while the replies of some requests must have a response format.

The tokens that may be sampled next depend on the last token, which the host has to see: a graph of several steps is not
possible. A step is two graphs, one up to the logits and one that samples. The host reads the tokens of a step and
computes the next masks, in another thread, while the GPU is at the next logits already, so it waits only where that
takes longer.
"""

from __future__ import annotations

from collections.abc import Sequence
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


class ConstrainedSteps:
    """Single decode steps of a `CudaRunner`, whose tokens are returned by the call that samples them."""

    def __init__(self, runner: CudaRunner, running: Sequence[RunningRequest]) -> None:
        self.runner = runner
        num_slots = runner.kv_cache.num_slots
        masks = batch_masks(running, num_slots, pin_memory=runner.capturing)
        assert masks is not None, "no request has a response format"
        self.masks: BatchMasks = masks
        self._device_masks = torch.full_like(masks.tensor, -1, device=runner.device)
        self._logits = torch.empty(0, runner.decoder.shape.vocabulary, device=runner.device)
        """The logits of a step [rows, V], which one graph writes and the other reads."""
        self._host_results = torch.zeros_like(runner.results, device="cpu", pin_memory=runner.capturing)
        self._host_kept: Tensor | None = None
        self._host_top: Tensor | None = None
        self._batch: list[RunningRequest] | None = None
        """The requests whose next logits are computed or on their way, in the order of the rows."""
        self._masked: list[RunningRequest] | None = None
        """The batch whose next masks are computed or on their way."""
        self._forward_graphs: dict[tuple[int, tuple[str, ...], bool], Any] = {}
        self._sample_graphs: dict[tuple[int, bool, bool], Any] = {}

    @property
    def is_pending(self) -> bool:
        """Whether logits are on their way that nothing was sampled from yet."""
        if self._batch is not None and all(one.finished for one in self._batch):
            self._batch = None
        return self._batch is not None

    @property
    def has_graphs(self) -> bool:
        return bool(self._forward_graphs or self._sample_graphs)

    def reset(self) -> None:
        """Forget the logits and masks that are on their way."""
        self._batch = self._masked = None

    def reset_graphs(self) -> None:
        """Drop captured graphs after buffers have moved."""
        self._forward_graphs.clear()
        self._sample_graphs.clear()

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        """Sample a token for every request whose logits are on their way, and start the next logits of `running`."""
        from practicum.engines.local.cuda_runner import decoded_tokens, record_event

        if not self.is_pending:
            self._launch(running)
        batch, self._batch = self._batch, None
        assert batch is not None
        if self._masked is not batch:
            self.masks.start(batch)
        self.masks.wait()
        self._sample(batch)
        done = record_event(self.runner.device)
        unfinished = [one for one in running if one.num_scheduled < one.max_new_tokens]
        if unfinished and any_constrained(running):
            self._launch(running)
        if done is not None:
            done.synchronize()
        if self._host_kept is not None:
            append_kept(batch, self._host_kept[:, :1])
        if self._host_top is not None:
            append_top_logprobs(batch, self._host_top[:, :1])
        tokens = decoded_tokens(batch, self._host_results[:, :1], end_ids)
        self.masks.append(batch, [ids[0] for _, ids, _, _ in tokens])
        self._masked = self._batch
        if self._masked is not None:  # beside what the engine does with the tokens
            self.masks.start(self._masked)
        return DecodeOutput(1, tokens)

    def _launch(self, running: list[RunningRequest]) -> None:
        """Start to compute the logits of the next tokens."""
        runner, num_rows = self.runner, self.runner.batch_size(len(running))
        if num_rows > len(self._logits):
            self.reset_graphs()
            self._logits = torch.empty(num_rows, self._logits.shape[1], device=runner.device)
        key = (num_rows, runner.adapters_of(running), runner.groups.update(list(running)))
        runner.send_slots([one.slot for one in running], num_rows)
        for one in running:
            one.num_scheduled += 1
        self._batch = list(running)
        if not runner.capturing:
            self._forward(*key)
            return
        if key not in self._forward_graphs:
            self._forward_graphs[key] = runner.capture(lambda: self._forward(*key), lambda: self._forward(*key))
        self._forward_graphs[key].replay()

    @torch.inference_mode()
    def _forward(self, num_rows: int, adapters: tuple[str, ...], joint: bool) -> None:
        self._logits[:num_rows] = self.runner.next_logits(num_rows, adapters, joint)

    def _sample(self, batch: list[RunningRequest]) -> None:
        """Sample the next tokens of a batch and copy them to the host.

        The slot of a request that has ended since may belong to another one already: its row has the padding slot.
        """
        runner, num_rows = self.runner, self.runner.batch_size(len(batch))
        padding = runner.kv_cache.padding_slot
        runner.send_slots([padding if one.finished else one.slot for one in batch], num_rows)
        self._device_masks[:num_rows].copy_(self.masks.tensor[:num_rows], non_blocking=True)
        key = (num_rows, any_filtered(batch), any_top_logprobs(batch))
        kept, top = runner.kept_buffers(batch), runner.top_buffers(batch)
        if runner.capturing:
            if key not in self._sample_graphs:
                self._sample_graphs[key] = self._capture_sampling(key)
            self._sample_graphs[key].replay()
        else:
            self._sample_rows(*key)
        self._host_results[:num_rows].copy_(runner.results[:num_rows], non_blocking=True)
        self._host_kept = None if kept is None else kept.copy_to_host(num_rows)
        self._host_top = None if top is None else top.copy_to_host(num_rows)

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
