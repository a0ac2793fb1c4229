"""The menu form of rubrics: short text of a closed vocabulary, which a small model can write.

A rubric is `total revenue 3; section Risks 2; words 90 1`: rule kind, parameter, weight from 1 to 3. A question is
`ask wording`: one of four topics.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pydantic import ValidationError

from practicum.environments.rubric.rule_kinds import RULE_KINDS, TOPICS
from practicum.environments.rubric.schema import MenuRule, Rubric

MAX_MENU_RULES = 8
MAX_REPLY_CHARACTERS = 1000
RULE = re.compile(rf"(?P<kind>{'|'.join(RULE_KINDS)})(?: (?P<parameter>[^;]*?))? (?P<weight>[1-3])")
ASK = "ask"


class UnreadableReply(ValueError):
    """A reply that is neither a question of the menu nor a rubric; the message says what is wrong."""


@dataclass(frozen=True, slots=True)
class Question:
    """A question to the stakeholder: a topic of the menu, or free text."""

    text: str


def parse_reply(text: str) -> Question | Rubric:
    """Read a manager's reply in the menu form."""
    text = text[:MAX_REPLY_CHARACTERS].strip()
    if text.startswith(f"{ASK} "):
        topic = text.removeprefix(ASK).strip()
        if topic not in TOPICS:
            raise UnreadableReply(f"'{topic}' is none of {', '.join(TOPICS)}")
        return Question(topic)
    return parse_rubric(text)


def parse_rubric(text: str, name: str = "rubric") -> Rubric:
    """Read a rubric in the menu form; UnreadableReply for anything else."""
    rules = []
    for part in text.strip().rstrip(";").split(";"):
        match = RULE.fullmatch(part.strip())
        if match is None:
            raise UnreadableReply(f"'{part.strip()[:60]}' is no rule: KIND PARAMETER WEIGHT")
        try:
            rules.append(
                MenuRule(kind=match["kind"], parameter=match["parameter"] or "", weight=float(match["weight"]))
            )
        except ValidationError as error:
            raise UnreadableReply(str(error.errors()[0]["msg"])) from None
    if len(rules) > MAX_MENU_RULES:
        raise UnreadableReply(f"it has {len(rules)} rules, at most {MAX_MENU_RULES} are allowed")
    return Rubric(name=name, rules=tuple(rules))


def rubric_text(rubric: Rubric) -> str:
    """Return a rubric of menu rules in the menu form."""
    parts = []
    for rule in rubric.all_rules:
        if not isinstance(rule, MenuRule):
            raise ValueError(f"a rule of type {rule.type} has no menu form")
        parts.append(" ".join(part for part in (rule.kind, rule.parameter, f"{rule.weight:g}") if part))
    return "; ".join(parts)


def reply_pattern() -> str:
    """Return a regular expression of all replies of the menu, for constrained decoding (`agent.response_format`)."""
    rule = "(" + "|".join(_rule_pattern(name) for name in RULE_KINDS) + ") [1-3]"
    return f"({ASK} ({'|'.join(TOPICS)})|{rule}(; {rule}){{0,{MAX_MENU_RULES - 1}}})"


def _rule_pattern(name: str) -> str:
    parameter = {"text": r" [A-Za-z][A-Za-z0-9_-]{0,30}", "number": r" [1-9][0-9]{0,3}"}
    return name + parameter.get(RULE_KINDS[name].parameter, "")
