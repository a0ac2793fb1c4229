"""Replies that must have a response format: always valid, with the log-probs of what could be sampled."""

from __future__ import annotations

import asyncio
import json
import re
from dataclasses import replace
from typing import Any

import jsonschema
import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from practicum.chat.grammar import unpack_masks
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Message, Observation
from practicum.errors import EngineError, UserError
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.policy import Policy
from practicum.task import Task
from practicum.trajectory import StopReason
from tests.engines.local.schemas import SCHEMAS, response_format

TASK = Task("t", "x", "train")
SUFFICIENT = 160
"""Tokens that suffice for any of the schemas: a model that has not been trained spells most texts byte by byte."""


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return loader.load_tiny(0).model


def request(form: dict[str, Any] | None, seed: int, max_tokens: int = SUFFICIENT, **sampling: Any) -> Request:
    prompt = (1, *range(30, 34 + seed % 7))
    return Request(
        prompt, Sampling(seed=seed, max_tokens=max_tokens, **sampling), TASK, Observation(), (), response_format=form
    )


def generate(engine: LocalEngine, requests: list[Request]) -> list[Generation]:
    async def run() -> list[Generation]:
        try:
            return list(await asyncio.gather(*map(engine.generate, requests)))
        finally:
            await engine.close()

    return asyncio.run(run())


def make_engine(model: LlamaForCausalLM, renderer: Renderer, **options: Any) -> LocalEngine:
    return LocalEngine(Decoder(model), renderer, **{"max_batch": 64, "threads": 1, **options})


def check_valid(renderer: Renderer, schema: dict[str, Any], reply: Generation) -> None:
    assert reply.stop_reason is StopReason.END
    jsonschema.validate(json.loads(renderer.decode(reply.ids)), schema)


def sample_schemas(model: LlamaForCausalLM, renderer: Renderer, per_schema: int, max_tokens: int) -> list[Generation]:
    requests = [request(response_format(schema), seed, max_tokens) for seed in range(per_schema) for schema in SCHEMAS]
    return generate(make_engine(model, renderer), requests)


def test_a_model_that_was_not_trained_writes_valid_json(model: LlamaForCausalLM, renderer: Renderer) -> None:
    for index, reply in enumerate(sample_schemas(model, renderer, 8, SUFFICIENT)):
        check_valid(renderer, SCHEMAS[index % len(SCHEMAS)], reply)


@pytest.mark.slow
def test_ten_thousand_samples_are_valid(model: LlamaForCausalLM, renderer: Renderer) -> None:
    for index, reply in enumerate(sample_schemas(model, renderer, 10_000 // len(SCHEMAS), SUFFICIENT)):
        check_valid(renderer, SCHEMAS[index % len(SCHEMAS)], reply)
    num_cut = 0
    for index, reply in enumerate(sample_schemas(model, renderer, 10_000 // len(SCHEMAS), 12)):
        if reply.stop_reason is StopReason.LENGTH:
            num_cut += 1
        else:
            check_valid(renderer, SCHEMAS[index % len(SCHEMAS)], reply)
    assert 1000 < num_cut < 9000


@pytest.mark.parametrize("steps", [1, 3])
def test_other_forms_and_free_replies_share_a_batch(model: LlamaForCausalLM, renderer: Renderer, steps: int) -> None:
    forms: list[dict[str, Any]] = [
        {"type": "regex", "regex": "[0-9]{3}-(ab|cd)"},
        {"type": "choice", "choice": ['say "yes"', "no", "nö"]},
        {"type": "grammar", "grammar": 'start: "<" /[a-c]{1,4}/ ">"'},
        response_format(SCHEMAS[0]),
    ]
    free = [request(None, seed, 24) for seed in range(6)]
    alone = generate(make_engine(model, renderer), free)
    constrained = [request(form, seed) for seed in range(3) for form in forms]
    replies = generate(make_engine(model, renderer, steps_per_decode=steps), [*free, *constrained])
    assert [(item.ids, item.logprobs) for item in replies[:6]] == [(item.ids, item.logprobs) for item in alone]
    assert [item.response_format for item in replies] == [item.response_format for item in [*free, *constrained]]
    for seed in range(3):
        texts = [renderer.decode(reply.ids) for reply in replies[6 + 4 * seed : 10 + 4 * seed]]
        assert re.fullmatch("[0-9]{3}-(ab|cd)", texts[0])
        assert texts[1] in ('say "yes"', "no", "nö")
        assert re.fullmatch("<[a-c]{1,4}>", texts[2])
        assert 0 <= json.loads(texts[3])["answer"] <= 9
    assert all(reply.stop_reason is StopReason.END for reply in replies[6:])


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.0}, {"temperature": 0.7}, {"top_k": 3, "top_p": 0.9}])
def test_log_probs_are_those_of_the_tokens_that_could_be_sampled(
    model: LlamaForCausalLM, renderer: Renderer, sampling: dict[str, float]
) -> None:
    form = response_format(SCHEMAS[1])
    batch = [request(form, seed, **sampling) for seed in range(4)]
    exact = loader.load_tiny(0).model.double()
    for item, reply in zip(batch, generate(make_engine(model, renderer), batch), strict=True):
        (masks,) = renderer.grammars.token_masks([(form, reply.ids)])
        allowed = torch.from_numpy(unpack_masks(masks.table, 772)[masks.rows])
        with torch.no_grad():
            rows = exact(torch.tensor([[*item.ids, *reply.ids]])).logits[0, len(item.ids) - 1 : -1]
        logprobs = (rows.masked_fill(~allowed, -torch.inf) / (item.sampling.temperature or 1.0)).log_softmax(-1)
        if item.sampling.top_k:
            is_kept = logprobs >= logprobs.topk(item.sampling.top_k, -1).values[:, -1:]
            ordered, order = logprobs.sort(-1, descending=True)
            nucleus = ordered.exp().cumsum(-1) - ordered.exp() < item.sampling.top_p
            is_kept &= torch.zeros_like(is_kept).scatter(-1, order, nucleus)
            logprobs = logprobs.masked_fill(~is_kept, -torch.inf).log_softmax(-1)
        ids = torch.tensor(reply.ids)[:, None]
        assert reply.logprobs is not None
        assert reply.logprobs == pytest.approx(logprobs.gather(-1, ids)[:, 0].tolist(), abs=1e-4)
        if not item.sampling.temperature:
            assert ids[:, 0].tolist() == logprobs.argmax(-1).tolist()


def test_a_reply_that_is_cut_is_marked_and_follows_the_form_so_far(model: LlamaForCausalLM, renderer: Renderer) -> None:
    form = {"type": "regex", "regex": "a{50}"}
    (reply,) = generate(make_engine(model, renderer), [request(form, 0, 7)])
    assert reply.stop_reason is StopReason.LENGTH
    assert re.fullmatch("a{7,49}", renderer.decode(reply.ids))


def test_masks_that_are_derived_again_are_those_that_were_sampled_under(
    model: LlamaForCausalLM, renderer: Renderer
) -> None:
    replies = sample_schemas(model, renderer, 1, SUFFICIENT)
    formats = [reply.response_format for reply in replies]
    derived = renderer.grammars.token_masks(
        [(form, item.ids) for form, item in zip(formats, replies, strict=True) if form]
    )
    for form, reply, masks in zip(formats, replies, derived, strict=True):
        assert form is not None
        matcher, row = renderer.grammars.matcher(form), np.zeros((1, renderer.grammars.num_words), dtype=np.int32)
        for position, token in enumerate(reply.ids):
            renderer.grammars.compute_masks([(matcher, 0)], row)
            assert np.array_equal(masks.table[masks.rows[position]], row[0])
            matcher.pending = token
    with pytest.raises(UserError, match=r"Token 0 of a reply \(5\) is not allowed by its response format"):
        renderer.grammars.token_masks([(response_format(SCHEMAS[0]), (5, 6))])


def test_a_form_that_is_not_valid_is_refused(model: LlamaForCausalLM, renderer: Renderer) -> None:
    engine = make_engine(model, renderer)
    for form, sentence in (
        ({"type": "json_schema", "json_schema": {"schema": {"type": "frob"}}}, "Invalid type: frob"),
        ({"type": "regex", "regex": "a("}, "invalid regex"),
        ({"type": "josn_object"}, "Did you mean 'json_object'"),
        ({"type": "choice", "choice": []}, "needs the key 'choice'"),
        ({"type": "json_schema"}, "needs .*schema"),
    ):
        with pytest.raises(UserError, match=sentence):
            generate(engine, [request(form, 0)])


def test_a_grammar_that_cannot_go_on_ends_its_request_only(model: LlamaForCausalLM, renderer: Renderer) -> None:
    engine = make_engine(model, renderer)

    async def run() -> list[Any]:
        ask = [request(response_format(SCHEMAS[0]), seed) for seed in range(3)]
        running = [asyncio.ensure_future(engine.generate(item)) for item in ask]
        await asyncio.sleep(0)
        original = type(engine).make_matcher

        async def broken(self: LocalEngine, form: Any) -> Any:
            matcher = await original(self, form)
            matcher.pending = 5  # a token that the grammar refuses
            return matcher

        engine.make_matcher = broken.__get__(engine)  # type: ignore[method-assign]
        bad = asyncio.ensure_future(engine.generate(request(response_format(SCHEMAS[1]), 9)))
        try:
            return await asyncio.gather(*running, bad, return_exceptions=True)
        finally:
            await engine.close()

    *good, bad = asyncio.run(run())
    assert isinstance(bad, EngineError)
    assert "response format could not be followed" in str(bad)
    for reply in good:
        check_valid(renderer, SCHEMAS[0], reply)


TOOLS = (
    {"type": "function", "function": {"name": "add", "description": "", "parameters": {
        "type": "object", "properties": {"a": {"type": "integer", "minimum": 0, "maximum": 9},
                                         "b": {"type": "integer", "minimum": 0, "maximum": 9}},
        "required": ["a", "b"]}}},
    {"type": "function", "function": {"name": "look", "description": "", "parameters": {
        "type": "object", "properties": {"at": {"enum": ["map", "sky"]}}, "required": ["at"]}}},
)  # fmt: skip


def test_tool_calls_parse_and_have_the_arguments_of_their_tool(model: LlamaForCausalLM, renderer: Renderer) -> None:
    engine = make_engine(model, renderer)
    policy = Policy(engine, renderer, sampling=Sampling(max_tokens=60), response_format={"type": "tool_calls"})

    async def run() -> list[Any]:
        try:
            batch = [policy.reply([Message("user", str(n))], tools=TOOLS) for n in range(16)]
            return list(await asyncio.gather(*batch))
        finally:
            await engine.close()

    replies = asyncio.run(run())
    for reply in replies:
        assert reply.action.error is None
        (call,) = reply.action.calls
        assert (call.name, frozenset(call.arguments)) in {("add", frozenset("ab")), ("look", frozenset({"at"}))}
    assert {reply.action.calls[0].name for reply in replies} == {"add", "look"}
    with pytest.raises(UserError, match="reply format 'react' has no grammar of tool calls"):
        asyncio.run(replace(policy, format="react").reply([Message("user", "x")], tools=TOOLS))
