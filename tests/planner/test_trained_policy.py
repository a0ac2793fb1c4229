"""Integration test of the planner behind the flag: `pytest --trained-policy`, or HTDAG_USE_TRAINED_POLICY=true."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.model_registry import ModelRegistry
from practicum.environments.htdag.executor import execute
from practicum.environments.htdag.requests import create_benchmark_tasks, goals_of, requirement_graph
from practicum.planner import HTDAGPlanner, TaskDAG
from practicum.planner.htdag_planner import trained_policy_wanted
from practicum.planner.local_client import LocalClient

LEAST_SOLVED = 0.6
"""Share of the panel that any planner must solve; that the promoted one is better is what the gate has shown."""


async def plan_all(planner: HTDAGPlanner, requests: list[str]) -> list[TaskDAG]:
    """Plan requests at the same time; the model is closed at the end."""
    try:
        return list(await asyncio.gather(*map(planner.decompose_task, requests)))
    finally:
        if isinstance(planner.policy, LocalClient):
            await planner.policy.close()


def test_the_planner_behind_the_flag_solves_the_panel(htdag_planner: HTDAGPlanner) -> None:
    tasks = create_benchmark_tasks()
    plans = asyncio.run(plan_all(htdag_planner, [task.fields["request"] for task in tasks]))
    solved = 0
    for task, dag in zip(tasks, plans, strict=True):
        assert len(dag.topological_order()) == len(dag.leaves)  # acyclic
        solved += execute(dag, requirement_graph(task.fields["request"], goals_of(task.fields))).success
    trained = htdag_planner.policy is not None
    print(f"{solved} of {len(tasks)} solved, {htdag_planner.llm_calls} calls of the trained policy")
    assert solved / len(tasks) >= LEAST_SOLVED
    assert (htdag_planner.llm_calls > 0) == trained


def test_the_flag_switches_to_a_model_that_was_trained_and_promoted_and_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that learned the plan of one request by heart plans it where the heuristic fails."""
    request, steps = "buy a cheap lamp", ["find lamp", "pick lamp", "pay lamp"]
    rows = tmp_path / "rows.jsonl"
    rows.write_text(
        '{"prompt": "buy a cheap A\\n-\\n0", "action": "0: buy A"}\n'
        '{"prompt": "buy a cheap A\\n1 buy A\\n1", "action": "1: find, pick<1, pay<2"}\n'
        '{"prompt": "buy a cheap A\\n1 buy A+\\n2", "action": "go"}\n'
    )
    sft = ["sft", "--dataset-path", str(rows), "--model", "tiny", "--full", "--epochs", "40", "--lr", "2e-3",
           "--out", str(tmp_path / "run"), "--warmup", "5", "training.bf16=false", "model.device=cpu",
           "data.val_share=0"]  # fmt: skip
    assert main(sft) == 0
    promoted = ["promote", str(tmp_path / "run"), "--name", "htdag", "--registry", str(tmp_path / "registry"),
                "--force", "a test"]  # fmt: skip
    assert main(promoted) == 0
    monkeypatch.setenv("HTDAG_REGISTRY", str(tmp_path / "registry"))

    def planned_steps() -> list[str]:
        planner = HTDAGPlanner(use_trained_policy=trained_policy_wanted())
        (dag,) = asyncio.run(plan_all(planner, [request]))
        return [dag[leaf].description for leaf in dag.topological_order()]

    monkeypatch.setenv("HTDAG_USE_TRAINED_POLICY", "true")
    assert planned_steps() == steps
    assert ModelRegistry(tmp_path / "registry").current("htdag").number == 1
    monkeypatch.setenv("HTDAG_USE_TRAINED_POLICY", "false")
    assert planned_steps() == ["find lamp", "pay lamp"]
