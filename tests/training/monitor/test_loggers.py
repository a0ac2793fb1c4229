"""Loggers are run for real: lines are read back from the terminal, event files and W&B's own files."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from practicum.errors import UserError
from practicum.report.page import script
from practicum.training.monitor import loggers
from practicum.training.monitor.loggers import Logger, console_line, make_loggers, print_line, wandb_mode, wandb_run_id

VALUES = {
    "reward/mean": 0.5125,
    "reward/std": 0.43,
    "reward/min": 0.0,
    "reward/max": 1.0,
    "actor/pg_loss": -0.01234,
    "critic/vf_loss": 0.25,
    "actor/ppo_kl": 1.234e-5,
    "actor/entropy": 1.5,
    "actor/lr": 3e-5,
    "timing/update": 9.0,
}


def make(names: list[str], folder: Path, resumed: bool = False) -> list[Logger]:
    return make_loggers(names, folder, "a/project", "run", {"trainer": {"seed": 3}}, resumed)


def test_an_unknown_name_names_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="Did you mean 'tensorboard'"):
        make(["console", "tensorbord"], tmp_path)


def test_none_is_fine_and_jsonl_is_the_runs_own(tmp_path: Path) -> None:
    assert make([], tmp_path) == []
    assert make(["jsonl"], tmp_path) == []
    assert len(make(["console", "jsonl", "console"], tmp_path)) == 1


@pytest.mark.parametrize("name", ["tensorboard", "wandb"])
def test_a_missing_package_names_the_extra(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, name, None)  # how Python itself marks what cannot be imported
    with pytest.raises(UserError, match=r"practicum\[tracking\]"):
        make(["console", "wandb", "tensorboard", name], tmp_path)
    assert list(tmp_path.iterdir()) == []  # nothing was opened


def test_a_console_line() -> None:
    assert console_line(12, VALUES) == (
        "step    12  reward 0.512     ± 0.430    min 0.000     max 1.000     loss -0.0123    value loss 0.25     "
        "  KL 1.23e-05   entropy 1.500    lr 3e-05"
    )
    assert console_line(0, {"val/success/mean": 0.4567}) == "step     0  val 45.7 %"


def test_console_lines_have_columns_of_fixed_width() -> None:
    changed = {name: -value * 1.2345e-3 for name, value in VALUES.items()} | {"val/success/mean": 1.0}
    first, second = console_line(1, VALUES), console_line(10_000, changed)
    for label in ("reward", "±", "min", "max", "loss", "value loss", "KL", "entropy", "lr"):
        assert first.index(label) == second.index(label)
    assert second.endswith("val 100.0 %")


def test_the_divergence_from_the_reference_comes_first() -> None:
    assert "KL 2" in console_line(1, {"actor/ppo_kl": 1.0, "actor/kl": 2.0})


def test_the_loss_is_the_one_that_the_page_draws() -> None:
    """The whole loss, with its KL and entropy terms, and not the policy gradient's part of it."""
    assert "loss 0.0518" in console_line(1, {"actor/loss": 0.0518, "actor/pg_loss": 0.0116})
    assert "['actor/loss', 'Loss']" in script()


def test_console_writes_to_standard_output(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (logger,) = make(["console"], tmp_path)
    logger.write(1, VALUES)
    logger.write(2, VALUES)
    logger.close()
    captured = capsys.readouterr()
    assert captured.out.splitlines() == [console_line(1, VALUES), console_line(2, VALUES)]
    assert captured.err == ""


class Terminal(io.StringIO):
    """Text that believes it is a screen."""

    def isatty(self) -> bool:
        return True


def test_a_line_replaces_the_progress_line_on_a_terminal() -> None:
    screen, file = Terminal(), io.StringIO()
    print_line("line", screen)
    print_line("line", file)
    assert (screen.getvalue(), file.getvalue()) == ("\r\x1b[2Kline\n", "line\n")


def test_a_broken_pipe_costs_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (logger,) = make(["console"], tmp_path)
    reader, writer = os.pipe()
    os.close(reader)
    broken = os.fdopen(writer, "w")
    with monkeypatch.context() as patched:
        patched.setattr(sys, "stdout", broken)
        for step in range(3):
            logger.write(step, VALUES)
        logger.close()
    with contextlib.suppress(BrokenPipeError):
        broken.close()
    warning = capsys.readouterr().err.splitlines()
    assert len(warning) == 1
    assert warning[0].startswith("Warning: logger 'console' failed (BrokenPipeError")


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """What TensorBoard's own reader finds in the event files."""
    accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    reader = accumulator.EventAccumulator(str(folder / "tensorboard"))
    reader.Reload()
    return {tag: [(event.step, event.value) for event in reader.Scalars(tag)] for tag in reader.Tags()["scalars"]}


def test_tensorboard_strikes_out_what_a_resumed_run_repeats(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    (logger,) = make(["tensorboard"], tmp_path)
    for step in range(6):
        logger.write(step, {"reward/mean": float(step), "actor/lr": 0.5})
    assert [step for step, _ in scalars(tmp_path)["reward/mean"]] == [0, 1, 2, 3, 4, 5]  # on disk before the end
    logger.close()
    (logger,) = make(["tensorboard"], tmp_path, resumed=True)
    for step in (3, 4):
        logger.write(step, {"reward/mean": 10.0 * step})
    logger.close()
    result = scalars(tmp_path)
    assert result["reward/mean"] == [(0, 0.0), (1, 1.0), (2, 2.0), (3, 30.0), (4, 40.0)]
    assert result["actor/lr"] == [(0, 0.5), (1, 0.5), (2, 0.5)]


def test_tensorboard_that_cannot_write_costs_one_warning(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("tensorboard")
    (tmp_path / "tensorboard").write_text("a file where the folder should be")
    broken, console = make(["tensorboard", "console"], tmp_path)
    for step in range(3):
        for logger in (broken, console):
            logger.write(step, VALUES)
    broken.close()
    captured = capsys.readouterr()
    assert len(captured.err.splitlines()) == 1
    assert "logger 'tensorboard' failed" in captured.err
    assert len(captured.out.splitlines()) == 3  # the others go on


@pytest.fixture
def no_account(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine on which nobody has logged in to W&B."""
    pytest.importorskip("wandb")
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


def history(path: Path) -> Iterator[dict[str, float]]:
    """Metrics in a `.wandb` file: W&B's records, framed as LevelDB logs are (blocks of 32 KiB, heads of 7 bytes)."""
    import json

    from wandb.proto import wandb_internal_pb2

    data, offset, pending = path.read_bytes(), 7, b""  # seven bytes name the format
    while offset + 7 <= len(data):
        num_bytes = 32768 - offset % 32768
        if num_bytes < 7:  # no head fits: the block's end is padding
            offset += num_bytes
            continue
        length, kind = int.from_bytes(data[offset + 4 : offset + 6], "little"), data[offset + 6]
        pending += data[offset + 7 : offset + 7 + length]
        offset += 7 + length
        if kind in (1, 4):  # whole, or the last piece
            record: Any = wandb_internal_pb2.Record()
            record.ParseFromString(pending)
            pending = b""
            if record.WhichOneof("record_type") == "history":
                items = {item.key or "/".join(item.nested_key): item.value_json for item in record.history.item}
                yield {name: json.loads(value) for name, value in items.items()}


def processes() -> list[tuple[int, int, str]]:
    """(id, parent, command line) of what is alive on this machine."""
    command = ["ps", "-axww", "-o", "pid=,ppid=,args="]  # ww: whole lines, however deep this folder lies
    listing = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(maxsplit=2) for line in listing.splitlines()]
    return [(int(row[0]), int(row[1]), row[2]) for row in rows if len(row) == 3 and "<defunct>" not in row[2]]


def background() -> list[int]:
    """W&B's processes started by this one."""
    return [pid for pid, parent, command in processes() if parent == os.getpid() and "wandb-core" in command]


def left_behind(core: int) -> list[str]:
    """What W&B's process started in its turn and did not take along, given a moment to go."""
    deadline = time.monotonic() + 30
    while result := [command for _, _, command in processes() if command.endswith(f"--parent-pid {core}")]:
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    return result


def logged_rows(folder: Path) -> list[list[tuple[float, float]]]:
    """(step, reward) rows of every offline run in a folder, in order of time."""
    runs = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    return [[(row["_step"], row["reward/mean"]) for row in history(path)] for path in runs]


@pytest.mark.usefixtures("no_account")
def test_wandb_offline_keeps_the_metrics_and_says_why_it_is_offline(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (logger,) = make(["wandb"], tmp_path)
    for step in range(40):
        logger.write(step, {**VALUES, "reward/mean": step / 4} | {f"part/{i}": float(i) for i in range(60)})
    logger.write(7, {"reward/mean": 99.0})  # steps ascend: one that is past is left out, without a word
    (core,) = background()
    logger.close()
    assert background() == []
    assert left_behind(core) == []
    assert logged_rows(tmp_path) == [[(step, step / 4) for step in range(40)]]
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "W&B has no key (WANDB_API_KEY, or `wandb login`)" in err
    row = list(history(next(tmp_path.glob("wandb/offline-run-*/*.wandb"))))[11]
    assert {name: row[name] for name in VALUES} == {**VALUES, "reward/mean": 2.75}


@pytest.mark.usefixtures("no_account")
@pytest.mark.parametrize("value", ["", "true"])
def test_wandb_reports_no_errors_unless_asked_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    from wandb import env

    if value:
        monkeypatch.setenv("WANDB_ERROR_REPORTING", value)
    monkeypatch.setenv("WANDB_MODE", "disabled")
    (logger,) = make(["wandb"], tmp_path)
    logger.write(0, VALUES)
    logger.close()
    assert env.error_reporting_enabled() == bool(value)
    assert background() == []


@pytest.mark.usefixtures("no_account")
def test_a_resumed_run_goes_on_under_its_id(tmp_path: Path) -> None:
    for resumed, steps in ((False, (1, 2, 3)), (True, (3, 4))):
        (logger,) = make(["wandb"], tmp_path, resumed)
        for step in steps:
            logger.write(step, {"reward/mean": float(step)})
        logger.close()
        time.sleep(1.1)  # W&B names folders by the second
    runs = sorted(path.name.split("-")[-1] for path in tmp_path.glob("wandb/offline-run-*"))
    assert len(runs) == 2
    assert runs[0] == runs[1] == wandb_run_id(tmp_path, "a/project", "run", resumed=True)
    assert logged_rows(tmp_path) == [[(1, 1.0), (2, 2.0), (3, 3.0)], [(3, 3.0), (4, 4.0)]]


def test_an_experiment_run_anew_is_another_run(tmp_path: Path) -> None:
    first = wandb_run_id(tmp_path, "project", "run", resumed=False)
    assert wandb_run_id(tmp_path, "project", "run", resumed=True) == first
    assert wandb_run_id(tmp_path, "project", "run", resumed=False) != first


@pytest.mark.usefixtures("no_account")
def test_a_server_that_does_not_answer_means_offline(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "0123456789" * 4)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nobody listens at the discard port
    monkeypatch.setattr(loggers, "SERVER_TIMEOUT_SECONDS", 1.0)
    started = time.monotonic()
    (logger,) = make(["wandb"], tmp_path)
    logger.write(5, {"reward/mean": 0.5})
    logger.close()
    assert time.monotonic() - started < 60
    assert logged_rows(tmp_path) == [[(5, 0.5)]]
    out, err = capfd.readouterr()
    assert out == ""
    assert len(err.splitlines()) == 1
    assert "logged offline" in err
    assert background() == []


@pytest.mark.usefixtures("no_account")
def test_wandb_that_dies_costs_one_warning(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (logger,) = make(["wandb"], tmp_path)
    logger.write(0, {"reward/mean": 0.0})
    capfd.readouterr()
    (process,) = background()
    os.kill(process, signal.SIGKILL)
    deadline = time.monotonic() + 30
    step = 1
    while not (text := capfd.readouterr().err) and time.monotonic() < deadline:
        logger.write(step, {"reward/mean": 1.0})
        step += 1
        time.sleep(0.05)
    logger.write(step, {"reward/mean": 1.0})
    logger.close()
    assert "logger 'wandb' failed" in text
    assert len((text + capfd.readouterr().err).splitlines()) == 1
    assert background() == []


@pytest.mark.usefixtures("no_account")
def test_somebody_elses_run_is_left_open(tmp_path: Path) -> None:
    import wandb

    other = wandb.init(mode="offline", dir=str(tmp_path / "other"), settings=wandb.Settings(silent=True))
    (logger,) = make(["wandb"], tmp_path)
    logger.write(1, {"reward/mean": 1.0})
    logger.close()
    assert wandb.run is other
    other.log({"reward/mean": 3.0}, step=4)
    other.finish()
    wandb.teardown()
    assert logged_rows(tmp_path / "other") == [[(4, 3.0)]]
    assert logged_rows(tmp_path) == [[(1, 1.0)]]


@pytest.mark.parametrize(
    ("environment", "mode"),
    [
        ({}, "offline"),
        ({"WANDB_API_KEY": "k"}, "online"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "online"}, "online"),
        ({"WANDB_API_KEY": "k", "WANDB_MODE": "offline"}, "offline"),
        ({"WANDB_MODE": "online"}, "offline"),
        ({"WANDB_API_KEY": ""}, "offline"),
        ({"WANDB_MODE": "disabled"}, "disabled"),
    ],
)
def test_nothing_is_sent_without_a_key(environment: dict[str, str], mode: str) -> None:
    assert wandb_mode(environment) == mode


def test_a_login_of_wandb_counts_as_a_key(tmp_path: Path) -> None:
    (tmp_path / ".netrc").write_text("machine api.wandb.ai login user password 0123\n")
    assert wandb_mode({"HOME": str(tmp_path)}) == "online"
    assert wandb_mode({"HOME": str(tmp_path), "WANDB_BASE_URL": "https://other.example"}) == "offline"
