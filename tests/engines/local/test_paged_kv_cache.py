"""Pages of keys and values: they hold what was written, memory grows with tokens, and a bound changes no reply."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers import LlamaForCausalLM

from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local import paged_kv_cache
from practicum.engines.local.cpu_runner import CpuRunner, attention, causal_mask, descending_order, row_parts
from practicum.engines.local.engine import LocalEngine
from practicum.engines.local.kv_cache import PrefixCache
from practicum.engines.local.paged_kv_cache import PagedKVCache, block_count, block_of, block_start
from practicum.engines.local.runner import RunningRequest
from practicum.environment import Observation
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
@pytest.mark.parametrize("small_bytes", [0, 4096])
def test_pages_hold_what_was_written_whatever_is_moved(
    seed: int, small_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows come, grow, change places and go; each holds its own tokens all the while."""
    monkeypatch.setattr(paged_kv_cache, "SMALL_TENSOR_BYTES", small_bytes)
    rng, cache = random.Random(seed), make_cache()
    rows: list[tuple[float, int]] = []  # per row its own value, and the number of its tokens
    for _ in range(120):
        action = rng.random()
        if action < 0.4 and len(rows) < SLOTS:
            slot, length, value = len(rows), rng.randint(1, 300), rng.random()
            (tokens, *rest) = cache.prompt_tokens([(slot, 0, length)])
            states = torch.arange(length)[None, :, None, None] + torch.full((1, length, 2, 4), value)
            for layer in range(SMALL.layers):
                cache.write_prompts(layer, [tokens, *rest], states + layer, -states - layer)
            rows.append((value, length))
        elif action < 0.6 and rows:
            removed = rng.randrange(len(rows))
            cache.release(removed)
            last = len(rows) - 1
            if removed != last:
                cache.move(last, removed)
                rows[removed] = rows[last]
            rows.pop()
        elif rows:
            order = descending_order([block_count(length) for _, length in rows])
            if order is not None:
                cache.permute(order)
                rows = [rows[row] for row in order]
            blocks = [block_count(length) for _, length in rows]
            counts = [sum(count > block for count in blocks) for block in range(blocks[0])]
            cache.arrange(counts)
            for block, (keys, _) in enumerate(cache.read_rows(1, counts)):
                for row, (value, length) in enumerate(rows[: counts[block]]):
                    inside = min(length, block_start(block + 1)) - block_start(block)
                    expected = torch.arange(block_start(block), block_start(block) + inside) + value + 1
                    assert torch.allclose(keys[2 * row, 0, :inside], expected)
        for row, (value, length) in enumerate(rows):
            kv = torch.cat(cache.extract(row, length), 3)
            assert kv.shape == (2, 2, 2, length, 4)
            assert torch.allclose(kv[1, 0, 0, :, 0], torch.arange(length) + value + 1)
            assert torch.allclose(kv[0, 1, 1, :, 3], -torch.arange(length) - value)
    for _ in range(len(rows)):
        cache.release(len(rows) - 1)
        rows.pop()
    num_blocks = block_count(300)
    assert cache.num_bytes <= 16 * cache.bytes_of(1) + num_blocks * small_bytes


def test_pages_that_lie_one_after_the_other_are_read_as_those_that_do_not() -> None:
    cache = make_cache()
    states = torch.randn(3, 300, 2, 4)
    for slot in range(3):
        tokens = cache.prompt_tokens([(slot, 0, 300)])
        cache.write_prompts(1, tokens, states[slot : slot + 1], -states[slot : slot + 1])
    for slots in ([0, 1, 2], [1, 2], [2, 1, 0], [0, 2], [1]):
        keys, values = cache.read_prompts(1, cache.prompt_pages(slots, 384), torch.zeros(2, len(slots), 2, 384, 4))
        assert torch.equal(keys[:, :, :300], states[slots].transpose(1, 2))
        assert torch.equal(values, -keys)


class LargeResults(TorchDispatchMode):
    """The tensors of at least so many bytes that operations return, one per memory that is written to."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__()
        self.num_bytes = num_bytes
        self.tensors: list[torch.Tensor] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if isinstance(result, torch.Tensor) and result.nbytes >= self.num_bytes:
            known = {tensor.untyped_storage().data_ptr() for tensor in self.tensors}
            if result.untyped_storage().data_ptr() not in known:
                self.tensors.append(result)
        return result


def test_attention_in_one_tensor_of_scores_has_the_bits_of_single_operations() -> None:
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 40, 6, 32), torch.randn(3, 2, 384, 32), torch.randn(3, 2, 384, 32)
    positions = torch.tensor([300, 200, 7])[:, None] + torch.arange(40)
    mask = causal_mask(positions, 384, torch.float32)
    grouped = (q * 32**-0.5).view(3, 40, 2, 3, 32).permute(0, 2, 3, 1, 4).reshape(3, 2, 120, 32)
    weights = (torch.matmul(grouped, k.transpose(-1, -2)).view(3, 2, 3, 40, 384) + mask[:, :, None]).softmax(-1)
    weights = weights.view(6, 120, 384)
    parts = [slice(0, 64), slice(64, 128), slice(128, 256), slice(256, 384)]
    expected = torch.bmm(weights[:, :, parts[0]], v.flatten(0, 1)[:, parts[0]])
    for part in parts[1:]:
        expected.baddbmm_(weights[:, :, part], v.flatten(0, 1)[:, part])
    expected = expected.view(3, 2, 3, 40, 32).permute(0, 3, 1, 2, 4).reshape(3, 40, 192)
    scores = torch.full((6, 120, 384), torch.nan)
    for first_key in (0, 0, 7):
        last = causal_mask(positions, 384, torch.float32, first_key)
        assert torch.equal(attention(q, k, v, last, scores), expected)


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


def test_a_pass_over_a_prompt_has_one_tensor_of_scores(
    model: LlamaForCausalLM, renderer: Renderer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One per layer and operation goes back to the system each time, and the next one waits for its page faults."""
    large = LargeResults(4 * model.config.num_attention_heads * 500 * 500)
    prefill = CpuRunner.prefill

    def observed(runner: CpuRunner, wave: Sequence[RunningRequest]) -> None:
        with large:
            prefill(runner, wave)

    monkeypatch.setattr(CpuRunner, "prefill", observed)
    request = Request(tuple(range(30, 531)), Sampling(max_tokens=1), Task("t", "x", "train"), Observation(), ())
    generate(LocalEngine(Decoder(model), renderer, max_batch=8), [request])
    assert len(large.tensors) == 1


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
    engine.kv_cache.max_bytes = engine.kv_cache.bytes_of(300)
    largest = 0
    decode = engine.runner.decode

    def watched(running: list, end_ids: tuple) -> object:  # type: ignore[type-arg]
        nonlocal largest
        largest = max(largest, sum(engine.kv_cache.bytes_of(len(item.ids)) for item in running))  # type: ignore[attr-defined]
        return decode(running, end_ids)

    engine.runner.decode = watched  # type: ignore[method-assign, assignment]
    replies = generate(engine, requests)
    assert [(item.ids, item.logprobs) for item in replies] == [(item.ids, item.logprobs) for item in expected]
    assert engine.stats.preempted > 0
    assert largest <= engine.kv_cache.max_bytes


def request(seed: int, num_prompt: int, num_new: int, shared: int = 0) -> Request:
    """A prompt of its own behind `shared` ids that all have in common."""
    rng = random.Random(seed)
    ids = (
        *(30 + index % 600 for index in range(shared)),
        *(rng.randrange(30, 700) for _ in range(num_prompt - shared)),
    )
    sampling = Sampling(max_tokens=num_new, seed=seed)
    return Request(ids, sampling, Task("t", "x", "train"), Observation(), (), session=str(seed))


def texts(replies: list[Generation]) -> list[tuple[object, object]]:
    return [(item.ids, item.logprobs) for item in replies]


def test_pages_that_prefixes_have_in_common_are_kept_once(model: LlamaForCausalLM, renderer: Renderer) -> None:
    """Sessions that begin with the same 256 ids: each keeps one page of its own behind three that all have."""
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1)
    assert isinstance(engine.kv_cache, PagedKVCache)

    async def run() -> None:
        await engine.generate(request(0, 257, 1, shared=256))
        before = engine.prefixes.bytes
        await asyncio.gather(*(engine.generate(request(seed, 330, 4, shared=256)) for seed in range(1, 7)))
        assert engine.stats.reused == 6 * 256
        entries = [entry for entry in engine.prefixes if entry.session in set("123456")]
        assert len(entries) == 6
        assert len({id(entry.kv[2]) for entry in entries}) == 1
        unshared_bytes = sum(entry.bytes for entry in engine.prefixes)
        assert engine.prefixes.bytes < 0.5 * unshared_bytes
        assert engine.prefixes.bytes >= before + sum(entry.kv[3].nbytes for entry in entries)
        for entry in list(engine.prefixes):
            engine.prefixes.remove(entry)
        assert engine.prefixes.bytes == 0
        await engine.close()

    asyncio.run(run())


def test_a_long_prompt_is_computed_in_pieces_beside_decode_steps(model: LlamaForCausalLM, renderer: Renderer) -> None:
    """Others decode between its pieces, nothing is computed twice, and all replies are those of an idle engine."""
    batch = [request(seed, 20, 60) for seed in range(3)] + [request(9, 1900, 8), request(10, 20, 4)]
    alone = []
    for item in batch:
        alone += generate(LocalEngine(Decoder(model), renderer, max_batch=8, threads=1), [item])
    engine = LocalEngine(Decoder(model), renderer, max_batch=8, threads=1)
    waiting: list[int] = []
    decode = engine.runner.decode

    def watched(running: list, end_ids: tuple) -> object:  # type: ignore[type-arg]
        waiting.append(sum(item.computed is not None and item.index < 0 for item in engine.waiting))
        return decode(running, end_ids)

    engine.runner.decode = watched  # type: ignore[method-assign, assignment]
    replies = generate(engine, batch)
    assert texts(replies) == texts(alone)
    assert sum(waiting) >= 3, "nobody decoded between the pieces"
    assert engine.stats.prefilled == sum(len(item.ids) - 1 for item in batch)
    assert [item.prompt_cached for item in replies] == [0] * len(batch)


def test_threads_change_no_bit(model: LlamaForCausalLM, renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("practicum.engines.local.cpu_runner.MIN_ROWS_PER_THREAD", 8)
    batch = [request(seed, 10 + 7 * seed, 12, shared=8) for seed in range(40)]
    settings = dataclasses.replace(LocalEngine(Decoder(model), renderer).settings, row_threads=1)
    replies = []
    for threads in (1, 3):
        engine = LocalEngine(Decoder(model), renderer, max_batch=40)
        engine.runner = CpuRunner(engine.decoder, engine.kv_cache, dataclasses.replace(settings, row_threads=threads))
        replies.append(texts(generate(engine, batch)))
    assert replies[0] == replies[1]


def test_rows_are_sorted_with_as_few_moves_as_possible() -> None:
    assert descending_order([3, 3, 2, 1, 1]) is None
    assert descending_order([1, 3, 3, 2]) == [2, 1, 3, 0]
    rng = random.Random(0)
    for _ in range(50):
        counts = [rng.randint(1, 4) for _ in range(rng.randint(1, 20))]
        order = descending_order(counts) or list(range(len(counts)))
        assert sorted(order) == list(range(len(counts)))
        assert [counts[row] for row in order] == sorted(counts, reverse=True)
        stay = sum(a == b for a, b in zip(counts, sorted(counts, reverse=True), strict=True))
        assert sum(row == index for index, row in enumerate(order)) == stay


def test_parts_of_a_batch_are_multiples_of_eight_and_worth_a_thread() -> None:
    assert row_parts(120, 2) == [slice(0, 120)]
    assert row_parts(136, 2) == [slice(0, 64), slice(64, 136)]
    assert row_parts(256, 3) == [slice(0, 80), slice(80, 168), slice(168, 256)]
