"""A policy that was trained under constrained decoding is evaluated with the form of its run, or there is a warning."""

from __future__ import annotations

from pathlib import Path

import pytest

from practicum.config import overrides
from practicum.config.resolve import resolve_train
from practicum.environments.rubric.short_form import SHORT_REPLIES
from practicum.errors import UserError
from practicum.evaluation.runner import EvalRunner
from practicum.evaluation.settings import EvalSettings


def a_run(folder: Path, *keys: str) -> Path:
    """A run's folder as `practicum train` leaves it, its weights aside."""
    (folder / "model").mkdir(parents=True)
    (folder / "model" / "config.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("")
    (folder / "config.yaml").write_text(overrides.to_yaml(resolve_train(list(keys)).config))
    return folder


def runner(policy: Path, response_format: object = None) -> EvalRunner:
    return EvalRunner(
        EvalSettings(environment="rubric", policy=str(policy), num_tasks=2, response_format=response_format)
    )


def test_the_form_is_taken_from_the_run(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "recipe=rubric")
    constrained = runner(run, str(run))
    assert constrained.settings.reply_form == {"type": "regex", "regex": SHORT_REPLIES}
    assert constrained.settings.decoding_record["response_format"]["regex"] == SHORT_REPLIES
    assert constrained.warnings() == []
    (warning,) = runner(run).warnings()
    assert f"--response-format {run}" in warning
    assert runner(run / "model").warnings() == [warning], "the model within the run too"
    assert runner(run, '{"type": "json_object"}').warnings() == []


def test_a_run_with_any_replies(tmp_path: Path) -> None:
    run = a_run(tmp_path / "run", "recipe=rubric", "agent.response_format=null")
    assert runner(run).warnings() == []
    with pytest.raises(UserError, match="no config.yaml of a run with agent.response_format"):
        assert runner(run, str(run)).settings.reply_form
    (run / "config.yaml").write_text("{")
    assert runner(run).warnings() == []
