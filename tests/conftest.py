"""Fixtures shared by all tests. Models are tiny and built once a session."""

from __future__ import annotations

import copy
import os
import signal

# A job that a shell starts in the background ignores SIGINT; tests of Ctrl-C would then wait without end.
signal.signal(signal.SIGINT, signal.default_int_handler)
os.environ.setdefault("GOMP_SPINCOUNT", "0")  # before torch: idle threads must not spin beside the tests
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.pop("COLUMNS", None)  # a width of the terminal that the tests are started from
os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a hub id that is not in the cache is an error at once, without retries

import pytest
import torch
from hypothesis import HealthCheck, settings
from transformers import PreTrainedTokenizerBase

from practicum.chat.renderer import Renderer
from practicum.models import loader

# What an example takes depends on what else the machine does: that must not fail a test. `make test` draws the same
# examples in every run, so that a change that was tested passes again; `make test-slow` draws others each time.
settings.register_profile("random", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("repeatable", settings.get_profile("random"), derandomize=True)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

LONGEST = (
    *("test_sft_dpo", "test_quickstart", "test_resume", "test_environment_check", "test_pipeline", "test_sciworld"),
    *("test_smollm2", "test_logged_source", "test_server", "test_paper_commands", "test_run", "test_commands"),
    *("test_train_offline", "test_gpu_benchmarks", "test_alfworld"),
)
"""Test modules that take the longest: they come first, so that no worker process is left with one at the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ranks = {name: rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.path.stem, len(ranks)))


THREADS = torch.get_num_threads()


@pytest.fixture(autouse=True)
def torch_threads() -> None:
    """Every test begins with the same number of threads: engine and learner change it, and sums depend on it."""
    torch.set_num_threads(THREADS)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerBase:
    return loader.load_tokenizer("tiny")


@pytest.fixture(scope="session")
def llama_tokenizer(tokenizer: PreTrainedTokenizerBase) -> PreTrainedTokenizerBase:
    """The tiny tokenizer with Llama-3's special tokens added."""
    result = copy.deepcopy(tokenizer)
    names = ["<|begin_of_text|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"]
    result.add_special_tokens({"additional_special_tokens": names, "bos_token": names[0]})
    return result


@pytest.fixture(scope="session")
def renderer(tokenizer: PreTrainedTokenizerBase) -> Renderer:
    return Renderer(tokenizer)
