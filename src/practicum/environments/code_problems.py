"""Generated programming problems: small functions with random numbers and names, and their tests.

A template gives the statement in words, the text of a solution, and a reference (a Python function that is independent
of the solution's text) for the expected values. So an error in one of them is found by the other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

NUM_CASES = 5
FUNCTIONS = ("f", "g", "h", "run", "calc", "solve", "make", "work")
NUMBERS = ("x", "n", "k", "a")
TEXTS = ("s", "t", "word")
LISTS = ("xs", "nums", "items")
WORDS = ("apple", "tree", "banana", "sky", "letter", "noon", "river", "go", "stone", "moss", "level", "ant")
LETTERS = "aeilnorst"


@dataclass(frozen=True)
class CodeDraft:
    """A template with its random choices made, before names and cases are drawn."""

    text: str
    """What the function returns, in words."""
    arguments: tuple[str, ...]
    lines: tuple[str, ...]
    """The solution's body."""
    reference: Callable[..., object]
    inputs: Sequence[tuple[object, ...]]
    """Inputs from which cases are drawn."""


Template = Callable[[random.Random], CodeDraft]


def _numbers(rng: random.Random, near: int = 0) -> list[tuple[object, ...]]:
    """Return single numbers: zero, negative ones, and those around the number at which the result changes."""
    return [(n,) for n in (0, 1, -rng.randint(2, 9), near - 1, near, near + 1, *rng.sample(range(2, 60), 4))]


def _texts(rng: random.Random) -> list[tuple[object, ...]]:
    return [(word,) for word in ("", *rng.sample(WORDS, 6))]


def _lists(rng: random.Random) -> list[tuple[object, ...]]:
    return [([],), *(([rng.randint(-9, 30) for _ in range(size)],) for size in (1, 2, 3, 3, 4, 5))]


# Level 1: one expression of one number.


def times_plus(rng: random.Random) -> CodeDraft:
    x, a, b = rng.choice(NUMBERS), rng.randint(2, 9), rng.randint(1, 99)
    return CodeDraft(f"{x} times {a} plus {b}", (x,), (f"return {x} * {a} + {b}",), lambda v: v * a + b, _numbers(rng))


def times_minus(rng: random.Random) -> CodeDraft:
    x, a, b = rng.choice(NUMBERS), rng.randint(2, 9), rng.randint(1, 99)
    return CodeDraft(f"{x} times {a} minus {b}", (x,), (f"return {x} * {a} - {b}",), lambda v: v * a - b, _numbers(rng))


def square_plus(rng: random.Random) -> CodeDraft:
    x, b = rng.choice(NUMBERS), rng.randint(1, 99)
    return CodeDraft(
        f"the square of {x} plus {b}", (x,), (f"return {x} ** 2 + {b}",), lambda v: v * v + b, _numbers(rng)
    )


def remainder(rng: random.Random) -> CodeDraft:
    x, a, b = rng.choice(NUMBERS), rng.randint(3, 12), rng.randint(1, 30)
    text = f"the remainder of {x} divided by {a}, plus {b}"
    return CodeDraft(text, (x,), (f"return {x} % {a} + {b}",), lambda v: v - v // a * a + b, _numbers(rng, a))


def larger_of(rng: random.Random) -> CodeDraft:
    x, a = rng.choice(NUMBERS), rng.randint(3, 60)
    return CodeDraft(
        f"the larger of {x} and {a}", (x,), (f"return max({x}, {a})",), lambda v: v if v > a else a,
        [*_numbers(rng, a), (a + rng.randint(2, 9),), (a + rng.randint(10, 20),)],
    )  # fmt: skip


def distance(rng: random.Random) -> CodeDraft:
    x, a = rng.choice(NUMBERS), rng.randint(3, 60)
    return CodeDraft(
        f"the distance of {x} from {a}", (x,), (f"return abs({x} - {a})",),
        lambda v: v - a if v > a else a - v, _numbers(rng, a),
    )  # fmt: skip


# Level 2: one expression of a text or a list.


def repeat(rng: random.Random) -> CodeDraft:
    s, a, end = rng.choice(TEXTS), rng.randint(2, 5), _letters(rng)
    text = f"{s} {a} times in a row and then '{end}'"
    return CodeDraft(text, (s,), (f"return {s} * {a} + '{end}'",), lambda v: "".join([v] * a) + end, _texts(rng))


def between(rng: random.Random) -> CodeDraft:
    s, left, right = rng.choice(TEXTS), _letters(rng), _letters(rng)
    return CodeDraft(
        f"{s} between '{left}' and '{right}'", (s,), (f"return '{left}' + {s} + '{right}'",),
        lambda v: f"{left}{v}{right}", _texts(rng),
    )  # fmt: skip


def first_letters(rng: random.Random) -> CodeDraft:
    s, a, end = rng.choice(TEXTS), rng.randint(1, 4), _letters(rng)
    return CodeDraft(
        f"the first {a} letters of {s} and then '{end}'", (s,), (f"return {s}[:{a}] + '{end}'",),
        lambda v: "".join(c for i, c in enumerate(v) if i < a) + end, _texts(rng),
    )  # fmt: skip


def backwards(rng: random.Random) -> CodeDraft:
    s, end = rng.choice(TEXTS), _letters(rng)
    return CodeDraft(
        f"{s} backwards and then '{end}'", (s,), (f"return {s}[::-1] + '{end}'",),
        lambda v: "".join(reversed(v)) + end, _texts(rng),
    )  # fmt: skip


def count_letter(rng: random.Random) -> CodeDraft:
    s, letter, b = rng.choice(TEXTS), rng.choice(LETTERS), rng.randint(1, 30)
    text = f"how many '{letter}' are in {s}, plus {b}"
    inputs = [*_texts(rng), *((letter * n + rng.choice(WORDS),) for n in (1, 2, 3))]
    return CodeDraft(
        text, (s,), (f"return {s}.count('{letter}') + {b}",), lambda v: sum(c == letter for c in v) + b, inputs
    )


def sum_plus(rng: random.Random) -> CodeDraft:
    xs, b = rng.choice(LISTS), rng.randint(1, 99)
    return CodeDraft(
        f"the sum of {xs} plus {b}", (xs,), (f"return sum({xs}) + {b}",),
        lambda v: b - sum(-n for n in v), _lists(rng),
    )  # fmt: skip


def each_plus(rng: random.Random) -> CodeDraft:
    xs, b = rng.choice(LISTS), rng.randint(1, 99)
    return CodeDraft(
        f"a list of every number in {xs} plus {b}", (xs,), (f"return [x + {b} for x in {xs}]",),
        lambda v: list(map(b.__add__, v)), _lists(rng),
    )  # fmt: skip


def above(rng: random.Random) -> CodeDraft:
    xs, a = rng.choice(LISTS), rng.randint(1, 25)
    inputs = [*_lists(rng), ([a, a + 1, a - 1],), ([a + 2, 0, a + 5],)]
    return CodeDraft(
        f"a list of the numbers in {xs} above {a}", (xs,), (f"return [x for x in {xs} if x > {a}]",),
        lambda v: list(filter(a.__lt__, v)), inputs,
    )  # fmt: skip


# Level 3: a decision, two arguments, or a computation with digits and ranges.


def either(rng: random.Random) -> CodeDraft:
    x, a, b, c = rng.choice(NUMBERS), rng.randint(3, 40), rng.randint(2, 9), rng.randint(1, 50)
    return CodeDraft(
        f"{x} times {b} if {x} is above {a}, else {x} minus {c}", (x,),
        (f"if {x} > {a}:", f"    return {x} * {b}", f"return {x} - {c}"),
        lambda v: [v - c, v * b][v > a], _numbers(rng, a),
    )  # fmt: skip


def divisible(rng: random.Random) -> CodeDraft:
    x, a, yes, no = rng.choice(NUMBERS), rng.randint(2, 9), _letters(rng), _letters(rng)
    inputs = [(a * n + rest,) for n in (0, 1, rng.randint(2, 5), rng.randint(6, 9)) for rest in (0, 1)]
    return CodeDraft(
        f"'{yes}' if {x} can be divided by {a}, else '{no}!'", (x,),
        (f"if {x} % {a} == 0:", f"    return '{yes}'", f"return '{no}!'"),
        lambda v: yes if v // a * a == v else f"{no}!", inputs,
    )  # fmt: skip


def clamp(rng: random.Random) -> CodeDraft:
    x, low = rng.choice(NUMBERS), rng.randint(1, 30)
    high = low + rng.randint(5, 40)
    inputs = [(low - 3,), (low,), (high,), (high + 5,), *((rng.randint(low, high),) for _ in range(3))]
    return CodeDraft(
        f"{x}, but at least {low} and at most {high}", (x,), (f"return min(max({x}, {low}), {high})",),
        lambda v: sorted((low, v, high))[1], inputs,
    )  # fmt: skip


def two_arguments(rng: random.Random) -> CodeDraft:
    x, y = rng.sample(NUMBERS, 2)
    a, b = rng.randint(2, 9), rng.randint(2, 9)
    return CodeDraft(
        f"{x} times {a} plus {y} times {b}", (x, y), (f"return {x} * {a} + {y} * {b}",),
        lambda v, w: sum([v] * a) + sum([w] * b), [(rng.randint(-9, 30), rng.randint(-9, 30)) for _ in range(8)],
    )  # fmt: skip


def digits(rng: random.Random) -> CodeDraft:
    x, b = rng.choice(NUMBERS), rng.randint(1, 99)
    inputs = [(0,), *((rng.randint(10**size, 10 ** (size + 1)),) for size in (0, 1, 1, 2, 3, 4))]
    return CodeDraft(
        f"the sum of the digits of {x} plus {b}", (x,), (f"return sum(map(int, str({x}))) + {b}",),
        lambda v: sum(v // 10**power % 10 for power in range(9)) + b, inputs,
    )  # fmt: skip


def multiples(rng: random.Random) -> CodeDraft:
    x, a = rng.choice(NUMBERS), rng.randint(2, 9)
    return CodeDraft(
        f"the sum of the multiples of {a} from 0 up to {x}", (x,), (f"return sum(range(0, {x} + 1, {a}))",),
        lambda v: a * (v // a) * (v // a + 1) // 2, [(n,) for n in (0, a, 2 * a - 1, *rng.sample(range(10, 60), 4))],
    )  # fmt: skip


# Level 4: two steps.


def sum_of_squares(rng: random.Random) -> CodeDraft:
    xs, a = rng.choice(LISTS), rng.randint(1, 20)
    inputs = [*_lists(rng), ([a, a + 1, a - 1],), ([a + 2, 0, a + 5],)]
    return CodeDraft(
        f"the sum of the squares of the numbers in {xs} above {a}", (xs,),
        (f"big = [x for x in {xs} if x > {a}]", "return sum(x * x for x in big)"),
        lambda v: sum(n**2 * (n > a) for n in v), inputs,
    )  # fmt: skip


def long_words(rng: random.Random) -> CodeDraft:
    s, a, glue = rng.choice(TEXTS), rng.randint(2, 4), rng.choice("-+/")
    inputs: list[tuple[object, ...]] = [("",), *((" ".join(rng.sample(WORDS, size)),) for size in (1, 2, 3, 3, 4, 5))]
    return CodeDraft(
        f"the words of {s} with more than {a} letters, joined by '{glue}'", (s,),
        (f"words = [w for w in {s}.split() if len(w) > {a}]", f"return '{glue}'.join(words)"),
        lambda v: glue.join(filter(lambda w: len(w) >= a + 1, v.split(" "))), inputs,
    )  # fmt: skip


def by_remainder(rng: random.Random) -> CodeDraft:
    xs, a = rng.choice(LISTS), rng.randint(3, 9)
    return CodeDraft(
        f"the numbers in {xs}, sorted by their remainder when divided by {a} and then by size", (xs,),
        (f"key = lambda x: (x % {a}, x)", f"return sorted({xs}, key=key)"),
        lambda v: [n for rest in range(a) for n in sorted(v) if (n - rest) % a == 0], _lists(rng),
    )  # fmt: skip


def steps_down(rng: random.Random) -> CodeDraft:
    x, a, b = rng.choice(NUMBERS), rng.randint(2, 5), rng.randint(1, 30)
    inputs = [(n,) for n in (1, a, a * a, a**3 + 1, *rng.sample(range(2, 900), 4))]
    return CodeDraft(
        f"how often {x} can be divided by {a} (rounding down) until it is 0, plus {b}", (x,),
        ("count = 0", f"while {x} > 0:", f"    {x}, count = {x} // {a}, count + 1", f"return count + {b}"),
        lambda v: next(n for n in range(64) if a**n > v) + b, inputs,
    )  # fmt: skip


TEMPLATES: dict[int, tuple[Template, ...]] = {
    1: (times_plus, times_minus, square_plus, remainder, larger_of, distance),
    2: (repeat, between, first_letters, backwards, count_letter, sum_plus, each_plus, above),
    3: (either, divisible, clamp, two_arguments, digits, multiples),
    4: (sum_of_squares, long_words, by_remainder, steps_down),
}


@dataclass(frozen=True)
class CodeProblem:
    """A template with its random choices made and a name for the function, before cases are drawn."""

    level: int
    template: str
    name: str
    draft: CodeDraft

    @property
    def head(self) -> str:
        return f"{self.name}({', '.join(self.draft.arguments)})"

    @property
    def question(self) -> str:
        return f"Write {self.head} that returns {self.draft.text}."

    @property
    def key(self) -> str:
        """The program with its constants, whatever its function and arguments are called."""
        numbers = {name: f"_{index}" for index, name in enumerate(self.draft.arguments)}
        names = re.compile(rf"'[^']*'|\b({'|'.join(numbers)})\b")  # what is quoted is no name
        lines = (names.sub(lambda match: numbers[match[1]] if match[1] else match[0], x) for x in self.draft.lines)
        return "\n".join((self.template, *lines))


def draw_problem(rng: random.Random, level: int) -> CodeProblem:
    """Draw a template of a level, its numbers and its names."""
    template = rng.choice(TEMPLATES[level])
    return CodeProblem(level, template.__name__, rng.choice(FUNCTIONS), template(rng))


def make_fields(problem: CodeProblem, rng: random.Random) -> dict[str, object] | None:
    """Return a task's fields: question, tests, and a solution with an example call; None if there are too few cases."""
    draft, name = problem.draft, problem.name
    inputs = list({repr(arguments): arguments for arguments in draft.inputs}.values())
    if len(inputs) <= NUM_CASES:
        return None
    values = {repr(draft.reference(*arguments)) for arguments in inputs}
    *chosen, example = rng.sample(inputs, NUM_CASES + 1)
    expected = [draft.reference(*arguments) for arguments in chosen]
    if not len({repr(value) for value in expected}) >= min(3, len(values)) > 1:
        return None  # a constant would pass many tests
    return {
        "question": problem.question,
        "test_cases": [
            {"call": f"{name}({', '.join(map(repr, arguments))})", "expected": value}
            for arguments, value in zip(chosen, expected, strict=True)
        ],
        "solution": "\n    ".join((f"def {problem.head}:", *draft.lines)),
        "example": f"{name}({', '.join(map(repr, example))})",
        "level": problem.level,
        "template": problem.template,
    }


def make_problem(rng: random.Random, level: int) -> dict[str, object]:
    """Return the fields of a problem of a level."""
    while True:
        fields = make_fields(draw_problem(rng, level), rng)
        if fields is not None:
            return fields


def _letters(rng: random.Random) -> str:
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 3)))
