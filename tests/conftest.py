"""Fixtures shared by all tests. Models are tiny and built once a session."""

from __future__ import annotations

import copy
import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # before torch: idle threads must not spin beside the tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.chat.renderer import Renderer
from practicum.models import loader


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return loader.load_tokenizer("tiny")


@pytest.fixture(scope="session")
def llama_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tiny tokenizer with Llama-3's special tokens added."""
    made = copy.deepcopy(tokenizer)
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    made.add_special_tokens({"additional_special_tokens": names, "bos_token": names[0]})
    return made


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(tokenizer)
