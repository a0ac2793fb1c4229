"""Published rubrics in their authors' form, on small files."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from practicum.data.convert import convert
from practicum.environments.rubric.rubric_case import case_of_task, rubric_of_field
from practicum.environments.rubric.schema import JudgeRule
from practicum.errors import UserError
from practicum.task import Task


def node(name: str, weight: int, *children: object) -> dict[str, object]:
    return {"id": name, "requirements": f"{name} is done.", "weight": weight, "sub_tasks": list(children)}


def test_paperbench(tmp_path: Path) -> None:
    tree = node("paper", 1, node("method", 3, node("code", 1), node("run", 3)), node("result", 1))
    (tmp_path / "my-paper").mkdir()
    (tmp_path / "my-paper" / "rubric.json").write_text(json.dumps(tree))
    (tmp_path / "my-paper" / "config.json").write_text('{"title": "My paper"}')
    (row,) = convert("paperbench", tmp_path).rows
    assert row["id"] == "paperbench-my-paper"
    rubric = rubric_of_field(row["rubric"], "x")
    weights = {rule.name: rule.weight for rule in rubric.rules}
    assert weights == pytest.approx({"code": 0.1875, "run": 0.5625, "result": 0.25})
    (tmp_path / "my-paper" / "rubric.json").write_text(json.dumps(node("paper", 1, node("a", -1))))
    with pytest.raises(UserError, match="at least 0"):
        convert("paperbench", tmp_path)


def test_writingbench(tmp_path: Path) -> None:
    criterion = {"name": "Tone", "criteria_description": "It is formal.", "1-2": "rude", "9-10": "formal"}
    line = {
        "index": 7,
        "domain1": "Law",
        "domain2": "Letter",
        "lang": "en",
        "query": "Write.",
        "checklist": [criterion] * 5,
    }
    (tmp_path / "w.jsonl").write_text(json.dumps(line) + "\n")
    (row,) = convert("writingbench", tmp_path / "w.jsonl").rows
    rubric = rubric_of_field(row["rubric"], "x")
    assert rubric.num_rules == 5
    rule = rubric.rules[0]
    assert isinstance(rule, JudgeRule)
    assert rule.judge_prompt.splitlines() == ["It is formal.", "1-2 of 10: rude", "9-10 of 10: formal"]
    assert rule.max_score == 10, "a judge answers in the bands' points"
    with pytest.raises(UserError, match="neither a 'family' nor 'outputs'"):
        asyncio.run(case_of_task(Task("w", "rubric", "test", dict(row))))


def test_biggen(tmp_path: Path) -> None:
    scale = {"criteria": "Is it right?", **{f"score{n}_description": f"level {n}" for n in range(1, 6)}}
    line = {"id": "plan_0", "task": "planning", "system_prompt": "Help.", "input": "How?",
            "reference_answer": "First. Then. After that. At last.", "score_rubric": scale}  # fmt: skip
    (tmp_path / "b.json").write_text(json.dumps([line]))
    (row,) = convert("biggen", tmp_path / "b.json").rows
    assert row["question"] == "Help.\n\nHow?"
    assert row["outputs"] == ["First. Then. After that. At last.", "First. Then. After that.", "First. Then.", "First."]
    case = asyncio.run(case_of_task(Task("b", "rubric", "test", dict(row))))
    assert case.ground_truth.num_rules == 1
    assert case.held_out_scores == (1.0, 0.75, 0.5, 0.25)
    assert [rule.max_score for rule in case.ground_truth.rules if isinstance(rule, JudgeRule)] == [5]
    assert case.stakeholder().request().startswith("Is it right? 1 of 5: level 1")
    of_the_repository = {key: value for key, value in line.items() if key != "id"} | {"instance_idx": 3}
    (tmp_path / "b.json").write_text(json.dumps([of_the_repository]))
    assert convert("biggen", tmp_path / "b.json").rows[0]["id"] == "planning_3"
    del line["score_rubric"]
    (tmp_path / "b.json").write_text(json.dumps([line]))
    with pytest.raises(UserError, match="'score_rubric' is missing"):
        convert("biggen", tmp_path / "b.json")


PREFERENCES = """
rules = [
    WorkflowRubric(name="depth", llm_prompt=("Is it deep? " "Output a numeric score in [0, 6]."), max_score=6.0,
                   run_condition=RunCondition.ON_COMPLETION),
    WorkflowRubric(name="breadth", llm_prompt="Is it broad?", max_score=2.0),
    WorkflowRubric(name="words", evaluator_function=count_words, max_score=1.0),
]

def create_preferences():
    raise SystemExit("never run")
    return PreferenceWeights(preferences=[
        Preference(name="quality", weight=0.75, evaluator=Evaluator(name="q", aggregation=A.X, rubrics=rules)),
        Preference(name="speed", weight=0.25, evaluator=Evaluator(
            rubrics=[RubricCriteria(name="late", llm_prompt="Late?")])),
        Preference(name="quality", weight=0.1, evaluator=Evaluator(rubrics=rules)),
    ])

def create_goal_evaluator():
    goals = [WorkflowRubric(name="filed", llm_prompt="Is it filed? Return true or false.", max_score=20.0)]
    return Evaluator(name="goal", rubrics=goals)
"""
WORKFLOW = """
def create_workflow():
    workflow = Workflow(owner_id=UUID(int=1), name="Launch", workflow_goal="Launch   it.")
    plan = Task(name="Plan", description="Plan it.", estimated_duration_hours=2.0, estimated_cost=10.0)
    work = Task(name="Do", description=("Do " "it."), dependency_task_ids=[plan.task_id])
"""


def test_manager_agent_gym_is_read_and_never_run(tmp_path: Path) -> None:
    folder = tmp_path / "launch"
    folder.mkdir()
    (folder / "preferences.py").write_text(PREFERENCES)
    (folder / "workflow.py").write_text(WORKFLOW)
    row, goal = convert("manager_agent_gym", tmp_path).rows
    assert row["question"] == "Launch\nLaunch it."
    assert row["left_out"] == 1
    rubric = rubric_of_field(row["rubric"], "x")
    assert {rule.name: rule.weight for rule in rubric.rules} == pytest.approx(
        {"quality: depth": 0.5625, "quality: breadth": 0.1875, "speed: late": 0.25}
    )
    assert {rule.name: (rule.run_condition.value, rule.max_score) for rule in rubric.rules} == {  # type: ignore[union-attr]
        "quality: depth": ("on_completion", 6.0), "quality: breadth": ("both", 1.0), "speed: late": ("both", 1.0),
    }  # fmt: skip
    assert (goal["id"], goal["question"]) == ("launch: goal", row["question"])
    (filed,) = rubric_of_field(goal["rubric"], "x").rules
    assert (filed.name, filed.weight, filed.max_score) == ("goal: filed", 1.0, 1.0)  # type: ignore[union-attr]
    assert [task["dependencies"] for task in row["tasks"]] == [[], ["Plan"]]
    assert row["tasks"][0]["hours"] == 2.0
    with pytest.raises(UserError, match="no folder with workflow.py"):
        convert("manager_agent_gym", folder / "missing")
