"""The live page's server: what it answers, what it refuses, and that it tells what is new."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import uvicorn
from transformers import PreTrainedTokenizerBase

from practicum.data import store
from practicum.report.live.app import make_app
from practicum.report.live.server import LiveServer, hosts
from practicum.report.live.watcher import FolderWatcher
from practicum.training.monitor.loggers import MetricsFile
from tests.report.report_files import (
    make_episode,
    step_values,
    write_damaged_episodes,
    write_hostile_episodes,
    write_run,
    write_training,
)


class Running:
    """A server in a thread, on a port of its own."""

    def __init__(self, folder: Path) -> None:
        app = make_app(folder, hosts("127.0.0.1"))
        config = uvicorn.Config(app, port=0, log_level="warning", timeout_graceful_shutdown=2)
        self.server = LiveServer(config, app.state.live)
        self.thread = threading.Thread(target=self.server.run, daemon=True)

    def __enter__(self) -> str:
        self.thread.start()
        deadline = time.monotonic() + 60
        while not self.server.started and time.monotonic() < deadline:
            time.sleep(0.01)
        port = self.server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/"

    def __exit__(self, *arguments: object) -> None:
        self.server.live.hub.close()
        self.server.should_exit = True
        self.thread.join(10)


@pytest.fixture
def folder(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> Path:
    write_run(tmp_path / "first", [[0.0, 1.0], [0.0, 0.0]], tokenizer)
    write_run(tmp_path / "second", [[1.0, 1.0], [1.0, 0.0]], tokenizer)
    write_training(tmp_path / "training", 6)
    return tmp_path


def get_json(address: str) -> Any:
    answer = httpx.get(address, timeout=60)
    assert answer.status_code == 200
    return answer.json()


def poll_until(address: str, ready: Any) -> Any:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        response = get_json(address)
        if ready(response):
            return response
        time.sleep(0.05)
    raise AssertionError(f"{address} did not come: {response}")


def all_episodes_read(response: Any) -> bool:
    return len(response["runs"]) == 3 and sum(run["episodes"] for run in response["runs"]) == 8


def events(address: str, count: int, act: Any) -> list[dict[str, Any]]:
    """What the page is told after `act`, so many messages."""
    messages: list[dict[str, Any]] = []
    with httpx.stream("GET", f"{address}api/events", timeout=60) as answer:
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines: Iterator[str] = answer.iter_lines()
        assert next(lines).startswith("retry")
        act()
        for line in lines:
            if line.startswith("data: "):
                messages.append(json.loads(line[6:]))
                if len(messages) == count:
                    break
    return messages


def test_the_page_gets_runs_episodes_and_comparisons(folder: Path) -> None:
    with Running(folder) as address:
        runs = {run["name"]: run["key"] for run in poll_until(f"{address}api/runs", all_episodes_read)["runs"]}
        assert set(runs) == {"first", "second", "training"}
        record = get_json(f"{address}api/run?run={runs['training']}")
        assert record["curves"][0]["step"] == 6
        rows = get_json(f"{address}api/episodes?run={runs['first']}&from=1")
        assert (len(rows["rows"]), rows["count"], rows["waiting"]) == (3, 4, 0)
        episode = get_json(f"{address}api/episode?run={runs['first']}&number=1")
        assert "".join(episode["turns"][0]["spans"][2]["texts"]) == "the answer is 4"
        forward, back = get_json(f"{address}api/compare?runs={runs['first']},{runs['second']}")["comparisons"]
        assert forward["tasks"] == back["tasks"] == 2
        assert httpx.get(f"{address}api/run?run=nobody").status_code == 404
        assert "no such episode" in get_json(f"{address}api/episode?run={runs['first']}&number=99")["fault"]


def test_only_reads_and_only_its_own_host_name_are_answered(folder: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    with Running(folder) as address:
        poll_until(f"{address}api/runs", all_episodes_read)
        for method in ("POST", "PUT", "DELETE", "PATCH"):
            assert httpx.request(method, f"{address}api/runs").status_code == 405
        assert httpx.get(address, headers={"Host": "evil.example"}).status_code == 400
        assert httpx.get(f"{address}api/episode?run=../../etc&number=0").status_code == 404
        assert httpx.get(f"{address}etc/passwd").status_code == 404
        response = httpx.get(address)
        policy = response.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert response.headers["x-content-type-options"] == "nosniff"
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_new_steps_and_episodes_are_sent_as_events(folder: Path) -> None:
    with Running(folder) as address:
        runs = {run["name"]: run["key"] for run in poll_until(f"{address}api/runs", all_episodes_read)["runs"]}

        def train() -> None:
            file = MetricsFile(folder / "training" / "metrics.jsonl", keep_to=None)
            file.close()
            write_training(folder / "training", 6)

        def step() -> None:
            with (folder / "training" / "metrics.jsonl").open("a") as file:
                file.write(json.dumps({"step": 7, **step_values(7)}) + "\n")

        (event,) = events(address, 1, step)
        assert (event["type"], event["run"], event["step"], event["row"]) == ("step", runs["training"], 7, 7)
        assert event["points"]["success/mean"][0] == step_values(7)["success/mean"]
        assert (
            event["points"]["success/mean"][1] < event["points"]["success/mean"][0] < event["points"]["success/mean"][2]
        )
        (event,) = events(address, 1, train)
        assert event["again"] is True
        new_events = events(address, 2, lambda: store.write_episode(folder / "first", make_episode("new", 0, 1.0)))
        assert {(event["type"], event["count"]) for event in new_events} == {("episodes", 4), ("episodes", 5)}


def test_a_new_run_is_found(folder: Path) -> None:
    with Running(folder) as address:
        poll_until(f"{address}api/runs", all_episodes_read)
        (event,) = events(address, 1, lambda: write_training(folder / "another", 2))
        assert event == {"type": "runs"}
        assert {run["name"] for run in get_json(f"{address}api/runs")["runs"]} == {
            "another",
            "first",
            "second",
            "training",
        }


def test_hostile_and_damaged_files_are_answered_as_json(tmp_path: Path, tokenizer: PreTrainedTokenizerBase) -> None:
    paths = write_hostile_episodes(tmp_path / "bad", tokenizer)
    damaged = write_damaged_episodes(tmp_path / "bad", tokenizer)
    with Running(tmp_path) as address:
        (run,) = poll_until(
            f"{address}api/runs", lambda response: response["runs"] and response["runs"][0]["episodes"] == len(paths)
        )["runs"]
        record = poll_until(f"{address}api/run?run={run['key']}", lambda response: not response["waiting"])
        assert record["unreadable_count"] == len(damaged)
        for index in range(len(paths)):
            answer = httpx.get(f"{address}api/episode?run={run['key']}&number={index}", timeout=60)
            assert answer.headers["content-type"] == "application/json"
            assert "fault" not in answer.json()
            assert len(answer.content) < 400_000


def test_a_refresh_costs_the_same_for_a_run_of_any_length(tmp_path: Path) -> None:
    """Bytes read for one more step do not depend on the steps before."""
    path = tmp_path / "long" / "metrics.jsonl"
    path.parent.mkdir()
    path.write_text("".join(json.dumps({"step": step, "a": 1.0}) + "\n" for step in range(1, 20_001)))
    events_sent: list[dict[str, Any]] = []
    watcher = FolderWatcher(tmp_path, events_sent.append)
    watcher.refresh(100.0)
    (view,) = watcher.views.values()
    before = view.curves[0].tail.offset
    with path.open("a") as file:
        file.write('{"step": 20001, "a": 1.0}\n')
    watcher.refresh(101.0)
    assert view.curves[0].tail.offset - before == len('{"step": 20001, "a": 1.0}\n')
    assert events_sent[-1]["row"] == 20_001
    assert len(json.dumps(events_sent[-1])) < 200
    assert len(json.dumps(view.record())) < 60_000
