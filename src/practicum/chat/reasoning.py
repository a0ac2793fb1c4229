"""Reasoning between <think> and </think>: read apart from what it leads to, kept in the history or stripped from it.

Stripping works on ids: what stays of a reply are the very tokens that were sampled. A prompt from which
something was stripped no longer continues the one before it, so the turn restarts (`Turn.restart`).
"""

from __future__ import annotations

from collections.abc import Sequence

from practicum.chat.renderer import Renderer
from practicum.errors import UserError, did_you_mean

POLICIES = ("keep", "strip")
OPEN, CLOSE = "<think>", "</think>"


def check(policy: str) -> str:
    if policy not in POLICIES:
        raise UserError(f"Unknown agent.thoughts '{policy}'.{did_you_mean(policy, POLICIES)}")
    return policy


def split(text: str) -> tuple[str, str] | None:
    """The reasoning and the rest of a reply; None when a <think> is never closed."""
    before, found, after = text.partition(CLOSE)
    if found:
        return before.replace(OPEN, "", 1).strip(), after.lstrip()
    return None if text.lstrip().startswith(OPEN) else ("", text)


def stripped(renderer: Renderer, ids: Sequence[int]) -> tuple[int, ...]:
    """A reply's ids from after its reasoning on; all of them where there is none."""
    if CLOSE not in renderer.decode(ids):
        return tuple(ids)
    low, high = 1, len(ids)  # the shortest beginning that holds the whole of </think>
    while low < high:
        middle = (low + high) // 2
        if CLOSE in renderer.decode(ids[:middle]):
            high = middle
        else:
            low = middle + 1
    while low < len(ids) - 1 and not renderer.decode(ids[low : low + 1]).strip():
        low += 1  # the blank lines between
    return tuple(ids[low:])
