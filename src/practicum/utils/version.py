"""Which code made a run: the package's version and, where it runs from a Git checkout, the commit."""

from __future__ import annotations

import functools
import platform
import subprocess
from pathlib import Path
from typing import Any

from practicum import __version__

PACKAGE = Path(__file__).parent.parent
GIT_TIMEOUT_SECONDS = 10.0


@functools.cache
def source_version() -> dict[str, Any]:
    """Version of the package and of Python; `commit` is null where the package is not under Git, `changed` says whether
    files of the package differ from that commit."""
    tracked = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    commit = _git("rev-parse", "HEAD") if tracked else None
    changed = bool(_git("status", "--porcelain", "--", ".")) if commit else None
    return {"practicum": __version__, "commit": commit, "changed": changed, "python": platform.python_version()}


def _git(*arguments: str) -> str | None:
    """The output of a Git command in the package's folder; None where it fails."""
    try:
        result = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments],
            capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()
