"""The progress line on a terminal and in a file."""

from __future__ import annotations

import io
import sys

import pytest

from practicum.utils.terminal import Progress


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self) -> bool:
        return True


def test_a_file_gets_plain_lines() -> None:
    stream = io.StringIO()
    with Progress("collect", 2, "episodes", stream) as progress:
        progress.advance(2, "done \x1b[2J")
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("collect                0/2 episodes  0:00")
    assert lines[-1].startswith("collect                2/2 episodes")
    assert "\x1b" not in stream.getvalue()


def test_a_terminal_gets_one_line_that_is_not_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "50")
    monkeypatch.setenv("TERM", "xterm-256color")
    stream = Terminal()
    before = sys.stdout
    with Progress("collect", 2, "episodes", stream) as progress:
        progress.advance(2, "a note that is far too long for a terminal of fifty columns [bold]")
    assert sys.stdout is before
    text = stream.getvalue()
    assert "2/2 episodes" in text
    assert "…" in text
    assert "far too long for" not in text


def test_what_is_not_shown_prints_nothing() -> None:
    stream = io.StringIO()
    with Progress("collect", 1, stream=stream, shown=False) as progress:
        progress.advance()
    assert stream.getvalue() == ""
