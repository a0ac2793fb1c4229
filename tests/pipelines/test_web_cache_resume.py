"""A training whose episodes use the action cache: killed and resumed, it leaves the bytes of an unbroken run."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from practicum.data.store import read_episodes
from practicum.environments.web.browser import EXECUTABLE

from .test_resume import assert_same_files, files, train_in_process

HERE = Path(__file__).with_name("cached_web.py")
CHAINS, STEPS = 3, 3
BASE = [
    "agent.environment_args={observe: brief, prompt: page, cache: true}",
    f"agent.agent_type={HERE}:AnyReplyClicks",
    "agent.max_turns=3",
    f"agent.num_chains={CHAINS}",
    "agent.max_tokens_per_turn=6",
    "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=tiny",
    "actor_rollout_ref.actor.optim.lr=1e-3",
    "data.train_batch_size=2",
    "data.val_batch_size=2",
    f"trainer.total_training_steps={STEPS}",
    "trainer.save_freq=1",
    "trainer.test_freq=2",
    "trainer.val_before_train=false",
    "trainer.logger=[]",
]
needs_browser = pytest.mark.skipif(shutil.which(EXECUTABLE) is None, reason=f"needs {EXECUTABLE}")


@pytest.mark.parametrize(
    "environment",
    [
        pytest.param("ClickingWithoutBrowser", id="HTML"),
        pytest.param("Clicking", id="Chromium", marks=[pytest.mark.slow, needs_browser]),
    ],
)
def test_a_killed_run_with_a_cache_equals_an_unbroken_one(environment: str, tmp_path: Path) -> None:
    overrides = [f"agent.environment={HERE}:{environment}", *BASE]
    unbroken, broken = tmp_path / "unbroken", tmp_path / "broken"
    assert train_in_process(unbroken, overrides) == 0
    assert train_in_process(broken, overrides, ("episode", 2 * CHAINS + 2)) == -signal.SIGKILL
    assert train_in_process(broken, overrides) == 0
    assert_same_files(files(unbroken), files(broken))
    caches = [cache_of(unbroken, step) for step in range(1, STEPS + 1)]
    assert [cache["commits"] for cache in caches] == [1, 2, 3]
    assert caches[0]["entries"]
    assert "cache" not in sources(unbroken, 1), "chains of a group do not read each other's entries"
    assert "cache" in sources(unbroken, STEPS), "a later step reads those of earlier ones"


def sources(folder: Path, step: int) -> set[str]:
    """Who acted in the episodes of a step that were kept."""
    (path,) = folder.rglob(f"top_episodes/step_{step}")
    return {turn.source for episode in read_episodes(path) for turn in episode.turns}


def cache_of(folder: Path, step: int) -> dict[str, Any]:
    """The action cache in the checkpoint of a step."""
    (path,) = folder.rglob(f"global_step_{step}/state.json")
    return dict(json.loads(path.read_text())["practice"]["resources"]["cache"])
