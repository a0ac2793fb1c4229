"""Inside a sandbox: tries a candidate program on inputs whose right outputs are not here.

Every case runs in a child of its own, which starts from nothing and has its own time. This process
never runs a line of the candidate, so nothing the candidate overwrites, closes or ends reaches it.
What comes out is what the candidate produced; whether that is right is judged outside.

It is joined to `values.py` as text; the names from there are imported for the reader only.
"""

import os
import select
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:
    from _json import encode_basestring_ascii as quoted
    from typing import Any

    from practicum.sandbox.harness.values import NotData, dumps, loads

HOPELESS = 2
"""Cases that may run out of time before the rest is given up."""


def load(code: str, name: str) -> "dict[str, Any]":
    """Run the candidate's own lines; what it defines."""
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(code, "<candidate>", "exec", dont_inherit=True), namespace)
    return namespace


def child(code: str, setup: str, case: dict[str, str], out: int) -> None:
    """One case, in a process of its own: its output, or the value of its call, goes to `out`."""
    nowhere = os.open("/dev/null", os.O_RDWR)
    os.dup2(nowhere, 0)
    os.dup2(nowhere, 2)
    if "input" in case:
        with open("input", "w", encoding="utf-8", errors="replace") as file:
            file.write(case["input"])
        os.dup2(os.open("input", os.O_RDONLY), 0)
        os.unlink("input")
        os.dup2(out, 1)
        os.close(out)
        load(code, "__main__")
        return
    os.dup2(nowhere, 1)
    namespace = load(code, "candidate")
    exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
    value = dumps(eval(compile(case["call"], "<call>", "eval", dont_inherit=True), namespace))
    with open(out, "w", encoding="utf-8") as answer:
        answer.write(value)


def attempt(code: str, setup: str, case: dict[str, str], seconds: float, limit: int) -> tuple[str, bytes]:
    """How one case ended (`done`, `failed`, `timeout`, `output`) and what it said."""
    listen, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(listen)
        os.setsid()
        try:
            child(code, setup, case, out)
        except SystemExit:
            raise
        except BaseException:
            os._exit(1)
        sys.exit(0)
    os.close(out)
    said, deadline, ended = bytearray(), time.monotonic() + seconds, ""
    while not ended:
        ready, _, _ = select.select([listen], [], [], max(deadline - time.monotonic(), 0))
        piece = os.read(listen, 65536) if ready else b""
        said += piece
        if not ready:
            ended = "timeout"
        elif len(said) > limit:
            ended = "output"
        elif not piece:
            ended = "done"
    os.close(listen)
    while ended == "done" and time.monotonic() < deadline:  # it may have closed its output and work on
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.002)
    else:
        ended = "timeout" if ended == "done" else ended
    try:  # noqa: SIM105 (contextlib is one more import at every start)
        os.killpg(pid, 9)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(pid, 0)
    if ended == "done" and status != 0:
        ended = "timeout" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == 24 else "failed"
    return ended, bytes(said[:limit])


def try_cases(code: str, setup: str, cases: list[dict[str, str]], seconds: float, limit: int) -> None:
    """Print a line once it compiles, then one line a case: how it ended, and what it said as a JSON text."""
    compile(code, "<candidate>", "exec", dont_inherit=True)
    print("compiled", flush=True)
    slow = 0
    for case in cases:
        if slow >= HOPELESS:
            return
        ended, said = attempt(code, setup, case, seconds, limit)
        slow += ended == "timeout"
        print(ended, quoted(said.decode("utf-8", "replace")), flush=True)


def serve(code: str) -> None:
    """Answer calls that come through descriptor 0, with data for data, until it closes."""
    line_in, line_out = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(0), "w", encoding="utf-8")
    nowhere = os.open("/dev/null", os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nowhere, number)

    def say(*message: object) -> None:
        line_out.write(dumps(list(message)) + "\n")
        line_out.flush()

    namespace = load(code, "candidate")
    say("names", [name for name, value in namespace.items() if callable(value)])
    for line in line_in:
        name, given, named = loads(line)
        try:
            value = namespace[name](*given, **named)
        except Exception as error:
            say("raised", type(error).__name__, str(error)[:200])
            continue
        try:
            say("value", value)
        except NotData as error:
            say("opaque", str(error))
