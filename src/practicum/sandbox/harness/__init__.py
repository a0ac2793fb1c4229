"""Programs that run inside sandboxes to try out a candidate program: handed over as text, never imported there."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def program_text(name: str) -> str:
    """The text of one of these programs, with `values.py` before it."""
    folder = Path(__file__).parent
    return "\n".join((folder / f"{part}.py").read_text(encoding="utf-8") for part in ("values", name))
