"""Plain text tables that fit a terminal of a hundred columns."""

from __future__ import annotations

import math
from collections.abc import Sequence

from practicum.utils.escape import shown

WIDTH = 100


def printable(text: str) -> str:
    """A stranger's text for a terminal: what would drive it, hide or cannot be encoded stands there as an escape."""
    return shown(text).encode("utf-8", "backslashreplace").decode()


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], rule: str = "-") -> str:
    """Columns two spaces apart; the first is left-aligned and gives way where a line would be too long."""
    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in [headers, *rows]]
    widths = [max(len(row[place]) for row in cells) for place in range(len(headers))]
    others = sum(widths[1:]) + 2 * (len(widths) - 1)
    widths[0] = min(widths[0], max(8, WIDTH - others))
    lines = []
    for row in cells:
        first = shortened(row[0], widths[0]).ljust(widths[0])
        lines.append("  ".join([first, *(cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))]))
    length = min(WIDTH, max(len(line) for line in lines))
    return "\n".join([lines[0].rstrip(), rule * length, *(line.rstrip() for line in lines[1:])])


def shortened(text: str, width: int) -> str:
    """A text that fits: a path's end says more than its beginning."""
    return text if len(text) <= width else "…" + text[len(text) - width + 1 :]


def percent(value: float | None, signed: bool = False) -> str:
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:+.1f}%" if signed else f"{100 * value:.1f}%"


def number(value: float | None, signed: bool = False) -> str:
    """Three digits after the point, or two where it is large."""
    if value is None or math.isnan(value):
        return "–"
    places = 3 if abs(value) < 10 else 2 if abs(value) < 1000 else 0
    return f"{value:+.{places}f}" if signed else f"{value:.{places}f}"


def p_text(value: float) -> str:
    return f"{value:.4f}" if value >= 0.001 else f"{value:.1e}"
