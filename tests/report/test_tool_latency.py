"""How long tools took: measured while episodes run, beside their files, and shown by tool."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path

from practicum.data import store
from practicum.data.collection import TIMING_FILE
from practicum.data.episode_times import append_times
from practicum.report.index import EpisodeIndex
from practicum.tools.base import start_timing, timed_call, timed_step, tool_seconds
from tests.report.report_files import make_episode


def test_calls_are_timed_by_tool_and_a_step_stands_for_its_only_call() -> None:
    async def tool_call(failing: bool = False) -> str:
        if failing:
            raise ValueError("no")
        return "done"

    async def nested_call() -> str:
        return await timed_call("inner", tool_call())

    async def episode() -> dict[str, tuple[float, ...]]:
        start_timing()
        await timed_call("a", tool_call())
        with contextlib.suppress(ValueError):
            await timed_call("a", tool_call(failing=True))
        await timed_step(["b"], tool_call())
        await timed_step(["c", "d"], tool_call())  # which of the two took how long is not known
        await timed_step(["e"], nested_call())
        return tool_seconds()

    async def two_episodes() -> list[dict[str, tuple[float, ...]]]:
        return await asyncio.gather(episode(), episode())

    for seconds in asyncio.run(two_episodes()):
        assert {name: len(values) for name, values in seconds.items()} == {"a": 2, "b": 1, "inner": 1}
        assert all(value >= 0 for values in seconds.values() for value in values)


def test_the_index_reads_times_beside_the_episodes_and_one_folder_above(tmp_path: Path) -> None:
    timed = replace(make_episode("t", 0, 1.0), tool_seconds={"calculator": (0.25, 1.5)})
    append_times(tmp_path / "collected" / TIMING_FILE, timed)
    store.write_episode(tmp_path / "collected", timed)
    append_times(tmp_path / "evaluated" / TIMING_FILE, timed, seconds=9.0)
    store.write_episode(tmp_path / "evaluated" / "episodes", timed)
    store.write_episode(tmp_path / "untimed", timed)
    damaged = tmp_path / "damaged"
    store.write_episode(damaged, timed)
    hostile = {"task_id": "t", "attempt": 0, "tools": {"calculator": [1, "x", None, -1, float("nan")], "y": 3}}
    (damaged / TIMING_FILE).write_text(f'[]\n{{"step": 1}}\n{json.dumps(hostile)}\n{{"task_id": "t", "att')
    times = {}
    for folder in ("collected", "evaluated", "untimed", "damaged"):
        index = EpisodeIndex(tmp_path / folder)
        list(index.read_all())
        times[folder] = index.rows[0].tool_seconds
    assert times == {
        "collected": {"calculator": (0.25, 1.5)},
        "evaluated": {"calculator": (0.25, 1.5)},
        "untimed": {},
        "damaged": {"calculator": (1.0,)},
    }
