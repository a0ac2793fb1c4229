"""Pages of keys and values: they hold what was written, memory grows with tokens, and a bound changes no reply."""

from __future__ import annotations

import asyncio
import random

import pytest
import torch
from transformers import LlamaForCausalLM

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.cpu_runner import descending_order
from practicum.engines.local.engine import LocalEngine
from practicum.engines.local.kv_cache import PrefixCache
from practicum.engines.local.paged_kv_cache import PagedKVCache, block_count, block_of, block_start
from practicum.environment import Observation
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.decoder import Decoder, Shape
from practicum.task import Task

SMALL = Shape(layers=2, hidden=8, heads=2, kv_heads=2, head_size=4, vocabulary=9, context=600)
SMOLLM2 = Shape(layers=30, hidden=576, heads=9, kv_heads=3, head_size=64, vocabulary=49152, context=8192)
SLOTS = 12


def make_cache(shape: Shape = SMALL, slots: int = SLOTS) -> PagedKVCache:
    return PagedKVCache(shape, slots, torch.float32, torch.device("cpu"), PrefixCache(0))


def test_blocks_cover_all_positions() -> None:
    for position in range(1000):
        block = block_of(position)
        assert block_start(block) <= position < block_start(block + 1)
        assert block_count(position + 1) == block + 1


@pytest.mark.parametrize("seed", range(4))
def test_pages_hold_what_was_written_whatever_is_moved(seed: int) -> None:
    """Rows come, grow, change places and go; each holds its own tokens all the while."""
    rng, cache = random.Random(seed), make_cache()
    held: list[tuple[float, int]] = []  # per row its own value, and the number of its tokens
    for _ in range(120):
        action = rng.random()
        if action < 0.4 and len(held) < SLOTS:
            slot, length, value = len(held), rng.randint(1, 300), rng.random()
            (tokens, *rest) = cache.prompt_tokens([(slot, 0, length)])
            states = torch.arange(length)[None, :, None, None] + torch.full((1, length, 2, 4), value)
            for layer in range(SMALL.layers):
                cache.write_prompts(layer, [tokens, *rest], states + layer, -states - layer)
            held.append((value, length))
        elif action < 0.6 and held:
            gone = rng.randrange(len(held))
            cache.release(gone)
            last = len(held) - 1
            if gone != last:
                cache.move(last, gone)
                held[gone] = held[last]
            held.pop()
        elif held:
            order = descending_order([block_count(length) for _, length in held])
            if order is not None:
                cache.permute(order)
                held = [held[row] for row in order]
            blocks = [block_count(length) for _, length in held]
            counts = [sum(count > block for count in blocks) for block in range(blocks[0])]
            cache.arrange(counts)
            for block, (keys, _) in enumerate(cache.read_rows(1, counts)):
                for row, (value, length) in enumerate(held[: counts[block]]):
                    inside = min(length, block_start(block + 1)) - block_start(block)
                    expected = torch.arange(block_start(block), block_start(block) + inside) + value + 1
                    assert torch.allclose(keys[2 * row, 0, :inside], expected)
        for row, (value, length) in enumerate(held):
            kv = torch.cat(cache.extract(row, length), 3)
            assert kv.shape == (2, 2, 2, length, 4)
            assert torch.allclose(kv[1, 0, 0, :, 0], torch.arange(length) + value + 1)
            assert torch.allclose(kv[0, 1, 1, :, 3], -torch.arange(length) - value)
    for _ in range(len(held)):
        cache.release(len(held) - 1)
        held.pop()
    assert cache.num_bytes <= 16 * cache.bytes_of(1)


def test_a_long_request_of_smollm2_holds_its_own_tokens_only() -> None:
    cache = make_cache(SMOLLM2, 64)
    cache.reserve(0, 2000)
    cache.reserve_pages(0, 8)  # a batch is padded to eight rows, which read the first block
    assert cache.bytes_of(2000) < cache.num_bytes < 0.3e9
    cache.release(0)
    assert cache.num_bytes < 0.03e9


@pytest.fixture(scope="module")
def model() -> LlamaForCausalLM:
    return loader.load_tiny(3).model


def generate(engine: LocalEngine, requests: list[Request]) -> list[Generation]:
    async def run() -> list[Generation]:
        try:
            return list(await asyncio.gather(*map(engine.generate, requests)))
        finally:
            await engine.close()

    return asyncio.run(run())


def test_a_bound_that_is_far_too_small_changes_no_reply(model: LlamaForCausalLM, renderer: Renderer) -> None:
    rng = random.Random(0)
    requests = [
        Request(
            tuple(rng.randrange(30, 700) for _ in range(rng.randint(4, 120))),
            Sampling(max_tokens=rng.randint(20, 90), seed=seed), Task("t", "x", "train"), Observation(), (),
        )
        for seed in range(16)
    ]  # fmt: skip
    free = LocalEngine(Decoder(model), renderer, max_batch=16, threads=1)
    expected = generate(free, requests)
    assert free.stats.preempted == 0
    engine = LocalEngine(Decoder(model), renderer, max_batch=16, threads=1)
    assert isinstance(engine.kv_cache, PagedKVCache)
    engine.kv_bytes = engine.kv_cache.bytes_of(300)
    largest = 0
    decode = engine.runner.decode

    def watched(running: list, end_ids: tuple) -> object:  # type: ignore[type-arg]
        nonlocal largest
        largest = max(largest, sum(engine.kv_cache.bytes_of(len(one.ids)) for one in running))  # type: ignore[attr-defined]
        return decode(running, end_ids)

    engine.runner.decode = watched  # type: ignore[method-assign, assignment]
    replies = generate(engine, requests)
    assert [(one.ids, one.logprobs) for one in replies] == [(one.ids, one.logprobs) for one in expected]
    assert engine.stats.preempted > 0
    assert largest <= engine.kv_bytes


def test_a_bound_needs_pages(model: LlamaForCausalLM, renderer: Renderer) -> None:
    class SlotRunner:
        from practicum.engines.local.kv_cache import KVCache as kv_cache_type

        def __init__(self, *arguments: object) -> None: ...

    with pytest.raises(UserError, match="is for a CPU"):
        LocalEngine(Decoder(model), renderer, kv_bytes=1 << 20, runner=SlotRunner)  # type: ignore[arg-type]
