"""Planners on the panel: HTDAG's form of results, its expected ranges, the sanity gate, the command."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from practicum.chat.renderer import Renderer
from practicum.cli import htdag as command
from practicum.cli.main import main
from practicum.environments.htdag.requests import create_benchmark_tasks
from practicum.errors import UserError
from practicum.evaluation.comparison_report import compare
from practicum.models.tiny import build_tokenizer
from practicum.planner import benchmark
from practicum.planner.benchmark import EXPECTED_RANGES, aggregate, run_policy, sanity_warning
from practicum.training.text_dataset import read_demonstration_rows


def test_the_heuristic_lies_between_random_and_expert_and_near_the_expected_ranges() -> None:
    metrics = {name: aggregate(run_policy(name)) for name in ("random", "heuristic", "adapt", "expert")}
    assert metrics["random"]["success_rate"] == 0.0
    assert metrics["expert"]["success_rate"] == 1.0
    heuristic = metrics["heuristic"]
    assert 0.5 < heuristic["success_rate"] < 0.95  # type: ignore[operator]
    for name in ("mean_depth", "mean_subtasks", "parallelism_ratio", "mean_execution_time"):
        low, high = EXPECTED_RANGES[name]
        assert low <= heuristic[name] <= high, name  # type: ignore[operator]
    assert metrics["adapt"]["mean_llm_calls"] > heuristic["mean_llm_calls"]  # type: ignore[operator]
    assert metrics["adapt"]["mean_execution_time"] > heuristic["mean_execution_time"]  # type: ignore[operator]
    assert metrics["expert"]["mean_waste"] == 0.0


def test_shapes_are_of_solved_requests_and_times_of_all() -> None:
    solved, failed = run_policy("expert", create_benchmark_tasks()[:2])
    failed = replace(failed, success=False, decomposition_depth=9, execution_time=solved.execution_time + 10)
    metrics = aggregate([solved, failed])
    assert metrics["success_rate"] == 0.5
    assert metrics["mean_depth"] == solved.decomposition_depth
    assert metrics["mean_execution_time"] == solved.execution_time + 5
    assert metrics["std_depth"] is None
    assert metrics["parallelism_ratio"] == solved.parallel_tasks / solved.num_steps
    assert aggregate([failed])["mean_depth"] is None
    with pytest.raises(UserError, match="Unknown planning policy 'heuristics'. Did you mean 'heuristic'"):
        run_policy("heuristics")


def test_a_failed_request_says_why() -> None:
    reasons = {result.error_message for result in run_policy("published-reward", create_benchmark_tasks()[:3])}
    assert all(reason and "not everything is covered" in reason for reason in reasons)
    assert {result.error_message for result in run_policy("expert", create_benchmark_tasks()[:3])} == {None}


def test_the_sanity_gate_warns_below_50_and_above_95_percent() -> None:
    assert sanity_warning(0.7) is None
    assert sanity_warning(0.5) is None
    assert sanity_warning(None) is None
    for rate in (0.49, 0.96):
        assert "before you train" in (sanity_warning(rate) or "")


def test_the_command_without_arguments_writes_what_jq_reads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(benchmark, "BASELINES", ("heuristic",))  # quicker; the others are played above
    assert command.run(["baseline"]) == 0
    written = json.loads((tmp_path / "data/htdag_benchmarks/baseline_results.json").read_text())
    assert written["aggregated_metrics"]["total_tasks"] == written["metadata"]["num_tasks"] == 100
    assert {"success", "decomposition_depth", "llm_calls", "error_message"} <= written["individual_results"][0].keys()
    tasks = json.loads((tmp_path / "data/htdag_benchmarks/benchmark_tasks.json").read_text())["tasks"]
    assert len({task["request"] for task in tasks}) == 100
    printed = capsys.readouterr().out
    assert "70-85 %" in printed
    assert "heuristic" in printed
    assert "warning" not in printed
    assert command.run(["baseline", "--policy", "random", "--out", "other"]) == 0
    assert "warning: A success rate of 0.0 % is below 50 %" in capsys.readouterr().out


def test_a_trained_planner_s_results_have_the_same_form_and_can_be_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    panel = create_benchmark_tasks()[::14]
    monkeypatch.setattr(benchmark, "create_benchmark_tasks", lambda: panel)
    folder = str(tmp_path)
    assert command.run(["baseline", "--out", folder]) == 0
    assert command.run(["evaluate", "expert", "--out", folder]) == 0
    printed = capsys.readouterr().out
    assert "Success Rate: 100.0%\nMean Reward: 1.9" in printed
    assert "compare: practicum compare" in printed
    trained = json.loads((tmp_path / "training_results.json").read_text())
    expert = {result.task_id: result for result in run_policy("expert", panel)}
    assert [asdict(expert[row["task_id"]]) for row in trained["individual_results"]] == trained["individual_results"]
    baseline_keys = json.loads((tmp_path / "baseline_results.json").read_text())["aggregated_metrics"].keys()
    assert trained["aggregated_metrics"].keys() == baseline_keys
    comparison = compare(tmp_path / "baseline_eval.json", tmp_path / "training_eval.json")
    assert comparison.success.trained == 1.0
    compared = {delta.name for delta in comparison.deltas}
    assert compared >= {f"Mean {name}" for name in ("depth", "dag_size", "parallelism", "execution_time", "llm_calls")}
    assert comparison.success.num_clusters == len({task.fields["template"] for task in panel})


def test_the_expert_s_decisions_are_rows_for_sft(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "rows.jsonl"
    assert main(["htdag", "demonstrations", str(out), "--requests", "9", "--whole", "2"]) == 0
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert f"{len(rows)} decisions of 9 requests" in capsys.readouterr().out
    full = [row for row in rows if row["task_id"] in {rows[0]["task_id"]}]
    assert [row["action"] for row in full][-1] == "go"
    assert full[0]["prompt"].endswith("\n-\n0")
    assert len({row["task_id"] for row in rows}) == 9
    assert sum(row["action"] == "go" for row in rows) == 2
    samples = read_demonstration_rows(out, Renderer(build_tokenizer()))
    assert len(samples) == len(rows)
    assert main(["htdag", "demonstrations", str(out), "--requests", "1", "--whole", "2"]) == 2


def test_one_request_is_planned_and_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["htdag", "plan", "buy a lamp, then tell Ada"]) == 0
    assert "1.2 pay lamp  (after 1.1)" in capsys.readouterr().out
    assert main(["htdag", "plan", "buy a lamp", "--out", str(tmp_path / "plan.svg")]) == 0
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")
    assert main(["htdag", "plan", " "]) == 2
    assert "The request is empty" in capsys.readouterr().err
