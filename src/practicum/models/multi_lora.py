"""Several LoRA adapters over one base model at once: each row of a batch has its own.

The low-rank matrices of all adapters are joined, so a layer costs two more small products however many adapters there
are; a row's mask selects its own adapter's columns. For decoding only: training goes through PEFT's own layers.
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
from practicum.models.decoder import AdapterMatrices, AdapterSelection, Decoder, FusedLinear

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
    """Adapters by name, and their joined matrices in every layer of a decoder."""

    def __init__(self, decoder: Decoder) -> None:
        if not all(fused.plain for _, _, fused in _groups(decoder)):
            raise UserError("Adapters can be served over plain weights only: merge the adapter that the model has.")
        self.decoder = decoder
        self._adapters: dict[str, Adapter] = {}
        self._starts: dict[str, int] = {}
        self.width = 0
        """Columns of all adapters together."""
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
        self._adapters[name] = adapter
        self._join_all()

    def remove(self, name: str) -> None:
        self.check(name)
        self._adapters.pop(name, None)
        self._join_all()

    def check(self, name: str) -> None:
        if name not in self:
            raise UserError(f"There is no adapter '{name}' on this engine.{did_you_mean(name, self.names)}")

    def columns(self, names: Sequence[str]) -> Tensor:
        """A mask of the columns that each row's adapter has [rows, width]."""
        mask = torch.zeros(len(names), self.width, dtype=self.decoder.dtype, device=self.decoder.device)
        for row, name in enumerate(names):
            if name != BASE:
                mask[row, self._starts[name] : self._starts[name] + self._adapters[name].rank] = 1
        return mask

    def select(self, mask: Tensor | None) -> None:
        """Set the adapters of the passes that follow: a mask that broadcasts over their tokens [.., width], or None."""
        self._selection.mask = mask

    def _join_all(self) -> None:
        self._starts, self.width = {}, 0
        for name, adapter in self._adapters.items():
            self._starts[name] = self.width
            self.width += adapter.rank
        for index, projections, fused in _groups(self.decoder):
            fused.adapters = self._join(index, projections, fused)

    def _join(self, index: int, projections: Sequence[str], fused: FusedLinear) -> AdapterMatrices | None:
        """A [width · projections, in] and B [out, width · projections] of all adapters, zero where one has none."""
        if not any((index, projection) in a.parts for a in self._adapters.values() for projection in projections):
            return None
        assert fused.weight is not None
        down = fused.weight.new_zeros(len(projections), self.width, fused.weight.shape[1])
        up = fused.weight.new_zeros(fused.weight.shape[0], len(projections), self.width)
        row = 0
        for part, (projection, size) in enumerate(zip(projections, fused.sizes, strict=True)):
            for name, adapter in self._adapters.items():
                if (index, projection) in adapter.parts:
                    columns = slice(self._starts[name], self._starts[name] + adapter.rank)
                    down[part, columns], up[row : row + size, part, columns] = adapter.parts[index, projection]
            row += size
        return AdapterMatrices(down.flatten(0, 1), up.flatten(1), len(projections), self._selection)


def read_adapter(folder: str | Path, decoder: Decoder) -> Adapter:
    """Read a PEFT folder as matrices that fit the decoder."""
    config, tensors = _read_files(Path(folder))
    for option, plain in (("use_dora", False), ("bias", "none"), ("modules_to_save", None), ("peft_type", "LORA")):
        if config.get(option, plain) not in (plain, [], ""):
            raise UserError(
                f"Adapter '{folder}' has {option}={config[option]}, which cannot be served beside others; "
                "`practicum merge` it and serve the merged model."
            )
    pairs: dict[tuple[int, str], dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        matched = KEY.fullmatch(name)
        if matched is None:
            raise UserError(
                f"Adapter '{folder}' changes '{name}', which is no projection of a layer; merge it instead."
            )
        pairs.setdefault((int(matched[1]), matched[2]), {})[matched[3]] = tensor
    if not pairs:
        raise UserError(f"Adapter '{folder}' holds no matrices.")
    sizes = {
        (index, projection): (size, int(fused.weight.shape[1]))
        for index, projections, fused in _groups(decoder)
        if fused.weight is not None
        for projection, size in zip(projections, fused.sizes, strict=True)
    }
    max_rank = max((pair["A"].shape[0] for pair in pairs.values() if "A" in pair), default=0)
    parts: dict[tuple[int, str], tuple[Tensor, Tensor]] = {}
    for key, pair in pairs.items():
        index, projection = key
        shapes = {letter: tuple(matrix.shape) for letter, matrix in pair.items()}
        rank = shapes.get("A", (0,))[0]
        if key not in sizes or shapes != {"A": (rank, sizes[key][1]), "B": (sizes[key][0], rank)}:
            raise UserError(f"Adapter '{folder}' does not fit this model: its layer {index} {projection} has {shapes}.")
        block = "mlp" if projection in ("gate_proj", "up_proj", "down_proj") else "self_attn"
        scale = _scale(config, f"model.layers.{index}.{block}.{projection}", rank)
        down = torch.zeros(max_rank, sizes[key][1])
        up = torch.zeros(sizes[key][0], max_rank)
        down[:rank], up[:, :rank] = pair["A"].float(), pair["B"].float() * scale
        parts[key] = (down, up)
    return Adapter(max_rank, parts)


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
