"""Bad signs in SFT and DPO, and in the losses of reinforcement learning."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

from practicum.config.health import HealthSettings, SupervisedHealthSettings
from practicum.training.monitor.health import HealthMonitor
from practicum.training.monitor.supervised_health import SupervisedMonitor


def run(monitor: SupervisedMonitor, losses: list[float], evaluations: dict[int, float]) -> None:
    monitor.open(None)
    for step, loss in enumerate(losses, 1):
        metrics = {"actor/loss": loss}
        monitor.observe(step, metrics)
        assert metrics["memory/rss_mb"] > 0
        if step in evaluations:
            monitor.observe_validation({"eval/loss": evaluations[step]})
        assert monitor.act(step) is None
    monitor.close()


def findings(losses: list[float], evaluations: dict[int, float], folder: Path) -> list[str]:
    messages: list[str] = []
    run(SupervisedMonitor(folder, SupervisedHealthSettings(), messages.append), losses, evaluations)
    written = [json.loads(line) for line in (folder / "health.jsonl").read_text().splitlines()]
    assert len(written) == len(messages)
    return messages


def test_a_training_loss_that_does_not_fall(tmp_path: Path) -> None:
    noise = random.Random(0)
    text = findings([2.0 + noise.uniform(-0.1, 0.1) for _ in range(60)], {}, tmp_path)
    assert len(text) == 1
    assert "the training loss has not fallen" in text[0]
    assert "raise training.learning_rate" in text[0]


def test_an_evaluation_loss_that_rises_while_the_training_loss_falls(tmp_path: Path) -> None:
    losses = [2.0 - 0.03 * step for step in range(60)]
    text = findings(losses, {10: 1.8, 20: 1.5, 30: 1.55, 40: 1.7, 50: 1.9}, tmp_path)
    assert len(text) == 1  # 1.55 is within the limit; what persists is not repeated at once
    assert text[0].startswith("Step 40")
    assert "overfits" in text[0]
    assert "lora_dropout" in text[0]


def test_a_healthy_run_has_no_finding(tmp_path: Path) -> None:
    assert findings([2.0 * 0.97**step for step in range(80)], {20: 1.5, 40: 1.2, 60: 1.21}, tmp_path) == []


def test_the_state_of_the_monitor_is_restored(tmp_path: Path) -> None:
    losses = [2.0 - 0.001 * (step % 3) for step in range(60)]
    full: list[str] = []
    run(SupervisedMonitor(tmp_path, SupervisedHealthSettings(), full.append), losses, {})
    first, second = SupervisedMonitor(tmp_path, SupervisedHealthSettings()), []
    run(first, losses[:30], {})
    resumed = SupervisedMonitor(tmp_path, SupervisedHealthSettings(), second.append)
    resumed.restore(json.loads(json.dumps(first.state())))
    for step, loss in enumerate(losses[30:], 31):
        resumed.observe(step, {"actor/loss": loss})
        resumed.act(step)
    assert second == full
    resumed.restore({"step": 3})  # a checkpoint from before there was such a monitor


@pytest.mark.parametrize(
    ("policy_loss", "value_loss", "reward", "sign"),
    [
        (0.01, 0.0, 0.0, "policy_loss_rising"),
        (0.01, 0.0, 0.02, None),  # the reward rises too
        (0.0, 0.02, 0.0, "value_loss_growing"),
        (-0.01, -0.002, 0.0, None),
    ],
)
def test_losses_of_reinforcement_learning(
    policy_loss: float, value_loss: float, reward: float, sign: str | None
) -> None:
    """Slopes per step, with noise."""
    noise, monitor = random.Random(1), HealthMonitor(HealthSettings(reward_flat_after=60, reward_flat_window=60))
    signs: set[str] = set()
    for step in range(1, 45):
        metrics = {
            "actor/pg_loss": policy_loss * step + noise.gauss(0, 0.02),
            "critic/vf_loss": max(0.0, 0.3 + value_loss * step + noise.gauss(0, 0.01)),
            "reward/mean": 0.2 + reward * step + noise.gauss(0, 0.01),
            "reward/std": 0.4,
        }
        signs |= {finding.sign for finding in monitor.observe(step, metrics)}
    assert signs == ({sign} if sign else set())
