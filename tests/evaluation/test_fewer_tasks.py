"""An environment that has fewer tasks than were asked for."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from practicum.data.tasks import select
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.task import Task


class Repeating(MathEnvironment):
    """Three games that begin again, as ALFWorld's files do."""

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(f"game-{n % 3}", self.name, split, {"question": str(n % 3)}) for n in range(count)]


class Clashing(MathEnvironment):
    """One id for all of its games."""

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task("game", self.name, split, {"question": str(n)}) for n in range(count)]


def test_each_task_is_taken_once() -> None:
    """Formerly 'Two of these tasks have the same id'."""
    assert [task.id for task in select(Repeating(), split="test", seed=0, count=10)] == ["game-0", "game-1", "game-2"]
    assert len(select(Repeating(), split="test", seed=0, sample_size=2)) == 2


def test_one_id_for_different_tasks_stays_an_error() -> None:
    with pytest.raises(UserError, match="same id"):
        select(Clashing(), split="test", seed=0, count=2)
