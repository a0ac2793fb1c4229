"""One task enters few enough files that a reader can follow it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

WALK = Path(__file__).parents[1] / "benchmarks" / "walk.py"


@pytest.mark.slow
def test_a_task_enters_few_files_from_the_command_to_the_checkpoint() -> None:
    done = subprocess.run([sys.executable, WALK], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
