"""Scores outputs by code rules, which run in the sandbox; scores are cached by rule and output.

Every rule has a process of its own in the sandbox and scores all outputs of its episode in it; rules of several
episodes that wait at the same time share a sandbox (`rule_queue`). A rule that fails, does not end or attacks what it
can reach costs only itself: it has no access to the results of others, what it leaves running is killed before the next
one starts, and rules that it kept from running run again. It can read the rules and outputs that are in its sandbox, so
ground truths have a runner of their own and never share a sandbox with rules that a model wrote.
"""

from __future__ import annotations

import ast
import asyncio
import functools
import math
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

from practicum.environments.affine.program_runner import RunResult
from practicum.environments.rubric.rule_program import NOT_FINITE
from practicum.environments.rubric.rule_queue import RuleQueue, RuleRun
from practicum.environments.rubric.schema import CodeRule
from practicum.task import content_hash
from practicum.utils.concurrency import in_thread, queued

MAX_CACHED_SCORES = 100_000
FINAL_OUTCOMES = ("done", "output")
"""Outcomes that another run would have too. Whether the clock stops a rule depends on how busy the machine is."""


@dataclass(frozen=True, slots=True)
class RuleScore:
    """The score of a rule on an output, and why it is zero where the rule failed."""

    score: float
    error: str = ""
    reasoning: str = ""


class CodeRuleRunner:
    """Scores outputs by code rules, and remembers the scores of rules that ended by themselves."""

    def __init__(self) -> None:
        self.queue = RuleQueue()
        self._cache: OrderedDict[tuple[str, str], RuleScore] = OrderedDict()
        self._running: dict[tuple[str, ...], RuleRun] = {}
        """Rules that episodes wait for, by rule and outputs: attempts that wait for the same one share its run."""

    async def score(self, rules: Sequence[CodeRule], task_input: str, outputs: Sequence[str]) -> list[list[RuleScore]]:
        """Return one list per rule with the score of each output."""
        keys = [content_hash([task_input, output]) for output in outputs]
        # A rule sees the outputs in an order that says nothing: workers come in the same order of quality in every
        # task, so a rule that counts its calls would otherwise be paid without reading any output.
        texts = dict(sorted(zip(keys, outputs, strict=True)))
        codes = [content_hash(rule.code) for rule in rules]
        # Copied now: while the others run, another episode may push these out of the cache.
        scores = {(code, key): self._cache[code, key] for code in codes for key in keys if (code, key) in self._cache}
        missing = {
            code: self._running.setdefault((code, *texts), RuleRun(rule.code, task_input, tuple(texts.values())))
            for rule, code in zip(rules, codes, strict=True)
            if any((code, key) not in scores for key in keys)
        }
        if missing:
            try:
                results = await self._run(list(missing.values()))
            finally:
                for code in missing:
                    self._running.pop((code, *texts), None)
            for code, result in zip(missing, results, strict=True):
                new_scores = {
                    (code, key): score for key, score in zip(texts, scores_of(result, len(texts)), strict=True)
                }
                scores |= new_scores
                if result.outcome in FINAL_OUTCOMES:
                    self._remember(new_scores)
        return [[scores[code, key] for key in keys] for code in codes]

    async def _run(self, runs: Sequence[RuleRun]) -> list[RunResult]:
        with queued():  # rules of other episodes may run first; every rule has limits of its own
            self.queue.add(runs)
            await asyncio.sleep(0)  # episodes that end at the same time add theirs too
            return await in_thread(self.queue.wait, runs)

    def _remember(self, new_scores: dict[tuple[str, str], RuleScore]) -> None:
        self._cache.update(new_scores)
        while len(self._cache) > MAX_CACHED_SCORES:
            self._cache.popitem(last=False)


def scores_of(result: RunResult, count: int) -> list[RuleScore]:
    """Return the scores that a rule's process printed; where it failed, zeros with the error."""
    if result.outcome != "done" or not result.output.strip():
        return [RuleScore(0.0, result.problem or "it returned no scores")] * count
    try:
        values = ast.literal_eval(result.output.strip().splitlines()[-1])
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        values = None
    if not isinstance(values, list) or len(values) != count:
        return [RuleScore(0.0, result.problem or "it returned no scores")] * count
    return [_score(value) for value in values]


def _score(value: object) -> RuleScore:
    if isinstance(value, str):  # of a program that may have written characters that cannot be stored
        return RuleScore(0.0, value[:200].encode("utf-8", "replace").decode())
    if not isinstance(value, int | float) or not math.isfinite(value):
        return RuleScore(0.0, NOT_FINITE)
    return RuleScore(min(1.0, max(0.0, float(value))))


@functools.cache
def shared_runner(owner: str) -> CodeRuleRunner:
    """Return the process's runner for one kind of rules: `generated` or `ground truth`.

    It is shared because attempts at one task score the same outputs, often by the same rules.
    """
    return CodeRuleRunner()
