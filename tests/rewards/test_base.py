from __future__ import annotations

import asyncio
from typing import Any

import pytest

from practicum.errors import JudgeError, UserError
from practicum.rewards.base import reward
from practicum.task import Task

TASK = Task("t", "tools", "train", {"question": "?", "answer": "x", "level": 2})


def test_keyword_arguments_get_what_is_not_asked_for_by_name() -> None:
    got: dict[str, Any] = {}

    @reward()
    def mine(answer_given: str, answer: str, **kwargs: Any) -> float:
        got.update(kwargs)
        return float(answer_given == answer)

    assert mine.score(TASK, "x", ()).reward == 1.0
    assert got == {"question": "?", "level": 2, "calls": (), "task": TASK}


def test_an_async_reward_is_awaited() -> None:
    @reward
    async def mine(answer_given: str, answer: str) -> float:
        await asyncio.sleep(0)
        return float(answer_given == answer)

    assert mine.is_async
    assert asyncio.run(mine.score_async(TASK, "x", ())).reward == 1.0


def test_a_reward_that_asks_a_judge_must_be_async() -> None:
    def mine(answer_given: str, judge: Any) -> float:
        return 1.0

    with pytest.raises(UserError, match="The reward 'mine' asks a judge: write it as an `async def`"):
        reward()(mine)


@pytest.mark.parametrize("value", [None, "much", {"reward": []}])
def test_what_is_no_number_is_a_judge_error(value: Any) -> None:
    with pytest.raises(JudgeError, match="reward 'mine' failed"):
        reward("mine")(lambda: value).score(TASK, "x", ())
