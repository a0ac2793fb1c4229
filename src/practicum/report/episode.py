"""One episode as the page shows it: turn by turn, each token with its origin and log-prob. Long turns are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from practicum.environment import Message
from practicum.report.advantages import EpisodeAdvantages
from practicum.report.tokens import Pieces, Tokenizers
from practicum.trajectory import Origin, Span, Trajectory, Turn
from practicum.utils.escape import number, plain, shown

TURN_TOKENS = 12_000
TURN_TEXT = 60_000
MOST_TURNS = 400
"""What is shown of one turn, and of one episode; the rest is named and stays in its file."""


def view(episode: Trajectory, tokenizers: Tokenizers, credit: EpisodeAdvantages | None = None) -> dict[str, Any]:
    """All that the page needs, as JSON."""
    name = str(episode.provenance.get("tokenizer") or episode.provenance.get("model") or "")
    pieces = tokenizers.get(name) if any(span.ids for turn in episode.turns for span in turn.spans) else None
    rest = _by_token(episode, credit)
    return {
        "task": {"id": shown(episode.task.id), "environment": shown(episode.task.environment),
                 "split": shown(episode.task.split), "fields": plain(dict(episode.task.fields))},
        "attempt": episode.attempt,
        "group": shown(str(episode.group)),
        "outcome": episode.outcome.value,
        "reward": number(episode.reward),
        "parts": {shown(str(k)): number(v) for k, v in episode.components.items()},
        "error": None if episode.error is None else _text(str(episode.error)),
        "seeds": [str(episode.seeds.environment), str(episode.seeds.sampling)],
        "provenance": plain(dict(episode.provenance)),
        "tokenizer": shown(name) if pieces is not None else None,
        "named": shown(name),
        "estimator": None if credit is None else credit.estimator,
        "turns": [_turn(turn, pieces, rest) for turn in episode.turns[:MOST_TURNS]],
        "more_turns": max(0, len(episode.turns) - MOST_TURNS),
        "closing": [_message(message) for message in episode.closing[:50]],
    }  # fmt: skip


Advantages = Iterator[float | None]


def _by_token(episode: Trajectory, credit: EpisodeAdvantages | None) -> Advantages | None:
    """Advantages of the sampled tokens in order; None where the whole episode has one, or where they do not fit."""
    if credit is None or isinstance(credit.values, float):
        return None
    sampled = sum(len(s.ids) for turn in episode.turns for s in turn.spans if s.origin is Origin.SAMPLED)
    return iter(credit.values) if len(credit.values) == sampled else None


def _turn(turn: Turn, pieces: Pieces | None, advantages: Advantages | None) -> dict[str, Any]:
    return {
        "restart": bool(turn.restart),
        "messages": [_message(message) for message in turn.messages[:100]],
        "reply": _text(turn.reply),
        "spans": _spans(turn.spans, pieces, advantages) if pieces is not None else [],
        "tokens": sum(len(span.ids) for span in turn.spans),
        "calls": [{"name": shown(str(c.name)), "arguments": plain(dict(c.arguments))} for c in turn.action.calls[:20]],
        "unusable": None if turn.action.error is None else _text(str(turn.action.error)),
        "source": turn.source.value,
        "version": number(turn.policy_version),
        "stop": turn.stop_reason.value,
        "reward": number(turn.reward),
        "parts": {shown(str(k)): number(v) for k, v in turn.components.items()},
        "progress": number(turn.progress),
        "info": plain(dict(turn.info)),
    }


def _spans(spans: tuple[Span, ...], pieces: Pieces, advantages: Advantages | None) -> list[dict[str, Any]]:
    """Spans cut to TURN_TOKENS tokens in all; `left` says how many of a span are not there."""
    found: list[dict[str, Any]] = []
    room, letters = TURN_TOKENS, TURN_TEXT
    for span in spans:
        own = None
        if advantages is not None and span.origin is Origin.SAMPLED:
            own = list(itertools.islice(advantages, len(span.ids)))
        painted: list[float | None] = []
        kept = [int(id) for id in span.ids[: max(0, room)]] if letters > 0 else []
        texts: list[str] = []
        ids: list[int | list[int]] = []
        logprobs: list[float | int | str | None] = []
        place = 0
        for text, used in pieces.of(kept):
            if letters <= 0:
                break
            letters -= len(text)
            texts.append(text[:TURN_TEXT])
            ids.append(kept[place] if used == 1 else kept[place : place + used])
            if span.logprobs is not None:
                logprobs.append(_logprob(span.logprobs[place : place + used]))
            if own is not None:
                painted.append(_mean(own[place : place + used]))
            place += used
        room -= place
        found.append({
            "origin": span.origin.value, "texts": texts, "ids": ids, "left": len(span.ids) - place,
            **({"logprobs": logprobs} if span.logprobs is not None else {}),
            **({"advantages": painted} if own is not None else {}),
        })  # fmt: skip
    return found


def _logprob(values: tuple[float, ...]) -> float | int | str | None:
    """The log-prob of tokens that make one character together, which is mostly one."""
    total = sum(values)
    return round(total, 4) if -1e6 < total < 1e6 else number(total)


def _mean(values: list[float | None]) -> float | None:
    """The advantage of tokens that make one character together."""
    known = [value for value in values if value is not None]
    return round(sum(known) / len(known), 5) if known else None


def _message(message: Message) -> dict[str, Any]:
    name = {} if message.name is None else {"name": shown(str(message.name)[:200])}
    images = {"images": len(message.images)} if message.images else {}
    return {"role": shown(str(message.role)[:40]), "text": _text(message.content), **name, **images}


def _text(text: str) -> str | dict[str, Any]:
    """A text, or its beginning and end with the number of letters that are not shown."""
    if len(text) <= TURN_TEXT:
        return shown(text)
    head, tail = 3 * TURN_TEXT // 4, TURN_TEXT // 4
    return {"head": shown(text[:head]), "left": len(text) - head - tail, "tail": shown(text[-tail:])}
