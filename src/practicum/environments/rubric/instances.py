"""Seeded instances of a family: a workflow, a stakeholder with hidden preferences, outputs of different quality.

An instance follows one of the family's hand-written rubrics: it keeps the kinds of its criteria and draws the words,
names and numbers that they are about, which of them are kept, and their weights. Outputs are made by workers that run
the workflow. `utility` is what the stakeholder truly gets from an output: the share of what it cares about that the
worker did not spoil, known from the worker and not from any rule.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass, replace

from practicum.environments.rubric.deliverables import Aspect, WorkSpec, with_limit
from practicum.environments.rubric.families.base import Family
from practicum.environments.rubric.families.catalogue import family_named
from practicum.environments.rubric.menu import parse_rubric
from practicum.environments.rubric.rule_kinds import RULE_KINDS, TOPICS
from practicum.environments.rubric.schema import MenuRule, Rubric
from practicum.environments.rubric.workers import TASK_DRAFT, TASK_FINISH, TASK_NOTE, ScriptedWorker
from practicum.environments.rubric.workflow import CODE, CSV, DOCUMENT, Workflow, WorkflowResource, WorkflowTask
from practicum.environments.rubric.workflow_engine import WorkflowEngine
from practicum.utils.seeded_random import SeededRandom

LEVELS = (1, 2, 3)
"""How many criteria there are (2 to 3, 3 to 4, 4 to 5) and topics that the stakeholder does not mention (0, 1, 2)."""
QUALITIES = (0.7, 0.8, 0.5, 0.6, 0.45, 0.75, 0.4, 0.55)
"""How often a worker gets an aspect right, for each of the outputs that a rubric is scored on."""
CONSONANTS, VOWELS = "bdfgklmnprstvz", "aeiou"
MIN_SPREAD = 0.15
"""Least difference between the best and the worst output by the ground truth."""


@dataclass(frozen=True)
class WorkOutput:
    """What a worker delivered, and what it got wrong."""

    text: str
    defects: frozenset[Aspect]


@dataclass(frozen=True)
class Instance:
    """A workflow before its work is done, the plan of its deliverable, and what the stakeholder wants."""

    family: Family
    number: int
    level: int
    stakeholder: str
    workflow: Workflow
    spec: WorkSpec
    preferences: Rubric
    """The ground truth: rules of the menu with weights."""
    hidden_topics: tuple[str, ...]
    """Topics that the stakeholder speaks about only when asked."""

    def utility(self, output: WorkOutput) -> float:
        """Return the share of the stakeholder's preferences that the worker satisfied."""
        rules = [rule for rule in self.preferences.all_rules if isinstance(rule, MenuRule)]
        total = sum(rule.weight for rule in rules)
        return sum(rule.weight for rule in rules if (rule.kind, rule.parameter) not in output.defects) / total


def made_name(random: SeededRandom) -> str:
    """Return an invented name, such as Belo or Tamir."""
    letters = "".join(random.choice(CONSONANTS) + random.choice(VOWELS) for _ in range(2))
    return letters.capitalize() + (random.choice(CONSONANTS) if random.below(2) else "")


@functools.lru_cache(maxsize=4096)
def make_instance(family_name: str, number: int, level: int = 3) -> Instance:
    """Return an instance of a family; the same numbers give the same instance on every machine."""
    family = family_named(family_name)
    random = SeededRandom(f"rubric/{family_name}/{number}/{level}")
    spec = _spec(family, random)
    stakeholder = random.choice(sorted(family.rubrics))
    rules = _preferences(spec, parse_rubric(family.rubrics[stakeholder]), level, random)
    topics = [topic for topic in TOPICS if any(RULE_KINDS[rule.kind].topic == topic for rule in rules)]
    hidden = tuple(random.sample(topics, min(level - 1, len(topics) - (level < 3))))
    stated = sorted(rules, key=lambda rule: ("", *hidden).index(_topic(rule, hidden)))
    preferences = Rubric(name=f"{family_name}: {stakeholder}", rules=tuple(stated))
    workflow = make_workflow(family, spec, number)
    return Instance(family, number, level, stakeholder, workflow, spec, preferences, hidden)


def _topic(rule: MenuRule, hidden: Sequence[str]) -> str:
    """The hidden topic of a rule; "" for a rule that the stakeholder states by itself."""
    topic = RULE_KINDS[rule.kind].topic
    return topic if topic in hidden else ""


def canonical_instance(family: Family, stakeholder: str) -> Instance:
    """Return the instance that a hand-written rubric was written for, with the family's own words."""
    rubric = parse_rubric(family.rubrics[stakeholder], f"{family.name}: {stakeholder}")
    rules = [rule for rule in rubric.all_rules if isinstance(rule, MenuRule)]

    def named(kinds: Sequence[str], pool: Sequence[str], count: int) -> tuple[str, ...]:
        first = [rule.parameter for rule in rules if rule.kind in kinds and rule.parameter in pool]
        return tuple(dict.fromkeys([*first, *pool]))[:count]

    random = SeededRandom(f"canonical/{family.name}/{stakeholder}")
    ordered = [rule.parameter for rule in rules if rule.kind == "sorted"]
    measures = tuple(dict.fromkeys([*ordered, *named(("total",), family.measures, 2)]))[:2]
    parts = named(("section", "function", "column"), family.parts, 4 if family.form in (DOCUMENT, CODE) else 2)
    parts = parts if family.form in (DOCUMENT, CODE) else (*parts, *measures)
    limit = next((int(rule.parameter) for rule in rules if rule.kind in ("words", "lines")), 0)
    rows = next((int(rule.parameter) for rule in rules if rule.kind == "rows"), 4)
    labels = family.items[:rows]
    spec = WorkSpec(
        family.form,
        f"{family.name.capitalize()} for Practicum",
        parts,
        measures,
        tuple((label, tuple(random.between(10, 99) for _ in measures)) for label in labels),
        named(("mention",), family.terms, 2),
        named(("avoid",), family.banned, 2),
        family.sentences,
    )
    spec = replace(spec, limit=limit or with_limit(spec, 1))
    workflow = make_workflow(family, spec, 0, name=rubric.name)
    return Instance(family, 0, 3, stakeholder, workflow, spec, rubric, ())


def _spec(family: Family, random: SeededRandom) -> WorkSpec:
    measures = _shuffled(family.measures, random)[:2]
    own = _shuffled(family.parts, random)
    parts = own[:4] if family.form in (DOCUMENT, CODE) else [*own[:2], *measures]
    labels = _shuffled(family.items, random)[: random.between(4, 7)]
    terms = [random.choice(family.terms), made_name(random)]
    spec = WorkSpec(
        family.form,
        f"{family.name.capitalize()} for {made_name(random)}",
        tuple(parts),
        tuple(measures),
        tuple((label, tuple(random.between(10, 99) for _ in measures)) for label in labels),
        tuple(terms),
        tuple(_shuffled(family.banned, random)[:2]),
        tuple(_shuffled(family.sentences, random)),
    )
    return replace(spec, limit=with_limit(spec, random.below(3)))


def _shuffled(items: Sequence[str], random: SeededRandom) -> list[str]:
    remaining = list(items)
    return [remaining.pop(random.below(len(remaining))) for _ in range(len(remaining))]


def _preferences(spec: WorkSpec, written: Rubric, level: int, random: SeededRandom) -> list[MenuRule]:
    """Return rules of the kinds of a hand-written rubric over the aspects of a deliverable, and one or two others."""
    free = list(spec.aspects)
    kinds = [rule.kind for rule in written.all_rules if isinstance(rule, MenuRule)]
    count = level + 1 + random.below(2)
    chosen_kinds = [kinds[i] for i in sorted(random.sample(range(len(kinds)), min(count, len(kinds))))]
    rules: list[MenuRule] = []
    while len(rules) < count:
        kind = chosen_kinds.pop(0) if chosen_kinds else None
        options = [aspect for aspect in free if kind in (None, aspect[0])]
        if not options:
            continue
        aspect = random.choice(options)
        free.remove(aspect)
        rules.append(MenuRule(kind=aspect[0], parameter=aspect[1], weight=random.between(1, 3)))
    return rules


def make_workflow(family: Family, spec: WorkSpec, seed: int, name: str = "") -> Workflow:
    """Return the workflow of a deliverable: three tasks, each reading what the one before wrote."""
    note, drafted, finished = family.tasks
    hours = family.hours
    tasks = (
        WorkflowTask(note, "Compute the totals.", (), ("input",), "note", CSV, hours[0], 40 * hours[0]),
        WorkflowTask(
            drafted, "Write a draft.", (note,), ("input", "note"), "draft", spec.form, hours[1], 60 * hours[1]
        ),
        WorkflowTask(finished, "Finish it.", (drafted,), ("draft",), "deliverable", spec.form, hours[2], 50 * hours[2]),
    )
    return Workflow(
        name or family.name,
        f"{spec.title} ({spec.form})",
        {task.name: task for task in tasks},
        {"input": WorkflowResource("input", CSV, spec.input_table)},
        deliverable="deliverable",
        metadata={"field": family.field, "family": family.name},
        seed=seed,
    )


def workers_for(instance: Instance, qualities: Sequence[float], group: str = "") -> list[ScriptedWorker]:
    """Return one worker per quality for an instance's workflow."""
    names = list(instance.workflow.tasks)
    steps = (TASK_NOTE, TASK_DRAFT, TASK_FINISH)
    specs = {name: (instance.spec, step) for name, step in zip(names, steps, strict=True)}
    return [ScriptedWorker(f"{group}worker {i}", quality, specs) for i, quality in enumerate(qualities)]


async def make_outputs(instance: Instance, qualities: Sequence[float] = QUALITIES, group: str = "") -> list[WorkOutput]:
    """Run the workflow once per worker and return what they delivered."""
    outputs = []
    for worker in workers_for(instance, qualities, group):
        done = await WorkflowEngine([worker]).run(instance.workflow)
        outputs.append(WorkOutput(done.candidate_output, frozenset(worker.defects)))
    return outputs
