from __future__ import annotations

import pytest

from practicum.task import Task


def test_hash_names_content_not_place() -> None:
    first = Task("a", "math", "train", {"question": "1+1", "answer": "2"})
    second = Task("b", "math", "test", {"answer": "2", "question": "1+1"})
    assert first.hash == second.hash
    assert first.hash != Task("a", "math", "train", {"question": "1+2", "answer": "2"}).hash


def test_a_task_cannot_change_under_its_hash() -> None:
    fields = {"question": "x", "list": [1]}
    task = Task("a", "math", "train", fields)
    fields["question"] = "y"
    assert task.fields["question"] == "x"
    with pytest.raises(TypeError):
        task.fields["question"] = "z"  # type: ignore[index]


def test_frozen_all_the_way_down() -> None:
    task = Task("a", "math", "train", {"steps": ["1+1"], "deep": {"x": [1]}})
    assert task.fields["steps"] == ("1+1",)
    with pytest.raises(TypeError):
        task.fields["deep"]["x"] = 2
