"""What both grammars share: a command is one line, and what cannot be done is refused with a reason."""

from __future__ import annotations

GRAMMARS = ("agentgym", "bracket", "both")


class Refused(Exception):
    """A command that cannot be read or done; its text is what the agent is told."""


def one_line(text: str) -> str:
    """The command in a text: one line, in lower case, single spaces, no full stop at its end."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        raise Refused("Give one command on one line.")
    return " ".join("".join(lines).lower().split()).rstrip(".")
