"""Tables that fit, and cells that do nothing to a terminal."""

from __future__ import annotations

import contextlib
import io
import json
import math
import re
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.training.monitor.loggers import console_line, validation_sentence
from practicum.utils.tables import WIDTH, number, p_text, percent, progress_label, shortened, table
from practicum.utils.terminal import Progress, fit, print_whatever_the_encoding, sparkline, text_width, use_colour, wrap


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def make_terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """stdout as a terminal of 60 columns."""
    stream = Terminal()
    monkeypatch.setattr("sys.stdout", stream)
    monkeypatch.setenv("COLUMNS", "60")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    return stream


def test_columns_are_two_spaces_apart_under_a_rule() -> None:
    text = table(["Policy", "n", "Success"], [["sft", "12", "50.0%"], ["expert", "7", "100.0%"]], "=")
    assert text == "Policy   n  Success\n===================\nsft     12    50.0%\nexpert   7   100.0%"


def test_a_long_first_column_is_shortened() -> None:
    text = table(["Policy", "Success"], [["runs/" + "x" * 200 + "/end", "1.0%"], ["short", "100.0%"]])
    assert max(map(len, text.splitlines())) == WIDTH
    assert "…" in text
    assert "xxx/end  " in text


def test_a_table_fits_the_terminal_and_its_headers_are_bold(monkeypatch: pytest.MonkeyPatch) -> None:
    make_terminal(monkeypatch)
    text = table(["Policy", "Success"], [["runs/" + "x" * 200 + "/end", "1.0%"]])
    assert len(text.splitlines()[1]) == 60
    assert "\x1b[1m" in text


def test_no_color_is_respected(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = make_terminal(monkeypatch)
    assert use_colour(terminal)
    monkeypatch.setenv("NO_COLOR", "1")
    assert not use_colour(terminal)
    assert "\x1b" not in table(["Policy"], [["a"]])


@pytest.mark.parametrize(
    ("columns", "width"),
    [("60", 60), ("140", 140), (None, WIDTH), ("", WIDTH), ("0", WIDTH), ("-5", WIDTH), ("x", WIDTH)],
)
def test_a_file_gets_plain_text_of_the_columns_that_are_asked_for(
    columns: str | None, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stdout", stream)
    if columns is None:
        monkeypatch.delenv("COLUMNS", raising=False)
    else:
        monkeypatch.setenv("COLUMNS", columns)
    assert text_width(stream) == width
    assert not use_colour(stream)
    text = table(["Policy", "Success"], [["runs/" + "x" * 200 + "/end", "1.0%"]])
    assert {len(line) for line in text.splitlines()[1:]} == {width}
    assert fit("word " * 60, stream) == "word " * 60  # lines are for programs: they are not broken


def test_wide_characters_take_two_columns() -> None:
    lines = table(["Policy", "n"], [["模型", "1"], ["abcd", "2"]]).splitlines()
    assert lines[2:] == ["模型    1", "abcd    2"]
    assert shortened("模型模型", 5) == "…模型"


def test_control_characters_are_escaped_and_markup_is_not_interpreted() -> None:
    text = table(["Policy", "n"], [["\x1b[2J\rboo\nbar", "1"], ["[bold]x[/bold] :smile:", "2"]])
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4
    assert "[bold]x[/bold] :smile:" in text


def test_a_progress_line_names_the_end_of_a_path() -> None:
    labels = [progress_label("eval", f"runs/quickstart-0/{stage}") for stage in ("sft", "rl")]
    assert labels == ["eval …quickstart-0/sft", "eval …/quickstart-0/rl"]
    assert progress_label("collect", "expert") == "collect expert"


def test_numbers() -> None:
    assert (percent(0.1234), percent(0.05, True), percent(None), percent(math.nan)) == ("12.3 %", "+5.0 %", "–", "–")
    assert (number(1.23456), number(-12.345, True), number(123456.0), number(None)) == (
        "1.235",
        "-12.35",
        "123456",
        "–",
    )
    assert (p_text(0.0312), p_text(1e-5)) == ("0.0312", "1.0e-05")


def test_prose_is_wrapped_between_words_at_the_width_of_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = wrap("a sentence with a/very/long/path " + "x" * 70 + " and words " * 8, make_terminal(monkeypatch), "  ")
    assert "x" * 70 in "".join(lines)
    assert max(len(line) for line in lines if "x" * 70 not in line) <= 60
    assert all(line.startswith("  ") for line in lines[1:])


def test_an_interval_and_a_share_are_not_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_terminal(monkeypatch)
    for width in range(40, 60):
        lines = wrap("x" * width + " 85.0 % [71.7, 93.5] of all", stream)
        assert " ".join(lines).endswith("85.0 % [71.7, 93.5] of all")
        assert [line for line in lines if line.endswith(("85.0", "[71.7,"))] == []
        assert max(map(len, lines)) <= 60


def test_a_line_of_a_training_step_fits_the_terminal() -> None:
    values = {"reward/mean": 0.5, "reward/std": 0.1, "reward/min": 0.0, "reward/max": 1.0, "actor/pg_loss": -1.234e-5,
              "critic/vf_loss": 0.5, "actor/kl": 1.234e-5, "actor/entropy": 6.25, "actor/lr": 3e-4,
              "val/success/mean": 1.0}  # fmt: skip
    line = console_line(12345, values, 80)
    assert len(line) <= 80
    assert line.startswith("step 12345  reward 0.500")
    assert line.endswith("val 100.0 %")
    assert "min 0.000" in console_line(12345, values)


def test_a_progress_line_has_no_style_with_no_color(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = make_terminal(monkeypatch)
    monkeypatch.setenv("NO_COLOR", "1")
    with Progress("train", 3, "episodes", stream=stream) as line:
        line.advance(3)
    assert "3/3 episodes" in stream.getvalue()
    assert not re.search(r"\x1b\[[0-9;]*m", stream.getvalue())


def test_the_help_of_every_command_fits_80_columns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    for text in (usage_of("eval"), usage_of("matrix"), usage_of("train")):
        assert max(map(len, text.splitlines())) <= 80
    lines = usage_of("train").splitlines()
    assert [line.split()[0] for line in lines if re.match("[a-z]+: ", line)] == [
        "usage:",
        "example:",
        "recipes:",
        "keys:",
    ]
    assert "rubric-reinforce" in " ".join(lines)  # no name is broken at its hyphen


def usage_of(command: str) -> str:
    stream = io.StringIO()
    with contextlib.redirect_stdout(stream), contextlib.suppress(SystemExit):
        main([command, "--help"])
    return stream.getvalue()


def test_a_run_ends_with_its_validations(tmp_path: Path) -> None:
    rows = [{"step": step, "val/success/mean": value} for step, value in ((0, 0.1), (5, 0.6), (10, 0.5))]
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": 11}]))
    text = validation_sentence(tmp_path)
    assert "\n" not in text  # a pipe gets one line
    assert "10.0 % at step 0, best 60.0 % at step 5, last 50.0 % at step 10" in text


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_any_text_is_printed_whatever_the_encoding(encoding: str) -> None:
    data = io.BytesIO()
    stream = io.TextIOWrapper(data, encoding=encoding)
    print_whatever_the_encoding(stream)
    stream.write("62.5 – 70.0 % ± 1 → Δ ⟦好⟧ ▁█ \ud83d\n")
    stream.flush()
    text = data.getvalue().decode(encoding)
    assert len(text) == len("62.5 – 70.0 % ± 1 → Δ ⟦好⟧ ▁█ x\n")  # columns stay aligned
    expected = {"ascii": "62.5 - 70.0 % ~ 1 > d [?] .@ ?\n", "latin-1": "62.5 - 70.0 % ± 1 > d [?] .@ ?\n",
                "utf-8": "62.5 – 70.0 % ± 1 → Δ ⟦好⟧ ▁█ ?\n"}  # fmt: skip
    assert text == expected[encoding]


def test_a_sparkline_spans_its_own_values() -> None:
    assert sparkline([0.0, 0.5, 1.0]) == "▁▅█"
    assert sparkline([2.0, float("nan"), 2.0]) == "▁▁"
    assert sparkline([1.0]) == ""
    assert len(sparkline(list(range(100)))) == 16
