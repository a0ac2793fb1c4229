"""Is the answer mathematically equal to the gold one? `1/2`, `0.5`, `50\\%` and `$\\frac{1}{2}$` are.

The package `math-verify` decides. It works only in a main thread (it sets alarms) and sympy can be made
to compute for ever, so it runs in one worker process that is asked over pipes and has so much processor
time an answer. An answer that takes more is a bad one, if the gold answer is soon compared with another. A
worker that dies or does not answer is a judge error of that one episode and is replaced; it is never a zero.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import math
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.environment import ToolCall
from practicum.errors import JudgeError, UserError
from practicum.rewards.base import Reward, Score
from practicum.task import Task

CPU_SECONDS = 5
"""Of processor time that one comparison may take; the usual one takes milliseconds."""
DEADLINE = 30.0
"""Longer than that: on a busy machine the worker waits for its turn, and that is not the answer's fault."""
START_DEADLINE = 60.0
"""Seconds a new worker may take to import sympy."""
WORKER_MEMORY = 4 * 2**30
LONGEST = 20_000
"""Characters of an answer that is still compared."""
DEEPEST = 50
"""Brackets within brackets in such an answer."""
TOWER = re.compile(r"\d(?:\s*(?:\^|\*\*)[\s{(]*\d+){3}")
DELIMITERS = ("$", "\\boxed", "\\(", "\\[")
FUNCTION = re.compile(r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|exp)(?![A-Za-z])")
ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)")
NAMED = re.compile(r"\\(?:begin|end|text|mathrm|operatorname)\{[^}]*\}")
PROSE = re.compile(r"(?<![\\A-Za-z0-9])(?!(?:or|and)\b)[A-Za-z]{2,}[,:;.]?\s")


class OutOfTime(JudgeError):
    """A comparison used up its processor time."""


class MathWorker:
    """One process that compares answers. Threads take turns."""

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, "-m", __name__),
        deadline: float = DEADLINE,
        cpu_seconds: int = CPU_SECONDS,
    ) -> None:
        self.command, self.deadline, self.cpu_seconds = list(command), deadline, cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def equal(self, gold: str, given: str) -> bool:
        """Whether two texts are the same mathematics; JudgeError where that cannot be known."""
        if given != gold and is_monstrous(given):
            return False
        with self._lock:
            try:
                answer = self._compare(gold, given)
            except OutOfTime:
                self._compare(gold, "1")
                return False
        if "error" in answer:
            raise JudgeError(str(answer["error"]))
        return bool(answer["equal"])

    def _compare(self, gold: str, given: str) -> dict[str, Any]:
        try:
            if self._process is None:
                self._process = self._start()
            return self._ask(self._process, {"gold": gold, "given": given}, self.deadline, self.cpu_seconds)
        except JudgeError:
            self.close()
            raise

    def close(self) -> None:
        """End the process; the next question starts another."""
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _start(self) -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            self.command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, bufsize=0
        )
        self._process = process
        # A first question, so that a slow import is not held against the answer that happens to come first.
        self._ask(process, {"gold": "1", "given": "1"}, START_DEADLINE, int(START_DEADLINE))
        return process

    def _ask(
        self, process: subprocess.Popen[bytes], question: Mapping[str, str], seconds: float, cpu_seconds: int
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        until = time.monotonic() + seconds
        received = b""
        try:
            limits = {"seconds": seconds, "cpu_seconds": cpu_seconds}
            process.stdin.write(json.dumps({**question, **limits}).encode() + b"\n")
            while not received.endswith(b"\n"):
                left = until - time.monotonic()
                if left <= 0 or not select.select([process.stdout], [], [], left)[0]:
                    raise JudgeError(f"comparing the answers took more than {seconds:g} s")
                piece = os.read(process.stdout.fileno(), 65536)
                if not piece and process.wait() == -signal.SIGXCPU:
                    raise OutOfTime(f"comparing the answers took more than {cpu_seconds} s of processor time")
                if not piece:
                    raise JudgeError(f"the process that compares answers ended with code {process.returncode}")
                received += piece
            answer: dict[str, Any] = json.loads(received)
            return answer
        except (OSError, ValueError) as error:
            raise JudgeError(f"the process that compares answers failed: {error}") from None


@dataclass(frozen=True)
class MathEqualReward(Reward):
    """A reward that first sees to it that its package is there: that is a wrong setting, not a failed judge."""

    def score(self, task: Task, answer_given: str | None, calls: Sequence[ToolCall]) -> Score:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError("math_equal_reward needs the package math-verify: pip install 'practicum[math]'.")
        return super().score(task, answer_given, calls)


_worker = MathWorker()  # no process yet; when this one ends the pipe closes, and with it the worker


def compare_with_gold(answer_given: str | None, answer: str | Sequence[str]) -> Mapping[str, float]:
    """1 when the answer equals a gold answer mathematically, else 0."""
    golds = [answer] if isinstance(answer, (str, int, float)) else list(answer)
    given = (answer_given or "").strip()
    right = float(bool(given) and any(_worker.equal(str(gold), given) for gold in golds))
    return {"reward": right, "success": right}


math_equal_reward = MathEqualReward("math_equal_reward", compare_with_gold)


def is_monstrous(text: str) -> bool:
    """Whether a text is too long, too deep or too high a tower of powers to be an answer."""
    if len(text) > LONGEST or TOWER.search(text):
        return True
    depth = deepest = 0
    for mark in text:
        depth = depth + 1 if mark in "([{" else max(depth - 1, 0) if mark in ")]}" else depth
        deepest = max(deepest, depth)
    return deepest > DEEPEST


def as_latex(text: str) -> str:
    """A bare formula between dollars, so that all of it is read; a sentence, or what is marked already, as it is."""
    text = text.replace("\\%", "%").strip()
    if any(mark in text for mark in DELIMITERS):
        return text
    formula = FUNCTION.sub(r"\\\1", ROOT.sub(r"\\sqrt{\1}", text))
    return text if PROSE.search(NAMED.sub("", formula)) else f"${formula}$"


def _judge(gold: str, given: str) -> dict[str, Any]:
    """One comparison, in the worker."""
    library = importlib.import_module("math_verify")

    # Its own time limits are off: they would turn a hang into "not equal".
    wanted = library.parse(as_latex(gold), parsing_timeout=0)
    if not wanted:
        return {"error": f"the gold answer '{gold[:80]}' cannot be read as mathematics"}
    try:
        said = library.parse(as_latex(given), parsing_timeout=0)
        return {"equal": bool(said) and bool(library.verify(wanted, said, timeout_seconds=0, raise_on_error=True))}
    except (RecursionError, MemoryError, OverflowError):
        return {"equal": False}


def _serve() -> None:
    """The worker: one JSON line in, one out, until the pipe is closed."""
    import logging
    import resource

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY, WORKER_MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, most = resource.getrlimit(resource.RLIMIT_CPU)
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nothing that a library prints may be taken for an answer
    for line in sys.stdin:
        question = json.loads(line)
        # Should the asking process be gone, nobody is left to stop a comparison that hangs: the alarm does.
        signal.alarm(int(question["seconds"]) + 2)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + question["cpu_seconds"]), most))
        try:
            answer = _judge(question["gold"], question["given"])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        signal.alarm(0)
        print(json.dumps(answer), file=answers, flush=True)


if __name__ == "__main__":
    _serve()
