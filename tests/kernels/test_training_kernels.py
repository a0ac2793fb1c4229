"""The learner's kernels against plain PyTorch in float64: values and gradients.

They run where there is a GPU, or on CPU in Triton's interpreter (TRITON_INTERPRET=1, with Triton installed).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from practicum.kernels.attention_plan import BlockAttentionPlan
from practicum.training.learner import Learner, MasterAdamW, OptimizerSettings
from practicum.training.micro_batches import (
    MicroBatchLimits,
    PrefixTree,
    Sample,
    build_tree,
    micro_batches,
    sort_samples,
)
from tests.engines.local.test_cuda_runner import build_model
from tests.kernels.pages import PagedRows
from tests.training.settings import POLICY_GRADIENT, policy_gradient

INTERPRETED = bool(os.environ.get("TRITON_INTERPRET"))
DEVICE = torch.device("cpu" if INTERPRETED else "cuda")
pytestmark = pytest.mark.skipif(not (INTERPRETED or torch.cuda.is_available()), reason="needs a CUDA GPU")
DTYPES = [torch.float32] if INTERPRETED else [torch.float32, torch.bfloat16]
HALF = torch.float16 if INTERPRETED else torch.bfloat16
"""The interpreter does not support bfloat16."""


def assert_near(actual: Tensor, expected: Tensor, dtype: torch.dtype) -> None:
    error = float((actual.double() - expected.double()).norm() / expected.double().norm().clamp(min=1e-12))
    assert error < (1e-5 if dtype == torch.float32 else 2e-2), error


def compare(
    dtype: torch.dtype, run: Callable[..., Sequence[Tensor]], plain: Callable[..., Sequence[Tensor]], *inputs: Tensor
) -> None:
    """Outputs and the gradients of all inputs, for random gradients of the outputs."""
    tensors = [value.to(DEVICE, dtype).requires_grad_() for value in inputs]
    exact = [value.detach().double().requires_grad_() for value in tensors]
    outputs, expected = run(*tensors), plain(*exact)
    gradients = [torch.randn_like(value) for value in outputs]
    torch.autograd.backward(list(outputs), gradients)
    torch.autograd.backward(list(expected), [value.double() for value in gradients])
    for actual, reference in zip(
        [*outputs, *(x.grad for x in tensors)], [*expected, *(x.grad for x in exact)], strict=True
    ):
        assert actual is not None
        assert reference is not None
        assert_near(actual, reference, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rows", [1, 37, 700])
def test_add_norm(dtype: torch.dtype, rows: int) -> None:
    from practicum.kernels.fused_layers import AddNorm

    torch.manual_seed(0)
    shape = (rows, 48 if INTERPRETED else 576)
    compare(
        dtype,
        lambda x, delta, weight: AddNorm.apply(x, delta, weight, 1e-5),
        lambda x, delta, weight: (x + delta, F.rms_norm(x + delta, (shape[1],), weight, 1e-5)),
        torch.randn(shape), torch.randn(shape), torch.randn(shape[1]),
    )  # fmt: skip
    compare(
        dtype,
        lambda x, weight: AddNorm.apply(x, None, weight, 1e-5),
        lambda x, weight: (x, F.rms_norm(x, (shape[1],), weight, 1e-5)),
        torch.randn(shape), torch.randn(shape[1]),
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_silu_and_mul_gradients(dtype: torch.dtype) -> None:
    from practicum.kernels.fused_layers import SiluAndMul

    def plain(joined: Tensor) -> tuple[Tensor]:
        gate, right = joined.chunk(2, -1)
        return (F.silu(gate) * right,)

    torch.manual_seed(0)
    compare(dtype, lambda joined: (SiluAndMul.apply(joined),), plain, torch.randn(50, 2 * 1500))


def attention_plan(tree: PrefixTree) -> BlockAttentionPlan:
    return BlockAttentionPlan(*(array.to(DEVICE) for array in tree.block_plan().arrays()))


def trees(seed: int, groups: int, longest: int) -> list[Sample]:
    """Chains that share their prompts, which share a beginning."""
    rng = np.random.default_rng(seed)
    begin = rng.integers(1, 9, 20).tolist()
    samples = []
    for _ in range(groups):
        prompt = begin + rng.integers(1, 9, rng.integers(1, longest)).tolist()
        for _ in range(3):
            ids = tuple(prompt + rng.integers(1, 9, rng.integers(1, longest)).tolist())
            mask = np.arange(len(ids)) >= len(prompt)
            paint = mask.astype(np.float32)
            advantage = paint * np.float32(rng.normal())
            samples.append(Sample(ids, mask, paint, advantage, -rng.random(len(ids)).astype(np.float32), 0.7))
    return samples


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("heads", "kv_heads", "size"), [(6, 2, 32), (4, 4, 16)] if INTERPRETED else [(9, 3, 64), (8, 2, 128)]
)
def test_attention_over_a_prefix_tree(dtype: torch.dtype, heads: int, kv_heads: int, size: int) -> None:
    from practicum.kernels.tree_attention import TreeAttention

    torch.manual_seed(0)
    batch = sort_samples(trees(0, 3 if INTERPRETED else 12, 50 if INTERPRETED else 200))
    tree = build_tree(batch.inputs, batch.shared)
    ends, positions = torch.from_numpy(tree.subtree_ends).to(DEVICE), torch.from_numpy(tree.depths).to(DEVICE)
    index = torch.arange(len(ends), device=DEVICE)
    visible = (index[None, :] <= index[:, None]) & (index[:, None] < ends[None, :])
    angle = torch.arange(int(positions.max()) + 1)[:, None] * torch.logspace(0, -2, size // 2)[None, :]
    cos, sin = angle.cos().repeat(1, 2).to(DEVICE), torch.cat((-angle.sin(), angle.sin()), -1).to(DEVICE)
    plan = attention_plan(tree)

    def plain(joined: Tensor) -> tuple[Tensor]:
        parts = joined.view(len(joined), -1, size)
        unrotated = parts[:, : heads + kv_heads]
        rotated = unrotated * cos[positions][:, None].double()
        rotated = rotated + unrotated.roll(size // 2, -1) * sin[positions][:, None].double()
        q, k, v = rotated[:, :heads], rotated[:, heads:], parts[:, -kv_heads:]
        k, v = (x.repeat_interleave(heads // kv_heads, 1) for x in (k, v))
        attended = F.scaled_dot_product_attention(*(x.transpose(0, 1)[None] for x in (q, k, v)), attn_mask=visible)
        return (attended[0].transpose(0, 1).flatten(1),)

    def run(joined: Tensor) -> tuple[Tensor]:
        return (TreeAttention.apply(joined.clone(), positions, (cos, sin), plan, heads, kv_heads),)

    compare(dtype, run, plain, torch.randn(len(ends), (heads + 2 * kv_heads) * size))


@pytest.mark.parametrize("programs", [1, 1000])
def test_decode_prefill_and_training_attend_in_one_order_of_keys(
    programs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """To the bit, over several segments, wherever a segment begins and however long rows are split."""
    from practicum.kernels import decode_attention, prefill_attention, tree_attention
    from practicum.kernels.fused_layers import rope_

    segment = 64 if INTERPRETED else 128
    for module in (decode_attention, tree_attention, prefill_attention):
        monkeypatch.setattr(module, "SEGMENT_KEYS", segment)
    monkeypatch.setattr(decode_attention, "TARGET_PROGRAMS", programs)
    torch.manual_seed(0)
    heads, kv_heads, size = (6, 2, 32) if INTERPRETED else (9, 3, 64)
    batch = sort_samples(trees(7, 2 if INTERPRETED else 6, 90 if INTERPRETED else 400))
    tree = build_tree(batch.inputs, batch.shared)
    positions = torch.from_numpy(tree.depths).to(DEVICE)
    longest = int(positions.max()) + 1
    assert longest > 2 * segment
    angle = torch.arange(longest)[:, None] * torch.logspace(0, -2, size // 2)[None, :]
    tables = angle.cos().repeat(1, 2).to(DEVICE), torch.cat((-angle.sin(), angle.sin()), -1).to(DEVICE)
    joined = torch.randn(len(positions), (heads + 2 * kv_heads) * size).to(DEVICE, HALF)
    learned = tree_attention.TreeAttention.apply(
        joined.clone(), positions, tables, attention_plan(tree), heads, kv_heads
    )

    def assert_same(actual: Tensor, indices: Tensor) -> None:
        if INTERPRETED:  # NumPy's products depend on their shape
            assert torch.allclose(actual.float(), learned[indices].float(), atol=2e-3)
        else:
            assert torch.equal(actual, learned[indices])

    rope_(joined, positions, tables, heads + kv_heads, size)
    paths = [torch.from_numpy(path).to(DEVICE) for path in tree.paths]
    kv = torch.zeros(2, len(paths), kv_heads, -(-longest // segment) * segment, size, device=DEVICE, dtype=HALF)
    for row, path in enumerate(paths):
        parts = joined[path].view(len(path), -1, size)[:, heads:].unflatten(1, (2, kv_heads))
        kv[:, row, :, : len(path)] = parts.permute(1, 2, 0, 3)
    pages, slots = PagedRows(kv), torch.arange(len(paths), device=DEVICE)
    leaf_indices = torch.stack([path[-1] for path in paths])
    query = joined[leaf_indices, : heads * size].view(len(leaf_indices), heads, size)
    assert_same(decode_attention.attend(query, pages.layer, slots, positions[leaf_indices]), leaf_indices)
    indices, *sizes = prefill_attention.pack([(row, path.tolist(), 0) for row, path in enumerate(paths)])
    packed_prompts = prefill_attention.unpack(indices.to(DEVICE), *sizes)
    assert_same(
        prefill_attention.attend(joined[torch.cat(paths)], pages.layer, packed_prompts, heads), torch.cat(paths)
    )


@pytest.mark.parametrize("dtype", DTYPES)
def test_lm_head_logprobs(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from practicum.kernels import lm_head

    torch.manual_seed(0)
    count, vocabulary, hidden = 30, 5000, 32
    monkeypatch.setattr(lm_head, "MAX_LOGITS", vocabulary * 12)  # three chunks
    targets = torch.randint(0, vocabulary, (count,), device=DEVICE)
    temperatures = torch.rand(count, device=DEVICE) + 0.5

    def plain(states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logprobs = (states @ weight.t() / temperatures[:, None].double()).log_softmax(-1)
        return logprobs.gather(-1, targets[:, None])[:, 0], -(logprobs.exp() * logprobs).sum(-1)

    compare(
        dtype, lambda states, weight: lm_head.HeadLogprobs.apply(states, weight, targets, temperatures), plain,
        torch.randn(count, hidden), torch.randn(vocabulary, hidden) * 0.3,
    )  # fmt: skip


@pytest.mark.parametrize("dtype", DTYPES)
def test_lm_head_over_the_tokens_that_could_be_sampled(dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch) -> None:
    from practicum.kernels import lm_head

    torch.manual_seed(0)
    count, vocabulary, hidden = 12, 300, 32
    monkeypatch.setattr(lm_head, "MAX_LOGITS", vocabulary * 5)  # three chunks
    temperatures = torch.rand(count, device=DEVICE) + 0.5
    allowed = torch.rand(4, 288) < 0.3  # the last twelve tokens are beyond the words of a mask
    rows = torch.randint(-1, 4, (count,))
    targets = torch.stack([torch.randint(0, 288, ()) if row < 0 else allowed[row].nonzero()[0, 0] for row in rows])
    table = torch.from_numpy(np.packbits(allowed.numpy(), axis=1, bitorder="little").view(np.int32)).to(DEVICE)
    wide_mask = torch.cat([allowed, torch.zeros(4, vocabulary - 288, dtype=torch.bool)], 1)
    forbidden = ((rows >= 0)[:, None] & ~wide_mask[rows.clamp(min=0)]).to(DEVICE)
    rows, targets = rows.to(DEVICE), targets.to(DEVICE)

    def plain(states: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        logits = (states @ weight.t() / temperatures[:, None].double()).masked_fill(forbidden, -torch.inf)
        logprobs = logits.log_softmax(-1)
        finite = logprobs.masked_fill(forbidden, 0.0)
        entropies = -(finite.exp() * finite).masked_fill(forbidden, 0.0).sum(-1)
        return logprobs.gather(-1, targets[:, None])[:, 0], entropies

    compare(
        dtype, lambda states, weight: lm_head.HeadLogprobs.apply(states, weight, targets, temperatures, rows, table),
        plain, torch.randn(count, hidden), torch.randn(vocabulary, hidden) * 0.3,
    )  # fmt: skip


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_gradients_of_a_whole_model(name: str, checkpointing: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """The packed pass against the CPU's, which tests hold to Hugging Face's own."""
    from practicum.models.decoder import Decoder
    from practicum.training import learner as forward
    from practicum.training import micro_batches as packing

    samples = trees(1, 2, 20)
    objective, trained = policy_gradient(entropy_coeff=0.01), float(sum(int(sample.mask.sum()) for sample in samples))
    plain = build_model(name)
    learner = Learner(Decoder(plain), OptimizerSettings(grad_clip=0.0), MicroBatchLimits(64), threads=1)
    expected = learner.update(samples, trained, objective, 0.0)
    model = build_model(name).to(DEVICE)
    decoder = Decoder(model)
    decoder.checkpointing = checkpointing
    if INTERPRETED:
        monkeypatch.setattr(packing, "attention_plan", lambda tree, device: tree.block_plan())
        monkeypatch.setattr(forward, "fused_head", lambda decoder: True)
    actual = Learner(decoder, OptimizerSettings(grad_clip=0.0), MicroBatchLimits(64), threads=1).update(
        samples, trained, objective, 0.0
    )
    for key in ("actor/loss", "actor/grad_norm", "actor/entropy", "mismatch/logprob/mean"):
        assert actual[key] == pytest.approx(expected[key], rel=1e-4), key
    for (label, parameter), other in zip(plain.named_parameters(), model.parameters(), strict=True):
        assert parameter.grad is not None, label
        assert other.grad is not None, label
        assert_near(other.grad.cpu(), parameter.grad, torch.float32 if INTERPRETED else torch.bfloat16)


def test_half_precision_weights_have_a_float32_residual_stream() -> None:
    """Hidden states come out in the weights' precision, and are as near to float64 as single roundings leave them."""
    from practicum.kernels.fused_layers import add_norm
    from practicum.kernels.packed_forward import packed_hidden
    from practicum.models.decoder import Decoder

    torch.manual_seed(0)
    x, delta = torch.randn(5, 48, device=DEVICE) * 50, torch.randn(5, 48, device=DEVICE).to(HALF)
    weight = torch.rand(48, device=DEVICE).to(HALF)
    into = torch.empty_like(x)
    out = add_norm(x, delta, weight, 1e-5, into)
    assert torch.equal(into, x + delta.float())
    assert out.dtype == HALF
    exact = F.rms_norm(into.double(), (48,), weight.double(), 1e-5)
    assert float(((out.double() - exact) / exact).abs().max()) < (2**-11 if INTERPRETED else 2**-8)  # rounded once

    batch = sort_samples(trees(5, 1, 12))
    tree = build_tree(batch.inputs, batch.shared)
    ids, positions = torch.from_numpy(tree.ids).to(DEVICE), torch.from_numpy(tree.depths).to(DEVICE)
    plan = attention_plan(tree)
    model = build_model("llama").to(DEVICE, HALF)
    hidden = packed_hidden(Decoder(model), ids, positions, plan)
    assert hidden.dtype == HALF
    gradient = torch.randn(hidden.shape, device=DEVICE)
    (hidden.float() * gradient).sum().backward()
    exact_model = build_model("llama").to(HALF).to(DEVICE).float()
    expected = packed_hidden(Decoder(exact_model), ids, positions, plan)
    assert_near(hidden, expected, torch.bfloat16)
    (expected * gradient).sum().backward()
    for parameter, exact_parameter in zip(model.parameters(), exact_model.parameters(), strict=True):
        if exact_parameter.grad is not None:
            assert parameter.grad is not None
            assert parameter.grad.dtype == HALF
            error = float(
                (parameter.grad.double() - exact_parameter.grad.double()).norm() / exact_parameter.grad.double().norm()
            )
            assert error < 0.1, error


@pytest.mark.skipif(INTERPRETED, reason="graphs need a GPU")
@pytest.mark.parametrize("name", ["llama", "qwen3"])
def test_replayed_graphs_give_the_same_gradients(name: str) -> None:
    from practicum.models.decoder import Decoder

    samples = trees(3, 6, 60)
    trained = float(sum(int(sample.mask.sum()) for sample in samples))
    results = []
    for replay in (False, True):
        model = build_model(name).to(DEVICE, torch.bfloat16)
        learner = Learner(Decoder(model), OptimizerSettings(), MicroBatchLimits(512), threads=1)
        learner.use_cuda_graphs, learner.bucket_tokens = replay, 128
        metrics = [learner.update(samples, trained, POLICY_GRADIENT, 0.0) for _ in range(2)]
        assert isinstance(learner.optimizer, MasterAdamW)
        assert metrics[0] == metrics[1]
        results.append((metrics[0], learner.optimizer.accumulated))
    (plain, gradient), (replayed, other) = results
    assert replayed == pytest.approx(plain, rel=2e-2, abs=1e-4)
    assert gradient is not None
    assert other is not None
    assert_near(other, gradient, torch.bfloat16)


def test_micro_batches_have_the_same_sizes_on_both_devices() -> None:
    samples = trees(2, 5, 30)
    sizes = [len(micro.ids) for micro in micro_batches(samples, MicroBatchLimits(128), DEVICE)]
    assert sizes == [len(micro.ids) for micro in micro_batches(samples, MicroBatchLimits(128))]
