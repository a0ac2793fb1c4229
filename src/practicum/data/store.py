"""Episodes on disk: one JSON-lines file each, whole or not there at all.

`<out>/<experiment>/<run_id>/<task>__attempt_<k>.jsonl`, one record per line: `episode_start` with all
provenance, one `step` per turn, `episode_end`. A file is written under a temporary name, flushed to the disk and
renamed; a crash or a full disk leaves no half of it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

from practicum.data.jsonl import parse_object, read_lines
from practicum.data.run_folder import write_atomic
from practicum.environment import DEFAULT_ROLE, Action, Message, ToolCall
from practicum.errors import UserError
from practicum.task import Task, content_hash, plain
from practicum.trajectory import (
    ActionSource,
    Origin,
    Outcome,
    Seeds,
    Span,
    StopReason,
    Trajectory,
    Turn,
    continued_turns,
    reply_confidence,
)
from practicum.utils.terminal import Progress

FORMAT_VERSION = 1
MAX_TOKEN_ID = 2**31 - 1
LOGPROB_ROUNDING = 1e-3
"""How far above 0 a log-prob may lie by rounding; a larger one is no log-prob."""

FIELDS: Mapping[str, Sequence[str]] = {
    "episode_start": ("format", "task", "attempt", "group", "seeds", "provenance"),
    "step": ("index", "restart", "messages", "spans", "reply", "action", "source", "policy_version", "stop_reason",
             "seed", "reward", "parts", "progress", "info"),
    "episode_end": ("outcome", "reward", "parts", "closing", "error"),
}  # fmt: skip
"""The fields that each type of record has."""
DECODE_ERRORS = (ValueError, KeyError, TypeError, IndexError, AttributeError, OverflowError, RecursionError)
"""What decoding raises for bytes that are no whole episode."""


def encode_episode(trajectory: Trajectory) -> bytes:
    """Return the one encoding of an episode."""
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
    records += [{"type": "step", "index": index, **_turn_record(turn)} for index, turn in enumerate(trajectory.turns)]
    records.append(
        {
            "type": "episode_end",
            "outcome": trajectory.outcome.value,
            "reward": trajectory.reward,
            "parts": dict(trajectory.components),
            "closing": [_message_record(m) for m in trajectory.closing],
            "error": trajectory.error,
            **({} if trajectory.traceback is None else {"traceback": trajectory.traceback}),
        }
    )
    lines = (
        json.dumps(record, ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=plain)
        for record in records
    )
    # Lone surrogates (half an emoji that a model sampled) have no UTF-8 form: they are kept as escapes.
    return "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")


def decode_episode(data: bytes) -> Trajectory:
    """Return the episode that was encoded; raise one of DECODE_ERRORS where the bytes are not a whole one."""
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
        traceback=end.get("traceback"),
    )


def decode_fault(data: bytes, error: Exception) -> str:
    """Say why bytes that `decode_episode` refused with `error` are no episode: the line and field where it can be
    told, otherwise what the error says."""
    if not data.endswith(b"\n"):
        return "the file is cut short"
    for line_number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        try:
            record = parse_object(line)
        except UnicodeDecodeError as fault:
            return f"line {line_number} is not UTF-8 text (byte {fault.start})"
        except ValueError as fault:
            return f"line {line_number} is not JSON: {fault}"
        except TypeError as fault:
            return f"line {line_number}: {fault}"
        kind = str(record.get("type"))
        if kind not in FIELDS:
            return f"line {line_number}: 'type' is '{kind}', not one of {', '.join(FIELDS)}"
        for field in FIELDS[kind]:
            if field not in record:
                return f"line {line_number} lacks '{field}'"
    return f"{error}" if isinstance(error, ValueError) else f"{type(error).__name__}: {error}"


def wrong_field(episode: Trajectory) -> str | None:
    """Name the first field whose value is not of the kind that an episode has there, with its line; None if all are.

    Decoding looks at structure only. This looks at every field that training and export use.
    """
    for line, field, right in _checks(episode):
        if not right:
            return f"line {line}: '{field}' is not what an episode has there"
    return None


def _checks(episode: Trajectory) -> Iterator[tuple[int, str, bool]]:
    """Yield line, field, and whether the field holds what it should."""
    yield 1, "task.id", isinstance(episode.task.id, str) and bool(episode.task.id)
    yield 1, "provenance", isinstance(episode.provenance, Mapping)
    for name in ("temperature", "top_k", "top_p", "min_p"):
        yield 1, f"provenance.{name}", name not in episode.provenance or _is_finite(episode.provenance[name])
    last = len(episode.turns) + 2
    continued = continued_turns(episode.turns)
    for index, turn in enumerate(episode.turns):
        line = index + 2
        yield line, "reply", isinstance(turn.reply, str)
        yield line, "messages", all(_is_message(m) for m in turn.messages)
        # Replies of a model, and demonstrations, are sampled spans; what else wrote an action may have none.
        from_model = turn.source in set(ActionSource)
        yield line, "spans", not from_model or (bool(turn.spans) and turn.spans[-1].origin is Origin.SAMPLED)
        yield (
            line,
            "continues",
            turn.continues is None
            or (
                type(turn.continues) is int
                and 0 <= turn.continues < index
                and bool(episode.turns[turn.continues].spans)
            ),
        )
        yield line, "role", isinstance(turn.role, str) and bool(turn.role)
        yield line, "branch_reason", isinstance(turn.branch_reason, str)
        yield line, "response_format", turn.response_format is None or isinstance(turn.response_format, Mapping)
        yield (
            line,
            "role_rewards",
            isinstance(turn.role_rewards, Mapping) and all(map(_is_finite, turn.role_rewards.values())),
        )
        yield line, "spans", all(type(i) is int and 0 <= i <= MAX_TOKEN_ID for span in turn.spans for i in span.ids)
        yield line, "spans", all(_is_logprob(value) for span in turn.spans for value in span.logprobs or ())
        begins = turn.restart or continued[index] is None
        yield line, "spans", not (turn.spans and begins) or turn.spans[0].origin is not Origin.SAMPLED
        yield line, "spans", all(span.kept is None or isinstance(span.kept, str) for span in turn.spans)
        yield line, "reward", _is_finite(turn.reward)
        yield line, "parts", all(map(_is_finite, turn.components.values()))
        yield line, "progress", turn.progress is None or _is_finite(turn.progress)
        yield line, "info", isinstance(turn.info, Mapping)
    yield last, "reward", _is_finite(episode.reward)
    yield last, "parts", all(map(_is_finite, episode.components.values()))
    yield last, "closing", all(_is_message(m) for m in episode.closing)


def _is_message(message: Message) -> bool:
    return isinstance(message.role, str) and isinstance(message.content, str)


def _is_logprob(value: object) -> bool:
    return isinstance(value, (int, float)) and _is_finite(value) and value < LOGPROB_ROUNDING


def _is_finite(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _turn_record(turn: Turn) -> dict[str, Any]:
    return {
        "restart": turn.restart,
        "messages": [_message_record(m) for m in turn.messages],
        "spans": [
            {"origin": span.origin.value, "ids": list(span.ids)}
            | ({"logprobs": list(span.logprobs)} if span.logprobs is not None else {})
            | ({"kept": span.kept} if span.kept is not None else {})
            for span in turn.spans
        ],
        "reply": turn.reply,
        "action": {
            "content": turn.action.content,
            "thought": turn.action.thought,
            "calls": [_call_record(call) for call in turn.action.calls],
            "error": turn.action.error,
        },
        "source": str(turn.source),
        "policy_version": turn.policy_version,
        "stop_reason": turn.stop_reason.value,
        "seed": turn.seed,
        "reward": turn.reward,
        "parts": dict(turn.components),
        "progress": turn.progress,
        "info": dict(turn.info),
        **({} if turn.role == DEFAULT_ROLE else {"role": turn.role}),
        **({} if turn.continues is None else {"continues": turn.continues}),
        **({} if turn.temperature is None else {"temperature": turn.temperature}),
        **({"role_rewards": dict(turn.role_rewards)} if turn.role_rewards else {}),
        **({"branch_reason": turn.branch_reason} if turn.branch_reason else {}),
        **({} if turn.response_format is None else {"response_format": turn.response_format}),
    }


def _turn(record: Mapping[str, Any]) -> Turn:
    action = record["action"]
    spans = tuple(
        Span(Origin(s["origin"]), tuple(s["ids"]), tuple(s["logprobs"]) if "logprobs" in s else None, s.get("kept"))
        for s in record["spans"]
    )
    return Turn(
        spans=spans,
        restart=record["restart"],
        messages=tuple(_message(m) for m in record["messages"]),
        reply=record["reply"],
        action=Action(
            text=record["reply"],
            content=action["content"],
            calls=tuple(_call(c) for c in action["calls"]),
            thought=action["thought"],
            error=action["error"],
            confidence=reply_confidence(spans[-1].logprobs if spans else None),
        ),
        source=str(record["source"]),
        policy_version=record["policy_version"],
        stop_reason=StopReason(record["stop_reason"]),
        seed=record["seed"],
        reward=record["reward"],
        components=record["parts"],
        progress=record["progress"],
        info=record["info"],
        role=record.get("role", DEFAULT_ROLE),
        continues=record.get("continues"),
        temperature=record.get("temperature"),
        role_rewards=record.get("role_rewards", {}),
        branch_reason=record.get("branch_reason", ""),
        response_format=record.get("response_format"),
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


EPISODE_MARK = "__attempt_"
"""What the name of every episode file contains."""
MAX_NAME_CHARS = 180
"""Characters of an escaped task id in a file name; file systems allow 255 bytes for a name."""


class EpisodeFileError(UserError):
    """A file that is not a complete episode; `reason` is the cause, without the path."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"'{path}' is not a whole episode file: {reason}.")
        self.reason = reason


def episode_path(folder: Path, task_id: str, attempt: int) -> Path:
    """Return the path of an episode. A task id is a name, never a path: characters that could leave the folder are
    escaped."""
    name = quote(task_id, safe=" :,+=@()[]")
    name = re.sub(r"^\.+", lambda dots: "%2E" * len(dots[0]), name)
    if len(name) > MAX_NAME_CHARS:  # the hash keeps two long ids apart
        name = f"{name[:160]}~{content_hash(task_id)}"
    return folder / f"{name}{EPISODE_MARK}{attempt}.jsonl"


def write_episode(folder: Path, trajectory: Trajectory) -> Path:
    """Write an episode into a folder and return its path."""
    path = episode_path(folder, trajectory.task.id, trajectory.attempt)
    write_atomic(path, encode_episode(trajectory))
    return path


def read_episode(path: Path, *, validate: bool = False, max_bytes: int | None = None) -> Trajectory:
    """Return the episode of a file; raise EpisodeFileError where it is not a whole one.

    With `validate` every field that training and export use is checked, which episodes of unknown origin need. A file
    of more than `max_bytes` is refused unread.
    """
    if not path.is_file():
        raise UserError(f"There is no episode at '{path}'.")
    if max_bytes is not None and (size := path.stat().st_size) > max_bytes:
        raise EpisodeFileError(path, f"it has {size >> 20} MiB; an episode has at most {max_bytes >> 20}")
    data = b"".join(read_lines(path))
    try:
        episode = decode_episode(data)
    except DECODE_ERRORS as error:
        raise EpisodeFileError(path, decode_fault(data, error)) from None
    if validate and (fault := wrong_field(episode)) is not None:
        raise EpisodeFileError(path, fault)
    return episode


def read_episodes(folder: Path) -> Iterator[Trajectory]:
    """Yield every episode below a folder, in the order of the paths."""
    for path in _episode_files(folder):
        yield read_episode(path)


def read_training_episodes(
    folder: Path,
    *,
    include_held_out: bool = False,
    include_setting: str | None = None,
    progress: bool = True,
    log: Callable[[str], None] = print,
) -> Iterator[tuple[Path, Trajectory]]:
    """Yield path and episode of every validated episode below a folder, in the order of the paths, one at a time.

    Episodes of `val` and `test` tasks are left out unless `include_held_out`: a policy trained on a task can no longer
    be evaluated on it. `log` gets the number of those, with the setting that includes them. A folder without any
    episode to train on is a UserError.
    """
    if not folder.is_dir():
        raise UserError(f"There is no folder '{folder}'; make one with `practicum collect`.")
    paths = _episode_files(folder)
    if not paths:
        raise UserError(f"There is no episode below '{folder}'; make some with `practicum collect`.")
    num_yielded = 0
    held_out_splits: list[str] = []
    with Progress("read", len(paths), "episodes", shown=progress) as line:
        for path in paths:
            episode = read_episode(path, validate=True)
            if include_held_out or episode.task.split == "train":
                num_yielded += 1
                yield path, episode
            else:
                held_out_splits.append(episode.task.split)
            line.advance()
    if held_out_splits:
        _report_held_out(folder, held_out_splits, not num_yielded, include_setting, log)


def _report_held_out(
    folder: Path, splits: list[str], nothing_left: bool, include_setting: str | None, log: Callable[[str], None]
) -> None:
    named = f"{len(splits)} episodes of held-out tasks ({', '.join(sorted(set(splits)))})"
    if nothing_left:
        otherwise = f", or take these by {include_setting}" if include_setting else ""
        raise UserError(f"Below '{folder}' there are only {named}; collect some with --split train{otherwise}.")
    log(f"{named} are left out" + (f"; {include_setting} takes them" if include_setting else ""))


def _episode_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob(f"*{EPISODE_MARK}*.jsonl"))
