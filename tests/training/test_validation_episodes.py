"""Episodes of validations: the first of each are kept, and those of abandoned steps go."""

from __future__ import annotations

from pathlib import Path

from practicum.evaluation.result import EvalResult
from practicum.report.run_view import RunView
from practicum.report.runs import RunFolder
from practicum.training.validation_results import MAX_SAVED_EPISODES, write_validation
from tests.report.report_files import make_episode


def test_validations_keep_their_first_episodes_and_a_resumed_run_drops_later_ones(tmp_path: Path) -> None:
    episodes = [make_episode(f"task-{number}", 0, 1.0) for number in range(MAX_SAVED_EPISODES + 3)]
    result = EvalResult("val", "math", "p", 1, 1, ())
    for step in (0, 5, 10):
        write_validation(tmp_path, step, result, episodes)
    assert len(list((tmp_path / "validation" / "step_10").glob("*.jsonl"))) == MAX_SAVED_EPISODES
    write_validation(tmp_path, 5, result, episodes)
    assert not (tmp_path / "validation" / "step_10").exists()
    view = RunView(RunFolder("run", tmp_path))
    view.refresh()
    assert list(view.index.read_all())
    assert {row.step for row in view.index.rows} == {0, 5}
    assert not any(row.rated for row in view.index.rows)  # of several policies
