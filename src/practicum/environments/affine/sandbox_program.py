"""Inside a sandbox: runs programs on inputs, each run in its own process, and prints their output.

It is passed as text and not imported there. This process runs no line of a program itself, so nothing that a program
overwrites, closes or ends affects it. Whether an output is right is judged outside.
"""

import _ast
import os
import select
import sys
import time
from _json import encode_basestring_ascii as quoted  # `json` itself would double an interpreter's start

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

ERROR_BYTES = 2000
CPU_SIGNAL = 24
EXIT_HANDLER_MODULES = {"threading", "atexit", "multiprocessing"}
"""Modules whose exit handlers must run when the program ends."""


def calls_function(node: "Any", name: str) -> bool:
    """Return whether the code of a node calls a function of that name."""
    if isinstance(node, _ast.Call) and isinstance(node.func, _ast.Name) and node.func.id == name:
        return True
    if isinstance(node, list):
        return any(calls_function(item, name) for item in node)
    return isinstance(node, _ast.AST) and any(
        calls_function(getattr(node, field, None), name) for field in node._fields
    )


def compile_program(source: str) -> "Any":
    """Compile a program; if it defines `solve()` and never calls it, a call is added at its end."""
    tree: Any = compile(source, "<program>", "exec", _ast.PyCF_ONLY_AST, dont_inherit=True)
    definitions = (_ast.FunctionDef, _ast.AsyncFunctionDef, _ast.ClassDef)
    solves = [node for node in tree.body if isinstance(node, _ast.FunctionDef) and node.name == "solve"]
    signature = solves[-1].args if solves else _ast.arguments([], [], None, [], [], None, [])
    needs_arguments = len(signature.args) + len(signature.posonlyargs) > len(signature.defaults)
    rest = [node for node in tree.body if not isinstance(node, definitions)]
    if solves and not needs_arguments and not calls_function(rest, "solve"):
        source += "\nsolve()\n"
    return compile(source, "<program>", "exec", dont_inherit=True)


def run_program(source: str, stdin: str, out: int, err: int) -> None:
    """Run a program in this process."""
    with open("input", "w", encoding="utf-8", errors="replace", newline="") as file:
        file.write(stdin)
    os.dup2(os.open("input", os.O_RDONLY), 0)
    os.unlink("input")
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 64)
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    sys.argv = ["<program>"]
    exec(compile_program(source), main.__dict__)


def flush() -> None:
    """Flush the standard streams, whatever the program has made of them."""
    for stream in (sys.stdout, sys.stderr, sys.__stdout__, sys.__stderr__):
        try:  # noqa: SIM105 (contextlib is one more import at every start)
            stream.flush()  # type: ignore[union-attr]
        except Exception:
            pass  # closed or replaced by the program


def run_in_child(
    run: "Callable[..., None]", args: "tuple[Any, ...]", seconds: float, limit: int
) -> "tuple[str, bytes, bytes]":
    """Run a function in a child; return how it ended (`done`, `killed`, `timeout`, `output`), its stdout and stderr.

    The function gets two more arguments: the descriptors to write its standard output and standard error to.
    """
    read_out, out = os.pipe()
    read_err, err = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(read_out)
        os.close(read_err)
        os.setsid()
        try:
            run(*args, out, err)
        except SystemExit:
            raise
        except BaseException as error:  # only the last line of a traceback is used
            flush()
            os.write(2, f"{type(error).__name__}: {error}".encode("utf-8", "replace")[:ERROR_BYTES])
            os._exit(1)
        if not EXIT_HANDLER_MODULES.isdisjoint(sys.modules):
            sys.exit(0)
        flush()
        os._exit(0)  # finalising the interpreter takes as long as the run
    os.close(out)
    os.close(err)
    received = {read_out: bytearray(), read_err: bytearray()}
    open_ends, deadline, outcome = [read_out, read_err], time.monotonic() + seconds, ""
    while open_ends and not outcome:
        ready, _, _ = select.select(open_ends, [], [], max(deadline - time.monotonic(), 0))
        if not ready:
            outcome = "timeout"
        for end in ready:
            chunk = os.read(end, 65536)
            received[end] += chunk
            if len(received[end]) > limit:
                outcome = "output"
            if not chunk:
                open_ends.remove(end)
    if not outcome:  # it may have closed its output and still run
        ended = os.pidfd_open(pid)
        outcome = "done" if select.select([ended], [], [], max(deadline - time.monotonic(), 0))[0] else "timeout"
        os.close(ended)
    try:  # noqa: SIM105 (contextlib is one more import at every start)
        os.killpg(pid, 9)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(pid, 0)
    os.close(read_out)
    os.close(read_err)
    if outcome == "done" and os.WIFSIGNALED(status):
        outcome = "timeout" if os.WTERMSIG(status) == CPU_SIGNAL else "killed"
    return outcome, bytes(received[read_out][:limit]), bytes(received[read_err][:ERROR_BYTES])


def result_line(outcome: str, out: bytes, err: bytes) -> str:
    """Return how a run ended, then its stdout and stderr as a JSON list."""
    return f"{outcome} [{', '.join(quoted(text.decode('utf-8', 'replace')) for text in (out, err))}]"


def run_all(
    programs: "list[str]", jobs: "list[tuple[int, str]]", seconds: float, limit: int, max_timeouts: int
) -> None:
    """Print a line per job (index of a program, its input): its result."""
    num_timeouts = 0
    for index, stdin in jobs:
        outcome, out, err = run_in_child(run_program, (programs[index], stdin), seconds, limit)
        print(result_line(outcome, out, err), flush=True)
        num_timeouts += outcome == "timeout"
        if num_timeouts >= max_timeouts:
            return
