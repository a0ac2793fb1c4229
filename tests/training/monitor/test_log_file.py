"""The rotating log file of a run: what it holds, when it is renamed, and what happens where it cannot be written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.config.train import TrainerConfig
from practicum.errors import UserError
from practicum.training.monitor.log_file import LogFile, open_log_file

LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3} ")


def test_a_run_writes_every_step_and_every_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    command = ["train", "agent.environment=math", "algorithm.adv_estimator=grpo", "agent.num_chains=2",
               "data.num_train_tasks=4", "data.train_batch_size=2", "trainer.total_epochs=1",
               "agent.max_tokens_per_turn=4", "agent.max_turns=1", "trainer.val_before_train=false",
               "trainer.test_freq=-1", "trainer.device=cpu", "trainer.experiment_name=run", "trainer.save_freq=1",
               "trainer.log_file=logs/math_rl_training_%Y%m%d_%H%M%S.log"]  # fmt: skip
    assert main(command) == 0
    (path,) = (tmp_path / "logs").iterdir()
    assert re.fullmatch(r"math_rl_training_\d{8}_\d{6}\.log", path.name)
    lines = path.read_text().splitlines()
    assert all(LINE.match(line) for line in lines)
    texts = [LINE.sub("", line) for line in lines]
    assert texts[0] == "run in 'runs/practicum/run'"
    assert [text[:17] for text in texts[1:3]] == ["step     1  rewar", "step     2  rewar"]
    assert "KL" in texts[2]
    path.unlink()
    assert main(command) == 0
    (path,) = (tmp_path / "logs").iterdir()
    assert "Resumed at step 2" in path.read_text()
    assert "Nothing to do" in path.read_text()


def test_it_is_rotated_by_size_and_goes_on_after_it_was_closed(tmp_path: Path) -> None:
    path = tmp_path / "a" / "run.log"
    log = LogFile(path, max_bytes=100, num_backups=2)
    for step in range(8):
        log.write(step, {"reward/mean": 0.5})
    log.close()
    log.message("after the end")
    assert sorted(file.name for file in path.parent.iterdir()) == ["run.log", "run.log.1", "run.log.2"]
    assert all(file.stat().st_size <= 100 for file in path.parent.iterdir())
    assert "after the end" in path.read_text()


def test_the_reason_of_an_end_is_written(tmp_path: Path) -> None:
    log = LogFile(tmp_path / "run.log", 0, 1)
    messages: list[str] = []
    log.with_copy(messages.append)("a message")
    log.failed(KeyboardInterrupt())
    log.failed(UserError("Step 3: no."))
    log.failed(ZeroDivisionError("x"))
    texts = [LINE.sub("", line) for line in (tmp_path / "run.log").read_text().splitlines()]
    assert messages == ["a message"]
    assert texts == [
        "a message",
        "stopped by Ctrl-C or SIGTERM",
        "stopped: Step 3: no.",
        "stopped: ZeroDivisionError: x",
    ]


def test_a_file_that_cannot_be_opened_is_an_error_and_one_that_fails_later_a_warning(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"choose another trainer\.log_file"):
        open_log_file(TrainerConfig(log_file=str(tmp_path / "file" / "run.log")), tmp_path)
    assert open_log_file(TrainerConfig(), tmp_path) is None
    log = LogFile(tmp_path / "b" / "run.log", 0, 1)
    log.close()
    (tmp_path / "b" / "run.log").unlink()
    (tmp_path / "b").rmdir()
    log.message("lost")
    log.message("lost too")
    assert capsys.readouterr().err.count("the run goes on without it") == 1
