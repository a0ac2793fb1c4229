"""Our forward against Hugging Face's own, for every architecture we claim."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from practicum.errors import UserError
from practicum.models.decoder import Decoder, token_logprobs

COMMON = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}


def build(name: str) -> PreTrainedModel:
    torch.manual_seed(0)
    if name == "llama":
        return LlamaForCausalLM(LlamaConfig(**COMMON, tie_word_embeddings=True)).eval()
    if name == "llama-scaled-rope":
        rope = {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0}
        return LlamaForCausalLM(LlamaConfig(**COMMON, rope_parameters=rope)).eval()
    if name == "qwen2":
        return Qwen2ForCausalLM(Qwen2Config(**COMMON)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**COMMON, head_dim=16)).eval()


def causal(layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    rows, width = q.shape[:2]
    mixed = F.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True, enable_gqa=True
    )
    return mixed.transpose(1, 2).reshape(rows, width, -1)


@pytest.mark.parametrize("name", ["llama", "llama-scaled-rope", "qwen2", "qwen3"])
def test_equals_hugging_face(name: str) -> None:
    model = build(name)
    if name == "qwen2":  # biases start at zero, where a forgotten one would not show
        for layer in model.model.layers:
            for linear in (layer.self_attn.q_proj, layer.self_attn.k_proj, layer.self_attn.v_proj):
                torch.nn.init.normal_(linear.bias)
    ids = torch.randint(0, 97, (2, 30))
    expected = model(ids).logits
    decoder = Decoder(model)
    positions = torch.arange(30).expand(2, 30)
    trained = decoder.logits(decoder.hidden(ids, positions, causal))
    with torch.no_grad():
        fused = decoder.logits(decoder.hidden(ids, positions, causal))
    assert torch.allclose(trained, expected, atol=2e-5)
    assert torch.allclose(fused, expected, atol=2e-5)


def test_the_fused_weights_are_the_parameters() -> None:
    """An in-place optimizer step reaches the engine's path with no copy and no call."""
    model = build("llama")
    decoder = Decoder(model)
    ids, positions = torch.randint(0, 97, (1, 8)), torch.arange(8)[None]
    optimizer = torch.optim.SGD(decoder.parameters(), lr=0.5)
    decoder.logits(decoder.hidden(ids, positions, causal)).square().mean().backward()
    with torch.no_grad():
        before = decoder.logits(decoder.hidden(ids, positions, causal))
    optimizer.step()
    with torch.no_grad():
        after = decoder.logits(decoder.hidden(ids, positions, causal))
        expected = model(ids).logits
    assert not torch.allclose(before, after, atol=1e-4)
    assert torch.allclose(after, expected, atol=2e-5)


@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3"])
def test_gradients_equal_hugging_face(name: str) -> None:
    """Weights that are multiplied side by side get each its own gradient, biases included."""
    ids, target = torch.randint(0, 97, (2, 30)), torch.randn(2, 30, 97)
    reference = build(name)
    (reference(ids).logits * target).sum().backward()
    model = build(name)
    decoder = Decoder(model)
    (decoder.logits(decoder.hidden(ids, torch.arange(30).expand(2, 30), causal)) * target).sum().backward()
    for (label, expected), result in zip(reference.named_parameters(), model.parameters(), strict=True):
        assert expected.grad is not None
        assert result.grad is not None
        assert torch.allclose(result.grad, expected.grad, rtol=1e-4, atol=1e-4 * float(expected.grad.abs().max())), (
            label
        )


def test_a_second_decoder_takes_no_weights_from_the_first() -> None:
    model = build("qwen2")
    first, second = Decoder(model), Decoder(model)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter), alpha=0.1)
        ids, positions = torch.randint(0, 97, (1, 8)), torch.arange(8)[None]
        expected = model(ids).logits
        for decoder in (first, second):
            assert torch.allclose(decoder.logits(decoder.hidden(ids, positions, causal)), expected, atol=2e-5)


def test_other_architectures_are_refused_with_a_way_out() -> None:
    model = GPT2LMHeadModel(GPT2Config(vocab_size=10, n_embd=8, n_layer=1, n_head=1))
    with pytest.raises(UserError, match="openai engine"):
        Decoder(model)


def test_logprob_means_one_thing() -> None:
    logits, ids = torch.randn(5, 11), torch.randint(0, 11, (5,))
    expected = (logits / 0.7).log_softmax(-1)[torch.arange(5), ids]
    assert torch.allclose(token_logprobs(logits, ids, 0.7), expected, atol=1e-6)
