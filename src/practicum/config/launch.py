"""The place of a process among those that a launcher (torchrun, accelerate, our own) has started, and its GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass

from practicum.errors import UserError


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that a launcher has started; one process is rank 0 of 1."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    """Its index on this machine."""
    ranks_per_node: int = 1

    @property
    def nnodes(self) -> int:
        return self.num_ranks // self.ranks_per_node

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0


def read_launch() -> Launch:
    """Read the place of this process; raise UserError where the variables contradict each other."""
    num_ranks = _number("WORLD_SIZE", 1)
    if num_ranks == 1:
        return Launch()
    rank = _number("RANK", None)
    launch = Launch(rank, num_ranks, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", num_ranks))
    if not (launch.rank < num_ranks and launch.local_rank < launch.ranks_per_node) or num_ranks % launch.ranks_per_node:
        raise UserError(
            f"The launcher's variables contradict each other (RANK={launch.rank}, WORLD_SIZE={num_ranks}, LOCAL_RANK="
            f"{launch.local_rank}, LOCAL_WORLD_SIZE={launch.ranks_per_node}); start every machine with as many ranks."
        )
    return launch


def _number(name: str, default: int | None) -> int:
    text = os.environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdigit():
        raise UserError(f"The launcher has set {name}='{text}', which is not a number; use torchrun.")
    return int(text)


SELECTED = "PRACTICUM_SELECTED_GPU"
"""Variable that is set once CUDA_VISIBLE_DEVICES is this rank's own."""


def select_gpu(launch: Launch) -> None:
    """Let this process see one GPU, that of its local rank. Must run before CUDA is initialised."""
    if launch.num_ranks == 1 or os.environ.get(SELECTED) == str(launch.local_rank):
        return
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    own = str(launch.local_rank) if not visible else "".join(visible[launch.local_rank : launch.local_rank + 1])
    os.environ["CUDA_VISIBLE_DEVICES"], os.environ[SELECTED] = own, str(launch.local_rank)
