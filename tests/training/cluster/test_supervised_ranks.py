"""SFT and DPO on ranks that Ray places: the losses of one process, also where a run goes on with other ranks."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from practicum.config.dpo import DPOConfig
from practicum.config.resolve import check_ranks
from practicum.config.resolve_supervised import resolve_supervised
from practicum.config.sft import SFTConfig
from practicum.errors import UserError

ROOT = Path(__file__).parents[3]
TIMEOUT_SECONDS = 900
TWO = "training.n_gpus_per_node=2"
LOSSES = ("actor/loss", "dpo/loss", "actor/grad_norm", "eval/loss")


def write_rows(folder: Path) -> None:
    """Demonstrations and pairs of different lengths."""
    rows = [
        {"prompt": f"What is {i} + {3 * i}?", "response": f"It is {4 * i}" + " indeed" * (i % 4)} for i in range(20)
    ]
    pairs = [
        {"prompt": f"What is {i} + {3 * i}?", "chosen": f"It is {4 * i}", "rejected": "No" + " idea" * (i % 3)}
        for i in range(8)
    ]
    for name, lines in (("sft", rows), ("dpo", pairs)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))


def train(folder: Path, command: str, out: str, epochs: int, *more: str, launcher: Sequence[str] = ()) -> None:
    """Run the command in a process of its own, or by a launcher; each epoch of either has a checkpoint."""
    env = {
        **os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
    }  # fmt: skip
    keys = [
        f"data.dataset_path={command}.jsonl", f"output_dir={out}", f"training.num_epochs={epochs}",
        "training.use_lora=false", "training.bf16=false", "training.batch_size=4", "training.save_steps=1",
        "training.save_total_limit=null", "model.device=cpu", *more,
    ]  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", *launcher, "practicum.cli", command, *keys],
        cwd=folder, env=env, timeout=TIMEOUT_SECONDS, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def go_back(folder: Path, step: int) -> None:
    """Leave a run as it was when it was ended after a step."""
    for later in folder.glob("global_step_*"):
        if int(later.name.removeprefix("global_step_")) > step:
            shutil.rmtree(later)
    for name in ("model", "last"):
        shutil.rmtree(folder / name)
    (folder / "latest_checkpointed_iteration.txt").write_text(str(step))


def check_same(first_run: Path, second_run: Path, num_steps: int) -> None:
    first, second = ([json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
                     for run in (first_run, second_run))  # fmt: skip
    assert [line["step"] for line in first] == [line["step"] for line in second] == list(range(1, num_steps + 1))
    for actual, expected in zip(first, second, strict=True):
        assert any(name in actual for name in LOSSES[:2])
        for name in (key for key in actual if key in LOSSES):
            assert actual[name] == pytest.approx(expected[name], abs=1e-5, rel=1e-5), (actual["step"], name)


def test_numbers_of_ranks_are_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    for schema in (SFTConfig, DPOConfig):
        resolved = resolve_supervised(schema, ["data.dataset_path=x", "trainer.nnodes=2", "trainer.n_gpus_per_node=4"])
        assert (resolved.config.training.nnodes, resolved.config.training.n_gpus_per_node) == (2, 4)
        assert check_ranks(resolved.config, resolved.chosen) == 8
    with pytest.raises(UserError, match=r"training.nnodes=2 needs training.n_gpus_per_node too"):
        resolve_supervised(SFTConfig, ["training.nnodes=2"])
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError, match=r"training.n_gpus_per_node=4, but the launcher has started 2 ranks"):
        resolve_supervised(SFTConfig, ["training.n_gpus_per_node=4"])
    assert check_ranks(resolve_supervised(SFTConfig, [TWO]).config, {TWO.partition("=")[0]}) == 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "strategy"),
    [
        (("accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m"), "ddp"),
        (("accelerate.commands.launch", "--cpu", "--num_processes", "2", "-m"), "fsdp2"),
        (("torch.distributed.run", "--nproc-per-node", "2", "-m"), "ddp"),
    ],
)
def test_launchers_start_two_ranks(tmp_path: Path, launcher: tuple[str, ...], strategy: str) -> None:
    """`accelerate launch` and `torchrun` as docs/cluster.md has them: the losses of one process."""
    pytest.importorskip(launcher[0].partition(".")[0])
    write_rows(tmp_path)
    train(tmp_path, "sft", "one", 1)
    train(tmp_path, "sft", "two", 1, f"training.strategy={strategy}", launcher=launcher)
    check_same(tmp_path / "one", tmp_path / "two", 5)


@pytest.mark.slow
@pytest.mark.parametrize(("command", "epochs", "num_steps"), [("sft", 2, 10), ("dpo", 5, 10)])
def test_two_ranks_equal_one_process(tmp_path: Path, command: str, epochs: int, num_steps: int) -> None:
    """Ten steps whole; and the last ones with another number of ranks than the first ones."""
    pytest.importorskip("ray")
    write_rows(tmp_path)
    train(tmp_path, command, "one", epochs)
    train(tmp_path, command, "two", epochs, TWO)
    check_same(tmp_path / "one", tmp_path / "two", num_steps)
    shutil.copytree(tmp_path / "one", tmp_path / "whole")
    for name, more in (("one", [TWO]), ("two", [])):  # one: goes on with two ranks; two: with one
        go_back(tmp_path / name, num_steps // 2)
        before = (tmp_path / name / "global_step_1").stat().st_mtime_ns
        train(tmp_path, command, name, epochs, *more)
        assert (tmp_path / name / f"global_step_{num_steps}").is_dir()
        assert (tmp_path / name / "global_step_1").stat().st_mtime_ns == before, "it began anew"
        check_same(tmp_path / "whole", tmp_path / name, num_steps)
