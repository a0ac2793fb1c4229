"""Turns that go on where the last one left its keys, on CPU in Triton's interpreter: they say what turns without any
cache say, and nothing that is kept is ever written to."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.models.decoder import Decoder
from practicum.task import Task

pytestmark = pytest.mark.skipif(not os.environ.get("TRITON_INTERPRET"), reason="a GPU has tests/engines/test_cuda.py")
SMALL = LlamaConfig(
    vocab_size=800, hidden_size=64, intermediate_size=64, num_hidden_layers=2, num_attention_heads=2,
    num_key_value_heads=1, max_position_embeddings=640, initializer_range=0.2,
)  # fmt: skip
Made = Callable[..., LocalEngine]


class Played:
    """What stands for a captured graph."""

    def __init__(self, step: Callable[[], None]) -> None:
        self.replay = step


@pytest.fixture
def make(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> Made:
    """An engine with a GPU's steps, which looks after every burst whether anything that is kept has changed."""
    from practicum.engines.local.cuda_runner import CudaRunner

    def capture(self: CudaRunner, key: tuple[int, bool, bool, bool]) -> None:
        self._graphs[key] = Played(lambda: self._burst(*key))

    monkeypatch.setattr(CudaRunner, "_capture", capture)
    monkeypatch.setattr(
        "practicum.engines.local.engine.IDLE_THREAD_SECONDS", 0.3
    )  # what is asked for together is let in together
    torch.manual_seed(0)
    model = LlamaForCausalLM(SMALL).eval()

    def made(**options: Any) -> LocalEngine:
        engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1, burst=2, **options)
        steps = engine._steps = CudaRunner(engine, 2)

        def watched(*arguments: Any) -> None:
            homes = engine._homes
            free = homes.of[len(engine._rows) :]
            assert sorted(homes.of) == list(range(8))
            assert set(engine.prefixes.resident) <= set(free)
            kept = [(home, len(entry.ids)) for home, entry in engine.prefixes.resident.items()]
            before = [engine._kv[:, :, home, :, :length].clone() for home, length in kept]
            launch(*arguments)
            for (home, length), known in zip(kept, before, strict=True):
                assert torch.equal(engine._kv[:, :, home, :, :length], known)
            assert int(engine._position[homes.spare]) == 0

        launch = steps.launch
        monkeypatch.setattr(steps, "launch", watched)
        return engine

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
    """All sessions speak at once; what they hear is of different lengths, so that they end and come at different times.
    One of three forgets half of what it said: its prompts leave what was kept."""

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


def test_turns_are_those_of_an_engine_that_keeps_nothing(make: Made) -> None:
    engine, bare = make(), make(cache_bytes=0)
    found = use(engine, talk(5, 3))
    same(found, use(bare, talk(5, 3)))
    assert bare.stats.reused == 0
    assert not bare.prefixes.resident
    assert all(reply.prompt_cached >= 20 for number, reply in enumerate(found) if number % 3)
    assert not any(entry.session for entry in engine.prefixes._entries.values())  # forgotten, all of them


def test_more_sessions_than_homes(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    from practicum.engines.local.prefix_cache import PrefixCache

    moved: list[int] = []
    move_out = PrefixCache.move_out

    def counted(self: PrefixCache, entry: Any, kv: torch.Tensor) -> None:
        moved.append(entry.home)
        move_out(self, entry, kv)

    monkeypatch.setattr(PrefixCache, "move_out", counted)
    same(use(make(), talk(11, 2)), use(make(cache_bytes=0), talk(11, 2)))
    assert moved


def test_a_buffer_that_grows_between_two_turns(make: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("practicum.engines.local.engine.KEY_BUCKET", 16)

    async def work(engine: LocalEngine) -> list[Generation]:
        first, other = await asyncio.gather(*(engine.generate(request(ids_of(n, 30), f"s{n}")) for n in range(2)))
        room = engine._capacity
        longer = await engine.generate(request([*ids_of(0, 30), *first.ids, *ids_of(2, 40)], "s0"))
        assert engine._capacity > room
        later = await engine.generate(request([*ids_of(1, 30), *other.ids, 5, 6], "s1"))
        if engine.prefixes.max_bytes:
            assert longer.prompt_cached == 29 + len(first.ids)
            assert later.prompt_cached == 29 + len(other.ids)
        return [first, other, longer, later]

    same(use(make(), work), use(make(cache_bytes=0), work))


def test_chains_copy_from_what_its_session_takes_over(make: Made) -> None:
    """In one wave: two chains that want more of it than the session still does, one that wants less."""
    history = ids_of(1, 40)

    async def work(engine: LocalEngine) -> list[Generation]:
        first = await engine.generate(request(history, "s"))
        (home,) = engine.prefixes.resident or [None]
        said = [*history, *first.ids]
        wave = [
            request([*said, 11, 12], "t"), request([*history[:30], 21, 22, 23], "s"), request([*said, 31, 32], "u"),
            request([*history[:20], 41, 42]),
        ]  # fmt: skip
        replies = await asyncio.gather(*(engine.generate(one) for one in wave))
        if home is not None:
            assert [reply.prompt_cached for reply in replies] == [len(said) - 1, 30, len(said) - 1, 20]
            assert engine.prefixes._by_session["s"].home == home
        return [first, *replies]

    same(use(make(), work), use(make(cache_bytes=0), work))


def test_homes_are_released_and_a_closed_engine_goes_on(make: Made) -> None:
    engine = make()

    async def turn(number: int, tokens: int = 3) -> Generation:
        return await engine.generate(request(ids_of(number, 30), f"s{number}", tokens=tokens))

    async def heard() -> None:
        while not engine._inbox.empty() or engine._forgotten:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.1)

    async def before(engine: LocalEngine) -> list[Generation]:
        replies = list(await asyncio.gather(turn(0), turn(1)))
        assert len(engine.prefixes.resident) == 2
        engine.end_session("s0")
        await heard()
        assert [entry.session for entry in engine.prefixes.resident.values()] == ["s1"]
        engine.weights_changed(1)
        await heard()
        assert not engine.prefixes.resident
        replies.append(await turn(1))
        assert replies[-1].prompt_cached == 0
        under_way = asyncio.create_task(turn(2, 200))
        while not engine._rows:
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
    assert [reply.prompt_cached for reply in again] == [0, 29, 0]
