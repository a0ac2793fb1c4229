"""`compare` and `matrix` on result files made by hand: what is printed, and the exit code."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from practicum.cli.main import main
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.trajectory import Outcome

Write = Callable[..., str]
SAMPLED = {"stage": "sft", "temperature": 1.0, "max_tokens": 256}


@pytest.fixture
def write(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write NAME.json in the current folder: one attempt per task, 1, 0 or None (no score)."""
    monkeypatch.chdir(tmp_path)

    def make(name: str, flags: Sequence[int | None], policy: str | None = None, goals: int = 0, **settings: Any) -> str:
        outcomes = {None: Outcome.ENV_ERROR, 0: Outcome.FAILURE, 1: Outcome.SUCCESS}
        attempts = tuple(
            AttemptResult(f"t{n}", f"c{n}", 0, outcomes[flag], float(flag or 0), 2, 9, 0, seconds=0.1 * n,
                          goal=f"g{n % goals}" if goals else None)
            for n, flag in enumerate(flags)
        )  # fmt: skip
        result = EvalResult(policy or name, "math", "panel", len(flags), 1, attempts, {**SAMPLED, **settings})
        result.write(Path(f"{name}.json"))
        return f"{name}.json"

    return make


def test_different_settings_have_to_be_asked_for(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write("a", [1] * 30 + [0] * 10), write("b", [0] * 40, temperature=0.0, max_tokens=12)]
    assert main(["compare", *files]) == 1
    shown = " ".join(capsys.readouterr().out.split())
    assert "temperature 1.0 and 0.0, max_tokens 256 and 12" in shown
    assert "Gate" not in shown
    assert "is worse than" not in shown
    assert main(["compare", *files, "--different-settings"]) == 0
    shown = capsys.readouterr().out
    assert "'b' is worse than 'a' by 75.0 points" in shown
    assert "Gate: keep the baseline" in shown


def test_nothing_scored_is_a_sentence_and_not_a_success(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write("a", [1] * 5), write("b", [None] * 5)]
    assert main(["compare", *files, "--json", "c.json"]) == 1
    shown = capsys.readouterr().out
    assert shown.strip() == "No task has a score from both policies, so nothing can be compared."
    assert json.loads(Path("c.json").read_bytes())["comparisons"][0]["verdict"] == "not known"
    assert main(["compare", *files, write("c", [1] * 5)]) == 1
    assert "nan" not in capsys.readouterr().out
    assert main(["matrix", *files]) == 1
    assert "'b': nothing was scored" in capsys.readouterr().out


def test_the_t_line_has_a_name_and_seconds_no_p_value(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["compare", write("a", [1, 0] * 20), write("b", [1, 1] * 20)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("Two-sample t-test (unpaired): t-statistic:") for line in lines)
    (seconds,) = [line for line in lines if line.startswith("Mean seconds")]
    assert seconds.endswith("–")


def test_goals_and_looks_are_in_the_text(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    files = [write("a", [1, 0] * 30, goals=12), write("b", [1, 0] * 28 + [1, 1] * 2, goals=12)]
    assert main(["compare", *files, "--looks", "2"]) == 0
    shown = capsys.readouterr().out
    assert "60 tasks of 12 goals" in shown
    assert "Each of the 2 planned looks is tested at 2.1 %, so that all together keep 5 %" in " ".join(shown.split())
    assert "[97.9 %]" in shown
    assert main(["compare", *files, "--looks", "0"]) == 2
    assert "--looks 0 must be at least 1" in capsys.readouterr().err


def test_a_baseline_is_named_as_the_mode_or_as_its_file(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """`matrix results/*.json --baseline base`, where base.json is of the policy `tiny`."""
    write("base", [0] * 30 + [1] * 10, policy="tiny")
    write("sft", [1] * 40, policy="runs/x/sft")
    files = sorted(str(path) for path in Path().glob("*.json"))
    for name in ("base", "tiny"):
        assert main(["matrix", *files, "--baseline", name, "--out", "m"]) == 0
        shown = capsys.readouterr().out
        assert "+75.0" in shown
    assert "Baseline: tiny" in Path("m/matrix.md").read_text()
    assert main(["matrix", *files, "--baseline", "bass"]) == 2
    assert "Did you mean 'base'?" in capsys.readouterr().err


def test_a_mode_that_is_shown_to_be_worse_is_harmful(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """Formerly 'Not useful' at -26.7 points."""
    files = [write("a", [1] * 50 + [0] * 10), write("b", [1] * 34 + [0] * 26), write("c", [1] * 49 + [0] * 11)]
    assert main(["matrix", *files, "--out", "m"]) == 0
    shown = capsys.readouterr().out
    assert "Harmful" in shown
    assert "Not useful" in shown
    assert "* **Harmful**: " in Path("m/matrix.md").read_text()


def test_modes_may_follow_one_flag(write: Write, capsys: pytest.CaptureFixture[str]) -> None:
    """HALO's `--mode a b`; formerly the second ended in the usage text of eval."""
    assert main(["matrix", "--mode", "null", "top=expert", "--env", "math", "--tasks", "6", "--out", "m"]) == 0
    assert sorted(path.name for path in Path("m").glob("*.json")) == ["null.json", "top.json"]
    assert "top" in capsys.readouterr().out
    assert main(["matrix", "--mode", "null", "expert"]) == 2
    assert capsys.readouterr().err.startswith("practicum: Say which environment to evaluate in: --env NAME")
