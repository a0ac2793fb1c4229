"""Several environments as one."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.data.tasks import read_registry, select
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, ScriptedPolicy, Step
from practicum.environments.math import MathEnvironment
from practicum.environments.mix import MixEnvironment, interleave
from practicum.errors import UserError
from practicum.models import loader
from practicum.registry import environment_maker, make_format
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.training.rollout_source import TaskStream, rollout_metrics
from practicum.training.settings import CurriculumSettings
from practicum.trajectory import Trajectory, plan_attempts

MEMBERS = {
    "affine:sat": {"levels": [1], "n": 3},
    "math": {"levels": [1]},
    "agentgym:textcraft": {"min_depth": 1, "max_depth": 1},
}


def play(policy: str, count: int = 9, split: str = "train", **options: object) -> list[Trajectory]:
    maker, chosen = environment_maker("mix", None, {"environments": MEMBERS, **options})
    agent, world = Agent(format=chosen, max_turns=12), maker()
    renderer = Renderer(loader.load_tokenizer("tiny"))
    engine = ScriptedEngine.of(policy, world, make_format(agent.format), renderer)
    return asyncio.run(run_episodes(plan_attempts(world.tasks(split, count), 1, 0), maker, agent, engine, renderer))


def test_every_task_is_played_by_its_own_environment() -> None:
    episodes = play("expert")
    assert Counter(e.task.environment for e in episodes) == {"affine:sat": 3, "math": 3, "agentgym:textcraft": 3}
    assert [e.outcome.value for e in episodes] == ["success"] * 9
    by = {e.task.environment: e for e in episodes}
    assert by["math"].provenance["tools"][0]["function"]["name"] == "calculator"
    assert "tools" not in by["affine:sat"].provenance
    assert [e.outcome.value for e in play("null")].count("success") == 0


def test_what_an_expert_waits_for_does_not_hold_up_the_others() -> None:
    messages: list[str] = []

    class Slow(MathEnvironment):
        async def ready_expert(self, task: Task) -> None:
            messages.append(f"ask {task.id}")
            await asyncio.sleep(0.05)
            messages.append(f"told {task.id}")

        def expert(self, task: Task) -> ScriptedPolicy:
            assert f"told {task.id}" in messages
            return super().expert(task)

    world, agent, renderer = Slow(), Agent(max_turns=4), Renderer(loader.load_tokenizer("tiny"))
    engine = ScriptedEngine.of("expert", world, make_format(agent.format), renderer)
    planned = plan_attempts(world.tasks("train", 4), 1, 0)
    episodes = asyncio.run(run_episodes(planned, Slow, agent, engine, renderer))
    assert [e.outcome.value for e in episodes] == ["success"] * 4
    assert [line.split()[0] for line in messages] == ["ask"] * 4 + ["told"] * 4


def test_tasks_are_those_of_the_members() -> None:
    world = MixEnvironment(MEMBERS)
    mixed = list(world.tasks("val", 7, 5))
    for name, options in MEMBERS.items():
        alone = environment_maker(name, "hf", options)[0]()
        own = [task for task in mixed if task.environment == name]
        assert own == list(alone.tasks("val", len(own), 5))
    assert mixed == list(MixEnvironment(MEMBERS).tasks("val", 7, 5))
    assert not {t.hash for t in world.tasks("train", 9)} & {t.hash for t in world.tasks("test", 9)}


def test_a_registry_of_mixed_tasks_is_played(tmp_path: Path) -> None:
    world = MixEnvironment(MEMBERS)
    tasks = list(world.tasks("val", 6))
    listed = [{"id": t.id, "environment": t.environment, "split": t.split, "fields": dict(t.fields)} for t in tasks]
    path = tmp_path / "mixed.json"
    path.write_text(json.dumps(listed, default=list))
    registry = read_registry(path, "mix", "val")
    assert select(world, split="val", seed=0, registry=registry) == tasks
    (sat, other) = select(world, split="val", seed=0, registry=registry, subset="affine:sat")
    assert (sat.environment, other.environment) == ("affine:sat", "affine:sat")
    smaller = MixEnvironment(["math"])
    with pytest.raises(UserError, match="belongs to environment 'affine:sat', not to 'mix'"):
        select(smaller, split="val", seed=0, registry=registry)


def test_every_beginning_keeps_the_shares() -> None:
    turns = interleave({"a": 3.0, "b": 1.0}, 40)
    assert turns.count("a") == 30
    assert all(abs(turns[:size].count("b") - size / 4) < 1 for size in range(1, 41))
    world = MixEnvironment(MEMBERS, shares={"math": 4})
    assert Counter(t.environment for t in world.tasks("train", 12)) == {
        "math": 8, "affine:sat": 2, "agentgym:textcraft": 2,
    }  # fmt: skip


def test_a_member_with_too_few_tasks_is_named(tmp_path: Path) -> None:
    path = tmp_path / "two.json"
    path.write_text(json.dumps([{"question": "1+1", "answer": "2"}, {"question": "1+2", "answer": "3"}]))
    world = MixEnvironment({"math": {"files": {"train": str(path)}}, "agentgym:textcraft": {}})
    assert len(world.tasks("train", 4)) == 4
    with pytest.raises(UserError, match="'math' has 2 'train' tasks and its share of 6 is 3"):
        world.tasks("train", 6)


def test_the_reward_goes_to_those_that_have_one() -> None:
    members = {"affine:sat": {"levels": [1]}, "agentgym:textcraft": {"reward": "native"}}
    world = MixEnvironment(members, reward="shaped")
    task = next(t for t in world.tasks("train", 2) if t.environment == "affine:sat")
    asyncio.run(world.reset(task, 0))
    assert world.invalid_reward == -0.05
    other = next(t for t in world.tasks("train", 2) if t.environment == "agentgym:textcraft")
    asyncio.run(world.reset(other, 0))
    assert world.invalid_reward == 0.0


def test_a_reward_of_ones_own_by_its_path(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("def pay(task, action, step):\n    return 10 * step.reward + (task.environment == 'math')\n")
    episodes = play("expert", shaping=f"{file}:pay")
    assert {e.outcome.value for e in episodes} == {"success"}
    for episode in episodes:
        turns = len(episode.turns)
        assert episode.reward == pytest.approx(10 + turns if episode.task.environment == "math" else 10)

    world = MixEnvironment({"affine:sat": {"levels": [1]}}, shaping=f"{file}:pay")

    async def fail() -> Step:
        task = world.tasks("train", 1)[0]
        await world.reset(task, 0)
        return await world.step(Action(content="UNSAT"))

    failed = asyncio.run(fail())
    assert failed.terminated
    assert failed.success is False
    with pytest.raises(UserError, match="has no 'wage'"):
        MixEnvironment(MEMBERS, shaping=f"{file}:wage")


def test_figures_of_each_environment() -> None:
    figures = rollout_metrics(play("expert", 3))
    assert figures["success/affine:sat/mean"] == figures["reward/math/mean"] == 1.0
    metrics = rollout_metrics([e for e in play("expert", 3) if e.task.environment == "math"])
    assert "success/math/mean" not in metrics


def test_a_curriculum_over_several_environments() -> None:
    world = MixEnvironment(
        {"affine:sat": {"levels": [3, 2]}, "math": {"levels": [1, 2, 3]}, "agentgym:textcraft": {"max_depth": 2}}
    )
    stream = TaskStream(world.tasks("train", 18), CurriculumSettings(), draw=3)
    messages = [{(t.environment, t.fields.get("level")) for t in level} for level in stream.levels]
    assert messages == [{("affine:sat", 2), ("math", 1), ("agentgym:textcraft", None)},
                    {("affine:sat", 3), ("math", 2)}, {("math", 3)}]  # fmt: skip
    assert {t.environment for t in stream.take(3)} == {"affine:sat", "math", "agentgym:textcraft"}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"environments": []}, "needs 'environments'"),
        ({"environments": "math"}, "needs 'environments'"),
        ({"environments": ["maths"]}, "Unknown environment 'maths'.*math"),
        ({"environments": {"math": {"depth": 2}}}, "Environment 'math' has no option 'depth'"),
        ({"environments": {"math": 3}}, "options of 'math' must be a mapping"),
        ({"environments": ["math"], "shares": {"sat": 1}}, "'shares' names 'sat'"),
        ({"environments": ["math"], "shares": {"math": 0}}, "must be a number above 0"),
        ({"environments": ["math", "affine:sat"], "format": "react"}, "'affine:sat' has the formats hf"),
    ],
)
def test_what_cannot_be_mixed_is_said(options: dict[str, object], message: str) -> None:
    with pytest.raises(UserError, match=message):
        MixEnvironment(**options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="has no environment 'code'"):
        MixEnvironment(["math"]).member("code")
