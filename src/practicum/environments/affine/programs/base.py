"""Templates of programs: the input that is read, the statement in words, the program's lines, and a reference.

The reference is a Python function that is independent of the program's lines and gives the expected output. So an error
in one of them is found by the other.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

NUMBERS = ("n", "x", "k", "m", "v", "y", "z")
LISTS = ("xs", "nums", "vals", "ys")
TEXTS = ("s", "t", "w")
# fmt: off
WORDS = ("apple", "tree", "banana", "sky", "letter", "noon", "river", "go", "stone", "moss", "level", "ant", "lamp",
         "cloud", "bee", "seven", "root", "ocean", "tin", "rattle", "sand", "elite", "oar", "nest")
# fmt: on
LETTERS = "aeilnorst"

Values = tuple[Any, ...]


@dataclass(frozen=True)
class InputShape:
    """The input of a program: in words, as lines of code, and how inputs are drawn and written."""

    names: tuple[str, ...]
    words: str
    reading: tuple[str, ...]
    draw: Callable[[random.Random], Values]
    write: Callable[[Values], str]


@dataclass(frozen=True)
class Draft:
    """A template with its random choices made, before inputs are drawn."""

    shape: InputShape
    text: str
    """The output in words."""
    lines: tuple[str, ...]
    """The lines of the program after those that read the input."""
    reference: Callable[..., object]
    """Returns the output for the values read; a list is printed one item per line."""
    edges: Sequence[Values] = ()
    """Values at which the result changes, drawn in addition to the shape's own."""

    @property
    def statement(self) -> str:
        return f"Read {self.shape.words}. Print {self.text}."

    @property
    def key(self) -> str:
        """The statement with numbered names: the same problem with other names has the same key."""
        text = self.statement
        for index, name in enumerate(self.shape.names):
            text = re.sub(rf"\b{name}\b", f"#{index}", text)
        return text


Template = Callable[[random.Random], Draft]


def _lines(values: Values) -> str:
    return "\n".join(map(str, values))


def _spaced(values: Sequence[object]) -> str:
    return " ".join(map(str, values))


def integer(rng: random.Random, low: int = -20, high: int = 99) -> InputShape:
    name = rng.choice(NUMBERS)
    words = "an integer" if low < 0 else "a whole number"
    return InputShape(
        (name,), f"{words} {name}", (f"{name} = int(input())",), lambda r: (r.randint(low, high),), _lines
    )  # fmt: skip


def integers(rng: random.Random, count: int, low: int = -20, high: int = 60) -> InputShape:
    """Several integers, one per line."""
    names = tuple(rng.sample(NUMBERS, count))
    names_text = f"{', '.join(names[:-1])} and {names[-1]}"
    words = f"{'two' if count == 2 else 'three'} integers {names_text}, one a line"
    reading = tuple(f"{name} = int(input())" for name in names)
    return InputShape(names, words, reading, lambda r: tuple(r.randint(low, high) for _ in names), _lines)


def word(rng: random.Random) -> InputShape:
    name = rng.choice(TEXTS)
    return InputShape((name,), f"a word {name}", (f"{name} = input()",), lambda r: (r.choice(WORDS),), _lines)


def sentence(rng: random.Random, least: int = 2, most: int = 5) -> InputShape:
    name = rng.choice(TEXTS)

    def draw(r: random.Random) -> Values:
        return (" ".join(r.choice(WORDS) for _ in range(r.randint(least, most))),)

    return InputShape((name,), f"a line of words {name}", (f"{name} = input()",), draw, _lines)


def digits(rng: random.Random, alphabet: str, words: str, least: int = 4, most: int = 12) -> InputShape:
    """A text over a small alphabet."""
    name = rng.choice(TEXTS)

    def draw(r: random.Random) -> Values:
        return ("".join(r.choice(alphabet) for _ in range(r.randint(least, most))),)

    return InputShape((name,), f"a text {name} of {words}", (f"{name} = input()",), draw, _lines)


def numbers(rng: random.Random, low: int = -9, high: int = 30, least: int = 2, most: int = 6) -> InputShape:
    """A line of integers."""
    name = rng.choice(LISTS)

    def draw(r: random.Random) -> Values:
        return ([r.randint(low, high) for _ in range(r.randint(least, most))],)

    return InputShape(
        (name,), f"a line of integers {name}", (f"{name} = list(map(int, input().split()))",), draw,
        lambda values: _spaced(values[0]),
    )  # fmt: skip


def two_lists(rng: random.Random, low: int = -5, high: int = 12) -> InputShape:
    """Two lines with as many integers each."""
    first, second = rng.sample(LISTS, 2)

    def draw(r: random.Random) -> Values:
        size = r.randint(2, 5)
        return tuple([r.randint(low, high) for _ in range(size)] for _ in range(2))

    reading = tuple(f"{name} = list(map(int, input().split()))" for name in (first, second))
    words = f"two lines of integers {first} and {second}, as many in each"
    return InputShape((first, second), words, reading, draw, lambda values: "\n".join(map(_spaced, values)))


def list_and_number(rng: random.Random, low: int = 1, high: int = 9, least: int = 3, most: int = 6) -> InputShape:
    """A line of integers, then one integer."""
    name, number = rng.choice(LISTS), rng.choice(NUMBERS)

    def draw(r: random.Random) -> Values:
        return ([r.randint(-9, 30) for _ in range(r.randint(least, most))], r.randint(low, high))

    return InputShape(
        (name, number), f"a line of integers {name} and on the next line an integer {number}",
        (f"{name} = list(map(int, input().split()))", f"{number} = int(input())"), draw,
        lambda values: f"{_spaced(values[0])}\n{values[1]}",
    )  # fmt: skip


def counted(rng: random.Random, low: int = -9, high: int = 40) -> InputShape:
    """A count, then that many lines with one integer each."""
    name = rng.choice(LISTS)

    def draw(r: random.Random) -> Values:
        return ([r.randint(low, high) for _ in range(r.randint(2, 5))],)

    return InputShape(
        (name,), f"a count and then that many integers {name}, one a line",
        (f"{name} = []", "for _ in range(int(input())):", f"    {name}.append(int(input()))"), draw,
        lambda values: _lines((len(values[0]), *values[0])),
    )  # fmt: skip


def counted_lines(rng: random.Random, words: str, draw: Callable[[random.Random], str]) -> InputShape:
    """A count, then that many lines of text."""
    name = rng.choice(LISTS)

    def lines(r: random.Random) -> Values:
        return ([draw(r) for _ in range(r.randint(2, 5))],)

    return InputShape(
        (name,), f"a count and then that many lines {name}, {words}",
        (f"{name} = [input() for _ in range(int(input()))]",), lines,
        lambda values: _lines((len(values[0]), *values[0])),
    )  # fmt: skip


def grid(rng: random.Random, low: int = -5, high: int = 12, square: bool = False) -> InputShape:
    """A count of rows, then the rows."""
    name = rng.choice(("g", "m", "b"))

    def draw(r: random.Random) -> Values:
        height = r.randint(2, 4)
        width = height if square else r.randint(2, 4)
        return ([[r.randint(low, high) for _ in range(width)] for _ in range(height)],)

    kind = "a square grid" if square else "a grid"
    return InputShape(
        (name,), f"a count of rows and then {kind} of integers {name}, one row a line",
        (f"{name} = [list(map(int, input().split())) for _ in range(int(input()))]",), draw,
        lambda values: "\n".join([str(len(values[0])), *map(_spaced, values[0])]),
    )  # fmt: skip


def letters(rng: random.Random) -> str:
    """Return one to three letters, to end or surround a text with."""
    return "".join(rng.choice(LETTERS) for _ in range(rng.randint(1, 3)))


def near(*values: int) -> list[Values]:
    """Return single numbers at and next to those at which the result changes."""
    return [(value + step,) for value in values for step in (-1, 0, 1)]


def output_text(value: object) -> str:
    return "\n".join(map(str, value)) if isinstance(value, list) else str(value)
