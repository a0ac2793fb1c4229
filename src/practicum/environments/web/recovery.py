"""Recovery: what is done without a model where an agent is stuck, and when it counts as stuck.

Progress is a change of the page, not of its address: filling in a form changes no address. No policy acts after a step
that changed the page, except on an error page. Clicks are on links only, because a button may change the site's state;
the one exception is a button of a dialog that is in the way.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from practicum.environment import ToolCall
from practicum.environments.web.observation import ACTIONABLE_ROLES, Node, PageView

LOOP_WINDOW, LOOP_VISITS = 5, 2
"""A state that was seen so often among the last ones is a loop."""
NO_PROGRESS_STEPS = 3
"""Steps without a change of the page after which a policy acts."""
MIN_LINKS = 3
"""With fewer links on the page, going back is better than a click."""
MAX_SCROLLS = 3
RECOVERY = "recovery_"
ERROR_TITLE = re.compile(r"\b(error|not found|unavailable)\b", re.I)


@dataclass(frozen=True, slots=True)
class PastStep:
    """One action on a page: its text, whether it failed, and the states of the page before and after it."""

    action: str
    failed: bool
    before: str
    after: str
    source: str = ""

    @property
    def made_progress(self) -> bool:
        return not self.failed and self.before != self.after


def num_errors_in_a_row(steps: Sequence[PastStep]) -> int:
    """Return how many of the last actions failed, up to one that did not."""
    count = 0
    for step in reversed(steps):
        if not step.failed:
            break
        count += 1
    return count


def is_loop(steps: Sequence[PastStep]) -> bool:
    """Whether the present state was seen twice among the last five before it, or the last actions were A, B, A, B."""
    if not steps:
        return False
    states = [steps[0].before, *(step.after for step in steps)]
    if states[-LOOP_WINDOW - 1 : -1].count(states[-1]) >= LOOP_VISITS:
        return True
    last = [step.action for step in steps[-4:]]
    return len(last) == 4 and last[:2] == last[2:] and last[0] != last[1]


def is_error_page(view: PageView) -> bool:
    """Whether a page says that something went wrong and offers at most one link."""
    actionable = [node for node in view.nodes if node.bid and node.role.lower() in ACTIONABLE_ROLES]
    return len(actionable) <= 1 and (ERROR_TITLE.search(view.title) is not None or not view.nodes)


def recovery_action(steps: Sequence[PastStep], view: PageView) -> tuple[ToolCall, str] | None:
    """Return an action and its name where the agent is stuck; None where it is not."""
    if steps and steps[-1].source.startswith(RECOVERY) and not is_error_page(view):
        return None  # the agent tries first whether that helped
    links = [node for node in view.nodes if node.bid and node.role.lower() == "link"]
    if steps and is_error_page(view):
        call = click(links[0]) if links else ToolCall("goto", {"url": view.url})
        return call, f"{RECOVERY}error_page"
    if not steps or steps[-1].made_progress:
        return None
    button = next(_dialog_buttons(view.nodes), None)
    if button is not None:
        return click(button), f"{RECOVERY}close_dialog"
    other = links[len(steps) % len(links)] if len(links) > MIN_LINKS else None
    if num_errors_in_a_row(steps) >= 2 and steps[-1].action == steps[-2].action:
        earlier = [step.source for step in steps]
        if f"{RECOVERY}error_reload" not in earlier[-4:]:  # an element that vanished may be there again
            return ToolCall("goto", {"url": view.url}), f"{RECOVERY}error_reload"
        if other is not None:
            return click(other), f"{RECOVERY}error_click"
        return ToolCall("scroll", {"delta_x": 0, "delta_y": 300}), f"{RECOVERY}error_repeat"
    recent = steps[-LOOP_WINDOW:]
    if is_loop(steps) and sum(step.action.startswith("scroll(") for step in recent) >= MAX_SCROLLS and other:
        return click(other), f"{RECOVERY}loop_click"
    stuck = steps[-NO_PROGRESS_STEPS:]
    if len(stuck) == NO_PROGRESS_STEPS and not any(
        turn.made_progress or turn.source.startswith(RECOVERY) for turn in stuck
    ):
        if other is not None:
            return click(other), f"{RECOVERY}no_progress_click"
        return ToolCall("go_back", {}), f"{RECOVERY}no_progress"
    return None


def click(node: Node) -> ToolCall:
    """Return a click on a node."""
    return ToolCall("click", {"bid": node.bid})


def _dialog_buttons(nodes: Sequence[Node]) -> Iterator[Node]:
    """The buttons in dialogs of the page."""
    depth: int | None = None
    for node in nodes:
        if depth is not None and node.depth <= depth:
            depth = None
        if node.role.lower() in ("dialog", "alertdialog"):
            depth = node.depth
        elif depth is not None and node.bid and node.role.lower() == "button":
            yield node
