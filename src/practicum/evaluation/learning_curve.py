"""A learning curve as one self-contained HTML page: SVG, no script, no network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from practicum.utils.tables import percent

WIDTH, HEIGHT, LEFT, BOTTOM, TOP, RIGHT = 760, 360, 56, 44, 20, 24


@dataclass(frozen=True)
class Mark:
    """A score with its interval, drawn as a horizontal band."""

    label: str
    value: float
    low: float
    high: float
    colour: str


def smooth(values: Sequence[float], window: int) -> list[float]:
    """The mean over the last `window` values at each position."""
    return [
        sum(values[max(0, i - window + 1) : i + 1]) / len(values[max(0, i - window + 1) : i + 1])
        for i in range(len(values))
    ]


def learning_curve(
    title: str, subtitle: str, values: Sequence[float], marks: Sequence[Mark], notes: Sequence[str]
) -> str:
    """The page: success rate by training step, with held-out scores as bands."""
    last = max(1, len(values) - 1)

    def x(step: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * step / last

    def y(value: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (1 - value)

    parts = []
    for tick in (0.0, 0.25, 0.5, 0.75, 1.0):
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" class="grid"/>')
        parts.append(f'<text x="{LEFT - 8}" y="{y(tick) + 4:.1f}" text-anchor="end">{percent(tick, digits=0)}</text>')
    for step in sorted({0, last // 4, last // 2, 3 * last // 4, last}):
        parts.append(f'<text x="{x(step):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{step + 1}</text>')
    for mark in marks:
        top, height = y(mark.high), max(1.0, y(mark.low) - y(mark.high))
        middle, right, colour = y(mark.value), WIDTH - RIGHT, mark.colour
        box = f'x="{LEFT}" y="{top:.1f}" width="{right - LEFT}" height="{height:.1f}"'
        parts.append(f'<rect {box} fill="{colour}" opacity="0.18"/>')
        ends = f'x1="{LEFT}" x2="{right}" y1="{middle:.1f}" y2="{middle:.1f}"'
        parts.append(f'<line {ends} stroke="{colour}" stroke-width="1.5"/>')
        label = f"{escape(mark.label)} {percent(mark.value)}"
        position = f'x="{right - 4}" y="{middle - 5:.1f}" text-anchor="end"'
        parts.append(f'<text {position} fill="{colour}">{label}</text>')
    dots = "".join(f'<circle cx="{x(i):.1f}" cy="{y(v):.1f}" r="1.8" class="dot"/>' for i, v in enumerate(values))
    line = " ".join(f"{x(i):.1f},{y(v):.1f}" for i, v in enumerate(smooth(values, 5)))
    parts.append(f'{dots}<polyline points="{line}" class="line"/>')
    parts.append(f'<text x="{(LEFT + WIDTH) / 2:.0f}" y="{HEIGHT - 6}" text-anchor="middle">GRPO step</text>')
    rows = "".join(f"<li>{escape(note)}</li>" for note in notes)
    return f"""<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
 :root {{ color-scheme: light dark; }}
 body {{ font: 15px/1.5 system-ui, sans-serif; max-width: 800px; margin: 2rem auto; padding: 0 1rem; }}
 svg {{ width: 100%; height: auto; font: 12px system-ui, sans-serif; }}
 svg text {{ fill: currentColor; }} .grid {{ stroke: currentColor; opacity: .15; }}
 .dot {{ fill: #7a7a7a; opacity: .5; }} .line {{ fill: none; stroke: #1f6feb; stroke-width: 2.2; }}
</style>
<h1>{escape(title)}</h1><p>{escape(subtitle)}</p>
<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="success rate by training step">{"".join(parts)}</svg>
<p>Dots: success of each step's own rollouts at temperature 1; line: their mean over five steps; bands: held-out
scores with 95 % intervals.</p><ul>{rows}</ul></html>
"""
