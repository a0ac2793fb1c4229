"""Several LoRA adapters over one base model at once: each row of a batch has its own.

A row gets what PEFT's layers would compute for it, operation by operation, so that engine and learner agree to the
last bit. On a CPU each adapter is computed for its own rows. On a GPU, where captured graphs have fixed shapes, the
adapters of a batch are computed for all rows and added to their own ones. For decoding only: training goes through
PEFT's own layers.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from practicum.errors import UserError, did_you_mean
from practicum.models.decoder import (
    AdapterSelection,
    Decoder,
    FusedLinear,
    LowRankUpdate,
    MaskedAdapters,
    RowAdapters,
)

BASE = ""
"""The name of the base model itself, without an adapter."""
ROW_MULTIPLE = 8
"""Rows of an adapter are padded to a multiple of this: a row's numbers then do not depend on the others."""
KEY = re.compile(r"(?:base_model\.model\.)?model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_(A|B)\.weight")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


@dataclass(frozen=True)
class Adapter:
    """One adapter's matrices by (layer, projection): A [r, in], B [out, r] and the scale."""

    parts: Mapping[tuple[int, str], tuple[Tensor, Tensor, float]]


class MultiLoRA:
    """Adapters by name, and their matrices in every layer of a decoder."""

    def __init__(self, decoder: Decoder, masked: bool) -> None:
        """`masked`: whether adapters are computed for all rows and added to their own ones (`MaskedAdapters`)."""
        if not all(fused.plain for _, _, fused in _groups(decoder)):
            raise UserError("Adapters can be served over plain weights only: merge the adapter that the model has.")
        self.decoder = decoder
        self._adapters: dict[str, Adapter] = {}
        self._type = MaskedAdapters if masked else RowAdapters
        self._selection = AdapterSelection()

    def __contains__(self, name: str) -> bool:
        return name == BASE or name in self._adapters

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    def add(self, name: str, adapter: Adapter) -> None:
        """Add an adapter, or replace the one of the same name."""
        if name == BASE:
            raise UserError("An adapter needs a name.")
        to = (self.decoder.device, self.decoder.dtype)  # once: a later change of other adapters copies nothing
        parts = {key: (down.to(*to), up.to(*to), scale) for key, (down, up, scale) in adapter.parts.items()}
        self._adapters[name] = Adapter(parts)
        self._set_all()

    def remove(self, name: str) -> None:
        self.check(name)
        self._adapters.pop(name, None)
        self._set_all()

    def check(self, name: str) -> None:
        if name not in self:
            raise UserError(f"There is no adapter '{name}' on this engine.{did_you_mean(name, self.names)}")

    def index(self, name: str) -> int:
        """The index of an adapter among all; -1: the base model."""
        return -1 if name == BASE else self.names.index(name)

    def select(self, names: Sequence[str], indices: Tensor | None) -> None:
        """Set the adapters of the passes that follow; `indices` [..]: that of each token's adapter (`index`)."""
        self._selection.excluded = None
        if names and indices is not None:
            self._selection.excluded = {name: (indices != self.index(name))[..., None] for name in names}

    def select_rows(self, names: Sequence[str]) -> None:
        """Set the adapters of the first rows of this thread's next pass; rows behind them have none."""
        result: list[tuple[str, Tensor | None, int]] = []
        used = set(names)
        for name in dict.fromkeys(names):
            if name != BASE and len(used) == 1:  # rows behind them only pad the batch
                result.append((name, None, len(names)))
            elif name != BASE:
                rows = [row for row, other in enumerate(names) if other == name]
                padding = [rows[-1]] * (-len(rows) % ROW_MULTIPLE)
                result.append((name, torch.tensor(rows + padding), len(rows)))
        self._selection.rows = result

    def _set_all(self) -> None:
        for index, projections, fused in _groups(self.decoder):
            fused.adapters = self._of_layer(index, projections, fused)

    def _of_layer(
        self, index: int, projections: Sequence[str], fused: FusedLinear
    ) -> MaskedAdapters | RowAdapters | None:
        updates: dict[str, list[LowRankUpdate]] = {}
        start = 0
        for projection, size in zip(projections, fused.sizes, strict=True):
            for name, adapter in self._adapters.items():
                if (index, projection) in adapter.parts:
                    update = LowRankUpdate(slice(start, start + size), *adapter.parts[index, projection])
                    updates.setdefault(name, []).append(update)
            start += size
        return self._type(updates, self._selection) if updates else None


def read_adapter(source: str | Path | nn.Module, decoder: Decoder) -> Adapter:
    """The matrices of a PEFT folder, or a copy of those that a PEFT model has now, as they fit the decoder."""
    if isinstance(source, nn.Module):
        config, tensors = _model_files(source)
        return _fitting(config, tensors, decoder, "of the model")
    return _fitting(*_read_files(Path(source)), decoder, f"'{source}'")


def _fitting(config: Mapping[str, Any], tensors: Mapping[str, Tensor], decoder: Decoder, label: str) -> Adapter:
    for option, plain in (("use_dora", False), ("bias", "none"), ("modules_to_save", None), ("peft_type", "LORA")):
        if config.get(option, plain) not in (plain, [], ""):
            raise UserError(
                f"Adapter {label} has {option}={config[option]}, which cannot be served beside others; "
                "`practicum merge` it and serve the merged model."
            )
    pairs: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        matched = KEY.fullmatch(name)
        if matched is None:
            raise UserError(f"Adapter {label} changes '{name}', which is no projection of a layer; merge it instead.")
        pairs.setdefault((int(matched[1]), matched[2]), {})[matched[3]] = tensor
    if not pairs:
        raise UserError(f"Adapter {label} holds no matrices.")
    sizes = {
        (index, projection): (size, int(fused.weight.shape[1]))
        for index, projections, fused in _groups(decoder)
        if fused.weight is not None
        for projection, size in zip(projections, fused.sizes, strict=True)
    }
    parts: dict[tuple[int, str], tuple[Tensor, Tensor, float]] = {}
    for key, pair in pairs.items():
        index, projection = key
        shapes = {letter: tuple(matrix.shape) for letter, matrix in pair.items()}
        rank = shapes.get("A", (0,))[0]
        if key not in sizes or shapes != {"A": (rank, sizes[key][1]), "B": (sizes[key][0], rank)}:
            raise UserError(f"Adapter {label} does not fit this model: its layer {index} {projection} has {shapes}.")
        block = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        scale = _scale(config, f"model.layers.{index}.{block}.{projection}", rank)
        parts[key] = (pair["A"], pair["B"], scale)
    return Adapter(parts)


def _read_files(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and the tensors of a PEFT folder."""
    try:
        config: dict[str, Any] = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
        return config, load_file(folder / "adapter_model.safetensors")
    except FileNotFoundError as error:
        raise UserError(
            f"'{folder}' is not an adapter (it needs adapter_config.json and adapter_model.safetensors)."
        ) from error
    except (ValueError, SafetensorError) as error:
        raise UserError(f"The adapter in '{folder}' cannot be read: {error}") from error


def _model_files(model: nn.Module) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """The config and copies of the tensors that a PEFT model would write."""
    import peft

    if not isinstance(model, peft.PeftModel):
        raise UserError("Only a model with a LoRA adapter (`add_adapter`) has an adapter to serve.")
    state = peft.get_peft_model_state_dict(model)
    config = model.peft_config[model.active_adapter].to_dict()
    config["peft_type"] = getattr(config["peft_type"], "value", config["peft_type"])
    return config, {name: tensor.detach().clone() for name, tensor in state.items()}


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """alpha over rank, as PEFT computes it, patterns included."""
    alpha = float(config["lora_alpha"])
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _groups(decoder: Decoder) -> Iterator[tuple[int, tuple[str, ...], FusedLinear]]:
    for index, layer in enumerate(decoder.layers):
        for group, projections in GROUPS.items():
            yield index, projections, getattr(layer, group)
