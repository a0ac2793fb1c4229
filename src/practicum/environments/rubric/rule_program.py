"""Inside a sandbox: scores outputs by code rules, each rule in a process of its own, one after the other.

It is passed as text, after `affine/sandbox_program.py`, and not imported there. What a rule leaves running is killed,
and what it leaves in the working folder is removed, before the next one starts, so that no rule can stop, signal or
slow down another, write anything for it, or use up its space.
"""

import marshal
import os
import resource
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from practicum.environments.affine.sandbox_program import result_line, run_in_child

NOT_FINITE = "it returned no finite number"


def score_outputs(source: str, task_input: str, outputs: "list[str]", cpu_seconds: int, out: int, err: int) -> None:
    """Run a rule in this process; print a list with a score, or the text of an error, per output."""
    resource.setrlimit(resource.RLIMIT_CPU, (cpu_seconds, cpu_seconds + 1))
    os.dup2(out, 1)
    os.dup2(err, 2)
    os.closerange(3, 64)
    main = type(sys)("__main__")
    sys.modules["__main__"] = main
    exec(compile(source, "<rule>", "exec", dont_inherit=True), main.__dict__)
    scores: list[float | str] = []
    for output in outputs:
        try:
            value = main.__dict__["evaluate"](task_input, output)
            value = float(value[0] if isinstance(value, tuple) else getattr(value, "score", value))
            scores.append(value if value - value == 0 else NOT_FINITE)
        except Exception as error:
            scores.append(f"{type(error).__name__}: {error}"[:200])
    print("\n" + ascii(scores), flush=True)


def empty_folder(path: str) -> None:
    """Remove whatever is in a folder; raises OSError or RecursionError where that cannot be done."""
    with os.scandir(path) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                os.chmod(entry.path, 0o700)
                empty_folder(entry.path)
                os.rmdir(entry.path)
            else:
                os.unlink(entry.path)


def score_all(cpu_seconds: int, seconds: float, limit: int, isolated: bool) -> None:
    """Read texts, rules (indices of the source, the task input and the outputs) and modules from stdin.

    A line per rule is printed, with the last line that the rule writes. The modules are imported once, for all rules.
    `isolated`: all other processes that this one can see are those of the rules.
    """
    with open(0, "rb", closefd=False) as file:
        texts, rules, modules = marshal.loads(file.read().decode("utf-8").encode("latin-1"))
    for name in modules:
        __import__(name)
    for source, task_input, outputs in rules:
        args = (texts[source], texts[task_input], [texts[i] for i in outputs], cpu_seconds)
        outcome, out, err = run_in_child(score_outputs, args, seconds, limit)
        if isolated:
            try:  # noqa: SIM105 (contextlib is one more import at every start)
                os.kill(-1, 9)  # everything but this process and process 1 of the sandbox
            except ProcessLookupError:
                pass
        print(result_line(outcome, out.rstrip().rpartition(b"\n")[2], err), flush=True)
        try:
            empty_folder(".")
        except (OSError, RecursionError):
            return  # the rules that are left are run in another sandbox
