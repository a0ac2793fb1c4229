"""What an episode was about, in few words: question, target, answer and tools, for the list."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from practicum.trajectory import Trajectory
from practicum.utils.terminal import escape_invisible

QUESTION_FIELDS = ("question", "goal", "instruction", "request", "problem", "prompt", "task")
KIND_FIELDS = ("template", "kind", "family", "category", "type", "level", "difficulty", "subject", "site")
"""Fields of a task that say of which kind it is; the first one that it has is used."""
TARGET_FIELDS = ("answer", "target", "expected", "solution", "label")
MAX_QUESTION_CHARACTERS, MAX_ANSWER_CHARACTERS, MAX_ERROR_CHARACTERS = 240, 120, 160
MAX_TOOLS, MAX_TOOL_CHARACTERS = 12, 60
TOOL_ERROR = re.compile(r"(?:Observation: |Output:\n)?Error")
"""How the observation of a tool begins that failed, in any reply format."""
MAX_TOOL_ERRORS, MAX_TOOL_ERROR_CHARACTERS = 6, 100
OTHER_ERRORS = "other errors"
"""What the errors of a tool beyond the first few texts of an episode are counted as."""
ERROR_PREFIX = re.compile(r"^(?:Observation: |Output:\n)?Error:?")
QUOTED = re.compile(
    r"(?<!\w)(?:'[^'\n]{1,200}'|\"[^\"\n]{1,200}\"|`[^`\n]{1,200}`|‘[^’\n]{1,200}’|“[^”\n]{1,200}”)(?!\w)"
)
NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


@dataclass(frozen=True, slots=True)
class RowText:
    """`last_action`: the tool that was called last, or how the last reply was used. `tools`: calls and failed calls."""

    question: str = ""
    target: str = ""
    answer: str = ""
    error: str = ""
    last_action: str = ""
    tools: dict[str, tuple[int, int]] = field(default_factory=dict)
    kind: str = ""
    """The kind of its task, as in "level 3"."""
    tool_errors: dict[str, dict[str, int]] = field(default_factory=dict)
    """Failed calls per tool and per text of the error, in which names and numbers are left out."""

    def record(self) -> list[Any]:
        """The values in the order of TEXT_FIELDS."""
        return [
            self.question,
            self.target,
            self.answer,
            self.error,
            self.last_action,
            self.tools,
            self.kind,
            self.tool_errors,
        ]


NO_TEXT = RowText()
TEXT_FIELDS = ("question", "target", "answer", "error", "last", "tools", "kind", "toolErrors")


def row_text(episode: Trajectory) -> RowText:
    """The words of one episode, cut to what a list shows; white space is joined, invisible characters are escaped."""
    last = episode.turns[-1] if episode.turns else None
    unusable = [str(turn.action.error) for turn in episode.turns if turn.action.error is not None]
    error = str(episode.error) if episode.error is not None else unusable[-1] if unusable else ""
    answer = (last.action.content or last.reply) if last is not None else ""
    tools, tool_errors = _tools(episode)
    return RowText(
        question=_short(question_of(episode), MAX_QUESTION_CHARACTERS),
        target=_short(target_of(episode), MAX_ANSWER_CHARACTERS),
        answer=_short(answer, MAX_ANSWER_CHARACTERS),
        error=_short(error, MAX_ERROR_CHARACTERS),
        last_action=_short(_last_action(episode), MAX_TOOL_CHARACTERS),
        tools=tools,
        kind=_short(_kind(episode), MAX_TOOL_CHARACTERS),
        tool_errors=tool_errors,
    )


def question_of(episode: Trajectory) -> str:
    """What the task asks: a field of it, or else the last thing that the user said before the first reply."""
    user_texts = [message.content for turn in episode.turns[:1] for message in turn.messages if message.role == "user"]
    return _first_text(dict(episode.task.fields), QUESTION_FIELDS) or (user_texts[-1] if user_texts else "")


def target_of(episode: Trajectory) -> str:
    return _first_text(dict(episode.task.fields), TARGET_FIELDS)


def _kind(episode: Trajectory) -> str:
    fields = dict(episode.task.fields)
    return next((f"{name} {value}" for name in KIND_FIELDS if (value := _first_text(fields, (name,)))), "")


def _last_action(episode: Trajectory) -> str:
    """The tool that the last reply called, "answer" for one without a call, "unusable reply" where it did not parse."""
    if not episode.turns:
        return "no reply"
    action = episode.turns[-1].action
    if action.error is not None:
        return "unusable reply"
    return str(action.calls[-1].name) if action.calls else "answer"


def _tools(episode: Trajectory) -> tuple[dict[str, tuple[int, int]], dict[str, dict[str, int]]]:
    """Calls and failed calls per tool, and failed calls per text of the error.

    The observation of a call is in the messages of the next turn.
    """
    calls, errors = Counter[str](), dict[str, Counter[str]]()
    answers = [turn.messages for turn in episode.turns[1:]] + [episode.closing]
    for turn, messages in zip(episode.turns, answers, strict=False):
        names = [tool_name(call.name) for call in turn.action.calls]
        calls.update(names)
        named = any(message.role == "tool" for message in messages)
        if named:
            pairs = [(tool_name(message.name or ""), message) for message in messages if message.role == "tool"]
        else:  # a format without a role for tools: one message for each call
            pairs = list(zip(names, messages, strict=True)) if len(names) == len(messages) else []
        for name, message in pairs:
            if TOOL_ERROR.match(message.content):
                _count_error(errors.setdefault(name, Counter()), tool_error_text(message.content))
    used = {
        name: (count, min(count, errors[name].total() if name in errors else 0))
        for name, count in calls.most_common(MAX_TOOLS)
    }
    return used, {name: dict(errors[name].most_common()) for name in used if name in errors}


def _count_error(texts: Counter[str], text: str) -> None:
    texts[text if text in texts or len(texts) < MAX_TOOL_ERRORS else OTHER_ERRORS] += 1


def tool_error_text(observation: str) -> str:
    """The first line of a tool's error with quoted names and numbers left out, so that those of one cause are equal."""
    beginning = observation[: 8 * MAX_TOOL_ERROR_CHARACTERS]
    lines = ERROR_PREFIX.sub("", beginning, count=1).strip().splitlines() or ["no text"]
    return _short(NUMBER.sub("#", QUOTED.sub("‘…’", lines[0])), MAX_TOOL_ERROR_CHARACTERS)


def tool_name(name: object) -> str:
    """The name of a tool as the page shows it."""
    return _short(str(name), MAX_TOOL_CHARACTERS)


def _first_text(fields: dict[str, Any], names: tuple[str, ...]) -> str:
    for name in names:
        value = fields.get(name)
        if isinstance(value, str | int | float) and not isinstance(value, bool) and str(value):
            return str(value)
    return ""


def _short(text: str, limit: int) -> str:
    """The beginning of a text on one line."""
    line = " ".join(text[: 4 * limit].split())
    return escape_invisible(line if len(line) <= limit else line[: limit - 1] + "…")
