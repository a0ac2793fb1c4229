"""Rollout workers: what is refused, how a plan is divided, and (with Ray) that they train as one process does."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest

from practicum.config.overrides import from_yaml, to_yaml
from practicum.config.resolve import resolve_train
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.task import Task
from practicum.training.cluster.rollout_worker import decode_attempt, encode_attempt
from practicum.training.cluster.worker_pool import LEDGER, assign
from practicum.trajectory import plan_attempts

ROOT = Path(__file__).parents[3]
ENVIRONMENT = Path(__file__).parent / "lowercase_replies.py"
WORKERS = "actor_rollout_ref.rollout.num_workers=2"
LOSSES = ("actor/loss", "actor/grad_norm", "critic/vf_loss", "reward/mean", "val/reward/mean")
TIMEOUT_SECONDS = 1800


def overrides(folder: Path, name: str, steps: int, *more: str) -> list[str]:
    """A short run that has rewards to learn from."""
    return [
        f"agent.environment={ENVIRONMENT}:LowercaseReplies", "agent.max_turns=1",
        "actor_rollout_ref.rollout.response_length=10", "data.train_batch_size=3", "agent.num_chains=2",
        "actor_rollout_ref.actor.optim.lr=1e-4", "data.val_batch_size=3", "trainer.val_before_train=false",
        "trainer.test_freq=2", "trainer.save_freq=1", f"trainer.default_local_dir={folder}",
        f"trainer.experiment_name={name}", f"trainer.total_training_steps={steps}", "trainer.device=cpu", *more,
    ]  # fmt: skip


TRAIN = """
import json, os, signal, sys, psutil
from practicum import train
victims = json.loads(sys.argv[2])  # by step: what to kill after it

def on_step(step, total, values):
    victim = victims.pop(str(step), None)
    if victim is None:
        return
    for process in psutil.process_iter():
        try:
            own = process.cwd() == os.getcwd() and process.pid != os.getpid()
            rank, cmdline = process.environ().get("RANK"), " ".join(process.cmdline())
        except psutil.Error:
            continue
        if own and (victim == "worker" and "RolloutWorker" in cmdline or "rank_process" in cmdline and victim == rank):
            process.kill()
            print("killed", victim, flush=True)
            return
    raise SystemExit(f"nothing to kill: {victim}")

train(json.loads(sys.argv[1]), progress=False, on_step=on_step)
"""


def train_in_process(folder: Path, keys: list[str], kills: Mapping[int, str] | None = None) -> str:
    """Train in a process of its own, where Ray and its ranks may start; returns what it printed."""
    folder.mkdir(parents=True, exist_ok=True)
    env = {
        **os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
    }  # fmt: skip
    command = [sys.executable, "-c", TRAIN, json.dumps(keys), json.dumps(kills or {})]
    done = subprocess.run(
        command, env=env, cwd=folder, timeout=TIMEOUT_SECONDS, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def metrics_of(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / "practicum" / name / "metrics.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def check_same(folder: Path, first_run: str, second_run: str, steps: int) -> None:
    """Losses agree to 1e-5, and everything that is counted is the same."""
    first, second = metrics_of(folder, first_run), metrics_of(folder, second_run)
    assert [line["step"] for line in first] == [line["step"] for line in second] == list(range(1, steps + 1))
    for actual, expected in zip(first, second, strict=True):
        assert list(actual) == list(expected)
        for name in (key for key in actual if key in LOSSES):
            assert actual[name] == pytest.approx(expected[name], abs=1e-5, rel=1e-5), (actual["step"], name)
        assert actual["actor/tokens"] == expected["actor/tokens"]
    assert {"actor/loss", "actor/grad_norm"} <= set(first[-1])


def ledger_of(folder: Path, name: str) -> list[dict[str, Any]]:
    text = (folder / "practicum" / name / LEDGER).read_text()
    return [json.loads(line) for line in text.splitlines()]


# -- without Ray ----------------------------------------------------------------------------


def tasks(count: int) -> list[Task]:
    return [Task(f"t{index}", "math", "train", {"question": "ü", "list": [1, {"a": None}]}) for index in range(count)]


def test_an_attempt_travels_as_json() -> None:
    for attempt in plan_attempts(tasks(2), 2, 5, "step-3/"):
        same = decode_attempt(encode_attempt(attempt))
        assert same == attempt
        assert same.task.hash == attempt.task.hash


def test_groups_go_round_among_the_workers() -> None:
    planned = plan_attempts(tasks(3), 2, 0, "step-0/")
    assert assign(planned, [0, 1]) == [0, 0, 1, 1, 0, 0]
    assert assign(planned, [3]) == [3] * 6


def test_a_configuration_travels_as_text() -> None:
    config = resolve_train(["agent.tools=[calculator]", "data.train_batch_size=3"]).config
    assert from_yaml(TrainConfig, to_yaml(config)) == config


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["trainer.overlap=true"], "does not go with actor_rollout_ref.rollout.num_workers=2 yet"),
        (["agent.stream=true", "agent.num_chains=1"], "episodes run in other processes"),
        (["actor_rollout_ref.rollout.name=vllm"], "every worker generates with a local engine"),
        (["data.from_trajectories=x"], "no episode is run"),
        (["actor_rollout_ref.rollout.min_workers=3"], "fewer than rollout.min_workers=3"),
    ],
)
def test_what_workers_cannot_do_is_refused(more: list[str], message: str) -> None:
    with pytest.raises(UserError, match=message):
        resolve_train([WORKERS, *more])


def test_without_ray_workers_and_ranks_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name, *rest: None if name == "ray" else find(name, *rest))
    with pytest.raises(UserError, match="num_workers=2 needs Ray: pip install"):
        resolve_train([WORKERS])
    with pytest.raises(
        UserError, match="needs Ray: .*or start the ranks yourself .torchrun --nnodes 2 --nproc-per-node 4"
    ):
        resolve_train(["trainer.nnodes=2", "trainer.n_gpus_per_node=4"])
    resolve_train(["trainer.n_gpus_per_node=1"])


# -- with Ray -------------------------------------------------------------------------------


@pytest.mark.slow
def test_workers_and_a_kill_change_no_loss(tmp_path: Path) -> None:
    """Two workers, one of them killed after the second step: losses, files and the number of episodes are those of one
    process."""
    pytest.importorskip("ray")
    for kills, name in ((None, "one"), ({2: "worker"}, "workers")):
        keys = overrides(tmp_path, name, 4, *([WORKERS] if kills else []))
        printed = train_in_process(tmp_path / "cwd", keys, kills)
        assert ("killed worker" in printed) == bool(kills)
    check_same(tmp_path, "one", "workers", 4)
    events = ledger_of(tmp_path, "workers")
    assert sum(event["event"] == "worker_lost" for event in events) == 1
    assert sum(event["event"] == "worker_started" for event in events) == 3
    episodes = [tuple(row[:2]) for event in events if event["event"] == "rollout" for row in event["episodes"]]
    trained = [key for key in episodes if key[0].startswith("step-")]
    assert len(trained) == len(set(trained)) == 4 * 3 * 2
    started = [event["pid"] for event in events if event["event"] == "worker_started"]
    assert not any(alive.pid in started and "Worker" in alive.name() for alive in psutil.process_iter())


@pytest.mark.slow
def test_sigterm_ends_a_run_with_workers_after_the_step_with_a_checkpoint(tmp_path: Path) -> None:
    """Ray replaces the handler of SIGTERM by one that ends the process at once."""
    pytest.importorskip("ray")
    keys = overrides(tmp_path, "stopped", 500, WORKERS, "trainer.save_freq=-1")
    command = [sys.executable, "-u", "-m", "practicum.cli", "train", *keys]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as run:
        assert run.stdout is not None
        lines = []
        for line in run.stdout:
            lines.append(line)
            if line.split()[:2] == ["step", "2"]:
                run.send_signal(signal.SIGTERM)
        assert run.wait(TIMEOUT_SECONDS) == 130, "".join(lines)
    (checkpoint,) = (tmp_path / "practicum" / "stopped").glob("global_step_*")
    assert 2 <= int(checkpoint.name.rpartition("_")[2]) < 500


@pytest.mark.slow
def test_workers_roll_out_beside_the_training(tmp_path: Path) -> None:
    """Two workers, up to two steps ahead, one of them killed: every episode of a synchronous run is trained on once,
    and none of its tokens is older."""
    pytest.importorskip("ray")
    keys = overrides(tmp_path, "ahead", 6, WORKERS, "trainer.max_staleness=2", "algorithm.adv_estimator=grpo")
    printed = train_in_process(tmp_path / "cwd", [*keys, "actor_rollout_ref.actor.tis_imp_ratio_cap=2"], {2: "worker"})
    assert "killed worker" in printed
    lines = metrics_of(tmp_path, "ahead")
    assert [line["step"] for line in lines] == list(range(1, 7))
    ages = [line["staleness/steps/max"] for line in lines]
    assert max(ages) == 2
    events = ledger_of(tmp_path, "ahead")
    assert sum(event["event"] == "worker_lost" for event in events) == 1
    episodes = [tuple(row[:2]) for event in events if event["event"] == "rollout" for row in event["episodes"]]
    trained = [key for key in episodes if key[0].startswith("step-")]
    assert len(trained) == len(set(trained)) == 6 * 3 * 2
    assert [line["rollout/episodes"] for line in lines] == [6] * 6


@pytest.mark.slow
@pytest.mark.parametrize("estimator", ["gae", "grpo"])
def test_two_ranks_and_two_workers_equal_one_process(estimator: str, tmp_path: Path) -> None:
    """Ten steps; then one of two ranks is killed after step 3 and of the workers after step 5: the losses stay."""
    pytest.importorskip("ray")
    several = [f"algorithm.adv_estimator={estimator}", WORKERS, "trainer.n_gpus_per_node=2"]
    train_in_process(tmp_path / "cwd", overrides(tmp_path, "one", 10, several[0]))
    printed = train_in_process(tmp_path / "cwd", overrides(tmp_path, "several", 10, *several), {3: "1", 5: "worker"})
    assert "killed 1" in printed
    assert "killed worker" in printed
    assert "rank 1 was killed by signal 9; all ranks start again from the last checkpoint" in printed
    check_same(tmp_path, "one", "several", 10)
    events = ledger_of(tmp_path, "several")
    assert sum(event["event"] == "opened" for event in events) == 2
    assert sum(event["event"] == "worker_lost" for event in events) == 1


@pytest.mark.slow
def test_a_run_goes_on_with_another_number_of_ranks(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    two = "trainer.n_gpus_per_node=2"
    train_in_process(tmp_path / "cwd", overrides(tmp_path, "one", 4))
    for name, first, second in (("grown", [], [two]), ("shrunk", [two], [])):
        train_in_process(tmp_path / "cwd", overrides(tmp_path, name, 2, *first))
        train_in_process(tmp_path / "cwd", overrides(tmp_path, name, 4, *second))
        check_same(tmp_path, "one", name, 4)
