"""The manager of the hierarchy: what it is asked, what it answers, and a scripted one that knows the task.

A manager answers with one JSON object. Its guidance holds until it gives another; an answer that cannot be read becomes
guidance to try something else.
"""

from __future__ import annotations

import contextlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from practicum.environment import Message
from practicum.environments.web.experts import ExpertPage, ExpertView, Field, PageAction, find_rule, next_operation
from practicum.environments.web.macros import MACROS
from practicum.environments.web.prompt import NUM_RECENT_ACTIONS
from practicum.environments.web.tasks import SiteTask

MANAGER, WORKER = "manager", "worker"
RISKS = ("low", "med", "high")
MAX_TEXT_CHARS = 1_000
RULES = (
    "You are the manager of a worker that controls a web browser, one action at a time. Say what it is to do next.\n"
    'Reply with one JSON object only: {"subgoal": "what to reach next", "skill": "", "stop_condition": "when it is '
    'reached", "risk": "low", "reasoning": "why"}. The risk is low, med or high.'
)
SUBGOAL_RULES = (
    "You are the manager of a worker that controls a web browser. It is shown your sub-goal and not the goal, works on "
    "it, and comes back when it says that it is done. Reply with the next sub-goal only, one of the list."
)
FINISH = "Everything is done: tell the user so."
"""The sub-goal of a manager for which nothing is left to do."""
SKILLS = "A skill is done without the worker. Leave it empty, or write one of these with your own values:"
HIGH_STAKES = ("checkout", "cart", "login")
"""Kinds of pages on which the manager is asked."""


@dataclass(frozen=True, slots=True)
class Guidance:
    """What a manager says."""

    subgoal: str
    skill: str = ""
    stop_condition: str = ""
    risk: str = "low"
    reasoning: str = ""

    def to_json(self) -> str:
        """Return it as a manager writes it."""
        return json.dumps(asdict(self), ensure_ascii=False)

    @property
    def text(self) -> str:
        """What the worker is shown of it."""
        parts = (("Subgoal", self.subgoal), ("Stop when", self.stop_condition), ("Risk", self.risk))
        return "\n".join(f"{title}: {text}" for title, text in parts if text and (title, text) != ("Risk", "low"))


RETRY = Guidance("Look at the page again and try another way to reach the goal.", risk="med")
"""The guidance of a manager that could not be understood."""


def read_guidance(reply: str) -> Guidance | None:
    """Return the guidance of a reply: a JSON object, also in a code block; None where it cannot be read."""
    fenced = re.fullmatch(r"\s*```(?:json)?\s*(.*?)\s*```\s*", reply, re.DOTALL)
    try:
        value = json.loads(fenced[1] if fenced else reply)
    except (ValueError, RecursionError):
        return None
    if not isinstance(value, dict):
        return None
    texts = {key: value.get(key) or "" for key in ("subgoal", "skill", "stop_condition", "risk", "reasoning")}
    if not all(isinstance(text, str) for text in texts.values()) or not texts["subgoal"].strip():
        return None
    risk = "med" if texts["risk"] == "medium" else texts["risk"]
    kept = {key: " ".join(text.split())[:MAX_TEXT_CHARS] for key, text in texts.items() if key != "risk"}
    return Guidance(**kept, risk=risk if risk in RISKS else "low")


def manager_messages(
    page: str, recent_actions: Sequence[str], guidance: Guidance | None, reason: str, with_macros: bool
) -> tuple[Message, ...]:
    """Return what the manager is shown: its rules; the page, what was done, its own last guidance, why it is asked."""
    skills = "\n".join([SKILLS, *(macro.example for macro in MACROS.values())])
    parts = (
        ("", page),
        ("Recent Actions", "\n".join(recent_actions[-NUM_RECENT_ACTIONS:])),
        ("Guidance", "" if guidance is None else guidance.to_json()),
        ("Asked Because Of", reason),
    )
    text = "\n\n".join(f"# {title}\n{body}" if title else body for title, body in parts if body)
    return (Message("system", f"{RULES}\n{skills}" if with_macros else RULES), Message("user", text))


def goal_parts(goal: str) -> tuple[str, ...]:
    """Return the parts of a goal that says "Then" between them, each as a sentence."""
    parts = re.split(r"(?:\.|,)\s+[Tt]hen\s+", goal)
    sentences = [part.strip().removesuffix(".") + "." for part in parts]
    return tuple(sentence[:1].upper() + sentence[1:] for sentence in sentences) if len(parts) > 1 else (goal,)


def subgoal_messages(page: str, goal: str, previous: Sequence[str], with_rules: bool) -> tuple[Message, ...]:
    """Return what a manager is shown that is asked for the next sub-goal: the page, the list, what it gave before.

    The last one that it gave ends the prompt, so that a small model finds the next one by copying what follows it in
    the list.
    """
    parts = (("", page), ("Sub-goals", "\n".join([*goal_parts(goal), FINISH])), ("Given", "\n".join(previous)))
    text = "\n\n".join(f"# {title}\n{body}" if title else body for title, body in parts if body)
    return (*((Message("system", SUBGOAL_RULES),) if with_rules else ()), Message("user", text))


class FormPage(ExpertPage):
    """A page on which an expert's rule is followed and the form that it fills in is noted."""

    form: tuple[tuple[Field, ...], str] | None = None

    def submit(self, fields: Sequence[Field], label: str, suffix: str = "") -> PageAction:
        self.form = (tuple(fields), self.word(label, suffix))
        return super().submit(fields, label, suffix)


def scripted_guidance(task: SiteTask, view: ExpertView, goal: str, page_type: str) -> Guidance:
    """Return the guidance of a manager that knows the task's operations and the state of the site, as the expert does.

    The sub-goal is the part of the goal that is to be done next; of a part with several operations it is the first: the
    other parts are an operation each. The skill is the expert's next form, where it is on
    one. So this manager is a bound on what a manager can do, and no measure of one.
    """
    risk = "high" if page_type in HIGH_STAKES else "low"
    operation = next_operation(task)
    if operation is None:
        return Guidance(FINISH, stop_condition="The message is sent.", risk=risk)
    parts, operations = goal_parts(goal), task.case.operations
    num_left = len(operations) - operations.index(operation)
    subgoal = parts[max(0, len(parts) - num_left)] if len(parts) <= len(operations) else goal
    page = FormPage(view, task.template.site, task.variation)
    # KeyError: the worker removed what the operation is about, so that the task cannot be solved any more.
    with contextlib.suppress(KeyError):
        find_rule(operation)(operation, page, task.session.state)
    return Guidance(subgoal, _skill(page), "It is done.", risk)


def _skill(page: FormPage) -> str:
    """The macro of a form; "" where the expert is not on one, or types into nothing that the page has."""
    if page.form is None:
        return ""
    fields, button = page.form
    if any(page.view.find(role, name) is None for role, name, _ in fields):
        return ""
    if [role for role, _, _ in fields] == ["searchbox"]:
        return f"search_and_open_first_result(query={json.dumps(fields[0][2])})"
    # A radio button is named by its value: it is one of several, and only the chosen one is set.
    values = {name: value for _, name, value in fields}
    return f"fill_form(fields={json.dumps(values, ensure_ascii=False)}, submit={json.dumps(button)})"
