"""Fault drill: train with ranks and rollout workers while processes are killed at random, then check the run.

    python benchmarks/fault_drill.py --minutes 30

Learner ranks, rollout workers and the supervisors of ranks are killed, one every `--every` seconds on average, and now
and then the driver, whose command is started again. At the end: the right number of steps, every episode of every
step accounted for once by the ledger, and losses within 1e-5 of an undisturbed run in one process.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
ENVIRONMENT = ROOT / "tests" / "training" / "cluster" / "lowercase_replies.py"
LOSSES = ("actor/loss", "actor/grad_norm", "reward/mean")
KINDS = ("rank", "worker", "supervisor", "driver")
WEIGHTS = (4, 4, 1, 1)
PARTS = {"rank_process": "rank", "ray::RolloutWorker": "worker", "ray::RankActor": "supervisor"}
"""Kinds of processes by a part of their command line."""
TASKS, CHAINS = 3, 2


def command(folder: Path, name: str, steps: int, several: bool) -> list[str]:
    own = ["trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.num_workers=2"] if several else []
    return [
        sys.executable, "-m", "practicum.cli", "train", f"agent.environment={ENVIRONMENT}:LowercaseReplies",
        "agent.max_turns=1", "actor_rollout_ref.rollout.response_length=10", f"data.train_batch_size={TASKS}",
        f"agent.num_chains={CHAINS}", "actor_rollout_ref.actor.optim.lr=1e-4", "algorithm.adv_estimator=grpo",
        "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=1", "trainer.save_total_limit=2",
        f"trainer.default_local_dir={folder}", f"trainer.experiment_name={name}", "trainer.device=cpu",
        f"trainer.total_training_steps={steps}", *own,
    ]  # fmt: skip


def own_processes(folder: Path) -> list[tuple[str, psutil.Process]]:
    """The processes of the drill by kind: those whose working folder is the drill's."""
    results = []
    for process in psutil.process_iter():
        try:
            if Path(process.cwd()) != folder:
                continue
            words = " ".join(process.cmdline())
        except (psutil.Error, OSError):
            continue
        for part, kind in (
            ("rank_process", "rank"),
            ("ray::RolloutWorker", "worker"),
            ("ray::RankActor", "supervisor"),
        ):
            if part in words:
                results.append((kind, process))
    return results


def disturb(folder: Path, driver: subprocess.Popen[bytes], rng: random.Random, counts: dict[str, int]) -> None:
    """Kill one process of a random kind, if there is one."""
    kind = rng.choices(KINDS, WEIGHTS)[0]
    if kind == "driver":
        driver.kill()
        counts[kind] += 1
        return
    victims = [process for own, process in own_processes(folder) if own == kind]
    if victims:
        rng.choice(victims).kill()
        counts[kind] += 1


def run_disturbed(folder: Path, steps: int, minutes: float, every: float, seed: int) -> dict[str, int]:
    """Train with kills for some minutes, then to the end; the driver is started again where it was killed."""
    rng, counts = random.Random(seed), dict.fromkeys(KINDS, 0)
    env = {**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    end = time.monotonic() + 60 * minutes
    while True:
        with (folder / "drill.log").open("ab") as log:
            driver = subprocess.Popen(
                command(folder, "drill", steps, True), cwd=folder, env=env, stdout=log, stderr=log
            )
        while driver.poll() is None:
            time.sleep(rng.uniform(0.5, 1.5) * every)
            if time.monotonic() < end and driver.poll() is None:
                disturb(folder, driver, rng, counts)
        if driver.returncode == 0:
            return counts
        if driver.returncode != -9 and time.monotonic() > end + 600:
            raise SystemExit(f"the run failed; see {folder / 'drill.log'}")
        for _, process in own_processes(folder):  # a driver that was killed has left them behind for a moment
            psutil.wait_procs([process], timeout=60)


def read(folder: Path, name: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "practicum" / name / file).read_text().splitlines()]


def check(folder: Path, steps: int) -> dict[str, Any]:
    """What is wrong with the disturbed run, against the undisturbed one."""
    drill, calm = read(folder, "drill", "metrics.jsonl"), read(folder, "calm", "metrics.jsonl")
    planned = {(row[0], row[1]): 0 for event in read(folder, "drill", "rollout_ledger.jsonl")
               if event["event"] == "rollout" for row in event["episodes"]}  # fmt: skip
    per_step = [sum(key[0].startswith(f"step-{step}/") for key in planned) for step in range(steps)]
    differences = [
        abs(mine[name] - theirs[name])
        for mine, theirs in zip(drill, calm, strict=False)
        for name in LOSSES
        if name in mine and name in theirs
    ]
    return {
        "steps": [line["step"] for line in drill] == list(range(1, steps + 1)),
        "episodes": per_step == [TASKS * CHAINS] * steps,
        "losses": bool(differences) and max(differences) < 1e-5,
        "largest difference": max(differences, default=float("nan")),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long processes are killed")
    parser.add_argument("--every", type=float, default=45.0, help="mean seconds between kills")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder of both runs; default: a temporary one")
    args = parser.parse_args()
    folder = (args.out or Path(tempfile.mkdtemp(prefix="drill-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(folder, "calm", args.steps, False), cwd=folder, env=env, check=True, capture_output=True)
    counts = run_disturbed(folder, args.steps, args.minutes, args.every, args.seed)
    result = {"kills": counts, **check(folder, args.steps), "folder": str(folder)}
    print(json.dumps(result))
    return 0 if result["steps"] and result["episodes"] and result["losses"] else 1


if __name__ == "__main__":
    sys.exit(main())
