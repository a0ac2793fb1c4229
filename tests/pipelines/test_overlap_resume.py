"""Exact resume of a run whose next batch was already rolled out when it was cut short."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from .resume_child import PowerCut, cut_power, train_until
from .test_resume import BASE, assert_same_files, files, train_in_process

STEPS = 4


def test_a_run_with_a_batch_ahead_that_was_cut_short_equals_an_unbroken_one(tmp_path: Path) -> None:
    overrides = [*BASE, "algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=false",
                 "trainer.overlap=true", f"trainer.total_training_steps={STEPS}"]  # fmt: skip
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    train_until(str(unbroken), overrides)
    with pytest.raises(PowerCut):
        train_until(str(broken), overrides, ("update", 3), cut_power)
    assert train_in_process(broken, overrides, ("episode", 6)) == -signal.SIGKILL
    train_until(str(broken), overrides)
    expected, actual = files(unbroken), files(broken)
    # The last step's episodes may have been played before the cut: their hashes are noted where they were played.
    expected.pop("last_episodes.txt"), actual.pop("last_episodes.txt")
    assert_same_files(expected, actual)
    folder = unbroken / "practicum" / "run"
    ahead = json.loads((folder / f"global_step_{STEPS - 2}" / "state.json").read_text())["practice"]["ahead"]
    assert ahead["step"] == STEPS - 2
    assert len(ahead["episodes"]) == 12
    assert "ahead" not in json.loads((folder / f"global_step_{STEPS}" / "state.json").read_text())["practice"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["staleness/versions/mean"] for row in rows if row["step"] > 1] == [1.0] * (STEPS - 1)
