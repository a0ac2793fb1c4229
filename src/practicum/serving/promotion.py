"""A server that follows the registry of promoted models: it takes up what is current, also after a rollback.

A new version is loaded beside the one in use and counts only if its files are whole and its log-probs are the
learner's; requests under way end with the version that they began with.
"""

from __future__ import annotations

import asyncio
import gc
import logging
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from practicum.chat.renderer import Renderer
from practicum.data.model_registry import ModelRegistry, ModelVersion
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.canary import PROMPTS, REPLY_TOKENS
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Message, Observation
from practicum.errors import UserError
from practicum.policy import NO_TASK
from practicum.serving.served_models import ModelLoader, ServedModel, ServedModels, with_name

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0
MAX_DIFFERENCE = {torch.float32: 1e-4, torch.bfloat16: 0.05}
"""Mean absolute difference per token between served log-probs and the learner's, at most, by the dtype of the weights:
in bfloat16 the same sums in another order differ in the second digit."""

Prompts = Sequence[tuple[int, ...]]


def default_prompts(renderer: Renderer) -> list[tuple[int, ...]]:
    """Prompts of plain questions, where no stored episodes are given."""
    questions = [renderer.start([Message("user", text)]) for text in PROMPTS]
    return [tuple(token for span in spans for token in span.ids) for spans in questions]


async def logprob_difference(model: ServedModel, ref: ModelRef, prompts: Prompts) -> float:
    """The mean absolute difference per token between a served model's log-probs and those of the learner's forward."""

    async def sample(index: int, prompt: tuple[int, ...]) -> Generation:
        sampling = Sampling(1.0, max_tokens=min(REPLY_TOKENS, model.context - len(prompt)), seed=index)
        return await model.engine.generate(
            Request(prompt, sampling, NO_TASK, Observation(), (), final=True, adapter=model.adapter)
        )

    fitting = [prompt for prompt in prompts if len(prompt) < model.context]
    replies = await asyncio.gather(*(sample(index, prompt) for index, prompt in enumerate(fitting)))
    return await asyncio.to_thread(_difference, ref, model, list(zip(fitting, replies, strict=True)))


@torch.inference_mode()
def _difference(ref: ModelRef, model: ServedModel, replies: list[tuple[tuple[int, ...], Generation]]) -> float:
    """Load the model as training does, with PEFT's own layers, and score what the engine sampled."""
    assert isinstance(model.engine, LocalEngine), "a registry is followed with an engine of our own"
    decoder = model.engine.decoder
    loaded = ref.load(decoder.dtype, str(decoder.device))
    differences: list[float] = []
    for prompt, reply in replies:
        ids = torch.tensor([[*prompt, *reply.ids]], device=decoder.device)
        logprobs = loaded.model(input_ids=ids).logits[0, len(prompt) - 1 : -1].float().log_softmax(-1)
        expected = logprobs.gather(1, ids[0, len(prompt) :, None])[:, 0].tolist()
        differences += [abs(a - b) for a, b in zip(expected, reply.logprobs or (), strict=True)]
    del loaded
    gc.collect()
    return sum(differences) / max(1, len(differences))


@dataclass
class PromotionFollower:
    """Serves the current version of a name in a registry."""

    registry: ModelRegistry
    name: str
    loader: ModelLoader
    prompts: Prompts = ()
    """Prompts of stored episodes that a new version is checked on; none: plain questions."""
    models: ServedModels | None = None
    served_name: str = ""
    """Its name in the API."""
    version: int = 0
    """The version in use."""
    refused: dict[int, str] = field(default_factory=dict)
    """Versions that did not count, and why."""

    async def start(self, served_name: str) -> ServedModels:
        """Load the current version; UserError where there is none, or where it does not count."""
        version = self.registry.current(self.name)
        ref = resolve_model(str(version.model))
        base_name = served_name if ref.adapter is None else ref.model
        base = await asyncio.to_thread(self.loader.load_base, base_name, ref, version.number)
        self.models = ServedModels(base)
        served = base
        if ref.adapter is not None:
            served = self.models.serve_model(
                await self.models.prepare_adapter(served_name, ref.adapter, version.number)
            )
        await self._check(served, ref, version)
        self.version, self.served_name = version.number, served_name
        return self.models

    async def follow(self) -> None:
        """Look for another version again and again."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            try:
                await self.update()
            except Exception:  # whatever is wrong with a new version, the one in use goes on
                logger.exception("the registry '%s' could not be followed", self.registry.root)

    async def update(self) -> bool:
        """Take up the current version, if it is another one and counts; return whether it was."""
        linked = self.registry.linked(self.name)
        if linked is None or linked.number == self.version or linked.number in self.refused:
            return False
        try:
            damage = await asyncio.to_thread(lambda: linked.damage)
            if damage is not None:
                raise UserError(f"it is damaged ({damage})")
            model, base, ref = await self._load(linked)
            try:
                await self._check(model, ref, linked)
            except BaseException:
                await self.served.free(model)
                raise
        except UserError as error:
            self.refused[linked.number] = str(error)
            logger.error("version %d of '%s' is not used: %s", linked.number, self.name, error)
            return False
        self.served.serve_model(model)
        self.served.replace_base(base)
        logger.warning("version %d of '%s' is served, after version %d", linked.number, self.name, self.version)
        self.version = linked.number
        return True

    @property
    def served(self) -> ServedModels:
        assert self.models is not None, "start comes first"
        return self.models

    async def _load(self, version: ModelVersion) -> tuple[ServedModel, ServedModel, ModelRef]:
        """The version's model, not served yet, and the base model that the server has with it: an
        adapter over the engine that has its base model, or over a new engine, or a full model, its own base."""
        ref = await asyncio.to_thread(resolve_model, str(version.model))
        if ref.adapter is not None and ref.model == self.served.default.root:
            base = with_name(self.served.default, ref.model)  # the adapter may take over the name that it has now
            return await self.served.prepare_adapter(self.served_name, ref.adapter, version.number, base), base, ref
        base_name = self.served_name if ref.adapter is None else ref.model
        base = await asyncio.to_thread(self.loader.load_base, base_name, ref, version.number)
        if ref.adapter is None:
            return base, base, ref
        try:
            return await self.served.prepare_adapter(self.served_name, ref.adapter, version.number, base), base, ref
        except BaseException:
            await base.engine.close()
            raise

    async def _check(self, model: ServedModel, ref: ModelRef, version: ModelVersion) -> None:
        prompts = self.prompts or default_prompts(model.renderer)
        difference = await logprob_difference(model, ref, prompts)
        assert isinstance(model.engine, LocalEngine), "a registry is followed with an engine of our own"
        limit = MAX_DIFFERENCE[model.engine.decoder.dtype]
        if not difference <= limit:
            raise UserError(
                f"Version {version.number} of '{self.name}' is served {difference:.3g} per token away from the "
                f"learner's log-probs (limit {limit:g})."
            )
