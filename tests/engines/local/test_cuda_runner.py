"""`CudaRunner` on a GPU: each kernel against plain PyTorch, the engine against the learner's forward pass."""

from __future__ import annotations

import asyncio
import copy
import gc
import random
import weakref
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from practicum.chat.grammar import TokenMasks
from practicum.chat.renderer import Renderer
from practicum.chat.sampling_mask import KeptTokens, decode_kept
from practicum.engines.base import MAX_TOP_LOGPROBS, Generation, Request, Sampling
from practicum.engines.local.cuda_kv_cache import CudaKVCache
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.models.lora import LoRASettings, add_adapter
from practicum.task import Task
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.objective import compute_logprobs
from tests.engines.local.schemas import SCHEMAS, response_format
from tests.kernels.pages import PagedRows

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU")
TASK = Task("t", "x", "train")
SIZES = {
    "vocab_size": 800, "hidden_size": 192, "intermediate_size": 448, "num_hidden_layers": 4, "num_attention_heads": 6,
    "num_key_value_heads": 2, "max_position_embeddings": 640, "initializer_range": 0.08,
}  # fmt: skip


def build_model(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "qwen2":
        model: PreTrainedModel = Qwen2ForCausalLM(Qwen2Config(**SIZES))
        for parameter in model.parameters():
            if parameter.dim() == 1:
                torch.nn.init.normal_(parameter, mean=1.0, std=0.3)
        return model.eval()
    if name == "qwen3":
        return Qwen3ForCausalLM(Qwen3Config(**SIZES, head_dim=64)).eval()
    return LlamaForCausalLM(LlamaConfig(**SIZES, tie_word_embeddings=True)).eval()


def random_tensor(*shape: int, dtype: torch.dtype = torch.bfloat16) -> Tensor:
    return torch.randn(*shape, device="cuda").to(dtype)


def close(actual: Tensor, expected: Tensor, limit: float) -> None:
    error = float((actual.double() - expected.double()).norm() / expected.double().norm())
    assert error < limit, error


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_add_norm(dtype: torch.dtype) -> None:
    from practicum.kernels.fused_layers import add_norm

    x, delta, weight = (random_tensor(*shape, dtype=dtype) for shape in ((40, 576), (40, 576), (576,)))
    expected = x + delta
    out = add_norm(x, delta, weight, 1e-5, x)
    assert torch.equal(x, expected)
    close(out, F.rms_norm(expected.double(), (576,), weight.double(), 1e-5), 1e-2 if dtype == torch.bfloat16 else 1e-5)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(("heads", "kv_heads", "size", "rows"), [(9, 3, 64, 300), (4, 4, 32, 5), (32, 2, 128, 40)])
def test_attention_over_rows_of_every_length(
    dtype: torch.dtype, heads: int, kv_heads: int, size: int, rows: int
) -> None:
    from practicum.kernels import decode_attention

    kv = random_tensor(2, rows, kv_heads, 512, size, dtype=dtype)
    query = random_tensor(rows, heads, size, dtype=dtype)
    positions = torch.randint(0, 512, (rows,), device="cuda")
    positions[0], positions[-1] = 0, 511
    mask = torch.arange(512, device="cuda") <= positions[:, None]
    wide = kv.double().repeat_interleave(heads // kv_heads, dim=2)
    expected = F.scaled_dot_product_attention(
        query.double()[:, :, None], wide[0], wide[1], attn_mask=mask[:, None, None]
    )[:, :, 0]
    slots = torch.randperm(rows, device="cuda")
    placed = torch.empty_like(kv)
    placed[:, slots] = kv
    paged = PagedRows(placed)
    out = decode_attention.attend(query, paged.layer, slots, positions).view(rows, heads, size)
    close(out, expected, 1e-2 if dtype == torch.bfloat16 else 1e-5)
    assert torch.equal(out.flatten(1), decode_attention.attend(query, paged.layer, slots, positions))


@pytest.mark.parametrize(("inner", "outer"), [(576, 960), (576, 576), (576, 3072), (1536, 576), (576, 49152)])
def test_a_row_of_a_matrix_product_does_not_depend_on_the_number_of_rows(inner: int, outer: int) -> None:
    from practicum.kernels.lm_head import float32_matmul

    loader.set_batch_invariant_matmul()
    x, weight = random_tensor(4096, inner), random_tensor(outer, inner)
    many = F.linear(x, weight)
    for rows in (8, 64, 256, 1024):
        assert torch.equal(F.linear(x[:rows], weight), many[:rows]), rows
    if outer > 40000:
        wide = float32_matmul(x, weight)
        assert torch.equal(float32_matmul(x[:256], weight), wide[:256])


def test_silu_and_mul() -> None:
    from practicum.kernels.fused_layers import silu_and_mul

    joined = random_tensor(37, 2 * 1536)
    gate, up = joined.double().chunk(2, -1)
    close(silu_and_mul(joined), F.silu(gate) * up, 1e-2)


def test_sampling_is_the_inverse_of_the_distribution() -> None:
    from practicum.kernels import decode_attention

    logits = random_tensor(200, 49152) * 3
    noise = torch.rand(200, 7, device="cuda")
    temperature = torch.where(torch.arange(200, device="cuda") % 3 == 0, 0.0, torch.rand(200, device="cuda") + 0.5)
    steps = torch.randint(0, 7, (200,), device="cuda")
    slots = torch.randperm(200, device="cuda")
    placed_noise, placed_temperature = torch.empty_like(noise), torch.empty_like(temperature)
    placed_noise[slots], placed_temperature[slots] = noise, temperature
    counters = torch.arange(2 * 200, device="cuda").reshape(2, 200)
    state = [*counters.clone(), torch.empty_like(steps)]
    state[2][slots] = steps
    actual = torch.full((200, 3, 2), -7.0, dtype=torch.float64, device="cuda")
    decode_attention.sample(logits, placed_noise, placed_temperature, slots, tuple(state), actual, 1, 7)
    assert bool((actual[:, [0, 2]] == -7).all())
    ids, logprobs = actual[:, 1, 0].long(), actual[:, 1, 1].float()
    assert torch.equal(state[0][slots], ids)
    assert torch.equal(state[1], torch.where(torch.arange(200, device="cuda") == 7, 0, counters[1] + 1))
    assert torch.equal(state[2][slots], steps + 1)
    divisor = torch.where(temperature == 0, 1.0, temperature)[:, None]
    exact = (logits.double() / divisor).log_softmax(-1)
    assert torch.allclose(logprobs.double(), exact.gather(-1, ids[:, None])[:, 0], atol=1e-4)
    greedy = temperature == 0
    assert torch.equal(ids[greedy], logits[greedy].argmax(-1))
    above = exact.exp().cumsum(-1).gather(-1, ids[:, None])[:, 0]
    below = above - exact.exp().gather(-1, ids[:, None])[:, 0]
    uniform = noise[torch.arange(200, device="cuda"), steps].double()
    assert bool(((below - 1e-5 <= uniform) & (uniform <= above + 1e-5))[~greedy].all())


def requests(count: int, seed: int = 0, adapter: str = "") -> list[Request]:
    rng = random.Random(seed)
    shared = tuple(rng.randrange(10, 780) for _ in range(50))
    made = []
    for number in range(count):
        ids = shared if number % 3 else tuple(rng.randrange(10, 780) for _ in range(rng.randint(3, 400)))
        sampling = Sampling(rng.choice([0.0, 0.8, 1.0]), max_tokens=rng.randint(1, 60), seed=number)
        made.append(Request(ids, sampling, TASK, Observation(), (), session=f"s{number}", adapter=adapter))
    return made


def generate(engine: LocalEngine, batch: list[Request]) -> list[Generation]:
    async def run() -> list[Generation]:
        try:
            return list(await asyncio.gather(*(engine.generate(req) for req in batch)))
        finally:
            await engine.close()

    return asyncio.run(run())


@pytest.mark.parametrize(("dtype", "limit"), [(torch.float32, 2e-3), (torch.bfloat16, 0.25)])
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_logprobs_are_the_models_own(name: str, dtype: torch.dtype, limit: float, renderer: Renderer) -> None:
    model = build_model(name).to("cuda", dtype)
    batch = requests(90)
    replies = generate(LocalEngine(Decoder(model), renderer, max_batch=32), batch)
    exact = build_model(name).double().to("cuda")
    off = []
    for req, reply in zip(batch, replies, strict=True):
        ids = torch.tensor([[*req.ids, *reply.ids]], device="cuda")
        with torch.no_grad():
            rows = exact(ids).logits[0, len(req.ids) - 1 : -1] / (req.sampling.temperature or 1.0)
        expected = rows.log_softmax(-1).gather(-1, torch.tensor(reply.ids, device="cuda")[:, None])[:, 0]
        assert reply.logprobs is not None
        off.append((torch.tensor(reply.logprobs, device="cuda").double() - expected).abs())
    assert float(torch.cat(off).max()) < limit
    assert float(torch.cat(off).mean()) < limit / 8


def learner_logprobs(decoder: Decoder, pairs: list[tuple[Request, Generation]]) -> Tensor:
    """The log-probs that the learner computes of all replies' tokens."""
    samples = []
    for req, reply in pairs:
        ids = (*req.ids, *reply.ids)
        mask = np.arange(len(ids)) >= len(req.ids)
        zeros = np.zeros(len(ids), dtype=np.float32)
        samples.append(Sample(ids, mask, zeros, zeros, zeros, req.sampling.temperature))
    return torch.cat([actual.cpu() for actual in compute_logprobs(decoder, samples, MicroBatchLimits(512))])


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_engine_and_learner_agree_to_the_last_bits(name: str, renderer: Renderer) -> None:
    """In bfloat16, in any batch, with any part of the prompt cached, and however the learner packs it."""
    decoder = Decoder(build_model(name).to("cuda", torch.bfloat16))
    batch = [req for req in requests(90) if req.sampling.temperature]
    replies = generate(LocalEngine(decoder, renderer, max_batch=32), batch)
    expected = learner_logprobs(decoder, list(zip(batch, replies, strict=True)))
    engine_logprobs = torch.tensor([value for reply in replies for value in reply.logprobs or ()])
    assert float((expected - engine_logprobs).abs().max()) < 1e-4
    assert float((expected - engine_logprobs).abs().mean()) < 1e-5


def test_the_same_seed_gives_the_same_tokens(renderer: Renderer) -> None:
    first, second = (
        generate(
            LocalEngine(Decoder(build_model("llama").to("cuda", torch.bfloat16)), renderer, max_batch=48), requests(90)
        )
        for _ in range(2)
    )
    assert [(reply.ids, reply.logprobs) for reply in first] == [(reply.ids, reply.logprobs) for reply in second]


def test_joint_reads_of_a_shared_prefix_change_no_reply(renderer: Renderer, monkeypatch: pytest.MonkeyPatch) -> None:
    from practicum.engines.local.cuda_runner import CudaRunner

    batch = [replace(req, ids=(*range(100, 180), *req.ids)) for req in requests(90)]
    batch += [replace(req, sampling=replace(req.sampling, top_k=5), session="") for req in batch[:6]]
    actual = []
    for joint_bytes in (1 << 60, 0):
        monkeypatch.setattr("practicum.engines.local.shared_prefix.MIN_JOINT_READ_BYTES", joint_bytes)
        engine = LocalEngine(Decoder(build_model("llama").to("cuda", torch.bfloat16)), renderer, max_batch=48)
        actual.append(generate(engine, batch))
        assert isinstance(engine.runner, CudaRunner)
        assert any(joint for *_, joint in engine.runner.captured) == (joint_bytes == 0)
    alone, joint = ([(reply.ids, reply.logprobs) for reply in replies] for replies in actual)
    assert joint == alone


def test_the_most_likely_tokens_change_no_reply_and_are_the_cpus(renderer: Renderer) -> None:
    """Of filtered, greedy and plain requests and of one with a response format, beside some that do not ask."""
    model = build_model("llama")
    plain = requests(60)
    plain += [replace(req, sampling=replace(req.sampling, top_k=5), session="") for req in plain[:12]]
    plain += [replace(plain[5], response_format={"type": "choice", "choice": ["x", "yz"]}, session="")]
    counts = (3, 0, MAX_TOP_LOGPROBS, 1)
    with_top = [replace(req, top_logprobs=counts[number % 4]) for number, req in enumerate(plain)]
    on_cpu = generate(LocalEngine(Decoder(copy.deepcopy(model)), renderer, max_batch=48), with_top)
    for dtype, limit in ((torch.float32, 1e-2), (torch.bfloat16, None)):
        decoder = Decoder(copy.deepcopy(model).to("cuda", dtype))
        quiet, replies = (generate(LocalEngine(decoder, renderer, max_batch=48), batch) for batch in (plain, with_top))
        assert [(reply.ids, reply.logprobs) for reply in replies] == [(reply.ids, reply.logprobs) for reply in quiet]
        num_compared = 0
        for request, reply, other in zip(with_top, replies, on_cpu, strict=True):
            assert len(reply.top_logprobs) == (len(reply.ids) if request.top_logprobs else 0)
            for token, logprob, top in zip(reply.ids, reply.logprobs or (), reply.top_logprobs, strict=False):
                values = [value for _, value in top]
                assert 0 < len(top) <= request.top_logprobs
                assert values == sorted(values, reverse=True)
                assert dict(top).get(token, logprob) == pytest.approx(logprob, abs=1e-3)
            if limit is not None and reply.ids == other.ids:
                num_compared += len(reply.top_logprobs)
                for own, expected in zip(reply.top_logprobs, other.top_logprobs, strict=True):
                    assert [value for _, value in own] == pytest.approx([value for _, value in expected], abs=limit)
        assert limit is None or num_compared > 200


@pytest.mark.parametrize("sessions", [12, 40])
def test_turns_that_continue_the_pages_of_the_last_one(sessions: int, renderer: Renderer) -> None:
    """With as many sessions as slots, and with more: the replies are those of an engine that caches nothing."""
    model = build_model("llama").to("cuda", torch.bfloat16)

    async def converse(engine: LocalEngine, number: int) -> list[Generation]:
        rng = random.Random(number)
        history = [*range(30, 70), *(rng.randrange(10, 780) for _ in range(rng.randint(3, 60)))]
        replies = []
        for turn in range(4):
            sampling = Sampling(1.0, max_tokens=rng.randint(1, 30), seed=100 * number + turn)
            sent = Request(tuple(history), sampling, TASK, Observation(), (), session=f"s{number}", final=turn == 3)
            replies.append(await engine.generate(sent))
            reply_ids = replies[-1].ids[rng.choice([0, 0, 3]) :]  # as where thoughts are stripped
            history += [*reply_ids, *(rng.randrange(10, 780) for _ in range(rng.randint(1, 40)))]
        engine.end_session(f"s{number}")
        return replies

    async def run(engine: LocalEngine) -> list[Generation]:
        try:
            replies = await asyncio.gather(*(converse(engine, number) for number in range(sessions)))
        finally:
            await engine.close()
        return [reply for own in replies for reply in own]

    keeping, bare = (LocalEngine(Decoder(model), renderer, max_batch=16, cache_bytes=size) for size in (None, 0))
    actual, expected = asyncio.run(run(keeping)), asyncio.run(run(bare))
    assert keeping.stats.reused > bare.stats.reused == 0
    assert keeping.prefixes.num_sessions == 0
    assert [reply.ids for reply in actual] == [reply.ids for reply in expected]
    for mine, other in zip(actual, expected, strict=True):
        assert mine.logprobs == pytest.approx(other.logprobs, abs=1e-4)


def test_a_bound_that_is_far_too_small_changes_no_reply(renderer: Renderer) -> None:
    """Requests wait, and some may be begun anew while decode calls with them are under way."""
    model = build_model("llama").to("cuda", torch.bfloat16)
    batch = [replace(req, sampling=replace(req.sampling, max_tokens=120)) for req in requests(60)]
    free = LocalEngine(Decoder(model), renderer, max_batch=32)
    expected = generate(free, batch)
    assert free.stats.preempted == 0
    engine = LocalEngine(Decoder(model), renderer, max_batch=32)
    assert isinstance(engine.kv_cache, CudaKVCache)
    engine.kv_cache.max_bytes = engine.kv_cache.bytes_of(1500)
    actual = generate(engine, batch)
    assert [(reply.ids, reply.logprobs) for reply in actual] == [(reply.ids, reply.logprobs) for reply in expected]
    assert engine.stats.decode_steps > free.stats.decode_steps
    assert engine.kv_cache.num_bytes <= engine.kv_cache.bytes_of(1500) + engine.kv_cache.bytes_of(1)


def test_a_long_prompt_is_computed_in_pieces_beside_decode_steps(renderer: Renderer) -> None:
    model = build_model("llama").to("cuda", torch.bfloat16)
    batch = requests(40)
    expected = generate(LocalEngine(Decoder(model), renderer, max_batch=32), batch)
    engine = LocalEngine(Decoder(model), renderer, max_batch=8)
    engine.settings = replace(engine.settings, piece_tokens=100)
    actual = generate(engine, batch)
    assert [(reply.ids, reply.logprobs) for reply in actual] == [(reply.ids, reply.logprobs) for reply in expected]


def test_a_closed_engine_leaves_nothing_behind(renderer: Renderer) -> None:
    """Without the garbage collector, which does not look at what was there when episodes began."""
    engine = LocalEngine(Decoder(build_model("llama").to("cuda", torch.bfloat16)), renderer, max_batch=16)
    generate(engine, requests(20))
    reference = weakref.ref(engine)
    gc.disable()
    try:
        del engine
        assert reference() is None
    finally:
        gc.enable()


def test_adapters_in_the_decode_path(renderer: Renderer, tmp_path: Path) -> None:
    import peft

    torch.manual_seed(1)
    wrapped = peft.get_peft_model(
        build_model("llama"), peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
    )
    with torch.no_grad():
        for key, parameter in wrapped.named_parameters():
            if "lora_B" in key:
                parameter.normal_(std=0.05)
    wrapped.save_pretrained(str(tmp_path))
    exact = wrapped.double().to("cuda").eval()
    batch = [*requests(20, 1, "a"), *requests(20, 1)]

    async def run() -> list[Generation]:
        engine = LocalEngine(Decoder(build_model("llama").to("cuda")), renderer, max_batch=64)
        await engine.load_adapter("a", tmp_path)
        try:
            return list(await asyncio.gather(*(engine.generate(req) for req in batch)))
        finally:
            await engine.close()

    for req, reply in zip(batch, asyncio.run(run()), strict=True):
        ids = torch.tensor([[*req.ids, *reply.ids]], device="cuda")
        with torch.no_grad():
            if req.adapter:
                rows = exact(ids).logits
            else:
                with exact.disable_adapter():
                    rows = exact(ids).logits
        rows = rows[0, len(req.ids) - 1 : -1] / (req.sampling.temperature or 1.0)
        expected = rows.log_softmax(-1).gather(-1, torch.tensor(reply.ids, device="cuda")[:, None])[:, 0]
        assert reply.logprobs is not None
        assert torch.allclose(torch.tensor(reply.logprobs, device="cuda").double(), expected, atol=3e-3)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_engine_and_learner_agree_on_adapters_beside_one_base(name: str, renderer: Renderer) -> None:
    """In bfloat16: two adapters, of which one has a scale that is no power of two, and the base model in one batch."""
    base = build_model(name).to("cuda", torch.bfloat16)
    learners = {"": Decoder(base)}
    adapted = {}
    for seed, (adapter, rank, alpha) in enumerate((("a", 8, 12.0), ("b", 16, 32.0)), 1):
        loaded = loader.LoadedModel(copy.deepcopy(base), renderer.tokenizer, name)
        adapted[adapter] = add_adapter(loaded, LoRASettings(rank, alpha), seed=seed).adapter
        with torch.no_grad():
            for key, parameter in adapted[adapter].named_parameters():
                if "lora_B" in key:
                    parameter.normal_(std=0.05)
        learners[adapter] = Decoder(loaded.model)
    batch = [req for key in learners for req in requests(30, 1, key) if req.sampling.temperature]

    async def run() -> list[Generation]:
        engine = LocalEngine(Decoder(base), renderer, max_batch=32)
        for key, model in adapted.items():
            await engine.load_adapter(key, model)
        try:
            return list(await asyncio.gather(*(engine.generate(req) for req in batch)))
        finally:
            await engine.close()

    replies = asyncio.run(run())
    for key, decoder in learners.items():
        pairs = [(req, reply) for req, reply in zip(batch, replies, strict=True) if req.adapter == key]
        engine_logprobs = torch.tensor([value for _, reply in pairs for value in reply.logprobs or ()])
        assert float((learner_logprobs(decoder, pairs) - engine_logprobs).abs().max()) < 1e-4, key
        assert float((learner_logprobs(decoder, pairs) - engine_logprobs).abs().mean()) < 1e-5, key


def test_constrained_and_filtered_replies_agree_with_the_learner(renderer: Renderer) -> None:
    """Beside free replies, in captured graphs: the forms are kept, and the learner finds the same log-probs."""
    decoder = Decoder(build_model("llama").to("cuda", torch.bfloat16))
    forms = [response_format(SCHEMAS[1]), None, {"type": "regex", "regex": "[ab]{2,40}"}]
    filters = [{}, {"top_p": 0.7, "min_p": 0.01}, {"top_k": 5}]
    batch = [
        replace(
            req,
            response_format=forms[number % 3],
            sampling=replace(req.sampling, temperature=0.9, max_tokens=90, **filters[number % 4 % 3]),
        )
        for number, req in enumerate(requests(60))
    ]
    replies = generate(LocalEngine(decoder, renderer, max_batch=32), batch)
    samples = []
    for req, reply in zip(batch, replies, strict=True):
        ids = (*req.ids, *reply.ids)
        masks: tuple[tuple[int, TokenMasks | KeptTokens], ...] = ()
        if reply.kept is not None:
            masks = ((len(req.ids), KeptTokens(decode_kept(reply.kept))),)
        elif req.response_format is not None:
            masks = ((len(req.ids), renderer.grammars.token_masks([(req.response_format, reply.ids)])[0]),)
        zeros = np.zeros(len(ids), dtype=np.float32)
        mask = np.arange(len(ids)) >= len(req.ids)
        samples.append(Sample(ids, mask, zeros, zeros, zeros, 0.9, token_masks=masks))
        if req.response_format is not None:
            renderer.grammars.token_masks([(req.response_format, reply.ids)])  # raises where the form is not kept
    assert any(reply.kept for reply in replies)
    expected = torch.cat([actual.cpu() for actual in compute_logprobs(decoder, samples, MicroBatchLimits(512))])
    engine_logprobs = torch.tensor([value for reply in replies for value in reply.logprobs or ()])
    assert float((expected - engine_logprobs).abs().max()) < 1e-4
    again = generate(LocalEngine(decoder, renderer, max_batch=16), batch)
    assert [reply.ids for reply in again] == [reply.ids for reply in replies]
