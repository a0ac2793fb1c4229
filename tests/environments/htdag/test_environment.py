"""The `htdag` environment: tasks by split, episodes of scripted policies, limits, options."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.store import read_episodes
from practicum.environment import Action, Observation, ScriptedPolicy, Step
from practicum.environments.htdag.environment import HTDAGEnvironment
from practicum.environments.htdag.planning import PlanningEpisode
from practicum.errors import UserError
from practicum.evaluation.result import read_result
from practicum.registry import environment_maker
from practicum.task import Task


def play(environment: HTDAGEnvironment, task: Task, policy: ScriptedPolicy) -> list[Step]:
    async def episode() -> list[Step]:
        observation: Observation = await environment.reset(task, 0)
        steps: list[Step] = []
        while not steps or not (steps[-1].terminated or steps[-1].truncated):
            steps.append(await environment.step(policy(observation)))
            observation = steps[-1].observation
        return steps

    return asyncio.run(episode())


def replay(actions: Sequence[Action]) -> ScriptedPolicy:
    left = iter(actions)
    return lambda observation: next(left)


def test_the_expert_solves_requests_of_every_level_and_split() -> None:
    environment = HTDAGEnvironment()
    for split in ("train", "val", "test"):
        for task in environment.tasks(split, 12):
            steps = play(environment, task, environment.expert(task))
            assert steps[-1].success
            assert steps[-1].terminated
            assert steps[-1].progress == 1.0
            assert [step.success for step in steps[:-1]] == [None] * (len(steps) - 1)
            assert 1.8 < sum(step.reward for step in steps) <= 2.0
            assert steps[-1].info["llm_calls"] == len(steps)


def test_scripted_planners_of_the_environment_s_own_can_be_played() -> None:
    environment = HTDAGEnvironment()
    tasks = environment.tasks("test", 27)
    rates = {
        name: sum(bool(play(environment, task, environment.scripted(name, task))[-1].success) for task in tasks) / 27
        for name in ("random", "heuristic", "adapt", "published-reward")
    }
    assert rates["random"] == rates["published-reward"] == 0.0
    assert 0.4 < rates["heuristic"] < 0.9
    assert rates["adapt"] == rates["heuristic"]


def test_a_policy_that_does_nothing_useful_ends_at_the_limit_and_is_scored() -> None:
    environment = HTDAGEnvironment(max_steps=4)
    (task,) = environment.tasks("train", 1)
    steps = play(environment, task, environment.null(task))
    assert len(steps) == 4
    assert steps[-1].truncated
    assert steps[-1].success is False
    assert -2.0 <= sum(step.reward for step in steps) < -1.0


def test_the_agent_loop_s_own_limit_scores_the_plan_so_far() -> None:
    environment = HTDAGEnvironment()
    (task,) = environment.tasks("train", 1)

    async def truncate() -> Step:
        observation = await environment.reset(task, 0)
        await environment.step(environment.expert(task)(observation))
        return await environment.truncate()

    step = asyncio.run(truncate())
    assert step.truncated
    assert step.success is False
    assert step.components["timeout"] < 0
    assert step.observation.messages == ()


def test_options_choose_reward_prompt_and_levels() -> None:
    make, format = environment_maker("htdag", None, {"reward": "published", "prompt": "json", "levels": ["edge"]})
    environment = make()
    assert isinstance(environment, HTDAGEnvironment)
    assert format == "hf"
    tasks = environment.tasks("test", 5)
    assert {task.fields["level"] for task in tasks} == {"edge"}
    observation = asyncio.run(environment.reset(tasks[0], 0))
    assert "You are a task decomposition expert." in observation.messages[0].content
    steps = play(environment, tasks[0], environment.expert(tasks[0]))
    assert "depth" in steps[-1].components
    for options, message in (
        ({"levels": ["hard"]}, "no level 'hard'"),
        ({"reward": "mine"}, "no reward 'mine'"),
        ({"prompt": "long"}, "no prompt 'long'"),
        ({"max_steps": 0}, "max_steps of at least 1"),
    ):
        with pytest.raises(UserError, match=message):
            environment_maker("htdag", None, options)[0]()
    with pytest.raises(UserError, match="has no 'request'"):
        asyncio.run(environment.reset(Task("x", "htdag", "test", {}), 0))


def test_every_prompt_begins_anew_and_the_confidence_of_a_decision_is_recorded() -> None:
    environment = HTDAGEnvironment()
    (task,) = environment.tasks("train", 1)
    policy = environment.expert(task)

    async def first_two() -> tuple[Observation, Observation]:
        before = await environment.reset(task, 0)
        action = replace(policy(before), confidence=0.25)
        return before, (await environment.step(action)).observation

    request, _, _ = PlanningEpisode().reset(task.fields["request"]).partition("\n")
    for number, observation in enumerate(asyncio.run(first_two())):
        assert observation.fresh
        assert observation.messages[0].content.startswith(request)
        assert observation.messages[0].content.endswith(f"\n{number}")
    assert environment.episode.state.decomposition_history[0]["confidence"] == 0.25


def test_a_tool_call_is_an_unreadable_decision() -> None:
    environment = HTDAGEnvironment()
    (task,) = environment.tasks("train", 1)

    async def call() -> Step:
        await environment.reset(task, 0)
        return await environment.step(Action(text="<tool_call>…</tool_call>", content=""))

    assert asyncio.run(call()).info["refused"] == {"unreadable": 1}


def test_wrong_attempts_do_not_succeed() -> None:
    environment = HTDAGEnvironment()
    for task in environment.tasks("test", 25):
        policy, nothing = environment.expert(task), Observation()
        solution = [policy(nothing)]
        while solution[-1].content != "go":
            solution.append(policy(nothing))
        attempts = environment.wrong_attempts(task, solution)
        assert len(attempts) >= 3
        for attempt in attempts:
            assert play(environment, task, replay(attempt))[-1].success is False


def test_eval_and_collect_take_the_environment_s_own_scripted_policies(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rates = {}
    for name in ("random", "heuristic", "adapt", "expert"):
        path = tmp_path / f"{name}.json"
        command = ["eval", "--env", "htdag", "--policy", name, "--tasks", "9", "--max-turns", "20", "--out", str(path)]
        assert main(command) == 0
        result = read_result(path)
        assert result.settings["stage"] == "scripted"
        rates[name] = sum(attempt.success for attempt in result.scored) / 9
    assert rates["random"] == 0
    assert 0 < rates["heuristic"] == rates["adapt"] < rates["expert"] == 1
    out = ["--out", str(tmp_path), "--run-id", "h"]
    assert main(["collect", "--env", "htdag", "--policy", "heuristic", "--tasks", "2", *out]) == 0
    episodes = read_episodes(tmp_path / "collect" / "h")
    assert {turn.source for episode in episodes for turn in episode.turns} == {"scripted"}
    capsys.readouterr()
    assert main(["eval", "--env", "htdag", "--policy", "heuristc", "--tasks", "2"]) == 2
    assert (
        "Unknown policy 'heuristc'. Did you mean 'heuristic'? Scripted policies of 'htdag': expert, random, null, "
        "heuristic, adapt, published-reward; models: "
    ) in capsys.readouterr().err
    assert main(["envs", "show", "htdag"]) == 0
    assert "heuristic, adapt, published-reward (--policy)" in capsys.readouterr().out
