"""What `practicum envs check` finds."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.cli.envs import check_all
from practicum.evaluation.environment_check import CheckResult
from practicum.utils.memory import descendants, tree_resident_megabytes

SOUND = CheckResult(50, 1.0, 1.0, 0.0, 0.0, True, True, True, 100.0, 50, 50, 10.0)

ENVIRONMENT = '''
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.task import Task


class Moody(Environment):
    """Its text depends on the order of a set of strings, which differs between processes."""

    name = "moody"

    async def reset(self, task, seed):
        return Observation((Message("user", " ".join({"red", "green", "blue", "white", "black", "grey"})),))

    async def step(self, action):
        return Step(reward=float(action.content == "yes"), terminated=True)

    def tasks(self, split, count, seed=0):
        return [Task(f"{split}-{n}", self.name, split, {"split": split, "n": n}) for n in range(count)]

    def expert(self, task):
        return lambda observation: Action(content="yes")
'''


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"oracle": 0.8}, "the expert fails"),
        ({"null": 0.1}, "the null policy is above its floor"),
        ({"repeats": False}, "the same seed gave another episode"),
        ({"replays": False}, "another process gave another episode"),
        ({"disjoint": False}, "splits overlap"),
        ({"num_open": 49}, "only 49 of 50 episodes could be open at once"),
    ],
)
def test_every_fault_is_named(change: dict[str, float], fault: str) -> None:
    assert SOUND.faults == []
    assert replace(SOUND, **change).faults == [fault]  # type: ignore[arg-type]


def test_an_expert_is_held_to_its_ceiling_as_far_as_the_tasks_can_tell() -> None:
    assert replace(SOUND, oracle=0.8, ceiling=0.8).faults == []
    assert replace(SOUND, tasks=4, oracle=0.75).faults == []  # three of four say little
    assert replace(SOUND, tasks=4, oracle=0.25).faults == ["the expert fails"]


def test_the_documented_example_is_sound_and_an_order_that_differs_in_another_process_is_found(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    page = (Path(__file__).parents[2] / "docs" / "environments.md").read_text()
    parrot, moody = tmp_path / "parrot.py", tmp_path / "moody worlds.py"
    parrot.write_text(page.split("```python\n")[1].split("```")[0])
    moody.write_text(ENVIRONMENT)
    # The child's order is set by this; six words have 720 orders, and this process has another seed of its own.
    monkeypatch.setenv("PYTHONHASHSEED", "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2")
    assert check_all([f"{parrot}:Parrot", f"{moody}:Moody"], 3, {}) == 1
    sound, differing = capsys.readouterr().out.splitlines()[-2:]
    assert sound.endswith("  sound")
    assert "DIFFERS" in differing
    assert "another process gave another episode" in differing
    assert "the same seed gave" not in differing


def test_memory_of_a_process_tree() -> None:
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"]) as child:
        try:
            assert child.pid in [process.pid for process in descendants()]
            assert tree_resident_megabytes() > tree_resident_megabytes(child.pid) > 1
        finally:
            child.kill()
    assert child.pid not in [process.pid for process in descendants()]
