"""Inside a sandbox: runs a candidate program on inputs; the expected outputs are not in the sandbox.

Every case runs in its own child process with its own time limit. This process never runs a line of the candidate, so
nothing the candidate overwrites, closes or ends affects it. It prints what the candidate produced; whether that is
right is judged outside.

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

    from practicum.sandbox.harness.values import dumps, loads


def load(code: str, name: str) -> "dict[str, Any]":
    """Execute the candidate's module; return its namespace."""
    namespace: dict[str, Any] = {"__name__": name}
    exec(compile(code, "<candidate>", "exec", dont_inherit=True), namespace)
    return namespace


def run_case(code: str, setup: str, case: dict[str, str], out: int) -> None:
    """Run one case in this process; its output, or the value of its call, is written to `out`."""
    devnull = os.open("/dev/null", os.O_RDWR)
    os.dup2(devnull, 0)
    os.dup2(devnull, 2)
    if "input" in case:
        with open("input", "w", encoding="utf-8", errors="replace") as file:
            file.write(case["input"])
        os.dup2(os.open("input", os.O_RDONLY), 0)
        os.unlink("input")
        os.dup2(out, 1)
        os.close(out)
        load(code, "__main__")
        return
    os.dup2(devnull, 1)
    namespace = load(code, "candidate")
    exec(compile(setup, "<setup>", "exec", dont_inherit=True), namespace)
    result = eval(compile(case["call"], "<call>", "eval", dont_inherit=True), namespace)
    # The truth of an object is the candidate's to decide, as it could have returned True or False.
    value = dumps(bool(result)) if case.get("wanted") == "truth" else dumps(result)
    with open(out, "w", encoding="utf-8") as answer:
        answer.write(value)


def run_case_in_child(code: str, setup: str, case: dict[str, str], seconds: float, limit: int) -> tuple[str, bytes]:
    """Run one case in a child; return how it ended (`done`, `failed`, `timeout`, `output`) and its output."""
    reader, out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.setsid()
        try:
            run_case(code, setup, case, out)
        except SystemExit:
            raise
        except BaseException:
            os._exit(1)
        sys.exit(0)
    os.close(out)
    output, deadline, outcome = bytearray(), time.monotonic() + seconds, ""
    while not outcome:
        ready, _, _ = select.select([reader], [], [], max(deadline - time.monotonic(), 0))
        chunk = os.read(reader, 65536) if ready else b""
        output += chunk
        if not ready:
            outcome = "timeout"
        elif len(output) > limit:
            outcome = "output"
        elif not chunk:
            outcome = "done"
    os.close(reader)
    while outcome == "done" and time.monotonic() < deadline:  # it may have closed its output and still run
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None:
            break
        time.sleep(0.002)
    else:
        outcome = "timeout" if outcome == "done" else outcome
    try:  # noqa: SIM105 (contextlib is one more import at every start)
        os.killpg(pid, 9)
    except ProcessLookupError:
        pass
    _, status = os.waitpid(pid, 0)
    if outcome == "done" and status != 0:
        outcome = "timeout" if os.WIFSIGNALED(status) and os.WTERMSIG(status) == 24 else "failed"
    return outcome, bytes(output[:limit])


def try_cases(
    code: str, setup: str, cases: list[dict[str, str]], seconds: float, limit: int, max_timeouts: int
) -> None:
    """Print `compiled` once it compiles, then one line per case: how it ended, and its output as a JSON string.

    After `max_timeouts` timeouts the remaining cases are skipped.
    """
    compile(code, "<candidate>", "exec", dont_inherit=True)
    print("compiled", flush=True)
    num_timeouts = 0
    for case in cases:
        if num_timeouts >= max_timeouts:
            return
        outcome, output = run_case_in_child(code, setup, case, seconds, limit)
        num_timeouts += outcome == "timeout"
        print(outcome, quoted(output.decode("utf-8", "replace")), flush=True)


def describe_names(namespace: "dict[str, Any]") -> "list[list[object]]":
    """Return name, kind (`function`, `class`, `exception`) and names of the base classes of all that can be called."""
    names: list[list[object]] = []
    for name, value in namespace.items():
        if isinstance(value, type):
            kind = "exception" if issubclass(value, Exception) else "class"
            names.append([name, kind, [base.__name__ for base in value.__mro__]])
        elif callable(value):
            names.append([name, "function", []])
    return names


def serve(code: str) -> None:
    """Read calls from file descriptor 0 until it closes and answer them on descriptor 3.

    Arguments and values are data; an object that is not stays here and is passed as a reference. A request has a kind
    (`name`: a function of the candidate, `object`: an earlier value, `op`: a function of `operator` or `builtins`), the
    key of what is called, and the arguments. The answer has the value and, if the call has changed them, the arguments.
    """
    import operator

    builtins: Any = sys.modules["builtins"]
    line_in, line_out = os.fdopen(os.dup(0), "r", encoding="utf-8"), os.fdopen(os.dup(3), "w", encoding="utf-8")
    devnull = os.open("/dev/null", os.O_RDWR)
    for descriptor in (0, 1, 2):
        os.dup2(devnull, descriptor)
    objects: dict[int, object] = {}

    def refer(value: object) -> str:
        objects[id(value)] = value
        return f'{{"object": [{id(value)}, {quoted(str(type(value).__name__))}]}}'

    def resolve(kind: str, key: "Any") -> object:
        return namespace[key] if kind == "name" else objects[key]

    def send(*message: object) -> None:
        line_out.write(dumps(list(message), refer) + "\n")
        line_out.flush()

    namespace = load(code, "candidate")
    send("names", describe_names(namespace))
    for line in line_in:
        kind, key, arguments, keywords = loads(line, resolve)
        before = dumps([arguments, keywords], refer)
        try:
            function: Any = resolve(kind, key) if kind != "op" else getattr(operator, key, getattr(builtins, key, None))
            value = function(*arguments, **keywords)
        except Exception as error:
            send("raised", [base.__name__ for base in type(error).__mro__], str(error)[:200])
            continue
        after = dumps([arguments, keywords], refer)
        send("value", value, None if after == before else [arguments, keywords])
