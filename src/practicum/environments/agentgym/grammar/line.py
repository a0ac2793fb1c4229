"""Common to both grammars: a command is one line; one that cannot be executed is refused with a reason."""

from __future__ import annotations

GRAMMARS = ("agentgym", "bracket", "both")


class Refused(Exception):
    """A command that cannot be read or executed; the text of the exception is shown to the agent."""


def one_line(text: str) -> str:
    """Return the command of a text: one line in lower case, single spaces, no full stop at its end."""
    lines = [line for line in text.splitlines() if line.strip()]
    if len(lines) > 1:
        raise Refused("Give one command on one line.")
    return " ".join("".join(lines).lower().split()).rstrip(".")
