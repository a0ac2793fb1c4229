"""The common ground, on a small world of its own: a lamp that must be lit, behind a door that must be opened."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from practicum.environment import SPLITS, Action, Step, ToolCall
from practicum.environments.agentgym.base import AgentGymEnvironment, CommandResponse, by_hash
from practicum.environments.agentgym.grammar.bracket import Brackets
from practicum.environments.agentgym.grammar.line import Refused
from practicum.environments.agentgym.shaping import Shaping
from practicum.errors import UserError
from practicum.task import Task, split_of_content


class Lamp(AgentGymEnvironment):
    name = "agentgym:lamp"
    instruction = "Light the lamp. Commands: {usage}"
    usage = "open door | light lamp | look"
    brackets = Brackets({"open": ("open {}",), "light": ("light {}",), "look": ("look",)})
    shaping = Shaping(step=0.2)
    limit = 9

    async def begin(self, task: Task, seed: int) -> CommandResponse:
        self.opened, self.steps = False, 0
        return CommandResponse("A door.", legal=("open door",))

    async def act(self, command: str) -> CommandResponse:
        self.steps += 1
        if self.steps >= self.limit:
            return CommandResponse("Too late.", done=True, cut=True)
        if command == "look":
            return CommandResponse("A lamp." if self.opened else "A door.")
        if command == "open door":
            self.opened = True
            return CommandResponse("It opens.", kind="open", legal=("light lamp",))
        if command == "light lamp" and self.opened:
            return CommandResponse("Light!", native=0.9, done=True, success=True)
        if command == "light door":
            return CommandResponse("Fire!", native=-1.0, done=True)
        raise Refused("Nothing happens.")

    def progress(self) -> float:
        return 0.5 * self.opened

    def task_at(self, data_idx: int) -> Task:
        return Task(f"lamp-{data_idx}", self.name, "train")


def steps(world: Lamp, *commands: str) -> list[Step]:
    async def run() -> list[Step]:
        await world.reset(world.task_at(0), 0)
        return [await world.step(Action(content=command)) for command in commands]

    return asyncio.run(run())


def test_native_reward_is_the_worlds_own() -> None:
    done = steps(Lamp(), "look", "open door", "fly", "light lamp", "look")
    assert [step.reward for step in done] == [0.0, 0.0, 0.0, 0.9, 0.0]
    assert [step.terminated for step in done] == [False, False, False, True, True]
    assert [step.info["valid"] for step in done] == [True, True, False, True, True]
    assert [step.success for step in done] == [False, False, False, True, True]
    assert done[3].components == {"native": 0.9}
    assert done[2].observation.messages[0].content == "Observation: Nothing happens."
    assert done[1].observation.legal == ("light lamp",)
    assert done[4].observation.messages[0].content == "Observation: The episode is over."


def test_shaped_reward_pays_steps_completion_and_errors() -> None:
    done = steps(Lamp(reward="shaped"), "look", "open door", "fly", "light lamp", "look")
    assert [step.reward for step in done] == [0.0, 0.2, -0.05, 1.0, 0.0]
    assert done[3].info["native"] == 0.9
    assert all(sum(step.components.values()) == step.reward for step in done)
    failed = steps(Lamp(reward="shaped"), "open door", "light door")
    assert [(step.reward, step.terminated, step.success) for step in failed] == [
        (0.2, False, False),
        (-0.05, True, False),
    ]
    assert Lamp(reward="shaped").invalid_reward == -0.05
    assert Lamp().invalid_reward == 0.0


def test_a_worlds_own_limit_truncates() -> None:
    for reward in ("native", "shaped"):
        last = steps(Lamp(reward=reward), *["look"] * 9)[-1]
        assert (last.terminated, last.truncated, last.success, last.reward) == (False, True, False, 0.0)


def test_both_grammars_and_each_alone() -> None:
    for grammar, good in (("agentgym", (True, False)), ("bracket", (False, True)), ("both", (True, True))):
        done = steps(Lamp(grammar=grammar), "open door", "open[door]")
        assert tuple(step.info["valid"] for step in done) == good
    assert steps(Lamp(grammar="bracket"), "look")[0].info["valid"], "a verb without arguments needs no brackets"
    refused = steps(Lamp(grammar="bracket"), "open door")[0].observation.messages[0].content
    assert refused == "Observation: Could not execute 'open door'. Commands: open[X] | light[X] | look[]"
    assert Lamp(grammar="bracket").write("open door") == "open[door]"
    assert Lamp().write("open door") == "open door"


def test_the_prompt_in_both_protocols() -> None:
    async def prompt(world: Lamp) -> list[tuple[str, str]]:
        observation = await world.reset(world.task_at(0), 0)
        assert observation.legal == ("open door",)
        return [(message.role, message.content) for message in observation.messages]

    output = "Light the lamp. Commands: open door | light lamp | look\nReply with a line 'Thought: ...'"
    system, user = asyncio.run(prompt(Lamp()))
    assert system[0] == "system"
    assert system[1].startswith(output)
    assert user == ("user", "A door.")
    human, agreed, first = asyncio.run(prompt(Lamp(protocol="agentgym")))
    assert human == ("user", system[1])
    assert agreed[0] == "assistant"
    assert first == ("user", "A door.")
    # AgentGym's observations have no label.
    assert steps(Lamp(protocol="agentgym"), "look")[0].observation.messages[0].content == "A door."


def test_agentgyms_own_instruction_is_taken_from_a_file(tmp_path: Path) -> None:
    async def prompt(world: Lamp) -> list[tuple[str, str]]:
        return [(message.role, message.content) for message in (await world.reset(world.task_at(0), 0)).messages]

    rows = [{"item_id": "lamp_0", "conversations": [
        {"from": "human", "value": "Their words. {usage}"}, {"from": "gpt", "value": "As you say."},
    ]}]  # fmt: skip
    data, text = tmp_path / "lamp_train.json", tmp_path / "prompt.txt"
    data.write_text(json.dumps(rows))
    text.write_text("My words.\n")
    output = asyncio.run(prompt(Lamp(protocol="agentgym", instruction=str(data))))
    assert output == [("user", "Their words. {usage}"), ("assistant", "As you say."), ("user", "A door.")]
    assert asyncio.run(prompt(Lamp(instruction=str(text)))) == [("system", "My words."), ("user", "A door.")]
    with pytest.raises(UserError, match="cannot be read: No such file"):
        Lamp(instruction=str(tmp_path / "none.txt"))
    data.write_text("[]")
    with pytest.raises(UserError, match="is not one of AgentGym's data sets"):
        Lamp(instruction=str(data))


def test_tool_calls_and_truncation() -> None:
    async def run() -> tuple[Step, Step]:
        world = Lamp(reward="shaped")
        await world.reset(world.task_at(0), 0)
        return await world.step(Action(calls=(ToolCall("open", {}),))), await world.truncate()

    called, step = asyncio.run(run())
    assert "no tools" in called.observation.messages[0].content
    assert called.reward == -0.05
    assert (step.truncated, step.success, step.progress) == (True, False, 0.0)


def test_wrong_settings_are_named() -> None:
    for options, output in (
        ({"grammar": "brackets"}, "lamp has no grammar 'brackets'. Did you mean 'bracket'"),
        ({"reward": "dense"}, "lamp has no reward 'dense'"),
        ({"protocol": "http"}, "lamp has no protocol 'http'"),
    ):
        with pytest.raises(UserError, match=output):
            Lamp(**options)
    with pytest.raises(UserError, match="no split 'dev'"):
        Lamp().check_split("dev")


def test_splits_by_hash_are_stable_and_eight_to_one_to_one() -> None:
    counts = Counter(split_of_content(["lamp", number]) for number in range(10_000))
    assert set(counts) == set(SPLITS)
    assert 0.78 < counts["train"] / 10_000 < 0.82
    assert [split_of_content(["textcraft", goal]) for goal in ("ladder", "beacon", "lever")] == [
        "train",
        "train",
        "train",
    ]
    assert by_hash([1, 2, 3, 4], 0) != by_hash([1, 2, 3, 4], 1)
    assert sorted(by_hash([1, 2, 3, 4], 5)) == [1, 2, 3, 4]
