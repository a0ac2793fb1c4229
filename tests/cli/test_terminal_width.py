"""Commands in a terminal of 80 columns: nothing is wider, and neither NO_COLOR nor a pipe gets escapes."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.cli.main import COMMANDS
from tests.cli.terminal import MARK, environment, in_terminal, screen_lines

HELP = [["--help"], *([name, "--help"] for name in COMMANDS)]
SHORT = [
    ["envs"],
    ["collect", "--env", "math", "--policy", "random", "--tasks", "6", "--out", "runs"],
    ["eval", "--env", "math", "--policy", "random", "--tasks", "12", "--out", "random.json"],
    ["eval", "--env", "math", "--policy", "expert", "--tasks", "12", "--out", "expert.json"],
    ["compare", "random.json", "expert.json"],
    ["show", "runs"],
    ["report", "runs", "-o", "report.html"],
    ["eval", "--env", "nonsense", "--policy", "x"],
]
SMALL = ["trainer.total_training_steps=2", "data.train_batch_size=2", "data.val_batch_size=4", "agent.num_chains=2",
         "agent.max_turns=2", "trainer.test_freq=1", "actor_rollout_ref.rollout.response_length=16",
         "trainer.experiment_name=a"]  # fmt: skip
LONG = [["envs", "check", "math"], ["train", "recipe=math-tiny", *SMALL], ["report", "runs", "-o", "report.html"]]
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


def too_wide(data: bytes, width: int) -> list[str]:
    lines = screen_lines(data)
    assert sum(line.startswith(MARK) for line in lines) > 0
    return [line for line in lines if len(line) > width and not line.startswith(MARK)]


def test_every_command_fits_80_columns(tmp_path: Path) -> None:
    data = in_terminal([*HELP, *SHORT], tmp_path)
    assert too_wide(data, 80) == []
    assert "is better than" in data.decode()
    assert COLOUR.search(data)  # on a terminal there is colour


def test_without_colour_and_in_a_pipe_there_are_no_escapes(tmp_path: Path) -> None:
    data = in_terminal(SHORT[1:5], tmp_path, NO_COLOR="1")
    assert not COLOUR.search(data)
    for command in SHORT[4:6]:
        done = subprocess.run(
            [sys.executable, "-m", "practicum.cli", *command], cwd=tmp_path, capture_output=True, env=environment({})
        )
        assert b"\x1b" not in done.stdout + done.stderr
        assert done.stdout


@pytest.mark.slow
def test_a_training_fits_80_columns(tmp_path: Path) -> None:
    data = in_terminal(LONG, tmp_path)
    assert too_wide(data, 80) == []
    assert "validation: " in data.decode()
