"""One episode on the console as it happens: what the agent is shown, what it writes, what it is given."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Protocol, TextIO

from practicum.chat.renderer import Renderer
from practicum.environment import Message, Step
from practicum.trajectory import Outcome, Turn

GREEN, CYAN, DIM, RESET = "\x1b[1;32m", "\x1b[36m", "\x1b[2m", "\x1b[0m"


def escape_control_chars(text: str) -> str:
    """Control characters made visible: what a model wrote must not drive the terminal."""
    return re.sub(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", lambda found: f"\\x{ord(found[0]):02x}", text)


class EpisodeWatcher(Protocol):
    """Hears of one episode while it runs."""

    def shown(self, messages: Sequence[Message]) -> None: ...
    def token(self, id: int) -> None: ...
    def replied(self, turn: Turn) -> None: ...
    def stepped(self, step: Step) -> None: ...
    def ended(self, outcome: Outcome, error: str | None, reward: float) -> None: ...


class ConsoleEpisodeWatcher:
    """Prints an episode. Engines that give whole replies show these at once."""

    def __init__(self, renderer: Renderer, label: str = "", stream: TextIO | None = None) -> None:
        self.renderer = renderer
        self.label = label
        self.stream = stream or sys.stdout
        self.coloured = self.stream.isatty()
        self._ids: list[int] = []
        self._printed = 0

    def shown(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._line(f"[{message.role}] {message.content}", CYAN)
        self._ids, self._printed = [], 0
        self._put("[agent] ", DIM)

    def token(self, id: int) -> None:
        """Print what has become readable: half a character waits for its other half."""
        self._ids.append(id)
        text = self.renderer.decode(self._ids)
        if not text.endswith("\ufffd"):
            self._put(escape_control_chars(text[self._printed :]), GREEN)
            self._printed = len(text)

    def replied(self, turn: Turn) -> None:
        self._put(escape_control_chars(turn.reply[self._printed :]), GREEN)
        why = f" (unusable: {turn.action.error})" if turn.action.error else ""
        self._put(f"  ‖ {turn.stop_reason.value}{why}\n", DIM)

    def stepped(self, step: Step) -> None:
        components = "".join(f", {name} {value:g}" for name, value in step.components.items())
        if step.reward or components:
            self._line(f"[reward] {step.reward:g}{components}", DIM)

    def ended(self, outcome: Outcome, error: str | None, reward: float) -> None:
        self._line(f"[{outcome.value}] reward {reward:g}" + (f": {error}" if error else ""), DIM)

    def _line(self, text: str, colour: str) -> None:
        self._put(escape_control_chars(text) + "\n", colour)

    def _put(self, text: str, colour: str) -> None:
        if text:
            self.stream.write(f"{colour}{text}{RESET}" if self.coloured else text)
            self.stream.flush()
