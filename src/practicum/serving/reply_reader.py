"""The tokens of a reply to text and tool calls, piece by piece.

A stream and a whole answer are read by the same code, and the pieces do not depend on how the tokens were grouped: what
a client concatenates from a stream is the unstreamed answer. Text that may turn out to be a stop string or a tool call
is held back until that is certain. A call is reported when it is complete and valid; one that was cut off or is not
JSON stays text.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from practicum.chat.formats.hermes import CLOSE_TAG, OPEN_TAG, parse_call
from practicum.chat.renderer import Renderer
from practicum.chat.text_stream import TextStream
from practicum.engines.base import Generation, SampledToken
from practicum.environment import Usage
from practicum.serving.turn import Delta, Finish, FunctionCall
from practicum.trajectory import StopReason


def partial_match(text: str, strings: Sequence[str]) -> int:
    """The length of the longest end of a text with which one of the strings, whole or not, may begin."""
    longest = min(len(text), max((len(string) for string in strings), default=0))
    for length in range(longest, 0, -1):
        if any(string.startswith(text[-length:]) for string in strings):
            return length
    return 0


class StopCut:
    """Cuts a text before the stop string that is complete first."""

    def __init__(self, strings: Sequence[str]) -> None:
        self.strings = [string for string in strings if string]
        self.reached: str | None = None
        self._unsent = ""

    def push(self, text: str) -> str:
        if not self.strings or self.reached is not None:
            return "" if self.strings else text
        self._unsent += text
        ends = [
            (self._unsent.find(string) + len(string), -len(string), string)
            for string in self.strings
            if string in self._unsent
        ]
        if ends:
            end, length, self.reached = min(ends)
            return self._unsent[: end + length]
        keep = partial_match(self._unsent, self.strings)
        certain, self._unsent = self._unsent[: len(self._unsent) - keep], self._unsent[len(self._unsent) - keep :]
        return certain

    def finish(self) -> str:
        unsent, self._unsent = self._unsent, ""
        return "" if self.reached is not None else unsent


class CallSplitter:
    """Divides a text into plain text and tool calls."""

    def __init__(self, call_prefix: str) -> None:
        self._call_prefix = call_prefix
        self._num_calls = 0
        self._unsent = ""
        self._in_call = False
        self._space = ""
        """Blanks before the call that is being read."""

    def push(self, text: str, final: bool = False) -> list[str | FunctionCall]:
        self._unsent += text
        parts: list[str | FunctionCall] = []
        while (part := self._next()) is not None:
            parts += [part] if part else []
        if final:
            rest = f"{self._space}{OPEN_TAG}{self._unsent}" if self._in_call else self._unsent
            self._unsent, self._in_call = "", False
            if rest.strip() or not self._num_calls:
                parts += [rest] if rest else []
        return parts

    def _next(self) -> str | FunctionCall | None:
        """The next part that is certain; None if there is none."""
        if self._in_call:
            block, closed, rest = self._unsent.partition(CLOSE_TAG)
            if not closed:
                return None
            self._unsent, self._in_call = rest, False
            call = parse_call(block)
            if isinstance(call, str):
                return f"{self._space}{OPEN_TAG}{block}{CLOSE_TAG}"
            self._num_calls += 1
            arguments = json.dumps(dict(call.arguments), ensure_ascii=False)
            return FunctionCall(f"{self._call_prefix}{self._num_calls}", call.name, arguments)
        before, opened, rest = self._unsent.partition(OPEN_TAG)
        if opened:
            text = before.rstrip()
            self._unsent, self._in_call, self._space = rest, True, before[len(text) :]
            return text
        keep = partial_match(before, [OPEN_TAG])
        text = before[: len(before) - keep].rstrip()
        if not text:
            return None
        self._unsent = before[len(text) :]
        return text


class ReplyReader:
    """Reads one choice."""

    def __init__(self, index: int, renderer: Renderer, stops: Sequence[str], may_call: bool, call_prefix: str) -> None:
        self.index = index
        self._text = TextStream(renderer)
        self._stops = StopCut(stops)
        self._calls = CallSplitter(call_prefix) if may_call else None
        self._has_calls = False
        self.num_tokens = 0

    def push(self, tokens: Sequence[SampledToken]) -> Delta:
        """Read new tokens."""
        self.num_tokens += len(tokens)
        text = self._stops.push(self._text.push([token.id for token in tokens]))
        return Delta(self.index, self._parts(text), tuple(tokens))

    def finish(self, generation: Generation, num_prompt: int) -> tuple[Delta, Finish]:
        """Return what is left, and the end."""
        text = self._stops.push(self._text.finish()) + self._stops.finish()
        delta = Delta(self.index, self._parts(text, final=True))
        usage = Usage(num_prompt, self.num_tokens, generation.prompt_cached)
        reason = self._reason(generation.stop_reason)
        stop = generation.stop_reason
        return delta, Finish(self.index, reason, self._stops.reached, usage, stop, generation.policy_version)

    def _parts(self, text: str, final: bool = False) -> tuple[str | FunctionCall, ...]:
        if self._calls is None:
            return (text,) if text else ()
        parts = tuple(self._calls.push(text, final))
        self._has_calls |= any(isinstance(part, FunctionCall) for part in parts)
        return parts

    def _reason(self, reason: StopReason) -> str:
        if self._stops.reached is None and reason in (StopReason.LENGTH, StopReason.CONTEXT):
            return "length"
        return "tool_calls" if self._has_calls else "stop"


def sampled_tokens(generation: Generation) -> list[SampledToken]:
    """The tokens of a whole reply."""
    count = len(generation.ids)
    logprobs = generation.logprobs or (0.0,) * count
    top = generation.top_logprobs or ((),) * count
    return [SampledToken(*fields) for fields in zip(generation.ids, logprobs, top, strict=True)]
