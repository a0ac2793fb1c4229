from __future__ import annotations

import pytest

from practicum.data.near_duplicates import near_duplicate_key, program_key
from practicum.environments.code import CodeEnvironment
from practicum.task import Task


def test_names_do_not_make_another_program_and_constants_do() -> None:
    program = "def f(x):\n    total = x * 3 + 5\n    return total"
    assert program_key(program) == program_key("def calc(n):\n    t = n*3 + 5\n    return t")
    assert program_key(program) != program_key(program.replace("3", "4"))
    assert program_key(program) != program_key(program.replace("+", "-"))
    assert program_key("def f(s):\n    return s + 's'") != program_key("def f(t):\n    return t + 't'")
    assert program_key("plain words, no program") is None


def test_case_and_punctuation_do_not_make_another_question() -> None:
    def key(**fields: object) -> str:
        return near_duplicate_key(Task("t", "e", "train", fields))

    assert key(question="What is 2 + 3?", answer="5") == key(question="what is 2 + 3", answer="5", id="7")
    assert key(question="What is 2 + 3?", answer="5") != key(question="What is 2 + 4?", answer="6")
    assert key(question="Who?", world="a") != key(question="Who?", world="b")
    assert key(goal=1) != key(goal=2)


@pytest.mark.parametrize("levels", [(1,), (1, 2), (3, 4)])
def test_no_program_of_code_is_in_two_splits(levels: tuple[int, ...]) -> None:
    world = CodeEnvironment(levels=levels)
    train = {near_duplicate_key(task) for task in world.tasks("train", 300)}
    for split in ("val", "test"):
        tasks = world.tasks(split, 60)
        keys = [near_duplicate_key(task) for task in tasks]
        assert train.isdisjoint(keys)
        assert len({task.fields["question"] for task in tasks}) == len(tasks)
        if levels != (3, 4):
            assert len(set(keys)) == len(keys)  # as long as there are enough, every task is a program of its own
