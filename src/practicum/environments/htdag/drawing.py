"""Drawings of a TaskDAG: a tree for a terminal, SVG, and PNG (which needs matplotlib)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path

from practicum.data.run_folder import write_atomic
from practicum.environments.htdag.task_dag import COMPLETED, FAILED, Duration, TaskDAG, stated_duration
from practicum.errors import UserError
from practicum.utils.terminal import printable

BOX_WIDTH, BOX_HEIGHT, COLUMN_GAP, ROW_GAP, MARGIN, TITLE_HEIGHT = 132, 40, 44, 16, 16, 30
MAX_LABEL, MAX_TITLE = 20, 100
TEXT_COLOUR, LINE_COLOUR, CRITICAL_COLOUR, PARENT_COLOUR = "#1f2328", "#6e7781", "#bc4c00", "#57606a"
FILL: Mapping[str, str] = {COMPLETED: "#dafbe1", FAILED: "#ffebe9"}
DEFAULT_FILL = "#f6f8fa"


@dataclass(frozen=True, slots=True)
class Box:
    """A leaf on the drawing: its upper left corner, its text, the path of its parents."""

    x: float
    y: float
    label: str
    parents: str
    fill: str
    critical: bool


def tree_text(dag: TaskDAG) -> str:
    """Return the decomposition as an indented tree; each task says what it comes after."""
    lines: list[str] = []

    def walk(task_id: str, indent: str, branch: str, below: str) -> None:
        node = dag[task_id]
        after = dag.dependencies(task_id)
        order = f"  (after {', '.join(map(printable, after))})" if after else ""
        mark = {COMPLETED: " [done]", FAILED: " [failed]"}.get(node.status, "")
        lines.append(f"{indent}{branch}{printable(node.task_id)} {printable(node.label)}{order}{mark}")
        children = dag.children(task_id)
        for child in children:
            last = child == children[-1]
            walk(child, indent + below, "└─ " if last else "├─ ", "   " if last else "│  ")

    for root in dag.roots:
        walk(root, "", "", "")
    return "\n".join(lines)


def layout(dag: TaskDAG) -> dict[str, Box]:
    """Return the boxes of the leaves: columns by the longest chain before them, rows in the order of execution."""
    columns = dag.start_times(lambda node: 1.0)
    critical = set(dag.critical_path())
    rows: dict[int, int] = {}
    boxes = {}
    for leaf in dag.topological_order():
        column = round(columns[leaf])
        row = rows.get(column, 0)
        rows[column] = row + 1
        parents = [dag[parent].label for parent in dag.ancestors(leaf) if dag.parent(parent) is not None]
        boxes[leaf] = Box(
            MARGIN + column * (BOX_WIDTH + COLUMN_GAP),
            MARGIN + TITLE_HEIGHT + row * (BOX_HEIGHT + ROW_GAP),
            _cut(dag[leaf].label, MAX_LABEL),
            _cut(" / ".join(reversed(parents)), MAX_LABEL + 4),
            FILL.get(dag[leaf].status, DEFAULT_FILL),
            leaf in critical,
        )
    return boxes


def svg(dag: TaskDAG, title: str = "", duration: Duration = stated_duration) -> str:
    """Return the leaves and their precedences as SVG, the critical path in another colour."""
    boxes = layout(dag)
    width = max((box.x + BOX_WIDTH for box in boxes.values()), default=BOX_WIDTH) + MARGIN
    height = max((box.y + BOX_HEIGHT for box in boxes.values()), default=TITLE_HEIGHT) + MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}" '
        f'height="{height:g}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width:g}" height="{height:g}" fill="white"/>',
        f'<text x="{MARGIN}" y="{MARGIN + 8}" fill="{TEXT_COLOUR}">{_text(_caption(dag, title, duration))}</text>',
    ]
    for before, after in dag.leaf_edges():
        a, b = boxes[before], boxes[after]
        colour = CRITICAL_COLOUR if a.critical and b.critical else LINE_COLOUR
        x1, y1, x2, y2 = a.x + BOX_WIDTH, a.y + BOX_HEIGHT / 2, b.x, b.y + BOX_HEIGHT / 2
        bend = (x1 + x2) / 2
        parts.append(
            f'<path d="M{x1:g} {y1:g} C{bend:g} {y1:g} {bend:g} {y2:g} {x2:g} {y2:g}" fill="none" stroke="{colour}"/>'
        )
    for box in boxes.values():
        stroke = CRITICAL_COLOUR if box.critical else LINE_COLOUR
        parts.append(
            f'<rect x="{box.x:g}" y="{box.y:g}" width="{BOX_WIDTH}" height="{BOX_HEIGHT}" rx="6" fill="{box.fill}" '
            f'stroke="{stroke}"/>'
            f'<text x="{box.x + 8:g}" y="{box.y + 17:g}" fill="{TEXT_COLOUR}">{_text(box.label)}</text>'
            f'<text x="{box.x + 8:g}" y="{box.y + 32:g}" fill="{PARENT_COLOUR}" font-size="10">'
            f"{_text(box.parents)}</text>"
        )
    return "\n".join([*parts, "</svg>", ""])


def write_drawing(dag: TaskDAG, path: Path, title: str = "", duration: Duration = stated_duration) -> Path:
    """Write the drawing that the file's suffix names: `.svg`, `.png`, or `.txt` for the tree."""
    match path.suffix.lower():
        case ".svg":
            write_atomic(path, svg(dag, title, duration).encode())
        case ".txt":
            write_atomic(path, f"{_caption(dag, title, duration)}\n{tree_text(dag)}\n".encode())
        case ".png":
            _write_png(dag, path, _caption(dag, title, duration))
        case other:
            raise UserError(f"A drawing is .svg, .png or .txt, not '{other}'; rename '{path}'.")
    return path


def _write_png(dag: TaskDAG, path: Path, caption: str) -> None:
    try:
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
        from matplotlib.patches import FancyBboxPatch
    except ImportError:
        raise UserError("PNG drawings need matplotlib: pip install 'practicum[plots]'.") from None
    boxes = layout(dag)
    width = max((box.x + BOX_WIDTH for box in boxes.values()), default=BOX_WIDTH) + MARGIN
    height = max((box.y + BOX_HEIGHT for box in boxes.values()), default=TITLE_HEIGHT) + MARGIN
    figure = Figure(figsize=(width / 80, height / 80), dpi=160)
    FigureCanvasAgg(figure)
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(0, width)
    axes.set_ylim(height, 0)
    axes.axis("off")
    axes.text(MARGIN, MARGIN + 4, caption, fontsize=8, color=TEXT_COLOUR, parse_math=False)
    for before, after in dag.leaf_edges():
        a, b = boxes[before], boxes[after]
        colour = CRITICAL_COLOUR if a.critical and b.critical else LINE_COLOUR
        axes.plot((a.x + BOX_WIDTH, b.x), (a.y + BOX_HEIGHT / 2, b.y + BOX_HEIGHT / 2), color=colour, linewidth=1)
    for box in boxes.values():
        edge = CRITICAL_COLOUR if box.critical else LINE_COLOUR
        style = "round,pad=0,rounding_size=6"
        axes.add_patch(
            FancyBboxPatch((box.x, box.y), BOX_WIDTH, BOX_HEIGHT, boxstyle=style, facecolor=box.fill, edgecolor=edge)
        )
        axes.text(box.x + 8, box.y + 17, box.label, fontsize=7, color=TEXT_COLOUR, parse_math=False)
        axes.text(box.x + 8, box.y + 32, box.parents, fontsize=6, color=PARENT_COLOUR, parse_math=False)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Software": "practicum"})


def _caption(dag: TaskDAG, title: str, duration: Duration) -> str:
    figures = f"{len(dag.leaves)} steps, depth {dag.depth}, {dag.makespan(duration):g} s"
    return f"{_cut(title, MAX_TITLE)} ({figures})" if title else figures


def _cut(text: str, limit: int) -> str:
    text = " ".join(printable(text).split())
    return text if len(text) <= limit else text[: limit - 1] + "…"


def _text(text: str) -> str:
    return escape(text, quote=True)
