"""All records and settings can be pickled and copied; things of a user's file are found again in another process."""

from __future__ import annotations

import copy
import dataclasses
import functools
import importlib
import inspect
import multiprocessing
import pickle
from pathlib import Path
from typing import Any

import pytest

from practicum import registry
from practicum.data.preferences import PreferencePair
from practicum.data.retrieval import Document
from practicum.engines.base import Sampling
from practicum.environment import Action, Message, Observation, ToolCall, Usage
from practicum.evaluation.stats.intervals import Interval
from practicum.rewards.base import Reward
from practicum.task import Task
from practicum.tools.base import Tool
from practicum.tools.python_executor import code_interpreter, python_executor
from practicum.trajectory import Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn, plan_attempts

from .pickle_child import play

MODULES = [
    "task", "environment", "trajectory", "agent", "engines.base", "rewards.base", "tools.base", "collector",
    "rollout_settings", "sandbox.limits", "data.preferences", "data.retrieval", "evaluation.panel",
    "evaluation.result", "evaluation.settings", "evaluation.metric_delta", "evaluation.compare",
    "evaluation.gates", "evaluation.stats.intervals", "training.settings", "training.rollout_batch",
    "training.sft", "training.dpo", "training.run", "training.trainer", "training.objective",
    "training.monitor.health", "config.train", "config.actor_rollout_ref", "config.sft", "config.dpo",
    "config.pipeline", "config.health", "quickstart",
]  # fmt: skip
"""Modules whose dataclasses are records or settings."""
TASK = Task("t", "math", "train", {"question": "1 + 1?", "nested": {"list": [1, {"a": None}]}, "answer": 2})
ACTION = Action("text", "2", (ToolCall("calculator", {"expression": "1+1"}),), "so", confidence=0.5, turn=0)
TURN = Turn(
    (Span(Origin.TEMPLATE, (1, 2)), Span(Origin.SAMPLED, (3,), (-0.5,))), True, (Message("user", "1 + 1?"),), "2",
    ACTION, "policy", 3, StopReason.END, 7, info={"field": TASK.fields["nested"]},
)  # fmt: skip
EPISODE = Trajectory(TASK, 0, "g", Outcome.SUCCESS, (TURN,), 1.0, {"right": 1.0}, Seeds(1, 2), provenance={"a": [1]})
VALUES: dict[str, Any] = {
    "task": TASK, "action": ACTION, "arguments": {"a": [1]}, "tasks": (TASK,), "seeds": Seeds(1, 2), "ids": (1, 2),
    "spans": TURN.spans, "messages": TURN.messages, "turns": (TURN,), "outcome": Outcome.FAILURE,
    "stop_reason": StopReason.END, "origin": Origin.SAMPLED, "observation": Observation(TURN.messages, legal=("go",)),
    "usage": Usage(1, 2), "sampling": Sampling(), "components": {"a": 1.0}, "metrics": {"a": 1.0}, "logprobs": None,
    "interval": Interval(0.0, 1.0, 0.95), "episodes": [EPISODE], "groups": [[EPISODE]], "greedy_rewards": {"g": 1.0},
    "chosen": EPISODE, "rejected": EPISODE, "document": Document("1", "a", "b"), "folder": Path("x"), "rows": {},
    "conversation": TURN.messages, "attempts": (), "deltas": {}, "comparisons": (), "policies": (), "origins": (),
    "terminated": True,
}  # fmt: skip
"""A value for every required field that is not a plain number."""


def example_of(record: type) -> Any:
    """An instance with its defaults, and values for what it requires."""
    required = [
        field.name
        for field in dataclasses.fields(record)
        if field.init and field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    ]
    return record(**{name: VALUES.get(name, 1) for name in required})


def records() -> dict[str, Any]:
    matches: dict[str, Any] = {"Turn in full": TURN, "Trajectory in full": EPISODE, "Task in full": TASK}
    matches["Attempt in full"] = plan_attempts([TASK], 1, 0)[0]
    quickstart = importlib.import_module("practicum.quickstart")
    matches["QuickstartSettings"] = quickstart.default_plan(0)
    for name in MODULES:
        module = importlib.import_module(f"practicum.{name}")
        for kind in vars(module).values():
            own = inspect.isclass(kind) and dataclasses.is_dataclass(kind) and kind.__module__ == module.__name__
            if own and kind.__name__ not in (*matches, *EXCEPTIONS):
                matches[f"{name}.{kind.__name__}"] = functools.partial(example_of, kind)
    return matches


EXCEPTIONS = {
    "Tool": "found by its place, below",
    "Reward": "found by its place, below",
    "HealthCheck": "a table of functions",
    "PreferencePair": "below: its key is a state",
}
RECORDS = records()


@pytest.mark.parametrize("name", RECORDS)
def test_a_record_can_be_pickled_and_copied(name: str) -> None:
    result = RECORDS[name]
    record = result() if isinstance(result, functools.partial) else result
    for protocol in (2, pickle.HIGHEST_PROTOCOL):
        assert pickle.loads(pickle.dumps(record, protocol)) == record
    assert copy.deepcopy(record) == record
    assert copy.copy(record) == record


def test_so_many_records_are_covered() -> None:
    assert len(RECORDS) > 80
    preference = PreferencePair(EPISODE.turns[0], EPISODE.turns[0], ("k",))  # type: ignore[arg-type]
    assert copy.deepcopy(pickle.loads(pickle.dumps(preference))) == preference


def test_a_copied_task_is_the_same_and_still_read_only() -> None:
    for task in (pickle.loads(pickle.dumps(TASK)), copy.deepcopy(TASK)):
        assert (task, task.hash, hash(task)) == (TASK, TASK.hash, hash(TASK))
        assert task.fields["nested"]["list"] == (1, {"a": None})
        for change in (
            lambda fields: fields.update(a=1), lambda fields: fields.pop("answer"), lambda fields: fields.clear(),
            lambda fields: fields.__setitem__("a", 1), lambda fields: fields["nested"].setdefault("b", 2),
        ):  # fmt: skip
            with pytest.raises(TypeError, match="read-only"):
                change(task.fields)
    assert dataclasses.asdict(TASK)["fields"] == dict(TASK.fields)


@pytest.mark.parametrize("name", registry.TOOLS)
def test_a_tool_is_found_again(name: str) -> None:
    tool = registry.tool(name)
    assert pickle.loads(pickle.dumps(tool)) == tool
    assert copy.deepcopy(tool) is tool


@pytest.mark.parametrize("name", registry.REWARDS)
def test_a_reward_is_found_again(name: str) -> None:
    reward = registry.reward(name)
    assert pickle.loads(pickle.dumps(reward)) == reward
    assert copy.deepcopy(reward) is reward


def test_a_tool_that_differs_from_its_place_keeps_the_difference() -> None:
    again: Tool = pickle.loads(pickle.dumps(dataclasses.replace(code_interpreter, timeout=3.0)))
    assert (again.name, again.timeout, again.function) == ("code_interpreter", 3.0, python_executor.function)
    assert again.schema["function"]["name"] == "code_interpreter"


def test_a_reward_of_a_function_without_a_place_cannot_be_pickled() -> None:
    local = Reward("local", lambda answer_given: 1.0)
    with pytest.raises((pickle.PicklingError, AttributeError)):
        pickle.dumps(local)


OWN_FILE = '''
from neighbour import FACTOR
from practicum.chat.formats.hermes import HermesFormat
from practicum.environments.tool_agent import ToolEnvironment
from practicum.rewards.base import reward
from practicum.tools.base import tool

@tool
def double(number: int) -> str:
    """Double it.

    Args:
        number: any
    """
    return str(FACTOR * number)

@reward
def exact(answer_given, answer):
    return float(answer_given == answer)

class Whisper(HermesFormat):
    name = "whisper"

    def parse(self, text, has_tools):
        return super().parse(text.lower(), has_tools)

class Mine(ToolEnvironment):
    name = "mine"

    def __init__(self, tools=None, reward=None, format="hf"):
        here = __file__
        super().__init__([f"{here}:double"], f"{here}:exact", format)
'''


def test_things_of_a_users_file_are_found_again_in_a_new_process(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(OWN_FILE)
    (tmp_path / "neighbour.py").write_text("FACTOR = 2\n")
    make, format = registry.environment_maker(f"{file}:Mine", f"{file}:Whisper")
    assert format == f"{file}:Whisper"
    records = (
        make(), make, registry.tool(f"{file}:double"), registry.reward(f"{file}:exact"), registry.make_format(format),
        Task("t", "mine", "train", {"question": "?", "answer": "eight", "nested": {"list": [1]}}),
    )  # fmt: skip
    data = pickle.dumps(records)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        results = pool.apply(play, (data,))
    assert {key: value for key, value in results.items() if key in ("tool", "reward")} == {"tool": "6", "reward": 1.0}
    assert [results[name][1] for name in ("instance", "factory")] == [1.0, 1.0]
    assert all("8" in results[name][0] for name in ("instance", "factory"))
    assert results["task"] == (records[-1].hash, (1,))
    again = pickle.loads(data)
    assert type(again[0]) is type(records[0])
    assert again[2] is records[2]


def test_a_file_that_is_gone_is_named(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text("class Thing:\n    pass\n")
    environment = registry.function(f"{file}:Thing")()
    data = pickle.dumps(environment).replace(b"mine~", b"gone~")
    file.unlink()
    with pytest.raises(ModuleNotFoundError, match=f"there is no file '{file}'"):
        pickle.loads(data)


def test_a_users_reply_format_works_in_an_episode(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from practicum.cli.main import main

    file = tmp_path / "mine.py"
    file.write_text(OWN_FILE)
    (tmp_path / "neighbour.py").write_text("FACTOR = 2\n")
    arguments = ["collect", "--env", "math", "--tasks", "2", "--out", str(tmp_path / "out")]
    assert main([*arguments, "--format", f"{file}:Whisper"]) == 0
    assert "2 success" in capsys.readouterr().out
    assert main([*arguments, "--format", f"{file}:double"]) == 2
    assert "is not a reply format" in capsys.readouterr().err
