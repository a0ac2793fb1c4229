"""Twenty JSON schemas whose shortest and longest objects are bounded, so that a budget of tokens can suffice."""

from __future__ import annotations

from typing import Any


def obj(required: list[str] | None = None, **properties: Any) -> dict[str, Any]:
    needed = list(properties) if required is None else required
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}


TEXT = {"type": "string", "maxLength": 10}
DIGIT = {"type": "integer", "minimum": 0, "maximum": 9}
FLAG = {"type": "boolean"}

SCHEMAS: tuple[dict[str, Any], ...] = (
    obj(answer=DIGIT),
    obj(name=TEXT, age={"type": "integer", "minimum": 0, "maximum": 120}),
    obj(ok=FLAG, reason=TEXT),
    obj(colour={"enum": ["red", "green", "blue"]}),
    obj(score={"type": "integer", "minimum": -5, "maximum": 5}, critical=FLAG),
    obj(tags={"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4}),
    obj(point=obj(x=DIGIT, y=DIGIT)),
    obj(points={"type": "array", "items": obj(x=DIGIT, y=DIGIT), "minItems": 1, "maxItems": 3}),
    obj(value={"anyOf": [DIGIT, TEXT, {"type": "null"}]}),
    obj(kind={"const": "call"}, arguments=obj(expression={"type": "string", "pattern": "^[0-9]{1,3}[+*][0-9]{1,3}$"})),
    obj(date={"type": "string", "pattern": "^20[0-9]{2}-[01][0-9]-[0-3][0-9]$"}),
    obj(["id"], id=DIGIT, note=TEXT),
    obj(matrix={"type": "array", "items": {"type": "array", "items": DIGIT, "minItems": 2, "maxItems": 2},
                "minItems": 2, "maxItems": 2}),
    {"type": "array", "items": DIGIT, "minItems": 3, "maxItems": 3},
    {"enum": ["yes", "no", 1, None]},
    {"oneOf": [obj(circle=DIGIT), obj(square=FLAG)]},
    obj(nothing={"type": "null"}, text={"type": "string", "minLength": 3, "maxLength": 5}),
    obj(a=obj(b=obj(c=obj(d=DIGIT)))),
    obj(even={"type": "integer", "minimum": 10, "maximum": 99}, odd={"type": "integer", "minimum": -3, "maximum": 3}),
    obj(pair={"type": "array", "prefixItems": [TEXT, DIGIT], "items": False, "minItems": 2}),
)  # fmt: skip


def response_format(schema: dict[str, Any]) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "reply", "schema": schema}}
