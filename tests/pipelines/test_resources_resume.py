"""A training whose episodes share a state: killed and resumed, it leaves the bytes of an unbroken run."""

from __future__ import annotations

import json
import signal
from pathlib import Path

import pytest

from .test_resume import assert_same_files, files, train_in_process

NOTES = Path(__file__).parents[1] / "environments" / "note_environment.py"
BASE = [
    f"agent.environment={NOTES}:Notes",
    "agent.max_turns=2",
    "agent.num_chains=3",
    "agent.max_tokens_per_turn=4",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=tiny",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "data.train_batch_size=3",
    "data.val_batch_size=3",
    "trainer.total_training_steps=3",
    "trainer.save_freq=1",
    "trainer.test_freq=2",
    "trainer.logger=[]",
]


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param([], id="alternating"),
        pytest.param(["trainer.overlap=true"], id="overlap", marks=pytest.mark.slow),
    ],
)
def test_a_killed_run_with_shared_state_equals_an_unbroken_one(extra: list[str], tmp_path: Path) -> None:
    overrides = [*BASE, *extra]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert train_in_process(unbroken, overrides) == 0
    assert train_in_process(broken, overrides, ("episode", 14)) == -signal.SIGKILL
    assert train_in_process(broken, overrides) == 0
    expected = files(unbroken)
    assert_same_files(expected, files(broken))
    assert num_notes(unbroken, 1) == (18 if extra else 9)  # with overlap, the next step's episodes are played already
    assert num_notes(unbroken, 3) == 27


def num_notes(folder: Path, step: int) -> int:
    """The number of notes in the checkpoint of a step."""
    (path,) = folder.rglob(f"global_step_{step}/state.json")
    notes = json.loads(path.read_text())["practice"]["resources"]["board"]["notes"]
    return sum(map(len, notes.values()))
