"""Rank 0 leads a run and the other ranks follow it.

Rank 0 has the run: its folder, lock, files, signals, monitors and decisions. Before every step and validation, which
all ranks do together, it announces what comes; a follower does that and waits for the next announcement.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any

from practicum.training import ranks
from practicum.training.checkpoint import broadcast_weights
from practicum.training.trainer import Trainer


class Leader:
    """Rank 0's side: announces what all ranks do together. A run of one process has none."""

    def __init__(self, trainer: Trainer) -> None:
        self.trainer = trainer
        self._followers_wait = ranks.num_ranks() > 1

    def share_state(self, step: int) -> None:
        """Give the weights, the optimizer's moments and the state of this rank to all others."""
        share_state(self.trainer, step)

    @contextlib.contextmanager
    def announce(self, command: str, **values: Any) -> Iterator[None]:
        """Announce what this block does; if it fails the others are not waiting for an announcement any more."""
        if ranks.num_ranks() > 1:
            ranks.broadcast_json({"command": command, **values})
        self._followers_wait = False
        yield
        self._followers_wait = ranks.num_ranks() > 1

    def prepare_save(self) -> None:
        """Raise unless all ranks have the same weights; gather those that are divided among the ranks."""
        if ranks.num_ranks() > 1:
            with self.announce("prepare_save"):
                _prepare_save(self.trainer)

    def end_followers(self) -> None:
        """Let the others end, if they wait."""
        if self._followers_wait:
            ranks.broadcast_json({"command": "end"})
            self._followers_wait = False


async def run_follower(trainer: Trainer) -> int:
    """Do what rank 0 announces until it ends; returns the number of the last step."""
    # Whether to stop is rank 0's decision; a launcher that gives up ends this process with SIGKILL.
    before = [
        (signal_number, signal.signal(signal_number, signal.SIG_IGN))
        for signal_number in (signal.SIGINT, signal.SIGTERM)
    ]
    try:
        step = share_state(trainer)
        while (message := ranks.broadcast_json())["command"] != "end":
            if message["command"] == "step":
                trainer.lr_scale, trainer.clip_scale = message["lr_scale"], message["clip_scale"]
                step = int(message["step"]) + 1
                trainer.policy.clear_engine_caches()
                await trainer.step(step - 1)
            elif message["command"] == "validate":
                await trainer.validate()
            else:
                _prepare_save(trainer)
        return step
    finally:
        for signal_number, handler in before:
            signal.signal(signal_number, handler)
        await trainer.close()


def share_state(trainer: Trainer, step: int = 0) -> int:
    """Give rank 0's weights, moments and state to all ranks; returns rank 0's step."""
    if ranks.num_ranks() == 1:
        return step
    own = {"step": step, **trainer.state()} if ranks.own_rank() == 0 else None
    state: dict[str, Any] = ranks.broadcast_json(own)
    broadcast_weights(trainer.policy, trainer.critic)
    if ranks.own_rank() > 0:
        trainer.restore(state)
    _check_weights(trainer, frozen=True)
    return int(state["step"])


def _prepare_save(trainer: Trainer) -> None:
    _check_weights(trainer)
    for model in trainer.policy.models:
        model.gather()


def _check_weights(trainer: Trainer, frozen: bool = False) -> None:
    """Raise unless all ranks have the same trained weights; with `frozen`, the same other weights too.

    Of a sharded model every rank has other shards, and there is nothing to compare.
    """
    for model in (item for item in trainer.policy.models if item.unsharded_copy is None):
        parameters = model.loaded.model.parameters()
        ranks.check_same_weights(item for item in parameters if frozen or item.requires_grad)
    if trainer.critic is not None:
        ranks.check_same_weights(trainer.critic.parameters)
