"""ALFWorld: the stock engine's transcripts, made games that can be solved, both grammars, both rewards."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum import registry
from practicum.data.tasks import select
from practicum.environment import SPLITS, Action, Message, Observation, ScriptedPolicy, Step
from practicum.environments.agentgym.alfworld import AlfWorld, made_task, pool_of
from practicum.environments.agentgym.alfworld_file_expert import SearchingExpert
from practicum.environments.agentgym.alfworld_games import KINDS, kind_of
from practicum.environments.agentgym.alfworld_planning import relevant
from practicum.environments.worker import close_pools
from practicum.errors import UserError
from practicum.rollout import run_episodes
from practicum.rollout_setup import make_rollout_setup
from practicum.task import Task
from practicum.trajectory import plan_attempts
from practicum.utils.seeded_random import SeededRandom

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("fast_downward") is None, reason="`make alfworld-planner` installs Fast Downward (GPL-3.0)"
)


@pytest.fixture(scope="module", autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    close_pools()


def play(environment: AlfWorld, task: Task, policy: ScriptedPolicy, limit: int = 40) -> list[Step]:
    async def run() -> list[Step]:
        observation = await environment.reset(task, 0)
        done: list[Step] = []
        while len(done) < limit and not (done and done[-1].terminated):
            done.append(await environment.step(policy(observation)))
            observation = done[-1].observation
        await environment.close()
        return done

    return asyncio.run(run())


def say(environment: AlfWorld, number: int, commands: list[str]) -> list[Step]:
    output = iter(commands)
    return play(environment, made_task(number), lambda observation: Action(content=next(output)), len(commands))


STOCK = """
import json, random, sys
from practicum.environments.agentgym import alfworld_engine, alfworld_host
given = json.loads(sys.stdin.read())
stock = alfworld_engine.stock()
import textworld
from alfworld.agents.environment.alfred_tw_env import AlfredDemangler, AlfredInfos
from textworld.envs.pddl.pddl import PddlEnv

def stock_transcript(data, choose):
    infos = textworld.EnvInfos(won=True, admissible_commands=True, extras=["gamefile"])
    world = AlfredInfos(AlfredDemangler(PddlEnv(infos), shuffle=False))
    world.load(data)
    state = world.reset()
    told = [[state.feedback, state.admissible_commands]]
    for command in choose(lambda: state.admissible_commands):
        state, _, done = world.step(command)
        told.append([command, state.feedback, state.admissible_commands, state.won])
        if done:
            break
    return told

def quick_transcript(data, choose):
    world = alfworld_engine.Game(alfworld_engine.Library(), data)
    told = [[world.text, world.legal]]
    for command in choose(lambda: world.legal):
        world.step(command)
        told.append([command, world.text, world.legal, world.won])
        if world.won:
            break
    return told

def player(seed, plan):
    def choose(legal):
        dice = random.Random(seed)
        for command in plan:
            yield command
        while not plan:
            yield dice.choice(legal()) if dice.random() < 0.9 else "jump over the moon"
            if dice.random() < 0.06:
                return
    return choose

games = [(number, alfworld_host.load(number)) for number in given["games"]]
ways = [(data, player(number, [])) for number, data in games]
ways += [(data, player(number, given["plans"][str(number)])) for number, data in games]
before = [stock_transcript(data, way) for data, way in ways]  # before anything is made quicker
after = [quick_transcript(data, way) for data, way in ways]
print(json.dumps({"same": before == after, "steps": sum(map(len, before)), "won": [each[-1][-1] for each in before]}))
"""


def test_transcripts_are_the_stock_packages() -> None:
    games = [1, 2]
    world = AlfWorld()
    plans = {}
    for number in games:
        steps = play(world, made_task(number), world.expert(made_task(number)))
        assert steps[-1].success
        plans[number] = list(pool_of(2).ask("plan", game=number, expert="walkthrough"))
    process = subprocess.run(
        [sys.executable, "-c", STOCK], input=json.dumps({"games": games, "plans": plans}), text=True,
        capture_output=True, env={**os.environ, "PYTHONHASHSEED": "0"}, check=False,
    )  # fmt: skip
    assert process.returncode == 0, process.stderr
    output = json.loads(process.stdout.splitlines()[-1])
    assert output["same"]
    assert output["steps"] > 25
    assert output["won"][2:] == [True] * 2


def test_games_of_some_kinds() -> None:
    chosen = ("look_at_obj_in_light", "pick_and_place_simple")
    tasks = AlfWorld(kinds=chosen).tasks("test", 40)
    assert {task.fields["kind"] for task in tasks} == set(chosen)
    assert {task.id for task in tasks} <= {task.id for task in AlfWorld().tasks("test", 240)}
    with pytest.raises(UserError, match="no kind 'look_at_obj'"):
        AlfWorld(kinds=["look_at_obj"])


def test_the_expert_solves_every_kind_and_the_null_policy_none() -> None:
    world = AlfWorld()
    tasks = world.tasks("val", len(KINDS))
    assert sorted(task.fields["kind"] for task in tasks) == sorted(KINDS)
    for task in tasks:
        steps = play(world, task, world.expert(task))
        assert steps[-1].success, task.id
        assert all(step.info["valid"] for step in steps)
        assert sum(step.reward for step in steps) == 1.0
        # It searches: a walkthrough knows where the object is.
        assert len(steps) >= len(pool_of(2).ask("plan", game=task.fields["data_idx"], expert="walkthrough"))
    idle = play(world, tasks[0], world.null(tasks[0]), 5)
    assert not any(step.reward or step.terminated or step.info["valid"] for step in idle)
    assert idle[0].observation.messages[0].content.startswith("Observation: Nothing happens.\nAVAILABLE ACTIONS: ")


def test_the_bracket_grammar_and_the_papers_shorthand() -> None:
    world = AlfWorld(grammar="bracket", reward="shaped", expert="walkthrough")
    task = made_task(2)
    plan = play(world, task, world.expert(task))
    assert plan[-1].success
    # The example of Affine's guide: goto, take, goto, clean, goto at 0.2 each, and the put that completes at 1.0.
    verbs = [command.split()[0] for command in pool_of(2).ask("plan", game=2, expert="walkthrough")]
    assert verbs == ["go", "take", "go", "clean", "go", "move"]
    assert sum(step.reward for step in plan) == pytest.approx(2.0)
    object_name = next(c for c in pool_of(2).ask("plan", game=2, expert="walkthrough") if c.startswith("take")).split()[
        1
    ]
    output = iter(world.write(c) for c in pool_of(2).ask("plan", game=2, expert="walkthrough"))
    short = {"take": f"take[{object_name}]", "clean": f"clean[{object_name}]"}

    def brief(observation: object) -> Action:
        command = next(output)
        return Action(content=short.get(command.partition("[")[0], command))

    steps = play(AlfWorld(grammar="bracket"), task, brief)
    assert [step.info["valid"] for step in steps[:-1]].count(False) <= 1  # a second thing of that name may lie there


def test_an_unclear_bracket_command_is_asked_back() -> None:
    unclear, sentence, impossible = say(AlfWorld(grammar="bracket"), 3, ["goto[cabinet]", "go to cabinet 1", "fly[1]"])
    assert "Which of these do you mean? goto[cabinet 1]" in unclear.observation.messages[0].content
    assert "Could not execute 'go to cabinet 1'" in sentence.observation.messages[0].content
    assert not any(step.info["valid"] for step in (unclear, sentence, impossible))


def test_shaped_reward_pays_new_steps_once_and_punishes_errors() -> None:
    commands = ["go to fridge 1", "go to fridge 1", "open fridge 1", "close fridge 1", "open fridge 1", "look", "sing"]
    rewards = [step.reward for step in say(AlfWorld(reward="shaped"), 3, commands)]
    assert rewards == pytest.approx([0.2, -0.05, 0.2, 0.2, 0.0, 0.0, -0.05])


def test_older_wordings_are_understood() -> None:
    plan = pool_of(2).ask("plan", game=3, expert="walkthrough")
    older = [command.replace("move ", "put ").replace(" to ", " in/on ") if command.startswith("move ") else command
             for command in plan]  # fmt: skip
    assert older != plan
    assert say(AlfWorld(), 3, older)[-1].success


def test_fast_downwards_planner_is_an_expert_too() -> None:
    world = AlfWorld(expert="planner")
    for number in range(6, 12):  # one of each kind
        steps = play(world, made_task(number), world.expert(made_task(number)))
        assert steps[-1].success
        assert len(steps) <= len(pool_of(2).ask("plan", game=number, expert="walkthrough"))


def test_the_searching_expert_solves_every_kind_and_takes_only_what_it_has_seen() -> None:
    world = AlfWorld(expert="searching", show_actions=False)
    for number in range(6, 12):  # one of each kind
        task = made_task(number)
        seen: list[str] = []
        policy = world.expert(task)

        def look(observation: Observation, seen: list[str] = seen, policy: ScriptedPolicy = policy) -> Action:
            seen += [message.content for message in observation.messages if message.role == "user"]
            action = policy(observation)
            if action.content.startswith(("take ", "use ")):
                object_name = " ".join(action.content.split()[1:3])
                assert any(f"a {object_name}" in text for text in seen), f"{action.content}, but nobody saw it"
            return action

        assert play(world, task, look, 60)[-1].success


def test_a_plan_needs_little_of_a_problem() -> None:
    problem = """(define (problem p) (:domain alfred)
      (:objects agent1 - agent l0 l1 l2 l3 - location Mug1 Mug2 Pan1 - object Shelf1 Desk1 Sink1 - receptacle
        MugType PanType - otype ShelfType DeskType SinkBasinType - rtype)
      (:init (= (total-cost) 0) (atLocation agent1 l0) ; the agent
        (receptacleType Shelf1 ShelfType) (receptacleAtLocation Shelf1 l1)
        (receptacleType Desk1 DeskType) (receptacleAtLocation Desk1 l2)
        (receptacleType Sink1 SinkBasinType) (receptacleAtLocation Sink1 l3)
        (objectType Mug1 MugType) (inReceptacle Mug1 Desk1) (objectType Pan1 PanType) (inReceptacle Pan1 Sink1)
        (objectType Mug2 MugType) (inReceptacleObject Mug2 Pan1)
        (canContain ShelfType MugType) (canContain ShelfType PanType) (canContain DeskType MugType))
      (:goal (exists (?o - object) (and (objectType ?o MugType) (receptacleType Shelf1 ShelfType)))))"""
    small = relevant(problem)
    # The pan stays because a mug lies in it, and the sink because the pan lies there.
    assert all(name in small for name in ("Mug1", "Mug2", "Pan1", "Shelf1", "Desk1", "Sink1"))
    assert "(canContain ShelfType MugType)" in small
    assert "(canContain ShelfType PanType)" not in small
    without = relevant(problem.replace("(inReceptacleObject Mug2 Pan1)", ""))
    assert not any(name in without for name in ("Pan1", "Sink1", "l3"))
    assert "Sink1" in relevant(
        problem.replace("(inReceptacleObject Mug2 Pan1)", "").replace("(and", "(and (isClean ?o)")
    )
    assert relevant(small) == small


def test_splits_are_disjoint_and_ids_stable() -> None:
    world = AlfWorld()
    results = {split: {task.id for task in world.tasks(split, 60)} for split in SPLITS}
    assert all(len(ids) == 60 for ids in results.values())
    assert len(set.union(*results.values())) == 180
    assert world.tasks("train", 3)[1] == world.tasks("train", 60)[1]
    assert world.tasks("train", 60, seed=1) != world.tasks("train", 60)
    assert len({task.id for task in world.tasks("test", 1000)}) == 1000  # beyond the first round come new games
    task = world.task_at(6003)
    assert (task.fields["data_idx"], task.fields["kind"]) == (6003, kind_of(3))
    assert task == made_task(6003)


def test_the_dice_are_the_same_everywhere() -> None:
    dice = SeededRandom("alfworld/1/7")
    assert [dice.below(100) for _ in range(6)] == [94, 0, 13, 43, 44, 8]


def test_the_same_task_is_the_same_episode_in_two_processes() -> None:
    async def transcript() -> list[str]:
        world = AlfWorld()
        observation = await world.reset(made_task(4), 0)
        policy = world.random(made_task(4), 3)
        messages = [observation.messages[-1].content]
        for _ in range(15):
            step = await world.step(policy(observation))
            observation = step.observation
            messages.append(observation.messages[-1].content)
        return messages

    first = asyncio.run(transcript())
    close_pools()
    assert asyncio.run(transcript()) == first


def test_a_killed_engine_costs_its_episode_which_is_tried_again() -> None:
    bench = make_rollout_setup("agentgym:alfworld", "expert", max_turns=40)
    tasks = bench.environment.tasks("train", 2)
    killed: list[int] = []

    class Fragile(AlfWorld):
        async def act(self, command: str) -> object:  # type: ignore[override]
            if not killed:
                assert self._session is not None
                killed.append(self._session.worker.process.pid)
                os.kill(killed[0], signal.SIGKILL)
            return await super().act(command)

    planned = plan_attempts(tasks, 1, 0)
    failed = asyncio.run(run_episodes(planned[:1], Fragile, bench.agent, bench.engine, bench.renderer))
    assert failed[0].outcome.value == "env_error"
    assert "the process of AlfWorldHost is gone" in str(failed[0].error)
    killed.clear()
    retried = asyncio.run(run_episodes(planned, Fragile, bench.agent, bench.engine, bench.renderer, retries=1))
    assert [episode.outcome.value for episode in retried] == ["success", "success"]


def test_alfworlds_own_files_are_played(tmp_path: Path) -> None:
    program = "import json, sys; from practicum.environments.agentgym import alfworld_host as h; "
    program += "data = h.load(2); data['walkthrough'] = json.loads(sys.argv_plan); json.dump(data, sys.stdout)"
    plan = pool_of(2).ask("plan", game=2, expert="walkthrough")
    program = program.replace("sys.argv_plan", repr(json.dumps(plan)))
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    data = json.loads(result.stdout)
    del data["plan"]
    for folder, name in (("train", "a"), ("train", "b"), ("valid_seen", "c"), ("train", "d-movable")):
        location = tmp_path / folder / f"pick_clean_then_place_in_recep-{name}" / "trial"
        location.mkdir(parents=True)
        (location / "game.tw-pddl").write_text(json.dumps({**data, "solvable": True}))
    world = AlfWorld(games=str(tmp_path))
    tasks = world.tasks("train", 4)
    assert len({task.id for task in tasks}) == 2
    # Asked for more than there are, an evaluation has each game once.
    assert [task.id for task in select(world, split="train", seed=0, count=9)] == [task.id for task in tasks[:2]]
    assert tasks[0].fields["kind"] == "pick_clean_then_place_in_recep"
    assert [world.task_at(index).split for index in range(3)] == ["train", "train", "val"]
    for index in (3, -1):
        with pytest.raises(UserError, match=f"numbered from 0 to 2; there is no task {index}"):
            world.task_at(index)
    assert play(world, tasks[0], world.expert(tasks[0]))[-1].success
    with pytest.raises(UserError, match="There are no 'test' games in"):
        world.tasks("test", 1)
    cleaning = AlfWorld(games=str(tmp_path), kinds="pick_clean_then_place_in_recep")
    assert cleaning.tasks("train", 4) == tasks
    with pytest.raises(UserError, match="no games of look_at_obj_in_light in"):
        AlfWorld(games=str(tmp_path), kinds=["look_at_obj_in_light"]).tasks("train", 1)
    with pytest.raises(UserError, match="say where they are"):
        play(AlfWorld(), tasks[0], world.null(tasks[0]))


def test_agentgyms_lists_number_alfworlds_own_files(tmp_path: Path) -> None:
    def row(name: str) -> dict[str, object]:
        return {"item_id": 0, "task_type": f"pick_and_place_simple-{name}", "task_id": f"trial_{name}"}

    lists = {"mappings_train.json": [row("b"), row("a")], "mappings_test.json": [row("z"), row("y"), row("x")]}
    for file, rows in lists.items():
        (tmp_path / file).write_text(json.dumps(rows))
    for folder in ("train", "valid_train", "valid_seen"):
        for name in "abxyz":
            location = tmp_path / folder / f"pick_and_place_simple-{name}" / f"trial_{name}"
            location.mkdir(parents=True)
            (location / "game.tw-pddl").write_text("{}")
    world = AlfWorld(games=str(tmp_path), mappings=str(tmp_path))
    files = [str(world.task_at(index).fields["file"]) for index in range(5)]
    assert [file.rpartition("trial_")[2][0] for file in files] == ["b", "a", "z", "y", "x"]
    assert [file.split("/")[0] for file in files] == ["train"] * 2 + ["valid_train"] * 3
    assert [world.task_at(index).split for index in range(5)] == ["train"] * 2 + ["test"] * 3
    assert {task.fields["data_idx"] for task in world.tasks("test", 3)} == {2, 3, 4}
    assert {task.fields.get("data_idx") for task in world.tasks("val", 5)} == {None}
    with pytest.raises(UserError, match="numbered from 0 to 4; there is no task 5"):
        world.task_at(5)
    (tmp_path / "valid_train" / "pick_and_place_simple-z" / "trial_z" / "game.tw-pddl").unlink()
    with pytest.raises(UserError, match="is not there"):
        asyncio.run(world.reset(world.task_at(2), 0))
    with pytest.raises(UserError, match="say where these are with games=FOLDER"):
        AlfWorld(mappings=str(tmp_path))
    with pytest.raises(UserError, match="agentenv-alfworld/configs"):
        AlfWorld(games=str(tmp_path), mappings=str(tmp_path / "train")).task_at(0)


class Household:
    """A small household, as lists of possible commands, in which the object is in the last drawer."""

    def __init__(self, goal: str, objects: dict[str, str]) -> None:
        self.goal, self.things = goal, dict(objects)
        self.furniture = ("drawer 1", "drawer 2", "fridge 1", "sinkbasin 1", "desk 1")
        self.closed = {"drawer 1", "drawer 2", "fridge 1"}
        self.at = self.held = ""
        self.clean = False

    def observation(self) -> Observation:
        legal = [f"go to {folder}" for folder in self.furniture if folder != self.at] + ["look"]
        if self.at in self.closed:
            legal.append(f"open {self.at}")
        elif self.at and not self.held:
            legal += [f"take {name} from {self.at}" for name, folder in self.things.items() if folder == self.at]
        elif self.at:
            legal.append(f"move {self.held} to {self.at}")
        if self.held and self.at == "sinkbasin 1":
            legal.append(f"clean {self.held} with sinkbasin 1")
        text = f"You are in a room.\nYour task is to: {self.goal}."
        return Observation((Message("user", text),), legal=tuple(legal))

    def do(self, command: str) -> None:
        assert command in (self.observation().legal or ())
        verb, _, rest = command.partition(" ")
        if verb == "go":
            self.at = rest.removeprefix("to ")
        elif verb == "open":
            self.closed.discard(rest)
        elif verb == "take":
            self.held = rest.partition(" from ")[0]
            del self.things[self.held]
        elif verb == "clean":
            self.clean = True
        elif verb == "move":
            self.things[self.held], self.held = self.at, ""


def test_the_searching_expert_opens_what_it_passes_and_remembers_what_it_saw() -> None:
    def run(goal: str, objects: dict[str, str], turns: int) -> tuple[Household, list[str]]:
        house, expert = Household(goal, objects), SearchingExpert({"drawer": ["mug", "cd"], "fridge": ["mug"]})
        commands = []
        for _ in range(turns):
            commands.append(expert.next_command(house.observation()))
            house.do(commands[-1])
        return house, commands

    house, commands = run("put a clean mug in desk", {"mug 1": "drawer 2", "cd 1": "drawer 1"}, 9)
    assert commands == [
        "go to drawer 1", "open drawer 1", "go to drawer 2", "open drawer 2", "take mug 1 from drawer 2",
        "go to sinkbasin 1", "clean mug 1 with sinkbasin 1", "go to desk 1", "move mug 1 to desk 1",
    ]  # fmt: skip
    assert house.clean
    # It saw the second one where it took the first, and goes back there.
    house, commands = run("find two cd and put them in desk", {"cd 1": "drawer 1", "cd 2": "drawer 1"}, 8)
    assert commands[5:] == ["go to drawer 1", "take cd 2 from drawer 1", "go to desk 1"]
    assert house.things == {"cd 1": "desk 1"}


def test_wrong_settings_are_refused(tmp_path: Path) -> None:
    assert registry.environment_class("agentgym:alfworld") is AlfWorld
    with pytest.raises(UserError, match="no expert 'plan'. Did you mean 'planner'"):
        AlfWorld(expert="plan")
    with pytest.raises(UserError, match="no ALFWorld games"):
        AlfWorld(games=str(tmp_path))
    with pytest.raises(UserError, match="make the tasks anew"):
        play(AlfWorld(), Task("x", "agentgym:alfworld", "train", {"data_idx": 1}), AlfWorld().null(made_task(0)))


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "fast_downward" else object())
    with pytest.raises(UserError, match="needs the package 'fast_downward'"):
        AlfWorld()


@pytest.mark.slow
def test_the_expert_solves_sixty_and_random_almost_none() -> None:
    world = AlfWorld()
    tasks = world.tasks("train", 60)
    assert all(play(world, task, world.expert(task))[-1].success for task in tasks)
    successes = [
        play(world, task, world.random(task, random.Random(7).randrange(99)), 20)[-1].success for task in tasks
    ]
    assert sum(map(bool, successes)) <= 6
