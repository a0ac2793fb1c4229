"""`tiny`: a Llama of about two million parameters with its own byte-level BPE, made from nothing.

The same code and seed give the same folder, byte for byte. It knows nothing until it is trained.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path

import torch
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from practicum.chat.formats.registry import make_format
from practicum.environment import Action, ToolCall
from practicum.environments.math import MathEnvironment, make_problem
from practicum.tools.calculator import calculator

VOCABULARY = 768
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
MARKS = ("<tool_call>", "</tool_call>", "<think>", "</think>")
"""Single tokens that are text all the same: decoding keeps them."""

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

WORDS = """
You are given few useful crafting recipes to craft items in Minecraft. Crafting commands are of the format
"craft [target object] using [input ingredients]". Every round I will give you an observation, you have to respond
with an action based on the state and instruction. You can "get" an object (ingredients) from the inventory or the
environment, look-up the game inventory by "inventory", or "craft" (target) using any of the crafting commands.
Goal: craft. Got. Crafted. Could not find. Inventory: You are not carrying anything. Thought: Action: Input: Answer:
Observation: Error: there is no tool. needs the argument. cannot read as arithmetic. Your reply could not be used:
Search for what is asked, then read the page and answer. Write a Python function and test it. Click the button. def
return for in range print import if else while True False None the of and to a in is it that for on with as are this be
go to take from put in/on open close toggle use clean heat cool with examine look. turn left turn right move forward
pick up drop focus on pour into mix wait. Buy Now. Next. Back to Search. Description. Features. x1=True, x2=False.
"""


def corpus(stories: int = 3000) -> Iterator[str]:
    """Text that the tokenizer is fitted to: the worlds' own language."""
    rng = random.Random("practicum-tiny-corpus")
    hermes, react = make_format("hf"), make_format("react")
    schema = calculator.schema
    for number in range(stories):
        problem = make_problem(rng, 1 + number % 5)
        yield str(problem["question"])
        steps = problem["steps"]
        assert isinstance(steps, list)
        call = Action(thought="", calls=(ToolCall("calculator", {"expression": steps[0]}),))
        yield hermes.write(call, True)
        yield react.write(call, True)
        if number % 50 == 0:
            yield react.instructions([schema])
            yield json.dumps(schema["function"])
            yield f"system\nuser\nassistant\ntool\n{MathEnvironment.system} {calculator.description}"
            yield WORDS


def build_tokenizer() -> PreTrainedTokenizerFast:
    """Byte-level BPE: any text is representable; digits stand alone, so that numbers can be copied."""
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(r"\p{N}"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
        min_frequency=2,
    )
    core.train_from_iterator(corpus(), trainer)
    core.add_tokens([AddedToken(mark, normalized=False, special=False) for mark in MARKS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core, eos_token="<|im_end|>", pad_token="<|endoftext|>", model_max_length=2048
    )
    tokenizer.chat_template = TEMPLATE
    return tokenizer


def build_model(vocabulary: int, seed: int = 0) -> LlamaForCausalLM:
    """Fresh weights; the global random state is left as it was."""
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
    """Write the whole model as a Hugging Face folder."""
    tokenizer = build_tokenizer()
    build_model(len(tokenizer), seed).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
