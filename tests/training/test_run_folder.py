"""A run's folder: one process at a time, nothing left behind by a kill, no abandoned history continued."""

from __future__ import annotations

import json
import os
import signal
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.jsonl import write_files
from practicum.data.run_folder import FolderLock, locked, write_atomic
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.training import checkpoint
from practicum.training.checkpoint import Checkpoints
from practicum.training.settings import RunSettings
from tests.training.test_run import RL, go, make_run, written

HOLD = """
import sys, pathlib
from practicum.data.run_folder import FolderLock
lock = FolderLock(pathlib.Path(sys.argv[1]))
print("held", flush=True)
sys.stdin.read()
"""


SMALL = replace(RL, train_batch_size=1, num_chains=2)


def contents(folder: Path) -> dict[str, bytes]:
    """Every file of a run by name, but for what depends on the clock."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name not in ("timing.jsonl", "health.jsonl"))
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_a_folder_is_one_process_s_and_free_again_when_that_is_killed(tmp_path: Path) -> None:
    command = [sys.executable, "-c", HOLD, str(tmp_path / "run")]
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdout is not None
    assert holder.stdout.readline() == b"held\n"
    with pytest.raises(UserError, match=r"Another process is writing to .*; wait for it to end, or choose another"):
        FolderLock(tmp_path / "run")
    holder.send_signal(signal.SIGKILL)
    holder.wait()
    holder.stdout.close()
    FolderLock(tmp_path / "run").release()


def test_commands_refuse_a_folder_that_another_process_writes_to(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    common = ["--env", "math", "--tasks", "1"]
    commands = {
        tmp_path / "p" / "x": [
            "train",
            f"trainer.default_local_dir={tmp_path}",
            "trainer.project_name=p",
            "trainer.experiment_name=x",
        ],
        tmp_path / "sft": ["sft", "data.dataset_path=x.jsonl", f"output_dir={tmp_path / 'sft'}"],
        tmp_path / "dpo": ["dpo", "data.dataset_path=x.jsonl", f"output_dir={tmp_path / 'dpo'}"],
        tmp_path / "c" / "r": ["collect", *common, "--out", str(tmp_path), "--experiment", "c", "--run-id", "r"],
        tmp_path / "e.run": ["eval", *common, "--policy", "expert", "--out", str(tmp_path / "e.json")],
    }  # fmt: skip
    for folder, command in commands.items():
        with locked(folder):
            assert main(command) == 2, command
        assert f"Another process is writing to '{folder}'" in capsys.readouterr().err
        assert not folder.exists()


def test_files_have_the_permissions_that_the_umask_gives_them(tmp_path: Path) -> None:
    for umask, expected in ((0o022, 0o644), (0o027, 0o640)):
        before = os.umask(umask)
        try:
            write_atomic(tmp_path / "a", b"x")
            write_files(tmp_path, {"b": [{"x": 1}]})
        finally:
            os.umask(before)
        assert {stat.S_IMODE((tmp_path / name).stat().st_mode) for name in "ab"} == {expected}


def test_what_a_kill_left_half_written_is_removed_by_the_next_run(tmp_path: Path) -> None:
    settings, rl = RunSettings(1, save_freq=1, val_before_train=False), replace(SMALL, total_training_steps=1)
    go(make_run(tmp_path, settings, rl))
    for folder in ("", "groups/step_1", "top_episodes/step_1"):
        (tmp_path / folder).mkdir(parents=True, exist_ok=True)
        (tmp_path / folder / ".writing-12345678").write_bytes(b"half an episode")
    again = make_run(tmp_path, settings, rl)
    again.resume()
    go(again)
    assert list(tmp_path.rglob(".writing-*")) == []


def test_a_kill_right_after_the_last_checkpoint_is_in_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest checkpoint is named and the one too many deleted by the next run, which has nothing else to do."""
    settings = RunSettings(3, save_freq=1, save_total_limit=1, val_before_train=False)
    rl = replace(SMALL, total_training_steps=3)
    go(make_run(tmp_path / "whole", settings, rl))

    def kill(self: Checkpoints, step: int, best: int | None) -> None:
        if step == 3:
            raise SystemExit
        completed(self, step, best)

    completed = Checkpoints.complete
    monkeypatch.setattr(Checkpoints, "complete", kill)
    with pytest.raises(SystemExit):
        go(make_run(tmp_path / "cut", settings, rl))
    monkeypatch.undo()
    assert Checkpoints(tmp_path / "cut").steps() == [2, 3]
    again = make_run(tmp_path / "cut", settings, rl)
    again.resume()
    go(again)
    assert contents(tmp_path / "cut") == contents(tmp_path / "whole")
    assert (tmp_path / "cut" / checkpoint.LATEST).read_text() == "3\n"


def test_an_adapter_s_configuration_is_the_same_in_every_process(tmp_path: Path) -> None:
    adapted = lora.add_adapter(loader.load_tiny(0), lora.LoRASettings(4, 8.0), 0)
    loader.save(adapted, tmp_path / "a")
    names = json.loads((tmp_path / "a" / "adapter_config.json").read_text())["target_modules"]
    assert len(names) > 3
    assert names == sorted(names)


def test_auto_goes_on_from_where_resume_path_went(tmp_path: Path) -> None:
    """Not from the newer checkpoints that were left behind by it; those are kept under another name."""
    rl = replace(SMALL, total_training_steps=4)
    go(make_run(tmp_path, RunSettings(3, save_freq=1, val_before_train=False), rl))
    back = RunSettings(
        2, save_freq=-1, resume_mode="resume_path", resume_from_path=str(tmp_path / "global_step_1"), save_on_stop=False
    )
    run = make_run(tmp_path, back, rl)
    run.resume()
    go(run)
    assert Checkpoints(tmp_path).steps() == [1]
    abandoned = sorted(path.name for path in tmp_path.glob("abandoned_*"))
    assert abandoned == ["abandoned_global_step_2", "abandoned_global_step_3"]
    messages: list[str] = []
    last = make_run(tmp_path, RunSettings(4, save_freq=4), rl, say=messages.append)
    last.resume()
    assert messages[0].startswith("Resumed at step 1 from")
    go(last)
    assert [line["step"] for line in written(tmp_path)] == [1, 2, 3, 4]
