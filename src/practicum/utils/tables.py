"""Tables and numbers as text for a terminal, with the control characters of models and files escaped."""

from __future__ import annotations

import io
import math
import sys
from collections.abc import Sequence

from practicum.utils.terminal import PLAIN_WIDTH, printable, text_width, use_colour

WIDTH = PLAIN_WIDTH
MIN_FIRST_COLUMN = 8
MAX_LABEL_CHARACTERS = 22


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], rule: str = "-") -> str:
    """Columns two spaces apart, the first left-aligned and shortened where a line would be too long.

    Fits the terminal; where stdout is none, COLUMNS (100 if it is not set). The headers are bold on a terminal with
    colour. Cells are plain text: rich's markup in them is not interpreted.
    """
    from rich.box import Box  # here, because it is slow to import
    from rich.cells import cell_len
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    cells = [[printable(cell).replace("\n", " ") for cell in row] for row in [headers, *rows]]
    widths = [max(cell_len(row[index]) for row in cells) for index in range(len(headers))]
    others = sum(widths[1:]) + 2 * (len(widths) - 1)
    widths[0] = min(widths[0], max(MIN_FIRST_COLUMN, text_width(sys.stdout) - others))
    header_rule = Box("    \n    \n" + 4 * rule + "\n" + 5 * "    \n")
    layout = Table(box=header_rule, show_edge=False, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for index, (header, width) in enumerate(zip(cells[0], widths, strict=True)):
        justify = "right" if index else "left"
        layout.add_column(Text(header), justify=justify, min_width=width, max_width=width, no_wrap=True)  # type: ignore[arg-type]
    for first, *rest in cells[1:]:
        layout.add_row(Text(shortened(first, widths[0])), *map(Text, rest))
    colour = use_colour(sys.stdout)
    console = Console(
        file=io.StringIO(), width=widths[0] + others, force_terminal=colour, no_color=not colour, highlight=False
    )
    with console.capture() as capture:
        console.print(layout)
    return "\n".join(line.rstrip() for line in capture.get().splitlines())


def shortened(text: str, width: int) -> str:
    """A text of at most `width` columns; a longer one keeps its end, because the end of a path says the most."""
    from rich.cells import cell_len

    if cell_len(text) <= width:
        return text
    end = text[max(0, len(text) - width + 1) :]
    while cell_len(end) > width - 1:
        end = end[1:]
    return "…" + end


def progress_label(command: str, policy: str) -> str:
    """The label of a progress line: of a long path its end, in which policies differ."""
    return f"{command} {shortened(policy, MAX_LABEL_CHARACTERS - len(command) - 1)}"


def percent(value: float | None, signed: bool = False, digits: int = 1) -> str:
    """A share as "83.2 %", the one spelling in every output; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "–"
    return f"{100 * value:{'+' if signed else ''}.{digits}f} %"


def percent_interval(low: float | None, high: float | None) -> str:
    """Two shares as "[79.4, 86.7]", written after a `percent`."""
    return f"[{percent(low).removesuffix(' %')}, {percent(high).removesuffix(' %')}]"


def counted(count: int, noun: str) -> str:
    """A count with its noun: "1 run", "2 runs"."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def number(value: float | None, signed: bool = False) -> str:
    """Three digits after the point, fewer for large numbers; a dash for None and NaN."""
    if value is None or math.isnan(value):
        return "–"
    digits = 3 if abs(value) < 10 else 2 if abs(value) < 1000 else 0
    return f"{value:+.{digits}f}" if signed else f"{value:.{digits}f}"


def p_text(value: float) -> str:
    """A p-value: four digits, or in powers of ten below 0.001."""
    return f"{value:.4f}" if value >= 0.001 else f"{value:.1e}"
