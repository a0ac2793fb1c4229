"""The exceptions of the package.

`UserError` has one sentence that says what is wrong and what to do. The command line prints it and exits with status 2;
a library caller may catch it. Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Wrong input or a wrong setting; the message is one sentence that contains the remedy."""


class EngineError(Exception):
    """An engine could not answer one request; the episode ends as `engine_error`."""


class ContextFull(EngineError):
    """The conversation no longer fits the model's context window. The agent caused it, so the episode is truncated and
    scored."""


class JudgeError(Exception):
    """A reward could not be computed; the episode ends as `judge_error`."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return a hint for a misspelt name: " Did you mean ...?" or " Known: ..."."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    if close:
        return f" Did you mean '{close[0]}'?"
    return f" Known: {', '.join(options)}." if options else ""
