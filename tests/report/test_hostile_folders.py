"""Run folders that someone else made: odd file names, links, devices, pipes, YAML that grows. Nothing gets out of them,
nothing hangs, and what is sound beside them is shown."""

from __future__ import annotations

import json
import os
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data import store
from practicum.data.store import encode_episode
from practicum.report.live.watcher import FolderWatcher
from practicum.report.run_view import RunView
from practicum.report.runs import RunFolder
from tests.report.report_files import make_episode, write_run, write_training

SECRET = "a-private-line-4711"
NAMES = ("1²2__attempt_0.jsonl", "٣__attempt_1.jsonl", "9" * 200 + "__attempt_2.jsonl", "a\nb__attempt_3.jsonl",
         os.fsdecode(b"\xff\xfe__attempt_4.jsonl"))  # fmt: skip
MERGES = "a: &a {k: 1}\n" + "".join(
    f"{b}: &{b}\n  <<: [{', '.join([f'*{a}'] * 20)}]\n" for a, b in zip("abcdefghij", "bcdefghijk", strict=True)
)


@pytest.fixture(autouse=True)
def bounded_memory() -> Iterator[None]:
    """A file without end must not be read: 4 GiB more than is mapped now are an error, not a machine that swaps."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + (4 << 30), before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_AS, before)


def read_run(folder: Path) -> RunView:
    view = RunView(RunFolder("r", folder))
    view.refresh()
    for _ in view.index.read_all():
        pass
    return view


def test_file_names_of_any_kind_are_listed(tmp_path: Path) -> None:
    for attempt, name in enumerate(NAMES):
        (tmp_path / name).write_bytes(encode_episode(make_episode(f"t{attempt}", 0, 1.0)))
    view = read_run(tmp_path)
    assert {row.result.task for row in view.index.rows} == {f"t{n}" for n in range(len(NAMES))}
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0
    assert out.stat().st_size > 0


def test_a_link_s_target_is_not_in_the_report(tmp_path: Path) -> None:
    private = tmp_path / "private.txt"
    private.write_text(f"{SECRET}\n")
    secret_file = tmp_path / "stolen.jsonl"
    secret_file.write_bytes(encode_episode(make_episode(SECRET, 0, 1.0)))
    (tmp_path / "stolen.metrics").write_text(json.dumps({"step": 1, SECRET: 3.0}) + "\n")
    run = tmp_path / "runs" / "r"
    store.write_episode(run, make_episode("t", 0, 1.0))
    links = {"config.yaml": private, "x__attempt_0.jsonl": secret_file, "metrics.jsonl": tmp_path / "stolen.metrics",
             "t__attempt_0.advantages.json": private}  # fmt: skip
    for name, target in links.items():
        (run / name).symlink_to(target)
    (tmp_path / "runs" / "e.run").mkdir()
    (tmp_path / "runs" / "e.json").symlink_to(private)
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path / "runs"), "--out", str(out)]) == 0
    assert SECRET not in out.read_text()
    view = read_run(run)
    assert [row.result.task for row in view.index.rows] == ["t"]
    assert (
        "links are not followed" in {entry.path: entry.reason for entry in view.index.unreadable}["x__attempt_0.jsonl"]
    )


@pytest.mark.parametrize("kind", ["device", "pipe"])
@pytest.mark.parametrize("name", ["x__attempt_0.jsonl", "metrics.jsonl", "config.yaml", "health.jsonl", "timing.jsonl",
                                  "t__attempt_0.advantages.json"])  # fmt: skip
def test_devices_and_pipes_are_not_read(tmp_path: Path, kind: str, name: str) -> None:
    write_training(tmp_path, 3)
    store.write_episode(tmp_path, make_episode("t", 0, 1.0))
    (tmp_path / name).unlink(missing_ok=True)
    if kind == "pipe":
        os.mkfifo(tmp_path / name)
    else:
        (tmp_path / name).symlink_to("/dev/zero")
    view = read_run(tmp_path)
    assert [row.result.task for row in view.index.rows] == ["t"]
    assert view.record()["episodes"] == 1


def test_a_result_that_is_a_pipe_or_has_no_end(tmp_path: Path) -> None:
    write_run(tmp_path / "a.run" / "episodes", [[1.0]])
    os.mkfifo(tmp_path / "a.json")
    write_run(tmp_path / "b.run" / "episodes", [[1.0]])
    with (tmp_path / "b.json").open("wb") as sparse:
        sparse.truncate(1 << 40)
    out = tmp_path / "report.html"
    assert main(["report", str(tmp_path), "--out", str(out)]) == 0


def test_yaml_that_grows_is_not_expanded(tmp_path: Path) -> None:
    write_training(tmp_path, 3)
    (tmp_path / "config.yaml").write_text(MERGES)
    view = read_run(tmp_path)
    assert view.record()["planned"] is None
    (tmp_path / "config.yaml").write_text("trainer:\n  total_training_steps: 7\n")
    assert view.record()["planned"] == 7


def test_an_error_in_one_run_does_not_end_the_live_page_for_the_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whatever else a file may do to a reader: here the reader of one run is broken on purpose."""
    write_run(tmp_path / "bad", [[1.0]])
    write_run(tmp_path / "good", [[1.0], [0.0]])
    watcher = FolderWatcher(tmp_path, lambda message: None)
    watcher.refresh(0.0)
    views = {view.name: view for view in watcher.views.values()}

    def fail() -> bool:
        raise RuntimeError("a file that nobody thought of")

    monkeypatch.setattr(views["bad"].index, "advance", fail)
    watcher.read_some()
    assert len(views["good"].index.rows) == 2
    assert views["bad"].record()["fault"] == "a file that nobody thought of"
