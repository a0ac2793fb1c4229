"""The founding paper's bracket grammar, `verb[arguments]`, and its translation into AgentGym's sentences and back.

A world lists its verbs with the sentences they stand for, a `{}` for each argument:

    Brackets({"goto": ("go to {}",), "take": ("take {} from {}",), "look": ("look",)})

`take[mug 1, desk 2]` then means `take mug 1 from desk 2`. A verb may stand for several sentences; how many
arguments are given tells which; of several with as many arguments the first is meant, and the others are only written
back as the verb. A verb without arguments may be written bare or with empty brackets.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

BRACKET = re.compile(r"([a-z_][a-z_ ]*?) ?\[ ?(.*?) ?\]")


@dataclass(frozen=True, slots=True)
class Call:
    """A bracket command as read: a verb, and the text within its brackets."""

    verb: str
    rest: str

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the commas part."""
        return tuple(part.strip() for part in self.rest.split(",")) if self.rest else ()


def read_bracket(line: str) -> Call | None:
    """The bracket command that a line is, if it is one."""
    found = BRACKET.fullmatch(line)
    return Call(found[1], found[2]) if found else None


class Brackets:
    """A world's bracket verbs and the sentences they stand for."""

    def __init__(self, sentences: Mapping[str, tuple[str, ...]]) -> None:
        self.sentences = dict(sentences)
        # The pattern with most of its own words first: `look at {}` must not be taken for `look {}`.
        patterns = [(template, verb) for verb, templates in sentences.items() for template in templates]
        patterns.sort(key=lambda pair: -len(pair[0].replace("{}", "")))
        self._patterns = [
            (re.compile(re.escape(template).replace(r"\{\}", "(.+?)")), verb) for template, verb in patterns
        ]

    def sentence(self, call: Call) -> str | None:
        """The sentence that a bracket command stands for; None if there is no such verb with so many arguments."""
        templates = {template.count("{}"): template for template in reversed(self.sentences.get(call.verb, ()))}
        arguments = call.arguments
        if len(arguments) not in templates and 1 in templates and arguments:
            arguments = (call.rest,)  # a comma that belongs to the one argument
        template = templates.get(len(arguments))
        if template is None or not all(arguments):
            return None
        return template.format(*arguments)

    def bare(self, line: str) -> str | None:
        """The sentence of a verb that takes no argument, written without brackets."""
        return self.sentence(Call(line, "")) if line in self.sentences else None

    def write(self, sentence: str) -> str:
        """A sentence in brackets; one that no verb stands for is left as it is."""
        for pattern, verb in self._patterns:
            found = pattern.fullmatch(sentence)
            if found:
                return f"{verb}[{', '.join(found.groups())}]"
        return sentence

    @property
    def usage(self) -> str:
        """The verbs as an agent is shown them."""
        shown = []
        for verb, templates in self.sentences.items():
            most = max(template.count("{}") for template in templates)
            shown.append(f"{verb}[{', '.join('XYZ'[:most])}]")
        return " | ".join(shown)
