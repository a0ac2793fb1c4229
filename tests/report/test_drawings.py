"""Drawings of episodes in the report and in a terminal: by the environments of the package, and by a user's own."""

from __future__ import annotations

import asyncio
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data import store
from practicum.environment import Action
from practicum.report.document import by_interest
from practicum.report.drawings import Drawings
from practicum.report.run_view import RunView
from practicum.report.runs import find_runs
from practicum.report.tokens import Tokenizers
from practicum.rollout import run_episodes
from practicum.rollout_setup import make_rollout_setup
from practicum.trajectory import Trajectory, plan_attempts
from tests.report.report_files import make_episode

OWN = """
from practicum.environment import Drawing, Environment


class Mine(Environment):
    name = "math"

    async def reset(self, task, seed): ...

    async def step(self, action): ...

    @classmethod
    def draw_episode(cls, task, actions):
        if task.id == "broken":
            raise KeyError("no such field")
        return Drawing("<svg xmlns='http://www.w3.org/2000/svg'/>", f"{len(actions)} actions")
"""


@pytest.fixture(scope="module")
def plans() -> list[Trajectory]:
    """Plans of three requests by the heuristic."""
    setup = make_rollout_setup("htdag", "heuristic", max_turns=20)
    planned = plan_attempts(setup.environment.tasks("test", 3), 1, 0)
    return asyncio.run(run_episodes(planned, setup.make_environment, setup.agent, setup.engine, setup.renderer))


def test_the_report_draws_the_first_and_the_last_step_of_a_run(plans: list[Trajectory], tmp_path: Path) -> None:
    for step, episode in zip((1, 2, 8), plans, strict=True):
        store.write_episode(tmp_path / "run" / "groups" / f"step_{step}", replace(episode, reward=float(step)))
        store.write_episode(tmp_path / "run" / "groups" / f"step_{step}", replace(episode, attempt=1, reward=0.0))
        store.write_episode(tmp_path / "run" / "top_episodes" / "step_9", episode)
    (tmp_path / "run" / "metrics.jsonl").write_text('{"step": 1, "reward/mean": 0.5}\n')
    (run,) = find_runs([tmp_path / "run"])
    view = RunView(run)
    list(view.index.read_all())
    drawings = view.record()["drawings"]
    rows = [view.index.rows[index] for index in drawings]
    assert [(row.step, row.result.attempt) for row in rows] == [(1, 0), (8, 0)]
    chosen = list(by_interest([view]))
    assert {row.number for _, row in chosen} >= set(drawings)
    svg = view.episode(rows[0], Tokenizers())["drawing"]["svg"]
    assert ET.fromstring(svg).tag.endswith("svg")
    assert plans[0].task.fields["request"].split()[0] in svg
    assert main(["report", str(tmp_path / "run"), "-o", str(tmp_path / "report.html")]) == 0
    assert '"drawings":[' in (tmp_path / "report.html").read_text()


def test_a_plan_is_drawn_in_the_terminal(
    plans: list[Trajectory], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = store.write_episode(tmp_path, plans[0])
    assert main(["show", str(path), "--color", "never"]) == 0
    tree = capsys.readouterr().out.partition("── drawing\n")[2].splitlines()
    assert tree[0].startswith("0 request") or tree[0].startswith("0 ")
    assert any(line.startswith("├─ 1 ") or line.startswith("└─ 1 ") for line in tree)


def test_a_users_environment_draws_where_the_user_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "mine.py"
    source.write_text(OWN)
    path = store.write_episode(tmp_path, make_episode("2+2", 0, 1.0))
    broken = store.write_episode(tmp_path, make_episode("broken", 0, 1.0))
    assert main(["show", str(path), "--color", "never"]) == 0
    assert "── drawing" not in capsys.readouterr().out
    assert main(["show", str(path), "--color", "never", "--env", f"{source}:Mine"]) == 0
    assert capsys.readouterr().out.endswith("── drawing\n1 actions\n")
    assert main(["show", str(broken), "--color", "never", "--env", f"{source}:Mine"]) == 0
    assert "no drawing: KeyError: 'no such field'" in capsys.readouterr().out
    out = str(tmp_path / "r.html")
    assert main(["report", str(tmp_path), "-o", out, "--env", f"{source}:Mine"]) == 0
    assert main(["report", str(tmp_path), "-o", out, "--env", f"{source}:Yours"]) == 2
    drawings = Drawings([f"{source}:Mine"])
    assert drawings.record(make_episode("broken", 0, 1.0)) == {
        "fault": f"KeyError: 'no such field' ({source}:15 in draw_episode)"
    }


def test_no_code_is_run_because_a_file_names_it(tmp_path: Path) -> None:
    source = tmp_path / "mine.py"
    source.write_text("raise SystemExit('it ran')\n")
    episode = make_episode("2+2", 0, 1.0)
    episode = replace(episode, task=replace(episode.task, environment=f"{source}:Mine"))
    assert Drawings().record(episode) is None


def test_a_hostile_plan_makes_no_markup(plans: list[Trajectory]) -> None:
    hostile = '0: buy "<script>alert(1)</script>", tidy \x00\x1b[31m&'
    turn = replace(plans[0].turns[0], action=Action(text=hostile, content=hostile))
    fields = {**plans[0].task.fields, "request": "</text><image href='http://x'/>"}
    episode = replace(plans[0], task=replace(plans[0].task, fields=fields), turns=(turn,))
    record = Drawings().record(episode)
    assert record is not None
    tags = {element.tag.rpartition("}")[2] for element in ET.fromstring(record["svg"]).iter()}
    assert tags <= {"svg", "rect", "text", "path"}
