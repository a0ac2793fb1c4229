from __future__ import annotations

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


def test_an_async_reward_is_refused() -> None:
    async def mine(answer_given: str) -> float:
        return 1.0

    with pytest.raises(UserError, match="The reward 'mine' is an `async def`; write it as a plain `def`"):
        reward()(mine)  # type: ignore[arg-type]


@pytest.mark.parametrize("value", [None, "much", {"reward": []}])
def test_what_is_no_number_is_a_judge_error(value: Any) -> None:
    with pytest.raises(JudgeError, match="reward 'mine' failed"):
        reward("mine")(lambda: value).score(TASK, "x", ())
