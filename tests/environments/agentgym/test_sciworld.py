"""ScienceWorld: the stock package's transcripts, its own solutions, both grammars, both rewards, a killed Java."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from practicum import registry
from practicum.environment import SPLITS, Action, Observation, ScriptedPolicy, Step
from practicum.environments.agentgym import sciworld_tasks
from practicum.environments.agentgym.sciworld import BRACKETS, SciWorld, pool_of
from practicum.environments.worker import close_pools
from practicum.errors import UserError
from practicum.rollout import run_episodes
from practicum.rollout_setup import make_rollout_setup
from practicum.task import Task
from practicum.trajectory import plan_attempts

LIVING = sciworld_tasks.task_of("find-living-thing", 148)
POWER = sciworld_tasks.task_of("power-component", 1)


@pytest.fixture(scope="module", autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    close_pools()


def play(environment: SciWorld, task: Task, policy: ScriptedPolicy, limit: int = 120) -> list[Step]:
    async def run() -> list[Step]:
        observation = await environment.reset(task, 0)
        done: list[Step] = []
        while len(done) < limit and not (done and done[-1].terminated):
            done.append(await environment.step(policy(observation)))
            observation = done[-1].observation
        await environment.close()
        return done

    return asyncio.run(run())


def say(environment: SciWorld, task: Task, commands: list[str]) -> list[Step]:
    output = iter(commands)
    return play(environment, task, lambda observation: Action(content=next(output)), len(commands))


def test_counts_and_splits_are_the_simulators() -> None:
    assert pool_of().ask("facts")["variations"] == sciworld_tasks.VARIATIONS
    assert sum(sciworld_tasks.VARIATIONS.values()) == 7207
    assert [len(sciworld_tasks.variations_of("boil", split)) for split in SPLITS] == [14, 7, 9]
    assert len(sciworld_tasks.AGENTGYM) == 23


STOCK = """
import json, sys
from scienceworld import ScienceWorldEnv
given = json.loads(sys.stdin.read())
env = ScienceWorldEnv("", None, envStepLimit=100)
env.load("boil", 0, "")  # the first load of a process is unlike the others
told = []
for name, variation, commands in given:
    env.load(name, variation, "")
    text, info = env.reset()
    episode = [[env.get_task_description(), text]]
    for command in commands:
        text, reward, done, info = env.step(command)
        episode.append([command, text, reward, info["score"], done])
        if done:
            break
    told.append(episode)
print("TOLD" + json.dumps(told))
"""


def test_transcripts_are_the_stock_packages() -> None:
    world = SciWorld()
    wander = ["look around", "inventory", "dance", "open door to kitchen", "go to kitchen", "pick up thermometer",
              "focus on thermometer", "look at sink", "activate sink", "wait1", "examine table"]  # fmt: skip
    name, variation = LIVING.fields["task"], LIVING.fields["variation"]
    ways = [[name, variation, list(pool_of().ask("gold", task=name, variation=variation))], ["boil", 3, wander]]
    process = subprocess.run(
        [sys.executable, "-c", STOCK], input=json.dumps(ways), text=True, capture_output=True, check=False,
        env={**os.environ, "JAVA_TOOL_OPTIONS": "-Xmx512m -XX:+UnlockExperimentalVMOptions -XX:hashCode=2"},
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    stock = json.loads(process.stdout.partition("TOLD")[2])
    for (name, variation, commands), episode in zip(ways, stock, strict=True):
        (description, look), *answers = episode
        task = sciworld_tasks.task_of(name, variation)
        observation = asyncio.run(world.reset(task, 0))
        assert observation.messages[-1].content == f"{description}\n{look}"
        steps = say(world, task, commands)
        episodes = [
            [command, step.observation.messages[0].content.removeprefix("Observation: "), round(100 * step.reward),
             step.info["score"], step.terminated]
            for command, step in zip(commands, steps, strict=False)
        ]  # fmt: skip
        assert episodes == answers
    assert stock[0][-1][3:] == [100, True]


def test_the_expert_solves_and_the_null_policy_does_not() -> None:
    world = SciWorld()
    for task in (LIVING, POWER, sciworld_tasks.task_of("lifespan-shortest-lived", 57)):
        steps = play(world, task, world.expert(task))
        assert steps[-1].success
        assert steps[-1].progress == 1.0
        assert sum(step.reward for step in steps) == pytest.approx(1.0)
    idle = play(world, LIVING, world.null(LIVING), 5)
    assert not any(step.reward or step.terminated or step.info["valid"] for step in idle)
    assert idle[0].observation.messages[0].content == "Observation: No known action matches that input."


def test_a_wrong_focus_loses_the_task() -> None:
    steps = say(SciWorld(), sciworld_tasks.task_of("boil", 0), ["open door to kitchen", "focus on picture"])
    assert steps[-1].terminated
    assert not steps[-1].success
    assert sum(step.reward for step in steps) == pytest.approx(-1.0)
    assert steps[-1].progress == 0.0


def test_the_step_limit_ends_an_episode_and_keeps_its_score() -> None:
    world = SciWorld(step_limit=3)
    steps = play(world, LIVING, world.expert(LIVING))
    assert steps[-1].terminated
    assert not steps[-1].success
    assert steps[-1].info["moves"] == 4


def test_the_looking_expert_focuses_on_what_it_has_seen() -> None:
    world = SciWorld(simplification="easy", expert="looking")
    task = sciworld_tasks.task_of("lifespan-shortest-lived", 57)
    seen: list[str] = []
    policy = world.expert(task)

    def look(observation: Observation) -> Action:
        seen.extend(message.content for message in observation.messages)
        action = policy(observation)
        if action.content.startswith("focus on "):
            assert action.content.removeprefix("focus on ") in seen[-1]
        return action

    steps = play(world, task, look)
    assert steps[-1].success
    assert not any("already open" in text for text in seen)
    with pytest.raises(UserError, match="no expert 'lookin'"):
        SciWorld(expert="lookin")


def test_brackets_and_shaped_reward() -> None:
    world = SciWorld(grammar="bracket", reward="shaped")
    steps = play(world, LIVING, world.expert(LIVING))
    assert steps[-1].success
    assert all(step.info["valid"] for step in steps)
    assert steps[-1].components == {"step": 0.0, "completion": 1.0, "penalty": 0.0}
    commands = ["open[door to kitchen]", "open[door to kitchen]", "close[door to kitchen]", "open[door to kitchen]",
                "look[]", "go to kitchen", "fly[moon]"]  # fmt: skip
    rewards = [step.reward for step in say(world, sciworld_tasks.task_of("boil", 0), commands)]
    assert rewards == pytest.approx([0.15, 0.0, 0.15, 0.0, 0.0, -0.05, -0.05])


@pytest.mark.parametrize(
    "sentence",
    ["go to kitchen", "pick up thermometer", "pour cup into pot", "use lighter on wood", "look around", "look at sink",
     "look in cupboard", "mix bowl", "focus on water", "connect battery anode to red wire terminal 1", "wait1"],
)  # fmt: skip
def test_every_sentence_has_its_brackets(sentence: str) -> None:
    world = SciWorld(grammar="bracket")
    assert world.write(sentence) != sentence
    assert world.read(world.write(sentence)) == sentence
    assert world.read("choose[2]") == "2"
    assert world.write("2") == "choose[2]"
    assert "goto[X]" in BRACKETS.usage


def test_splits_are_disjoint_and_kinds_take_turns() -> None:
    world = SciWorld()
    results = {split: [task.id for task in world.tasks(split, 69)] for split in SPLITS}
    assert len({name for names in results.values() for name in names}) == 3 * 69
    kinds = [task.fields["task"] for task in world.tasks("train", 23)]
    assert sorted(kinds) == sorted(sciworld_tasks.AGENTGYM)
    assert len({task.fields["task"] for task in SciWorld(tasks="all").tasks("test", 30)}) == 30
    few = SciWorld(tasks=["find-plant", "boil"]).tasks("test", 4)
    assert sorted(str(task.fields["task"]) for task in few) == ["boil", "boil", "find-plant", "find-plant"]
    assert {task.fields["task"] for task in SciWorld(tasks="boil").tasks("val", 3)} == {"boil"}
    for wrong, message in (
        ("find-plants", "Did you mean 'find-plant'"),
        (["all"], "stands alone"),
        ([], "needs a task"),
    ):
        with pytest.raises(UserError, match=message):
            SciWorld(tasks=wrong)
    for index in (-1, 4639):
        with pytest.raises(UserError, match=f"numbered from 0 to 4638; there is no task {index}"):
            world.task_at(index)
    for index in (0, 29, 30, 4638):
        task = world.task_at(index)
        assert task.fields["data_idx"] == index
        assert task == sciworld_tasks.task_of(task.fields["task"], task.fields["variation"])
    assert world.task_at(30).id == "sciworld-melt-0"


def test_agentgyms_facts() -> None:
    async def ask() -> None:
        world = SciWorld()
        await world.reset(LIVING, 0)
        assert world.fact("task_name") == "find-living-thing"
        assert "living thing" in world.fact("task_description")
        assert "open OBJ" in (await world.ask("action_hint"))["possible_actions"]
        assert "focus" in (await world.ask("goals"))["goals"]
        await world.step(Action(content="look around"))
        assert (world.fact("reward"), world.fact("score")) == (0, 0)
        await world.close()

    asyncio.run(ask())


def test_listed_commands_work() -> None:
    world = SciWorld(legal=True)

    async def first() -> Step:
        observation = await world.reset(LIVING, 0)
        assert observation.legal is not None
        assert "look around" in observation.legal
        return await world.step(world.random(LIVING, 0)(observation))

    assert asyncio.run(first()).info["valid"]


def test_an_episode_whose_java_was_killed_is_tried_again() -> None:
    bench = make_rollout_setup("agentgym:sciworld", "expert", max_turns=60)
    killed: list[int] = []

    class Fragile(SciWorld):
        async def act(self, command: str) -> object:  # type: ignore[override]
            if not killed:
                assert self._session is not None
                killed.append((await asyncio.wrap_future(self._session.worker.submit("facts", {})))["java"])
                os.kill(killed[0], signal.SIGKILL)
            return await super().act(command)

    planned = plan_attempts([LIVING], 1, 0)
    (retried,) = asyncio.run(run_episodes(planned, Fragile, bench.agent, bench.engine, bench.renderer, retries=1))
    assert killed
    assert retried.outcome.value == "success"
    # A new Java process, and the same solution in it: nothing depends on what came before.
    (again,) = asyncio.run(run_episodes(planned, SciWorld, bench.agent, bench.engine, bench.renderer))
    assert again.turns == retried.turns


def test_wrong_settings_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert registry.environment_class("agentgym:sciworld") is SciWorld
    with pytest.raises(UserError, match="no simplification 'openDoor'. Did you mean 'openDoors'"):
        SciWorld(simplification="openDoor")
    with pytest.raises(UserError, match="'boil' has variations 0 to 29, not 30"):
        say(SciWorld(), Task("x", "agentgym:sciworld", "train", {"task": "boil", "variation": 30}), [])
    monkeypatch.setattr("shutil.which", lambda name: None)
    with pytest.raises(UserError, match="needs Java"):
        SciWorld()
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match="pip install 'practicum\\[sciworld\\]'"):
        SciWorld()


@pytest.mark.slow
def test_the_expert_solves_nearly_all_of_sixty_nine() -> None:
    world = SciWorld()
    solved = [play(world, task, world.expert(task))[-1].success for task in world.tasks("train", 69)]
    assert sum(map(bool, solved)) >= 66
