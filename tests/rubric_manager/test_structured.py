"""Structured generation: extraction, tries, usage, models by name."""

from __future__ import annotations

import pytest
from pydantic import BaseModel

from practicum.environment import Usage
from practicum.environments.rubric.manager_prompt import extract_json
from practicum.errors import UserError
from practicum.rubric_manager import StructuredOutputError, generate_structured
from practicum.rubric_manager.structured import make_model
from tests.scripted_model import ScriptedModel


class City(BaseModel):
    name: str
    size: int


def test_extraction_is_from_the_first_to_the_last_brace() -> None:
    assert extract_json('Sure: {"a": {"b": 1}} done') == '{"a": {"b": 1}}'
    assert extract_json("none") == "none"
    assert extract_json("} {") == "} {"


async def test_a_value_with_usage_and_the_schema_in_prompt_and_request() -> None:
    model = ScriptedModel('Here: {"name": "Oslo", "size": 7}.')
    value, usage = await generate_structured(
        "You know cities.", "Name one.", City, seed=5, return_usage=True, model=model
    )
    assert value == City(name="Oslo", size=7)
    assert usage == Usage(10, 3)
    (messages, response_format, seed), *_ = model.asked
    assert [message.role for message in messages] == ["system", "user"]
    assert '"size"' in messages[1].content
    assert response_format["json_schema"]["schema"] == City.model_json_schema()
    assert seed == 5


async def test_invalid_output_is_tried_again_with_another_seed_and_then_a_typed_error() -> None:
    model = ScriptedModel("no", '{"name": "Oslo"}', '{"name": "Oslo", "size": 7}')
    value, usage = await generate_structured("", "Name one.", City, seed=1, return_usage=True, model=model)
    assert value.size == 7
    assert usage.completion_tokens == 9
    assert len({seed for _, _, seed in model.asked}) == 3
    with pytest.raises(StructuredOutputError, match="no valid City after 2 tries") as caught:
        await generate_structured("", "Name one.", City, model=ScriptedModel("no", "still no"), max_tries=2)
    assert caught.value.text == "still no"


def test_models_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UserError, match="OPENAI_BASE_URL"):
        make_model("gpt-4o")
    with pytest.raises(UserError, match="model_path"):
        make_model(use_local=True)
    assert make_model("gpt-4o", url="http://127.0.0.1:9/v1").sampling.max_tokens == 4096
    monkeypatch.setenv("USE_LOCAL_MODELS", "true")
    monkeypatch.setenv("LOCAL_MODEL_PATH", "tiny")
    assert make_model("gpt-4o").engine.name == "local"
