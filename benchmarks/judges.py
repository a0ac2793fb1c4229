"""Judges of published data sets on their own files: gold answers must be right, changed ones wrong.

    python benchmarks/judges.py gsm8k/test.jsonl MATH/test HumanEval.jsonl.gz mbpp.jsonl sanitized-mbpp.json \\
        cruxeval.jsonl dev-v2.0.json

Files are read as `practicum convert` reads them; the form is recognised by its fields (`--format` names it). For every
row the gold answer is judged in the forms in which a model gives it, and so are changed answers: another number, a
function that returns another value, the answer of another question. Printed are both rates with 95 % intervals, the
rows that could not be judged, and examples of what was judged wrongly.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import random
import re
import sys
import textwrap
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from practicum.data import convert
from practicum.data.dataset_rows import read_dataset_rows
from practicum.environments.affine.abd import AbdEnvironment
from practicum.errors import JudgeError, UserError
from practicum.evaluation.stats.intervals import jeffreys
from practicum.registry import reward
from practicum.rewards.code_tests import called_names, read_cases
from practicum.rewards.math_reward import gold_number, normalise_formula
from practicum.rewards.qa_f1_reward import normalise
from practicum.task import Task

REWARDS = {
    "gsm8k": "math_reward",
    "math": "math_reward",
    "humaneval": "code_reward",
    "mbpp": "code_reward",
    "squad": "qa_f1_reward",
    "hotpotqa": "qa_f1_reward",
}
NUM_EXAMPLES = 5
WRONG = """
def _wrong(value):
    if isinstance(value, bool): return not value
    if isinstance(value, (int, float)): return 0 if value in (float("inf"), -float("inf")) else value + abs(value) + 1
    if isinstance(value, str): return value + "x"
    if isinstance(value, list): return value + [None]
    if isinstance(value, tuple): return value + (None,)
    if isinstance(value, (set, frozenset)): return {*value, "x", None}
    if isinstance(value, dict): return {**value, "x": None}
    return 0 if value is None else None
"""
"""Appended to a solution, with a wrapper of the tested function: it then returns another value."""
WRAPPER = """
_right_{name} = {name}
def {name}(*arguments, **keywords):
    return _wrong(_right_{name}(*arguments, **keywords))
"""


@dataclass(frozen=True)
class Trial:
    """An answer to a task, and whether it is right."""

    task: Task
    answer: str
    right: bool
    form: str


@dataclass(frozen=True)
class Judged:
    """A trial with its verdict; None if it could not be judged."""

    trial: Trial
    success: bool | None
    error: str = ""


def recognise(row: Any) -> str:
    """Return the name of the data set that a row is of."""
    fields = set(row) if isinstance(row, dict) else set()
    for name, needed in (
        ("humaneval", {"entry_point", "test"}), ("mbpp", {"test_list"}), ("cruxeval", {"code", "input", "output"}),
        ("math", {"problem", "solution"}), ("hotpotqa", {"supporting_facts"}), ("squad", {"data"}),
        ("squad", {"context", "answers"}), ("gsm8k", {"question", "answer"}),
    ):  # fmt: skip
        if needed <= fields:
            return name
    raise UserError(
        f"The form of a row with the fields {', '.join(sorted(fields)) or 'none'} is not known; say --format."
    )


def tasks_of(name: str, path: Path) -> list[Task]:
    if name == "cruxeval":
        return list(AbdEnvironment(files={"test": str(path)}).tasks("test", 10**9))
    return [Task(row["id"], name, "test", row) for row in convert.convert(name, path).rows]


def trials(name: str, tasks: Sequence[Task], rng: random.Random) -> Iterator[Trial]:
    make = {
        "gsm8k": math_trials, "math": math_trials, "humaneval": code_trials, "mbpp": code_trials,
        "cruxeval": crux_trials, "squad": qa_trials, "hotpotqa": qa_trials,
    }[name]  # fmt: skip
    for task in tasks:
        yield from make(task, rng.choice(tasks))


def math_trials(task: Task, other: Task) -> Iterator[Trial]:
    gold, solution = str(task.fields["answer"]), str(task.fields["solution"])
    marked = f"{solution}\n#### {gold}" if "\\boxed" not in solution else solution
    yield Trial(task, gold, True, "answer alone")
    yield Trial(task, f"\\boxed{{{gold}}}", True, "boxed")
    yield Trial(task, marked, True, "solution")
    yield Trial(task, f"The final answer is ${gold}$.", True, "sentence")
    wrong = dict.fromkeys(changed_numbers(gold))
    another = str(other.fields["answer"])
    if normalise_formula(another) != normalise_formula(gold) and gold_number(another) != gold_number(gold):
        wrong[another] = None
    for answer in wrong:
        yield Trial(task, answer, False, "changed answer")
        yield Trial(task, f"{solution.replace(gold, ' ')}\nSo it is \\boxed{{{answer}}}.", False, "changed, boxed")


def changed_numbers(text: str) -> Iterator[str]:
    """Yield a formula with its first, and with its last number increased by one."""
    numbers = list(re.finditer(r"\d+", text))
    for match in numbers[:1] + numbers[1:][-1:]:
        yield f"{text[: match.start()]}{int(match[0]) + 1}{text[match.end() :]}"


def code_trials(task: Task, other: Task) -> Iterator[Trial]:
    solution = str(task.fields["solution"])
    entry = task.fields.get("entry_point")
    names = [str(entry)] if entry else sorted(called_names(read_cases(task.fields["test_cases"])))
    names = [name for name in names if re.search(rf"^def {name}\b", solution, re.M)]
    yield Trial(task, solution, True, "program")
    yield Trial(task, f"Here it is:\n```python\n{solution}\n```\nIt works.", True, "fenced")
    yield Trial(task, f"```python\n{solution}", True, "fence not closed")
    prompt = str(task.fields.get("prompt", ""))
    if prompt:
        yield Trial(task, textwrap.dedent(solution[len(prompt) :]), True, "body alone")
    wrapped = "".join(WRAPPER.format(name=name) for name in names)
    yield Trial(task, f"{solution}\n{WRONG}{wrapped}", False, "returns another value")
    yield Trial(task, "".join(f"def {name}(*arguments):\n    return None\n" for name in names), False, "returns None")
    if other.id != task.id:
        yield Trial(task, str(other.fields["solution"]), False, "another program")


def crux_trials(task: Task, other: Task) -> Iterator[Trial]:
    answer = f"<INPUT>\n{task.fields['input']}\n</INPUT>"
    yield Trial(task, answer, True, "input")
    output = str(task.fields["output"])
    changed = next(changed_numbers(output), f"{output[:-1]}x{output[-1:]}")
    yield Trial(replace(task, fields={**task.fields, "output": changed}), answer, False, "another output wanted")


def qa_trials(task: Task, other: Task) -> Iterator[Trial]:
    golds, others = ([a] if isinstance(a, str) else list(a) for a in (task.fields["answer"], other.fields["answer"]))
    for gold in golds:
        yield Trial(task, gold, True, "answer")
        yield Trial(task, f"{gold.upper()}.", True, "capitals and a full stop")
    wrong = [*others, f"{golds[0]} perhaps", *(word for word in golds[0].split()[:1])]
    for answer in wrong:
        if normalise(answer) not in map(normalise, golds):
            yield Trial(task, answer, False, "another answer")


def judge(name: str, trial: Trial) -> Judged:
    try:
        if name == "cruxeval":
            return Judged(trial, asyncio.run(judge_input(trial)))
        return Judged(trial, reward(REWARDS[name]).score(trial.task, trial.answer, ()).success)
    except JudgeError as error:
        return Judged(trial, None, str(error))


async def judge_input(trial: Trial) -> bool:
    environment = AbdEnvironment()
    return (await environment.judge(trial.task, environment.read(trial.answer))).success


def report(path: Path, name: str, rows: int, results: Sequence[Judged]) -> list[str]:
    lines = [f"{path} ({name}, {rows} rows)"]
    for right, title in ((True, "gold judged right"), (False, "changed judged right")):
        judged = [result for result in results if result.trial.right is right and result.success is not None]
        count = sum(bool(result.success) for result in judged)
        interval = jeffreys(count, len(judged))
        share = (
            f"{100 * count / len(judged):.2f} % [{100 * interval.low:.2f}, {100 * interval.high:.2f}]"
            if judged
            else "-"
        )
        lines.append(f"  {title:22} {count} of {len(judged)}  {share}")
        misses = [result for result in judged if result.success is not right]
        lines += [f"    {m.trial.task.id}, {m.trial.form}: {m.trial.answer[-60:]!r}" for m in misses[:NUM_EXAMPLES]]
    errors = collections.Counter(result.error for result in results if result.success is None)
    lines.append(f"  {'judge errors':22} {errors.total()} of {len(results)}")
    lines += [f"    {count} × {error[:140]}" for error, count in errors.most_common(NUM_EXAMPLES)]
    return lines


def examine(path: Path, name: str | None, limit: int | None, seed: int, workers: int) -> list[str]:
    """Judge a file's gold and changed answers; return the report's lines."""
    if name is None:
        rows = read_dataset_rows(path)
        name = recognise(rows[0][1] if rows else None)
    tasks = tasks_of(name, path)
    rng = random.Random(seed)
    chosen = tasks if limit is None or limit >= len(tasks) else rng.sample(tasks, limit)
    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(lambda trial: judge(name, trial), trials(name, chosen, rng)))
    return report(path, name, len(chosen), results)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path)
    parser.add_argument(
        "--format", choices=(*REWARDS, "cruxeval"), help="whose files they are (default: by their fields)"
    )
    parser.add_argument("--limit", type=int, help="judge so many rows of each file, drawn at random (default: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args(argv)
    try:
        for path in args.files:
            print("\n".join(examine(path, args.format, args.limit, args.seed, args.workers)), flush=True)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
