"""The templates of requests: which tasks, with which modifiers, in which order, said how.

The split is by template: a request of `val` or `test` combines tasks, modifiers and orders as no request of `train`
does, while every task, modifier, pattern and kind of slot occurs in `train` too. Besides the templates written here,
`train` has drawn ones: with 90 alone a small model learns the templates by heart and solves nothing else (97 % of
training requests, 6 % of held-out ones).
"""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from practicum.environments.htdag.vocabulary import allowed_modifiers

LEVELS = ("simple", "medium", "complex", "edge")
MENTIONED = "not"
"""Modifier of a task that the request only mentions: it must not be planned."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """How tasks are put into a sentence, and for each task the tasks (from 0) that come before it.

    `{0&1}` is one phrase with both slots: the same task for two.
    """

    text: str
    after: tuple[tuple[int, ...], ...]


PATTERNS: Mapping[str, Pattern] = {
    "one": Pattern("{0}", ((),)),
    "and": Pattern("{0} and {1}", ((), ())),
    "then": Pattern("{0}, then {1}", ((), (0,))),
    "before": Pattern("before you {1}, {0}", ((), (0,))),
    "after": Pattern("{1} after you {0}", ((), (0,))),
    "three": Pattern("{0}, {1} and {2}", ((), (), ())),
    "join": Pattern("{0} and {1}, then {2}", ((), (), (0, 1))),
    "fork": Pattern("{0}, then {1} and {2}", ((), (0,), (0,))),
    "chain": Pattern("{0}, then {1}, then {2}", ((), (0,), (1,))),
    "also": Pattern("{0}, then {1}; also {2}", ((), (0,), ())),
    "join4": Pattern("{0}, {1} and {2}, then {3}", ((), (), (), (0, 1, 2))),
    "two": Pattern("{0} and {1}, then {2} and {3}", ((), (), (0, 1), (0, 1))),
    "not": Pattern("{0} but do not {1}", ((), ())),
    "need": Pattern("{0}; no need to {1}", ((), ())),
    "pair": Pattern("{0&1}", ((), ())),
    "pair then": Pattern("{0&1}, then {2}", ((), (), (0, 1))),
}


@dataclass(frozen=True, slots=True)
class TemplateTask:
    """One task of a template: its type, the kind of its slot, a modifier or ""."""

    type: str
    kind: str
    modifier: str = ""


@dataclass(frozen=True, slots=True)
class RequestTemplate:
    """One kind of request."""

    id: str
    domain: str
    level: str
    split: str
    pattern: str
    goals: tuple[TemplateTask, ...]


# Per line: level, split, pattern, tasks (`modifier type kind`, separated by semicolons).
SOURCE: Mapping[str, str] = {
    "travel": """
        simple   train  one     trip city
        simple   train  one     cheap seat city
        medium   train  and     seat city; room city
        medium   test   then    room city; seat city
        medium   train  join    seat city; shared room city; tell person
        complex  train  join4   trip city; buy thing; note person; call person
        complex  test   two     trip city; buy thing; call person; note person
        edge     train  not     seat city; not room city
        edge     val    need    trip city; not note person
        simple   train  one     old room city
        complex  train  then    shared trip city; review book
        simple   test   one     shared seat city
        medium   test   and     trip city; hire role
    """,
    "shopping": """
        simple   train  one     buy thing
        simple   train  one     cheap buy thing
        simple   test   one     shared return thing
        medium   train  then    return thing; buy thing
        medium   val    and     cheap buy thing; checked gift thing
        medium   train  before  buy thing; wash food
        complex  train  fork    gift thing; note person; tell person
        complex  test   also    return thing; gift thing; bill due
        edge     train  need    buy thing; not return thing
        simple   train  one     old gift thing
        medium   train  and     checked buy thing; gift thing
        medium   test   then    gift thing; note person
        complex  test   three   buy thing; return thing; cake food
    """,
    "cooking": """
        simple   train  one     soup food
        simple   train  one     shared cake food
        simple   val    one     checked cake food
        medium   train  and     cake food; soup food
        medium   test   then    dinner food; cake food
        medium   train  after   dinner food; call person
        complex  train  join    dinner food; cake food; ask person
        complex  test   chain   cake food; party person; tidy place
        edge     train  pair    soup food; soup food
        simple   train  one     checked soup food
        simple   test   one     dinner food
        medium   test   and     soup food; shared dinner food
    """,
    "home": """
        simple   train  one     repair thing
        simple   test   one     renew place
        simple   train  one     old repair thing
        medium   train  then    tidy place; repair thing
        medium   test   and     checked tidy place; shared repair thing
        complex  train  two     repair thing; repair thing; tidy place; tell person
        complex  val    fork    renew place; old repair thing; bill due
        complex  train  also    renew place; tidy place; call person
        edge     train  before  tidy place; renew place
        medium   test   after   renew place; bill due
        complex  test   chain   tidy place; repair thing; call person
    """,
    "software": """
        simple   train  one     ship app
        simple   train  one     old mend app
        simple   test   one     launch app
        medium   train  then    mend app; ship app
        medium   test   before  mend app; tell person
        medium   val    then    launch app; chart table
        complex  train  join    launch app; report table; tell person
        complex  train  chain   mend app; checked launch app; talk topic
        edge     test   not     ship app; not mend app
        edge     train  after   ship app; mend app
        medium   train  and     old ship app; shared launch app
        medium   test   then    ship app; report table
        complex  test   join    mend app; ship app; note person
    """,
    "data": """
        simple   train  one     report table
        simple   train  one     checked chart table
        simple   test   one     study table
        medium   train  and     report table; chart table
        medium   test   then    shared chart table; note person
        medium   train  then    study table; talk topic
        complex  train  join    shared report table; chart table; call person
        complex  val    join4   report table; study table; chart table; meet person
        complex  train  also    chart table; report table; audit table
        edge     train  pair then  report table; report table; tell person
        medium   train  and     study table; checked seat city
        medium   test   and     chart table; checked study table
        edge     test   pair    chart table; chart table
    """,
    "events": """
        simple   train  one     party person
        simple   train  one     feast person
        simple   test   one     talk topic
        medium   train  then    cake food; party person
        medium   train  and     talk topic; room city
        medium   test   after   feast person; tidy place
        complex  train  fork    party person; tidy place; shared note person
        complex  test   join    feast person; trip city; bill due
        edge     val    pair    party person; party person
        edge     train  need    talk topic; not feast person
        medium   train  then    shared party person; checked talk topic
        medium   test   then    party person; tidy place
        complex  test   also    talk topic; feast person; room city
    """,
    "hiring": """
        simple   train  one     hire role
        simple   train  one     shared coach role
        simple   val    one     staff role
        medium   train  then    hire role; note person
        medium   test   and     staff role; coach role
        medium   train  before  coach role; meet person
        complex  train  join    hire role; staff role; tell person
        complex  test   also    checked hire role; coach role; report table
        complex  train  chain   staff role; party person; bill due
        edge     train  pair    coach role; coach role
        medium   train  and     old hire role; shared staff role
        medium   test   then    staff role; party person
        edge     test   not     hire role; not coach role
    """,
    "publishing": """
        simple   train  one     note person
        simple   train  one     checked note person
        simple   test   one     review book
        medium   train  then    review book; call person
        medium   val    before  shared review book; note person
        medium   train  and     old review book; talk topic
        complex  train  two     note person; review book; review book; tell person
        complex  train  fork    review book; chart table; note person
        edge     test   pair then  note person; note person; call person
        edge     train  pair    review book; review book
        medium   train  then    old note person; seat city
        medium   test   and     review book; note person
        complex  test   fork    talk topic; note person; old review book
    """,
    "support": """
        simple   train  one     refund person
        simple   train  one     claim person
        simple   test   one     old claim person
        medium   train  then    refund person; return thing
        medium   test   and     claim person; repair thing
        medium   train  join    refund person; refund person; report table
        complex  train  chain   refund person; cheap buy thing; note person
        complex  val    also    claim person; call person; mend app
        edge     train  not     refund person; not call person
        medium   train  then    claim person; bill due
        simple   train  one     old refund person
        medium   test   then    claim person; refund person
        complex  test   two     refund person; repair thing; note person; call person
    """,
    "finance": """
        simple   train  one     bill due
        simple   train  one     shared audit table
        simple   val    one     shared close table
        medium   train  then    audit table; note person
        medium   train  and     bill due; old audit table
        medium   test   before  close table; report table
        complex  train  three   bill due; close table; refund person
        complex  test   join    bill due; report table; ask person
        edge     train  pair    bill due; bill due
        edge     test   need    close table; not audit table
        medium   train  and     close table; old bill due
        medium   test   and     shared bill due; note person
        complex  test   chain   bill due; audit table; close table
    """,
    "garden": """
        simple   train  one     bed plant
        simple   train  one     crop plant
        simple   train  one     checked yard plant
        medium   train  and     crop plant; shared bed plant
        medium   test   then    old crop plant; soup food
        medium   val    after   bed plant; crop plant
        complex  train  also    yard plant; crop plant; dinner food
        complex  train  three   bed plant; repair thing; shared tidy place
        complex  test   fork    yard plant; cake food; tell person
        edge     train  before  bed plant; buy thing
        simple   train  one     checked bed plant
        simple   test   one     old crop plant
        medium   test   then    bed plant; yard plant
    """,
}


def _templates() -> tuple[RequestTemplate, ...]:
    templates = []
    for domain, text in SOURCE.items():
        for index, line in enumerate(text.strip().splitlines()):
            level, split, rest = line.split(maxsplit=2)
            pattern = next(name for name in sorted(PATTERNS, key=len, reverse=True) if rest.startswith(f"{name} "))
            goals = tuple(
                TemplateTask(words[-2], words[-1], words[0] if len(words) == 3 else "")
                for words in (goal.split() for goal in rest.removeprefix(pattern).split(";"))
            )
            templates.append(RequestTemplate(f"{domain}-{index}", domain, level, split, pattern, goals))
    return tuple(templates)


TEMPLATES = _templates()

NUM_DRAWN_TEMPLATES = 3000
MODIFIER_SHARE = 0.3
"""Share of the drawn tasks that have a modifier, where one is allowed."""
PATTERN_WEIGHTS: Mapping[str, tuple[str, int]] = {
    "one": ("simple", 4), "and": ("medium", 8), "then": ("medium", 8), "before": ("medium", 4), "after": ("medium", 4),
    "three": ("complex", 4), "join": ("complex", 6), "fork": ("complex", 6), "chain": ("complex", 6),
    "also": ("complex", 6), "join4": ("complex", 4), "two": ("complex", 4), "not": ("edge", 3), "need": ("edge", 3),
    "pair": ("edge", 2), "pair then": ("edge", 3),
}  # fmt: skip
"""Level and weight of each pattern among the drawn templates."""


def combination(template: RequestTemplate) -> tuple[str, tuple[str, ...]]:
    """Return the pattern and the tasks of a template in any order: a drawn one shares them with no held-out one."""
    return template.pattern, tuple(sorted(goal.type for goal in template.goals))


@cache
def drawn_templates() -> tuple[RequestTemplate, ...]:
    """Return further templates of `train`: drawn tasks and modifiers in every pattern, none a held-out combination."""
    rng = random.Random("htdag templates")
    held_out = {combination(template) for template in TEMPLATES if template.split != "train"}
    existing = {(template.pattern, template.goals) for template in TEMPLATES}
    kinds = {goal.type: goal.kind for template in TEMPLATES for goal in template.goals}
    domains = {template.goals[0].type: template.domain for template in reversed(TEMPLATES)}
    types = sorted(kinds)
    patterns, weights = list(PATTERN_WEIGHTS), [weight for _, weight in PATTERN_WEIGHTS.values()]
    templates: list[RequestTemplate] = []
    for _ in range(20 * NUM_DRAWN_TEMPLATES):
        if len(templates) == NUM_DRAWN_TEMPLATES:
            break
        (pattern,) = rng.choices(patterns, weights)
        drawn = rng.sample(types, len(PATTERNS[pattern].after))
        if pattern.startswith("pair"):
            drawn[1] = drawn[0]
        goals = [TemplateTask(type, kinds[type], _drawn_modifier(rng, type)) for type in drawn]
        if pattern.startswith("pair"):
            # A modifier before the first noun only would be unclear.
            goals[:2] = [TemplateTask(drawn[0], kinds[drawn[0]])] * 2
        if pattern in ("not", "need"):
            goals[1] = TemplateTask(drawn[1], kinds[drawn[1]], MENTIONED)
        level = PATTERN_WEIGHTS[pattern][0]
        template = RequestTemplate(
            f"drawn-{len(templates)}", domains.get(drawn[0], "mixed"), level, "train", pattern, tuple(goals)
        )
        if combination(template) in held_out or (pattern, template.goals) in existing:
            continue
        existing.add((pattern, template.goals))
        templates.append(template)
    return tuple(templates)


def _drawn_modifier(rng: random.Random, type: str) -> str:
    allowed = allowed_modifiers(type)
    return rng.choice(allowed) if allowed and rng.random() < MODIFIER_SHARE else ""
