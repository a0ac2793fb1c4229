"""Turns that continue the pages of the last one, on CPU in Triton's interpreter: replies are those without any cache,
and no cached prefix is ever written to."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.cuda_kv_cache import CudaKVCache
from practicum.engines.local.engine import LocalEngine
from practicum.engines.local.kv_cache import CachedPrefix
from practicum.engines.local.runner import DecodeOutput, RunningRequest
from practicum.environment import Observation
from practicum.models.decoder import Decoder
from practicum.task import Task

pytestmark = pytest.mark.skipif(
    not os.environ.get("TRITON_INTERPRET"), reason="a GPU has tests/engines/local/test_cuda_runner.py"
)
SMALL = LlamaConfig(
    vocab_size=800, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=640, initializer_range=0.2,
)  # fmt: skip
MakeEngine = Callable[..., LocalEngine]


def contents(cache: CudaKVCache, entry: CachedPrefix) -> torch.Tensor:
    """The keys and values of a cached prefix [layers, 2, K, tokens, D]."""
    pages = [cache.pool.chunks[page.location[0]][:, page.location[1]] for page in entry.kv]
    return torch.cat(pages, 3)[..., : len(entry.ids), :].clone()


@pytest.fixture
def make(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> MakeEngine:
    """An engine with a `CudaRunner` that checks at every decode call that no cached prefix is written to."""
    from practicum.engines.local.cuda_runner import CudaRunner

    class WatchedRunner(CudaRunner):
        def decode(self, running: list[RunningRequest], end_ids: Sequence[int]) -> DecodeOutput:
            cache, used_slots = self.kv_cache, [request.slot for request in running]
            assert len(set(used_slots)) == len(used_slots)
            before = [(entry, contents(cache, entry)) for entry in cache.prefixes]
            output = super().decode(running, end_ids)
            for entry, kv in before:
                assert torch.equal(contents(cache, entry), kv)
            assert int(self.state.position[cache.padding_slot]) == 0
            return output

    # What is asked for together is admitted together.
    monkeypatch.setattr("practicum.engines.local.engine.BATCH_WAIT_SECONDS", 0.3)
    torch.manual_seed(0)
    model = LlamaForCausalLM(SMALL).eval()

    def make_engine(**options: Any) -> LocalEngine:
        return LocalEngine(
            Decoder(model), renderer, max_batch=8, threads=1, steps_per_decode=2, runner=WatchedRunner, **options
        )

    return make_engine


def request(ids: Sequence[int], session: str = "", seed: int = 0, tokens: int = 3) -> Request:
    sampling = Sampling(1.0, max_tokens=tokens, seed=seed)
    return Request(tuple(ids), sampling, Task("t", "x", "train"), Observation(), (), session=session)


def use(engine: LocalEngine, coroutine: Callable[[LocalEngine], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        try:
            return await coroutine(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def assert_same(actual: Sequence[Generation], expected: Sequence[Generation]) -> None:
    assert [reply.ids for reply in actual] == [reply.ids for reply in expected]
    for reply, other in zip(actual, expected, strict=True):
        assert reply.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def random_ids(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10, 780) for _ in range(count)]


def run_sessions(sessions: int, turns: int) -> Callable[[LocalEngine], Awaitable[list[Generation]]]:
    """All sessions run at once with replies and observations of different lengths, so that they start and end at
    different times. One of three drops a part of its reply: its prompts diverge from the kept prefix."""

    async def run_session(engine: LocalEngine, index: int) -> list[Generation]:
        history, replies = random_ids(0, 20) + random_ids(index, 3 + index), []
        for turn in range(turns):
            replies.append(await engine.generate(request(history, f"s{index}", turn, 2 + (index + turn) % 4)))
            kept_ids = replies[-1].ids if index % 3 else replies[-1].ids[1:]
            history = [*history, *kept_ids, *random_ids(1000 * turn + index, 2 + 3 * (index % 2))]
        engine.end_session(f"s{index}")
        return replies

    async def all_of_them(engine: LocalEngine) -> list[Generation]:
        replies = await asyncio.gather(*(run_session(engine, index) for index in range(sessions)))
        return [reply for session_replies in replies for reply in session_replies]

    return all_of_them


def test_replies_are_those_of_an_engine_that_caches_nothing(make: MakeEngine) -> None:
    engine, uncached = make(), make(cache_bytes=0)
    replies = use(engine, run_sessions(5, 3))
    assert_same(replies, use(uncached, run_sessions(5, 3)))
    assert uncached.stats.reused == 0
    assert len(uncached.prefixes) == 0
    assert all(reply.prompt_cached >= 20 for index, reply in enumerate(replies) if index % 3)
    assert engine.prefixes.num_sessions == 0


def test_more_sessions_than_slots(make: MakeEngine) -> None:
    assert_same(use(make(), run_sessions(11, 2)), use(make(cache_bytes=0), run_sessions(11, 2)))


def test_a_bound_that_is_far_too_small_changes_no_reply(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait, and some are begun anew while decode calls with them are under way."""
    monkeypatch.setattr("practicum.engines.local.cuda_kv_cache.CHUNK_BYTES", 1)

    async def requests_beyond_the_bound(engine: LocalEngine) -> list[Generation]:
        requests = (request(random_ids(index, 40 + 9 * index), "", index, 40) for index in range(5))
        return list(await asyncio.gather(*map(engine.generate, requests)))

    free, engine = make(), make()
    assert isinstance(engine.kv_cache, CudaKVCache)
    engine.kv_cache.max_bytes = engine.kv_cache.bytes_of(320)
    assert_same(use(engine, requests_beyond_the_bound), use(free, requests_beyond_the_bound))
    assert engine.stats.preempted > free.stats.preempted == 0
    assert engine.kv_cache.num_bytes <= engine.kv_cache.bytes_of(320) + engine.kv_cache.bytes_of(1)


def test_a_long_prompt_is_computed_in_pieces(make: MakeEngine) -> None:
    async def long_prompt_beside_others(engine: LocalEngine) -> list[Generation]:
        requests = [request(random_ids(index, 20), "", index, 12) for index in range(2)]
        requests.append(request(random_ids(9, 150), "", 9, 4))
        return list(await asyncio.gather(*map(engine.generate, requests)))

    unsplit, engine = make(), make()
    engine.settings = replace(engine.settings, piece_tokens=40)
    assert_same(use(engine, long_prompt_beside_others), use(unsplit, long_prompt_beside_others))
    assert engine.stats.prefilled == unsplit.stats.prefilled


def test_the_capacity_grows_between_two_turns(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("practicum.engines.local.cuda_kv_cache.KEY_BUCKET", 16)

    async def two_turns(engine: LocalEngine) -> list[Generation]:
        first, other = await asyncio.gather(*(engine.generate(request(random_ids(n, 30), f"s{n}")) for n in range(2)))
        num_slots = engine.kv_cache.capacity
        longer = await engine.generate(request([*random_ids(0, 30), *first.ids, *random_ids(2, 40)], "s0"))
        assert engine.kv_cache.capacity > num_slots
        later = await engine.generate(request([*random_ids(1, 30), *other.ids, 5, 6], "s1"))
        if engine.prefixes.max_bytes:
            assert longer.prompt_cached == 29 + len(first.ids)
            assert later.prompt_cached == 29 + len(other.ids)
        return [first, other, longer, later]

    assert_same(use(make(), two_turns), use(make(cache_bytes=0), two_turns))


def test_other_requests_share_pages_that_their_session_continues(make: MakeEngine) -> None:
    """In one wave: two requests that use more of it than the session still does, one that uses less."""
    history = random_ids(1, 40)

    async def shared_pages(engine: LocalEngine) -> list[Generation]:
        first = await engine.generate(request(history, "s"))
        prompt = [*history, *first.ids]
        requests = [
            request([*prompt, 11, 12], "t"), request([*history[:30], 21, 22, 23], "s"), request([*prompt, 31, 32], "u"),
            request([*history[:20], 41, 42]),
        ]  # fmt: skip
        replies = await asyncio.gather(*(engine.generate(item) for item in requests))
        if engine.prefixes.max_bytes:
            assert [reply.prompt_cached for reply in replies] == [len(prompt) - 1, 30, len(prompt) - 1, 20]
        return [first, *replies]

    assert_same(use(make(), shared_pages), use(make(cache_bytes=0), shared_pages))


def test_sessions_are_released_and_a_closed_engine_can_be_used_again(make: MakeEngine) -> None:
    engine = make()

    async def turn(index: int, tokens: int = 3) -> Generation:
        return await engine.generate(request(random_ids(index, 30), f"s{index}", tokens=tokens))

    async def wait_for_engine() -> None:
        await asyncio.sleep(0.5)

    async def before(engine: LocalEngine) -> list[Generation]:
        replies = list(await asyncio.gather(turn(0), turn(1)))
        assert engine.prefixes.num_sessions == 2
        engine.end_session("s0")
        await wait_for_engine()
        assert engine.prefixes.num_sessions == 1
        engine.weights_changed(1)
        await wait_for_engine()
        assert len(engine.prefixes) == 0
        replies.append(await turn(1))
        assert replies[-1].prompt_cached == 0
        task = asyncio.create_task(turn(2, 200))
        steps = engine.stats.decode_steps
        while engine.stats.decode_steps == steps:
            await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(Exception, match="closed"):
            await task
        return replies

    async def after(engine: LocalEngine) -> list[Generation]:
        return list(await asyncio.gather(turn(0), turn(1), turn(2)))

    first, other, third = use(engine, before)
    again = use(engine, after)
    assert_same([third, again[0], again[1]], [other, first, other])
    assert [reply.prompt_cached for reply in again] == [0, 29, 29]
