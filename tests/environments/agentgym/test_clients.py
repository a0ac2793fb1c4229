"""The server, asked exactly what AgentGym's own clients ask it, one world after the other, to a solved episode.

AgentGym's client package cannot be installed (what is published under its name is empty), so each class below
sends the requests and reads the fields that the client of its world does, in the same order.
"""

from __future__ import annotations

import asyncio
import importlib.util
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import requests

from practicum import registry
from practicum.environment import Observation
from practicum.environments.agentgym.base import AgentGymEnvironment
from practicum.environments.agentgym.server import EnvironmentServer, Sessions
from practicum.environments.worker import close_pools

Said = tuple[str, float, bool]
"""What a client hands to its agent after a step: text, reward, whether it is over."""


@pytest.fixture(scope="module", autouse=True)
def _no_process_stays() -> Iterator[None]:
    yield
    close_pools()


class Client:
    """What all of them do; an id goes into the body of a POST and into the query of a GET."""

    id_name = "id"

    def __init__(self, base: str) -> None:
        self.base = base
        self.number = self.create()
        self.info: dict[str, Any] = {}

    def create(self) -> int:
        answer = requests.post(f"{self.base}/create", timeout=100)
        assert answer.status_code == 200
        return int(answer.json()["id"])

    def post(self, path: str, data: dict[str, Any]) -> Any:
        answer = requests.post(f"{self.base}/{path}", json={**data, self.id_name: self.number}, timeout=100)
        assert answer.status_code == 200
        return answer.json()

    def get(self, path: str) -> Any:
        answer = requests.get(f"{self.base}/{path}?{self.id_name}={self.number}", timeout=100)
        assert answer.status_code == 200
        return answer.json()

    def observe(self) -> str:
        return str(self.info["observation"])

    def reset(self, index: int) -> None:
        raise NotImplementedError

    def step(self, reply: str) -> Said:
        """A reply of the form `Thought:\\n…\\n\\nAction:\\n…`."""
        response = self.post("step", {"action": reply.split("Action:")[-1].strip()})
        self.info = {name: response[name] for name in ("observation", "reward", "score", "done")}
        return response["observation"], response["score"], response["done"]


class BabyAIClient(Client):
    def reset(self, index: int) -> None:
        response = self.post("reset", {"data_idx": index})
        self.info = {name: response[name] for name in ("observation", "reward", "score", "done")}


class SciWorldClient(Client):
    def reset(self, index: int) -> None:
        response = self.post("reset", {"data_idx": index})
        self.info = {"observation": response["task_description"] + "\n" + response["observation"], "done": False}


class TextCraftClient(Client):
    def create(self) -> int:
        about = {"minecraft_dir": "agentenv_textcraft/", "commands": None, "goal": None}
        response = requests.post(f"{self.base}/create", json=about, timeout=100).json()
        self.first = str(response["observation"])
        return int(response["id"])

    def reset(self, index: int) -> None:
        assert self.first.startswith("Crafting commands:")
        response = self.post("reset", {"data_idx": index})
        self.info = {"observation": response["observation"], "reward": 0, "done": False}

    def step(self, reply: str) -> Said:
        (action,) = re.findall(r"Action:\s*(.*?)(?=\n|$)", reply, re.DOTALL)
        response = self.post("step", {"action": " ".join(re.sub(r"[^A-Za-z0-9, ]+", "", action).split())})
        self.info = {name: response[name] for name in ("observation", "reward", "done")}
        return response["observation"], response["reward"], response["done"]


class AlfWorldClient(Client):
    def reset(self, index: int) -> None:
        response = self.post("reset", {"game": index, "world_type": "Text"})
        self.info = {"observation": response["observation"], "available_actions": response["available_actions"]}

    def observe(self) -> str:
        return f"{self.info['observation']}\nAVAILABLE ACTIONS: {','.join(self.info['available_actions'])}"

    def step(self, reply: str) -> Said:
        response = self.post("step", {"action": reply.rsplit("Action:", 1)[1].strip()})
        self.info = {name: response[name] for name in ("observation", "available_actions", "reward", "done")}
        return response["observation"], response["reward"], response["done"]


class WebShopClient(Client):
    id_name = "env_idx"

    def create(self) -> int:
        return int(requests.post(f"{self.base}/create", timeout=100).json())

    def reset(self, index: int) -> None:
        response = self.post("reset", {"session_id": index})
        response[0] = self.observe()
        assert response[1] is None

    def observe(self) -> str:
        return str(self.get("observation"))

    def step(self, reply: str) -> Said:
        response = self.post("step", {"action": reply.rsplit("Action:", 1)[1].strip()})
        return response["state"], response["reward"], response["done"]


async def visited(name: str, visit: Callable[[str], None]) -> None:
    result = registry.environment_class(name)

    def make() -> AgentGymEnvironment:
        world = result()
        assert isinstance(world, AgentGymEnvironment)
        return world

    async with EnvironmentServer(Sessions(make)) as server:
        await asyncio.to_thread(visit, server.address)


async def commands_for(name: str, index: int) -> Sequence[str]:
    world: Any = registry.environment_class(name)()
    task = world.task_at(index)
    await world.ready_expert(task)
    policy = world.expert(task)
    return [policy(Observation()).content for _ in range(150)]


@pytest.mark.parametrize(
    ("name", "client", "index", "opening", "least"),
    [
        ("babyai", BabyAIClient, 24, "Your goal: open the door", 0.5),
        ("textcraft", TextCraftClient, 100, "Crafting commands:", 1.0),
        ("webshop", WebShopClient, 5, "WebShop [SEP] Instruction: [SEP] ", 1.0),
        pytest.param(
            "alfworld",
            AlfWorldClient,
            0,
            "You are in the middle of a room.",
            1.0,
            marks=pytest.mark.skipif(importlib.util.find_spec("fast_downward") is None, reason="make alfworld-planner"),
        ),
        ("sciworld", SciWorldClient, 3084, "Your task is to ", 100),
    ],
)
def test_a_client_solves_a_task(name: str, client: type[Client], index: int, opening: str, least: float) -> None:
    async def run() -> None:
        commands = await commands_for(f"agentgym:{name}", index)

        def visit(base: str) -> None:
            own = client(base)
            own.reset(index)
            started = own.observe()
            assert started.startswith(opening), started
            assert started.count("AVAILABLE ACTIONS") == (name == "alfworld")
            text, reward, done = own.step("Thought:\nI try.\n\nAction:\nfly to the moon")
            assert (reward, done) == (0, False)
            assert text
            for command in commands:
                text, reward, done = own.step(f"Thought:\nI go on.\n\nAction:\n{command}")
                if done:
                    break
            assert done
            assert reward >= least
            if name in ("textcraft", "alfworld"):
                assert own.post("close", {}) == {"closed": True}

        await visited(f"agentgym:{name}", visit)

    asyncio.run(run())


def test_sciworlds_other_routes() -> None:
    def visit(base: str) -> None:
        own = SciWorldClient(base)
        own.reset(0)
        output = own.get("detail")
        assert output["task_name"] == "boil"
        assert (output["var_num"], output["deleted"], output["done"]) == (0, False, False)
        assert own.get("observation") == output["observation"]
        assert "goals" in own.get("goals")
        assert set(own.get("action_hint")) == {"possible_actions", "possible_objects"}
        text, score, _ = own.step("Action:\nlook around")
        after = own.get("detail")
        assert (after["task_name"], after["observation"], after["score"]) == ("boil", text, score)

    asyncio.run(visited("agentgym:sciworld", visit))
