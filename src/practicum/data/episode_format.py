"""The encoding of an episode: `episode_start` with all provenance, one `step` per turn, `episode_end`.

Decoding and encoding again gives the same bytes. A reward's components are spelled `parts` in the file.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from practicum.data.jsonl import parse_object
from practicum.environment import Action, Message, ToolCall
from practicum.task import Task, plain
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn

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
    )


def decode_fault(data: bytes, error: Exception) -> str:
    """Say why bytes that `decode_episode` refused with `error` are no episode: the line and field where it can be
    told, otherwise what the error says."""
    if not data.endswith(b"\n"):
        return "the file is cut short"
    for number, line in enumerate(data.removesuffix(b"\n").split(b"\n"), 1):
        try:
            record = parse_object(line)
        except UnicodeDecodeError as fault:
            return f"line {number} is not UTF-8 text (byte {fault.start})"
        except ValueError as fault:
            return f"line {number} is not JSON: {fault}"
        except TypeError as fault:
            return f"line {number}: {fault}"
        kind = str(record.get("type"))
        if kind not in FIELDS:
            return f"line {number}: 'type' is '{kind}', not one of {', '.join(FIELDS)}"
        for field in FIELDS[kind]:
            if field not in record:
                return f"line {number} lacks '{field}'"
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
    for name in ("temperature", "top_k", "top_p"):
        yield 1, f"provenance.{name}", name not in episode.provenance or _is_finite(episode.provenance[name])
    last = len(episode.turns) + 2
    for index, turn in enumerate(episode.turns):
        line = index + 2
        yield line, "reply", isinstance(turn.reply, str)
        yield line, "messages", all(_is_message(m) for m in turn.messages)
        yield line, "spans", bool(turn.spans) and turn.spans[-1].origin is Origin.SAMPLED
        yield line, "spans", all(type(i) is int and 0 <= i <= MAX_TOKEN_ID for span in turn.spans for i in span.ids)
        yield line, "spans", all(_is_logprob(value) for span in turn.spans for value in span.logprobs or ())
        yield line, "spans", not (index == 0 or turn.restart) or bool(turn.spans[0].origin is not Origin.SAMPLED)
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
