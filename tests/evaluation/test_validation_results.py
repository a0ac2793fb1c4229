"""What a training keeps of its validations, and what the report makes of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.evaluation.result import EvalResult
from practicum.report.document import document
from practicum.report.runs import find_runs
from practicum.training.validation_results import (
    check_required_figures,
    compare_first_and_last,
    first_and_last,
    validation_files,
    write_validation,
)
from tests.report.report_files import embedded_data, write_training

Make = Callable[..., EvalResult]


def test_the_last_validation_is_compared_with_the_first(make_result: Make, tmp_path: Path) -> None:
    for step, solved in ((0, 2), (5, 12), (10, 18)):
        write_validation(tmp_path, step, make_result("val", [1] * solved + [0] * (20 - solved)))
    assert [result.policy for result in first_and_last(tmp_path)] == ["step 0", "step 10"]
    change = compare_first_and_last(tmp_path)
    assert change is not None
    assert "'step 10' is better than 'step 0' by 80.0 points" in change.sentence


def test_a_run_that_is_taken_up_again_has_no_later_validations(make_result: Make, tmp_path: Path) -> None:
    for step in (0, 5, 10, 5):
        write_validation(tmp_path, step, make_result("val", [1, 0]))
    assert list(validation_files(tmp_path)) == [0, 5]
    assert compare_first_and_last(tmp_path / "nothing") is None


def test_training_needs_figures_of_the_environment_to_begin(make_result: Make) -> None:
    result = make_result("val", [1, 0, 0, 0])
    valid = [replace(item, env_metrics={"valid": float(index < 2)}) for index, item in enumerate(result.attempts)]
    result = replace(result, attempts=tuple(valid))
    check_required_figures(result, {"valid": 0.5})
    with pytest.raises(UserError, match="mean 'valid' of 0.50 over 4 episodes and needs 0.6"):
        check_required_figures(result, {"valid": 0.6})
    with pytest.raises(UserError, match="no figure 'vald'. Did you mean 'valid'"):
        check_required_figures(result, {"vald": 0.5})


def test_files_do_not_depend_on_the_clock(make_result: Make, tmp_path: Path) -> None:
    write_validation(tmp_path, 0, make_result("val", [1, 0]))
    assert all(attempt.seconds is None for attempt in first_and_last(tmp_path)[0].attempts)


def test_the_report_shows_both_with_their_verdict(make_result: Make, tmp_path: Path) -> None:
    run = write_training(tmp_path / "run", 10)
    for step, solved in ((0, 2), (10, 18)):
        write_validation(run, step, make_result("val", [1] * solved + [0] * (20 - solved)))
    (run / "validation" / "step_7.jsonl").write_text("damaged")
    data = embedded_data(document(find_runs([run]))[0])
    assert [line["success_rate"] for line in data["runs"][0]["table"]] == [0.1, 0.9]
    (results,) = [item for item in data["comparisons"] if item["trained"]["label"] == "run · validation, step 10"]
    assert results["verdict"] == "better"
