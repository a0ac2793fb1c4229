"""The pictures of the docs: parts of a report in Chromium, and a recorded terminal as an SVG that moves.

    python benchmarks/pictures.py page REPORT.html docs/images
    python benchmarks/pictures.py record 80x40 demo.cast bash demo.sh
    python benchmarks/pictures.py terminal demo.cast docs/images/terminal.svg

A recording is an asciicast (version 2): what a program wrote to a terminal, and when. Pauses are cut to half a second.
Needs Chromium (/usr/bin/chromium) and playwright; `terminal` needs pyte, which nothing else here does.
"""

from __future__ import annotations

import argparse
import codecs
import fcntl
import html
import json
import os
import pty
import struct
import sys
import termios
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

FLAGS = ["--no-sandbox", "--disable-gpu", "--no-first-run"]
DESKTOP, PHONE = {"width": 1280, "height": 860}, {"width": 390, "height": 844}
SETTLE_MS = 900
MAX_PAUSE_SECONDS, MIN_FRAME_SECONDS, LAST_FRAME_SECONDS = 0.5, 0.3, 5.0
CELL_WIDTH, LINE_HEIGHT, FONT_SIZE, MARGIN = 7.85, 17, 13, 12
COLOURS = {"red": "#e5786d", "green": "#8ac58a", "brown": "#d9b36c", "blue": "#7aa6da", "magenta": "#c49ad9",
           "cyan": "#73c2c9", "default": "#e4e8ea"}  # fmt: skip
BACKGROUND, DIM = "#14181b", "#7d878e"


def page_pictures(report: Path, out: Path) -> None:
    """The first row of the report at twice the size, its views, and the same on a phone."""
    from playwright.sync_api import sync_playwright

    def shown(fragment: str, **options: Any) -> Any:
        page = browser.new_context(**{"viewport": DESKTOP, **options}).new_page()
        page.goto(report.resolve().as_uri() + fragment)
        page.wait_for_timeout(SETTLE_MS)
        page.evaluate("document.querySelector('.bar').style.position = 'static'")  # else it lies over tall parts
        return page

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=FLAGS)
        page = shown("", device_scale_factor=2)
        page.evaluate(
            "document.querySelectorAll('#result > .result ~ *').forEach((node) => node.remove())"
        )  # the first row
        page.locator("#result").screenshot(path=out / "report-result.png")
        page.close()
        page = shown("")
        page.screenshot(path=out / "report-overview.png")
        page.locator("#curves").scroll_into_view_if_needed()
        page.locator("section[aria-label='Learning curves']").screenshot(path=out / "report-curves.png")
        page.locator("#failures").screenshot(path=out / "report-tables.png")
        page.goto(report.resolve().as_uri() + "#/episodes")
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=out / "report-episodes.png")
        page.goto(report.resolve().as_uri() + "#/compare")
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=out / "report-compare.png")
        page.locator("#tasks tbody tr").first.click()
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=out / "report-side.png")
        shown("", viewport=PHONE, color_scheme="dark").screenshot(path=out / "report-phone.png")
        page = shown("#/episodes")
        page.locator(".list .row").first.click()
        page.keyboard.press("l")
        page.wait_for_timeout(SETTLE_MS)
        page.screenshot(path=out / "report-episode.png")
        browser.close()


def record(columns: int, rows: int, out: Path, command: Sequence[str]) -> int:
    """Run a command in a terminal of its own and write what it prints there, with times."""
    child, terminal = pty.fork()
    if child == 0:
        os.execvp(command[0], list(command))
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    decode, started = codecs.getincrementaldecoder("utf-8")("replace").decode, time.monotonic()
    with out.open("w") as file:
        file.write(json.dumps({"version": 2, "width": columns, "height": rows}) + "\n")
        while True:
            try:
                piece = os.read(terminal, 65536)
            except OSError:  # how a closed terminal ends
                break
            if not piece:
                break
            file.write(json.dumps([time.monotonic() - started, "o", decode(piece)]) + "\n")
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def frames(cast: Path) -> Iterator[tuple[float, list[list[Any]]]]:
    """The screens of a recording with the time at which each appears."""
    import pyte

    lines = cast.read_text().splitlines()
    head = json.loads(lines[0])
    screen = pyte.Screen(head["width"], head["height"])
    stream = pyte.Stream(screen)
    now, before, shown = 0.0, 0.0, -1.0
    for line in lines[1:]:
        at, _, text = json.loads(line)
        now, before = now + min(at - before, MAX_PAUSE_SECONDS), at
        stream.feed(text)
        if now - shown >= MIN_FRAME_SECONDS:
            shown = now
            yield now, cells_of(screen)
    yield now, cells_of(screen)


def cells_of(screen: Any) -> list[list[Any]]:
    return [[screen.buffer[row][column] for column in range(screen.columns)] for row in range(screen.lines)]


def line_svg(cells: Sequence[Any]) -> str:
    """One line of the screen: a text for each run of cells that look alike."""
    pieces, start = [], 0
    while start < len(cells):
        end = start
        look = (cells[start].fg, cells[start].bold)
        while end < len(cells) and (cells[end].fg, cells[end].bold) == look:
            end += 1
        text = "".join(cell.data for cell in cells[start:end])
        if text.strip():
            colour = COLOURS.get(look[0], f"#{look[0]}" if len(look[0]) == 6 else DIM)
            weight = ' font-weight="bold"' if look[1] else ""
            pieces.append(f'<text x="{MARGIN + start * CELL_WIDTH:.1f}" fill="{colour}"{weight} '
                          f'textLength="{len(text) * CELL_WIDTH:.1f}">{html.escape(text)}</text>')  # fmt: skip
        start = end
    return "".join(pieces)


def terminal_picture(cast: Path, out: Path) -> None:
    """The recording as one SVG: screens below each other, of which one is visible at a time."""
    screens = list(frames(cast))
    columns, rows = len(screens[0][1][0]), len(screens[0][1])
    width, height = round(2 * MARGIN + columns * CELL_WIDTH), 2 * MARGIN + rows * LINE_HEIGHT
    terms: dict[str, int] = {}
    strips, times = [], []
    for index, (at, screen) in enumerate(screens):
        times.append(at)
        for row, cells in enumerate(screen):
            line = line_svg(cells)
            if line:
                term_index = terms.setdefault(line, len(terms))
                strips.append(
                    f'<use href="#l{term_index}" y="{index * height + MARGIN + (row + 0.8) * LINE_HEIGHT:.0f}"/>'
                )
    total, last = times[-1] + LAST_FRAME_SECONDS, (len(screens) - 1) * height
    moves = "".join(
        f"{100 * at / total:.3f}%{{transform:translateY(-{index * height}px)}}" for index, at in enumerate(times)
    )
    lines = "".join(f'<g id="l{index}">{line}</g>' for line, index in terms.items())
    out.write_text(
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" aria-label="A recorded terminal"><style>@keyframes roll{{{moves}}}'
        f".roll{{animation:roll {total:.2f}s steps(1,end) infinite}}"
        f"@media(prefers-reduced-motion:reduce){{.roll{{animation:none;transform:translateY(-{last}px)}}}}"
        f"text{{font:{FONT_SIZE}px ui-monospace,Menlo,Consolas,'DejaVu Sans Mono',monospace;white-space:pre}}</style>"
        f'<rect width="{width}" height="{height}" rx="8" fill="{BACKGROUND}"/><defs>{lines}</defs>'
        f'<svg width="{width}" height="{height}"><g class="roll">{"".join(strips)}</g></svg></svg>\n'
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=("page", "record", "terminal"))
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    first, second, *rest = args.arguments
    if args.kind == "page":
        page_pictures(Path(first), Path(second))
    elif args.kind == "terminal":
        terminal_picture(Path(first), Path(second))
    else:
        columns, rows = (int(size) for size in first.split("x"))
        sys.exit(record(columns, rows, Path(second), rest))


if __name__ == "__main__":
    main()
