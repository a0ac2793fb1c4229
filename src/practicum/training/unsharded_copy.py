"""An unsharded copy of a sharded model and of its optimizer's moments, for its engine and its files.

Files are those of one process, whatever the number of ranks: a checkpoint or a Hugging Face folder is written from, and
read into, an unsharded copy. Ranks with an engine have such a copy in any case, since an engine samples from full
weights; of a model without one, only the first rank has it, in host memory.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from practicum.models import sharding
from practicum.models.decoder import Decoder
from practicum.models.loader import LoadedModel
from practicum.training import ranks

MASTER = "master"
"""The moment that is a float32 copy of a weight in half precision; of a sharded model it is the weight itself."""


class UnshardedCopy:
    """An unsharded copy of a sharded model, and the moments of its optimizer by `<parameter>/<moment>`."""

    def __init__(self, loaded: LoadedModel, on_every_rank: bool) -> None:
        """Copy a model that is not sharded yet."""
        self.loaded: LoadedModel | None = None
        self.moments: dict[str, Tensor] = {}
        self.dtype = loaded.model.model.embed_tokens.weight.dtype
        if on_every_rank or ranks.own_rank() == 0:
            shared: dict[int, Any] = {}
            if self.dtype == torch.float32:  # shards of weights in half precision become float32 in place
                shared = {
                    id(parameter): parameter for parameter in loaded.model.parameters() if not parameter.requires_grad
                }
            model, adapter = copy.deepcopy((loaded.model, loaded.adapter), shared)
            model.requires_grad_(False)
            if not on_every_rank:
                model.to("cpu")
            self.loaded = replace(loaded, model=model, adapter=adapter)

    @property
    def model(self) -> LoadedModel:
        """The copy; only ranks that have one may call this."""
        assert self.loaded is not None
        return self.loaded

    def decoder(self) -> Decoder | None:
        """A decoder of the copy, for an engine; None on ranks that have no copy."""
        return None if self.loaded is None else Decoder(self.loaded.model)

    @torch.no_grad()
    def gather_weights(self, parameters: Mapping[str, nn.Parameter]) -> None:
        """Bring the copy up to date with the shards of all ranks, which all have to call this."""
        targets = {} if self.loaded is None else dict(self.loaded.model.named_parameters())
        for name, parameter in parameters.items():
            gathered = sharding.full_tensor(parameter)
            if name in targets:
                targets[name].copy_(gathered)

    @torch.no_grad()
    def gather_moments(self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
        """Bring the first rank's moments up to date; all ranks have to call this."""
        self.moments = {}
        for name, parameter in parameters.items():
            values = dict(optimizer.state.get(parameter, {}))
            if values and self.dtype != torch.float32:
                values[MASTER] = parameter
            for key, value in values.items():
                gathered = sharding.full_tensor(value.detach())
                if ranks.own_rank() == 0:
                    self.moments[f"{name}/{key}"] = gathered.to("cpu", copy=True).contiguous()

    @torch.no_grad()
    def scatter(
        self, parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer, device: torch.device
    ) -> None:
        """Give all ranks their shards of the first rank's weights and moments."""
        own = dict(self.model.model.named_parameters()) if ranks.own_rank() == 0 else {}
        for name, value in ranks.broadcast_tensors({name: own[name] for name in parameters if name in own}, device):
            sharding.copy_to_shard(parameters[name], value.float())
        optimizer.state.clear()
        for name, key, value in self._broadcast_moments(device):
            parameter = parameters[name]
            if key == MASTER:
                sharding.copy_to_shard(parameter, value)
            elif value.dim():
                optimizer.state[parameter][key] = torch.zeros_like(parameter)
                sharding.copy_to_shard(optimizer.state[parameter][key], value)
            else:
                optimizer.state[parameter][key] = value.to(sharding.local_shard(parameter).device)

    def _broadcast_moments(self, device: torch.device) -> Iterator[tuple[str, str, Tensor]]:
        for key_path, value in ranks.broadcast_tensors(self.moments, device):
            name, _, key = key_path.rpartition("/")
            yield name, key, value
