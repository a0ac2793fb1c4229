"""The actions that are possible on a page without typing."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from practicum.chat.formats.web import MESSAGE
from practicum.environment import ToolCall
from practicum.environments.web.observation import ACTIONABLE_ROLES, Node

DONE_MESSAGE = "Done."


def legal_calls(nodes: Sequence[Node], shown: Set[str], actions: Set[str]) -> Iterator[ToolCall]:
    """Yield the options of lists, clicks on other elements, the way back, and the message that all is done.

    `nodes` are those of the page in their order, `shown` the ids that the agent sees, `actions` what is allowed.
    """
    for index, node in enumerate(nodes):
        if node.bid not in shown or not (node.clickable or node.role.lower() in ACTIONABLE_ROLES):
            continue
        options = _options(nodes, index) if node.role.lower() == "combobox" and "select_option" in actions else []
        if options:
            yield from (ToolCall("select_option", {"bid": node.bid, "options": option}) for option in options)
        elif "click" in actions:
            yield ToolCall("click", {"bid": node.bid})
    if "go_back" in actions:
        yield ToolCall("go_back", {})
    yield ToolCall(MESSAGE, {"text": DONE_MESSAGE})


def _options(nodes: Sequence[Node], index: int) -> list[str]:
    """The names of the options of the list at an index."""
    options: list[str] = []
    for node in nodes[index + 1 :]:
        if node.depth <= nodes[index].depth:
            break
        if node.role == "option":
            options.append(node.name)
    return options
