"""What a stream can show: colour, and how many columns."""

from __future__ import annotations

import os
import shutil
from typing import TextIO

PLAIN_WIDTH = 100
"""Columns of text that is not printed to a terminal."""


def use_colour(stream: TextIO) -> bool:
    """Whether to colour: the stream is a terminal that knows escapes, and NO_COLOR (no-color.org) is not set."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def text_width(stream: TextIO) -> int:
    """Columns of the terminal, or of plain text elsewhere."""
    return shutil.get_terminal_size((PLAIN_WIDTH, 24)).columns if stream.isatty() else PLAIN_WIDTH
