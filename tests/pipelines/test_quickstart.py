"""The quickstart's own pipeline, smaller: a model from nothing learns by imitation and then, further, by practice."""

from __future__ import annotations

import json
from pathlib import Path

from practicum.store import read_episodes


def test_practice_beats_imitation_beats_nothing(finished: Path) -> None:
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["null"]["success_rate"] == 0.0
    assert summary["sft"]["low"] > summary["null"]["high"]
    assert summary["difference"] >= 0.10
    assert summary["p_value"] < 0.05
    assert summary["verdict"] == "better"
    for name in ("base", "sft", "rl"):
        assert set(summary[name]) >= {"success_rate", "low", "high", "n"}
        assert summary[name]["n"] == 300
        # Jeffreys' interval of 0 successes begins a hair above 0.
        assert summary[name]["low"] - 1e-4 <= summary[name]["success_rate"] <= summary[name]["high"] + 1e-4


def test_engine_and_learner_agree_at_every_step(finished: Path) -> None:
    steps = [json.loads(line) for line in (finished / "rl" / "metrics.jsonl").read_text().splitlines()]
    assert len(steps) == 25
    assert max(step["mismatch/logprob/max"] for step in steps) <= 1e-4


def test_everything_is_left_to_look_at(finished: Path) -> None:
    page = (finished / "curve.html").read_text()
    assert "<svg" in page
    assert "<script" not in page
    episodes = list(read_episodes(finished / "rl" / "examination"))
    assert len(episodes) == 300
    assert {e.provenance["panel"] for e in episodes} == {json.loads((finished / "summary.json").read_text())["panel"]}
    assert (finished / "rl" / "model" / "model.safetensors").exists()
