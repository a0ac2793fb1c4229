"""Episodes on disk: one JSON-lines file each, whole or not there at all.

`<out>/<experiment>/<run_id>/<task>__attempt_<k>.jsonl`: first `episode_start` with all provenance,
then one `step` a turn, last `episode_end`. A file is written beside its place, flushed to the disk
and moved in; a crash or a full disk leaves no half of it. Reading a file and writing it again gives
the same bytes.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import quote

from practicum.environment import Action, Message, ToolCall
from practicum.errors import UserError
from practicum.task import Task, content_hash, plain
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

FORMAT_VERSION = 1


def write_atomic(path: Path, data: bytes) -> None:
    """Put bytes at a path: all of them, or nothing and one clear error."""
    scratch: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=".writing-")
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)
    except OSError as error:
        if scratch is not None:
            with contextlib.suppress(OSError):
                os.unlink(scratch)
        raise UserError(f"Cannot write '{path}': {_remedy(path, error)}.") from error


def _remedy(path: Path, error: OSError) -> str:
    """What is wrong with a place to write to, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; free some space or write elsewhere"
    if isinstance(error, NotADirectoryError | FileExistsError):
        files = [str(above) for above in path.parents if os.path.exists(above) and not above.is_dir()]
        if files:
            return f"'{files[0]}' is a file, not a folder; write elsewhere"
    return f"{error.strerror}; write elsewhere"


def episode_path(folder: Path, task_id: str, attempt: int) -> Path:
    """Where an episode belongs. A task id is a name, never a path: what could climb out is escaped."""
    safe = quote(task_id, safe=" :,+=@()[]")
    safe = re.sub(r"^\.+", lambda dots: "%2E" * len(dots[0]), safe)
    if len(safe) > 180:  # a file name has its limit; a hash keeps two long ids apart
        safe = f"{safe[:160]}~{content_hash(task_id)}"
    return folder / f"{safe}__attempt_{attempt}.jsonl"


def write_episode(folder: Path, trajectory: Trajectory) -> Path:
    path = episode_path(folder, trajectory.task.id, trajectory.attempt)
    write_atomic(path, dump(trajectory))
    return path


def read_episode(path: Path) -> Trajectory:
    try:
        return load(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"There is no episode at '{path}'.") from None
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise UserError(f"'{path}' is not a whole episode file: {type(error).__name__}: {error}.") from error


def read_episodes(folder: Path) -> Iterator[Trajectory]:
    """Every episode below a folder, in the order of its path."""
    for path in sorted(folder.rglob("*__attempt_*.jsonl")):
        yield read_episode(path)


def dump(trajectory: Trajectory) -> bytes:
    """The one encoding of an episode."""
    task = trajectory.task
    records: list[dict[str, Any]] = [
        {
            "type": "episode_start",
            "format": FORMAT_VERSION,
            "task": {"id": task.id, "environment": task.environment, "split": task.split, "hash": task.hash,
                     "fields": dict(task.fields)},
            "attempt": trajectory.attempt,
            "group": trajectory.group,
            "seeds": {"environment": trajectory.seeds.environment, "sampling": trajectory.seeds.sampling},
            "provenance": dict(trajectory.provenance),
        }
    ]  # fmt: skip
    records += [{"type": "step", "index": number, **_turn_record(turn)} for number, turn in enumerate(trajectory.turns)]
    records.append(
        {
            "type": "episode_end",
            "outcome": trajectory.outcome.value,
            "reward": trajectory.reward,
            "parts": dict(trajectory.components),
            "closing": [_message_record(m) for m in trajectory.closing],
            "error": trajectory.error,
        }
    )
    lines = (
        json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)
        for record in records
    )
    # Lone surrogates (half an emoji that a model sampled) have no UTF-8 form: they are kept as escapes.
    return "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")


def load(data: bytes) -> Trajectory:
    """An episode from its bytes; ValueError where they are not a whole one."""
    if not data.endswith(b"\n"):
        raise ValueError("the file is cut short")
    records = [json.loads(line) for line in data.split(b"\n")[:-1]]
    if len(records) < 2 or records[0]["type"] != "episode_start" or records[-1]["type"] != "episode_end":
        raise ValueError("the first or last record is missing")
    if [record.get("index") for record in records[1:-1]] != list(range(len(records) - 2)):
        raise ValueError("step records are missing or out of order")
    start, end = records[0], records[-1]
    if start["format"] != FORMAT_VERSION:
        raise ValueError(f"format {start['format']} is not {FORMAT_VERSION}")
    task = Task(start["task"]["id"], start["task"]["environment"], start["task"]["split"], start["task"]["fields"])
    if task.hash != start["task"]["hash"]:
        raise ValueError(f"task '{task.id}' does not match its hash")
    return Trajectory(
        task=task,
        attempt=start["attempt"],
        group=start["group"],
        outcome=Outcome(end["outcome"]),
        turns=tuple(_turn(record) for record in records[1:-1]),
        reward=end["reward"],
        components=end["parts"],
        seeds=Seeds(start["seeds"]["environment"], start["seeds"]["sampling"]),
        closing=tuple(_message(m) for m in end["closing"]),
        error=end["error"],
        provenance=start["provenance"],
    )


def _turn_record(turn: Turn) -> dict[str, Any]:
    return {
        "restart": turn.restart,
        "messages": [_message_record(m) for m in turn.messages],
        "spans": [
            {"origin": span.origin.value, "ids": list(span.ids)}
            | ({"logprobs": list(span.logprobs)} if span.logprobs is not None else {})
            for span in turn.spans
        ],
        "reply": turn.reply,
        "action": {
            "content": turn.action.content,
            "thought": turn.action.thought,
            "calls": [_call_record(call) for call in turn.action.calls],
            "error": turn.action.error,
        },
        "source": turn.source.value,
        "policy_version": turn.policy_version,
        "stop_reason": turn.stop_reason.value,
        "seed": turn.seed,
        "reward": turn.reward,
        "parts": dict(turn.components),
        "progress": turn.progress,
        "info": dict(turn.info),
    }


def _turn(record: Mapping[str, Any]) -> Turn:
    action = record["action"]
    return Turn(
        spans=tuple(
            Span(Origin(s["origin"]), tuple(s["ids"]), tuple(s["logprobs"]) if "logprobs" in s else None)
            for s in record["spans"]
        ),
        restart=record["restart"],
        messages=tuple(_message(m) for m in record["messages"]),
        reply=record["reply"],
        action=Action(
            text=record["reply"],
            content=action["content"],
            calls=tuple(_call(c) for c in action["calls"]),
            thought=action["thought"],
            error=action["error"],
        ),
        source=ActionSource(record["source"]),
        policy_version=record["policy_version"],
        stop_reason=StopReason(record["stop_reason"]),
        seed=record["seed"],
        reward=record["reward"],
        components=record["parts"],
        progress=record["progress"],
        info=record["info"],
    )


def _message_record(message: Message) -> dict[str, Any]:
    record: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.name is not None:
        record["name"] = message.name
    if message.images:
        record["images"] = list(message.images)
    return record


def _message(record: Mapping[str, Any]) -> Message:
    return Message(record["role"], record["content"], record.get("name"), tuple(record.get("images", ())))


def _call_record(call: ToolCall) -> dict[str, Any]:
    return {"name": call.name, "arguments": dict(call.arguments)}


def _call(record: Mapping[str, Any]) -> ToolCall:
    return ToolCall(record["name"], record["arguments"])
