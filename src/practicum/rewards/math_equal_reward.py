"""The reward of mathematical equality: `1/2`, `0.5`, `50\\%` and `$\\frac{1}{2}$` are equal answers.

The package `math-verify` decides. It works only in a main thread (it sets alarms), and sympy can be made to compute for
ever, so it runs in one worker process, connected by pipes, with a limit of processor time per answer. An answer that
exceeds it counts as wrong, if the gold answer can be compared with another in time. A worker that dies or does not
answer is a judge error of that one episode and is replaced; it is never a reward of zero.
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
"""Seconds of processor time per comparison; most take milliseconds."""
DEADLINE_SECONDS = 30.0
"""Wall seconds per comparison; more than the processor time, because on a busy machine the worker waits."""
START_DEADLINE_SECONDS = 60.0
"""Seconds a new worker may take to import sympy."""
WORKER_MEMORY_BYTES = 4 * 2**30
MAX_ANSWER_CHARS = 20_000
"""Longer answers are wrong without a comparison."""
MAX_BRACKET_DEPTH = 50
"""Answers with more deeply nested brackets are wrong without a comparison."""
POWER_TOWER = re.compile(r"\d(?:\s*(?:\^|\*\*)[\s{(]*\d+){3}")
DELIMITERS = ("$", "\\boxed", "\\(", "\\[")
FUNCTION = re.compile(r"(?<![\\A-Za-z])(arcsin|arccos|arctan|sin|cos|tan|cot|sec|csc|log|exp)(?![A-Za-z])")
ROOT = re.compile(r"(?<![\\A-Za-z])sqrt\(([^()]*)\)")
NAMED = re.compile(r"\\(?:begin|end|text|mathrm|operatorname)\{[^}]*\}")
PROSE = re.compile(r"(?<![\\A-Za-z0-9])(?!(?:or|and)\b)[A-Za-z]{2,}[,:;.]?\s")


class CpuTimeExceeded(JudgeError):
    """A comparison exceeded its processor time."""


class MathWorker:
    """One process that compares answers, for one thread at a time."""

    def __init__(
        self,
        command: Sequence[str] = (sys.executable, "-m", __name__),
        deadline: float = DEADLINE_SECONDS,
        cpu_seconds: int = CPU_SECONDS,
    ) -> None:
        self.command, self.deadline, self.cpu_seconds = list(command), deadline, cpu_seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()

    def equal(self, gold: str, candidate: str) -> bool:
        """Return whether two texts are mathematically equal; JudgeError if that cannot be decided."""
        if candidate != gold and is_too_complex(candidate):
            return False
        with self._lock:
            try:
                answer = self._compare(gold, candidate)
            except CpuTimeExceeded:
                self._compare(gold, "1")
                return False
        if "error" in answer:
            raise JudgeError(str(answer["error"]))
        return bool(answer["equal"])

    def _compare(self, gold: str, candidate: str) -> dict[str, Any]:
        try:
            if self._process is None:
                self._process = self._start()
            return self._request(self._process, {"gold": gold, "given": candidate}, self.deadline, self.cpu_seconds)
        except JudgeError:
            self.close()
            raise

    def close(self) -> None:
        """End the process; the next comparison starts another."""
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
        # A first comparison, so that the slow import does not count against the first answer.
        self._request(process, {"gold": "1", "given": "1"}, START_DEADLINE_SECONDS, int(START_DEADLINE_SECONDS))
        return process

    def _request(
        self, process: subprocess.Popen[bytes], request: Mapping[str, str], seconds: float, cpu_seconds: int
    ) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        deadline = time.monotonic() + seconds
        received = b""
        try:
            limits = {"seconds": seconds, "cpu_seconds": cpu_seconds}
            process.stdin.write(json.dumps({**request, **limits}).encode() + b"\n")
            while not received.endswith(b"\n"):
                seconds_left = deadline - time.monotonic()
                if seconds_left <= 0 or not select.select([process.stdout], [], [], seconds_left)[0]:
                    raise JudgeError(f"comparing the answers took more than {seconds:g} s")
                chunk = os.read(process.stdout.fileno(), 65536)
                if not chunk and process.wait() == -signal.SIGXCPU:
                    raise CpuTimeExceeded(f"comparing the answers took more than {cpu_seconds} s of processor time")
                if not chunk:
                    raise JudgeError(f"the process that compares answers ended with code {process.returncode}")
                received += chunk
            answer: dict[str, Any] = json.loads(received)
            return answer
        except (OSError, ValueError) as error:
            raise JudgeError(f"the process that compares answers failed: {error}") from None


@dataclass(frozen=True)
class MathEqualReward(Reward):
    """A reward that first checks that its package is installed: a missing one is a wrong setting, not a judge error."""

    def score(self, task: Task, answer_given: str | None, calls: Sequence[ToolCall]) -> Score:
        if importlib.util.find_spec("math_verify") is None:
            raise UserError("math_equal_reward needs the package math-verify: pip install 'practicum[math]'.")
        return super().score(task, answer_given, calls)


_worker = MathWorker()  # the process is started by the first comparison; it ends when this process closes the pipe


def compare_with_gold(answer_given: str | None, answer: str | Sequence[str]) -> Mapping[str, float]:
    """Return 1 if the answer equals a gold answer mathematically, else 0."""
    golds = [answer] if isinstance(answer, (str, int, float)) else list(answer)
    text = (answer_given or "").strip()
    right = float(bool(text) and any(_worker.equal(str(gold), text) for gold in golds))
    return {"reward": right, "success": right}


math_equal_reward = MathEqualReward("math_equal_reward", compare_with_gold)


def is_too_complex(text: str) -> bool:
    """Return whether a text is too long, too deeply nested or too high a tower of powers to be an answer."""
    if len(text) > MAX_ANSWER_CHARS or POWER_TOWER.search(text):
        return True
    depth = max_depth = 0
    for character in text:
        depth = depth + 1 if character in "([{" else max(depth - 1, 0) if character in ")]}" else depth
        max_depth = max(max_depth, depth)
    return max_depth > MAX_BRACKET_DEPTH


def as_latex(text: str) -> str:
    """Put a bare formula between dollars, so that all of it is parsed; prose and delimited formulas are unchanged."""
    text = text.replace("\\%", "%").strip()
    if any(delimiter in text for delimiter in DELIMITERS):
        return text
    formula = FUNCTION.sub(r"\\\1", ROOT.sub(r"\\sqrt{\1}", text))
    return text if PROSE.search(NAMED.sub("", formula)) else f"${formula}$"


def _judge(gold: str, answer: str) -> dict[str, Any]:
    """Compare two answers, in the worker process."""
    library = importlib.import_module("math_verify")

    # Its own time limits are off: they would turn a hang into "not equal".
    gold_parsed = library.parse(as_latex(gold), parsing_timeout=0)
    if not gold_parsed:
        return {"error": f"the gold answer '{gold[:80]}' cannot be read as mathematics"}
    try:
        answer_parsed = library.parse(as_latex(answer), parsing_timeout=0)
        if not answer_parsed:
            return {"equal": False}
        return {"equal": bool(library.verify(gold_parsed, answer_parsed, timeout_seconds=0, raise_on_error=True))}
    except (RecursionError, MemoryError, OverflowError):
        return {"equal": False}


def _serve() -> None:
    """Run the worker process: answer one JSON line with one, until the pipe is closed."""
    import logging
    import resource

    logging.disable(logging.CRITICAL)
    resource.setrlimit(resource.RLIMIT_AS, (WORKER_MEMORY_BYTES, WORKER_MEMORY_BYTES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard_limit = resource.getrlimit(resource.RLIMIT_CPU)
    responses = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # what a library prints must not mix with the responses
    for line in sys.stdin:
        request = json.loads(line)
        # If the parent process has ended, nobody stops a comparison that hangs: the alarm does.
        signal.alarm(int(request["seconds"]) + 2)
        resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + request["cpu_seconds"]), hard_limit))
        try:
            answer = _judge(request["gold"], request["given"])
        except Exception as error:
            answer = {"error": f"{type(error).__name__}: {error}"}
        signal.alarm(0)
        print(json.dumps(answer), file=responses, flush=True)


if __name__ == "__main__":
    _serve()
