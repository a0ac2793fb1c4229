"""What a run leaves for people: its health events and some episodes, with what they were really trained with."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from practicum.algorithms import advantages
from practicum.config.health import HealthSettings
from practicum.data import store
from practicum.data.run_folder import ADVANTAGES, GROUPS, TOP, advantages_path
from practicum.errors import UserError
from practicum.training.estimators import EstimatorSettings, num_sampled_tokens
from practicum.training.monitor.health import HEALTH_FILE
from practicum.training.run import Run
from practicum.training.settings import RunSettings

from .test_run import RL, go, make_run


def alarming(run: Run, steps: tuple[int, ...]) -> Run:
    """A run whose metrics show a large KL at these steps (counted from 0)."""
    original = run.trainer.step

    async def step(number: int, *rest: Any) -> Any:
        values, episodes = await original(number, *rest)
        return (values | {"actor/kl": 0.9} if number in steps else values), episodes

    run.trainer.step = step  # type: ignore[method-assign]
    return run


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / HEALTH_FILE).read_text().splitlines()]


def test_a_run_without_findings_has_an_empty_health_log(tmp_path: Path) -> None:
    go(make_run(tmp_path, RunSettings(2), replace(RL, total_training_steps=2)))
    assert (tmp_path / HEALTH_FILE).read_bytes() == b""


def test_findings_and_adjustments_are_written_as_they_happen(tmp_path: Path) -> None:
    health = HealthSettings(action="adjust", repeat_every=1)
    messages: list[str] = []
    go(
        alarming(
            make_run(tmp_path, RunSettings(4), replace(RL, total_training_steps=4), health=health, say=messages.append),
            (1, 3),
        )
    )
    result = lines_of(tmp_path)
    assert [(line["step"], line["kind"]) for line in result] == [(2, "finding"), (2, "adjustment"), (4, "finding")]
    assert result[0] == {
        "step": 2, "kind": "finding", "sign": "kl_high", "severity": "act", "value": 0.9, "threshold": 0.5, "since": 2,
        "cause": "training is unstable", "remedy": "halve the clip range (0.2 to 0.1)",
    }  # fmt: skip
    assert result[1] == {"step": 2, "kind": "adjustment", "lr_scale": 1.0, "clip_scale": 0.5}
    assert sum("kl_high" in text for text in messages) == 2


def test_a_stop_is_written_with_its_reason(tmp_path: Path) -> None:
    health = HealthSettings(action="stop")
    with pytest.raises(UserError, match="The run stops here"):
        go(alarming(make_run(tmp_path, RunSettings(4), replace(RL, total_training_steps=4), health=health), (2,)))
    assert [(line["step"], line["kind"], line["sign"]) for line in lines_of(tmp_path)] == [
        (3, "finding", "kl_high"),
        (3, "stop", "kl_high"),
    ]


def test_a_resumed_run_neither_loses_nor_repeats_a_line(tmp_path: Path) -> None:
    """Killed after step 5 with a checkpoint at step 3: lines of steps 4 and 5 were there and are written again."""
    settings, health = RunSettings(6, save_freq=3), HealthSettings(repeat_every=1)
    full, torn = tmp_path / "whole", tmp_path / "torn"
    everywhere = tuple(range(6))
    go(alarming(make_run(full, settings, health=health), everywhere))
    first = make_run(torn, settings, health=health)

    def killed(step: int, values: dict[str, float]) -> None:
        if step == 6:
            raise RuntimeError("killed")

    first.on_step = killed
    with pytest.raises(RuntimeError):
        go(alarming(first, everywhere))
    assert [line["step"] for line in lines_of(torn)] == [1, 2, 3, 4, 5]
    with (torn / HEALTH_FILE).open("ab") as file:
        file.write(b'{"step": 6, "kind": "fin')  # torn in the middle of a line
    second = make_run(torn, settings, health=health)
    second.resume()
    assert second.state.step == 3
    go(alarming(second, everywhere))
    assert (torn / HEALTH_FILE).read_bytes() == (full / HEALTH_FILE).read_bytes()
    assert [line["step"] for line in lines_of(torn)] == [1, 2, 3, 4, 5, 6]
    for kind in (TOP, GROUPS):
        expected, actual = (
            {p.relative_to(f): p.read_bytes() for p in (f / kind).rglob("*.json*")} for f in (full, torn)
        )
        assert expected
        assert expected == actual


def test_the_first_group_of_steps_1_2_and_4_is_saved(tmp_path: Path) -> None:
    go(make_run(tmp_path, RunSettings(5), replace(RL, total_training_steps=5)))
    assert sorted(path.name for path in (tmp_path / GROUPS).iterdir()) == ["step_1", "step_2", "step_4"]
    for folder in (tmp_path / GROUPS).iterdir():
        episodes = list(store.read_episodes(folder))
        assert len(episodes) == RL.num_chains
        assert len({episode.group for episode in episodes}) == 1
        stored = [read(path) for path in sorted(folder.glob("*.jsonl"))]
        expected = advantages.grpo([episode.reward for episode in episodes])
        assert stored == pytest.approx([float(np.float32(value)) for value in expected], abs=0)


def read(episode: Path) -> Any:
    record = json.loads(advantages_path(episode).read_text())
    assert record["format"] == ADVANTAGES
    return record["advantages"]


def test_advantages_that_differ_by_token_are_saved_per_token(tmp_path: Path) -> None:
    discounted = replace(RL, total_training_steps=1, adv_estimator="gae", estimation=EstimatorSettings(gamma=0.5))
    go(make_run(tmp_path, RunSettings(1), discounted))
    played = {path: store.read_episode(path) for path in (tmp_path / GROUPS).rglob("*.jsonl")}
    longer = {path: num_sampled_tokens(e) for path, e in played.items() if e.reward > 0 and num_sampled_tokens(e) > 1}
    assert longer
    for path, count in longer.items():
        result = read(path)
        assert len(result) == count
        assert len(set(result)) > 1
        assert result[-1] > result[0]  # the reward stands at the end, and is worth less the further away it is


def test_advantages_are_deleted_with_their_episode(tmp_path: Path) -> None:
    """Best-paid episodes that are no longer wanted leave nothing behind."""
    go(make_run(tmp_path, RunSettings(6)))
    paths = sorted((tmp_path / TOP).rglob("*.jsonl"))
    assert len(paths) == 5
    assert sorted((tmp_path / TOP).rglob("*.advantages.json")) == [advantages_path(path) for path in paths]
    assert {path.parent for path in paths} == set((tmp_path / TOP).iterdir())
