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
            cache, used = self.kv_cache, [one.slot for one in running]
            assert len(set(used)) == len(used)
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

    def made(**options: Any) -> LocalEngine:
        return LocalEngine(
            Decoder(model), renderer, max_batch=8, threads=1, steps_per_decode=2, runner=WatchedRunner, **options
        )

    return made


def request(ids: Sequence[int], session: str = "", seed: int = 0, tokens: int = 3) -> Request:
    sampling = Sampling(1.0, max_tokens=tokens, seed=seed)
    return Request(tuple(ids), sampling, Task("t", "x", "train"), Observation(), (), session=session)


def use(engine: LocalEngine, work: Callable[[LocalEngine], Awaitable[Any]]) -> Any:
    async def run() -> Any:
        try:
            return await work(engine)
        finally:
            await engine.close()

    return asyncio.run(run())


def same(found: Sequence[Generation], known: Sequence[Generation]) -> None:
    assert [reply.ids for reply in found] == [reply.ids for reply in known]
    for mine, other in zip(found, known, strict=True):
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def ids_of(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(10, 780) for _ in range(count)]


def talk(sessions: int, turns: int) -> Callable[[LocalEngine], Awaitable[list[Generation]]]:
    """All sessions run at once with replies and observations of different lengths, so that they start and end at
    different times. One of three drops a part of its reply: its prompts diverge from the kept prefix."""

    async def one(engine: LocalEngine, number: int) -> list[Generation]:
        history, replies = ids_of(0, 20) + ids_of(number, 3 + number), []
        for turn in range(turns):
            replies.append(await engine.generate(request(history, f"s{number}", turn, 2 + (number + turn) % 4)))
            said = replies[-1].ids if number % 3 else replies[-1].ids[1:]
            history = [*history, *said, *ids_of(1000 * turn + number, 2 + 3 * (number % 2))]
        engine.end_session(f"s{number}")
        return replies

    async def all_of_them(engine: LocalEngine) -> list[Generation]:
        replies = await asyncio.gather(*(one(engine, number) for number in range(sessions)))
        return [reply for own in replies for reply in own]

    return all_of_them


def test_replies_are_those_of_an_engine_that_caches_nothing(make: MakeEngine) -> None:
    engine, bare = make(), make(cache_bytes=0)
    found = use(engine, talk(5, 3))
    same(found, use(bare, talk(5, 3)))
    assert bare.stats.reused == 0
    assert len(bare.prefixes) == 0
    assert all(reply.prompt_cached >= 20 for number, reply in enumerate(found) if number % 3)
    assert engine.prefixes.num_sessions == 0


def test_more_sessions_than_slots(make: MakeEngine) -> None:
    same(use(make(), talk(11, 2)), use(make(cache_bytes=0), talk(11, 2)))


def test_a_bound_that_is_far_too_small_changes_no_reply(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests wait, and some are begun anew while decode calls with them are under way."""
    monkeypatch.setattr("practicum.engines.local.cuda_kv_cache.CHUNK_BYTES", 1)

    async def work(engine: LocalEngine) -> list[Generation]:
        asked = (request(ids_of(number, 40 + 9 * number), "", number, 40) for number in range(5))
        return list(await asyncio.gather(*map(engine.generate, asked)))

    free, engine = make(), make()
    assert isinstance(engine.kv_cache, CudaKVCache)
    engine.kv_cache.max_bytes = engine.kv_cache.bytes_of(320)
    same(use(engine, work), use(free, work))
    assert engine.stats.preempted > free.stats.preempted == 0
    assert engine.kv_cache.num_bytes <= engine.kv_cache.bytes_of(320) + engine.kv_cache.bytes_of(1)


def test_a_long_prompt_is_computed_in_pieces(make: MakeEngine) -> None:
    async def work(engine: LocalEngine) -> list[Generation]:
        asked = [request(ids_of(number, 20), "", number, 12) for number in range(2)]
        asked.append(request(ids_of(9, 150), "", 9, 4))
        return list(await asyncio.gather(*map(engine.generate, asked)))

    whole, engine = make(), make()
    engine.settings = replace(engine.settings, piece_tokens=40)
    same(use(engine, work), use(whole, work))
    assert engine.stats.prefilled == whole.stats.prefilled


def test_the_capacity_grows_between_two_turns(make: MakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("practicum.engines.local.cuda_kv_cache.KEY_BUCKET", 16)

    async def work(engine: LocalEngine) -> list[Generation]:
        first, other = await asyncio.gather(*(engine.generate(request(ids_of(n, 30), f"s{n}")) for n in range(2)))
        room = engine.kv_cache.capacity
        longer = await engine.generate(request([*ids_of(0, 30), *first.ids, *ids_of(2, 40)], "s0"))
        assert engine.kv_cache.capacity > room
        later = await engine.generate(request([*ids_of(1, 30), *other.ids, 5, 6], "s1"))
        if engine.prefixes.max_bytes:
            assert longer.prompt_cached == 29 + len(first.ids)
            assert later.prompt_cached == 29 + len(other.ids)
        return [first, other, longer, later]

    same(use(make(), work), use(make(cache_bytes=0), work))


def test_other_requests_share_pages_that_their_session_continues(make: MakeEngine) -> None:
    """In one wave: two requests that use more of it than the session still does, one that uses less."""
    history = ids_of(1, 40)

    async def work(engine: LocalEngine) -> list[Generation]:
        first = await engine.generate(request(history, "s"))
        said = [*history, *first.ids]
        wave = [
            request([*said, 11, 12], "t"), request([*history[:30], 21, 22, 23], "s"), request([*said, 31, 32], "u"),
            request([*history[:20], 41, 42]),
        ]  # fmt: skip
        replies = await asyncio.gather(*(engine.generate(one) for one in wave))
        if engine.prefixes.max_bytes:
            assert [reply.prompt_cached for reply in replies] == [len(said) - 1, 30, len(said) - 1, 20]
        return [first, *replies]

    same(use(make(), work), use(make(cache_bytes=0), work))


def test_sessions_are_released_and_a_closed_engine_can_be_used_again(make: MakeEngine) -> None:
    engine = make()

    async def turn(number: int, tokens: int = 3) -> Generation:
        return await engine.generate(request(ids_of(number, 30), f"s{number}", tokens=tokens))

    async def heard() -> None:
        await asyncio.sleep(0.5)

    async def before(engine: LocalEngine) -> list[Generation]:
        replies = list(await asyncio.gather(turn(0), turn(1)))
        assert engine.prefixes.num_sessions == 2
        engine.end_session("s0")
        await heard()
        assert engine.prefixes.num_sessions == 1
        engine.weights_changed(1)
        await heard()
        assert len(engine.prefixes) == 0
        replies.append(await turn(1))
        assert replies[-1].prompt_cached == 0
        under_way = asyncio.create_task(turn(2, 200))
        steps = engine.stats.decode_steps
        while engine.stats.decode_steps == steps:
            await asyncio.sleep(0.01)
        await engine.close()
        with pytest.raises(Exception, match="closed"):
            await under_way
        return replies

    async def after(engine: LocalEngine) -> list[Generation]:
        return list(await asyncio.gather(turn(0), turn(1), turn(2)))

    first, other, third = use(engine, before)
    again = use(engine, after)
    same([third, again[0], again[1]], [other, first, other])
    assert [reply.prompt_cached for reply in again] == [0, 29, 29]
