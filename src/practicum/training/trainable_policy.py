"""The apprentice: one model with the engine that speaks for it and the learner that changes it.

Engine and learner read and write the same weights; a step of the learner is a new policy version of
the engine at once, and the engine's caches of the old one are gone. An engine that speaks while the
learner works has a copy of what is trained, and takes it over when it is told to.
"""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel

from practicum.agent import Agent
from practicum.chat.console import EpisodeWatcher
from practicum.chat.renderer import Renderer
from practicum.data.attempts import Attempt
from practicum.engines.base import PolicyEngine
from practicum.engines.local.engine import LocalEngine
from practicum.errors import UserError
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult, result_from_episodes
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.loader import LoadedModel
from practicum.rollout import MakeEnvironment, run_episodes
from practicum.training import forward
from practicum.training.learner import Learner
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.objective import Objective
from practicum.training.optimizer import OptimizerSettings
from practicum.trajectory import Trajectory

GPU_TOKENS = 16384
"""Tokens that one piece of a batch has at most on a GPU."""


class TrainablePolicy:
    """A model at work and in training."""

    def __init__(
        self,
        loaded: LoadedModel,
        template: str | None = None,
        *,
        max_batch: int = 64,
        limits: MicroBatchLimits | None = None,
        logprob_limits: MicroBatchLimits | None = None,
        make_engine: Callable[[Renderer], PolicyEngine] | None = None,
        apart: bool = False,
    ) -> None:
        self.loaded = loaded
        self.decoder = Decoder(loaded.model)
        self.renderer = Renderer(loaded.tokenizer, template, loaded.end_ids)
        self.engine: PolicyEngine
        self.apart = apart or make_engine is not None
        """Whether the engine may speak while the learner works: its weights are its own."""
        self.spoken: Decoder | None = self.decoder
        """What the engine in this process decodes with."""
        # Two that take turns may each have all threads; two at once have one each, and the same bits every time.
        self._threads = 1 if apart and self.decoder.device.type == "cpu" else None
        if make_engine is None:
            self.spoken = Decoder(mirrored(loaded.model)) if apart else self.decoder
            self.engine = LocalEngine(
                self.spoken, self.renderer, max_batch=max_batch, threads=self._threads, prefill_threads=self._threads
            )
        else:
            self.spoken, self.engine = None, make_engine(self.renderer)
        self.max_batch = max_batch
        self.limits = limits or MicroBatchLimits(
            GPU_TOKENS if self.decoder.device.type == "cuda" else MicroBatchLimits.tokens
        )
        self.logprob_limits = logprob_limits or self.limits
        """How passes without a gradient are cut."""
        self.version = 0
        self._adopted = False
        self.reference: Decoder | None = None
        self._learner: Learner | None = None
        self._stream: torch.cuda.Stream | None = None

    def reset_optimizer(self, settings: OptimizerSettings) -> None:
        """A fresh optimizer for a new stage; the weights stay."""
        self._learner = Learner(self.decoder, settings, self.limits, self._threads)

    def freeze_reference(self) -> None:
        """The weights as they are now, to measure the distance from: a frozen copy of what is trained, or what lies
        beneath an adapter that does nothing yet."""
        if self.loaded.adapter is not None and untouched(self.loaded.model):
            self.reference = Decoder(self.loaded.model, adapted=False)
        else:
            self.reference = Decoder(mirrored(self.loaded.model))

    @property
    def learner(self) -> Learner:
        if self._learner is None:
            raise UserError("Start a training stage before updating.")
        return self._learner

    def update(
        self,
        samples: Sequence[Sample],
        denominator: float,
        objective: Objective,
        lr: float,
        tick: Callable[[], None] | None = None,
    ) -> dict[str, float]:
        """One step of the learner, and a new version for the engine."""
        metrics = self.learner.update(samples, denominator, objective, lr, self.reference, tick)
        self.set_version(self.version + 1)
        return metrics

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """Around updates beside a rollout: on a GPU they have a stream of their own, or each would wait in the other's
        queue. What was computed is there when this ends."""
        if self.decoder.device.type != "cuda":
            yield
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(self.decoder.device)  # type: ignore[no-untyped-call]
        self._stream.wait_stream(torch.cuda.default_stream(self.decoder.device))
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    def set_version(self, version: int) -> None:
        """The weights are now those of `version`; the engine takes them over before the next rollout."""
        self.version = version
        self._adopted = False

    async def refresh(self) -> None:
        """The engine takes over the weights as they are now. No reply and no update may be under way."""
        if self._adopted:
            return
        if self.spoken is not None and self.spoken is not self.decoder:
            pairs = zip(self.spoken.model.parameters(), self.loaded.model.parameters(), strict=True)
            taken = [(copied.data, trained.data) for copied, trained in pairs if trained.requires_grad]
            torch._foreach_copy_([copied for copied, _ in taken], [trained for _, trained in taken])
        await self.engine.update_weights(self.version, self)
        self._adopted = True

    def score(self, prompt: Sequence[int], reply: Sequence[int]) -> list[float]:
        """Log-probs of a reply under the weights as they are now."""
        ids = (*prompt, *reply)
        mask = np.arange(len(ids)) >= len(prompt)
        nothing = np.zeros(len(ids), dtype=np.float32)
        (found,) = forward.logprobs(self.decoder, [Sample(ids, mask, nothing, nothing, nothing)], self.limits)
        values: list[float] = found.tolist()
        return values

    async def roll_out(
        self,
        planned: Sequence[Attempt],
        make_environment: MakeEnvironment,
        agent: Agent,
        *,
        concurrency: int | None = None,
        on_done: Callable[[Trajectory], None] | None = None,
        provenance: Mapping[str, Any] | None = None,
        watcher: EpisodeWatcher | None = None,
        refresh: bool = True,
    ) -> list[Trajectory]:
        """Episodes of the current policy; without `refresh`, of the one that the engine took over last."""
        if refresh:
            await self.refresh()
        return await run_episodes(
            planned,
            make_environment,
            agent,
            self.engine,
            self.renderer,
            concurrency=concurrency or 2 * self.max_batch,
            retries=1,
            provenance={"model": self.loaded.source, **(provenance or {})},
            on_done=on_done,
            watcher=watcher,
        )

    async def examine(
        self,
        name: str,
        panel: Panel,
        make_environment: MakeEnvironment,
        agent: Agent,
        on_done: Callable[[Trajectory], None] | None = None,
    ) -> tuple[EvalResult, list[Trajectory]]:
        """Score the current policy on a panel."""
        episodes = await self.roll_out(
            panel.attempts(), make_environment, agent, on_done=on_done, provenance={"panel": panel.hash}
        )
        return result_from_episodes(name, panel, episodes), episodes

    def write(self, folder: Path) -> None:
        """The model (or only its adapter) and its tokenizer, as Hugging Face and PEFT write them."""
        (self.loaded.adapter or self.loaded.model).save_pretrained(folder)
        self.loaded.tokenizer.chat_template = self.renderer.template  # what it was trained under
        self.loaded.tokenizer.save_pretrained(folder)

    def save(self, folder: Path) -> None:
        """The same, whole or not there."""
        self.loaded.tokenizer.chat_template = self.renderer.template  # what it was trained under
        loader.save(self.loaded, folder)

    async def close(self) -> None:
        await self.engine.close()


def untouched(model: PreTrainedModel) -> bool:
    """Whether a model's adapter is fresh: all its upper matrices are zero."""
    return not any(weight.any() for name, weight in model.named_parameters() if ".lora_B." in name)


def mirrored(model: PreTrainedModel) -> PreTrainedModel:
    """A copy of a model: what is trained is copied, what is frozen is the very same."""
    frozen: dict[int, Any] = {id(weight): weight for weight in model.parameters() if not weight.requires_grad}
    return copy.deepcopy(model, frozen).requires_grad_(False)
