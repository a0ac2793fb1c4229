"""Text on a terminal: progress lines, colour, width, untrusted characters made printable, and an argument parser whose
errors are one sentence that names the nearest option.
"""

from __future__ import annotations

import argparse
import codecs
import io
import math
import os
import re
import shutil
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, NoReturn, TextIO

from practicum.errors import close_name

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.live import Live


INVISIBLE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b\u200e\u200f\u2028\u2029\u202a-\u202e\u2060-\u206f\ufeff]"
)
"""Characters that control a terminal, change the direction of the text around them, or cannot be seen."""
BAR_WIDTH, MIN_BAR_WIDTH = 16, 4
BARS = "▁▂▃▄▅▆▇█"


def escape_invisible(text: str) -> str:
    """The text with invisible and control characters, except tab and newline, written as escapes."""
    return INVISIBLE.sub(lambda match: _escape(ord(match[0])), text)


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def printable(text: str) -> str:
    """A text with characters escaped that control a terminal, cannot be seen or cannot be encoded."""
    return escape_invisible(text).encode("utf-8", "backslashreplace").decode()


ASCII = dict(zip("–—−·…×±Δ→≤≥⟦⟧‘’“”─═━╸╺│" + BARS, "---..x~d><>[]''\"\"-===-|.:-=+*#@", strict=True))
"""What stands for a character where the encoding is not UTF-8: one column each, so that tables stay aligned."""
REPLACE_UNENCODABLE = "practicum.ascii"


def _replace_unencodable(error: UnicodeError) -> tuple[str, int]:
    if not isinstance(error, UnicodeEncodeError):
        raise error
    return "".join(ASCII.get(character, "?") for character in error.object[error.start : error.end]), error.end


def print_whatever_the_encoding(*streams: TextIO) -> None:
    """Replace characters that a stream cannot encode, so that no training ends because of a dash on a progress line."""
    codecs.register_error(REPLACE_UNENCODABLE, _replace_unencodable)
    for stream in streams:
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=REPLACE_UNENCODABLE)


def duration(seconds: float) -> str:
    """Minutes and seconds: "3:07"."""
    rounded = max(0, round(seconds))
    return f"{rounded // 60}:{rounded % 60:02d}"


class Progress:
    """A context manager that redraws one line with a bar on a terminal and prints a line every few seconds elsewhere.

    On a terminal, lines that are printed meanwhile appear above it, and a line that is too long is cut, not wrapped. A
    thread updates the line also while the work makes no progress. With `shown` false nothing is printed.
    """

    def __init__(
        self,
        label: str,
        total: int,
        unit: str = "",
        stream: TextIO | None = None,
        every: float = 4.0,
        shown: bool = True,
    ) -> None:
        self.label, self.total, self.unit, self.shown, self.every = label, total, unit, shown, every
        self.stream = stream or sys.stderr
        self.done = self._first = 0
        self.note = ""
        self.started = time.monotonic()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._print_regularly, daemon=True)
        self._display: Live | None = None

    def __enter__(self) -> Progress:
        self._first = self.done  # what was done before this process does not count for the rate
        if not self.shown:
            return self
        if self.stream.isatty():
            self._display = self._make_display()
            self._display.start()
        else:
            self._print()
            self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if not self.shown:
            return
        if self._display is not None:
            self._display.stop()
        else:
            self._stop.set()
            self._thread.join()
            self._print()
        self.stream.flush()

    def advance(self, count: int = 1, note: str | None = None) -> None:
        self.done += count
        if note is not None:
            self.note = note

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.started

    def status(self) -> str:
        """Everything after the label."""
        seconds = self.seconds
        text = f"{self.done}/{self.total}{' ' + self.unit if self.unit else ''}  {duration(seconds)}"
        if self._first < self.done < self.total and seconds > 0:
            rate = (self.done - self._first) / seconds
            text += f"  {rate:.3g}/s  {duration((self.total - self.done) / rate)} left"
        return f"{text}  {printable(self.note)}" if self.note else text

    def _print_regularly(self) -> None:
        while not self._stop.wait(self.every):
            self._print()

    def _print(self) -> None:
        self.stream.write(f"{printable(self.label):<22} {self.status()}\n")
        self.stream.flush()

    def _make_display(self) -> Live:
        from rich.console import Console  # here, because it is slow to import
        from rich.live import Live

        # What goes to stdout is left alone unless that is the terminal too: it may be piped into a file.
        return Live(
            console=Console(file=self.stream, force_terminal=True, no_color=not use_colour(self.stream)),
            get_renderable=self._render,
            refresh_per_second=5,
            redirect_stdout=sys.stdout.isatty(),
        )

    def _render(self) -> RenderableType:
        from rich.cells import cell_len
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        status = Text(self.status())
        # A narrow terminal shortens the bar first: the note matters more.
        columns_left = text_width(self.stream) - cell_len(printable(self.label)) - status.cell_len - 2
        width = max(MIN_BAR_WIDTH, min(BAR_WIDTH, columns_left))
        line = Table.grid(padding=(0, 1), expand=True)
        line.add_column(no_wrap=True)
        line.add_column(width=width)
        line.add_column(ratio=1, no_wrap=True, overflow="ellipsis")
        bar = ProgressBar(total=max(1, self.total), completed=min(self.done, self.total), width=width)
        label = Text(
            printable(self.label), style="bold" if use_colour(self.stream) else ""
        )  # NO_COLOR: no escape at all
        line.add_row(label, bar, status)
        return line


PLAIN_WIDTH = 100
"""Columns of text that is not printed to a terminal, where COLUMNS does not say another number."""


def use_colour(stream: TextIO) -> bool:
    """Whether to colour: the stream is a terminal that supports escapes, and NO_COLOR (no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


VERDICT_COLOURS = {"better": "32", "worse": "31"}


def coloured(text: str, verdict: str) -> str:
    """A text for stdout, in green for `better` and in red for `worse` where the terminal shows colours."""
    code = VERDICT_COLOURS.get(verdict)
    return f"\x1b[{code}m{text}\x1b[0m" if code is not None and use_colour(sys.stdout) else text


def text_width(stream: TextIO) -> int:
    """Columns of the terminal; elsewhere those of the variable COLUMNS, or of plain text where it is not set."""
    if stream.isatty():
        return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns
    columns = os.environ.get("COLUMNS", "")
    return int(columns) if columns.isdecimal() and int(columns) > 0 else PLAIN_WIDTH


def sparkline(values: Sequence[float], width: int = 16) -> str:
    """The last values as bars from the lowest to the highest of them; nothing for fewer than two."""
    shown = [value for value in values[-width:] if math.isfinite(value)]
    if len(shown) < 2:
        return ""
    low, span = min(shown), max(shown) - min(shown)
    return "".join(BARS[round((value - low) / span * (len(BARS) - 1)) if span else 0] for value in shown)


def fit(text: str, stream: TextIO, indent: str = "    ") -> str:
    """A text whose lines fit the terminal; elsewhere it is unchanged, because programs read it line by line."""
    if not stream.isatty():
        return text
    return "\n".join("\n".join(wrap(line, stream, indent)) for line in text.split("\n"))


def say(text: str, stream: TextIO | None = None) -> None:
    """Print a text at once, with lines that fit where the stream (stdout) is a terminal."""
    stream = stream or sys.stdout
    print(fit(text, stream), file=stream, flush=True)


UNBREAKABLE = re.compile(r"\[[^\[\]\s]+, [^\[\]\s]+\]|\d %")
"""An interval or a share, which is read as one word."""
NO_BREAK_SPACE = "\u00a0"


def wrap(text: str, stream: TextIO, indent: str = "") -> list[str]:
    """The lines of a text that fit the stream's width, broken between words; those after the first are indented."""
    text_line = UNBREAKABLE.sub(lambda match: match[0].replace(" ", NO_BREAK_SPACE), text)
    lines = textwrap.wrap(
        text_line, text_width(stream), subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [line.replace(NO_BREAK_SPACE, " ") for line in lines]


MISSING_ARGUMENTS = "the following arguments are required: "
"""How argparse's message about arguments that are missing begins."""


class ArgumentParser(argparse.ArgumentParser):
    """`argparse.ArgumentParser` with errors of one sentence; a misspelt option is named before a missing one."""

    _words: tuple[str, ...] = ()
    """The arguments that are being parsed."""

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        self._words = tuple(sys.argv[1:] if args is None else args)
        return super().parse_known_args(args, namespace)

    def parse_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        parsed, unknown = self.parse_known_args(args, namespace)
        self._refuse(unknown)
        return parsed

    def parse_intermixed_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> Any:
        parsed, unknown = self.parse_known_intermixed_args(args, namespace)
        self._refuse(unknown)
        return parsed

    def option_names(self) -> list[str]:
        """Every option, as it is typed."""
        return list(self._option_string_actions)

    def refuse_unknown_options(self, words: Sequence[str], also: Iterable[str] = ()) -> None:
        """End with an error if one of the words is an option that neither this parser nor `also` has."""
        names = [*self.option_names(), *also]
        for word in words:
            option = word.partition("=")[0]
            if word == "--":
                return
            # A word with a space is a value, as for argparse; the beginning of an option is its abbreviation.
            if option.startswith("--") and " " not in word and not any(name.startswith(option) for name in names):
                self._refuse_option(option, names)

    def error(self, message: str) -> NoReturn:
        if message.startswith(MISSING_ARGUMENTS):
            self.refuse_unknown_options(self._words)
            message = self._describe_missing(message.removeprefix(MISSING_ARGUMENTS))
        message = message.removeprefix("argument ").rstrip()
        if not message.endswith("."):
            message = f"{message}{'' if message.endswith('?') else ';'} `{self.prog} --help` lists the options."
        self._end(message)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        choices = [str(choice) for choice in action.choices]
        close = close_name(str(value), choices)
        hint = f"; did you mean '{close}'?" if close else ""
        raise argparse.ArgumentError(action, f"'{value}' is none of {', '.join(choices)}{hint}")

    def _describe_missing(self, names: str) -> str:
        helps = {"/".join(action.option_strings) or action.metavar or action.dest: action for action in self._actions}
        text = helps[names].help if names in helps else None
        explanation = f" ({text})" if text and "%" not in text else ""
        return f"{names} {'are' if ', ' in names else 'is'} missing{explanation}"

    def _refuse(self, unknown: Sequence[str]) -> None:
        """End with an error about the first of the words that the parser could not place."""
        if not unknown:
            return
        parser = self._chosen_subparser()
        options = [word.partition("=")[0] for word in unknown if word.startswith("-")]
        if options:
            parser._refuse_option(options[0], parser.option_names())
        parser.error(f"'{unknown[0]}' is one argument too many")

    def _chosen_subparser(self) -> ArgumentParser:
        """The parser of the subcommand that is being parsed; this one where there is none."""
        for action in self._actions:
            if isinstance(action, argparse._SubParsersAction):
                return next((action.choices[word] for word in self._words if word in action.choices), self)
        return self

    def _refuse_option(self, option: str, names: Iterable[str]) -> NoReturn:
        by_word = {name.lstrip("-"): name for name in names if name.startswith("--")}
        close = close_name(option.lstrip("-"), by_word)
        hint = f"did you mean '{by_word[close]}'? " if close else ""
        self._end(f"there is no option '{option}'; {hint}`{self.prog} --help` lists them.")

    def _end(self, message: str) -> NoReturn:
        say(f"{self.prog}: {message}", sys.stderr)
        sys.exit(2)
