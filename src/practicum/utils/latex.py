"""The final answer of a worked solution in LaTeX."""

from __future__ import annotations

import re

MARKS = ("\\boxed{", "\\fbox{")


def last_boxed(text: str) -> str | None:
    """Return what the last `\\boxed{...}` of a text holds; None if there is none that is closed."""
    begin, mark = max((text.rfind(mark), mark) for mark in MARKS)
    if begin < 0:
        spaced = re.findall(r"\\boxed\s+(\S+)", text)  # \boxed 5
        return spaced[-1].rstrip("$.") if spaced else None
    depth, content = 1, begin + len(mark)
    for index in range(content, len(text)):
        depth += {"{": 1, "}": -1}.get(text[index], 0)
        if depth == 0:
            return text[content:index].strip()
    return None
