"""The GPU's way of decoding, all but the capturing, on CPU in Triton's interpreter: it says what the CPU's way says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.models.decoder import Decoder
from practicum.task import Task
from tests.engines.local.test_cuda_runner import build_model

pytestmark = pytest.mark.skipif(not os.environ.get("TRITON_INTERPRET"), reason="a GPU has tests/engines/test_cuda.py")


def play(engine: LocalEngine, asked: list[Request]) -> list[Generation]:
    async def run() -> list[Generation]:
        try:
            first = await asyncio.gather(*(engine.generate(one) for one in asked))
            later = replace(asked[0], ids=(*asked[0].ids, *first[0].ids, *range(60, 80)))
            return [*first, await engine.generate(later)]
        finally:
            await engine.close()

    return asyncio.run(run())


class Played:
    """What stands for a captured graph."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


@pytest.mark.parametrize(("name", "going_on"), [("llama", False), ("llama", True), ("qwen2", True), ("qwen3", True)])
def test_steps_in_the_interpreter_are_those_of_the_cpu(
    name: str, going_on: bool, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    from practicum.engines.local.cuda_runner import CudaRunner
    from practicum.kernels import decode_attention

    monkeypatch.setattr(decode_attention, "PROGRAMS", 32)  # two parts a row
    if going_on:
        monkeypatch.setattr("practicum.kernels.fused_matmul.HALF", (torch.float32,))
    monkeypatch.setattr(
        "practicum.engines.local.shared_prefix.MIN_SHARED_BYTES", 0
    )  # crews from the first shared block on
    model = build_model(name)
    shared = tuple(range(30, 100))
    prompts = [shared, shared, tuple(range(100, 107))]
    temperatures = [1.0, 0.8, 0.0]
    asked = [
        Request(
            ids, Sampling(temperature, max_tokens=3 + number, seed=number), Task("t", "x", "train"), Observation(), (),
                session=f"s{number}")
        for number, (ids, temperature) in enumerate(zip(prompts, temperatures, strict=True))
    ]  # fmt: skip
    known = play(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1), asked)

    used: list[tuple[int, bool, bool, bool]] = []

    def capture(self: CudaRunner, key: tuple[int, bool, bool, bool]) -> None:
        used.append(key)
        self._graphs[key] = Played(lambda: self._burst(*key))

    monkeypatch.setattr(CudaRunner, "_capture", capture)
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, burst=4)
    engine._noise = torch.zeros(engine._homes.count, engine.decoder.shape.context)
    forgotten: list[Any] = []
    engine._steps = CudaRunner(engine, 4)
    forget = engine._steps.reset_graphs
    monkeypatch.setattr(engine._steps, "reset_graphs", lambda: (forgotten.append(engine._capacity), forget()))
    monkeypatch.setattr("practicum.engines.local.engine.KEY_BUCKET", 16)  # the buffer grows on the way
    found = play(engine, asked)
    assert len(forgotten) > 1
    assert {sharing for *_, sharing in used} == {True, False}
    assert [reply.ids for reply in found] == [reply.ids for reply in known]
    assert [reply.stop_reason for reply in found] == [reply.stop_reason for reply in known]
    for mine, other in zip(found, known, strict=True):
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_filtered_sampling_is_that_of_the_cpu(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    from practicum.engines.local.cuda_runner import CudaRunner

    def capture(self: CudaRunner, key: tuple[int, bool, bool, bool]) -> None:
        self._graphs[key] = Played(lambda: self._burst(*key))

    monkeypatch.setattr(CudaRunner, "_capture", capture)
    monkeypatch.setattr("practicum.engines.local.shared_prefix.MIN_SHARED_BYTES", 0)
    model = build_model("llama")
    ways = [(1.0, 0, 0.8), (0.7, 5, 1.0), (0.0, 0, 0.5), (1.0, 3, 0.6), (1.0, 0, 1.0)]
    asked = [
        Request(
            tuple(range(30, 100)),
            Sampling(temperature, top_k=top_k, top_p=top_p, max_tokens=3 + number, seed=number),
                Task("t", "x", "train"), Observation(), (), session=f"s{number}")
        for number, (temperature, top_k, top_p) in enumerate(ways)
    ]  # fmt: skip
    known = play(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1), asked)
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, burst=2)
    engine._noise = torch.zeros(engine._homes.count, engine.decoder.shape.context)
    engine._steps = CudaRunner(engine, 2)
    found = play(engine, asked)
    assert [reply.ids for reply in found] == [reply.ids for reply in known]
    assert int(engine._position[engine._homes.spare]) == 0
    for mine, other in zip(found, known, strict=True):
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)
