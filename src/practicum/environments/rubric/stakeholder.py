"""Stakeholders: they have preferences that they do not write down, and answer questions about them.

The scripted one is deterministic: it states some preferences with its request, the others when it is asked about their
topic, each once. A model may speak for it instead, given the same preferences and an exemplar of the work.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from practicum.environment import ChatModel, Message
from practicum.environments.rubric.instances import Instance
from practicum.environments.rubric.rule_kinds import RULE_KINDS, TOPICS
from practicum.environments.rubric.schema import CodeRule, JudgeRule, MenuRule, Rubric, RunCondition
from practicum.environments.rubric.short_form import Legend, as_items, hints
from practicum.environments.rubric.validation import EvaluationResult, ValidationEngine
from practicum.environments.rubric.workflow import CommunicationService, Workflow
from practicum.utils.seeded_random import SeededRandom

IMPORTANCE = {1: "useful", 2: "important", 3: "essential"}
PHRASES: Mapping[str, tuple[str, str]] = {
    "section": ("a section {} is {}", "the heading {} is {}"),
    "column": ("a column {} is {}", "the column {} is {}"),
    "function": ("a function {} is {}", "having {} defined is {}"),
    "docstrings": ("docstrings are {}", "a docstring per function is {}"),
    "total": ("the total of {} is {}", "a right sum of {} is {}"),
    "sorted": ("sorting by {} is {}", "rows ordered by {} are {}"),
    "rows": ("at least {} rows are {}", "a list of {} entries is {}"),
    "complete": ("no gaps is {}", "leaving nothing open is {}"),
    "mention": ("naming {} is {}", "the word {} is {}"),
    "avoid": ("leaving out {} is {}", "never saying {} is {}"),
    "words": ("at most {} words is {}", "staying under {} words is {}"),
    "lines": ("at most {} lines is {}", "staying under {} lines is {}"),
}
TOPIC_WORDS: Mapping[str, tuple[str, ...]] = {
    "structure": ("structure", "section", "heading", "column", "function", "docstring", "layout", "parts"),
    "figures": ("figures", "total", "sum", "number", "sort", "order", "row", "item", "gap", "complete", "missing"),
    "wording": ("wording", "word choice", "phrase", "term", "mention", "name", "avoid", "say", "tone", "language"),
    "length": ("length", "long", "short", "brief", "how many words", "how many lines", "limit", "size"),
}
"""What a question in free text is recognised by; each topic's own name is the first."""
MAX_STATED_RULES = 20
MAX_PHRASE_CHARACTERS = 400
NO_VIEW = "no more on that."
SYSTEM = (
    "You are a client who ordered a piece of work. Answer the question of the project manager in one or two sentences, "
    "in character, from your preferences below; say nothing that you were not asked about and never list them all.\n"
)


def topic_of(rule: CodeRule | JudgeRule | MenuRule) -> str:
    """Return what a rule is about; only rules of the menu have a topic, others are never held back."""
    return RULE_KINDS[rule.kind].topic if isinstance(rule, MenuRule) else ""


def asked_topic(question: str) -> str:
    """Return the topic that a question is about, "" for none: the first that it names, else the first word of one."""
    text = question.lower()
    named = {topic: text.find(topic) for topic in TOPICS if topic in text}
    if named:
        return min(named, key=named.__getitem__)
    hits = {
        topic: match.start()
        for topic, words in TOPIC_WORDS.items()
        if (match := re.search(rf"\b(?:{'|'.join(words)})", text)) is not None
    }
    return min(hits, key=hits.__getitem__) if hits else ""


def phrase(rule: MenuRule, random: SeededRandom) -> str:
    """Return a preference as the stakeholder says it."""
    importance = IMPORTANCE[max(1, min(3, round(rule.weight)))]
    words = (rule.parameter, importance) if rule.parameter else (importance,)
    return random.choice(PHRASES[rule.kind]).format(*words)


class Stakeholder:
    """Someone who ordered work: hidden preferences, an exemplar of what they want, and the rubrics made for them."""

    def __init__(
        self,
        name: str,
        preferences: Rubric,
        hidden_topics: Sequence[str] = (),
        exemplar: str = "",
        model: ChatModel | None = None,
        seed: int = 0,
        legend: Legend | None = None,
    ) -> None:
        """With a `legend` it speaks the short form."""
        self.name, self.preferences, self.exemplar, self.model, self.seed = name, preferences, exemplar, model, seed
        self.hidden_topics, self.legend = tuple(hidden_topics), legend
        self.generated_rubrics: list[Rubric] = []
        self.answered: set[str] = set()
        self.num_items = 0
        """Preferences that were listed in the short form so far."""

    @classmethod
    def of(cls, instance: Instance, exemplar: str = "", model: ChatModel | None = None) -> Stakeholder:
        """Return the stakeholder of an instance."""
        return cls(instance.stakeholder, instance.preferences, instance.hidden_topics, exemplar, model, instance.number)

    def request(self) -> str:
        """Return what the stakeholder says at first: what it states by itself, and what it can be asked about."""
        stated = [rule for rule in self._rules() if topic_of(rule) not in self.hidden_topics]
        if self.legend is not None:
            return "\n".join(filter(None, (self._as_items(stated), hints(self.hidden_topics))))
        preferences = "; ".join(self._phrase(rule) for rule in stated) or "I have a few wishes"
        more = f" More on {', '.join(self.hidden_topics)}." if self.hidden_topics else ""
        return f"{preferences}.{more}"

    def scripted_answer(self, topic: str) -> str:
        """Return the preferences of a topic; those stated before, and topics asked about before, are not repeated."""
        if topic in self.answered or topic not in self.hidden_topics:
            self.answered.add(topic)
            return NO_VIEW
        self.answered.add(topic)
        rules = [rule for rule in self._rules() if topic_of(rule) == topic]
        if self.legend is not None:
            return self._as_items(rules)
        return "; ".join(self._phrase(rule) for rule in rules) + "."

    async def answer(self, question: str) -> str:
        """Answer a question: a model in character, or the script, which looks for a topic in it."""
        if self.model is None:
            return self.scripted_answer(asked_topic(question))
        normalised = " ".join(question.lower().split())
        if normalised in self.answered:
            return NO_VIEW
        self.answered.add(normalised)
        preferences = "\n".join(self._phrase(rule) for rule in self._rules())
        system = f"{SYSTEM}Preferences:\n{preferences}\nWork as you would like it:\n{self.exemplar}"
        reply = await self.model.reply([Message("system", system), Message("user", question)], seed=self.seed)
        return reply.text.strip()

    async def policy_step(self, communication: CommunicationService, timestep: int = 0) -> int:
        """Answer every question that was sent and not yet answered; return how many there were."""
        questions = [message for message in communication.unread(self.name) if message.kind == "question"]
        for question in questions:
            answer = await self.answer(question.content)
            communication.send(self.name, question.sender, answer, "answer", timestep)
        return len(questions)

    async def evaluate_for_timestep(
        self, workflow: Workflow, timestep: int = 0, engine: ValidationEngine | None = None
    ) -> EvaluationResult:
        """Score the workflow's outputs by the rubrics that were generated for this stakeholder."""
        scoring = engine or ValidationEngine()
        return await scoring.evaluate_timestep(
            workflow, self.generated_rubrics, timestep, cadence=RunCondition.EACH_TIMESTEP
        )

    def _rules(self) -> list[CodeRule | JudgeRule | MenuRule]:
        """What it cares about; of a very long rubric the rules with the highest weights, in their order."""
        rules = self.preferences.all_rules
        heaviest = sorted(range(len(rules)), key=lambda index: -rules[index].weight)[:MAX_STATED_RULES]
        return [rules[index] for index in sorted(heaviest)]

    def _as_items(self, rules: Sequence[CodeRule | JudgeRule | MenuRule]) -> str:
        """The next items of the list of preferences that the short form makes over a dialogue."""
        first, self.num_items = self.num_items, self.num_items + len(rules)
        return as_items([self._phrase(rule) for rule in rules], first)

    def _phrase(self, rule: CodeRule | JudgeRule | MenuRule) -> str:
        if not isinstance(rule, MenuRule):
            largest = max(rule.weight for rule in self.preferences.all_rules)
            text = rule.description or (rule.judge_prompt if isinstance(rule, JudgeRule) else rule.name)
            importance = IMPORTANCE[max(1, round(3 * rule.weight / largest))]
            return f"{' '.join(text.split())[:MAX_PHRASE_CHARACTERS]}: {importance}"
        random = SeededRandom(f"phrase/{self.name}/{self.seed}/{rule.kind}/{rule.parameter}")
        return phrase(rule, random) if self.legend is None else self.legend.phrase(rule, random)
