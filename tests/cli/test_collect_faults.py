"""`practicum collect` when something fails on the way (a killed worker, a server that is gone), and its memory."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.environments.worker import close_pools

WORKED = '''
import pathlib
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.environments.worker import shared_pool
from practicum.task import Task

MARK = pathlib.Path(__file__).with_name("killed")

class Worked(Environment):
    """Its engine runs in one worker process, which the first episode to take a step kills."""
    name = "worked"
    session = None

    def tasks(self, split, count, seed=0):
        return [Task(f"t-{n}", "worked", split, {}) for n in range(count)]

    async def reset(self, task, seed):
        self.session = shared_pool("tests.environments.worker_hosts:Counter", {}, 1).open_session()
        await self.session.call("count")
        return Observation((Message("user", "go"),))

    async def step(self, action):
        if not MARK.exists():
            MARK.touch()
            await self.session.call("exit")
        await self.session.call("count")
        return Step(reward=1.0, terminated=True)

    async def close(self):
        if self.session is not None:
            self.session.close()

    def expert(self, task):
        return lambda observation: Action(content="go")
'''

COUNTED = '''
import gc
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.task import Task
from practicum.trajectory import Trajectory

class Counted(Environment):
    """Its last task's observation says how many episodes are in memory."""
    name = "counted"

    def tasks(self, split, count, seed=0):
        return [Task(f"t-{n}", "counted", split, {"n": n}) for n in range(count)]

    async def reset(self, task, seed):
        held = [x for x in gc.get_objects() if type(x) is Trajectory and x.task.environment == "counted"]
        return Observation((Message("user", str(len(held))),))

    async def step(self, action):
        return Step(reward=1.0, terminated=True)

    def expert(self, task):
        return lambda observation: Action(content="go")
'''


def collect(tmp_path: Path, source: str, name: str, *more: str) -> int:
    (tmp_path / "world.py").write_text(source)
    environment = f"{tmp_path / 'world.py'}:{name}"
    return main(["collect", "--env", environment, "--out", str(tmp_path), "--run-id", "r", *more])


def test_episodes_of_a_worker_that_was_killed_are_run_again_on_a_new_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        assert collect(tmp_path, WORKED, "Worked", "--tasks", "12") == 0
    finally:
        close_pools()
    assert (tmp_path / "killed").exists()
    assert "12 success" in capsys.readouterr().out


def test_episodes_do_not_stay_in_memory(tmp_path: Path) -> None:
    assert collect(tmp_path, COUNTED, "Counted", "--tasks", "6", "--concurrency", "1") == 0
    lines = (tmp_path / "collect" / "r" / "t-5__attempt_0.jsonl").read_text().splitlines()
    (message,) = json.loads(lines[1])["messages"]
    assert int(message["content"]) <= 1


def test_a_server_that_is_not_there_is_said_before_the_first_episode(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = "http://127.0.0.1:9/v1"
    assert main(["collect", "--env", "math", "--url", url, "--policy", "m", "--out", str(tmp_path)]) == 2
    captured = capsys.readouterr()
    assert f"No server answers at {url}" in captured.err
    assert "episodes" not in captured.err
    assert list(tmp_path.iterdir()) == []
