"""Does each way to train several roles learn? `docs/examples/manager_worker.py` with `tiny`, on held-out tasks.

    python benchmarks/roles.py [--seeds 1,2,3] [--steps 60] [--out runs/roles]

A start is trained by SFT on a few demonstrations of both roles; the roles that a case does not train get more of them,
so that what is to be learned is the other role's part. Then GRPO trains the worker only, the manager only, or both with
an adapter each. Every policy is evaluated on the same 300 test tasks, greedy, by McNemar's mid-p test.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import shutil
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.agent import Agent, RoleSettings
from practicum.config.resolve import resolve_train
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.models import loader
from practicum.registry import environment_class, make_format
from practicum.rollout import run_episodes
from practicum.training import build
from practicum.training.sft import SFTSettings, train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import plan_attempts

ENVIRONMENT = f"{Path(__file__).parents[1]}/docs/examples/manager_worker.py:ManagerWorker"
TOY = environment_class(ENVIRONMENT)
MAX_TOKENS = 4
RESULTS = Path(__file__).parent / "results" / "roles.json"


@dataclass(frozen=True)
class Case:
    """Demonstrations of both roles, further ones of single roles, and the keys of `practicum train`."""

    demonstrations: int
    further: dict[str, int]
    keys: tuple[str, ...]


CASES = {
    "worker": Case(160, {"manager": 480}, ("agent.train_roles=[worker]", "actor_rollout_ref.actor.optim.lr=1e-4")),
    "manager": Case(240, {"worker": 160}, ("agent.train_roles=[manager]", "actor_rollout_ref.actor.optim.lr=1e-4")),
    "both, an adapter each": Case(
        240,
        {},
        (
            "agent.train_roles=[worker,manager]", "agent.roles.worker.adapter=true", "agent.roles.manager.adapter=true",
            "actor_rollout_ref.model.lora_rank=8", "actor_rollout_ref.model.lora_alpha=16",
            "actor_rollout_ref.actor.optim.lr=1e-3",
        ),
    ),
}  # fmt: skip


async def make_start(case: Case, folder: Path, seed: int) -> None:
    """SFT of both roles, then of single ones, written to `folder`."""
    policy = TrainablePolicy(loader.load_tiny(seed), max_batch=128)
    environment, agent = TOY(), Agent(max_turns=2, sampling=Sampling(1.0, max_tokens=MAX_TOKENS))
    engine = ScriptedEngine.of("expert", environment, make_format("hf"), policy.renderer)
    count = case.demonstrations + sum(case.further.values())
    planned = plan_attempts(environment.tasks("train", count, seed), 1, seed)
    demonstrations = await run_episodes(planned, TOY, agent, engine, policy.renderer)
    settings = SFTSettings(
        num_epochs=1, batch_size=16, gradient_accumulation_steps=1, learning_rate=1e-3, warmup_steps=5,
        scheduler_type="constant", seed=seed,
    )  # fmt: skip
    try:
        await train_sft(policy, demonstrations[: case.demonstrations], settings)
        for role, count in case.further.items():
            await train_sft(policy, demonstrations[case.demonstrations :][:count], settings, roles=(role,))
        policy.save(folder)
    finally:
        await policy.close()


async def evaluate(policy: TrainablePolicy, panel: Panel) -> tuple[EvalResult, dict[str, float]]:
    """Success on the panel, and how often each role was right."""
    roles = {name: RoleSettings() for name in policy.role_policies}
    agent = Agent(max_turns=2, sampling=Sampling(0.0, max_tokens=MAX_TOKENS), roles=roles)
    result, episodes = await policy.evaluate("test", panel, TOY, agent)
    right = dict.fromkeys(TOY.roles, 0.0)
    for episode in episodes:
        for role in right:
            right[role] += sum(turn.role_rewards.get(role, 0.0) for turn in episode.turns) / len(episodes)
    return result, right


async def run_case(name: str, case: Case, out: Path, seed: int, steps: int) -> dict[str, Any]:
    folder = out / f"{name.split(',')[0]}-{seed}"
    shutil.rmtree(folder, ignore_errors=True)
    await make_start(case, folder / "start", seed)
    config = resolve_train(
        [
            f"agent.environment={ENVIRONMENT}", f"actor_rollout_ref.model.path={folder / 'start'}",
            "algorithm.adv_estimator=grpo", "data.train_batch_size=16", "agent.num_chains=8", "agent.max_turns=2",
            f"agent.max_tokens_per_turn={MAX_TOKENS}", f"trainer.total_training_steps={steps}",
            f"trainer.seed={seed}", "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]",
            f"trainer.default_local_dir={folder}", "actor_rollout_ref.actor.use_kl_loss=false",
            "actor_rollout_ref.actor.entropy_coeff=0", *case.keys,
        ]
    ).config  # fmt: skip
    panel = Panel(tuple(TOY().tasks("test", 300)), seed)
    started = time.monotonic()
    run = build.build_run(config, say=lambda text: None)
    try:
        before, right_before = await evaluate(run.policy, panel)
        await run.train()
        after, right_after = await evaluate(run.policy, panel)
    finally:
        await run.policy.close()
    gain = compare_pair(before, after).success
    return {
        "before": before.success_rate, "after": after.success_rate, "difference": gain.difference,
        "low": gain.interval.low, "high": gain.interval.high, "p": gain.p_value, "n": gain.num_tasks,
        "right_before": right_before, "right_after": right_after, "minutes": (time.monotonic() - started) / 60,
    }  # fmt: skip


def shares(right: Mapping[str, float]) -> str:
    return ", ".join(f"{role} {100 * share:.0f} %" for role, share in right.items())


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", default="1,2,3")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--only", help="comma-separated beginnings of cases")
    parser.add_argument("--out", type=Path, default=Path("runs/roles"))
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    print(
        "| trained | seed | before | after | difference, points [95 %] | p | minutes |\n|---|---|---|---|---|---|---|"
    )
    for name, case in CASES.items():
        if args.only and not name.startswith(tuple(args.only.split(","))):
            continue
        for seed in map(int, args.seeds.split(",")):
            row = rows[f"{name}, seed {seed}"] = await run_case(name, case, args.out, seed, args.steps)
            print(
                f"| {name} | {seed} | {100 * row['before']:.1f} % | "
                f"{100 * row['after']:.1f} % | {100 * row['difference']:+.1f} "
                f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}] | {row['p']:.1g} | {row['minutes']:.1f} | "
                f"{shares(row['right_before'])} → {shares(row['right_after'])} |",
                flush=True,
            )
    args.results.parent.mkdir(exist_ok=True)
    args.results.write_text(json.dumps({"steps": args.steps, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
