"""Tasks on the sites: templates, their instances, and the session, evaluator and operations of a task.

A template draws a site's data from a seed, picks what to do, and words the goal. Training, validation and test tasks
come from different templates. A task has the template's name and the seed; everything else is made from these, and a
digest tells whether this version makes the same task.
"""

from __future__ import annotations

import abc
import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from practicum.environment import SPLITS
from practicum.environments.web.evaluator import Evaluation, Goal
from practicum.environments.web.sites.calendar import Calendar
from practicum.environments.web.sites.calendar_data import make_calendar
from practicum.environments.web.sites.mail import Mail
from practicum.environments.web.sites.mail_data import make_mail
from practicum.environments.web.sites.shop import Shop
from practicum.environments.web.sites.shop_data import make_shop
from practicum.environments.web.sites.site import Site, SiteSession
from practicum.environments.web.sites.state import SiteState
from practicum.environments.web.sites.variation import Faults, Variation
from practicum.errors import UserError, did_you_mean
from practicum.task import Task, content_hash

LEVELS = (1, 2, 3)
"""1: one or two actions. 2: three to six. 3: more, or several things to do."""
SITES: Mapping[str, tuple[Callable[[random.Random], SiteState], Callable[..., Site]]] = {
    "calendar": (make_calendar, Calendar),
    "mail": (make_mail, Mail),
    "shop": (make_shop, Shop),
}
MAX_SEED = 2**31


class Operation(Protocol):
    """One thing to do on a site, such as to put a product in the cart."""

    def apply(self, state: Any) -> None:
        """Change a state as the site does when a visitor does this."""


@dataclass(frozen=True)
class Reading(abc.ABC):
    """Opens a page to read it; nothing changes."""

    @property
    @abc.abstractmethod
    def path(self) -> str:
        """The page's path below the site's prefix."""

    def apply(self, state: Any) -> None:
        """Change nothing."""
        return None


@dataclass(frozen=True, slots=True)
class TaskInstance:
    """What a template draws: the goal in words, the operations that reach it, the page on which it starts."""

    goal: str
    operations: tuple[Operation, ...] = ()
    start: str = ""
    answer: str | None = None
    """What the agent must tell the user, where the goal is a question."""
    distractors: tuple[str, ...] = ()
    """What it must not tell the user beside it."""


@dataclass(frozen=True, slots=True)
class TaskTemplate:
    """A kind of task."""

    name: str
    level: int
    split: str
    make: Callable[[random.Random, Any], TaskInstance]
    """Draws an instance on a state, which it may change first."""
    needs_text: bool = False
    """Whether the expert types, in a field or to the user."""

    @property
    def site(self) -> str:
        """The site's name."""
        return self.name.partition("/")[0]


class SiteTask:
    """A task made ready to play: its session, evaluator and operations."""

    def __init__(self, task: Task, faults: Faults | None = None) -> None:
        fields = task.fields
        self.template = find_template(str(fields.get("template", "")))
        self.variation = Variation.from_json(fields.get("variation", {}))
        state, self.case = draw(self.template, fields["seed"])
        if digest(state, self.case) != fields["digest"]:
            raise UserError(f"Task '{task.id}' was made by another version of the web sites; draw the tasks again.")
        self.goal = Goal(states_of(state, self.case), self.case.answer, self.case.distractors)
        site = SITES[self.template.site][1](state, self.variation)
        self.session = SiteSession(site, state, self.case.start, faults)

    def evaluate(self, message: str | None = None) -> Evaluation:
        """Judge the session's state and the agent's last message to the user."""
        return self.goal.evaluate(self.session.facts(), message)


def draw(template: TaskTemplate, seed: int) -> tuple[SiteState, TaskInstance]:
    """Return the first state and the instance of a template and a seed."""
    rng = random.Random(f"web:{template.name}:{seed}")
    state = SITES[template.site][0](rng)
    case = template.make(rng, state)
    return state, case


def states_of(state: SiteState, case: TaskInstance) -> list[SiteState]:
    """Return the first state and those after each operation."""
    states = [state.clone()]
    for operation in case.operations:
        states.append(states[-1].clone())
        operation.apply(states[-1])
    return states


def digest(state: SiteState, case: TaskInstance) -> str:
    """Return a hash of a task's first and last state, its goal and its start."""
    states = states_of(state, case)
    return content_hash([states[0].facts(), states[-1].facts(), case.goal, case.start, case.answer])


@functools.cache
def templates() -> Mapping[str, TaskTemplate]:
    """Return all templates by name."""
    from practicum.environments.web import tasks_calendar, tasks_mail, tasks_shop

    every = (*tasks_calendar.TEMPLATES, *tasks_mail.TEMPLATES, *tasks_shop.TEMPLATES)
    return {template.name: template for template in sorted(every, key=lambda template: template.name)}


def find_template(name: str) -> TaskTemplate:
    """Return a template by its name."""
    if name not in templates():
        raise UserError(f"There is no web template '{name}'.{did_you_mean(name, templates())}")
    return templates()[name]


def select_templates(
    split: str,
    sites: Sequence[str] = tuple(SITES),
    levels: Sequence[int] = LEVELS,
    text: bool = True,
    names: Sequence[str] = (),
) -> list[TaskTemplate]:
    """Return the templates of a split, of some sites and levels, without those that need typing if `text` is False.
    Where `names` are given, only the templates that they name."""
    if split not in SPLITS:
        raise UserError(f"web has no split '{split}'.{did_you_mean(split, SPLITS)}")
    for site in sites:
        if site not in SITES:
            raise UserError(f"web has no site '{site}'.{did_you_mean(str(site), SITES)}")
    for name in names:
        find_template(name)
    chosen = [
        template
        for template in templates().values()
        if template.split == split
        and template.site in sites
        and template.level in levels
        and (text or not template.needs_text)
        and (not names or template.name in names)
    ]
    if not chosen:
        among = f" among {', '.join(names)}" if names else ""
        raise UserError(f"No web template of split {split}{among} has sites {list(sites)} and levels {list(levels)}.")
    return chosen


def make_task(template: TaskTemplate, seed: int, split_index: str, axes: Sequence[str] = ()) -> Task:
    """Return the task of a template and a seed; `axes` are those on which its pages vary."""
    state, case = draw(template, seed)
    fields: dict[str, Any] = {
        "question": case.goal,
        "site": template.site,
        "template": template.name,
        "level": template.level,
        "needs_text": template.needs_text,
        "seed": seed,
        "digest": digest(state, case),
    }
    if axes:
        fields["variation"] = Variation.draw(axes, random.Random(f"variation:{template.name}:{seed}")).to_json()
    return Task(f"web-{split_index}", "web", template.split, fields)


def make_tasks(templates: Sequence[TaskTemplate], count: int, seed: int = 0, axes: Sequence[str] = ()) -> list[Task]:
    """Return tasks of the templates in turn, in an order drawn from the seed; every task has a seed of its own."""
    tasks: list[Task] = []
    templates = sorted(templates, key=lambda template: content_hash([seed, template.name]))
    rngs = {template.name: random.Random(f"web:tasks:{template.name}:{seed}") for template in templates}
    used: set[tuple[str, int]] = set()
    for index in range(count):
        template = templates[index % len(templates)]
        number = rngs[template.name].randrange(MAX_SEED)
        while (template.name, number) in used:
            number = rngs[template.name].randrange(MAX_SEED)
        used.add((template.name, number))
        tasks.append(make_task(template, number, f"{template.split}-{seed}-{index}", axes))
    return tasks
