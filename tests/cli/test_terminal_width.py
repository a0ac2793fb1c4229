"""Commands in a terminal of 80 columns: nothing is wider, and neither NO_COLOR nor a pipe gets escapes."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.cli.main import COMMANDS
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.quickstart import LEVELS, default_plan, table
from practicum.registry import ENVIRONMENTS
from practicum.trajectory import Outcome
from tests.cli.terminal import MARK, RUNNER, environment, in_terminal, screen_lines

REPOSITORY = Path(__file__).parents[2]
HELP = [["--help"], *([name, "--help"] for name in COMMANDS)]
LEVEL = ["--env", "math", "--env-arg", "levels=[1]"]
FEW = ["--epochs", "1", "training.bf16=false", "training.save_steps=-1"]
SMALL = ["trainer.total_training_steps=2", "data.train_batch_size=2", "data.val_batch_size=4", "agent.num_chains=2",
         "agent.max_turns=2", "trainer.test_freq=1", "actor_rollout_ref.rollout.response_length=16",
         "trainer.experiment_name=a"]  # fmt: skip
MAIN = [
    ["envs"],
    *(["envs", "show", name] for name in ENVIRONMENTS),
    ["envs", "check", f"{REPOSITORY}/docs/examples/shop.py:Shop", "--tasks", "8"],  # a path is longer than its column
    ["tasks", "snapshot", "--source", "math", "--tasks", "4", "--out", "tasks.json"],
    ["convert", "gsm8k", "gsm8k.jsonl", "converted.json"],
    ["collect", *LEVEL, "--policy", "expert", "--tasks", "12", "--out", "runs", "--experiment", "collect"],
    ["collect", *LEVEL, "--policy", "random", "--tasks", "12", "--out", "runs", "--experiment", "collect"],
    ["export", "--input-dir", "runs", "--output-dir", "data", "--format", "all"],
    ["sft", "--episodes", "runs", "--out", "sft", "--lora_r", "4", *FEW],
    ["dpo", "--episodes", "runs", "--out", "dpo", "--lora_r", "4", *FEW],
    ["merge", "--model", "tiny", "--adapter", "sft/model", "--out", "merged"],
    ["train", "recipe=math-tiny", *SMALL],
    ["train", "recipe=math-tiny", "--dry-run"],
    ["plan", "recipe=math-tiny"],
    ["pipeline", "recipe=affine-tiny", "--dry-run"],
    ["eval", *LEVEL, "--policy", "random", "--tasks", "12", "--out", "random.json"],
    ["eval", *LEVEL, "--policy", "expert", "--tasks", "12", "--attempts", "2", "--out", "expert.json"],
    ["compare", "random.json", "expert.json"],
    ["compare", "expert.json", "random.json"],
    ["matrix", "random.json", "expert.json", "--out", "matrix"],
    ["htdag", "plan", "Compare the prices of three laptops and write a report"],
    ["promote", "sft", "--registry", "registry", "--force", "to see what it prints", "--name", "math-agent"],
    ["promote", "--registry", "registry", "--list"],
    ["report", "runs", "-o", "report.html"],
    ["show", "runs"],
    ["eval", "--env", "nonsense", "--policy", "x"],
]
QUICK = ("envs", "tasks", "convert", "collect", "export", "plan", "pipeline", "compare", "matrix", "promote", "report",
         "show")  # fmt: skip
SERVED = [["ui", "runs", "--port", "0"], ["serve", "tiny", "--port", "0"]]
SLOW = [["envs", "check", "math"], ["quickstart"], ["htdag", "baseline"]]
QUICKSTART = """
from dataclasses import replace
from practicum import quickstart
whole = quickstart.default_plan(0, 40)
SMALL = replace(whole, panel=40, check_tasks=20, sft=replace(whole.sft, num_epochs=25, check_every=40),
                rl=replace(whole.rl, total_training_steps=LENGTH, train_batch_size=8))
quickstart.default_plan = lambda seed, demonstrations: SMALL
"""
"""Makes `practicum quickstart` short; the stages and what they print stay as they are."""
COLOUR = re.compile(rb"\x1b\[[0-9;]*m")


def too_wide(data: bytes, width: int) -> list[str]:
    lines = screen_lines(data)
    assert sum(line.startswith(MARK) for line in lines) > 0
    return [line for line in lines if len(line) > width and not line.startswith(MARK)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("terminal")
    (folder / "gsm8k.jsonl").write_text('{"question": "How much is 1 + 1?", "answer": "1 + 1 = 2\\n#### 2"}\n')
    return folder


@pytest.fixture(scope="module")
def output(folder: Path) -> bytes:
    """What a terminal of 80 columns gets from every command's help and main output."""
    data = in_terminal([*HELP, *MAIN], folder)
    for command in SERVED:
        data += in_terminal([command], folder, until=b"(Ctrl-C ends it)") + b"\r\n"
    return data


def test_every_command_fits_80_columns(output: bytes) -> None:
    assert {command for command, *_ in [*MAIN, *SERVED, *SLOW]} == set(COMMANDS)
    assert too_wide(output, 80) == []
    assert "is better than" in output.decode()
    assert re.search(r"^…\S*/shop\.py:Shop +1\.000 ", "\n".join(screen_lines(output)), re.MULTILINE)
    assert COLOUR.search(output)  # on a terminal there is colour


def test_the_commands_did_what_they_were_asked(output: bytes, folder: Path) -> None:
    """Else their main output was not seen."""
    written = ["tasks.json", "converted.json", "data/bc.jsonl", "sft/model", "dpo/model", "merged", "matrix",
               "report.html", "registry/math-agent"]  # fmt: skip
    assert [name for name in written if not (folder / name).exists()] == []
    assert output.count(b"(Ctrl-C ends it)") == len(SERVED)
    errors = [line for line in screen_lines(output) if line.startswith("practicum: ")]
    assert len(errors) == 1, errors
    assert "nonsense" in errors[0]


def test_without_colour_and_in_a_pipe_there_are_no_escapes(output: bytes, folder: Path) -> None:
    """Of commands that end quickly, now that the others have run."""
    again = [command for command in MAIN if command[0] in QUICK]
    data = in_terminal(again, folder, NO_COLOR="1", PYTHONIOENCODING="ascii")
    assert not COLOUR.search(data)
    assert data.isascii()
    assert data.count(MARK.encode()) == len(again)  # none ended because a character could not be encoded
    done = subprocess.run(
        [sys.executable, "-c", RUNNER, json.dumps([*again, *HELP]), MARK],
        cwd=folder, capture_output=True, env=environment({}),
    )  # fmt: skip
    assert b"\x1b" not in done.stdout + done.stderr
    assert done.stdout.count(MARK.encode()) == len(again) + len(HELP)


def test_the_table_of_the_quickstart_fits_80_columns_at_its_widest() -> None:
    """The table of the default plan: all of its levels, and rates of 100.0 %."""
    panel = default_plan(0).panel
    attempts = tuple(AttemptResult(str(i), str(i), 0, Outcome.SUCCESS, 1.0, 12, 99, 12) for i in range(panel))
    result = EvalResult("base", "math", "panel", panel, 1, attempts)
    lines = table({"base": result}, {"base": dict.fromkeys(LEVELS, 1.0)}).splitlines()
    assert lines[0].split()[0] == "policy"
    assert " ".join(["level", *map(str, LEVELS)]) in " ".join(lines[0].split())
    assert lines[1].count("100 %") == len(LEVELS)
    assert [line for line in lines if len(line) > 80] == []


@pytest.mark.slow
def test_long_commands_fit_80_columns(tmp_path: Path) -> None:
    data = in_terminal(SLOW, tmp_path, setup=QUICKSTART.replace("LENGTH", "25"))
    assert too_wide(data, 80) == []
    text = data.decode()
    for stage in ("evaluate base", "demonstrations", "SFT", "evaluate sft", "RL (GRPO)", "evaluate rl"):
        assert stage in text
    assert re.search(r"SFT.* steps .* left  loss 0\.\d+, val \d+ %", text)
    assert re.search(r"RL \(GRPO\).* steps .* left  success \d+\.\d % [▁▂▃▄▅▆▇█]{2,}", text)
    assert "…" not in text.partition("quickstart")[2].partition(MARK)[0]
    (table,) = re.findall(r"^policy .*\n(?:\w.*\n){4}", "\n".join(screen_lines(data)), re.MULTILINE)
    assert [line.split()[0] for line in table.splitlines()] == ["policy", "null", "base", "sft", "rl"]
    assert "All of it on one page" in text


@pytest.mark.slow
def test_the_whole_quickstart_without_colour_and_in_a_pipe_has_no_escapes(tmp_path: Path) -> None:
    short = QUICKSTART.replace("LENGTH", "2")
    data = in_terminal([["quickstart", "--out", "a"]], tmp_path, setup=short, NO_COLOR="1")
    assert "All of it on one page" in data.decode()
    assert not COLOUR.search(data)
    done = subprocess.run(
        [sys.executable, "-c", short + RUNNER, json.dumps([["quickstart", "--out", "b"]]), MARK],
        cwd=tmp_path, capture_output=True, env=environment({}),
    )  # fmt: skip
    assert b"All of it on one page" in done.stdout
    assert b"\x1b" not in done.stdout + done.stderr
    assert b"\r" not in done.stdout + done.stderr
