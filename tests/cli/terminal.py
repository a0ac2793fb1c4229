"""Commands in a terminal of a given width, and what is then on its screen."""

from __future__ import annotations

import fcntl
import os
import pty
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


def in_terminal(commands: Sequence[Sequence[str]], folder: Path, width: int = 80, **env: str) -> bytes:
    """Run commands one after another in a terminal; returns the bytes that it got."""
    import json

    main, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 50, width, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-c", RUNNER, json.dumps([list(argv) for argv in commands]), MARK],
        cwd=folder, stdin=terminal, stdout=terminal, stderr=terminal, env=environment(env),
    )  # fmt: skip
    os.close(terminal)
    data = b""
    try:
        while piece := os.read(main, 65536):
            data += piece
    except OSError:  # how a closed terminal ends
        pass
    finally:
        os.close(main)
        process.wait()
    return data


def environment(more: Mapping[str, str]) -> dict[str, str]:
    usual = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES", "NO_COLOR")}
    return {**usual, "TERM": "xterm-256color", "PYTHONIOENCODING": "utf-8", **more}


def screen_lines(data: bytes, width: int = 240, height: int = 4000) -> list[str]:
    """The lines on a screen that is wider than the one the commands were told about: none is wrapped."""
    import pyte

    screen = pyte.Screen(width, height)
    stream = pyte.ByteStream(screen)
    stream.feed(data)
    return [line.rstrip() for line in screen.display]
