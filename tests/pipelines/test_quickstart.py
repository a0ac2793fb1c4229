"""The quickstart at a smaller size: a model from scratch learns by SFT and then, further, by RL."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterable
from pathlib import Path

import pytest

from practicum.agent import Agent
from practicum.cli.main import main
from practicum.config.resolve import resolve_train
from practicum.data.store import read_episodes
from practicum.engines.base import Sampling
from practicum.errors import UserError
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.quickstart import DEMONSTRATIONS, LEVELS, RL_LEVELS, Quickstart, default_plan
from practicum.task import Task
from practicum.training import build
from practicum.training.sft import planned_steps
from tests.report.browser_pages import PageRecorder
from tests.report.report_files import CHROMIUM, launch_chromium

from .short_problems import ShortProblems

PROBLEMS = f"{Path(__file__).with_name('short_problems.py')}:ShortProblems"


def test_rl_is_better_than_sft_and_sft_than_nothing(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["null"]["success_rate"] == 0.0
    assert summary["sft"]["low"] > summary["null"]["high"]
    assert summary["difference"] >= 0.10
    assert summary["p_value"] < 0.05
    assert summary["verdict"] == "better"
    assert len(summary["sft_validations"]) == 2
    assert summary["sft_best_step"] == 45 * (1 + summary["sft_validations"].index(max(summary["sft_validations"])))
    for name in ("base", "sft", "rl"):
        assert set(summary[name]) >= {"success_rate", "low", "high", "n"}
        assert summary[name]["n"] == 100
        # Jeffreys' interval of 0 successes begins a hair above 0.
        assert summary[name]["low"] - 1e-4 <= summary[name]["success_rate"] <= summary[name]["high"] + 1e-4
        assert summary["success_by_level"][name] == {"1": pytest.approx(summary[name]["success_rate"])}


def test_engine_and_learner_agree_at_every_step(finished: Path) -> None:
    steps = [json.loads(line) for line in (finished / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 16
    assert max(step["mismatch/logprob/max"] for step in steps) <= 1e-4


def test_curve_episodes_and_model_are_written(finished: Path) -> None:
    page = (finished / "curve.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    episodes = list(read_episodes(finished / "rl" / "examination"))
    assert len(episodes) == 100
    assert {e.provenance["panel"] for e in episodes} == {json.loads((finished / "summary.json").read_text())["panel"]}
    assert (finished / "rl" / "model" / "model.safetensors").exists()


@pytest.mark.skipif(not CHROMIUM.exists(), reason="needs /usr/bin/chromium (make setup installs it)")
def test_its_page_has_the_stages_in_order_with_their_verdicts(finished: Path, tmp_path: Path) -> None:
    pytest.importorskip("playwright.sync_api")
    path = tmp_path / "report.html"
    assert main(["report", str(finished), "-o", str(path)]) == 0
    with launch_chromium() as browser, PageRecorder(browser) as recorder:
        recorder.page.goto(path.as_uri())
        block = recorder.page.locator("#result .result").first
        rows = [" ".join(text.split()) for text in block.locator("tbody tr").all_inner_texts()]
        assert [row.split()[0] for row in rows] == ["base", "sft", "rl"]
        assert "baseline" in rows[0]
        assert "better than base" in rows[1]
        assert "better than sft" in rows[2]
        assert "better than base" in rows[2]
        assert block.locator("p.headline b").first.inner_text().startswith("rl − sft: +")


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_folder_holds_one_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Interrupted(Exception):
        pass

    async def stages(quick: Quickstart) -> None:
        raise Interrupted

    def begin(seed: int) -> None:
        asyncio.run(Quickstart(tmp_path, seed, default_plan(0), say=lambda text: None).run())

    monkeypatch.setattr(Quickstart, "run_stages", stages)
    for _ in range(2):  # interrupted, the same run may begin again
        with pytest.raises(Interrupted):
            begin(0)
    assert json.loads((tmp_path / "plan.json").read_text())["seed"] == 0
    before = files(tmp_path)
    with pytest.raises(UserError, match="already holds a quickstart; choose another --out"):
        begin(1)
    assert files(tmp_path) == before
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UserError, match="already holds a quickstart"):
        begin(0)
    assert (tmp_path / "plan.json").read_bytes() == before["plan.json"]


def test_problems_of_all_stages_have_all_levels_and_differ(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results: dict[str, list[Task]] = {}

    async def stages(quick: Quickstart) -> None:
        demonstrations = await quick.collect_demonstrations()
        assert all(episode.reward == 1 for episode in demonstrations)
        results["demonstrations"] = [episode.task for episode in demonstrations]
        results["RL"] = quick.rl_tasks(12)
        results["evaluation"] = list(quick.panel.tasks)

    monkeypatch.setattr(Quickstart, "run_stages", stages)
    asyncio.run(Quickstart(tmp_path, 0, default_plan(0, demonstrations=50), say=lambda text: None).run())
    assert all(levels_of(tasks) == {1, 2, 3, 4} for tasks in results.values())
    questions = [task.fields["question"] for tasks in results.values() for task in tasks]
    assert len(set(questions)) == len(questions)


def levels_of(tasks: Iterable[Task]) -> set[int]:
    return {int(task.fields["level"]) for task in tasks}


def test_more_demonstrations_get_fewer_epochs() -> None:
    few, many = default_plan(0), default_plan(0, 10 * DEMONSTRATIONS)
    assert (few.sft.num_epochs, many.sft.num_epochs) == (25, 10)
    assert few.sft.check_every == planned_steps(DEMONSTRATIONS, few.sft) // 8


def test_the_recipe_trains_on_the_problems_of_the_quickstart() -> None:
    agent = resolve_train(["recipe=math-tiny"]).config.agent
    assert tuple(agent.environment_args["levels"]) == RL_LEVELS
    assert agent.max_turns == max(LEVELS) + 2


def test_stopped_by_hand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    async def stages(quick: Quickstart) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Quickstart, "run_stages", stages)
    for _ in range(2):
        assert main(["quickstart", "--out", str(tmp_path / "out")]) == 130
        assert "practicum: stopped; the same command begins again." in capsys.readouterr().err


@pytest.mark.parametrize(("estimator", "steps"), [("gae", 12), pytest.param("rloo", 30, marks=pytest.mark.slow)])
def test_other_estimators_improve_the_sft_model(estimator: str, steps: int, finished: Path, tmp_path: Path) -> None:
    panel = Panel(tuple(ShortProblems().tasks("test", 100, 7)), 7)
    agent = Agent(format="hf", max_turns=3, sampling=Sampling(0.0, max_tokens=32))
    config = resolve_train(
        [
            "recipe=math-tiny", f"actor_rollout_ref.model.path={finished / 'sft' / 'model'}",
            f"trainer.default_local_dir={tmp_path}", f"trainer.total_training_steps={steps}", "trainer.logger=[]",
            "trainer.val_before_train=false", "trainer.test_freq=-1", "data.train_batch_size=12",
            f"agent.environment={PROBLEMS}", "agent.environment_args={}", "agent.max_turns=3",
            f"algorithm.adv_estimator={estimator}", "critic.optim.lr=1e-3", "actor_rollout_ref.actor.optim.lr=3e-4",
        ]
    ).config  # fmt: skip
    run = build.build_run(config, say=lambda text: None)

    async def evaluate_both() -> tuple[EvalResult, EvalResult]:
        try:
            before, _ = await run.policy.evaluate("sft", panel, ShortProblems, agent)
            await run.train()
            after, _ = await run.policy.evaluate(estimator, panel, ShortProblems, agent)
        finally:
            await run.policy.close()
        return before, after

    gain = compare_pair(*asyncio.run(evaluate_both()))
    assert gain.conclusion == "better", gain
    assert gain.success.difference > 0.05
