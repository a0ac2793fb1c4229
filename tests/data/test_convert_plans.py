"""Gold graphs in the layouts of WorFBench and AsyncHow as task files, and files with something wrong in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from practicum import registry
from practicum.cli import convert as command
from practicum.data.convert import convert
from practicum.data.task_file import read_task_file
from practicum.errors import UserError

WORKFLOW = "Node:\n1: boil water\n2: make tea.\nEdge: (START,1) (1,2) (2,END)"
WORFBENCH = [
    {
        "source": "wikihow",
        "conversations": [
            {"role": "system", "content": "You are a helpful task planner."},
            {"role": "user", "content": "Task: How to Make Tea\nThe action list you can take: ['boil', 'make']"},
            {"role": "assistant", "content": WORKFLOW},
        ],
        "target": "graph",
        "id": "wikihow_1",
        "category": "eval",
    }
]
ASYNCHOW = {
    "titles": ["How to make tea", "How to sow"],
    "steps": [["boil water", "warm the cup", "pour"], ["dig", "sow"]],
    "step_deps": [[["1", "3"], ["2", "3"]], [["1", "2"], ["0", "1"]]],
    "edge_list": [[["START", "1"], ["START", "2"], ["1", "3"], ["2", "3"], ["3", "END"]], [["1", "2"]]],
    "time_dic": [{"1": "5 min", "2": "30 seconds", "3": "1 minute"}, {"step 1": "1 hour 30 min", "step 2": "2 days"}],
    "task_time": [["0:06:00", "0:06:00"], ["x", "x"]],
}


def write(path: Path, value: Any) -> Path:
    path.write_text(json.dumps(value))
    return path


def test_worfbench_s_gold_workflows_become_tasks_that_their_reward_scores(tmp_path: Path) -> None:
    source, output = write(tmp_path / "graph_eval.json", WORFBENCH), tmp_path / "tasks.json"
    assert command.run(["worfbench", str(source), str(output)]) == 0
    (task,) = read_task_file(output, "tools", "test")
    assert task.id == "wikihow_1"
    assert [message["role"] for message in task.fields["messages"]] == ["system", "user"]
    assert WORKFLOW not in json.dumps([dict(message) for message in task.fields["messages"]])
    assert task.fields["source"] == "wikihow"
    reward = registry.reward("worfbench_reward")
    assert reward.score(task, WORKFLOW, ()).success
    assert reward.score(task, "Node:\n1: boil water\nEdge: (START,1) (1,END)", ()).reward == pytest.approx(4 / 7)


def test_a_gold_edge_of_a_node_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    rows = json.loads(json.dumps(WORFBENCH))
    rows[0]["conversations"][-1]["content"] += " (1,9)"
    source = write(tmp_path / "graph_eval.json", rows)
    with pytest.raises(UserError, match="names node 9, which it does not have"):
        command.run(["worfbench", str(source), str(tmp_path / "tasks.json")])
    assert not (tmp_path / "tasks.json").exists()


def test_asynchow_s_lists_become_tasks_without_their_answers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    source = write(tmp_path / "async_benchmark.json", ASYNCHOW)
    assert command.run(["asynchow", str(source)]) == 0
    assert "2 tasks in asynchow-async_benchmark.json" in capsys.readouterr().out
    tea, sow = read_task_file(tmp_path / "asynchow-async_benchmark.json", "tools", "test")
    assert tea.fields["question"].startswith("How to make tea\n1. boil water (5 min)\n2. warm the cup (30 seconds)\n")
    assert tea.fields["seconds"] == (300.0, 30.0, 60.0)
    assert tea.fields["orders"] == ((1, 3), (2, 3))
    assert sow.fields["seconds"] == (5400.0, 172800.0)
    assert sow.fields["orders"] == ((1, 2),)
    reward = registry.reward("asynchow_reward")
    assert reward.score(tea, "Edge: (1,3) (2,3)", ()).success
    assert reward.score(tea, "Edge: (1,2) (2,3)", ()).reward == pytest.approx(360 / 390)


def test_rows_of_one_plan_each_are_read_too(tmp_path: Path) -> None:
    row = {
        "title": "How to sow",
        "steps": ["dig", "sow"],
        "edge_list": [["START", "1"], [1, 2]],
        "time_dic": {"1": "1 h", "2": "2 h"},
    }
    (converted,) = convert("asynchow", write(tmp_path / "rows.json", [row])).rows
    assert converted["orders"] == [[1, 2]]
    longer = row | {"time_dic": {"1": "1,000 min", "2": "1 h 30 min"}, "edge_list": []}
    output = tmp_path / "tasks.json"
    assert command.run(["asynchow", str(write(tmp_path / "rows.json", [longer])), str(output)]) == 0
    (task,) = read_task_file(output, "tools", "test")
    assert task.fields["seconds"] == (60000.0, 5400.0)
    reward = registry.reward("asynchow_reward")
    assert [reward.score(task, text, ()).reward for text in ("Edge: none", "Edge:", "I do not know")] == [1, 1, 0]


@pytest.mark.parametrize(
    ("format", "value", "message"),
    [
        ("worfbench", [{"conversations": []}], "at least two messages"),
        (
            "worfbench",
            [{"conversations": [{"role": "user", "content": "a"}, {"content": "no graph"}]}],
            "gold workflow",
        ),
        ("worfbench", [{"id": "x"}], "'conversations' is missing"),
        ("asynchow", {"titles": ["a"], "steps": [], "step_deps": [], "time_dic": []}, "same length"),
        (
            "asynchow",
            [{"title": "a", "steps": ["b", "c"], "step_deps": [[1, 2], [2, 1]], "time_dic": {"1": "1 h", "2": "1 h"}}],
            "cyclic",
        ),
        ("asynchow", [{"title": "a", "steps": ["b"], "step_deps": [], "time_dic": {"1": "5 to 6 min"}}], "no duration"),
        ("asynchow", [{"title": "a", "steps": ["b"], "step_deps": [], "time_dic": {}}], "one duration for each"),
        (
            "asynchow",
            [{"title": "a", "steps": ["b"], "step_deps": [], "time_dic": {"1": "soon"}}],
            "no duration such as",
        ),
        (
            "asynchow",
            [{"title": "a", "steps": ["b"], "step_deps": [["1", "7"]], "time_dic": {"1": "1 min"}}],
            "not there",
        ),
        ("asynchow", [{"title": "a", "steps": ["b"], "step_deps": [["1"]], "time_dic": {"1": "1 min"}}], "a pair"),
        ("asynchow", ["text"], "expected an object"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(tmp_path: Path, format: str, value: Any, message: str) -> None:
    with pytest.raises(UserError, match=message):
        convert(format, write(tmp_path / "file.json", value))
