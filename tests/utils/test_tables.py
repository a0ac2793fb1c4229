"""Tables that fit, and cells that do nothing to a terminal."""

from __future__ import annotations

import io
import math
import os

import pytest

from practicum.utils.tables import WIDTH, number, p_text, percent, shortened, table
from practicum.utils.terminal import text_width, use_colour


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


def test_a_file_gets_plain_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "COLUMNS", "30")
    assert text_width(io.StringIO()) == WIDTH
    assert not use_colour(io.StringIO())


def test_wide_characters_take_two_columns() -> None:
    lines = table(["Policy", "n"], [["模型", "1"], ["abcd", "2"]]).splitlines()
    assert lines[2:] == ["模型    1", "abcd    2"]
    assert shortened("模型模型", 5) == "…模型"


def test_control_characters_are_escaped_and_markup_is_not_interpreted() -> None:
    text = table(["Policy", "n"], [["\x1b[2J\rboo\nbar", "1"], ["[bold]x[/bold] :smile:", "2"]])
    assert "\x1b" not in text
    assert len(text.splitlines()) == 4
    assert "[bold]x[/bold] :smile:" in text


def test_numbers() -> None:
    assert (percent(0.1234), percent(0.05, True), percent(None), percent(math.nan)) == ("12.3%", "+5.0%", "–", "–")
    assert (number(1.23456), number(-12.345, True), number(123456.0), number(None)) == (
        "1.235",
        "-12.35",
        "123456",
        "–",
    )
    assert (p_text(0.0312), p_text(1e-5)) == ("0.0312", "1.0e-05")
