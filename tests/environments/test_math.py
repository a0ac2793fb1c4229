from __future__ import annotations

import asyncio
import json
import random
import re
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, ToolCall
from practicum.environments.math import MathEnvironment, make_problem
from practicum.errors import UserError
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.trajectory import Outcome, Trajectory, plan_attempts


def play(source: str, renderer: Renderer, count: int = 60, format: str = "hf") -> list[Trajectory]:
    world = MathEnvironment(format=format, levels=(1, 2, 3, 4, 5))
    engine = ScriptedEngine.of(source, world, make_format(format), renderer)
    planned = plan_attempts(world.tasks("train", count), 1, 0)
    make = lambda: MathEnvironment(format=format)  # noqa: E731
    return asyncio.run(run_episodes(planned, make, Agent(format=format, max_turns=8), engine, renderer))


@pytest.mark.parametrize("format", ["hf", "react"])
def test_the_expert_solves_everything(renderer: Renderer, format: str) -> None:
    episodes = play("expert", renderer, format=format)
    assert {e.outcome for e in episodes} == {Outcome.SUCCESS}
    assert max(len(e.turns) for e in episodes) == 6


def test_the_null_policy_is_at_its_floor(renderer: Renderer) -> None:
    assert sum(e.reward for e in play("null", renderer)) == MathEnvironment.floor


def test_the_random_policy_rarely_succeeds(renderer: Renderer) -> None:
    episodes = play("random", renderer, 200)
    assert all(e.scored for e in episodes)
    assert sum(e.reward for e in episodes) / 200 < 0.2


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 10**9), st.integers(1, 5))
def test_every_story_is_its_steps(seed: int, level: int) -> None:
    problem = make_problem(random.Random(seed), level)
    steps = problem["steps"]
    assert isinstance(steps, list)
    assert len(steps) == level
    value = None
    for step in steps:
        left, operator, right = re.fullmatch(r"(\d+)([-+*/])(\d+)", step).groups()  # type: ignore[union-attr]
        assert value is None or int(left) == value
        assert right in str(problem["question"])
        value = {"+": int(left) + int(right), "-": int(left) - int(right), "*": int(left) * int(right),
                 "/": int(left) // int(right)}[operator]  # fmt: skip
        assert 1 <= value <= 999
        assert operator != "/" or int(left) % int(right) == 0
    assert str(value) == problem["answer"]
    assert steps[0].split(next(c for c in steps[0] if c in "+-*/"))[0] in str(problem["question"])


def test_splits_are_disjoint_and_stable() -> None:
    world = MathEnvironment()
    splits = {s: {t.hash for seed in range(3) for t in world.tasks(s, 300, seed)} for s in ("train", "val", "test")}
    assert not splits["train"] & splits["val"]
    assert not splits["train"] & splits["test"]
    assert not splits["val"] & splits["test"]
    assert world.tasks("test", 3)[2].hash == "41ec5e37b0dbcef6"  # the same on every machine


def test_any_json_file_of_questions(tmp_path: Path, renderer: Renderer) -> None:
    path = tmp_path / "gsm.json"
    path.write_text(json.dumps([{"question": "What is 2,000 + 2?", "answer": "It is #### 2,002"}]))
    world = MathEnvironment(files={"train": str(path)})
    engine = ScriptedEngine.of("expert", world, make_format("hf"), renderer)
    (episode,) = asyncio.run(
        run_episodes(plan_attempts(world.tasks("train", 9), 1, 0), lambda: world, Agent(), engine, renderer)
    )
    assert episode.outcome is Outcome.SUCCESS


GSM8K = {
    "question": "Eggs?",
    "answer": "She sells 16 - 3 - 4 = <<16-3-4=9>>9 eggs.\nShe makes 9 * 2 = $<<9*2=18>>18, or 18 * .5 = "
    "$<<$18*.5=9.00>>9 at half, <<9*x=4>>4, <<half of 9=4.5>>4.5, a third <<9/7=1.29>>1.29, <<2+2=5>>5.\n#### 18",
}  # fmt: skip


@pytest.mark.parametrize("row", [GSM8K, {"question": "Eggs?", "answer": "18", "solution": GSM8K["answer"]}])
def test_the_expert_makes_the_calculations_that_gsm8k_annotates(
    tmp_path: Path, renderer: Renderer, row: dict[str, str]
) -> None:
    path = tmp_path / "gsm.json"
    path.write_text(json.dumps([row]))
    world = MathEnvironment(files={"train": str(path)})
    engine = ScriptedEngine.of("expert", world, make_format("hf"), renderer)
    planned = plan_attempts(world.tasks("train", 9), 1, 0)
    (episode,) = asyncio.run(run_episodes(planned, lambda: world, Agent(max_turns=8), engine, renderer))
    assert episode.outcome is Outcome.SUCCESS
    results = [call.arguments["expression"] for turn in episode.turns for call in turn.action.calls]
    assert results == ["16-3-4", "9*2", "18*.5", "9/7"]  # what cannot be read, or is wrong, is left out
    assert [turn.messages[-1].content for turn in episode.turns[1:]] == ["9", "18", "9", "1.285714286"]
    assert episode.turns[-1].action.content == "18"


def test_without_annotations_the_expert_makes_no_call_for_show(tmp_path: Path) -> None:
    path = tmp_path / "qa.json"
    path.write_text(json.dumps([{"question": "?", "answer": 7, "solution": "It is 7."}]))
    world = MathEnvironment(files={"train": str(path)})
    (task,) = world.tasks("train", 1)
    action = world.expert(task)(asyncio.run(world.reset(task, 0)))
    assert (action.calls, action.content) == ((), "7")


def test_the_reward_is_agentflys_when_asked() -> None:
    world = MathEnvironment(reward="math_reward_string_equal")
    (task,) = world.tasks("train", 1)

    async def score(*replies: Action) -> float:
        await world.reset(task, 0)
        step = [await world.step(reply) for reply in replies][-1]
        return step.reward

    call = Action(calls=(ToolCall("calculator", {"expression": "1+1"}),))
    right, wrong = Action(content=f"It is {task.fields['answer']}."), Action(content="0")
    assert asyncio.run(score(right)) == 0.0
    assert asyncio.run(score(call, right)) == 1.0
    assert asyncio.run(score(call, wrong)) == 0.1


def test_wrong_options() -> None:
    with pytest.raises(UserError, match="levels"):
        MathEnvironment(levels=[9])
    with pytest.raises(UserError, match="Unknown tool 'calculater'. Did you mean 'calculator'"):
        MathEnvironment(tools=["calculater"])
    with pytest.raises(UserError, match="Unknown reward"):
        MathEnvironment(reward="nope")
