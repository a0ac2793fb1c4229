"""Pictures: they are there, of the size they should have, and show what they are given."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from practicum.evaluation.compare import compare_policies
from practicum.evaluation.plots import draw, wrapped_name
from practicum.evaluation.policy_results import PolicyResults
from practicum.evaluation.result import EvalResult

Make = Callable[..., EvalResult]


pytest.importorskip("matplotlib")


def pixels(path: Path) -> np.ndarray:
    import matplotlib.image

    return np.asarray(matplotlib.image.imread(path))


def test_every_picture(make_result: Make, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text(
        "".join(
            json.dumps({"step": n, "reward/mean": n / 20, "val/success/mean": 0.5, "val/success/low": 0.4,
                        "val/success/high": 0.6}) + "\n"
            for n in range(20)
        )
    )  # fmt: skip
    entries = []
    for name, share in (("base_$x^2", 3), ("sft", 6), ("rl", 9)):
        run = {"run": str(tmp_path)} if name == "rl" else {}
        results = [
            make_result(name, [1] * share + [0] * (10 - share), panel="x", settings=run),
            make_result(name, [1] * (10 - share) + [0] * share, panel="y", environment="sat"),
        ]
        entries.append(PolicyResults(name, {r.panel: r for r in results}))
    created = draw(compare_policies(entries), tmp_path / "out")
    assert [path.name for path in created] == ["scores.png", "differences.png", "pareto.png", "curves.png"]
    for path in created:
        picture = pixels(path)
        assert picture.shape[1] in (975, 2025)  # 3.25 or 6.75 inches at 300 dots each
        assert picture.std() > 0.05  # not an empty sheet
        assert path.with_suffix(".pdf").read_bytes().startswith(b"%PDF")
        assert "<svg" in path.with_suffix(".svg").read_text()


def test_a_picture_shows_its_numbers(make_result: Make, tmp_path: Path) -> None:
    def shown(share: int) -> np.ndarray:
        entries = [
            PolicyResults(n, {"p": make_result(n, [1] * k + [0] * (20 - k), panel="p")})
            for n, k in (("a", 10), ("b", share))
        ]
        created = draw(compare_policies(entries), tmp_path / str(share))
        assert [path.name for path in created] == ["scores.png", "differences.png"]
        return pixels(created[0])[:, :, :3]

    blue = np.array([0x1F, 0x6F, 0xEB]) / 255

    def height(share: int) -> float:
        """The row of the dot in the middle of its interval: the lowest run of rows that are wide and many."""
        wide = (np.abs(shown(share) - blue).max(axis=2) < 0.02).sum(axis=1) >= 8
        edges = np.flatnonzero(np.diff(np.concatenate([[False], wide, [False]]).astype(int))).reshape(-1, 2)
        dots = [(first + last) / 2 for first, last in edges if last - first >= 9]
        return float(dots[-1])

    heights = {share: height(share) for share in (5, 10, 20)}
    assert heights[10] - heights[20] == pytest.approx(2 * (heights[5] - heights[10]), rel=0.03)
    assert heights[5] - heights[10] > 50


def test_steps_of_sft_and_rl_have_axes_of_their_own(make_result: Make, tmp_path: Path) -> None:
    validation = {"val/success/mean": 0.5, "val/success/low": 0.4, "val/success/high": 0.6}
    entries = []
    for name, more in (("sft", {}), ("rl", {"reward/mean": 0.5})):
        (tmp_path / name).mkdir()
        rows = "".join(json.dumps({"step": n, **validation, **more}) + "\n" for n in range(5))
        (tmp_path / name / "metrics.jsonl").write_text(rows)
        result = make_result(name, [1, 0] * 5, panel="p", settings={"run": str(tmp_path / name)})
        entries.append(PolicyResults(name, {"p": result}))
    curves = draw(compare_policies(entries), tmp_path / "both")[-1].with_suffix(".svg").read_text()
    assert curves.count('id="axes_') == 2
    assert "training step, supervised fine-tuning" in curves
    assert "training step, reinforcement learning" in curves
    (tmp_path / "sft" / "metrics.jsonl").unlink()
    curves = draw(compare_policies(entries), tmp_path / "one")[-1].with_suffix(".svg").read_text()
    assert curves.count('id="axes_') == 1


@pytest.mark.filterwarnings("error")
def test_a_run_without_rewards_has_no_curve(make_result: Make, tmp_path: Path) -> None:
    (tmp_path / "metrics.jsonl").write_text('{"step": 1, "loss": 0.5}\n')
    settings = {"run": str(tmp_path)}
    entries = [
        PolicyResults(name, {"p": make_result(name, [1, 0] * 5, panel="p", settings=settings)}) for name in ("a", "b")
    ]
    created = draw(compare_policies(entries), tmp_path / "out")
    assert [path.name for path in created] == ["scores.png", "differences.png"]


LONG = "runs/experiments/2026-11-19/grpo-without-kl/lr-2e-4_seed-1"


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(("policies", "environments"), [(2, 1), (12, 1), (7, 4)])
def test_no_label_is_cut_or_lies_over_another(
    policies: int, environments: int, make_result: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of long names: each label is complete and lies within the picture."""
    import matplotlib.figure
    from matplotlib.text import Text

    seen: dict[str, dict[Any, Any]] = {}
    sizes: dict[str, Any] = {}

    def saved(figure: Any, path: Path, **options: Any) -> None:
        if path.stem in seen:
            return
        figure.draw_without_rendering()
        ticks = [(tick, sorted(axis.get_view_interval())) for axes in figure.axes for axis in (axes.xaxis, axes.yaxis)
                 for tick in axis.get_major_ticks()]  # fmt: skip
        beyond = {tick.label1 for tick, (low, high) in ticks if not low <= tick.get_loc() <= high}  # not drawn
        texts = [t for t in figure.findobj(Text) if t.get_visible() and t.get_text().strip() and t not in beyond]
        seen[path.stem] = {text: text.get_window_extent() for text in texts}
        sizes[path.stem] = figure.bbox

    monkeypatch.setattr(matplotlib.figure.Figure, "savefig", saved)
    row = {"reward/mean": 0.5, "val/success/mean": 0.5, "val/success/low": 0.4, "val/success/high": 0.6, "val/n": 30}
    (tmp_path / "metrics.jsonl").write_text("".join(json.dumps({"step": n, **row}) + "\n" for n in range(9)))
    names = ["base", *(f"{LONG}/{number}" for number in range(policies - 1))]
    panels = {f"panel-{n}": f"agentgym:environment-{n}" for n in range(environments)}
    settings = {"run": str(tmp_path)}
    entries = [
        PolicyResults(
            name,
            {p: make_result(name, [1, 0] * 10, panel=p, environment=e, settings=settings) for p, e in panels.items()},
        )
        for name in names
    ]
    draw(compare_policies(entries), tmp_path / "out")
    assert set(seen) == {"scores", "differences", "curves"} | ({"pareto"} if environments > 1 else set())
    for picture, boxes in seen.items():
        cut = [text.get_text() for text, box in boxes.items() if min(box.x0, box.y0) < 0 or
               box.x1 > sizes[picture].width or box.y1 > sizes[picture].height]  # fmt: skip
        assert cut == [], picture
        over = [(a.get_text(), b.get_text()) for a, b in combinations(boxes, 2) if boxes[a].overlaps(boxes[b])]
        assert over == [], picture
        written = "".join("".join(text.get_text() for text in boxes).split())
        assert "n=" in written
        assert "95%intervals" in written
        assert [name for name in names[1:] if name not in written] == []


def test_a_name_is_broken_after_a_separator_and_stays_complete() -> None:
    assert wrapped_name("runs/sft-2", 24) == "runs/sft-2"
    assert wrapped_name(LONG, 24).split("\n") == ["runs/experiments/2026-", "11-19/grpo-without-kl/", "lr-2e-4_seed-1"]
    assert wrapped_name("x" * 30, 12).split("\n") == [12 * "x", 12 * "x", 6 * "x"]
    assert wrapped_name("the best of all", 9) == "the best\nof all"
