"""One episode as JSON for the page: each turn, each token with its origin and log-prob. Long turns are cut."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

from practicum.environment import DEFAULT_ROLE, Message
from practicum.report.advantages import EpisodeAdvantages
from practicum.report.drawings import Drawings
from practicum.report.tokens import Tokenizers, TokenTexts
from practicum.trajectory import Origin, Span, Trajectory, Turn, continued_turns, describe_branch
from practicum.utils.escape import json_number, json_value
from practicum.utils.terminal import escape_invisible

MAX_TURN_TOKENS = 12_000
MAX_TURN_CHARACTERS = 60_000
MAX_TURNS = 400
"""Turns of an episode that are shown; the page says how many more the file has."""


def view(
    episode: Trajectory,
    tokenizers: Tokenizers,
    advantages: EpisodeAdvantages | None = None,
    drawings: Drawings | None = None,
) -> dict[str, Any]:
    """The episode as the page's script expects it."""
    name = str(episode.provenance.get("model") or episode.provenance.get("tokenizer") or "")
    has_tokens = any(span.ids for turn in episode.turns for span in turn.spans)
    pieces = tokenizers.of_episode(episode.provenance) if has_tokens else None
    by_token = _by_token(episode, advantages)
    return {
        "task": {"id": escape_invisible(episode.task.id), "environment": escape_invisible(episode.task.environment),
                 "split": escape_invisible(episode.task.split), "fields": json_value(dict(episode.task.fields))},
        "attempt": episode.attempt,
        "group": escape_invisible(str(episode.group)),
        "outcome": episode.outcome.value,
        "reward": json_number(episode.reward),
        "parts": {escape_invisible(str(k)): json_number(v) for k, v in episode.components.items()},
        "error": None if episode.error is None else _text(str(episode.error)),
        "seeds": [str(episode.seeds.environment), str(episode.seeds.sampling)],
        "provenance": json_value(dict(episode.provenance)),
        "tokenizer": escape_invisible(name) if pieces is not None else None,
        "named": escape_invisible(name),
        "estimator": None if advantages is None else advantages.estimator,
        "turns": [
            _turn(turn, continued_turn, describe_branch(episode.turns, index), pieces, by_token)
            for index, (turn, continued_turn) in enumerate(
                zip(episode.turns[:MAX_TURNS], continued_turns(episode.turns), strict=False)
            )
        ],
        "drawing": None if drawings is None else drawings.record(episode),
        "more_turns": max(0, len(episode.turns) - MAX_TURNS),
        "closing": [_message(message) for message in episode.closing[:50]],
    }  # fmt: skip


TokenAdvantages = Iterator[float | None]


def _by_token(episode: Trajectory, advantages: EpisodeAdvantages | None) -> TokenAdvantages | None:
    """The advantages of the sampled tokens in order; None for one advantage per episode, or where the counts differ."""
    if advantages is None or isinstance(advantages.values, float):
        return None
    sampled = sum(len(s.ids) for turn in episode.turns for s in turn.spans if s.origin is Origin.SAMPLED)
    return iter(advantages.values) if len(advantages.values) == sampled else None


def _turn(
    turn: Turn, continued: int | None, reason: str, pieces: TokenTexts | None, advantages: TokenAdvantages | None
) -> dict[str, Any]:
    return {
        "restart": bool(turn.restart),
        "role": "" if turn.role == DEFAULT_ROLE else escape_invisible(turn.role[:200]),
        "continues": continued,
        "reason": escape_invisible(str(reason)[:200]),
        "messages": [_message(message) for message in turn.messages[:100]],
        "reply": _text(turn.reply),
        "spans": _spans(turn.spans, pieces, advantages) if pieces is not None else [],
        "tokens": sum(len(span.ids) for span in turn.spans),
        "calls": [
            {"name": escape_invisible(str(c.name)), "arguments": json_value(dict(c.arguments))}
            for c in turn.action.calls[:20]
        ],
        "unusable": None if turn.action.error is None else _text(str(turn.action.error)),
        "source": escape_invisible(turn.source[:200]),
        "version": json_number(turn.policy_version),
        "stop": turn.stop_reason.value,
        "reward": json_number(turn.reward),
        "parts": {escape_invisible(str(k)): json_number(v) for k, v in turn.components.items()},
        "progress": json_number(turn.progress),
        "info": json_value(dict(turn.info)),
    }


def _spans(spans: tuple[Span, ...], pieces: TokenTexts, advantages: TokenAdvantages | None) -> list[dict[str, Any]]:
    """Spans cut to MAX_TURN_TOKENS tokens in all; `left` is the number of tokens that are cut from a span."""
    shown_spans: list[dict[str, Any]] = []
    num_tokens, num_characters = MAX_TURN_TOKENS, MAX_TURN_CHARACTERS
    for span in spans:
        own = None
        if advantages is not None and span.origin is Origin.SAMPLED:
            own = list(itertools.islice(advantages, len(span.ids)))
        advantage_values: list[float | None] = []
        ids_shown = [int(id) for id in span.ids[: max(0, num_tokens)]] if num_characters > 0 else []
        texts: list[str] = []
        ids: list[int | list[int]] = []
        logprobs: list[float | int | str | None] = []
        index = 0
        for text, used in pieces.split(ids_shown):
            if num_characters <= 0:
                break
            num_characters -= len(text)
            texts.append(text[:MAX_TURN_CHARACTERS])
            ids.append(ids_shown[index] if used == 1 else ids_shown[index : index + used])
            if span.logprobs is not None:
                logprobs.append(_logprob(span.logprobs[index : index + used]))
            if own is not None:
                advantage_values.append(_mean(own[index : index + used]))
            index += used
        num_tokens -= index
        shown_spans.append({
            "origin": span.origin.value, "texts": texts, "ids": ids, "left": len(span.ids) - index,
            **({"logprobs": logprobs} if span.logprobs is not None else {}),
            **({"advantages": advantage_values} if own is not None else {}),
        })  # fmt: skip
    return shown_spans


def _logprob(values: tuple[float, ...]) -> float | int | str | None:
    """The log-prob of the tokens of one text, which is mostly a single token."""
    total = sum(values)
    return round(total, 4) if -1e6 < total < 1e6 else json_number(total)


def _mean(values: list[float | None]) -> float | None:
    """The mean advantage of the tokens of one text."""
    present = [value for value in values if value is not None]
    return round(sum(present) / len(present), 5) if present else None


def _message(message: Message) -> dict[str, Any]:
    name = {} if message.name is None else {"name": escape_invisible(str(message.name)[:200])}
    images = {"images": len(message.images)} if message.images else {}
    return {"role": escape_invisible(str(message.role)[:40]), "text": _text(message.content), **name, **images}


def _text(text: str) -> str | dict[str, Any]:
    """A text, or its beginning and end with the number of characters between them."""
    if len(text) <= MAX_TURN_CHARACTERS:
        return escape_invisible(text)
    head, tail = 3 * MAX_TURN_CHARACTERS // 4, MAX_TURN_CHARACTERS // 4
    return {
        "head": escape_invisible(text[:head]),
        "left": len(text) - head - tail,
        "tail": escape_invisible(text[-tail:]),
    }
