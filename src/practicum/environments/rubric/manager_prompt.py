"""What a manager is shown and how its replies are read: the menu, its short form, and JSON."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import BaseModel, Field, TypeAdapter, ValidationError

from practicum.environments.rubric.menu import Question, UnreadableReply, parse_reply
from practicum.environments.rubric.schema import MAX_GENERATED_RULES, CodeRule, GeneratedRubric, Rubric
from practicum.environments.rubric.short_form import Legend

MENU, SHORT, JSON = "menu", "short", "json"
FORMS = (MENU, SHORT, JSON)
MAX_JSON_CHARACTERS = 100_000
JSON_INSTRUCTIONS = (
    "You manage a piece of work for a client. Write a rubric that scores the finished work as this client would. You "
    "may first ask the client questions, one per turn; each costs a little. Reply with JSON only: either "
    '{"action": "ask", "question": TEXT} or {"action": "generate", "rubric": {"rationale": TEXT, "rules": [...]}}. '
    'A rule is {"type": "code", "name": TEXT, "description": TEXT, "weight": NUMBER, "code": TEXT}, where the code '
    "defines evaluate(task_input: str, candidate_output: str) -> float from 0 to 1 with Python's standard library"
)
JUDGE_INSTRUCTIONS = (
    ', or {"type": "llm_judge", "name": TEXT, "description": TEXT, "weight": NUMBER, "judge_prompt": TEXT}'
)
TABLES = "Tables have | between cells."


@dataclass(frozen=True, slots=True)
class Generated:
    """A reply that is a rubric."""

    rubric: Rubric


class _Ask(BaseModel):
    action: Literal["ask"]
    question: str = Field(min_length=1, max_length=1000)


class _CodeRubric(BaseModel):
    rationale: str | None = None
    rules: tuple[CodeRule, ...] = Field(min_length=1, max_length=MAX_GENERATED_RULES)


class _GenerateCode(BaseModel):
    action: Literal["generate"]
    rubric: _CodeRubric


class _Generate(BaseModel):
    action: Literal["generate"]
    rubric: GeneratedRubric


def json_replies(has_judge: bool = False) -> dict[str, Any]:
    """Return the response format of all replies of the JSON form: constrained decoding by `agent.response_format`."""
    adapter: TypeAdapter[Any] = TypeAdapter(_Ask | _Generate if has_judge else _Ask | _GenerateCode)
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": adapter.json_schema()}}


def turns_text(turns_left: int) -> str:
    return "1 turn left: write" if turns_left == 1 else f"{turns_left} turns left"


def prompt_of(form: str, goal: str, request: str, turns: int, has_judge: bool = False) -> str:
    """Return the first prompt; judge rules are offered where there is a judge."""
    if form == JSON:
        instructions = f"{JSON_INSTRUCTIONS}{JUDGE_INSTRUCTIONS if has_judge else ''}. {TABLES}"
        return f"{instructions}\n\nWork: {goal}\nClient: {request}\n{_json_turns(turns)}"
    if form == SHORT:
        return f"{goal}\n{request}\n{turns}"
    return f"{goal}\n{request}\n{turns_text(turns)}"


def next_prompt(form: str, answer: str, turns_left: int) -> str:
    """Return the prompt after an answer of the stakeholder."""
    if form == SHORT:
        return f"{answer}\n{turns_left}"
    return f"Client: {answer}\n{_json_turns(turns_left)}" if form == JSON else f"{answer}\n{turns_text(turns_left)}"


def _json_turns(turns_left: int) -> str:
    return "This is your last turn: generate the rubric." if turns_left == 1 else f"You have {turns_left} turns."


def parse(form: str, text: str, legend: Legend | None = None) -> Question | Generated:
    """Read a manager's reply; UnreadableReply says what is wrong with it."""
    if form == JSON:
        return _parse_json(text)
    reply = parse_reply(text) if legend is None else legend.parse(text)
    return reply if isinstance(reply, Question) else Generated(reply)


def extract_json(text: str) -> str:
    """Return the text from the first `{` to the last `}`; the whole text where there are none."""
    begin, end = text.find("{"), text.rfind("}") + 1
    return text[begin:end] if begin != -1 and end > begin else text


def _parse_json(text: str) -> Question | Generated:
    try:
        value = json.loads(extract_json(text[:MAX_JSON_CHARACTERS]))
    except (ValueError, RecursionError):
        raise UnreadableReply("the reply is no JSON") from None
    if not isinstance(value, dict):
        raise UnreadableReply("the reply is no JSON object")
    if value.get("action") == "ask" and isinstance(value.get("question"), str):
        return Question(value["question"][:1000])
    try:
        generated = GeneratedRubric.model_validate(value.get("rubric", value))
    except ValidationError as error:
        first = error.errors()[0]
        location = ".".join(map(str, first["loc"]))
        raise UnreadableReply(f"the rubric is not valid: {location}: {first['msg']}") from None
    return Generated(generated.rubric())
