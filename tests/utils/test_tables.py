"""Tables that fit, and names that do nothing to a terminal."""

from __future__ import annotations

import math

from practicum.utils.tables import WIDTH, number, p_text, percent, table


def test_a_long_first_column_gives_way() -> None:
    text = table(["Policy", "Success"], [["runs/" + "x" * 200 + "/end", "1.0%"], ["short", "100.0%"]])
    assert max(map(len, text.splitlines())) == WIDTH
    assert "…" in text
    assert "xxx/end  " in text


def test_control_characters_are_disarmed() -> None:
    text = table(["Policy", "n"], [["\x1b[2J\rboo\nbar", "1"]])
    assert "\x1b" not in text
    assert len(text.splitlines()) == 3


def test_numbers() -> None:
    assert (percent(0.1234), percent(0.05, True), percent(None), percent(math.nan)) == ("12.3%", "+5.0%", "–", "–")
    assert (number(1.23456), number(-12.345, True), number(123456.0), number(None)) == (
        "1.235",
        "-12.35",
        "123456",
        "–",
    )
    assert (p_text(0.0312), p_text(1e-5)) == ("0.0312", "1.0e-05")
