"""Errors meant for the person at the keyboard.

`UserError` carries one sentence that says what is wrong and what to do. The command line prints it
and exits with code 2; a library caller may catch it. Anything else that escapes is a bug of ours and
keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Wrong input or a wrong setting: one sentence, with the remedy in it."""


class EngineError(Exception):
    """An engine could not answer one request; its episode ends as `engine_error`."""


class ContextFull(EngineError):
    """The conversation no longer fits the model's window: the agent's doing, so the episode is cut and scored."""


class JudgeError(Exception):
    """A reward could not be computed; its episode ends as `judge_error`."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A hint for a misspelt name: ' Did you mean ...?' or ' Known: ...'."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(options)}." if options else ""
