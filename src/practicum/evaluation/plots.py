"""Plots of a comparison: scores with intervals, differences, the Pareto frontier, learning curves.

Each is a PNG, an SVG and a PDF file, as wide as one or two columns of a paper.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from practicum.data.jsonl import iter_readable_objects
from practicum.errors import UserError
from practicum.evaluation.compare import PolicyComparison
from practicum.evaluation.learning_curve import smooth
from practicum.evaluation.stats.intervals import LEVEL
from practicum.evaluation.stats.pareto import frontier
from practicum.utils.tables import percent

TEXT_COLOUR, BETTER_COLOUR, WORSE_COLOUR, NEUTRAL_COLOUR = "#1f2328", "#1a7f37", "#cf222e", "#6e7781"
MARKERS = ("o", "s", "^", "D")
"""Marks of the first policies, as many as there are colours, of the next, and so on."""
COLOURS = ("#6e7781", "#1f6feb", "#bf8700", "#8250df", "#1a7f37", "#cf222e")
ONE_COLUMN_INCHES, TWO_COLUMNS_INCHES = 3.25, 6.75
MAX_ONE_COLUMN_MARKS = 8
"""Policies times environments that one column has space for."""
LEGEND_CHARACTERS, ROW_CHARACTERS, TWO_COLUMNS_ROW_CHARACTERS, NOTE_CHARACTERS = 22, 24, 40, 56
"""Characters of a line of a name in a legend and beside a row, and of a note; a longer one has several lines."""
NOTE_SIZE = 7
VALIDATION = ", validation"
LINE_INCHES = 0.13
"""Height of a line of a legend or of a row's name."""
STYLE: dict[Any, Any] = {
    "figure.dpi": 300,
    "font.size": 8,
    "svg.hashsalt": "practicum",  # the same file for the same results
    "pdf.fonttype": 42,  # TrueType, which journals ask for
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": NEUTRAL_COLOUR,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "axes.axisbelow": True,
    "legend.frameon": False,
}
METADATA: dict[str, dict[str, Any]] = {
    ".png": {"Software": "practicum"},
    ".svg": {"Creator": "practicum", "Date": None},
    ".pdf": {"Creator": "practicum", "CreationDate": None},
}


def draw(policy_comparison: PolicyComparison, folder: Path, level: float = LEVEL) -> list[Path]:
    """Write every plot for which these results have data; return the PNG files, beside which are SVG and PDF."""
    paths = [
        scores(policy_comparison, folder / "scores.png", level),
        differences(policy_comparison, folder / "differences.png"),
    ]
    if len(policy_comparison.panels) >= 2:
        paths.append(pareto(policy_comparison, folder / "pareto.png", level))
    curves = learning_curves(policy_comparison, folder / "curves.png")
    return [*paths, curves] if curves is not None else paths


def scores(policy_comparison: PolicyComparison, path: Path, level: float = LEVEL) -> Path:
    """Success of every policy in every environment: a dot with its interval."""
    policies, panels = policy_comparison.policies, policy_comparison.panels
    wide = len(policies) * len(panels) > MAX_ONE_COLUMN_MARKS
    names = [wrapped_name(policy.name, LEGEND_CHARACTERS) for policy in policies]
    columns = 3 if wide else 2
    size = (TWO_COLUMNS_INCHES if wide else ONE_COLUMN_INCHES, 2.2 + _legend_inches(names, columns))
    with _figure(path, size) as axes:
        width = min(0.3, 0.8 / len(policies))
        for number, policy in enumerate(policies):
            rates = [policy.results[panel].success_rate for panel in panels]
            limits = [policy.results[panel].interval(level) for panel in panels]
            positions = [index + (number - (len(policies) - 1) / 2) * width for index in range(len(panels))]
            # A mean of many attempts may lie a hair outside an interval of its rounding.
            errors = [
                [max(0.0, rate - i.low) for rate, i in zip(rates, limits, strict=True)],
                [max(0.0, i.high - rate) for rate, i in zip(rates, limits, strict=True)],
            ]
            colour, mark = _style(number)
            axes.errorbar(positions, rates, errors, fmt=mark, color=colour, markersize=4, elinewidth=1.2, capsize=2,
                          label=names[number])  # fmt: skip
        space = int((75 if wide else 32) / len(panels))
        axes.set_xticks(range(len(panels)), [_counted_label(policy_comparison, panel, space) for panel in panels])
        axes.set_xlim(-0.6, len(panels) - 0.4)
        axes.set_ylim(-0.02, 1.02)
        axes.yaxis.set_major_formatter(lambda value, _: percent(value, digits=0))
        axes.grid(axis="x", visible=False)
        axes.set_ylabel(f"success, {100 * level:g} % intervals")
        axes.figure.legend(loc="outside upper center", ncols=columns, fontsize=NOTE_SIZE)
    return path


def differences(policy_comparison: PolicyComparison, path: Path) -> Path:
    """Each policy's difference from the baseline with its interval; grey where it is not significant."""
    comparisons = list(policy_comparison.comparisons)
    several = len(policy_comparison.panels) > 1
    characters = TWO_COLUMNS_ROW_CHARACTERS if several else ROW_CHARACTERS
    names = [_row_name(policy_comparison, c.trained.policy, c.baseline.panel, characters) for c in comparisons]
    # A row is as high as its name, and at least two lines.
    heights = [max(2.0, 1.6 + name.count("\n")) for name in names]
    positions = [-sum(heights[:index]) - height / 2 for index, height in enumerate(heights)]
    base = wrapped_name(f"points above '{policy_comparison.policies[0].name}'", NOTE_CHARACTERS)
    size = TWO_COLUMNS_INCHES if several else ONE_COLUMN_INCHES, 0.9 + LINE_INCHES * (sum(heights) + base.count("\n"))
    with _figure(path, size) as axes:
        for position, comparison in zip(positions, comparisons, strict=True):
            delta = comparison.success
            colour = (
                NEUTRAL_COLOUR
                if not comparison.significant
                else BETTER_COLOUR
                if delta.difference > 0
                else WORSE_COLOUR
            )
            middle, low, high = (100 * x for x in (delta.difference, delta.interval.low, delta.interval.high))
            axes.plot([low, high], [position, position], color=colour, linewidth=1.6)
            axes.plot([middle], [position], "o", color=colour, markersize=4)
        axes.set_yticks(positions, names)
        axes.set_ylim(-sum(heights), 0)
        axes.axvline(0, color=TEXT_COLOUR, linewidth=0.8)
        axes.grid(axis="y", visible=False)
        level = 100 * comparisons[0].success.interval.level
        tasks = _count({comparison.success.num_tasks for comparison in comparisons})
        note = f"{base}\n{tasks}{level:.3g} % intervals; grey: no difference shown"
        axes.figure.supxlabel(note, fontsize=NOTE_SIZE)
    return path


def pareto(policy_comparison: PolicyComparison, path: Path, level: float = LEVEL) -> Path:
    """Success in the first two environments, with intervals; policies on the frontier of all are filled."""
    all_scores = {policy.name: policy.scores for policy in policy_comparison.policies}
    best = set(frontier(all_scores))
    first, second = list(policy_comparison.policies[0].scores)[:2]
    names = [wrapped_name(policy.name, LEGEND_CHARACTERS) for policy in policy_comparison.policies]
    with _figure(path, (ONE_COLUMN_INCHES, 2.8 + _legend_inches(names, 2))) as axes:
        for index, policy in enumerate(policy_comparison.policies):
            x, y = policy.scores[first], policy.scores[second]
            colour, mark = _style(index)
            face = colour if policy.name in best else "none"
            across, along = (policy.results[panel].interval(level) for panel in policy_comparison.panels[:2])
            axes.plot([across.low, across.high], [y, y], color=colour, linewidth=0.8, alpha=0.6)
            axes.plot([x, x], [along.low, along.high], color=colour, linewidth=0.8, alpha=0.6)
            axes.plot([x], [y], mark, color=colour, markerfacecolor=face, markersize=7, label=names[index])
        rest = len(policy_comparison.panels) - 2
        more = f"\n({rest} more environments decide too)" if rest else ""
        counts = [policy_comparison.policies[0].results[panel].num_tasks for panel in policy_comparison.panels[:2]]
        axes.set_xlabel(wrapped_name(f"success in {first}, n = {counts[0]}", 2 * LEGEND_CHARACTERS))
        axes.set_ylabel(wrapped_name(f"success in {second}, n = {counts[1]}", 2 * LEGEND_CHARACTERS))
        note = f"filled: on the Pareto frontier{more}\nlines: {100 * level:g} % intervals"
        axes.figure.suptitle(note, fontsize=NOTE_SIZE)
        axes.xaxis.set_major_formatter(lambda value, _: percent(value, digits=0))
        axes.yaxis.set_major_formatter(lambda value, _: percent(value, digits=0))
        axes.margins(0.12)
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=NOTE_SIZE)
    return path


def learning_curves(policy_comparison: PolicyComparison, path: Path) -> Path | None:
    """Training reward and validation success of the policies' runs; None where no run is known."""
    runs: dict[str, Path] = {}
    for policy in policy_comparison.policies:
        for result in policy.results.values():
            if result.settings.get("run"):
                runs[policy.name] = Path(str(result.settings["run"])) / "metrics.jsonl"
    plotted = {"reward/mean", "val/success/mean"}
    curves = {
        name: rows for name, file in runs.items() if (rows := [r for r in read_curve(file) if plotted & r.keys()])
    }
    if not curves:
        return None
    # A step of SFT is no step of RL: each has axes of its own.
    practised = {name for name, rows in curves.items() if any("reward/mean" in row for row in rows)}
    stages = [
        ("supervised fine-tuning", "success", [name for name in curves if name not in practised]),
        ("reinforcement learning", "mean reward (mean of 5 steps)", [name for name in curves if name in practised]),
    ]
    stages = [stage for stage in stages if stage[2]]  # fmt: skip
    colours = {name: COLOURS[(index + 1) % len(COLOURS)] for index, name in enumerate(curves)}
    counts = {int(row["val/n"]) for rows in curves.values() for row in rows if row.get("val/n")}
    columns = 3 - len(stages)
    legends = [[_curve_name(n) for n in names] + [_curve_name(n, VALIDATION) for n in names] for _, _, names in stages]
    size = (TWO_COLUMNS_INCHES, 2.6 + max(_legend_inches(names, columns) for names in legends))
    with _figure(path, size) as first:
        figure = first.figure
        first.remove()
        for axes, (title, quantity, names) in zip(
            figure.subplots(1, len(stages), squeeze=False)[0], stages, strict=True
        ):
            for name in names:
                _draw_curve(axes, name, curves[name], colours[name])
            axes.set_xlabel(f"training step, {title}")
            axes.set_ylabel(quantity)
            # Above the axes, so that it covers no curve.
            axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), fontsize=NOTE_SIZE, ncols=columns)
        if any("val/success/mean" in row for rows in curves.values() for row in rows):
            figure.supxlabel(f"validation: {_count(counts)}95 % intervals", fontsize=NOTE_SIZE)
    return path


def _draw_curve(axes: Any, name: str, rows: list[dict[str, float]], colour: str) -> None:
    """Draw a run's reward and its validations with their intervals."""
    trained = [(row["step"], row["reward/mean"]) for row in rows if "reward/mean" in row]
    if trained:
        steps, values = zip(*trained, strict=True)
        axes.plot(steps, values, ".", color=colour, alpha=0.3, markersize=3)
        axes.plot(steps, smooth(values, 5), color=colour, linewidth=1.6, label=_curve_name(name))
    checked = [row for row in rows if "val/success/mean" in row]
    if checked:
        val_steps, means = [row["step"] for row in checked], [row["val/success/mean"] for row in checked]
        below = [max(0.0, row["val/success/mean"] - row["val/success/low"]) for row in checked]
        above = [max(0.0, row["val/success/high"] - row["val/success/mean"]) for row in checked]
        axes.errorbar(val_steps, means, [below, above], fmt="s--", color=colour, markersize=3, linewidth=0.8,
                      capsize=2, label=_curve_name(name, VALIDATION))  # fmt: skip


def read_curve(path: Path) -> list[dict[str, float]]:
    """The rows of a metrics file, without damaged lines; none where there is no such file."""
    return [
        {name: value for name, value in row.items() if isinstance(value, (int, float))}
        for row in iter_readable_objects(path)
        if isinstance(row.get("step"), int)
    ]


def _style(number: int) -> tuple[str, str]:
    """Colour and mark of a policy."""
    return COLOURS[number % len(COLOURS)], MARKERS[number // len(COLOURS) % len(MARKERS)]


def _label(policy_comparison: PolicyComparison, panel: str) -> str:
    policy = policy_comparison.policies[0]
    return policy.label(policy.results[panel])


def _counted_label(policy_comparison: PolicyComparison, panel: str, characters: int) -> str:
    """The environment's name, and on how many tasks each policy was evaluated."""
    name = wrapped_name(_label(policy_comparison, panel), characters)
    return f"{name}\nn = {policy_comparison.policies[0].results[panel].num_tasks}"


def _row_name(policy_comparison: PolicyComparison, policy: str, panel: str, characters: int) -> str:
    name = policy if len(policy_comparison.panels) == 1 else f"{policy}, {_label(policy_comparison, panel)}"
    return wrapped_name(name, characters)


def wrapped_name(name: str, characters: int) -> str:
    """Break a name into lines of a maximal length, after a separator where it has one; nothing is left out."""
    pieces = re.findall(r"[^\s/_:,-]*[\s/_:,-]|[^\s/_:,-]+", name)
    lines = [""]
    for piece in pieces:
        if len(lines[-1] + piece.rstrip()) > characters:
            lines.append("")
        while len(piece.rstrip()) > characters:
            lines[-1], piece = piece[:characters], piece[characters:]
            lines.append("")
        lines[-1] += piece
    return "\n".join(line.rstrip() for line in lines if line)


def _legend_inches(names: Sequence[str], columns: int) -> float:
    """Height of a legend of these names, which is filled column by column."""
    rows = -(-len(names) // columns)
    heights = [LINE_INCHES * (1.5 + name.count("\n")) for name in names]
    return max(sum(heights[first : first + rows]) for first in range(0, len(names), rows))


def _curve_name(name: str, suffix: str = "") -> str:
    return wrapped_name(name + suffix, ROW_CHARACTERS)


def _count(counts: set[int]) -> str:
    return "" if not counts else f"n = {min(counts)}{f' to {max(counts)}' if len(counts) > 1 else ''}, "


@contextlib.contextmanager
def _figure(path: Path, size: tuple[float, float]) -> Iterator[Any]:
    """Axes to draw on; the file is written unless drawing raises."""
    try:
        import matplotlib
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure
    except ImportError:
        raise UserError("Plots need matplotlib: pip install 'practicum[plots]'.") from None
    # No pyplot: it keeps figures alive and looks for a screen. A dollar sign in a name does not start a formula.
    with matplotlib.rc_context({**STYLE, "text.parse_math": False}):
        figure = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure.add_subplot()
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            for suffix, metadata in METADATA.items():
                figure.savefig(path.with_suffix(suffix), metadata=metadata)
        except OSError as error:
            raise UserError(f"Cannot write '{path}': {error.strerror}; choose another --plots.") from None
