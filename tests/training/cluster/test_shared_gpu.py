"""Several rollout workers on one GPU: what is asked of Ray, and the memory that each of them has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from practicum.config.resolve import resolve_train
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.training.cluster import ray_session
from practicum.training.cluster.rollout_worker import with_share_of_gpu


class Cluster:
    """Ray, connected to a cluster with a number of GPUs."""

    def __init__(self, gpus: float) -> None:
        self.gpus = gpus

    def cluster_resources(self) -> dict[str, float]:
        return {"GPU": self.gpus, "CPU": 64.0}


@pytest.mark.parametrize(("share", "gpus", "needed"), [(1, 4, 4), (1, 3, 4), (0.25, 1, 1), (0.3, 1, 2), (2, 7, 8)])
def test_workers_need_their_share_of_gpus(share: float, gpus: int, needed: int) -> None:
    arguments = Cluster(gpus), 4, True, "The rollout workers"
    if gpus >= needed:
        ray_session.check_resources(*arguments, share=share)
        return
    with pytest.raises(UserError, match=f"need {needed} GPUs, and the Ray cluster has {gpus}"):
        ray_session.check_resources(*arguments, share=share)


def test_a_share_is_of_one_gpu() -> None:
    """Two workers of 0.4 fit a GPU: five need three, though they take two in all."""
    ray_session.check_resources(Cluster(3), 5, True, "The rollout workers", share=0.4)
    with pytest.raises(UserError, match="need 3 GPUs, and the Ray cluster has 2"):
        ray_session.check_resources(Cluster(2), 5, True, "The rollout workers", share=0.4)


@pytest.mark.parametrize(
    ("num_workers", "share", "message"),
    [(0, 0.25, "gpus_per_worker=0.25 is for rollout workers"), (2, 1.5, "gpus_per_worker=1.5: a worker takes a part")],
)
def test_a_share_without_workers_or_of_several_gpus_is_refused(num_workers: int, share: float, message: str) -> None:
    rollout = "actor_rollout_ref.rollout."
    with pytest.raises(UserError, match=message):
        resolve_train([f"{rollout}num_workers={num_workers}", f"{rollout}gpus_per_worker={share}"])


@pytest.mark.parametrize(("share", "memory"), [(0.25, 0.1), (1, 0.4), (2, 0.4)])
def test_workers_that_share_a_gpu_share_its_memory(share: float, memory: float) -> None:
    config = TrainConfig()
    rollout = replace(config.actor_rollout_ref.rollout, gpus_per_worker=share, gpu_memory_utilization=0.4)
    config = replace(config, actor_rollout_ref=replace(config.actor_rollout_ref, rollout=rollout))
    assert with_share_of_gpu(config).actor_rollout_ref.rollout.gpu_memory_utilization == pytest.approx(memory)
    assert config.actor_rollout_ref.rollout.gpu_memory_utilization == 0.4
