"""The short form: a rubric in words that a model without any pretraining can learn from a few hundred dialogues.

A deliverable's plan has lettered entries: parts (headings, columns or functions) A, B, C, ..., figures, names, words to
avoid. Stakeholder and manager speak of them by letter: `heading B must` is a preference, `part B 3` a rule. So nothing
has to be spelt; what a letter stands for is looked up in the plan (`Legend`). The stakeholder lists its preferences,
one per line, as items a, b, c, ... of the whole dialogue, and a line of a rubric begins with the item it is for.
"""

from __future__ import annotations

import re
import string
from collections.abc import Mapping, Sequence

from practicum.environments.rubric.deliverables import WorkSpec
from practicum.environments.rubric.menu import ASK, MAX_MENU_RULES, MAX_REPLY_CHARACTERS, Question, UnreadableReply
from practicum.environments.rubric.rule_kinds import TOPICS
from practicum.environments.rubric.schema import MenuRule, Rubric
from practicum.utils.seeded_random import SeededRandom

CODE_OF_KIND: Mapping[str, str] = {
    "section": "part", "column": "part", "function": "part", "docstrings": "docs", "total": "sum", "sorted": "sort",
    "rows": "rows", "complete": "full", "mention": "name", "avoid": "ban", "words": "size", "lines": "size",
}  # fmt: skip
WITH_LETTER = ("part", "sum", "name", "ban")
PHRASES: Mapping[str, tuple[str, ...]] = {
    "section": ("heading {}", "part {}"),
    "column": ("column {}", "part {}"),
    "function": ("function {}", "part {}"),
    "docstrings": ("docs", "explain it"),
    "total": ("sum {}", "total {}"),
    "sorted": ("in order", "sort it"),
    "rows": ("all rows", "every item"),
    "complete": ("no gaps", "all full"),
    "mention": ("name {}", "say {}"),
    "avoid": ("not {}", "ban {}"),
    "words": ("short", "small size"),
    "lines": ("short", "small size"),
}
IMPORTANCE: Mapping[int, tuple[str, str]] = {3: ("must", "vital"), 2: ("should", "good"), 1: ("may", "nice")}
TOPIC_CODES: Mapping[str, str] = dict(zip(TOPICS, ("form", "sums", "words", "size"), strict=True))
TOPIC_OF_CODE = {code: topic for topic, code in TOPIC_CODES.items()}
ITEMS = string.ascii_lowercase
_RULE = r"[a-h] (part [A-D]|(sum|name|ban) [AB]|sort|rows|full|docs|size) [1-3]"
SHORT_REPLIES = rf"(ask (form|sums|words|size)|{_RULE}(\n{_RULE}){{0,{MAX_MENU_RULES - 1}}})"
"""A regular expression of all replies of the short form, for constrained decoding (`agent.response_format`). A plan
need not have all of these letters: a program has no sums."""
RULE = re.compile(r"(?:[a-z] )?(?P<code>[a-z]+)(?: (?P<letter>[A-Z]))? (?P<weight>[1-3])")
"""A rule; the item that it is for may be missing, and is not checked."""


class Legend:
    """What the letters of a deliverable's plan stand for."""

    def __init__(self, spec: WorkSpec) -> None:
        self.rules: dict[str, MenuRule] = {}
        """Menu rules by their short text without the weight, such as `part B`."""
        counts: dict[str, int] = {}
        for kind, parameter in spec.aspects:
            code = CODE_OF_KIND[kind]
            label = code
            if code in WITH_LETTER:
                label = f"{code} {chr(ord('A') + counts.get(code, 0))}"
                counts[code] = counts.get(code, 0) + 1
            self.rules[label] = MenuRule(kind=kind, parameter=parameter)
        self.labels = {(rule.kind, rule.parameter): label for label, rule in self.rules.items()}

    def letter(self, rule: MenuRule) -> str:
        return self.labels[rule.kind, rule.parameter].partition(" ")[2]

    def text(self, rubric: Rubric) -> str:
        """Return a rubric in the short form; rules that are no entry of the plan are left out."""
        rules = [rule for rule in rubric.all_rules if isinstance(rule, MenuRule)]
        labels = [(self.labels.get((rule.kind, rule.parameter)), rule.weight) for rule in rules]
        return as_items([f"{label} {weight:g}" for label, weight in labels if label is not None])

    def parse(self, text: str) -> Question | Rubric:
        """Read a manager's reply; UnreadableReply for anything else than a question or a rubric over this plan."""
        text = text[:MAX_REPLY_CHARACTERS].strip()
        if text.startswith(f"{ASK} "):
            topic = TOPIC_OF_CODE.get(text.removeprefix(ASK).strip())
            if topic is None:
                raise UnreadableReply(f"a question is about one of {', '.join(TOPIC_OF_CODE)}")
            return Question(topic)
        rules = [self._rule(part.strip()) for part in text.split("\n")]
        if len(rules) > MAX_MENU_RULES:
            raise UnreadableReply(f"it has {len(rules)} rules, at most {MAX_MENU_RULES} are allowed")
        return Rubric(rules=tuple(rules))

    def _rule(self, part: str) -> MenuRule:
        match = RULE.fullmatch(part)
        label = "" if match is None else " ".join(word for word in (match["code"], match["letter"]) if word)
        rule = self.rules.get(label)
        if match is None or rule is None:
            raise UnreadableReply(f"'{part[:40]}' is no rule over the plan of this work")
        return rule.model_copy(update={"weight": float(match["weight"])})

    def phrase(self, rule: MenuRule, random: SeededRandom) -> str:
        """Return a preference as the stakeholder says it."""
        words = random.choice(PHRASES[rule.kind])
        text = words.format(self.letter(rule)) if "{}" in words else words
        return f"{text} {random.choice(IMPORTANCE[max(1, min(3, round(rule.weight)))])}"


def as_items(texts: Sequence[str], num_before: int = 0) -> str:
    """Return a list with one line per text, lettered from the first letter after those of `num_before` items."""
    return "\n".join(f"{ITEMS[num_before + index]} {text}" for index, text in enumerate(texts))


def hints(topics: Sequence[str]) -> str:
    """Return the line that says which topics can be asked about."""
    return f"more: {', '.join(TOPIC_CODES[topic] for topic in topics)}" if topics else ""
