"""Fault drill: train with ranks and rollout workers while processes are killed at random, then check the run.

    python benchmarks/fault_drill.py --minutes 30 [--nodes 2] [--out FOLDER]
    python benchmarks/fault_drill.py --minutes 0 --estimator gae --steps 100    two ranks, two workers, no kills

Learner ranks, rollout workers and the supervisors of ranks are killed, one every `--every` seconds on average, and now
and then the driver, whose command is started again. With `--nodes 2` there are two Ray nodes, each in a network
namespace of its own (which needs root and `ip`), with a rank each; then everything on the second node, its raylet too,
is killed now and then and the node joins again. A run that ends while there is time goes on with `--steps` more.

Afterwards the same number of steps is trained undisturbed in one process, and compared:

* `steps`: every step is there once;
* `episodes`: the ledger has every episode of every step, none twice in a rollout, and every step trained on as many;
* `losses`: losses, gradient norms and rewards of the first ten steps are within 1e-5. Later on, a token may be sampled
  otherwise because of rounding, and the two runs part; `equal_steps` says after how many;
* `rewards`: the difference of the mean rewards of the last quarter of the steps, paired by step (tasks and seeds are
  the same), has a 95 % interval inside ±0.05.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))

from tests.training.cluster.two_nodes import TwoNodes

from practicum.evaluation.stats.intervals import clustered_mean

ENVIRONMENT = ROOT / "tests" / "training" / "cluster" / "lowercase_replies.py"
LOSSES = ("actor/loss", "actor/grad_norm", "reward/mean")
KINDS = ("rank", "worker", "supervisor", "driver", "node")
WEIGHTS = (4, 4, 1, 1, 2)
PARTS = {"rank_process": "rank", "ray::RolloutWorker": "worker", "ray::RankActor": "supervisor"}
"""Kinds of processes by a part of their command line."""
TASKS, CHAINS = 3, 2
COMPARED_STEPS, LOSS_LIMIT = 10, 1e-5
REWARD_LIMIT = 0.05
FINISH_SECONDS = 1200.0
"""Seconds in which the run has to end once nothing is killed any more."""


def command(folder: Path, name: str, steps: int, num_nodes: int, estimator: str) -> list[str]:
    """The run, on so many nodes; 0: in one process."""
    own = [f"trainer.nnodes={num_nodes}", f"trainer.n_gpus_per_node={2 // num_nodes}",
           "actor_rollout_ref.rollout.num_workers=2"] if num_nodes else []  # fmt: skip
    return [
        sys.executable, "-m", "practicum.cli", "train", f"agent.environment={ENVIRONMENT}:LowercaseReplies",
        "agent.max_turns=1", "actor_rollout_ref.rollout.response_length=10", f"data.train_batch_size={TASKS}",
        f"agent.num_chains={CHAINS}", "actor_rollout_ref.actor.optim.lr=1e-4", f"algorithm.adv_estimator={estimator}",
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


def start(folder: Path, steps: int, nodes: TwoNodes | None, estimator: str) -> subprocess.Popen[bytes]:
    """Start the driver."""
    if nodes is not None:
        return nodes.run(command(folder, "drill", steps, 2, estimator), folder / "drill.log")
    env = {**os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1"}
    with (folder / "drill.log").open("ab") as log:
        return subprocess.Popen(
            command(folder, "drill", steps, 1, estimator), cwd=folder, env=env, stdout=log, stderr=log
        )


def run_disturbed(folder: Path, args: argparse.Namespace, nodes: TwoNodes | None) -> tuple[int, dict[str, int]]:
    """Train with kills for some minutes, then to the end. Returns the number of steps, and of ends by their kind.

    The driver is started again where it was killed, or where it gave up.
    """
    rng, counts = random.Random(args.seed), {**dict.fromkeys(KINDS, 0), "gave_up": 0}
    end = time.monotonic() + 60 * args.minutes
    steps = args.steps
    while True:
        driver = start(folder, steps, nodes, args.estimator)
        while driver.poll() is None:
            wait = time.monotonic() + rng.uniform(0.5, 1.5) * args.every
            while driver.poll() is None and time.monotonic() < wait:
                time.sleep(0.5)
            if time.monotonic() < end and driver.poll() is None:
                disturb(folder, driver, nodes, rng, counts)
        if driver.returncode == 0:
            if time.monotonic() > end:
                return steps, counts
            steps += args.steps
        elif driver.returncode != -9:
            counts["gave_up"] += 1
            if time.monotonic() > end + FINISH_SECONDS:
                raise SystemExit(f"the run failed; see {folder / 'drill.log'}")
        for _, process in own_processes(folder):  # a driver that was killed has left them behind for a moment
            psutil.wait_procs([process], timeout=60)


def read(folder: Path, name: str, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "practicum" / name / file).read_text().splitlines()]


def equal_steps(drill: list[dict[str, Any]], undisturbed: list[dict[str, Any]]) -> int:
    """The number of first steps in which no loss differs by more than the limit."""
    for count, (drill_step, undisturbed_step) in enumerate(zip(drill, undisturbed, strict=False)):
        if drill_step.keys() & set(LOSSES) != undisturbed_step.keys() & set(LOSSES):
            return count
        if any(abs(drill_step[name] - undisturbed_step[name]) > LOSS_LIMIT for name in LOSSES if name in drill_step):
            return count
    return min(len(drill), len(undisturbed))


def check(folder: Path, steps: int) -> dict[str, Any]:
    """What is right of the disturbed run, and its difference to the undisturbed one."""
    drill, undisturbed = read(folder, "drill", "metrics.jsonl"), read(folder, "calm", "metrics.jsonl")
    rollouts = [[(row[0], row[1]) for row in event["episodes"]]
                for event in read(folder, "drill", "rollout_ledger.jsonl") if event["event"] == "rollout"]  # fmt: skip
    per_step = Counter(key[0].split("/")[0] for key in {key for rollout in rollouts for key in rollout})
    complete = [per_step[f"step-{step}"] for step in range(steps)] == [TASKS * CHAINS] * steps
    once = all(len(set(rollout)) == len(rollout) for rollout in rollouts)
    trained = all(line["rollout/episodes"] == TASKS * CHAINS for line in drill)
    first = steps - max(2, steps // 4)
    pairs = list(zip(drill[first:], undisturbed[first:], strict=False))
    reward = clustered_mean([a["reward/mean"] - b["reward/mean"] for a, b in pairs], range(len(pairs)))
    equal = equal_steps(drill, undisturbed)
    return {
        "num_steps": steps,
        "steps": [line["step"] for line in drill] == list(range(1, steps + 1)),
        "episodes": complete and once and trained,
        "losses": equal >= min(COMPARED_STEPS, steps),
        "equal_steps": equal,
        "rewards": reward.interval.low > -REWARD_LIMIT and reward.interval.high < REWARD_LIMIT,
        "reward_difference": [reward.mean, reward.interval.low, reward.interval.high],
        "last_success": [sum(pair[i]["success/mean"] for pair in pairs) / len(pairs) for i in range(2)],
        "last_rewards": [sum(pair[i]["reward/mean"] for pair in pairs) / len(pairs) for i in range(2)],
    }


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long processes are killed")
    parser.add_argument("--every", type=float, default=45.0, help="mean seconds between kills")
    parser.add_argument("--steps", type=int, default=200, help="of the run at first")
    parser.add_argument("--estimator", choices=("grpo", "gae"), default="grpo")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--nodes", type=int, choices=(1, 2), default=1, help="Ray nodes; two need root")
    parser.add_argument("--out", type=Path, help="folder of both runs; default: a temporary one")
    args = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nodes and namespaces are taken away
    folder = (args.out or Path(tempfile.mkdtemp(prefix="drill-"))).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    if args.nodes == 1:
        steps, counts = run_disturbed(folder, args, None)
    else:
        with TwoNodes(folder) as nodes:
            nodes.start()
            steps, counts = run_disturbed(folder, args, nodes)
    subprocess.run(
        command(folder, "calm", steps, 0, args.estimator), cwd=folder, env=env, check=True, capture_output=True
    )
    result = {"kills": counts, **check(folder, steps), "folder": str(folder)}
    print(json.dumps(result))
    return 0 if all(result[name] for name in ("steps", "episodes", "losses", "rewards")) else 1


if __name__ == "__main__":
    sys.exit(main())
