"""`CudaRunner` without its graphs, on CPU in Triton's interpreter: its replies are those of `CpuRunner`."""

from __future__ import annotations

import asyncio
import copy
import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from practicum.chat.renderer import Renderer
from practicum.engines.base import MAX_TOP_LOGPROBS, Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.kernels.paged_kv import LayerPages
from practicum.models.decoder import Decoder
from practicum.models.loader import LoadedModel
from practicum.models.lora import LoRASettings, add_adapter
from practicum.task import Task
from tests.engines.local.schemas import SCHEMAS, response_format
from tests.engines.local.test_cuda_runner import build_model

pytestmark = pytest.mark.skipif(
    not os.environ.get("TRITON_INTERPRET"), reason="a GPU has tests/engines/local/test_cuda_runner.py"
)


def generate_all(engine: LocalEngine, requests: list[Request]) -> list[Generation]:
    async def run() -> list[Generation]:
        try:
            first = await asyncio.gather(*(engine.generate(request) for request in requests))
            later = replace(requests[0], ids=(*requests[0].ids, *first[0].ids, *range(60, 80)))
            return [*first, await engine.generate(later)]
        finally:
            await engine.close()

    return asyncio.run(run())


def make_requests(prompts: Sequence[Sequence[int]], sampling: Sequence[Sampling]) -> list[Request]:
    return [
        Request(
            tuple(ids),
            replace(row_sampling, max_tokens=3 + index, seed=index),
            Task("t", "x", "train"),
            Observation(),
            (),
            session=f"s{index}",
        )
        for index, (ids, row_sampling) in enumerate(zip(prompts, sampling, strict=True))
    ]


@pytest.mark.parametrize(("name", "fused"), [("llama", False), ("llama", True), ("qwen2", True), ("qwen3", True)])
def test_steps_in_the_interpreter_are_those_of_the_cpu(
    name: str, fused: bool, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from practicum.engines.local.cuda_runner import CudaRunner
    from practicum.kernels import decode_attention

    monkeypatch.setattr(decode_attention, "TARGET_PROGRAMS", 32)  # two parts per row
    if fused:
        monkeypatch.setattr("practicum.kernels.fused_matmul.FUSED_DTYPES", (torch.float32,))
    # Groups from the first shared block on.
    monkeypatch.setattr("practicum.engines.local.shared_prefix.MIN_JOINT_READ_BYTES", 0)
    model = build_model(name)
    shared = range(30, 100)
    requests = make_requests([shared, shared, range(100, 107)], [Sampling(1.0), Sampling(0.8), Sampling(0.0)])
    expected = generate_all(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1), requests)

    capacities: set[int] = set()
    joint_reads: set[bool] = set()
    attend = decode_attention.attend

    def recorded_attend(
        query: Tensor, kv: LayerPages, slots: Tensor, positions: Tensor, groups: Any, together: bool
    ) -> Tensor:
        capacities.add(kv.capacity)
        joint_reads.add(together)
        return attend(query, kv, slots, positions, groups, together)

    monkeypatch.setattr(decode_attention, "attend", recorded_attend)
    monkeypatch.setattr("practicum.engines.local.cuda_kv_cache.KEY_BUCKET", 16)  # the capacity grows on the way
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, steps_per_decode=4, runner=CudaRunner)
    replies = generate_all(engine, requests)
    assert len(capacities) > 1
    assert joint_reads == {True, False}
    assert [reply.ids for reply in replies] == [reply.ids for reply in expected]
    assert [reply.stop_reason for reply in replies] == [reply.stop_reason for reply in expected]
    for reply, other in zip(replies, expected, strict=True):
        assert reply.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_filtered_sampling_is_that_of_the_cpu(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    from practicum.engines.local.cuda_runner import CudaRunner

    monkeypatch.setattr("practicum.engines.local.shared_prefix.MIN_JOINT_READ_BYTES", 0)
    model = build_model("llama")
    params = [(1.0, 0, 0.8, 0.0), (0.7, 5, 1.0, 0.0), (0.0, 0, 0.5, 0.0), (1.0, 3, 0.6, 0.1), (1.0, 0, 1.0, 0.0)]
    sampling = [
        Sampling(temperature, top_k=top_k, top_p=top_p, min_p=min_p) for temperature, top_k, top_p, min_p in params
    ]
    requests = make_requests([range(30, 100)] * len(params), sampling)
    expected = generate_all(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1), requests)
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, steps_per_decode=2, runner=CudaRunner)
    replies = generate_all(engine, requests)
    assert [reply.ids for reply in replies] == [reply.ids for reply in expected]
    assert [reply.kept for reply in replies] == [reply.kept for reply in expected]
    assert isinstance(engine.runner, CudaRunner)
    assert int(engine.runner.state.position[engine.kv_cache.padding_slot]) == 0
    for reply, other in zip(replies, expected, strict=True):
        assert reply.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_replies_of_adapters_are_those_of_the_cpu(renderer: Renderer) -> None:
    """Two adapters and the base model in one batch, whose adapters are replaced between two batches."""
    from practicum.engines.local.cuda_runner import CudaRunner

    model = build_model("qwen2")
    adapters = []
    for seed in (1, 2):
        loaded = LoadedModel(copy.deepcopy(model), renderer.tokenizer, "qwen2")
        adapters.append(add_adapter(loaded, LoRASettings(4 * seed, 12.0), seed=seed).adapter)
        for key, parameter in adapters[-1].named_parameters():
            if "lora_B" in key:
                torch.nn.init.normal_(parameter, std=0.05)
    names = ("a", "", "b", "a")
    requests = [
        replace(request, adapter=name)
        for request, name in zip(make_requests([range(30, 40)] * 4, [Sampling(1.0)] * 4), names, strict=True)
    ]

    async def run(engine: LocalEngine) -> list[Generation]:
        replies: list[Generation] = []
        for first, second in ((0, 1), (1, 0)):
            await engine.load_adapter("a", adapters[first])
            await engine.load_adapter("b", adapters[second])
            replies += await asyncio.gather(*(engine.generate(request) for request in requests))
        await engine.close()
        return replies

    expected = asyncio.run(run(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1)))
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, steps_per_decode=2, runner=CudaRunner)
    replies = asyncio.run(run(engine))
    assert [reply.ids for reply in replies] == [reply.ids for reply in expected]
    assert len({reply.logprobs for reply in replies}) > 4  # the adapters matter
    for reply, other in zip(replies, expected, strict=True):
        assert reply.logprobs == pytest.approx(other.logprobs, abs=1e-4)


@pytest.mark.parametrize("steps", [1, 3])
def test_constrained_replies_are_those_of_the_cpu(steps: int, renderer: Renderer) -> None:
    """Beside free replies; requests come and go, so slots change hands while logits are on their way."""
    from practicum.engines.local.cuda_runner import CudaRunner

    model = build_model("llama")
    forms = [
        response_format(SCHEMAS[0]),
        None,
        {"type": "regex", "regex": "[ab]{2,6}"},
        {"type": "choice", "choice": ["x", "yz"]},
    ]
    sampling = [Sampling(1.0), Sampling(0.8), Sampling(1.0, top_k=4), Sampling(0.0)]
    prompts = [range(30, 36 + index % 5) for index in range(12)]
    requests = [
        replace(
            request,
            response_format=forms[index % 4],
            sampling=replace(request.sampling, max_tokens=3 if index == 5 else 14),
        )
        for index, request in enumerate(make_requests(prompts, [sampling[index % 4] for index in range(12)]))
    ]
    expected = generate_all(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1), requests)
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, steps_per_decode=steps, runner=CudaRunner)
    replies = generate_all(engine, requests)
    assert [reply.ids for reply in replies] == [reply.ids for reply in expected]
    assert [reply.stop_reason for reply in replies] == [reply.stop_reason for reply in expected]
    for reply, other in zip(replies, expected, strict=True):
        assert reply.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_the_most_likely_tokens_are_those_of_the_cpu(renderer: Renderer) -> None:
    """Beside requests that do not ask for them; filtered, greedy and constrained ones too. Replies stay the same."""
    from practicum.engines.local.cuda_runner import CudaRunner

    model = build_model("llama")
    sampling = [Sampling(1.0), Sampling(0.7, top_k=5), Sampling(0.0), Sampling(1.3, top_p=0.8)]
    plain = make_requests([range(30, 36 + index % 5) for index in range(10)], [*sampling, *sampling, *sampling[:2]])
    plain[9] = replace(plain[9], response_format={"type": "choice", "choice": ["x", "yz"]})
    requests = [
        replace(request, top_logprobs=(3, 0, MAX_TOP_LOGPROBS)[index % 3]) for index, request in enumerate(plain)
    ]

    def generate_on_gpu(requests: list[Request]) -> list[Generation]:
        engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, steps_per_decode=3, runner=CudaRunner)
        return generate_all(engine, requests)

    expected = generate_all(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1), requests)
    replies = generate_on_gpu(requests)
    assert [reply.ids for reply in replies] == [reply.ids for reply in expected]
    assert [reply.logprobs for reply in replies] == [reply.logprobs for reply in generate_on_gpu(plain)]
    assert {len(top) for top in replies[5].top_logprobs} == {5}, "top-k leaves five of the twenty that were asked for"
    for request, reply, other in zip([*requests, requests[0]], replies, expected, strict=True):
        assert len(reply.top_logprobs) == (len(reply.ids) if request.top_logprobs else 0)
        for actual, reference in zip(reply.top_logprobs, other.top_logprobs, strict=True):
            assert len(actual) <= request.top_logprobs
            assert [value for _, value in actual] == pytest.approx([value for _, value in reference], abs=1e-4)
            assert dict(actual) == pytest.approx(dict(reference), abs=1e-4)
