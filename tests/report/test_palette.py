"""The colours of curves: whoever sees fewer colours can tell them apart, on the light and on the dark page."""

from __future__ import annotations

import re
from itertools import combinations

import numpy as np
import pytest

from practicum.report.page import asset

Array = np.ndarray[tuple[int, ...], np.dtype[np.float64]]

VISIONS = {
    "all colours": np.eye(3),
    "protanopia": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]],
    "deuteranopia": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]],
    "tritanopia": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602], [0.004733, 0.691367, 0.303900]],
}
"""On linear RGB (Machado, Oliveira and Fernandes 2009, full severity)."""
TO_XYZ = np.array([[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]])
WHITE = np.array([0.95047, 1.0, 1.08883])
MIN_DISTANCE = 20.0
"""Of CIE 1976 L*a*b*: 2 is just visible side by side."""


def linear(text: str) -> Array:
    values = np.array([int(text[at : at + 2], 16) for at in (1, 3, 5)]) / 255
    return np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)


def cie_lab(rgb: Array) -> Array:
    xyz = TO_XYZ @ np.clip(rgb, 0, 1) / WHITE
    f = np.where(xyz > 0.008856, np.cbrt(xyz), 7.787 * xyz + 16 / 116)
    return np.array([116 * f[1] - 16, 500 * (f[0] - f[1]), 200 * (f[1] - f[2])])


def palettes() -> list[dict[str, str]]:
    """The variables of the light page and of the two places of the dark one."""
    return [
        dict(re.findall(r"--(\w+): (#\w{6})", block))
        for block in re.split(r"\n +color-scheme:", asset("style.css"))[1:]
    ]


@pytest.mark.parametrize("vision", VISIONS)
def test_curves_can_be_told_apart(vision: str) -> None:
    all_palettes = palettes()
    assert len(all_palettes) == 3
    assert all_palettes[1] == all_palettes[2]
    for variables in all_palettes:
        colours = [cie_lab(np.array(VISIONS[vision]) @ linear(variables[f"c{index}"])) for index in range(6)]
        assert min(float(np.linalg.norm(a - b)) for a, b in combinations(colours, 2)) >= MIN_DISTANCE


def test_curves_are_seen_on_their_background() -> None:
    for variables in palettes():
        back = float(TO_XYZ[1] @ linear(variables["card"]))
        for index in range(6):
            light = float(TO_XYZ[1] @ linear(variables[f"c{index}"]))
            assert (max(light, back) + 0.05) / (min(light, back) + 0.05) >= 3.0
