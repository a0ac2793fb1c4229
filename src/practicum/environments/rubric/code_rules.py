"""Runs code rules in the sandbox: all rules of an episode over all of its outputs in one sandbox.

Every rule has a process of its own in that sandbox, and scores all outputs in it. A rule that fails, does not end or
harms the others costs only itself: rules that a fault kept from running run again, each in a sandbox of its own. The
ground truth never enters the sandbox, and rules of two episodes never share one, so a rule that forges results forges
those of its own rubric, whose values it may choose anyway.
"""

from __future__ import annotations

import ast
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.environments.affine.program_runner import Job, RunResult, run_jobs
from practicum.environments.rubric.schema import CodeRule
from practicum.task import content_hash
from practicum.utils.concurrency import agent_time, in_thread_with_slots, judge_seconds

CPU_SECONDS = 1
"""Seconds of CPU time of a rule over all outputs."""
MAX_TOTAL_SECONDS = 60.0
MAX_CACHED_SCORES = 100_000
FINAL_OUTCOMES = ("done", "output")
"""Outcomes that another run would have too. Whether the clock stops a rule depends on how busy the machine is."""
NOT_FINITE = "it returned no finite number"
HARNESS = """

def _score_all(cases):
    scores = []
    for task_input, candidate_output in cases:
        try:
            value = evaluate(task_input, candidate_output)
            value = float(value[0] if isinstance(value, tuple) else getattr(value, "score", value))
            scores.append(value if value - value == 0 else NOT_FINITE)
        except Exception as error:
            scores.append(f"{type(error).__name__}: {error}"[:200])
    print("\\n" + ascii(scores), flush=True)

_score_all(CASES)
"""
"""Appended to a rule's program. It imports nothing: the import of `json` would take longer than a rule."""


@dataclass(frozen=True, slots=True)
class RuleScore:
    """The score of a rule on an output, and why it is zero where the rule failed."""

    score: float
    error: str = ""
    reasoning: str = ""


class CodeRuleRunner:
    """Scores outputs by code rules, and remembers the scores of rules that ended by themselves."""

    def __init__(self, cpu_seconds: int = CPU_SECONDS, seconds: float = MAX_TOTAL_SECONDS) -> None:
        self.cpu_seconds, self.seconds = cpu_seconds, seconds
        self.num_sandboxes = 0
        """Sandboxes that were started so far."""
        self._cache: OrderedDict[tuple[str, str], RuleScore] = OrderedDict()

    async def score(self, rules: Sequence[CodeRule], task_input: str, outputs: Sequence[str]) -> list[list[RuleScore]]:
        """Return one list per rule with the score of each output."""
        keys = [content_hash([task_input, output]) for output in outputs]
        codes = [content_hash(rule.code) for rule in rules]
        # Copied now: while the others run, another episode may push these out of the cache.
        found = {(code, key): self._cache[code, key] for code in codes for key in keys if (code, key) in self._cache}
        missing: dict[str, str] = {
            code: rule.code
            for rule, code in zip(rules, codes, strict=True)
            if any((code, key) not in found for key in keys)
        }
        if missing:
            cases = ascii([(task_input, output) for output in outputs])
            harness = HARNESS.replace("CASES", cases).replace("NOT_FINITE", repr(NOT_FINITE), 1)
            jobs = [Job(source + harness, "") for source in missing.values()]
            with agent_time():
                seconds = judge_seconds(self.seconds)
                results = await in_thread_with_slots(self._run, jobs, seconds)
            for code, result in zip(missing, results, strict=True):
                fresh = {(code, key): score for key, score in zip(keys, scores_of(result, len(outputs)), strict=True)}
                found |= fresh
                if result.outcome in FINAL_OUTCOMES:
                    self._remember(fresh)
        return [[found[code, key] for key in keys] for code in codes]

    def _run(self, jobs: Sequence[Job], seconds: float) -> list[RunResult]:
        results = run_jobs(jobs, self.cpu_seconds, max_timeouts=len(jobs) + 1, seconds=seconds)
        self.num_sandboxes += 1
        if len(jobs) == 1:
            return results
        for index, result in enumerate(results):
            if result.outcome in ("skipped", "killed"):  # perhaps by another rule: alone it cannot be harmed
                results[index] = run_jobs([jobs[index]], self.cpu_seconds, seconds=seconds / 4)[0]
                self.num_sandboxes += 1
        return results

    def _remember(self, fresh: dict[tuple[str, str], RuleScore]) -> None:
        self._cache.update(fresh)
        while len(self._cache) > MAX_CACHED_SCORES:
            self._cache.popitem(last=False)


def scores_of(result: RunResult, count: int) -> list[RuleScore]:
    """Return the scores that a rule's process printed; where it failed, zeros with the error."""
    if result.outcome != "done" or not result.output.strip():
        problem = result.problem or ("it did not run" if result.outcome == "skipped" else "it returned no scores")
        return [RuleScore(0.0, problem)] * count
    try:
        values = ast.literal_eval(result.output.strip().splitlines()[-1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != count:
        return [RuleScore(0.0, result.problem or "it returned no scores")] * count
    return [_score(value) for value in values]


def _score(value: object) -> RuleScore:
    if isinstance(value, str):
        return RuleScore(0.0, value[:200])
    if not isinstance(value, int | float) or not math.isfinite(value):
        return RuleScore(0.0, NOT_FINITE)
    return RuleScore(min(1.0, max(0.0, float(value))))


_shared = CodeRuleRunner()


def shared_runner() -> CodeRuleRunner:
    """Return the process's runner: attempts at one task score the same outputs, often by the same rules."""
    return _shared
