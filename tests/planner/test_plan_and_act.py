"""Plan-and-act: SFT on plans of successful episodes, by commands, and a planner from the run."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.store import read_episodes
from practicum.planner import Planner, TaskDAG
from practicum.planner.local_client import LocalClient
from practicum.trajectory import Outcome


def test_the_commands_make_a_planner_of_successful_plans(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    collect = ["collect", "--env", "htdag", "--policy", "heuristic", "--tasks", "16", "--max-turns", "20",
               "--experiment", "plans", "--run-id", "heuristic"]  # fmt: skip
    assert main(collect) == 0
    assert "failure" in capsys.readouterr().out  # some are not solved, and must not be learnt
    assert main(["export", "--input-dir", "runs/plans", "--output-dir", "data/plans", "--format", "bc"]) == 0
    rows = [json.loads(line) for line in Path("data/plans/bc.jsonl").read_text().splitlines()]
    solved = [episode for episode in read_episodes(Path("runs/plans")) if episode.outcome is Outcome.SUCCESS]
    assert 0 < len(solved) < 16
    assert sorted(row["action"] for row in rows) == sorted(
        turn.reply for plan_episode in solved for turn in plan_episode.turns
    )
    assert all(row["prompt"].startswith("<|im_start|>user\n") for row in rows)
    sft = ["sft", "--dataset-path", "data/plans/bc.jsonl", "--model", "tiny", "--full", "--epochs", "1",
           "--out", "runs/plan-and-act", "training.bf16=false", "model.device=cpu"]  # fmt: skip
    assert main(sft) == 0
    planner = Planner.from_checkpoint("runs/plan-and-act")
    client = planner.llm_client
    assert isinstance(client, LocalClient)
    assert client.ref.model == "runs/plan-and-act/model"
    client.sampling = replace(client.sampling, max_tokens=4)

    async def plan() -> TaskDAG:
        try:
            return await planner.plan("buy a lamp, then tell Ada", max_steps=2)
        finally:
            await client.close()

    dag = asyncio.run(plan())
    assert list(dag.roots) == ["0"]  # one update teaches nothing: the request itself is the plan
