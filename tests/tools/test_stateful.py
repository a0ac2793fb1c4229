"""Stateful tools: one state for one episode at a time, whatever happens to the episodes."""

from __future__ import annotations

import asyncio
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import pytest

from practicum import registry
from practicum.agent import Agent, Deadlines
from practicum.chat.renderer import Renderer
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Observation, ScriptedPolicy, ToolCall
from practicum.environments.tool_agent import ToolEnvironment
from practicum.errors import UserError
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.tools.base import Tool, tool
from practicum.tools.errors import ToolFailure
from practicum.tools.pool import StatePool
from practicum.trajectory import ActionSource, Outcome, Trajectory, plan_attempts

SHOP = '''
import time
from practicum.errors import UserError
from practicum.rewards.base import reward
from practicum.tools.base import tool
from practicum.tools.errors import ToolFailure

class Basket:
    made = 0
    log = []

    def __init__(self):
        Basket.made += 1
        self.number = Basket.made
        self.items = ["left over"]

    def reset(self, owner, seed, size=9):
        if owner == "reset fails":
            raise OSError("the shop is shut")
        if owner == "wrong setting":
            raise UserError("open the shop first")
        self.owner, self.items = owner, []
        Basket.log.append((self.number, owner, seed, size))

    def close(self):
        Basket.log.append((self.number, "closed"))

@tool(stateful=Basket, pool_size=3, timeout=0.3)
def put(basket: Basket, item: str) -> str:
    """Put something in.

    Args:
        item: what
    """
    if item == "stone":
        raise ValueError("too heavy")
    if item == "bomb":
        raise ToolFailure("the shop is gone")
    if item == "glue":
        time.sleep(1.0)
    time.sleep(0.002)
    basket.items.append(item)
    return f"{basket.owner}: {len(basket.items)}"

@tool(stateful=Basket)
async def look(basket: Basket) -> str:
    """Look inside."""
    return ", ".join(basket.items)

@reward()
def filled(put, owner, wanted):
    assert put.owner == owner
    return {"reward": float(put.items == list(wanted)), "baskets": put.number}
'''


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[ModuleType]:
    """A user's file, new for each test, so that its pool is new too."""
    file = tmp_path / "shop.py"
    file.write_text(SHOP)
    result = sys.modules[registry.tool(f"{file}:put").function.__module__]
    yield result
    result.put.pool.close(idle_only=False)


def pool_of(shop: ModuleType) -> StatePool:
    pool: StatePool = shop.put.pool
    return pool


def task(number: int, *items: str, owner: str | None = None, **fields: Any) -> Task:
    fields = {"owner": owner or f"owner-{number}", "items": list(items), "wanted": list(items), **fields}
    return Task(f"t-{number}", "tools", "train", {"question": "Fill it.", **fields})


def shopper(task: Task, seed: int) -> ScriptedPolicy:
    """Puts every item in, one call a turn, looks once, and is done."""
    turns = iter([*(("put", {"item": item}) for item in task.fields["items"]), ("look", {})])

    def act(observation: Observation) -> Action:
        name, arguments = next(turns, ("", {}))
        return Action(calls=(ToolCall(name, arguments),)) if name else Action(content="done")

    return act


def play(shop: ModuleType, renderer: Renderer, tasks: list[Task], agent: Agent | None = None) -> list[Trajectory]:
    file = shop.__file__
    make = lambda: ToolEnvironment([f"{file}:put", f"{file}:look"], f"{file}:filled")  # noqa: E731
    engine = ScriptedEngine(shopper, ActionSource.EXPERT, make_format("hf"), renderer)
    planned = plan_attempts(tasks, 1, 5)
    return asyncio.run(run_episodes(planned, make, agent or Agent(max_turns=8), engine, renderer))


def test_the_state_is_no_business_of_the_agent_s(shop: ModuleType) -> None:
    assert list(shop.put.schema["function"]["parameters"]["properties"]) == ["item"]
    assert shop.look.schema["function"]["parameters"]["properties"] == {}
    assert shop.put.check({"basket": 1, "item": "x"}) == "put has no argument 'basket'. Known: item."
    assert shop.put.pool is shop.look.pool


def test_each_episode_has_its_own_state_and_few_are_made(shop: ModuleType, renderer: Renderer) -> None:
    episodes = play(shop, renderer, [task(n, f"a{n}", f"b{n}") for n in range(30)])
    assert {episode.outcome for episode in episodes} == {Outcome.SUCCESS}
    for number, episode in enumerate(episodes):
        messages = [message.content for turn in episode.turns[1:] for message in turn.messages]
        assert messages == [f"owner-{number}: 1", f"owner-{number}: 2", f"a{number}, b{number}"]
    assert 1 <= shop.Basket.made <= 3
    assert {episode.components["baskets"] for episode in episodes} == set(range(1, shop.Basket.made + 1))
    assert pool_of(shop).free == 3
    assert pool_of(shop).warm == shop.Basket.made
    seeds = {entry[2] for entry in shop.Basket.log}
    assert seeds == {episode.seeds.environment for episode in episodes}
    assert {entry[3] for entry in shop.Basket.log} == {9}


def test_a_reward_sees_the_state_though_no_tool_was_called(shop: ModuleType, renderer: Renderer) -> None:
    async def run() -> float:
        world = ToolEnvironment([f"{shop.__file__}:put"], f"{shop.__file__}:filled")
        await world.reset(task(0, wanted=[]), 0)
        try:
            return (await world.step(Action(content="done"))).reward
        finally:
            await world.close()

    assert asyncio.run(run()) == 1.0
    assert pool_of(shop).free == 3


def test_nothing_is_taken_for_a_call_that_cannot_be_made(shop: ModuleType) -> None:
    async def run() -> tuple[str, int]:
        world = ToolEnvironment([f"{shop.__file__}:put"], "math_reward")
        await world.reset(task(0), 0)
        step = await world.step(Action(calls=(ToolCall("put", {}),)))
        return step.observation.messages[0].content, pool_of(shop).free

    assert asyncio.run(run()) == ("Error: put needs the argument 'item'.", 3)


def test_an_exception_of_the_tool_is_an_observation_and_the_state_stays(shop: ModuleType, renderer: Renderer) -> None:
    (episode,) = play(shop, renderer, [task(0, "stone", "pen", wanted=["pen"])])
    assert episode.outcome is Outcome.SUCCESS
    assert episode.turns[1].messages[0].content == "Error: too heavy"
    assert (pool_of(shop).free, pool_of(shop).warm) == (3, 1)


@pytest.mark.parametrize(
    ("item", "outcome", "message"),
    [
        ("bomb", Outcome.ENV_ERROR, "ToolFailure: the shop is gone"),
        ("glue", Outcome.TIMEOUT, "tool 'put' did not answer within 0.3 s"),
    ],
)
def test_a_state_that_broke_or_was_left_in_a_call_is_replaced(
    shop: ModuleType, renderer: Renderer, item: str, outcome: Outcome, message: str
) -> None:
    first, second = (play(shop, renderer, [task(n, name)])[0] for n, name in enumerate((item, "pen")))
    assert (first.outcome, second.outcome) == (outcome, Outcome.SUCCESS)
    assert message in (first.error or "")
    assert second.components["baskets"] == 2
    assert (pool_of(shop).free, pool_of(shop).warm) == (3, 1)
    deadline = time.monotonic() + 30
    while (1, "closed") not in shop.Basket.log and time.monotonic() < deadline:
        time.sleep(0.01)
    assert (1, "closed") in shop.Basket.log


def test_a_new_state_that_cannot_be_reset_is_the_world_s_fault(shop: ModuleType, renderer: Renderer) -> None:
    bad, good = play(shop, renderer, [task(0, "pen", owner="reset fails"), task(1, "pen")])
    assert bad.outcome is Outcome.ENV_ERROR
    assert "Basket cannot be reset: OSError: the shop is shut" in (bad.error or "")
    assert good.outcome is Outcome.SUCCESS
    assert pool_of(shop).free == 3


def test_a_field_that_reset_wants_and_the_task_lacks(shop: ModuleType, renderer: Renderer) -> None:
    lacking = Task("t", "tools", "train", {"question": "?", "items": ["pen"], "wanted": []})
    (episode,) = play(shop, renderer, [lacking])
    assert episode.outcome is Outcome.ENV_ERROR
    assert "Basket.reset wants 'owner', which the task does not have" in (episode.error or "")


def test_a_wrong_setting_stops_everything(shop: ModuleType, renderer: Renderer) -> None:
    with pytest.raises(ExceptionGroup) as result:
        play(shop, renderer, [task(0, "pen", owner="wrong setting")])
    assert result.group_contains(UserError, match="open the shop first")
    assert pool_of(shop).free == 3


def test_cancelled_episodes_give_everything_back(shop: ModuleType, renderer: Renderer) -> None:
    """Stopped at any moment: waiting for a place, in a call, or in between."""
    file = shop.__file__
    make = lambda: ToolEnvironment([f"{file}:put", f"{file}:look"], f"{file}:filled")  # noqa: E731

    async def run(after: float) -> None:
        engine = ScriptedEngine(shopper, ActionSource.EXPERT, make_format("hf"), renderer)
        planned = plan_attempts([task(n, *"abcde") for n in range(12)], 1, 5)
        work = asyncio.create_task(run_episodes(planned, make, Agent(max_turns=8), engine, renderer))
        await asyncio.sleep(after)
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work

    for after in (0.0, 0.003, 0.01, 0.02, 0.04):
        asyncio.run(run(after))
        assert pool_of(shop).free == 3
    (episode,) = play(shop, renderer, [task(99, "pen")])
    assert episode.outcome is Outcome.SUCCESS


def test_waiting_for_a_place_meets_the_deadline_of_the_step(shop: ModuleType, renderer: Renderer) -> None:
    async def take_all() -> list[Any]:
        return [await pool_of(shop).lease({"owner": "x", "seed": 0}) for _ in range(3)]

    leases = asyncio.run(take_all())
    short = Agent(max_turns=8, deadlines=Deadlines(step=0.1))
    (waiting,) = play(shop, renderer, [task(0, "pen")], short)
    assert waiting.outcome is Outcome.TIMEOUT
    for lease in leases:
        lease.release()
    assert play(shop, renderer, [task(0, "pen")], short)[0].outcome is Outcome.SUCCESS
    assert pool_of(shop).free == 3


# -- the pool itself --------------------------------------------------------------------------


class Counted:
    """A state that watches its users."""

    alive: ClassVar[set[int]] = set()
    together: ClassVar[int] = 0
    lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        time.sleep(random.random() * 0.004)
        self.users = 0
        self.owner: object = None
        with Counted.lock:
            Counted.alive.add(id(self))

    def use(self, owner: object) -> None:
        with Counted.lock:
            self.users += 1
            Counted.together = max(Counted.together, self.users)
        time.sleep(random.random() * 0.004)
        assert self.owner is owner
        with Counted.lock:
            self.users -= 1

    def reset(self, owner: object) -> None:
        self.owner = owner

    def close(self) -> None:
        with Counted.lock:
            Counted.alive.discard(id(self))


def test_places_and_states_survive_any_cancelling() -> None:
    """Three hundred users that are cancelled at random moments, in two event loops at once, on four states."""
    pool = StatePool(Counted, 4)
    errors: list[BaseException] = []
    finished: list[int] = []

    async def user(number: int) -> None:
        owner = object()
        lease = await pool.lease({"owner": owner})
        try:
            for _ in range(2):
                async with lease.use() as state:
                    await asyncio.to_thread(state.use, owner)
            finished.append(number)
        finally:
            lease.release()

    async def many(seed: int) -> None:
        rng = random.Random(seed)
        users = [asyncio.create_task(user(number)) for number in range(150)]
        for work in rng.sample(users, k=100):
            await asyncio.sleep(rng.random() * 0.004)
            work.cancel()
        results = await asyncio.gather(*users, return_exceptions=True)
        errors.extend(r for r in results if r is not None and not isinstance(r, asyncio.CancelledError))

    loops = [threading.Thread(target=asyncio.run, args=(many(seed),)) for seed in (1, 2)]
    for thread in loops:
        thread.start()
    for thread in loops:
        thread.join(60)
    assert errors == []
    assert len(finished) >= 100
    assert pool.free == 4
    assert Counted.together == 1

    def settled(count: int) -> bool:
        """What is thrown away is closed in threads of their own."""
        deadline = time.monotonic() + 30
        while len(Counted.alive) != count and time.monotonic() < deadline:
            time.sleep(0.01)
        return len(Counted.alive) == count

    assert 1 <= pool.warm <= 4
    assert settled(pool.warm)
    pool.close()
    assert settled(0)


@pytest.mark.parametrize("ready", [True, False])
def test_a_state_that_nobody_waits_for_any_more_is_kept(ready: bool) -> None:
    """The episode is cancelled while its state is being made, or when it is made but not yet in its hands."""
    started, finish, done = threading.Event(), threading.Event(), threading.Event()

    def slow() -> object:
        started.set()
        finish.wait(5)
        done.set()
        return object()

    pool = StatePool(slow, 1)

    async def run() -> None:
        work = asyncio.create_task(pool.lease({}))
        await asyncio.to_thread(started.wait, 5)
        if ready:
            finish.set()
            done.wait(5)
            time.sleep(0.05)  # the loop stands still, so the state waits to be delivered
        work.cancel()
        with pytest.raises(asyncio.CancelledError):
            await work
        assert pool.free == 1
        finish.set()
        deadline = time.monotonic() + 30
        while not pool.warm and time.monotonic() < deadline:
            await asyncio.sleep(0.01)
        assert pool.warm == 1

    asyncio.run(run())


def test_what_is_closed_while_in_use_is_not_used_again() -> None:
    class Thing:
        closed = 0

        def close(self) -> None:
            Thing.closed += 1

    pool = StatePool(Thing, 2)

    async def run() -> None:
        lease = await pool.lease({})
        pool.close(idle_only=False)
        lease.release()
        other = await pool.lease({})
        assert other.state is not lease.state
        other.release()

    asyncio.run(run())
    assert (Thing.closed, pool.free, pool.warm) == (1, 2, 1)


def test_one_user_of_a_state_at_a_time() -> None:
    inside = most = 0

    @tool(stateful=dict)
    async def visit(state: dict[str, Any]) -> str:
        """Visit."""
        nonlocal inside, most
        inside += 1
        most = max(most, inside)
        await asyncio.sleep(0.01)
        inside -= 1
        return "been"

    async def run() -> None:
        assert visit.pool is not None
        lease = await visit.pool.lease({})
        await asyncio.gather(*(visit.call({}, lease) for _ in range(4)))
        lease.release()

    asyncio.run(run())
    assert most == 1


class Ailing:
    """Healthy as long as its class says so."""

    made: ClassVar[int] = 0
    answer: ClassVar[Any] = True

    def __init__(self) -> None:
        Ailing.made += 1

    def healthy(self) -> bool:
        if isinstance(Ailing.answer, Exception):
            raise Ailing.answer
        return bool(Ailing.answer)


@pytest.mark.parametrize(("answer", "made"), [(True, 1), (False, 2), (OSError("dead"), 2)])
def test_a_warm_state_that_is_not_healthy_is_not_handed_out(answer: Any, made: int) -> None:
    Ailing.made, Ailing.answer = 0, answer
    pool = StatePool(Ailing, 1)

    async def run() -> None:
        for _ in range(2):
            (await pool.lease({})).release()

    asyncio.run(run())
    assert (Ailing.made, pool.free, pool.warm) == (made, 1, 1)


def test_a_worn_out_state_is_replaced_at_reset() -> None:
    class Worn:
        made = 0

        def __init__(self) -> None:
            Worn.made += 1
            self.resets = 0

        def reset(self) -> None:
            self.resets += 1
            if self.resets > 1:
                raise OSError("only once")

    pool = StatePool(Worn, 1)

    async def run() -> None:
        for _ in range(3):
            (await pool.lease({})).release()

    asyncio.run(run())
    assert (Worn.made, pool.free) == (3, 1)


def test_a_state_that_cannot_be_made() -> None:
    def broken() -> None:
        raise OSError("no display")

    def unset() -> None:
        raise UserError("install the browser")

    for make, kind, message in ((broken, ToolFailure, "broken cannot be made: OSError: no display"),
                             (unset, UserError, "install the browser")):  # fmt: skip
        pool = StatePool(make, 1)
        with pytest.raises(kind, match=message):
            asyncio.run(pool.lease({}))
        assert pool.free == 1


def test_two_kinds_of_state_cannot_block_each_other() -> None:
    """Two episodes, one place in each of two pools, taken in opposite order by their calls."""

    class Left:
        pass

    class Right:
        pass

    def using(kind: type, name: str) -> Tool:
        def use(state: Any) -> str:
            """Use."""
            time.sleep(0.02)
            return name

        return tool(name, stateful=kind, pool_size=1)(use)

    both = {"left": using(Left, "left"), "right": using(Right, "right")}

    async def episode(*order: str) -> list[str]:
        world = ToolEnvironment([], "math_reward")
        world.tools.update(both)
        await world.reset(Task("t", "tools", "train", {"question": "?"}), 0)
        try:
            steps = [await world.step(Action(calls=(ToolCall(name, {}),))) for name in order]
        finally:
            await world.close()
        return [step.observation.messages[0].content for step in steps]

    async def run() -> list[list[str]]:
        async with asyncio.timeout(10):
            return await asyncio.gather(episode("left", "right"), episode("right", "left"))

    assert asyncio.run(run()) == [["left", "right"], ["right", "left"]]


def test_what_cannot_be_a_stateful_tool() -> None:
    class Asleep:
        async def close(self) -> None:
            return None

    class Once:
        pass

    with pytest.raises(TypeError, match="pool_size is for stateful tools"):
        tool(pool_size=3)
    with pytest.raises(TypeError, match="close must be a plain function"):
        tool(stateful=Asleep)
    with pytest.raises(TypeError, match="its first parameter must be the state"):
        tool(stateful=Once)(lambda: "")
    tool(stateful=Once, pool_size=2)
    with pytest.raises(TypeError, match="pool_size=2 and pool_size=3"):
        tool(stateful=Once, pool_size=3)
    with pytest.raises(ValueError, match="at least 1"):
        tool(stateful=lambda: None, pool_size=0)


def test_states_are_closed_when_the_process_ends(tmp_path: Path) -> None:
    script = tmp_path / "run.py"
    script.write_text(
        "import asyncio\nfrom practicum.tools.pool import StatePool\n"
        "class Loud:\n    def close(self):\n        print('closed', flush=True)\n"
        "async def run():\n    pool = StatePool(Loud, 3)\n"
        "    held = [await pool.lease({}) for _ in range(3)]\n    held[0].release()\n    return pool, held\n"
        "kept = asyncio.run(run())\nprint('over', flush=True)\n"
    )
    done = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.split() == ["over", "closed", "closed", "closed"]
