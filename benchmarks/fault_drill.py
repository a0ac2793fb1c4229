"""Fault drill: train with ranks and rollout workers while processes are killed at random, then check the run.

    python benchmarks/fault_drill.py --minutes 30 [--nodes 2]

Learner ranks, rollout workers and the supervisors of ranks are killed, one every `--every` seconds on average, and now
and then the driver, whose command is started again. With `--nodes 2` there are two Ray nodes, each in a network
namespace of its own (which needs root and `ip`), with a rank each; then everything on the second node, its raylet too,
is killed now and then and the node joins again. At the end: the right number of steps, every episode of every step
accounted for once by the ledger, and losses within 1e-5 of an undisturbed run in one process, final reward included.
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
sys.path.insert(0, str(ROOT))

from tests.training.cluster.two_nodes import TwoNodes

ENVIRONMENT = ROOT / "tests" / "training" / "cluster" / "lowercase_replies.py"
LOSSES = ("actor/loss", "actor/grad_norm", "reward/mean")
KINDS = ("rank", "worker", "supervisor", "driver", "node")
WEIGHTS = (4, 4, 1, 1, 2)
PARTS = {"rank_process": "rank", "ray::RolloutWorker": "worker", "ray::RankActor": "supervisor"}
"""Kinds of processes by a part of their command line."""
TASKS, CHAINS = 3, 2


def command(folder: Path, name: str, steps: int, num_nodes: int) -> list[str]:
    """The run, on so many nodes; 0: in one process."""
    own = [f"trainer.nnodes={num_nodes}", f"trainer.n_gpus_per_node={2 // num_nodes}",
           "actor_rollout_ref.rollout.num_workers=2"] if num_nodes else []  # fmt: skip
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
        for part, kind in PARTS.items():
            if part in words:
                results.append((kind, process))
    return results


def disturb(
    folder: Path, driver: subprocess.Popen[bytes], nodes: TwoNodes | None, rng: random.Random, counts: dict[str, int]
) -> None:
    """Kill one process of a random kind, if there is one, or all of the second node."""
    kind = rng.choices(KINDS, WEIGHTS)[0]
    if kind == "driver":
        driver.kill()
        counts[kind] += 1
    elif kind == "node":
        if nodes is not None:
            nodes.stop_node(1)
            counts[kind] += 1
            time.sleep(rng.uniform(1, 10))
            nodes.start_node(1)
    elif victims := [process for own, process in own_processes(folder) if own == kind]:
        rng.choice(victims).kill()
        counts[kind] += 1


def start(folder: Path, steps: int, nodes: TwoNodes | None) -> subprocess.Popen[bytes]:
    """Start the driver."""
    if nodes is not None:
        return nodes.run(command(folder, "drill", steps, 2), folder / "drill.log")
    env = {**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    with (folder / "drill.log").open("ab") as log:
        return subprocess.Popen(command(folder, "drill", steps, 1), cwd=folder, env=env, stdout=log, stderr=log)


def run_disturbed(folder: Path, args: argparse.Namespace, nodes: TwoNodes | None) -> dict[str, int]:
    """Train with kills for some minutes, then to the end; the driver is started again where it was killed."""
    rng, counts = random.Random(args.seed), dict.fromkeys(KINDS, 0)
    end = time.monotonic() + 60 * args.minutes
    while True:
        driver = start(folder, args.steps, nodes)
        while driver.poll() is None:
            time.sleep(rng.uniform(0.5, 1.5) * args.every)
            if time.monotonic() < end and driver.poll() is None:
                disturb(folder, driver, nodes, rng, counts)
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
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="Ray nodes; two need root")
    parser.add_argument("--out", type=Path, help="folder of both runs; default: a temporary one")
    args = parser.parse_args()
    folder = (args.out or Path(tempfile.mkdtemp(prefix="drill-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    subprocess.run(command(folder, "calm", args.steps, 0), cwd=folder, env=env, check=True, capture_output=True)
    if args.nodes == 1:
        counts = run_disturbed(folder, args, None)
    else:
        with TwoNodes(folder) as nodes:
            nodes.start()
            counts = run_disturbed(folder, args, nodes)
    result = {"kills": counts, **check(folder, args.steps), "folder": str(folder)}
    print(json.dumps(result))
    return 0 if result["steps"] and result["episodes"] and result["losses"] else 1


if __name__ == "__main__":
    sys.exit(main())
