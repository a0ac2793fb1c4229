from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum import registry
from practicum.environment import SPLITS, Action, ScriptedPolicy, Step
from practicum.environments.agentgym.webshop import WebShop, read_goal, split_of
from practicum.environments.agentgym.webshop_catalogue import generated, make_product
from practicum.environments.agentgym.webshop_files import read_shop
from practicum.errors import UserError
from practicum.registry import make_format
from practicum.task import Task, content_hash
from practicum.utils.seeded_random import SeededRandom


def play(world: WebShop, task: Task, policy: ScriptedPolicy, limit: int = 60) -> list[Step]:
    async def run() -> list[Step]:
        observation = await world.reset(task, 0)
        done: list[Step] = []
        while len(done) < limit and not (done and done[-1].terminated):
            done.append(await world.step(policy(observation)))
            observation = done[-1].observation
        return done

    return asyncio.run(run())


def steps(world: WebShop, task: Task, *commands: str) -> list[Step]:
    queue = iter(commands)
    return play(world, task, lambda observation: Action(content=next(queue)), len(commands))


def texts(done: list[Step]) -> list[str]:
    return [step.observation.messages[0].content.removeprefix("Observation: ") for step in done]


def plan(world: WebShop, task: Task) -> list[str]:
    return [text for _, text in world.plan(read_goal(task))]


def test_golden_visit() -> None:
    world = registry.environment_class("agentgym:webshop")(reward="shaped")
    assert isinstance(world, WebShop)
    task = world.task_at(5)
    goal = read_goal(task)
    assert goal.instruction == (
        "Find me plug play, carrying case bluetooth headphones with style: over ear, "
        "and price lower than 130.00 dollars"
    )

    async def run() -> None:
        system, user = (await world.reset(task, 0)).messages
        assert "search[keywords] | click[value]" in system.content
        assert user.content == f"WebShop [SEP] Instruction: [SEP] {goal.instruction} [SEP] Search"
        head = f"Observation: Instruction: [SEP] {goal.instruction} [SEP] Back to Search [SEP] "
        expected = [
            ("click[buy now]", "Observation: Invalid action: 'buy now' cannot be clicked on this page.", -0.05),
            ("dance", "Observation: Invalid action: 'dance' is no command; write search[keywords]", -0.05),
            ("search[plug play carrying case bluetooth headphones]", f"{head}Page 1 (Total results: 50)", 0.1),
            ("search[headphones]", "Observation: Invalid action: there is no search bar", -0.05),
            ("click[Next >]", f"{head}Page 2 (Total results: 50) [SEP] < Prev [SEP] Next > [SEP] B", 0.3),
            ("click[< prev]", f"{head}Page 1", 0.0),  # clicks have been paid
            ("click[B4YPR000TK]", f"{head}< Prev [SEP] style [SEP] on ear [SEP] over ear [SEP] in ear", 0.0),
            ("click[features]", f"{head}< Prev [SEP] ", 0.0),
            ("click[< Prev]", f"{head}< Prev [SEP] style", 0.0),
            ("click[over ear]", f"{head}< Prev [SEP] style [SEP] on ear [SEP] [over ear] [SEP] in ear", 0.0),
            ("click[Buy Now]", "Observation: Thank you for shopping with us! [SEP] Your score", 1.0),
        ]
        for command, message, reward in expected:
            step = await world.step(Action(content=command))
            assert step.observation.messages[0].content.startswith(message), command
            assert step.reward == pytest.approx(reward), command
        assert (step.terminated, step.success, step.progress) == (True, True, 1.0)
        assert step.info["native"] == 1.0
        assert step.info["matched"] == [2, 1, 1]

    asyncio.run(run())


def test_the_papers_total_is_one_point_four() -> None:
    world = WebShop(reward="shaped")
    for task in world.tasks("train", 30):
        done = play(world, task, world.expert(task))
        assert sum(step.reward for step in done) == pytest.approx(1.4)
        # Without the needless clicks too: search, open, buy pays the same where nothing has to be chosen.
    goal = next(g for g in world.goals if not g.options)
    task = world.task_at(world.goals.index(goal))
    short = steps(world, task, *plan(world, task))
    assert [step.reward for step in short] == [0.1, 0.3, 1.0]


def test_a_careless_purchase_is_worth_its_part() -> None:
    for reward, others in (("native", 0.0), ("shaped", 0.4)):
        world = WebShop(reward=reward)
        task = world.task_at(5)
        commands = plan(world, task)
        done = steps(world, task, *commands[:2], commands[-1])  # the right product without its option
        assert done[-1].reward == pytest.approx(3 / 4)
        assert sum(step.reward for step in done) == pytest.approx(3 / 4 + others)
        assert (done[-1].terminated, done[-1].success) == (True, False)


def test_clicks_lead_where_they_say() -> None:
    world = WebShop()
    task = world.task_at(5)
    commands = plan(world, task)
    for tab in ("description", "features", "reviews", "attributes"):
        done = steps(
            world, task, *commands[:2], f"click[{tab}]", "click[< prev]", "click[< prev]", "click[back to search]"
        )
        message = texts(done)
        product = generated(1000).by_asin[commands[1][6:-1].upper()]
        text = {
            "description": product.description,
            "features": " [SEP] ".join(product.bullets),
            "reviews": " [SEP] ".join(product.reviews) or "Nothing here.",
            "attributes": " [SEP] ".join((*product.attributes, product.product_category)),
        }[tab]
        assert message[2].endswith(f"Back to Search [SEP] < Prev [SEP] {text}")
        assert message[3] == message[1]
        assert message[4] == message[0]
        assert message[5].startswith("WebShop [SEP] Instruction:")
        assert done[5].observation.legal == ("search[keywords]",)
    # Options chosen are forgotten when another product is opened.
    back = steps(world, task, *commands[:-1], "click[< prev]", commands[1])
    assert texts(back)[-1] == texts(back)[1]
    assert back[-1].progress == back[1].progress != back[2].progress


def test_search_that_finds_nothing_and_legal_actions() -> None:
    world = WebShop(actions=True)
    done = steps(world, world.task_at(0), "search[xyzzy]", "click[next >]", "click[back to search]")
    assert "(Total results: 0)" in texts(done)[0]
    assert texts(done)[0].endswith("Available actions: click[back to search]")
    assert [step.info["valid"] for step in done] == [True, False, True]


@pytest.mark.parametrize("products", [1000, 10_000])
def test_the_expert_buys_what_is_asked_and_null_nothing(products: int) -> None:
    world = WebShop(products=products)
    assert len(world.catalogue.products) == len(world.catalogue.by_asin) == products
    for task in world.tasks("test", 40):
        done = play(world, task, world.expert(task))
        assert done[-1].success, task.id
        assert sum(step.reward for step in done) == pytest.approx(1.0)
        assert all(step.info["valid"] for step in done)
        assert sum(step.reward for step in play(world, task, world.null(task), 5)) == world.floor


@pytest.mark.parametrize("format", ["react", "hf"])
def test_the_experts_replies_survive_being_written_and_read(format: str) -> None:
    world, written = WebShop(format=format, grammar="bracket"), make_format(format)
    for task in world.tasks("val", 10):
        expert = world.expert(task)

        def through_text(observation: object, expert: ScriptedPolicy = expert) -> Action:
            return written.parse(written.write(expert(observation), has_tools=False), has_tools=False)  # type: ignore[arg-type]

        assert play(world, task, through_text)[-1].success


def test_the_shop_has_not_changed_and_grows_from_its_beginning() -> None:
    world = WebShop()
    tasks = [world.task_at(number) for number in range(200)]
    assert content_hash([[task.id, task.split, task.hash] for task in tasks]) == "4245c950e25dbe8d"
    assert [make_product(number) for number in range(30)] == list(generated(1000).products[:30])
    assert SeededRandom("x").sample("abcdef", 3) == SeededRandom("x").sample("abcdef", 3)


def test_splits_are_disjoint_by_product() -> None:
    world = WebShop()
    results = {split: world.tasks(split, 150) for split in SPLITS}
    products = {split: {task.fields["asin"] for task in tasks} for split, tasks in results.items()}
    assert not products["train"] & products["val"]
    assert not products["train"] & products["test"]
    assert not products["val"] & products["test"]
    for split, tasks in results.items():
        assert {task.split for task in tasks} == {split_of(read_goal(task)) for task in tasks} == {split}
    assert world.tasks("train", 20, seed=1) != world.tasks("train", 20)
    with pytest.raises(UserError, match="'test' goals, not 9999; raise 'products'"):
        world.tasks("test", 9999)


def test_a_short_view() -> None:
    task = WebShop().task_at(5)
    commands = plan(WebShop(), task)
    short, full = steps(WebShop(observation="short"), task, *commands), steps(WebShop(), task, *commands)
    assert short[-1].success
    message = texts(short)
    assert message[0].startswith("Results, page 1 of 5:\nB")
    assert message[2].splitlines()[1] == "style: on ear, (over ear), in ear, neckband"
    assert sum(map(len, message)) < 0.75 * sum(map(len, texts(full)))


def test_wrong_settings_are_named() -> None:
    for options, message in (
        ({"products": 0}, "from 1 to"),
        ({"products": "many"}, "from 1 to"),
        ({"observation": "tiny"}, "no observation 'tiny'"),
    ):
        with pytest.raises(UserError, match=message):
            WebShop(**options)  # type: ignore[arg-type]
    with pytest.raises(UserError, match="lacks 'instruction'"):
        asyncio.run(WebShop().reset(Task("t", WebShop.name, "train", {}), 0))
    far = WebShop(products=1100)
    task = next(t for t in far.tasks("train", 500) if t.fields["asin"] not in generated(1000).by_asin)
    with pytest.raises(UserError, match="catalogue 'generated-1000' lacks"):
        asyncio.run(WebShop().reset(task, 0))
    with pytest.raises(UserError, match="is not a folder"):
        WebShop(catalogue="/nowhere").task_at(0)
    for index in (2976, -1):
        with pytest.raises(UserError, match=f"numbered from 0 to 2975; there is no task {index}"):
            WebShop().task_at(index)


@pytest.fixture
def originals(tmp_path: Path) -> Path:
    """Two products in the form of WebShop's own files."""
    rows = [
        {
            "asin": "B09AAAAAA1",
            "name": "Acme Wall Charger",
            "category": "electronics",
            "query": "Phone Chargers ",
            "product_category": "Electronics › Chargers",
            "small_description": ["fast charging"],
            "full_description": "Charges.",
            "pricing": "$12.50$20.50",
            "customization_options": {"Color": [{"value": "Black/White"}, {"value": "Red"}], "Size": None},
        },
        {
            "asin": "B09AAAAAA2",
            "name": "Acme Table Lamp",
            "category": "garden",
            "query": "lamps",
            "product_category": "Home › Lamps",
            "small_description": "bright",
            "full_description": None,
            "pricing": None,
            "customization_options": "",
        },
    ]
    details = {
        "B09AAAAAA1": {
            "attributes": ["fast charging", "easy carry"],
            "instruction": "Find me fast charging phone chargers",
            "instruction_attributes": ["fast charging"],
        }
    }
    (tmp_path / "items_shuffle_1000.json").write_text(json.dumps([*rows, rows[0]]))
    (tmp_path / "items_ins_v2_1000.json").write_text(json.dumps(details))
    return tmp_path


def test_webshops_own_files_are_read(originals: Path) -> None:
    world = WebShop(catalogue=str(originals))
    charger, lamp = world.catalogue.products
    assert charger.options == {"color": ("black | white", "red")}
    assert (charger.query, charger.pricing, charger.price) == ("phone chargers", (12.5, 20.5), 16.5)
    assert (lamp.bullets, lamp.pricing, lamp.description) == (("bright",), (100.0,), "")
    assert len(world.goals) == 2
    assert {goal.options for goal in world.goals} == {("black | white",), ("red",)}
    assert world.goals[0].instruction.startswith("Find me fast charging phone chargers with color: ")
    task = world.task_at(0)
    assert play(world, task, world.expert(task))[-1].success


def test_instructions_by_people_come_first(originals: Path) -> None:
    written = {
        "B09AAAAAA2": [
            {"instruction": "i want a bright lamp.", "instruction_attributes": ["bright"], "instruction_options": []},
            {"instruction": "a lamp", "instruction_attributes": [], "instruction_options": []},
        ]
    }
    (originals / "items_human_ins.json").write_text(json.dumps(written))
    (originals / "reviews.json").write_text(
        json.dumps([{"asin": "B09AAAAAA2", "average_rating": 4.5, "reviews": [{"review": "Good."}]}])
    )
    catalogue, goals = read_shop.__wrapped__(str(originals), None)
    assert [goal.instruction for goal in goals] == [
        f"i want a bright lamp, and price lower than {goals[0].price_upper:.2f} dollars"
    ]
    assert goals[0].price_upper in (120.0, 130.0, 140.0)
    assert (catalogue.by_asin["B09AAAAAA2"].rating, catalogue.by_asin["B09AAAAAA2"].reviews) == ("4.5", ("Good.",))


def test_wrong_files_are_named(tmp_path: Path, originals: Path) -> None:
    (originals / "items_shuffle_1000.json").write_text("[{]")
    with pytest.raises(UserError, match="is not JSON"):
        read_shop.__wrapped__(str(originals), None)
    (originals / "items_shuffle_1000.json").write_text('{"a": 1}')
    with pytest.raises(UserError, match="must hold a JSON list"):
        read_shop.__wrapped__(str(originals), None)
    (originals / "items_shuffle_1000.json").write_text('[{"asin": "B1"}]')
    with pytest.raises(UserError, match="Product 0 of"):
        read_shop.__wrapped__(str(originals), None)
    (originals / "items_ins_v2_1000.json").unlink()
    with pytest.raises(UserError, match="lacks a file items_ins"):
        read_shop.__wrapped__(str(originals), None)


SCRIPT = """
import asyncio
from practicum.environments.agentgym.webshop import WebShop
from practicum.task import content_hash

async def main():
    world, told = WebShop(products=300), []
    for task in world.tasks("train", 10, seed=2):
        for policy in (world.expert(task), world.random(task, 5)):
            observation = await world.reset(task, 0)
            told.append([task.id, task.hash, [message.content for message in observation.messages]])
            for _ in range(12):
                action = policy(observation)
                step = await world.step(action)
                observation = step.observation
                told.append([action.content, observation.messages[0].content, step.reward, step.progress])
                if step.terminated:
                    break
    print(content_hash(told))

asyncio.run(main())
"""


def test_two_processes_with_other_hash_seeds_tell_the_same_story() -> None:
    messages = []
    for seed in ("1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        done = subprocess.run(
            [sys.executable, "-c", SCRIPT], env=environment, check=True, capture_output=True, text=True
        )
        messages.append(done.stdout.strip())
    assert messages[0] == messages[1] != ""


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.one_of(
            st.text(max_size=30),
            st.text(alphabet="seachlik[]<> ", max_size=20),
            st.sampled_from(["search[headphones]", "click[next >]", "click[< prev]", "click[b4ypr000tk]"]),
            st.sampled_from(["click[over ear]", "click[features]", "click[back to search]", "click[buy now]"]),
        ),
        max_size=12,
    )
)
def test_no_command_breaks_the_shop(commands: list[str]) -> None:
    world = WebShop()
    for step in steps(world, world.task_at(5), *commands) if commands else []:
        assert 0.0 <= step.reward <= 1.0
        assert step.progress is not None
        assert 0.0 <= step.progress <= 1.0
