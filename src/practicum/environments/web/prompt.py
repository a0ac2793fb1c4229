"""The prompt of a web agent: one builder for collecting, training, evaluation and serving."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from practicum.chat.formats.base import Format
from practicum.environment import Message

NUM_RECENT_ACTIONS = 5
MAX_LISTED_IDS = 50
RULES = (
    "You control a web browser. Do what the goal says, one action per reply.\n"
    "Use only element ids of the page below. After an error, try something else. "
    "Send a message to the user only when the goal is reached."
)


def build_messages(
    page: str,
    format: Format,
    tools: Sequence[Mapping[str, Any]],
    *,
    recent_actions: Sequence[str] = (),
    guidance: str = "",
    listed_ids: Sequence[str] = (),
    images: Sequence[str] = (),
    rules: str | None = RULES,
) -> tuple[Message, ...]:
    """Return the messages of one turn: the rules, then the page with what was done before.

    `page` is the text of the observation, `guidance` what a manager says, `listed_ids` the ids that are valid;
    sections without content are left out. Without `rules` there is only the page.
    """
    parts = [
        ("", page),
        ("Recent Actions", "\n".join(recent_actions[-NUM_RECENT_ACTIONS:])),
        ("Guidance", guidance),
        ("Valid Element Ids", ", ".join(listed_ids[:MAX_LISTED_IDS])),
    ]
    text = "\n\n".join(f"# {title}\n{body}" if title else body for title, body in parts if body)
    user = Message("user", text, images=tuple(images))
    if rules is None:
        return (user,)
    return (Message("system", f"{rules}\n{format.instructions(tools)}"), user)
