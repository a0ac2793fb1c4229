"""Experts: the next action of a task, from the session's state and the page in the browser.

An expert does not count its steps: it looks at the first operation that is not done and at the page, so it also says
what to do after a mistake, a dialog or a page that failed. Elements are named by role and accessible name; the
browser part finds their ids.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from practicum.environments.web.sites.variation import Variation
from practicum.environments.web.tasks import Operation, Reading, SiteTask

Field = tuple[str, str, str | bool]
"""A form control and what it should be: role, name on the page, value or whether it is ticked."""


@dataclass(frozen=True, slots=True)
class ExpertElement:
    """An actionable element of a page. `value` is the text of a field or the chosen option of a combobox."""

    role: str
    name: str
    value: str = ""
    checked: bool = False


@dataclass(frozen=True, slots=True)
class ExpertView:
    """What an expert sees of a page: its path below the server's address, and its actionable elements."""

    path: str
    elements: tuple[ExpertElement, ...]

    def find(self, role: str, name: str) -> ExpertElement | None:
        """Return the element of a role and a name."""
        return next((item for item in self.elements if item.role == role and item.name == name), None)


@dataclass(frozen=True, slots=True)
class PageAction:
    """An action: `click`, `fill` or `select_option` on an element, `goto` of a path, `send_msg_to_user` of a text."""

    verb: str
    role: str = ""
    name: str = ""
    text: str = ""


class ExpertPage:
    """A page as the experts' rules read it. Labels are the plain ones; the variation's words are put in here."""

    def __init__(self, view: ExpertView, site: str, variation: Variation) -> None:
        self.view, self._variation = view, variation
        path = view.path.partition("?")[0]
        self.path = path.removeprefix(f"/{site}").strip("/")
        """The path below the site's prefix, without a query."""

    def word(self, label: str, suffix: str = "") -> str:
        """Return a label as it is on the page; `suffix` is not put in other words."""
        return f"{self._variation.word(label)} {suffix}".strip()

    def has(self, role: str, label: str, suffix: str = "") -> bool:
        """Whether the page has an element."""
        return self.view.find(role, self.word(label, suffix)) is not None

    def click(self, role: str, label: str, suffix: str = "") -> PageAction:
        """Click an element; load the page again if it is not there."""
        name = self.word(label, suffix)
        if self.view.find(role, name) is None:
            return self.reload()
        return PageAction("click", role, name)

    def reload(self) -> PageAction:
        """Load the page again."""
        return PageAction("goto", text=self.view.path)

    def submit(self, fields: Sequence[Field], label: str, suffix: str = "") -> PageAction:
        """Set the first field that differs, else click the button."""
        for role, name, value in fields:
            element = self.view.find(role, name)
            if element is None:
                return self.reload()
            if role in ("checkbox", "radio"):
                if element.checked != value:
                    return PageAction("click", role, name)
            elif element.value != value:
                verb = "select_option" if role == "combobox" else "fill"
                return PageAction(verb, role, name, str(value))
        return self.click("button", label, suffix)


Rule = Callable[[Any, ExpertPage, Any], PageAction]
"""Returns the next action for an operation that is not done, from the page and the state."""


def find_rule(operation: Operation) -> Rule:
    """Return the rule of an operation."""
    from practicum.environments.web import experts_calendar, experts_mail, experts_shop

    return {**experts_calendar.RULES, **experts_mail.RULES, **experts_shop.RULES}[type(operation)]


def next_action(task: SiteTask, view: ExpertView) -> PageAction | None:
    """Return the expert's next action; None once nothing is left to do."""
    page = ExpertPage(view, task.template.site, task.variation)
    if page.has("button", "No thanks"):
        return page.click("button", "No thanks")
    if page.has("link", "Try again"):
        return page.click("link", "Try again")
    operation = next_operation(task)
    return None if operation is None else find_rule(operation)(operation, page, task.session.state)


def next_operation(task: SiteTask) -> Operation | None:
    """Return the first operation that is not done. A page to read is done once it was visited; the last one is where
    the answer to a question is given."""
    operations = task.case.operations
    stage = task.evaluate().stage
    for operation in operations[:stage]:
        if isinstance(operation, Reading) and operation.path not in task.session.visited:
            return operation
    if stage < len(operations):
        return operations[stage]
    return None if task.case.answer is None else operations[-1]
