"""Scripted managers: the expert, one that asks too much, and probes that try to be paid without judging anything."""

from __future__ import annotations

import json

from practicum.environments.rubric.instances import Instance, make_instance
from practicum.environments.rubric.manager_prompt import JSON, SHORT
from practicum.environments.rubric.menu import ASK, rubric_text
from practicum.environments.rubric.rubric_case import rubric_of_field
from practicum.environments.rubric.rule_kinds import RULE_KINDS, TOPICS
from practicum.environments.rubric.schema import MenuRule, Rubric
from practicum.environments.rubric.short_form import TOPIC_CODES, Legend
from practicum.errors import UserError
from practicum.task import Task
from practicum.utils.seeded_random import SeededRandom

PROBES = ("thorough", "constant", "keywords", "generic", "opposite", "flatterer")
"""`thorough` asks in every turn but the last. The others are probes: a rubric that gives every output the same score,
one of words that any work contains, the same general rules for every workflow, the opposite of the ground truth, and
the most emphatic rubric there can be."""
OPPOSITES = {"mention": "avoid", "avoid": "mention"}


def ground_truth_of(task: Task) -> Rubric:
    return rubric_of_field(task.fields.get("rubric"), task.id)


def probe_reply(name: str, task: Task, seed: int, turn: int, max_turns: int, form: str) -> str:
    """Return what a scripted manager replies in a turn."""
    question = _question(name, task, turn) if turn < max_turns else ""
    if question:
        topic = TOPIC_CODES[question] if form == SHORT else question
        return json.dumps({"action": "ask", "question": question}) if form == JSON else f"{ASK} {topic}"
    rubric = _rubric(name, task, seed)
    if form == SHORT:
        instance = _instance(task)
        return "nothing" if instance is None else Legend(instance.spec).text(rubric) or "nothing"
    if form == JSON:
        rules = [
            code_rule(rule) if isinstance(rule, MenuRule) else rule.model_dump(mode="json") for rule in rubric.all_rules
        ]
        return json.dumps({"action": "generate", "rubric": {"rules": rules}})
    if not all(isinstance(rule, MenuRule) for rule in rubric.all_rules):
        raise UserError(f"The ground truth of task '{task.id}' has rules that the menu cannot write; use form=json.")
    return rubric_text(rubric)


def _question(name: str, task: Task, turn: int) -> str:
    hidden = list(_hidden_topics(task))
    if name == "thorough":
        hidden += [topic for topic in TOPICS if topic not in hidden]
    return hidden[turn - 1] if name in ("expert", "thorough") and turn <= len(hidden) else ""


def _instance(task: Task) -> Instance | None:
    fields = task.fields
    if "number" not in fields:
        return None
    return make_instance(str(fields["family"]), int(fields["number"]), int(fields["level"]))


def _hidden_topics(task: Task) -> tuple[str, ...]:
    instance = _instance(task)
    return tuple(task.fields.get("hidden_topics", ())) if instance is None else instance.hidden_topics


def _rubric(name: str, task: Task, seed: int) -> Rubric:
    truth = ground_truth_of(task)
    if name in ("expert", "thorough"):
        return truth
    if name == "constant":
        return _menu(("avoid", "xyzzy", 2), ("mention", "xyzzy", 1))
    if name == "keywords":
        words = str(task.fields.get("question", "")).split(" (")[0].split(" for ")
        return _menu(*(("mention", word, 1) for word in (*words[-1:], words[0], "the", "checked", "total")))
    if name == "generic":
        return _menu(("complete", "", 2), ("words", "80", 2), ("rows", "5", 1), ("avoid", "maybe", 1))
    if name == "flatterer":
        return _menu(*(("mention", word, 3) for word in ("a", "the", "of", "with", "for", "to", "and", "is")))
    if name == "opposite":
        rules = [rule for rule in truth.all_rules if isinstance(rule, MenuRule)]
        turned = [
            (OPPOSITES.get(rule.kind, "avoid"), rule.parameter if rule.parameter else "todo", 2) for rule in rules
        ]
        return _menu(*turned)
    random = SeededRandom(f"random/{task.id}/{seed}")
    kinds = [random.choice(sorted(RULE_KINDS)) for _ in range(3)]
    values = {"text": "the", "number": "50", "": ""}
    return _menu(*((kind, values[RULE_KINDS[kind].parameter], random.between(1, 3)) for kind in kinds))


def _menu(*rules: tuple[str, str, int]) -> Rubric:
    return Rubric(rules=tuple(MenuRule(kind=kind, parameter=value, weight=weight) for kind, value, weight in rules))


def dropped_criteria(rubric: Rubric, share: float, key: str) -> Rubric:
    """Return the rubric with a random subset of its rules, at least two; `key` decides which."""
    if rubric.stages or rubric.num_rules <= 2:
        return rubric
    kept = [
        rule
        for index, rule in enumerate(rubric.rules)
        if SeededRandom(f"dropout/{key}/{index}").below(1000) >= 1000 * share
    ]
    if len(kept) < 2 or len(kept) == rubric.num_rules or not any(rule.weight > 0 for rule in kept):
        return rubric
    return rubric.model_copy(update={"rules": tuple(kept)})


def code_rule(rule: MenuRule) -> dict[str, object]:
    """Return a menu rule as a code rule in the JSON form."""
    return {
        "type": "code",
        "name": f"{rule.kind} {rule.parameter}".strip(),
        "description": RULE_KINDS[rule.kind].description,
        "weight": rule.weight,
        "code": f"{CODE_OF_KINDS}\n\ndef evaluate(task_input, candidate_output):\n"
        f"    return RULE_KINDS[{rule.kind!r}].evaluate(task_input, candidate_output, {rule.parameter!r})\n",
    }


def _kinds_source() -> str:
    """The source of the rule kinds, which uses the standard library only and so runs in the sandbox."""
    import inspect

    from practicum.environments.rubric import rule_kinds

    return inspect.getsource(rule_kinds).replace("from __future__ import annotations", "")


CODE_OF_KINDS = _kinds_source()
