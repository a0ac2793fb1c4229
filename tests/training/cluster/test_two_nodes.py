"""Two Ray nodes in separate network namespaces train together; the link between them is cut for 20 seconds."""

from __future__ import annotations

import sys
import time
from pathlib import Path

import pytest

from tests.training.cluster.test_rollout_workers import (
    check_same,
    ledger_of,
    metrics_of,
    overrides,
    train_in_process,
)
from tests.training.cluster.two_nodes import TwoNodes, can_make_namespaces

STEPS, CUT_SECONDS, TIMEOUT_SECONDS = 12, 20.0, 1500.0


@pytest.mark.slow
@pytest.mark.skipif(not can_make_namespaces(), reason="network namespaces cannot be made here")
def test_a_cut_link_neither_ends_nor_changes_a_run(tmp_path: Path) -> None:
    """A learner rank and a rollout worker on each node: the losses are those of one process."""
    pytest.importorskip("ray")
    train_in_process(tmp_path / "cwd", overrides(tmp_path, "one", STEPS))
    keys = ["trainer.nnodes=2", "trainer.n_gpus_per_node=1", "actor_rollout_ref.rollout.num_workers=2"]
    command = [sys.executable, "-m", "practicum.cli", "train", *overrides(tmp_path, "two", STEPS, *keys)]
    folder = tmp_path / "nodes"
    with TwoNodes(folder) as nodes:
        nodes.start()
        driver = nodes.run(command, folder / "driver.log")
        end, was_cut = time.monotonic() + TIMEOUT_SECONDS, False
        metrics = tmp_path / "practicum" / "two" / "metrics.jsonl"
        while driver.poll() is None and time.monotonic() < end:
            if not was_cut and metrics.is_file() and len(metrics.read_text().splitlines()) >= 3:
                nodes.cut(CUT_SECONDS)
                was_cut = True
            time.sleep(0.2)
        assert driver.poll() == 0, (folder / "driver.log").read_text()[-3000:]
        assert was_cut
    check_same(tmp_path, "one", "two", STEPS)
    events = ledger_of(tmp_path, "two")
    assert sum(event["event"] == "worker_started" for event in events) >= 2
    episodes = [tuple(row[:2]) for event in events if event["event"] == "rollout" for row in event["episodes"]]
    trained = {key for key in episodes if key[0].startswith("step-")}
    assert len(trained) == STEPS * 3 * 2
    assert [line["step"] for line in metrics_of(tmp_path, "two")] == list(range(1, STEPS + 1))
