"""Which tasks come next."""

from __future__ import annotations

import pytest

from practicum.errors import UserError
from practicum.task import Task
from practicum.training.rollout_source import TaskStream
from practicum.training.settings import CurriculumSettings
from practicum.trajectory import Outcome, Seeds, Trajectory

TASKS = [Task(f"{level}-{n}", "x", "train", {"level": level}) for n in range(4) for level in (3, 1, 2)]


def played(task: Task, success: bool) -> Trajectory:
    outcome = Outcome.SUCCESS if success else Outcome.FAILURE
    return Trajectory(task, 0, task.id, outcome, (), float(success), {}, Seeds(0, 0))


def test_without_a_curriculum_tasks_go_round() -> None:
    stream = TaskStream(TASKS[:5], draw=3)
    assert [t.id for t in stream.take(3) + stream.take(3)] == [t.id for t in [*TASKS[:5], TASKS[0]]]


def test_easy_tasks_come_first_and_success_opens_the_next_level() -> None:
    stream = TaskStream(TASKS, CurriculumSettings(threshold=0.75, window=4), draw=2)
    assert {t.fields["level"] for t in stream.take(2)} == {1}
    stream.update([played(TASKS[1], success) for success in (True, True, False, False)])
    assert stream.open == 1
    stream.update([played(TASKS[1], True), played(TASKS[1], True)])  # the last four: no, no, yes, yes
    assert stream.open == 1
    stream.update([played(TASKS[1], True)])  # no, yes, yes, yes
    assert stream.open == 2
    assert {t.fields["level"] for t in stream.take(4)} == {1, 2}
    assert stream.metrics() == {"curriculum/open_levels": 2.0}


def test_a_draw_never_holds_a_task_twice() -> None:
    stream = TaskStream(TASKS, CurriculumSettings(), draw=3)
    for _ in range(5):
        used = [t.id for t in stream.take(4)]
        assert len(set(used)) == len(used) == 4
    assert len(stream.take(9)) == 4  # the open level has no more


def test_a_restored_stream_continues() -> None:
    stream = TaskStream(TASKS, CurriculumSettings(threshold=0.5, window=2), draw=2)
    stream.take(3)
    stream.update([played(TASKS[1], True), played(TASKS[1], True)])
    second = TaskStream(TASKS, CurriculumSettings(threshold=0.5, window=2), draw=2)
    second.restore(stream.state())
    assert [t.id for t in stream.take(5)] == [t.id for t in second.take(5)]
    assert stream.state() == second.state()


def test_the_tasks_of_a_file_come_in_another_order_in_every_epoch() -> None:
    stream, second, other = (TaskStream(TASKS, draw=4, shuffle_seed=seed) for seed in (7, 7, 8))
    epochs = [[t.id for _ in range(3) for t in stream.take(4)] for _ in range(4)]
    assert all(sorted(epoch) == sorted(t.id for t in TASKS) for epoch in epochs)
    assert len({tuple(epoch) for epoch in [*epochs, [t.id for t in TASKS]]}) == 5
    assert [t.id for t in second.take(4)] == epochs[0][:4]
    assert [t.id for _ in range(3) for t in other.take(4)] != epochs[0]


def test_a_shuffled_draw_never_holds_a_task_twice() -> None:
    stream = TaskStream(TASKS, draw=5, shuffle_seed=1)  # 12 tasks: two are left out of every epoch
    for _ in range(8):
        assert len({t.id for t in stream.take(5)}) == 5


def generated(count: int, limit: int = 10**6) -> list[Task]:
    return [Task(f"g-{n}", "x", "train", {"level": n % 3}) for n in range(min(count, limit))]


def test_generated_tasks_do_not_repeat_while_there_are_more() -> None:
    """Dynamic sampling and an unopened curriculum draw more than steps × batch tasks."""
    plain = TaskStream(generated(6), draw=4, more=generated)
    drawn = [t.id for _ in range(10) for t in plain.take(4)]
    assert drawn == [f"g-{n}" for n in range(40)]
    easiest = TaskStream(generated(12), CurriculumSettings(), draw=4, more=generated)
    assert len({t.id for _ in range(10) for t in easiest.take(4)}) == 40
    restored = TaskStream(generated(12), CurriculumSettings(), draw=4, more=generated)
    restored.restore(easiest.state())
    assert [t.id for t in restored.take(4)] == [t.id for t in easiest.take(4)]
    finite = TaskStream(generated(6), draw=4, more=lambda count: generated(count, 9))
    assert [t.id for _ in range(3) for t in finite.take(4)] == [f"g-{n % 9}" for n in range(12)]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(UserError, match="4 training tasks of the easiest level are fewer than the 5"):
        TaskStream(TASKS, CurriculumSettings(), draw=5)
    with pytest.raises(UserError, match="has no such field"):
        TaskStream(TASKS, CurriculumSettings(field="depth"))
