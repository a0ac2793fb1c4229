"""What the benchmarks of learning do around their trainings: which processes run, and what they begin with."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from practicum.errors import UserError

BENCHMARKS = Path(__file__).parent.parent / "benchmarks"
MODULES = ("parallel_jobs", "quickstart", "learn_recipes", "training_stages", "web_tuning", "learning_tables")


@pytest.fixture
def benchmarks(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, ModuleType]]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield {name: importlib.import_module(name) for name in MODULES}
    for name in MODULES:
        sys.modules.pop(name, None)


def test_a_phase_begins_when_the_one_before_it_has_ended(
    benchmarks: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "case.py"
    script.write_text(
        "import os, sys, time\nfrom pathlib import Path\n"
        f"log = Path({str(tmp_path)!r}, 'order')\n"
        "time.sleep(0.2 if sys.argv[1] == 'first' else 0)\n"
        "with log.open('a') as file: file.write(sys.argv[1] + os.environ['OMP_NUM_THREADS'] + ' ')\n"
        "print('working'); print('done', sys.argv[1]); sys.exit(sys.argv[1] == 'bad')\n"
    )
    run_phases = benchmarks["parallel_jobs"].run_phases
    run_phases(str(script), [[["first"], ["also"]], [["second"]]], 2, tmp_path / "logs", threads=3)
    assert sorted((tmp_path / "order").read_text().split()[:2]) == ["also3", "first3"]
    assert (tmp_path / "order").read_text().split()[2:] == ["second3"]
    assert "second: done second" in capsys.readouterr().out
    with pytest.raises(SystemExit, match="ended with 1\nworking\ndone bad"):
        run_phases(str(script), [[["bad"]], [["never"]]], 2, tmp_path / "logs")
    assert "never" not in (tmp_path / "order").read_text()


def test_at_the_deadline_all_processes_are_stopped_and_none_begins(
    benchmarks: dict[str, ModuleType], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = tmp_path / "case.py"
    script.write_text(
        "import os, sys, time\n"
        "print(os.environ['OMP_NUM_THREADS'])\n"
        "sys.exit(3) if sys.argv[1] == 'bad' else time.sleep(60 if sys.argv[1] == 'endless' else 0)\n"
    )
    processes = benchmarks["parallel_jobs"].TimedProcesses(str(script), 4, 2 / 60, tmp_path / "logs")
    processes.run({"a": ["bad"], "b": ["endless"]})
    processes.run({"c": ["late"]})
    lines = capsys.readouterr().out.splitlines()
    assert [line.rsplit(" after", 1)[0] for line in lines] == ["a: ended with 3", "b: stopped"]
    assert {path.name: path.read_text() for path in (tmp_path / "logs").iterdir()} == {"a.log": "2\n", "b.log": "2\n"}


def test_variants_of_the_web_worker_begin_with_one_bc_model_and_show_the_validations_they_have(
    benchmarks: dict[str, ModuleType], tmp_path: Path
) -> None:
    tuning = benchmarks["web_tuning"]
    default, hot, few = (
        tuning.stages_of(f"{name}-7", tmp_path, "tiny", ["max_turns=4"]) for name in ("default", "hot", "52")
    )
    start = tuning.stages_of("start:104-7", tmp_path, "tiny", ["max_turns=4"])
    assert default.bc_folder == hot.bc_folder == start.bc_folder == start.out / "bc"
    assert few.bc_folder != default.bc_folder
    assert (few.budget.demonstrations, default.budget.demonstrations) == (52, 104)
    assert (hot.budget.grpo_temperature, default.budget.grpo_temperature, hot.budget.max_turns) == (2.0, 1.0, 4)
    assert {stages.split for stages in (default, hot, few, start)} == {"val"}, (
        "test templates are for the chosen budget"
    )
    start.bc_folder.mkdir(parents=True)
    (start.bc_folder / "choice.json").write_text('{"best": 10, "validations": {"5": 0.1, "10": 0.25}}')
    run = hot.out / "grpo" / "run"
    run.mkdir(parents=True)
    rows = [{"step": 0, "val/success/mean": 0.25}, {"step": 1, "success/mean": 0.5}]
    (run / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert list(tuning.table(tmp_path, ["default-7", "hot-7"], "tiny"))[2:] == [
        "| default-7 | 5: 10.0, 10: 25.0 |  |  (0 steps) |",
        "| hot-7 | 5: 10.0, 10: 25.0 | 0: 25.0 | 50.0, 50.0 (1 steps) |",
    ]


def summary(validations: list[float], rate: float) -> dict[str, Any]:
    result = {"success_rate": rate, "low": rate - 0.05, "high": rate + 0.05}
    levels = {"1": rate, "2": rate, "3": 0.0}
    return {"sft": result, "rl": result, "success_by_level": {"sft": levels, "rl": levels},
            "sft_validations": validations, "difference": 0.2, "difference_low": 0.15, "difference_high": 0.25,
            "p_value": 1e-9}  # fmt: skip


def test_rl_begins_with_the_sft_that_has_the_best_validation(benchmarks: dict[str, ModuleType], tmp_path: Path) -> None:
    quickstart = benchmarks["quickstart"]
    folder = tmp_path / "seed-7"
    with pytest.raises(UserError, match="has no finished SFT case"):
        quickstart.best_variant(folder)
    # The held-out tasks would choose another one; they must not.
    for case, results in {
        "sft": summary([0.1, 0.5, 0.4], 0.9),
        "sft-twice-the-epochs": summary([0.2, 0.6, 0.6], 0.6),
        "rl": summary([], 0.8),
    }.items():
        (folder / case).mkdir(parents=True)
        (folder / case / "summary.json").write_text(json.dumps(results))
    assert quickstart.best_variant(folder) == "sft-twice-the-epochs"
    (folder / "rl" / quickstart.SFT_VARIANT_FILE).write_text('"sft-twice-the-epochs"')
    lines = list(quickstart.table(tmp_path, [7]))
    assert "| sft-twice-the-epochs | 60.0 [55.0, 65.0] (60 / 60 / 0) |" in lines
    assert "| · validations | 20 60 60 |" in lines
    assert "| RL − SFT, points | +20.0 [15.0, 25.0], p = 1e-09, from sft-twice-the-epochs |" in lines
    assert not any(line.startswith("| more") for line in lines)


def test_cases_differ_in_demonstrations_and_settings_of_sft_only(benchmarks: dict[str, ModuleType]) -> None:
    quickstart = benchmarks["quickstart"]
    plans = {case: quickstart.plan_of(7, case) for case in quickstart.CASES}
    assert {plan.levels for plan in plans.values()} == {(1, 2, 3, 4)}
    assert {str(plan.rl) for plan in plans.values()} == {str(plans["rl"].rl)}
    shown = {case: plan.demonstrations for case, plan in plans.items()}
    assert (shown.pop("more"), set(shown.values())) == (2000, {200})
    assert [plans[case].sft.num_epochs for case in ("sft", "sft-twice-the-epochs", "more")] == [25, 50, 10]
    assert [plans[case].sft.weight_decay for case in ("sft", "sft-decay-0.1", "more")] == [1.0, 0.1, 1.0]


def test_stages_have_what_they_need_from_earlier_phases(benchmarks: dict[str, ModuleType]) -> None:
    stages = benchmarks["training_stages"]
    phases = [[arguments[3] for arguments in phase] for phase in stages.planned_phases(["3", "4"], Path("out"))]
    assert sorted(name for phase in phases for name in phase) == sorted(2 * stages.STAGES)
    position = {name: index for index, phase in enumerate(phases) for name in phase}
    for stage, needed in (("rollouts", "imitation"), ("online", "imitation"), ("preference", "rollouts"),
                          ("offline", "rollouts")):  # fmt: skip
        assert position[needed] < position[stage]


class TrainingBegins(Exception):
    pass


@pytest.mark.parametrize("stage", ["imitation", "ten_times"])
def test_bc_and_bc_on_ten_times_the_demonstrations_are_validated_equally_often(
    benchmarks: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str
) -> None:
    stages = benchmarks["training_stages"]
    shown: list[Any] = []
    begun: list[Any] = []

    async def no_episodes(planned: Any, *args: Any) -> list[Any]:
        shown.extend(planned)
        return shown

    async def train_sft(policy: Any, episodes: Any, settings: Any, *args: Any, **keywords: Any) -> None:
        begun.append(settings)
        raise TrainingBegins

    async def evaluate(*args: Any) -> None:
        return None

    monkeypatch.setattr(stages, "run_episodes", no_episodes)
    monkeypatch.setattr(stages, "train_sft", train_sft)
    monkeypatch.setattr(stages, "evaluate", evaluate)
    with pytest.raises(TrainingBegins):
        asyncio.run(getattr(stages.StageComparison(tmp_path, 3), stage)())
    assert len(shown) == {"imitation": 200, "ten_times": 2000}[stage]
    assert stages.planned_steps(len(shown), begun[0]) // begun[0].check_every == 8


def test_tables_are_those_of_the_results_and_more_demonstrations_are_added_to_their_seed(
    benchmarks: dict[str, ModuleType], tmp_path: Path
) -> None:
    tables = benchmarks["learning_tables"]
    result = {"success_rate": 0.5, "low": 0.25, "high": 0.75, "n": 10}
    run = dict.fromkeys(("base", "sft", "rl"), result) | {
        "success_by_level": {name: {"1": 1.0, "2": 0.25} for name in ("base", "sft", "rl")},
        "difference": 0.1, "difference_low": 0.05, "difference_high": 0.15,
    }  # fmt: skip
    record: dict[str, Any] = {"runs": {"7": {"quickstart": run}, "8": {"quickstart": run}}}
    more = tmp_path / "seed-8" / "more"
    more.mkdir(parents=True)
    found = run | {"sft_best_step": 20, "sft_steps": 30, "sft_validations": [0.5, 0.9],
                   "sft": {"success_rate": 0.9, "low": 0.8, "high": 0.95, "n": 10}}  # fmt: skip
    (more / "summary.json").write_text(json.dumps(found))
    assert tables.add_more(record, tmp_path) == ["8"]
    lines = list(tables.quickstart(record))
    assert "| RL − SFT, points | +10.0 [5.0, 15.0] | +10.0 [5.0, 15.0] |" in lines
    assert "| SFT on ten times the demonstrations |  | 90.0 % [80.0, 95.0] |" in lines
    assert lines[-2:] == [
        "seed 8, ten times: step 20 of 30; validations 50 90",
        "seed 8, RL: SFT on ten times +40.0 points, Fisher's exact p = 0.14",
    ]
    for name, lines_of in tables.TABLES.items():
        assert any(
            line.startswith("|---|") for line in lines_of(json.loads((tables.RESULTS / f"{name}.json").read_text()))
        )


def test_rl_of_a_recipe_needs_only_its_own_sft(
    benchmarks: dict[str, ModuleType], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipes = benchmarks["learn_recipes"]
    planned = recipes.planned_processes(["math-tiny", "code-tiny"], ["--seed=3"])
    assert planned == [
        ["--only=math-tiny", "--parts=ten-times", "--seed=3"], ["--only=code-tiny", "--parts=ten-times", "--seed=3"],
        ["--only=math-tiny", "--parts=rl", "--seed=3"], ["--only=code-tiny", "--parts=rl", "--seed=3"],
    ]  # fmt: skip
    sft_of: list[int] = []

    async def make_sft_model(name: str, plan: Any, *args: Any) -> Path:
        sft_of.append(plan.demonstrations)
        return tmp_path

    def begin(*args: Any) -> None:
        raise TrainingBegins

    monkeypatch.setattr(recipes, "make_sft_model", make_sft_model)
    monkeypatch.setattr(recipes.build, "build_run", begin)
    monkeypatch.setattr(recipes.loader, "load", begin)
    for part, demonstrations in (("rl", 200), ("ten-times", 2000)):
        with pytest.raises(TrainingBegins):
            asyncio.run(recipes.run_part(part, "math-tiny", tmp_path, 0, 4, []))
        assert sft_of == [demonstrations], part
        sft_of.clear()
