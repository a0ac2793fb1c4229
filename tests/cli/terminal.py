"""Commands in a terminal of a given width, and what is then on its screen."""

from __future__ import annotations

import fcntl
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
from collections.abc import Mapping, Sequence
from pathlib import Path

MARK = "=== command "
RUNNER = """
import json, sys
from practicum.cli.main import main
for argv in json.loads(sys.argv[1]):
    print(sys.argv[2] + " ".join(argv), flush=True)
    try:
        main(argv)
    except SystemExit:
        pass
    sys.stdout.flush()
    sys.stderr.flush()
"""


def in_terminal(
    commands: Sequence[Sequence[str]],
    folder: Path,
    width: int = 80,
    until: bytes | None = None,
    setup: str = "",
    **env: str,
) -> bytes:
    """Run commands one after another in a terminal, after the program `setup`; returns the bytes that it got.

    With `until`, for a command that does not end by itself: it is killed when it has written that, which is the last
    that is returned.
    """
    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", setup + RUNNER, json.dumps([list(argv) for argv in commands]), MARK],
        cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal, env=environment(env),
    )  # fmt: skip
    os.close(terminal)
    data = b""
    try:
        while piece := os.read(main, 65536):
            data += piece
            if until is not None and until in data:
                process.kill()
                return data[: data.index(until) + len(until)]
    except OSError:  # how a closed terminal ends
        pass
    finally:
        os.close(main)
        process.wait()
    return data


def environment(more: Mapping[str, str]) -> dict[str, str]:
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**usual, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


CONTROL = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])|\x1b\][^\x07]*\x07|(\r)|(\n)|([^\x1b\r\n]+)")


def screen_lines(data: bytes) -> list[str]:
    """The lines on a screen of any width, on which none is wrapped: text, returns, cursor up and erased lines."""
    lines, row, column = [""], 0, 0
    for match in CONTROL.finditer(data.decode("utf-8", "replace")):
        number, kind, returned, fed, text = match.groups()
        if text:
            lines[row] = lines[row][:column].ljust(column) + text + lines[row][column + len(text) :]
            column += len(text)
        elif returned:
            column = 0
        elif fed:
            row += 1
            lines += [""] * (row + 1 - len(lines))
        elif kind == "A":
            row = max(0, row - int(number or 1))
        elif kind == "K":
            lines[row] = "" if number == "2" else lines[row][:column]
    return [line.rstrip() for line in lines]
