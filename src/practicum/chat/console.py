"""One episode printed to the terminal while it runs: the prompts, the reply token by token, the rewards."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from practicum.chat.renderer import Renderer
from practicum.environment import Message, Step
from practicum.trajectory import Outcome, Turn
from practicum.utils.terminal import printable, use_colour

GREEN, CYAN, DIM, RESET = "\x1b[1;32m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


class EpisodeWatcher(Protocol):
    """Callbacks that the agent loop calls for one episode, in the order in which things happen in it."""

    def on_messages(self, messages: Sequence[Message]) -> None:
        """New messages are part of the prompt; a reply to them follows."""

    def on_token(self, token_id: int) -> None:
        """The engine sampled a token. Engines that return whole replies do not call this."""

    def on_reply(self, turn: Turn) -> None:
        """The reply is complete and parsed; the turn has no reward yet."""

    def on_step(self, step: Step) -> None:
        """The environment answered the reply."""

    def on_end(self, outcome: Outcome, error: str | None, reward: float) -> None:
        """The episode is over; `reward` is the sum over its turns."""


class ConsoleEpisodeWatcher:
    """Prints an episode to a stream, in colour where the stream is a terminal.

    Control characters are printed as escapes: what a model writes must not drive the terminal.
    """

    def __init__(self, renderer: Renderer, stream: TextIO | None = None) -> None:
        self.renderer = renderer
        self.stream = stream or sys.stdout
        self.coloured = use_colour(self.stream)
        self._token_ids: list[int] = []
        self._num_printed = 0
        """Characters of the current reply that are printed."""

    def on_messages(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._print_line(f"[{message.role}] {message.content}", CYAN)
        self._token_ids, self._num_printed = [], 0
        self._print("[agent] ", DIM)

    def on_token(self, token_id: int) -> None:
        """Print what has become readable: a character of several tokens is printed with its last one."""
        self._token_ids.append(token_id)
        text = self.renderer.decode(self._token_ids)
        if not text.endswith("\ufffd"):
            self._print(printable(text[self._num_printed :]), GREEN)
            self._num_printed = len(text)

    def on_reply(self, turn: Turn) -> None:
        self._print(printable(turn.reply[self._num_printed :]), GREEN)
        reason = f" (unusable: {printable(turn.action.error)})" if turn.action.error else ""
        self._print(f"  ‖ {turn.stop_reason.value}{reason}\n", DIM)

    def on_step(self, step: Step) -> None:
        components = "".join(f", {name} {value:g}" for name, value in step.components.items())
        if step.reward or components:
            self._print_line(f"[reward] {step.reward:g}{components}", DIM)

    def on_end(self, outcome: Outcome, error: str | None, reward: float) -> None:
        self._print_line(f"[{outcome.value}] reward {reward:g}" + (f": {error}" if error else ""), DIM)

    def _print_line(self, text: str, colour: str) -> None:
        self._print(printable(text) + "\n", colour)

    def _print(self, text: str, colour: str) -> None:
        if text:
            self.stream.write(f"{colour}{text}{RESET}" if self.coloured else text)
            self.stream.flush()
