"""Answers in replies: the input between <INPUT> tags, the program in a fenced block."""

from __future__ import annotations

import re
import textwrap

THOUGHT = re.compile(r"<(think|thinking)>.*?</\1>", re.S)
INPUT = re.compile(r"<INPUT>((?:(?!<INPUT>).)*?)</INPUT>", re.S | re.I)
FENCE = re.compile(r"^[ \t]*```([^\n`]*)\n(.*?)^[ \t]*```[ \t]*$", re.S | re.M)


def without_thoughts(text: str) -> str:
    return THOUGHT.sub("", text)


def read_input(text: str) -> str | None:
    """The last <INPUT> block of a reply, without blanks around it and at the ends of its lines; None where none is."""
    found = INPUT.findall(without_thoughts(text))
    return "\n".join(line.rstrip() for line in found[-1].strip().splitlines()) if found else None


def write_input(text: str) -> str:
    return f"<INPUT>\n{text}\n</INPUT>"


def read_program(text: str) -> str:
    """The last ```python block of a reply, else its last block of any kind, else all of it."""
    said = without_thoughts(text)
    blocks = [(label.strip().lower(), body) for label, body in FENCE.findall(said)]
    chosen = [body for label, body in blocks if label == "python"] or [body for _, body in blocks] or [said]
    return textwrap.dedent(chosen[-1]).strip("\n")


def write_program(code: str) -> str:
    return f"```python\n{code}\n```"
