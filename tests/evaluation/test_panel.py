from __future__ import annotations

from pathlib import Path

import pytest

from practicum.data.tasks import read_registry
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.evaluation.panel import Panel, read_panel

PANEL = Panel(tuple(MathEnvironment().tasks("test", 40)), 0)


def test_a_panel_is_named_by_tasks_and_seed() -> None:
    assert PANEL.hash == Panel(PANEL.tasks, 0).hash
    assert PANEL.hash != Panel(PANEL.tasks, 1).hash
    assert PANEL.hash != Panel(PANEL.tasks[1:], 0).hash
    assert PANEL.attempts() == Panel(PANEL.tasks, 0).attempts()


def test_rules_are_part_of_a_panel() -> None:
    """The same tasks with another reward or fewer turns are another panel."""
    ruled = Panel(PANEL.tasks, 0, {"max_turns": 3})
    assert len({PANEL.hash, ruled.hash, Panel(PANEL.tasks, 0, {"max_turns": 4}).hash}) == 3
    assert Panel(PANEL.tasks, 0, {}).hash == PANEL.hash


def test_more_attempts_begin_with_the_same_ones() -> None:
    four = PANEL.attempts(4)
    assert len(four) == 160
    assert [attempt for attempt in four if attempt.number == 0] == PANEL.attempts()
    assert len({attempt.seeds.sampling for attempt in four}) == 160


def test_a_panel_file_is_the_panel(tmp_path: Path) -> None:
    result = Panel(PANEL.tasks, 3, {"max_turns": 3, "options": {"levels": [1]}})
    path = tmp_path / "panel.json"
    result.write(path)
    assert read_panel(path) == result
    assert read_panel(path).hash == result.hash
    listed = read_registry(path, "math", "test").tasks(MathEnvironment(), "test", 0)  # and a task registry besides
    assert listed == list(result.tasks)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"seed": 3', '"seed": 4', "it was changed"),
        ('"max_turns": 3', '"max_turns": 30', "it was changed"),
        ('"practicum panel 1"', '"practicum panel 9"', "is not a panel"),
        ('"tasks"', '"tusks"', "is not a panel"),
        ("{", "", "is not JSON"),
    ],
)
def test_a_changed_panel_is_refused(old: str, new: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "panel.json"
    Panel(PANEL.tasks[:2], 3, {"max_turns": 3}).write(path)
    path.write_text(path.read_text().replace(old, new, 1))
    with pytest.raises(UserError, match=message):
        read_panel(path)
    with pytest.raises(UserError, match="Cannot read the panel"):
        read_panel(tmp_path / "none.json")
