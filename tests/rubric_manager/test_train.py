"""The paper's loop: a line per episode, the check after ten episodes; recipes; the planted judge stops a run."""

from __future__ import annotations

import asyncio
import json
import statistics
from pathlib import Path

import pytest

from practicum.config.resolve import resolve_train
from practicum.environments.rubric.menu import reply_pattern
from practicum.environments.rubric.short_form import SHORT_REPLIES
from practicum.errors import UserError
from practicum.rubric_manager.train import EpisodeCheck, episode_line, main
from practicum.training.build import build_run

SCORES = {"figure/synthetic/mean": 0.72, "figure/ground_truth/mean": 0.85}


def metrics(reward: float, valid: float = 1.0) -> dict[str, float]:
    return {
        "reward/mean": reward, "reward/min": reward, "reward/max": reward, "rollout/episodes": 1.0,
        "figure/valid/mean": valid, **(SCORES if valid else {}),
    }  # fmt: skip


def test_the_line_of_an_episode() -> None:
    assert episode_line(metrics(-0.13)) == "Synthetic: 0.720, GT: 0.850, Reward: -0.130"
    assert episode_line(metrics(-1.2, valid=0.0)) == "Synthetic: none, GT: none, Reward: -1.200"


def test_the_check_after_ten_episodes() -> None:
    check = EpisodeCheck()
    assert [check.observe(metrics(-0.1 * (step % 2))) for step in range(30)] == [None] * 30
    check = EpisodeCheck()
    verdicts = [check.observe(metrics(-0.1 * (step % 2), float(step % 3 == 0))) for step in range(12)]
    assert verdicts[:9] == [None] * 9
    assert "Only 40 % of the first 10 rubrics are valid" in str(verdicts[9])
    assert verdicts[10:] == [None] * 2
    check = EpisodeCheck(count=3)
    assert [check.observe(metrics(-0.2)) for _ in range(3)][2] is not None
    one_step = metrics(0.4) | {"rollout/episodes": 128.0, "reward/min": -0.1, "reward/max": 0.9}
    assert EpisodeCheck().observe(one_step) is None, "a step of many episodes, as recipe=rubric has"


def test_recipes() -> None:
    config = resolve_train(["recipe=rubric"]).config
    assert config.agent.response_format == {"type": "regex", "regex": SHORT_REPLIES}
    assert config.hacking.action == "stop"
    config = resolve_train(["recipe=rubric-reinforce", "trainer.required_figures.questions=1"]).config
    assert config.trainer.required_figures == {"valid": 0.5, "questions": 1.0}
    assert config.hacking.action == "stop"
    assert (config.agent.num_chains, config.trainer.total_training_steps) == (1, 100)
    assert config.actor_rollout_ref.actor.loss_agg_mode == "seq-mean-token-sum"
    assert "total [A-Za-z]" in reply_pattern()


SMALL = (
    "actor_rollout_ref.model.path=tiny", "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]",
    "trainer.save_freq=-1", "agent.max_turns=1", "data.val_batch_size=4",
)  # fmt: skip


def test_a_judge_that_can_be_flattered_is_found_and_the_run_stops(tmp_path: Path) -> None:
    """From random weights, under constrained decoding: the planted judge's score climbs, the held-out judge's not."""
    keys = (
        "recipe=rubric", f"trainer.default_local_dir={tmp_path}", "agent.max_tokens_per_turn=64",
        "agent.environment_args={form: short, reward: flattered, max_turns: 1}", "data.train_batch_size=4",
        "actor_rollout_ref.actor.optim.lr=1e-3", "trainer.total_training_steps=40", "trainer.seed=1", *SMALL,
    )  # fmt: skip

    async def train() -> None:
        run = build_run(resolve_train(list(keys)).config, say=lambda text: None)
        try:
            await run.train()
        finally:
            await run.policy.close()

    with pytest.raises(UserError, match="the reward rises since step 5 and the verifier does not follow") as exc_info:
        asyncio.run(train())
    assert "driven by the component 'flattered'" in str(exc_info.value)
    (path,) = tmp_path.rglob("metrics.jsonl")
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    rewards = [row["reward/mean"] for row in rows if "reward/mean" in row]
    assert len(rewards) < 40
    assert statistics.fmean(rewards[-3:]) > statistics.fmean(rewards[:3]) + 0.1


def test_the_papers_loop_stops_where_rubrics_are_not_valid(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    keys = [f"trainer.default_local_dir={tmp_path}", "agent.max_tokens_per_turn=8", "trainer.total_training_steps=14",
            "actor_rollout_ref.model.lora_rank=0", *SMALL]  # fmt: skip
    with pytest.raises(UserError, match="Only 0 % of the first 10 rubrics are valid"):
        asyncio.run(main(keys))
    lines = capsys.readouterr().out.splitlines()
    assert sum(line.startswith("Synthetic: none, GT: none, Reward: -1.200") for line in lines) == 10


def test_the_papers_loop_does_not_start_where_rubrics_are_not_valid(tmp_path: Path) -> None:
    keys = [f"trainer.default_local_dir={tmp_path}", "agent.max_tokens_per_turn=8", "trainer.total_training_steps=2",
            "actor_rollout_ref.model.lora_rank=0", *SMALL, "trainer.val_before_train=true"]  # fmt: skip
    with pytest.raises(UserError, match="mean 'valid' of 0.00 over 4 episodes and needs 0.5"):
        asyncio.run(main(keys))
    (path,) = tmp_path.rglob("metrics.jsonl")
    assert "reward/mean" not in path.read_text()
