"""The local engine against Hugging Face, against itself alone, and when things go wrong."""

from __future__ import annotations

import asyncio
import math
import random
import threading
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, SampledToken, Sampling
from practicum.engines.local.cpu_runner import CpuRunner
from practicum.engines.local.engine import LocalEngine
from practicum.engines.local.runner import BATCH_MULTIPLE, DecodeOutput, RunningRequest
from practicum.environment import Observation
from practicum.errors import EngineError
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.task import Task
from practicum.trajectory import StopReason
from practicum.utils.concurrency import Deadline

TASK = Task("t", "x", "train")


def request(ids: Sequence[int], session: str = "", **sampling: object) -> Request:
    return Request(tuple(ids), Sampling(**sampling), TASK, Observation(), (), session=session)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    """Sharper than a fresh model, so that replies differ from one another."""
    loaded = loader.load_tiny(3).model
    with torch.no_grad():
        for parameter in loaded.parameters():
            parameter.mul_(3.0 if parameter.dim() > 1 else 1.0)
    return loaded


@pytest.fixture
def engine(model: LlamaForCausalLM, renderer: Renderer) -> LocalEngine:
    return LocalEngine(Decoder(model), renderer, max_batch=16)


def generate(engine: LocalEngine, *requests: Request) -> list[Generation]:
    async def run() -> list[Generation]:
        try:
            return list(await asyncio.gather(*(engine.generate(r) for r in requests)))
        finally:
            await engine.close()

    return asyncio.run(run())


def mixed(count: int, seed: int = 0, longest: int = 190) -> list[Request]:
    rng = random.Random(seed)
    made = []
    for k in range(count):
        prompt = [rng.randrange(10, 700) for _ in range(rng.randint(3, longest))]
        limit, temperature = rng.randint(1, 40), rng.choice([0.0, 0.7, 1.0])
        made.append(request(prompt, f"s{k}", max_tokens=limit, temperature=temperature, seed=k))
    return made


def test_greedy_equals_transformers_generate(engine: LocalEngine, model: LlamaForCausalLM) -> None:
    prompts = [[5, 6, 7, 8], list(range(20, 90)), [400] * 3]
    replies = generate(engine, *(request(p, temperature=0.0, max_tokens=12) for p in prompts))
    for prompt, reply in zip(prompts, replies, strict=True):
        expected = model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=list(engine.renderer.end_ids),
            pad_token_id=0,
        )[0, len(prompt) :].tolist()  # fmt: skip
        assert list(reply.ids) == expected


def test_logprobs_are_the_models(engine: LocalEngine, model: LlamaForCausalLM) -> None:
    for item, reply in zip(mixed(12), generate(engine, *mixed(12)), strict=True):
        assert reply.logprobs is not None
        temperature = item.sampling.temperature or 1.0
        ids = torch.tensor([[*item.ids, *reply.ids]])
        with torch.no_grad():
            table = (model(ids).logits[0] / temperature).log_softmax(-1)
        start = len(item.ids)
        expected = [table[start + j - 1, token].item() for j, token in enumerate(reply.ids)]
        assert list(reply.logprobs) == pytest.approx(expected, abs=1e-4)


def test_a_reply_does_not_depend_on_its_neighbours(model: LlamaForCausalLM, renderer: Renderer) -> None:
    """Alone, among others, in another order, admitted late: the same ids and the same log-probs, bit for bit."""
    batch = mixed(40)
    batched = generate(LocalEngine(Decoder(model), renderer, max_batch=16), *batch)
    shuffled = list(range(40))
    random.Random(1).shuffle(shuffled)
    reordered = generate(LocalEngine(Decoder(model), renderer, max_batch=40), *(batch[i] for i in shuffled))
    for position, index in enumerate(shuffled):
        assert reordered[position].ids == batched[index].ids
        assert reordered[position].logprobs == batched[index].logprobs
    for index in (0, 7, 23):
        alone = generate(LocalEngine(Decoder(model), renderer, max_batch=8), batch[index])[0]
        assert (alone.ids, alone.logprobs) == (batched[index].ids, batched[index].logprobs)


def test_requests_of_very_different_length(model: LlamaForCausalLM, renderer: Renderer) -> None:
    """Contexts over five blocks of keys, so that rows are sorted, overtake one another and leave gaps."""
    batch = mixed(24, seed=4, longest=620)
    batched = generate(LocalEngine(Decoder(model), renderer, max_batch=16), *batch)
    for request_, reply in zip(batch, batched, strict=True):
        alone = generate(LocalEngine(Decoder(model), renderer, max_batch=8), request_)[0]
        assert (alone.ids, alone.logprobs) == (reply.ids, reply.logprobs)


def test_grouped_heads_too(renderer: Renderer) -> None:
    """SmolLM2's shape: three queries a key head."""
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=772, hidden_size=96, intermediate_size=64, num_hidden_layers=2,
                         num_attention_heads=6, num_key_value_heads=2, max_position_embeddings=512,
                         initializer_range=0.2)  # fmt: skip
    shaped = LlamaForCausalLM(config).eval()
    batch = mixed(20)
    batched = generate(LocalEngine(Decoder(shaped), renderer, max_batch=24), *batch)
    for index in (3, 11):
        alone = generate(LocalEngine(Decoder(shaped), renderer), batch[index])[0]
        assert (alone.ids, alone.logprobs) == (batched[index].ids, batched[index].logprobs)


def test_several_steps_per_decode_change_nothing(model: LlamaForCausalLM, renderer: Renderer) -> None:
    batch = mixed(12)
    one_step = generate(LocalEngine(Decoder(model), renderer, max_batch=16), *batch)
    four_steps = generate(LocalEngine(Decoder(model), renderer, max_batch=16, steps_per_decode=4), *batch)
    assert [(g.ids, g.logprobs, g.stop_reason) for g in one_step] == [
        (g.ids, g.logprobs, g.stop_reason) for g in four_steps
    ]


def test_samples_of_one_prompt_share_its_keys(engine: LocalEngine) -> None:
    prompt = list(range(100, 190))
    replies = generate(engine, *(request(prompt, f"c{k}", seed=k, max_tokens=3) for k in range(8)))
    assert sorted(reply.prompt_cached for reply in replies) == [0] + [len(prompt) - 1] * 7
    assert engine.stats.prefilled == len(prompt) - 1


def test_the_next_turn_starts_where_the_last_one_ended(model: LlamaForCausalLM, renderer: Renderer) -> None:
    async def two_turns(keep: bool) -> tuple[Generation, Generation]:
        engine = LocalEngine(Decoder(model), renderer, cache_bytes=1 << 30 if keep else 0)
        first = await engine.generate(request(range(30, 90), "s", max_tokens=9, seed=1))
        longer = [*range(30, 90), *first.ids, 11, 12, 13]
        second = await engine.generate(request(longer, "s", max_tokens=9, seed=2))
        await engine.close()
        return first, second

    first, cached = asyncio.run(two_turns(keep=True))
    assert cached.prompt_cached == 60 + len(first.ids) - 1
    _, fresh = asyncio.run(two_turns(keep=False))
    assert fresh.prompt_cached == 0
    assert cached.ids == fresh.ids
    assert cached.logprobs == pytest.approx(fresh.logprobs, abs=1e-4)


@pytest.mark.parametrize("version", [0, 1])
def test_an_update_of_the_weights_empties_the_prefix_cache(
    version: int, model: LlamaForCausalLM, renderer: Renderer
) -> None:
    """Also one to the version from before: a resumed run begins a step with an empty cache."""

    async def run() -> tuple[Generation, Generation]:
        engine = LocalEngine(Decoder(model), renderer)
        first = await engine.generate(request(range(30, 90), "s", max_tokens=4))
        engine.weights_changed(version)
        second = await engine.generate(request(range(30, 90), "s", max_tokens=4))
        await engine.close()
        return first, second

    first, second = asyncio.run(run())
    assert (first.policy_version, second.policy_version) == (0, version)
    assert second.prompt_cached == 0


def test_stops(engine: LocalEngine, renderer: Renderer) -> None:
    free = generate(engine, request(range(30, 60), max_tokens=30, seed=5))[0]
    assert free.stop_reason in (StopReason.LENGTH, StopReason.END)
    text = renderer.tokenizer.decode(list(free.ids))
    stop_text = text[len(text) // 2 :][:3]
    again = LocalEngine(engine.decoder, renderer)
    stopped = generate(again, request(range(30, 60), max_tokens=30, seed=5, stop=(stop_text,)))[0]
    assert stopped.stop_reason is StopReason.STRING
    assert free.ids[: len(stopped.ids)] == stopped.ids
    assert stop_text in renderer.tokenizer.decode(list(stopped.ids))


def test_a_full_window_is_told_apart_from_a_length_limit(renderer: Renderer) -> None:
    config = LlamaConfig(vocab_size=772, hidden_size=32, intermediate_size=32, num_hidden_layers=1,
                         num_attention_heads=2, max_position_embeddings=64)  # fmt: skip
    engine = LocalEngine(Decoder(LlamaForCausalLM(config).eval()), renderer)
    engine.renderer.end_ids, end_ids = (), engine.renderer.end_ids
    try:
        reply = generate(engine, request(range(10, 70), max_tokens=30))[0]
    finally:
        engine.renderer.end_ids = end_ids
    assert reply.stop_reason is StopReason.CONTEXT
    assert len(reply.ids) == 4


def test_a_prompt_beyond_the_window_is_an_engine_error(engine: LocalEngine) -> None:
    with pytest.raises(EngineError, match="window is 2048"):
        generate(engine, request([5] * 2048))


def test_a_cancelled_request_frees_its_slot(model: LlamaForCausalLM, renderer: Renderer) -> None:
    async def run() -> int:
        engine = LocalEngine(Decoder(model), renderer, max_batch=8)
        renderer_ends, renderer.end_ids = renderer.end_ids, ()
        try:
            hanging = [
                asyncio.create_task(engine.generate(request([9] * 20, max_tokens=1500, seed=k))) for k in range(8)
            ]
            await asyncio.sleep(0.2)
            for task in hanging:
                task.cancel()
            reply = await asyncio.wait_for(engine.generate(request([7] * 20, max_tokens=5)), 20)
        finally:
            renderer.end_ids = renderer_ends
            await engine.close()
        return len(reply.ids)

    assert asyncio.run(run()) == 5


@pytest.mark.parametrize(
    ("part", "method"),
    [
        ("runner", "decode"), ("runner", "prefill"), ("runner", "set_sampling_params"), ("runner", "grow"),
        ("kv_cache", "allocate"), ("prefixes", "match"),
    ],
)  # fmt: skip
def test_a_failed_step_fails_the_requests_and_says_why(
    part: str, method: str, engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*arguments: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(getattr(engine, part), method, fail)

    async def run() -> list[Generation | BaseException]:
        requests = [request([5, 6, 7]), request([5, 6, 7, 8]), request([9, 9, 9])]
        return await asyncio.wait_for(asyncio.gather(*map(engine.generate, requests), return_exceptions=True), 20)

    results = asyncio.run(run())  # nobody is left waiting
    assert all(isinstance(item, EngineError) and "planted" in str(item) for item in results)
    with pytest.raises(EngineError, match="planted"):
        asyncio.run(engine.generate(request([5, 6, 7])))
    asyncio.run(engine.close())


class HeldRunner(CpuRunner):
    """Decodes nothing until it may."""

    may_decode: threading.Event

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        self.may_decode.wait(20)
        return super().decode(running, end_ids)


def held_engine(model: LlamaForCausalLM, renderer: Renderer) -> LocalEngine:
    """An engine of eight requests at a time that decodes nothing until `runner.may_decode` is set."""
    engine = LocalEngine(Decoder(model), renderer, max_batch=BATCH_MULTIPLE, runner=HeldRunner)
    engine.runner.may_decode = threading.Event()  # type: ignore[attr-defined]
    return engine


async def within(engine: LocalEngine, seconds: float, number: int) -> Generation:
    """A reply of one token with a deadline."""
    item = request(range(10 + number, 30 + number), max_tokens=1)
    return await Deadline(seconds, "engine").of(engine.generate(item))


def test_a_deadline_is_paused_in_the_queue_and_while_weights_change(
    model: LlamaForCausalLM, renderer: Renderer
) -> None:
    async def run() -> list[Generation]:
        engine = held_engine(model, renderer)
        async with engine.gate.paused():
            tasks = [asyncio.create_task(within(engine, seconds, i)) for i, seconds in enumerate([30] * 8 + [0.5] * 2)]
            await asyncio.sleep(0.8)
        await asyncio.sleep(0.8)
        assert [task for task in tasks if task.done()] == []
        engine.runner.may_decode.set()  # type: ignore[attr-defined]
        replies = await asyncio.gather(*tasks)
        await engine.close()
        return replies

    assert [len(reply.ids) for reply in asyncio.run(run())] == [1] * 10


def test_a_deadline_counts_from_admission_on_and_in_the_queue_of_an_engine_that_hangs(
    model: LlamaForCausalLM, renderer: Renderer
) -> None:
    async def run() -> tuple[list[object], list[float]]:
        engine, started, durations = held_engine(model, renderer), time.monotonic(), []

        async def timed(seconds: float, number: int) -> None:
            try:
                await within(engine, seconds, number)
            finally:
                durations.append(time.monotonic() - started)

        results = await asyncio.gather(*(timed(0.3, i) for i in range(8)), timed(0.4, 8), return_exceptions=True)
        engine.runner.may_decode.set()  # type: ignore[attr-defined]
        await engine.close()
        return [*results], durations

    results, durations = asyncio.run(run())
    assert [type(result) for result in results] == [TimeoutError] * 9
    assert 0.3 <= durations[0] < 5
    assert durations[8] >= 0.7  # it was admitted to nothing: its time began when that of the others had run out


class FailingRunner(CpuRunner):
    """Has memory for few requests at a time, and none for long ones."""

    max_rows, max_tokens, num_failures = 4, 200, 0

    def grow(self, num_tokens: int) -> None:
        if num_tokens > self.max_tokens:
            self.num_failures += 1
            raise RuntimeError("out of memory for long requests")
        super().grow(num_tokens)

    def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
        output = super().decode(running, end_ids)
        if len(running) > self.max_rows:
            self.num_failures += 1
            raise RuntimeError("out of memory for a large batch")
        return output


def test_a_lack_of_memory_ends_only_what_cannot_be_computed(model: LlamaForCausalLM, renderer: Renderer) -> None:
    """Of requests that fail together, those that can be computed in smaller batches have the replies of a large one."""
    batch = [request([5 + number] * (20 + number), max_tokens=16, seed=number) for number in range(14)]
    expected = generate(LocalEngine(Decoder(model), renderer, max_batch=16), *batch)
    engine = LocalEngine(Decoder(model), renderer, max_batch=16, runner=FailingRunner)
    streamed: list[int] = []
    listening = replace(batch[3], on_tokens=lambda tokens: streamed.extend(token.id for token in tokens))
    mixed_requests = [*batch[:3], listening, *batch[4:], request([9] * 150, max_tokens=100)]

    async def run() -> list[Generation | BaseException]:
        try:
            results = await asyncio.gather(*map(engine.generate, mixed_requests), return_exceptions=True)
            return [*results, await engine.generate(batch[0])]  # it goes on
        finally:
            await engine.close()

    *results, long, again = asyncio.run(run())
    assert [item.ids for item in results if isinstance(item, Generation)] == [item.ids for item in expected]
    assert streamed == list(expected[3].ids)
    assert isinstance(long, EngineError)
    assert "out of memory for long requests" in str(long)
    assert isinstance(again, Generation)
    assert again.ids == expected[0].ids
    assert isinstance(engine.runner, FailingRunner)
    assert engine.runner.num_failures < 12


def test_a_request_sent_while_the_engine_fails_gets_the_error(
    engine: LocalEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It had passed the check for a failure just before; the engine's thread answers it all the same."""
    failing = threading.Event()

    def fail(*arguments: object) -> None:
        failing.set()
        time.sleep(0.2)
        raise RuntimeError("planted")

    monkeypatch.setattr(engine.runner, "decode", fail)

    async def run() -> list[Generation | BaseException]:
        first = asyncio.create_task(engine.generate(request([5, 6, 7])))
        await asyncio.to_thread(failing.wait)
        late = asyncio.create_task(engine.generate(request([5, 6, 7])))
        return await asyncio.wait_for(asyncio.gather(first, late, return_exceptions=True), 20)

    assert all(isinstance(item, EngineError) and "planted" in str(item) for item in asyncio.run(run()))
    asyncio.run(engine.close())


def test_weights_may_not_change_under_a_request(model: LlamaForCausalLM, renderer: Renderer) -> None:
    async def run() -> None:
        engine = LocalEngine(Decoder(model), renderer)
        task = asyncio.create_task(engine.generate(request([9] * 20, max_tokens=400)))
        await asyncio.sleep(0.1)
        try:
            with pytest.raises(EngineError, match="under way"):
                engine.weights_changed(1)
        finally:
            task.cancel()
            await engine.close()

    asyncio.run(run())


def test_ended_sessions_are_dropped_even_across_a_close(engine: LocalEngine) -> None:
    prompts = {f"s{number}": [number + 5] * 40 for number in range(8)}

    async def run_all() -> None:
        await asyncio.gather(*(engine.generate(request(ids, name, max_tokens=2)) for name, ids in prompts.items()))

    async def dropped() -> None:
        while engine.prefixes.num_sessions:
            await asyncio.sleep(0.001)

    async def run() -> None:
        await run_all()
        assert engine.prefixes.num_sessions == 8
        for name in prompts:
            engine.end_session(name)
        await asyncio.wait_for(dropped(), 10)
        await run_all()
        for name in prompts:
            engine.end_session(name)
        await engine.close()
        assert not engine.prefixes.num_sessions
        await run_all()
        engine.end_session("s3")
        for name in prompts:
            engine.end_session(name)
        await asyncio.wait_for(dropped(), 10)
        await engine.close()

    asyncio.run(run())


def test_ids_may_come_as_a_list(engine: LocalEngine) -> None:
    listed = Request(list(range(10, 60)), Sampling(max_tokens=3), TASK, Observation(), ())  # type: ignore[arg-type]

    async def run() -> list[Generation]:
        try:
            return [await engine.generate(listed), await engine.generate(listed)]
        finally:
            await engine.close()

    first, again = asyncio.run(run())
    assert again.ids == first.ids
    assert again.prompt_cached == 49


def test_a_cancelled_request_is_not_grouped_with_others_after_new_weights(
    model: LlamaForCausalLM, renderer: Renderer
) -> None:
    """Its keys are of the old weights; it stays in the batch until the pending decode call has been read."""
    batches: list[list[RunningRequest]] = []

    class IdleRunner(CpuRunner):
        """Gives tokens only to requests of one token."""

        def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
            batches.append(list(running))
            time.sleep(0.01)
            return DecodeOutput(1, [(item, [5], [0.0], True) for item in running if item.max_new_tokens == 1])

    async def run() -> None:
        engine = LocalEngine(Decoder(model), renderer, max_batch=8, runner=IdleRunner)
        hanging = asyncio.create_task(engine.generate(request(range(10, 90), max_tokens=50)))
        while not batches:
            await asyncio.sleep(0.01)
        assert batches[-1][0].hashes
        hanging.cancel()
        await asyncio.gather(hanging, return_exceptions=True)
        engine.weights_changed(3)
        reply = await engine.generate(request(range(10, 90), max_tokens=1))
        assert reply.policy_version == 3
        await engine.close()

    asyncio.run(run())
    old, new = next(batch for batch in batches if len(batch) == 2)
    assert not old.hashes
    assert new.hashes


def test_requests_that_come_together_decode_together(
    model: LlamaForCausalLM, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An idle GPU computes the prompts of all of them first, however many passes that takes: a step that only a part
    of them takes reads all weights too. On a CPU others would decode between two passes."""
    monkeypatch.setattr("practicum.engines.local.engine.EARLY_PREFILL_REQUESTS", 8)
    monkeypatch.setattr("practicum.engines.local.engine.BATCH_WAIT_SECONDS", 0.3)

    class AsynchronousRunner(CpuRunner):
        asynchronous = True

    endless = Renderer(renderer.tokenizer)
    endless.end_ids = ()
    batch = [request(range(10 + number, 40 + number), max_tokens=6, seed=number) for number in range(32)]
    engine = LocalEngine(
        Decoder(model), endless, max_batch=32, prefill_tokens=90, cache_bytes=0, runner=AsynchronousRunner
    )

    async def run() -> list[Generation]:
        first = [asyncio.create_task(engine.generate(item)) for item in batch[:10]]
        while not engine.num_running:
            await asyncio.sleep(0.01)
        results = await asyncio.gather(*first, *map(engine.generate, batch[10:]))
        await engine.close()
        return results

    assert [len(reply.ids) for reply in asyncio.run(run())] == [6] * 32
    assert engine.stats.decode_steps == 6


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"), [(1.0, 0, 1.0), (0.6, 5, 1.0), (0.0, 0, 1.0), (1.3, 0, 0.8)]
)
def test_listeners_hear_the_tokens_with_the_most_likely_ones(
    engine: LocalEngine, temperature: float, top_k: int, top_p: float
) -> None:
    received: list[SampledToken] = []
    item = request([5, 6, 7], temperature=temperature, top_k=top_k, top_p=top_p, max_tokens=9, seed=4)
    alone = generate(engine, item)[0]
    item = replace(item, on_tokens=received.extend, top_logprobs=3)
    reply, _ = generate(engine, item, request([9] * 4, max_tokens=20))
    assert (reply.ids, reply.logprobs) == (alone.ids, alone.logprobs), "reporting must not change what is sampled"
    assert tuple(token.id for token in received) == reply.ids
    assert tuple(token.logprob for token in received) == reply.logprobs
    assert tuple(token.top for token in received) == reply.top_logprobs
    for token in received:
        values = [value for _, value in token.top]
        assert values == sorted(values, reverse=True)
        assert sum(map(math.exp, values)) <= 1 + 1e-5
        listed = dict(token.top)
        assert token.id not in listed or listed[token.id] == pytest.approx(token.logprob, abs=1e-5)
        assert token.id in listed or token.logprob <= values[-1] + 1e-5
        assert temperature > 0 or token.id == token.top[0][0]


def test_a_request_beside_one_that_asks_for_the_most_likely_tokens_loses_none(engine: LocalEngine) -> None:
    """The other request is there for a part of its tokens only."""
    received: list[SampledToken] = []
    plain = replace(request([9] * 4, max_tokens=30, seed=3), on_tokens=received.extend)
    reporting = replace(request([5, 6, 7], max_tokens=5, seed=4), top_logprobs=3)
    reply, other = generate(engine, plain, reporting)
    assert len(other.top_logprobs) == len(other.ids) < len(reply.ids)
    assert reply.top_logprobs == ()
    assert [token.id for token in received] == list(reply.ids)
    assert {token.top for token in received} == {()}
