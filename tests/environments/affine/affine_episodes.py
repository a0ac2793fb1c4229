"""Prints tasks, observations and replies of the Affine environments, for a comparison of two processes."""

from __future__ import annotations

import asyncio

from practicum.environment import Observation
from practicum.environments.affine.abd import AbdEnvironment
from practicum.environments.affine.base import AffineEnvironment
from practicum.environments.affine.ded import DedEnvironment
from practicum.environments.affine.sat import SatEnvironment


async def play(environment: AffineEnvironment[object], count: int) -> list[object]:
    """Return what a reset and a step of the random policy give, and the expert's reply."""
    records: list[object] = []
    for task in environment.tasks("val", count):
        observation = await environment.reset(task, 7)
        step = await environment.step(environment.random(task, 1)(Observation()))
        records += [task.id, observation, step, environment.expert(task)(Observation())]
    return records


def episodes() -> str:
    environments = (AbdEnvironment(), DedEnvironment(), SatEnvironment(unsat=0.3, ratio="threshold", k=3))
    return repr([asyncio.run(play(environment, 5)) for environment in environments])  # type: ignore[arg-type]


if __name__ == "__main__":
    print(episodes())
