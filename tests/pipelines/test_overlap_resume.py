"""Exact resume of a run whose next batch was already rolled out when it was killed."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from .test_resume import BASE, STEPS, everything, run_leg


def test_a_killed_run_with_a_batch_ahead_equals_an_unbroken_one(tmp_path: Path) -> None:
    overrides = [*BASE, "algorithm.adv_estimator=grpo", "actor_rollout_ref.actor.use_kl_loss=false",
                 "trainer.overlap=true"]  # fmt: skip
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    assert run_leg(whole, overrides) == 0
    for moment in (("episode", 30), ("checkpoint", 4), ("tick", 5), ("episode", 50)):
        assert run_leg(broken, overrides, moment) == -signal.SIGKILL, moment
    assert run_leg(broken, overrides) == 0
    one, two = everything(whole), everything(broken)
    # The last step's episodes may have been played before the kill: their hashes are noted where they were played.
    one.pop("last_episodes.txt"), two.pop("last_episodes.txt")
    assert one.keys() == two.keys()
    assert [name for name in one if one[name] != two[name]] == []
    folder = whole / "practicum" / "run"
    ahead = json.loads((folder / "global_step_9" / "state.json").read_text())["practice"]["ahead"]
    assert ahead["step"] == 9
    assert len(ahead["episodes"]) == 12
    assert "ahead" not in json.loads((folder / f"global_step_{STEPS}" / "state.json").read_text())["practice"]
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [row["staleness/versions/mean"] for row in rows if row["step"] > 1] == [1.0] * (STEPS - 1)
