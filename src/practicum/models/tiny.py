"""`tiny`: a Llama of about two million parameters with a byte-level BPE tokenizer of its own, built without a download.

The same code and seed give the same folder, byte for byte. It can do nothing until it is trained.

`tiny-pretrained` is the same model with shipped weights (`tiny_pretrained.safetensors`, 3 MB): trained from random
weights on generated text that teaches copying and look-up and has nothing of any environment's tasks
(`practicum.models.pretraining`, `benchmarks/pretrain_tiny.py`). It solves no task either, and learns one from a tenth
of the demonstrations.

`tiny_tokenizer.json` was fitted once to generated word problems, tool calls in the `hf` and `react` formats and phrases
of the text environments. It is a file, so that a change of any of those texts does not change the ids of a model.
"""

from __future__ import annotations

from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

TOKENIZER_FILE = Path(__file__).with_name("tiny_tokenizer.json")
PRETRAINED_FILE = Path(__file__).with_name("tiny_pretrained.safetensors")
TEMPLATE = (
    "{%- for m in messages %}"
    "{{- '<|im_start|>' + m.role + '\n' + m.content }}"
    "{%- if loop.first and tools %}"
    "{%- for tool in tools %}"
    "{{- '\n' + tool.function.name + '(' + tool.function.parameters.properties | join(', ') + '): ' }}"
    "{{- tool.function.description }}"
    "{%- endfor %}{%- endif %}"
    "{{- '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
"""ChatML with tools as one-line signatures: a small model learns faster from a short prompt."""


def build_tokenizer() -> PreTrainedTokenizerFast:
    """The tokenizer: byte-level, so that any text has ids; each digit is one token, so that numbers can be copied.

    `<tool_call>`, `</tool_call>`, `<think>` and `</think>` are single tokens and ordinary text: decoding keeps them.
    """
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Tokenizer.from_file(str(TOKENIZER_FILE)),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
        model_max_length=2048,
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(vocabulary: int, seed: int = 0) -> LlamaForCausalLM:
    """A model with random weights drawn from a seed; the global random state is left as it was."""
    config = LlamaConfig(
        vocab_size=vocabulary,
        hidden_size=160,
        intermediate_size=432,
        num_hidden_layers=5,
        num_attention_heads=5,
        num_key_value_heads=1,
        head_dim=32,
        max_position_embeddings=2048,
        rope_theta=10000.0,
        rms_norm_eps=1e-5,
        initializer_range=0.08,  # about 1/sqrt(hidden): copying from the prompt is learned in half the steps of 0.02
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return LlamaForCausalLM(config)


def build(folder: Path, seed: int = 0) -> None:
    """Write model and tokenizer as a Hugging Face folder."""
    tokenizer = build_tokenizer()
    build_model(len(tokenizer), seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def build_pretrained(folder: Path) -> None:
    """Write the pretrained model and the tokenizer as a Hugging Face folder."""
    tokenizer = build_tokenizer()
    model = build_model(len(tokenizer))
    model.load_state_dict(load_file(PRETRAINED_FILE), strict=False)  # the output layer is that of the embeddings
    model.tie_weights()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
