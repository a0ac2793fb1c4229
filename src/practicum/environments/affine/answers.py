"""Answers in replies: the input between <INPUT> tags, the program in a fenced block."""

from __future__ import annotations

import re

from practicum.rewards.code_answer import extract_code, fenced_blocks

THOUGHT = re.compile(r"<(think|thinking)>")
INPUT = re.compile(r"<INPUT>((?:(?!<INPUT>).)*?)</INPUT>", re.S | re.I)


def without_thoughts(text: str) -> str:
    """Remove <think>...</think> and <thinking>...</thinking>; one that is not closed stays. Linear in the text."""
    kept: list[str] = []
    unclosed: set[str] = set()
    begin = position = 0
    while match := THOUGHT.search(text, position):
        position, tag = match.end(), match[1]
        end = -1 if tag in unclosed else text.find(f"</{tag}>", position)
        if end < 0:
            unclosed.add(tag)
            continue
        kept.append(text[begin : match.start()])
        begin = position = end + len(f"</{tag}>")
    return "".join((*kept, text[begin:]))


def read_input(text: str) -> str | None:
    """Return the last <INPUT> block of a reply, without blank lines at its end; None if there is none."""
    blocks = INPUT.findall(without_thoughts(text))
    if not blocks:
        return None
    lines = blocks[-1].replace("\r\n", "\n").removeprefix("\n").split("\n")
    while lines and not lines[-1].strip():
        lines.pop()
    return "\n".join(lines)


def write_input(text: str) -> str:
    return f"<INPUT>\n{text}\n</INPUT>"


def read_program(text: str) -> str:
    """Return the last ```python block of a reply, else its last block of any kind, else all of it."""
    reply = without_thoughts(text)
    blocks = fenced_blocks(reply)
    chosen = [body for label, body in blocks if label == "python"] or [body for _, body in blocks]
    return chosen[-1] if chosen else extract_code(reply)


def write_program(code: str) -> str:
    return f"```python\n{code}\n```"
