"""The Affine environments give the same episodes in another process."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.sandbox import base
from tests.environments.affine import affine_episodes


def test_another_process_plays_the_same_episodes() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"  # another order of sets than in this process
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    command = [sys.executable, "-m", "tests.environments.affine.affine_episodes"]
    root = Path(__file__).parents[3]
    child = subprocess.run(command, capture_output=True, text=True, check=True, env=environment, cwd=root)
    assert child.stdout.strip() == affine_episodes.episodes()
    assert "x1=" in child.stdout
