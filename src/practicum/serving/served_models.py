"""The models of a server by name: a base model, its adapters, and how one is replaced while requests are under way.

Every name leads to a `ServedModel`. A request holds a lease on the one that it began with; a model that was replaced or
removed is freed when its last lease ends, so that no request is dropped and none changes its weights half-way. An
adapter has a new name within the engine each time it is loaded, so that nothing cached of the old one is used for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from practicum.chat.renderer import Renderer
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.local.engine import LocalEngine
from practicum.engines.vllm.running_server import RunningVLLM
from practicum.errors import EngineError, UserError, did_you_mean
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.loader import Device
from practicum.serving.errors import APIError

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class ServedModel:
    """A model or adapter under a name."""

    name: str
    engine: LocalEngine | RunningVLLM
    renderer: Renderer
    root: str
    """Where its files are."""
    adapter: str = ""
    """Its name within the engine; "" is the engine's own model."""
    parent: str | None = None
    version: int | None = None
    """Its number in the registry of promoted models."""
    max_model_len: int | None = None
    created: int = field(default_factory=lambda: int(time.time()))
    num_leases: int = 0
    retired: bool = False

    @property
    def context(self) -> int:
        """Tokens of prompt and reply together, at most."""
        engine = self.engine
        own = engine.context if isinstance(engine, RunningVLLM) else engine.decoder.shape.context
        return own if self.max_model_len is None else min(own, self.max_model_len)

    @property
    def fingerprint(self) -> str:
        version = "" if self.version is None else f"-v{self.version}"
        return f"practicum-{self.adapter or self.name}{version}"


class ServedModels:
    """All models of a server. The default is the base model, which adapters are loaded over."""

    def __init__(self, base: ServedModel) -> None:
        self._models: dict[str, ServedModel] = {base.name: base}
        self._default_name = base.name
        self._retired: set[ServedModel] = set()
        """Models that are no longer served and not freed yet: their requests still use their engine."""
        self._aliases: dict[str, str] = {}
        self._numbers = itertools.count(1)
        self._freeing: set[asyncio.Task[None]] = set()

    @property
    def default(self) -> ServedModel:
        return self._models[self._default_name]

    def list_models(self) -> list[ServedModel]:
        """All names with their models, other names of one model too."""
        named = {**self._models, **{alias: self._models[name] for alias, name in self._aliases.items()}}
        return [with_name(model, name) for name, model in named.items()]

    def add_alias(self, alias: str, name: str) -> None:
        if alias in self._models or alias in self._aliases:
            raise UserError(f"Two models would be served as '{alias}'; choose another name.")
        self._aliases[alias] = name

    def get(self, name: str) -> ServedModel:
        model = self._models.get(self._aliases.get(name, name))
        if model is None:
            names = (*self._models, *self._aliases)
            raise APIError(
                404, f"The model '{name}' does not exist.{did_you_mean(name, names)}", "model", "model_not_found"
            )
        return model

    @contextlib.contextmanager
    def lease(self, name: str) -> Iterator[ServedModel]:
        """The model of a name, which stays as it is until the block ends."""
        model = self.get(name)
        model.num_leases += 1
        try:
            yield model
        finally:
            model.num_leases -= 1
            if model.retired and model.num_leases == 0:
                self._free_later(model)

    async def load_adapter(self, name: str, folder: str | Path, version: int | None = None) -> ServedModel:
        """Serve an adapter under a name, in place of the one that has the name."""
        base = self.default
        if name == base.name or name in self._aliases:
            raise UserError(f"'{name}' is the name of the base model; give the adapter another one.")
        return self.serve_model(await self.prepare_adapter(name, folder, version))

    async def prepare_adapter(
        self, name: str, folder: str | Path, version: int | None = None, base: ServedModel | None = None
    ) -> ServedModel:
        """Load an adapter over a base model (the default one) without giving it its name yet."""
        base = base or self.default
        ref = await asyncio.to_thread(resolve_model, str(folder), base.root)
        if ref.adapter is None:
            raise UserError(f"'{folder}' is no adapter; it has no adapter_config.json.")
        renderer = await asyncio.to_thread(_renderer_of, ref, base)
        used_names = await base.engine.model_names() if isinstance(base.engine, RunningVLLM) else set()
        internal = next(free for number in self._numbers if (free := f"{name}#{number}") not in used_names)
        await base.engine.load_adapter(internal, ref.adapter)
        return ServedModel(
            name, base.engine, renderer, ref.adapter, internal, base.name, version, base.max_model_len
        )  # fmt: skip

    def serve_model(self, model: ServedModel) -> ServedModel:
        """Serve a model under its name from here on; the one that had the name ends with its last request."""
        before = self._models.get(model.name)
        self._models[model.name] = model
        if before is not None and before is not model:
            self._retire(before)
        return model

    def replace_base(self, base: ServedModel) -> None:
        """Serve another base model and make it the default. The one before, if its name is another one, is no longer
        served; adapters that were loaded over it stay with it until they are replaced or unloaded themselves."""
        before = self.default
        self.serve_model(base)
        self._default_name = base.name
        if before.name != base.name and not before.adapter:
            self._stop_serving(before)

    def remove_adapter(self, name: str) -> None:
        """Stop serving an adapter."""
        model = self.get(name)
        if not model.adapter:
            raise UserError(f"'{name}' is the base model; only adapters can be unloaded.")
        self._stop_serving(model)

    def _stop_serving(self, model: ServedModel) -> None:
        del self._models[model.name]
        self._aliases = {alias: target for alias, target in self._aliases.items() if target != model.name}
        self._retire(model)

    def _retire(self, model: ServedModel) -> None:
        model.retired = True
        self._retired.add(model)
        if model.num_leases == 0:
            self._free_later(model)

    def _free_later(self, model: ServedModel) -> None:
        task = asyncio.get_running_loop().create_task(self._free(model))
        self._freeing.add(task)
        task.add_done_callback(self._freeing.discard)

    async def free(self, model: ServedModel) -> None:
        """Free a model that was loaded and never served."""
        await self._free(model)

    async def _free(self, model: ServedModel) -> None:
        try:
            if model.adapter:
                await model.engine.unload_adapter(model.adapter)
        except (EngineError, UserError) as error:
            logger.warning("the adapter '%s' was not unloaded: %s", model.adapter, error)
        finally:
            self._retired.discard(model)
        if all(other.engine is not model.engine for other in (*self._models.values(), *self._retired)):
            await model.engine.close()

    async def close(self) -> None:
        await asyncio.gather(*self._freeing, return_exceptions=True)
        engines = {id(model.engine): model.engine for model in (*self._models.values(), *self._retired)}
        for engine in engines.values():
            await engine.close()


def with_name(model: ServedModel, name: str) -> ServedModel:
    """Return the same model of the same engine under another name."""
    return model if name == model.name else ServedModel(
        name, model.engine, model.renderer, model.root, model.adapter, model.parent, model.version,
        model.max_model_len, model.created,
    )  # fmt: skip


def _renderer_of(ref: ModelRef, base: ServedModel) -> Renderer:
    """The renderer of an adapter, whose chat template may be another one than its base model's."""
    tokenizer = ref.load_tokenizer()
    if tokenizer.chat_template == base.renderer.template or not tokenizer.chat_template:
        return base.renderer
    return Renderer(tokenizer, None, base.renderer.end_ids)


@dataclass(frozen=True)
class ModelLoader:
    """How models of this server are loaded."""

    device: Device
    template: str | None = None
    max_num_seqs: int | None = None
    max_model_len: int | None = None
    gpu_memory_utilization: float = 0.9
    prefix_cache_bytes: int | None = None
    """Memory for keys and values of past requests, at most; None: the engine's own default."""

    def load_base(self, name: str, ref: ModelRef, version: int | None = None) -> ServedModel:
        """Load a full model; of an adapter, its base model."""
        plain = ModelRef(ref.model)
        loaded = plain.load(self.device.dtype, self.device.device)
        renderer = Renderer(loaded.tokenizer, self.template, loaded.end_ids)
        decoder = Decoder(loaded.model)
        engine = LocalEngine(
            decoder,
            renderer,
            max_batch=self.max_num_seqs or self.device.batch_size,
            cache_bytes=self.prefix_cache_bytes,
            kv_bytes=self._kv_bytes(decoder),
        )
        return ServedModel(name, engine, renderer, ref.model, version=version, max_model_len=self.max_model_len)

    def load_running_vllm(self, name: str, ref: ModelRef, url: str, key: str | None) -> ServedModels:
        """A vLLM server's model, with the tokenizer and chat template of `ref`, and its adapters."""
        renderer = Renderer(loader.load_tokenizer(ref.model), self.template, loader.load_end_ids(ref.model))
        engine = RunningVLLM(renderer, url, key)
        models = ServedModels(ServedModel(name, engine, renderer, ref.model, max_model_len=self.max_model_len))
        for adapter in engine.adapter_names:
            models.serve_model(
                ServedModel(adapter, engine, renderer, adapter, adapter, name, max_model_len=self.max_model_len)
            )
        return models

    def _kv_bytes(self, decoder: Decoder) -> int | None:
        """Bytes of keys and values on a GPU: what is left of the share of its memory beside the weights."""
        if not self.device.on_gpu:
            return None
        import torch

        shape = decoder.shape
        window = min(shape.context, self.max_model_len or shape.context)
        window_bytes = 2 * shape.layers * shape.kv_heads * shape.head_size * decoder.dtype.itemsize * window
        free, total = torch.cuda.mem_get_info(self.device.device)
        room = int(free - (1 - self.gpu_memory_utilization) * total)
        if room < window_bytes:
            raise UserError(
                f"Beside the weights there is no room for a request of {window} tokens; give a shorter "
                "--max-model-len or a higher --gpu-memory-utilization."
            )
        return room
