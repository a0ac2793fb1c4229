from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.data import store
from practicum.data.run_folder import write_atomic
from practicum.data.store import decode_episode, encode_episode
from practicum.environment import Action, Message, ToolCall
from practicum.errors import UserError
from practicum.task import Task
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

TEXT = st.text(max_size=20)
IDS = st.lists(st.integers(0, 50_000), max_size=6).map(tuple)
NUMBERS = st.floats(allow_nan=False, allow_infinity=False)
CALLS = st.lists(st.builds(ToolCall, TEXT, st.dictionaries(TEXT, NUMBERS | TEXT, max_size=2)), max_size=2).map(tuple)
MESSAGES = st.lists(st.builds(Message, st.sampled_from(["user", "tool"]), TEXT, st.none() | TEXT), max_size=2).map(
    tuple
)


@st.composite
def turns(draw: st.DrawFn) -> Turn:
    ids = draw(IDS)
    logprobs = draw(st.none() | st.lists(NUMBERS, min_size=len(ids), max_size=len(ids)).map(tuple))
    reply = draw(TEXT)
    return Turn(
        spans=(Span(draw(st.sampled_from([Origin.TEMPLATE, Origin.OBSERVATION])), draw(IDS)),
               Span(Origin.SAMPLED, ids, logprobs)),
        restart=draw(st.booleans()),
        messages=draw(MESSAGES),
        reply=reply,
        action=Action(reply, draw(TEXT), draw(CALLS), draw(TEXT), draw(st.none() | TEXT)),
        source=draw(st.sampled_from(list(ActionSource))),
        policy_version=draw(st.integers(0, 10)),
        stop_reason=draw(st.sampled_from(list(StopReason))),
        seed=draw(st.integers(0, 2**63 - 1)),
        reward=draw(NUMBERS),
        components=draw(st.dictionaries(TEXT, NUMBERS, max_size=2)),
        progress=draw(st.none() | NUMBERS),
        info=draw(st.dictionaries(TEXT, TEXT, max_size=2)),
    )  # fmt: skip


TRAJECTORIES = st.builds(
    Trajectory,
    task=st.builds(Task, TEXT, TEXT, TEXT, st.dictionaries(TEXT, TEXT | NUMBERS, max_size=3)),
    attempt=st.integers(0, 99),
    group=TEXT,
    outcome=st.sampled_from(list(Outcome)),
    turns=st.lists(turns(), max_size=3).map(tuple),
    reward=NUMBERS,
    components=st.dictionaries(TEXT, NUMBERS, max_size=2),
    seeds=st.builds(Seeds, st.integers(0, 2**63), st.integers(0, 2**63)),
    closing=MESSAGES,
    error=st.none() | TEXT,
    provenance=st.dictionaries(TEXT, TEXT, max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(TRAJECTORIES)
def test_bytes_and_record_are_one(episode: Trajectory) -> None:
    data = encode_episode(episode)
    again = decode_episode(data)
    assert again == episode
    assert encode_episode(again) == data


def episode(task_id: str = "t") -> Trajectory:
    task = Task(task_id, "math", "train", {"question": "?"})
    return Trajectory(task, 0, task_id, Outcome.FAILURE, (), 0.0, {}, Seeds(1, 2))


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_a_cut_file_is_never_taken_for_an_episode(data: st.DataObject) -> None:
    complete = encode_episode(episode())
    length = data.draw(st.integers(0, len(complete) - 1))
    with pytest.raises((ValueError, KeyError)):
        decode_episode(complete[:length])


def test_an_edited_task_is_noticed(tmp_path: Path) -> None:
    path = store.write_episode(tmp_path, episode())
    path.write_bytes(path.read_bytes().replace(b'"question":"?"', b'"question":"!"'))
    with pytest.raises(UserError, match="does not match its hash"):
        store.read_episode(path)


@pytest.mark.parametrize("name", ["../../evil", "/etc/passwd", "..", "a/b\\c", "x" * 500, "naïve task №1", "."])
def test_a_task_id_is_never_a_path(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "run"
    path = store.write_episode(folder, episode(name))
    assert path.parent == folder
    assert store.read_episode(path).task.id == name


def test_long_ids_that_begin_alike_stay_apart(tmp_path: Path) -> None:
    assert store.episode_path(tmp_path, "x" * 400 + "a", 0) != store.episode_path(tmp_path, "x" * 400 + "b", 0)


@pytest.mark.parametrize("broken", ["write", "fsync", "replace"])
def test_a_full_disk_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str) -> None:
    before = store.write_episode(tmp_path, episode("old"))
    data = before.read_bytes()

    def full(*arguments: Any, **options: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if broken == "write":
        real = os.fdopen

        def fdopen(handle: int, mode: str) -> Any:
            file = real(handle, mode, buffering=0)
            monkeypatch.setattr(os, "fsync", full)
            return file

        monkeypatch.setattr(os, "fdopen", fdopen)
    else:
        monkeypatch.setattr(os, broken, full)
    with pytest.raises(UserError, match="No space left on device") as exc_info:
        store.write_episode(tmp_path, episode("old"))
    assert "\n" not in str(exc_info.value)
    assert [p.name for p in tmp_path.iterdir()] == [before.name]
    assert before.read_bytes() == data
    assert "free some space" in str(exc_info.value)


@pytest.mark.parametrize("below", ["episode.jsonl", "run/episode.jsonl"])
def test_a_file_where_a_folder_should_be_is_named(tmp_path: Path, below: str) -> None:
    location = tmp_path / "out"
    location.write_text("")
    with pytest.raises(UserError, match=f"'{location}' is a file, not a folder; write elsewhere") as exc_info:
        write_atomic(location / below, b"")
    assert "free some space" not in str(exc_info.value)
