"""Reasoning between <think> and </think>: separated from the rest of a reply, and kept in the history or stripped.

Stripping works on ids: what stays of a reply are the tokens that were sampled. A prompt from which something was
stripped no longer continues the one before it, so the turn restarts (`Turn.restart`).
"""

from __future__ import annotations

from collections.abc import Sequence

from practicum.chat.renderer import Renderer
from practicum.errors import UserError, did_you_mean

POLICIES = ("keep", "strip")
"""Values of `agent.thoughts`."""
OPEN, CLOSE = "<think>", "</think>"


def check(policy: str) -> str:
    """Return a value of `agent.thoughts` that is known; raise UserError for another."""
    if policy not in POLICIES:
        raise UserError(f"Unknown agent.thoughts '{policy}'.{did_you_mean(policy, POLICIES)}")
    return policy


def split(text: str) -> tuple[str, str] | None:
    """Return the reasoning and the rest of a reply; None where a <think> is not closed."""
    before, closed, after = text.partition(CLOSE)
    if closed:
        return before.replace(OPEN, "", 1).strip(), after.lstrip()
    return None if text.lstrip().startswith(OPEN) else ("", text)


def stripped(renderer: Renderer, ids: Sequence[int]) -> tuple[int, ...]:
    """Return a reply's ids after its reasoning; all of them where there is none."""
    if CLOSE not in renderer.decode(ids):
        return tuple(ids)
    low, high = 1, len(ids)  # the length of the shortest prefix that contains </think>
    while low < high:
        middle = (low + high) // 2
        if CLOSE in renderer.decode(ids[:middle]):
            high = middle
        else:
            low = middle + 1
    while low < len(ids) - 1 and not renderer.decode(ids[low : low + 1]).strip():
        low += 1  # blank lines after it
    return tuple(ids[low:])
