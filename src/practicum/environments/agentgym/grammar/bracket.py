"""Affine's bracket grammar, `verb[arguments]`, and its translation into AgentGym's sentences and back.

An environment lists its verbs with their sentences, a `{}` for each argument:

    Brackets({"goto": ("go to {}",), "take": ("take {} from {}",), "look": ("look",)})

`take[mug 1, desk 2]` then means `take mug 1 from desk 2`. If a verb has several sentences, the number of arguments
selects one; of several with the same number the first is used, and the others are only translated back to the verb. A
verb without arguments may be written bare or with empty brackets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BRACKET = re.compile(r"([a-z_][a-z_ ]*?) ?\[ ?(.*?) ?\]")


@dataclass(frozen=True, slots=True)
class Call:
    """A parsed bracket command: a verb and the text in its brackets."""

    verb: str
    rest: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """The arguments, separated by commas."""
        return tuple(part.strip() for part in self.rest.split(",")) if self.rest else ()


def read_bracket(line: str) -> Call | None:
    """Parse a line as a bracket command; None if it is not one."""
    match = BRACKET.fullmatch(line)
    return Call(match[1], match[2]) if match else None


class Brackets:
    """An environment's bracket verbs and their sentences."""

    def __init__(self, sentences: Mapping[str, tuple[str, ...]]) -> None:
        self.sentences = dict(sentences)
        # Patterns with most fixed words first: `look at {}` must not match `look {}`.
        patterns = [(template, verb) for verb, templates in sentences.items() for template in templates]
        patterns.sort(key=lambda pair: -len(pair[0].replace("{}", "")))
        self._patterns = [
            (re.compile(re.escape(template).replace(r"\{\}", "(.+?)")), verb) for template, verb in patterns
        ]

    def sentence(self, call: Call) -> str | None:
        """Return the sentence of a bracket command; None if there is no such verb with that many arguments."""
        templates = {template.count("{}"): template for template in reversed(self.sentences.get(call.verb, ()))}
        arguments = call.arguments
        if len(arguments) not in templates and 1 in templates and arguments:
            arguments = (call.rest,)  # a comma within the only argument
        template = templates.get(len(arguments))
        if template is None or not all(arguments):
            return None
        return template.format(*arguments)

    def bare(self, line: str) -> str | None:
        """Return the sentence of a verb without arguments that is written without brackets."""
        return self.sentence(Call(line, "")) if line in self.sentences else None

    def write(self, sentence: str) -> str:
        """Write a sentence as a bracket command; one without a verb is unchanged."""
        for pattern, verb in self._patterns:
            match = pattern.fullmatch(sentence)
            if match:
                return f"{verb}[{', '.join(match.groups())}]"
        return sentence

    @property
    def usage(self) -> str:
        """The verbs as shown to the agent."""
        usages = []
        for verb, templates in self.sentences.items():
            most = max(template.count("{}") for template in templates)
            usages.append(f"{verb}[{', '.join('XYZ'[:most])}]")
        return " | ".join(usages)
