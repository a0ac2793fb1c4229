"""Fixtures shared by all tests. Models are tiny and built once a session."""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")  # before torch: idle threads must not spin beside the tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
from transformers import PreTrainedTokenizerBase

from practicum.models import loader
from practicum.render import Renderer


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return loader.load_tokenizer("tiny")


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(tokenizer)
