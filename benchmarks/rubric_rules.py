"""How long do the code rules of 64 episodes take, against a sandbox of their own for each rule?

    python benchmarks/rubric_rules.py [--episodes 64] [--rules 5]

Every episode has rules of its own, as models write them, and scores 16 outputs of its own workflow; `--expert` takes
the expert's rules, which are ten times as long. The rules run as in training, all episodes at once; then each rule runs
in a sandbox of its own, as many at once as the sandbox allows.
"""

from __future__ import annotations

import argparse
import asyncio
import resource
import time
from collections.abc import Awaitable, Callable

from practicum.environments.rubric.code_rules import CodeRuleRunner
from practicum.environments.rubric.environment import RubricEnvironment
from practicum.environments.rubric.probes import code_rule
from practicum.environments.rubric.rubric_case import RubricCase, case_of_task
from practicum.environments.rubric.schema import CodeRule, MenuRule
from practicum.sandbox import base

HEADING = r"""
import re
def evaluate(task_input, candidate_output):
    headings = [line.strip("# ").lower() for line in candidate_output.splitlines() if line.startswith("#")]
    return 1.0 if any(re.search(r"\brisks?\b", heading) for heading in headings) else 0.0
"""
LENGTH = """
def evaluate(task_input, candidate_output):
    count = len(candidate_output.split())
    if count <= 120:
        return 1.0
    return max(0.0, 1 - (count - 120) / 120)
"""
TOTAL = r"""
import re
def evaluate(task_input: str, candidate_output: str) -> float:
    numbers = [float(n) for n in re.findall(r"\d+(?:\.\d+)?", task_input)]
    return 1.0 if f"{sum(numbers):g}" in candidate_output else 0.0
"""
TABLE = """
def evaluate(task_input, candidate_output):
    rows = [line.split("|") for line in candidate_output.splitlines() if "|" in line]
    if not rows:
        return 0.0
    full = sum(all(cell.strip() for cell in row) for row in rows)
    return full / len(rows)
"""
WORDING = r"""
import re
def evaluate(task_input, candidate_output):
    vague = ("maybe", "perhaps", "somehow", "various", "etc")
    found = sum(len(re.findall(rf"\b{word}\b", candidate_output, re.IGNORECASE)) for word in vague)
    return max(0.0, 1.0 - 0.25 * found)
"""
WRITTEN = (HEADING, LENGTH, TOTAL, TABLE, WORDING)
Episodes = list[tuple[RubricCase, list[CodeRule]]]


async def make_episodes(count: int, num_rules: int, expert: bool) -> Episodes:
    """Return workflows with rules of which no two are the same."""
    episodes: Episodes = []
    for index, task in enumerate(RubricEnvironment().tasks("train", count, 0)):
        case = await case_of_task(task)
        menu = [rule for rule in case.ground_truth.all_rules if isinstance(rule, MenuRule)]
        sources = [str(code_rule(rule)["code"]) for rule in menu] if expert else WRITTEN
        codes = [f"{sources[i % len(sources)]}\n# {index} {i}" for i in range(num_rules)]
        episodes.append((case, [CodeRule(code=code) for code in codes]))
    return episodes


async def run_together(episodes: Episodes) -> int:
    runner = CodeRuleRunner()
    await asyncio.gather(
        *(runner.score(rules, case.task_input, [*case.outputs, *case.held_out_outputs]) for case, rules in episodes)
    )
    return runner.queue.num_sandboxes


async def alone(episodes: Episodes) -> int:
    single = [(case, rule, CodeRuleRunner()) for case, rules in episodes for rule in rules]
    await asyncio.gather(
        *(
            runner.score([rule], case.task_input, [*case.outputs, *case.held_out_outputs])
            for case, rule, runner in single
        )
    )
    return sum(runner.queue.num_sandboxes for *_, runner in single)


async def measure(name: str, run: Callable[[Episodes], Awaitable[int]], episodes: Episodes) -> tuple[float, float]:
    """Return wall seconds and processor seconds, the sandboxes' included."""

    def cpu() -> float:
        self_usage, children = (resource.getrusage(scope) for scope in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        return self_usage.ru_utime + self_usage.ru_stime + children.ru_utime + children.ru_stime

    wall_before, cpu_before = time.perf_counter(), cpu()
    num_sandboxes = await run(episodes)
    wall, cpu_seconds = time.perf_counter() - wall_before, cpu() - cpu_before
    print(f"{name}: {num_sandboxes} sandboxes, {wall:.2f} s, {cpu_seconds:.2f} s of processor time", flush=True)
    return wall, cpu_seconds


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--episodes", type=int, default=64)
    parser.add_argument("--rules", type=int, default=5)
    parser.add_argument("--expert", action="store_true")
    args = parser.parse_args()
    episodes = await make_episodes(args.episodes, args.rules, args.expert)
    base.current()
    first = await measure("together", run_together, episodes)
    second = await measure("a sandbox per rule", alone, episodes)
    print(f"together / per rule: {first[0] / second[0]:.3f} of the time, {first[1] / second[1]:.3f} of processor time")


if __name__ == "__main__":
    asyncio.run(main())
