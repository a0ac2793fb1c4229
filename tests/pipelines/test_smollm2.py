"""A real language model through the same doors: an episode with the calculator, and one GRPO step."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from practicum.chat.renderer import Renderer
from practicum.cli.main import main
from practicum.data.store import read_episodes
from practicum.environment import Message
from practicum.models import loader


@pytest.fixture(scope="module")
def folder() -> str:
    return loader.model_folder("smollm2")


def test_weights_are_the_packages_own(folder: str) -> None:
    """It speaks: greedy continuation of a fact it knows."""
    loaded = loader.load(folder)
    assert sum(p.numel() for p in loaded.model.parameters()) == 134_515_008
    renderer = Renderer(loaded.tokenizer)
    ids = [i for span in renderer.start([Message("user", "What is the capital of France?")]) for i in span.ids]
    with torch.inference_mode():
        reply = loaded.model.generate(torch.tensor([ids]), max_new_tokens=12, do_sample=False)[0, len(ids) :]
    assert "Paris" in loaded.tokenizer.decode(reply)


def test_collect_a_math_episode_with_the_calculator(tmp_path: Path) -> None:
    arguments = ["collect", "--env", "math", "--env-arg", "levels=[1]", "--policy", "smollm2", "--template", "chatml",
                 "--tasks", "1", "--max-turns", "2", "--max-tokens", "16", "--out", str(tmp_path)]  # fmt: skip
    assert main(arguments) == 0
    (episode,) = read_episodes(tmp_path)
    assert episode.scored
    assert episode.turns[0].spans[-1].logprobs is not None
    assert "calculator" in episode.turns[0].messages[0].content


def test_one_grpo_step(tmp_path: Path) -> None:
    """Paid for length, so that the chains of an untrained agent differ and there is a gradient."""
    reward = f"{Path(__file__).with_name('rewards.py')}:shortness"
    overrides = [
        f"agent.reward_name={reward}",
        "agent.max_turns=1",
        "agent.max_tokens_per_turn=32",
        "data.train_batch_size=1",
        "trainer.test_freq=-1",
        "agent.environment_args.system='Reply with one short word.'",
        "trainer.total_training_steps=1",
        f"trainer.default_local_dir={tmp_path}",
    ]
    code = main(["train", "recipe=math-smollm2", *overrides])
    assert code == 0
    (line,) = (tmp_path / "practicum" / "math-smollm2" / "metrics.jsonl").read_text().splitlines()
    values = json.loads(line)
    assert values["actor/grad_norm"] > 0
    assert values["mismatch/logprob/max"] <= 1e-4
