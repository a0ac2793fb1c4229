"""The weights that rollout workers are to have: one message for all workers that need the same."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from practicum.training.cluster import weights


@dataclass
class OutgoingWeights:
    """The trained tensors of one version, numbered in the order in which they are sent.

    `base` has the number and the tensors before these, where changes may be sent instead of whole tensors.
    """

    number: int
    versions: tuple[int, ...]
    """Versions of the models."""
    tensors: Mapping[str, Tensor]
    is_copy: bool
    base: tuple[int, Mapping[str, Tensor]] | None = None
    _messages: dict[bool, Any] = field(default_factory=dict)

    @classmethod
    def after(
        cls,
        last: OutgoingWeights | None,
        versions: tuple[int, ...],
        tensors: Mapping[str, Tensor],
        keeps: bool,
        sends_changes: bool,
    ) -> OutgoingWeights:
        """The weights that follow those that were sent last. With `keeps` they are copied in any case.

        `sends_changes`: they may be sent as changes on the last ones, for which both are kept. In float32 every weight
        changes at every update: there is nothing to gain from that.
        """
        half = sends_changes and all(tensor.element_size() == 2 for tensor in tensors.values())
        base = None if last is None or not half or not last.is_copy else (last.number, last.tensors)
        if keeps or half:
            tensors = {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in tensors.items()}
        return cls(1 if last is None else last.number + 1, versions, tensors, keeps or half, base)

    def message(self, ray: Any, version: int | None) -> Any:
        """A reference to the message for a worker that has a version: changes on that, or whole tensors."""
        is_delta = self.base is not None and version == self.base[0]
        if is_delta not in self._messages:
            # Ray copies every part once, from the tensors into its shared memory.
            self._messages[is_delta] = ray.put(
                weights.encode(self.tensors, self.number, self.base if is_delta else None)
            )
        return self._messages[is_delta]
