"""The exceptions of the package.

`UserError` has one sentence that says what is wrong and what to do. The command line prints it and exits with status 2;
a library caller may catch it. Anything else that escapes is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
import os
import sysconfig
import traceback
from collections.abc import Iterable
from pathlib import Path

MAX_TRACEBACK_CHARACTERS = 8000


class UserError(Exception):
    """Wrong input or a wrong setting; the message is one sentence that contains the remedy."""


class NoServerAnswers(UserError):
    """Nothing answers at the address of a server."""

    def __init__(self, url: str, reason: str, remedy: str = "start it, or check --url") -> None:
        super().__init__(f"No server answers at {url} ({reason}); {remedy}.")
        self.url, self.reason = url, reason


class EngineError(Exception):
    """An engine could not answer one request; the episode ends as `engine_error`."""


class ContextFull(EngineError):
    """The conversation no longer fits the model's context window. The agent caused it, so the episode is truncated and
    scored."""


class JudgeError(Exception):
    """A reward could not be computed; the episode ends as `judge_error`."""


MIN_SIMILARITY = 0.65
"""Share of equal characters (difflib's ratio) from which on a name may be the one that was meant: two exchanged letters
of three are 0.67, 'nosuch' and 'search' 0.5."""


def close_name(name: str, names: Iterable[str]) -> str | None:
    """Return the known name that is nearest to a misspelt one, the only one that begins with it,
    or None."""
    known = sorted(names)
    longer = [candidate for candidate in known if len(name) > 2 and candidate.startswith(name)]
    close = difflib.get_close_matches(name, known, n=1, cutoff=MIN_SIMILARITY)
    return close[0] if close else longer[0] if len(longer) == 1 else None


def nearest_name(name: str, names: Iterable[str]) -> str:
    """Return " Did you mean ...?" for a misspelt name, or "" where no known one is near."""
    close = close_name(name, names)
    return f" Did you mean '{close}'?" if close else ""


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a hint for a misspelt name: " Did you mean ...?" or " Known: ..."."""
    options = sorted(names)
    return nearest_name(name, options) or (f" Known: {', '.join(options)}." if options else "")


def describe_exception(error: BaseException) -> str:
    """Return an exception in one line with the place that raised it: `KeyError: 'x' (mine.py:14 in step)`."""
    text = " ".join(f"{type(error).__name__}: {error}".split())
    location = place_of(error)
    return f"{text} ({location})" if location else text


def place_of(error: BaseException) -> str:
    """Return file, line and function that raised an exception or its cause: the innermost frame of a user's own file,
    else the innermost frame."""
    frames = _frames(error)
    return _place((_own(frames) or frames)[-1]) if frames else ""


def own_place_of(error: BaseException) -> str:
    """Return file, line and function of the innermost frame of a user's own file; "" if there is none."""
    own = _own(_frames(error))
    return _place(own[-1]) if own else ""


def _frames(error: BaseException) -> traceback.StackSummary:
    while error.__cause__ is not None:
        error = error.__cause__
    return traceback.extract_tb(error.__traceback__)


def _own(frames: traceback.StackSummary) -> list[traceback.FrameSummary]:
    """Return the frames that are neither of this package nor of a library."""
    libraries = (str(Path(__file__).parent), *(sysconfig.get_path(name) for name in ("stdlib", "purelib", "platlib")))
    return [frame for frame in frames if not frame.filename.startswith(("<", *(path + os.sep for path in libraries)))]


def _place(frame: traceback.FrameSummary) -> str:
    in_this_folder = frame.filename.startswith(os.getcwd() + os.sep)
    file = os.path.relpath(frame.filename) if in_this_folder else frame.filename
    return f"{file}:{frame.lineno} in {frame.name}"


def traceback_of(error: BaseException) -> str:
    """Return the traceback of an exception as Python prints it, with its causes; of a very long one the end."""
    return "".join(traceback.format_exception(error))[-MAX_TRACEBACK_CHARACTERS:]
