"""Programs that run inside sandboxes to test a candidate program; they are passed as text and not imported there."""

from __future__ import annotations

import functools
from pathlib import Path


@functools.cache
def program_text(name: str) -> str:
    """Return the text of one of these programs, preceded by `values.py`."""
    folder = Path(__file__).parent
    return "\n".join((folder / f"{part}.py").read_text(encoding="utf-8") for part in ("values", name))
