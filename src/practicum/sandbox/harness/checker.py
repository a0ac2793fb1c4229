"""Inside a sandbox: runs a task's tests against a candidate that runs in another sandbox.

The functions that the tests call are stand-ins: arguments are sent to the other sandbox as data, and a value comes back
as data. So the candidate never sees the tests, and nothing that it does to its own process (other builtins, an early
exit, printed text) can make a test pass.

It is joined to `values.py` as text; the names from there are imported for the reader only.
"""

import builtins
import math
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import TextIO

    from practicum.sandbox.harness.values import NotData, dumps, loads


class Unusable(Exception):
    """The tests cannot be run this way, whatever the candidate does."""


class CandidateEnded(Exception):
    """The candidate's process has ended."""


def stand_in(name: str, line_in: "TextIO", line_out: "TextIO") -> "Callable[..., object]":
    """Return a function that calls the candidate's function of that name."""

    def call(*arguments: object, **keywords: object) -> object:
        try:
            request = dumps([name, list(arguments), keywords])
        except NotData as error:
            raise Unusable(f"the tests pass a {error} to {name}, and only data can cross") from None
        try:
            line_out.write(request + "\n")
            line_out.flush()
            answer, *rest = loads(line_in.readline())
        except (ValueError, OSError) as error:
            raise CandidateEnded(f"{name} did not answer: {error}") from None
        if answer == "value":
            return rest[0]
        if answer == "raised":
            known = getattr(builtins, rest[0], None)
            kind = known if isinstance(known, type) and issubclass(known, Exception) else RuntimeError
            raise kind(rest[1])
        raise TypeError(f"{name} returned a {rest[0]}, and only data can cross")

    call.__name__ = name
    return call


def check_candidate(setup: str, test: str, token: str, entry_point: "str | None") -> None:
    """Run the tests and print the token with the verdict: `pass`, `fail` or `unusable`.

    The tests find the entry point under `__candidate__`, so that it may have the name of a builtin.
    """
    line_in, line_out = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(3), "w", encoding="utf-8")
    namespace: dict[str, object] = {"__name__": "checker"}
    try:
        kind, names = loads(line_in.readline())
        if kind != "names" or not all(isinstance(name, str) for name in names):
            raise CandidateEnded("the candidate does not load")
        usable = [name for name in names if not name.startswith("__") and not hasattr(builtins, name)]
        namespace |= {name: stand_in(name, line_in, line_out) for name in usable}
        if entry_point is not None and entry_point in names:
            namespace["__candidate__"] = stand_in(entry_point, line_in, line_out)
        namespace["isclose"] = math.isclose  # tests compare with it, and some forget to import it
        exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
        exec(compile(test, "<test>", "exec", dont_inherit=True), namespace)
        verdict = "pass"
    except Unusable as error:
        verdict = f"unusable {error}"
    except BaseException as error:  # an assertion, or whatever else a test raises, is a test that failed
        verdict = f"fail {type(error).__name__}"
    print(f"\n{token} {verdict}", flush=True)
    sys.stdout.flush()
    os._exit(0)
