"""Structured generation: extraction, tries, usage, models by name."""

from __future__ import annotations

import re

import pytest
import torch
from pydantic import BaseModel

from practicum.environment import Message, Usage
from practicum.environments.rubric.manager_prompt import extract_json
from practicum.errors import UserError
from practicum.rubric_manager import GeneratedRubric, StructuredOutputError, generate_structured
from practicum.rubric_manager.manager import Decision
from practicum.rubric_manager.structured import make_model, response_format, schema_prompt, with_temperature
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
    with pytest.raises(StructuredOutputError, match="no valid City after 2 tries") as exc_info:
        await generate_structured("", "Name one.", City, model=ScriptedModel("no", "still no"), max_tries=2)
    assert exc_info.value.text == "still no"
    assert exc_info.value.usage == Usage(20, 6), "the tries that failed count too"


async def test_the_temperature_is_that_of_the_call() -> None:
    model = make_model("gpt-4o", url="http://127.0.0.1:9/v1")
    assert with_temperature(model, 0.3).sampling.temperature == 0.3
    assert with_temperature(model, 0.3).engine is model.engine
    local = make_model(use_local=True, model_path="tiny", max_tokens=12)
    texts = []
    for temperature in (0.0, 0.0, 5.0):
        with pytest.raises(StructuredOutputError) as exc_info:
            await generate_structured("", "Name one.", City, temperature, seed=1, model=local, max_tries=1)
        texts.append(exc_info.value.text)
        assert exc_info.value.usage.completion_tokens == 12
    assert texts[0] == texts[1] != texts[2]
    with pytest.raises(UserError, match="leave temperature out"):
        await generate_structured("", "Name one.", City, 0.3, model=ScriptedModel("{}"))
    with pytest.raises(UserError, match="leave one out"):
        await generate_structured("", "Name one.", City, model=local, use_local=True)
    await local.engine.close()


async def test_replies_of_a_local_model_have_the_form_of_a_rubric() -> None:
    """Constrained decoding: a model from random weights writes a rubric that only its length can spoil."""
    local = make_model(use_local=True, model_path="tiny", max_tokens=60)
    reply = await local.reply(schema_prompt("", "Write.", Decision), response_format=response_format(Decision), seed=1)
    assert reply.text.startswith("{")
    rubric = await local.reply([Message("user", "Write.")], response_format=response_format(GeneratedRubric), seed=1)
    assert re.match(r'\{ ?"(rationale|rubric_id|rules)"', rubric.text)
    await local.engine.close()


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
    assert next(make_model(dtype="bfloat16").engine.decoder.model.parameters()).dtype is torch.bfloat16  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"dtype=flot32 is not a dtype of weights. Did you mean 'float32'"):
        make_model(dtype="flot32")
