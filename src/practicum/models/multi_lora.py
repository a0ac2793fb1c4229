"""Several LoRA adapters over one base at once: each row of a batch wears its own.

The low-rank matrices of all adapters stand side by side, so a layer costs two more small products however
many adapters there are; a row's mask lets only its own adapter's columns through. For decoding only: training
goes through PEFT's own layers.
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
from torch import Tensor

from practicum.errors import UserError, did_you_mean
from practicum.models.decoder import Aside, Decoder, Fused, Worn

BASE = ""
"""The name of the base model itself, without an adapter."""
KEY = re.compile(r"(?:base_model\.model\.)?model\.layers\.(\d+)\.(?:self_attn|mlp)\.(\w+)\.lora_(A|B)\.weight")
GROUPS: Mapping[str, tuple[str, ...]] = {
    "qkv": ("q_proj", "k_proj", "v_proj"),
    "out": ("o_proj",),
    "gate_up": ("gate_proj", "up_proj"),
    "down": ("down_proj",),
}


@dataclass(frozen=True)
class Adapter:
    """One adapter's matrices by (layer, projection): A [r, in] and B [out, r], its scale already in B."""

    rank: int
    parts: Mapping[tuple[int, str], tuple[Tensor, Tensor]]


class MultiLoRA:
    """Adapters by name, and for every layer their matrices side by side."""

    def __init__(self, decoder: Decoder) -> None:
        if not all(fused.plain for _, _, fused in _groups(decoder)):
            raise UserError("Adapters can be served over plain weights only: merge the adapter that the model has.")
        self.decoder = decoder
        self._adapters: dict[str, Adapter] = {}
        self._starts: dict[str, int] = {}
        self.width = 0
        """Columns of all adapters together."""
        self._worn = Worn()

    def __contains__(self, name: str) -> bool:
        return name == BASE or name in self._adapters

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(self._adapters)

    def add(self, name: str, adapter: Adapter) -> None:
        """One of the same name is replaced."""
        if name == BASE:
            raise UserError("An adapter needs a name.")
        self._adapters[name] = adapter
        self._lay_out()

    def remove(self, name: str) -> None:
        self.check(name)
        self._adapters.pop(name, None)
        self._lay_out()

    def check(self, name: str) -> None:
        if name not in self:
            raise UserError(f"There is no adapter '{name}' on this engine.{did_you_mean(name, self.names)}")

    def columns(self, names: Sequence[str]) -> Tensor:
        """Which columns each of these rows lets through [rows, width]."""
        mask = torch.zeros(len(names), self.width, dtype=self.decoder.dtype, device=self.decoder.device)
        for row, name in enumerate(names):
            if name != BASE:
                mask[row, self._starts[name] : self._starts[name] + self._adapters[name].rank] = 1
        return mask

    def select(self, columns: Tensor | None) -> None:
        """What the passes that follow wear: a mask that broadcasts over their tokens [.., width], or nothing."""
        self._worn.columns = columns

    def _lay_out(self) -> None:
        self._starts, self.width = {}, 0
        for name, adapter in self._adapters.items():
            self._starts[name] = self.width
            self.width += adapter.rank
        for number, projections, fused in _groups(self.decoder):
            fused.aside = self._side_by_side(number, projections, fused)

    def _side_by_side(self, number: int, projections: Sequence[str], fused: Fused) -> Aside | None:
        """Of one product: A [width · projections, in] and B [out, width · projections], zero where there is none."""
        if not any((number, projection) in a.parts for a in self._adapters.values() for projection in projections):
            return None
        assert fused.weight is not None
        down = fused.weight.new_zeros(len(projections), self.width, fused.weight.shape[1])
        up = fused.weight.new_zeros(fused.weight.shape[0], len(projections), self.width)
        row = 0
        for place, (projection, size) in enumerate(zip(projections, fused.sizes, strict=True)):
            for name, adapter in self._adapters.items():
                if (number, projection) in adapter.parts:
                    columns = slice(self._starts[name], self._starts[name] + adapter.rank)
                    down[place, columns], up[row : row + size, place, columns] = adapter.parts[number, projection]
            row += size
        return Aside(down.flatten(0, 1), up.flatten(1), len(projections), self._worn)


def read_adapter(folder: str | Path, decoder: Decoder) -> Adapter:
    """A PEFT folder as matrices that fit the decoder."""
    path = Path(folder)
    try:
        config: dict[str, Any] = json.loads((path / "adapter_config.json").read_text(encoding="utf-8"))
        tensors = load_file(path / "adapter_model.safetensors")
    except FileNotFoundError as error:
        raise UserError(
            f"'{folder}' is not an adapter (it needs adapter_config.json and adapter_model.safetensors)."
        ) from error
    except (ValueError, SafetensorError) as error:
        raise UserError(f"The adapter in '{folder}' cannot be read: {error}") from error
    for key, plain in (("use_dora", False), ("bias", "none"), ("modules_to_save", None), ("peft_type", "LORA")):
        if config.get(key, plain) not in (plain, [], ""):
            raise UserError(
                f"Adapter '{folder}' has {key}={config[key]}, which cannot be served beside others; "
                "`practicum merge` it and serve the merged model."
            )
    found: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        matched = KEY.fullmatch(name)
        if matched is None:
            raise UserError(
                f"Adapter '{folder}' changes '{name}', which is no projection of a layer; merge it instead."
            )
        found.setdefault((int(matched[1]), matched[2]), {})[matched[3]] = tensor
    sizes = {
        (number, projection): (size, int(fused.weight.shape[1]))
        for number, projections, fused in _groups(decoder)
        if fused.weight is not None
        for projection, size in zip(projections, fused.sizes, strict=True)
    }
    ranks = {pair["A"].shape[0] for pair in found.values() if "A" in pair}
    widest = max(ranks, default=0)
    parts: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
    for place, pair in found.items():
        number, projection = place
        shapes = {letter: tuple(matrix.shape) for letter, matrix in pair.items()}
        rank = shapes.get("A", (0,))[0]
        if place not in sizes or shapes != {"A": (rank, sizes[place][1]), "B": (sizes[place][0], rank)}:
            raise UserError(
                f"Adapter '{folder}' does not fit this model: its layer {number} {projection} has {shapes}."
            )
        full = f"model.layers.{number}.{'mlp' if projection in ('gate_proj', 'up_proj', 'down_proj') else 'self_attn'}"
        scale = _scale(config, f"{full}.{projection}", rank)
        down = torch.zeros(widest, sizes[place][1])
        up = torch.zeros(sizes[place][0], widest)
        down[:rank], up[:, :rank] = pair["A"].float(), pair["B"].float() * scale
        parts[place] = (down, up)
    if not parts:
        raise UserError(f"Adapter '{folder}' holds no matrices.")
    return Adapter(widest, parts)


def _scale(config: Mapping[str, Any], module: str, rank: int) -> float:
    """alpha over rank, as PEFT has it, patterns included."""
    alpha = float(config["lora_alpha"])
    for pattern, value in (config.get("alpha_pattern") or {}).items():
        if re.fullmatch(rf"(.*\.)?({pattern})", module):
            alpha = float(value)
            break
    return alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)


def _groups(decoder: Decoder) -> Iterator[tuple[int, tuple[str, ...], Fused]]:
    for number, layer in enumerate(decoder.layers):
        for group, projections in GROUPS.items():
            yield number, projections, getattr(layer, group)
