"""Inside a sandbox: runs programs on inputs, each run in a process of its own, and says what they printed.

It is handed over as text and never imported there. This process runs no line of a program itself, so nothing
that a program overwrites, closes or ends reaches it. Whether an output is right is judged outside.
"""

import _ast
import os
import select
import sys
import time
from _json import encode_basestring_ascii as quoted  # `json` itself would double an interpreter's start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

ERROR_BYTES = 2000
CPU_SIGNAL = 24
WAITED_FOR = {"threading", "atexit", "multiprocessing"}
"""Modules with which a program may have left something to do at its end."""


def mentions(node: "Any", name: str) -> bool:
    """Whether the code in a node calls a function of that name."""
    if isinstance(node, _ast.Call) and isinstance(node.func, _ast.Name) and node.func.id == name:
        return True
    if isinstance(node, list):
        return any(mentions(item, name) for item in node)
    return isinstance(node, _ast.AST) and any(mentions(getattr(node, field, None), name) for field in node._fields)


def compiled(source: str) -> "Any":
    """The program's code. One that defines `solve()` and never calls it calls it at its end."""
    tree: Any = compile(source, "<program>", "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    definitions = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef)
    own = [node for node in tree.body if isinstance(node, _ast.FunctionDef) and node.name == "solve"]
    needs = own and len(own[-1].args.args) + len(own[-1].args.posonlyargs) > len(own[-1].args.defaults)
    rest = [node for node in tree.body if not isinstance(node, definitions)]
    if own and not needs and not mentions(rest, "solve"):
        source += "\nsolve()\n"
    return compile(source, "<program>", "exec", dont_inherit=True)


def child(source: str, given: str, out: int, err: int) -> None:
    """One run, in a process of its own."""
    with open("input", "w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(given)
    os.dup2(os.open("input", os.O_RDONLY), 0)
    os.unlink("input")
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 64)
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    sys.argv = ["<program>"]
    exec(compiled(source), main.__dict__)


def flush() -> None:
    """Say what has been printed and not yet said, whatever the program made of its streams."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:  # noqa: SIM105 (contextlib is one more import at every start)
            stream.flush()  # type: ignore[union-attr]
        except Exception:
            pass  # closed, or something else by now


def attempt(source: str, given: str, seconds: float, limit: int) -> "tuple[str, bytes, bytes]":
    """How one run ended (`done`, `killed`, `timeout`, `output`), what it printed, what it said as an error."""
    listen_out, out = os.pipe()
    listen_err, err = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(listen_out)
        os.close(listen_err)
        os.setsid()
        try:
            child(source, given, out, err)
        except SystemExit:
            raise
        except BaseException as error:  # the last line of a traceback is all that is wanted of it
            flush()
            os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:ERROR_BYTES])
            os._exit(1)
        if not WAITED_FOR.isdisjoint(sys.modules):
            sys.exit(0)
        flush()
        os._exit(0)  # an interpreter that takes itself apart takes as long as the run
    os.close(out)
    os.close(err)
    said = {listen_out: bytearray(), listen_err: bytearray()}
    open_ends, deadline, ended = [listen_out, listen_err], time.monotonic() + seconds, ""
    while open_ends and not ended:
        ready, _, _ = select.select(open_ends, [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            ended = "timeout"
        for end in ready:
            piece = os.read(end, 65536)
            said[end] += piece
            if len(said[end]) > limit:
                ended = "output"
            if not piece:
                open_ends.remove(end)
    while not ended:  # it may have closed its output and work on
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            ended = "done"
        elif time.monotonic() > deadline:
            ended = "timeout"
        else:
            time.sleep(0.001)
    try:  # noqa: SIM105 (contextlib is one more import at every start)
        os.killpg(pid, 9)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(pid, 0)
    os.close(listen_out)
    os.close(listen_err)
    if ended == "done" and os.WIFSIGNALED(status):
        ended = "timeout" if os.WTERMSIG(status) == CPU_SIGNAL else "killed"
    return ended, bytes(said[listen_out][:limit]), bytes(said[listen_err][:ERROR_BYTES])


def run_all(programs: "list[str]", jobs: "list[tuple[int, str]]", seconds: float, limit: int, patience: int) -> None:
    """One line a job (a program's number and its input): how it ended, its output and its error as a JSON list."""
    slow = 0
    for number, given in jobs:
        ended, out, err = attempt(programs[number], given, seconds, limit)
        texts = ", ".join(quoted(text.decode("utf-8", "replace")) for text in (out, err))
        print(f"{ended} [{texts}]", flush=True)
        slow += ended == "timeout"
        if slow >= patience:
            return
