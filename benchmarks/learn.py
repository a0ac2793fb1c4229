"""Does each RL algorithm learn? Every estimator from one SFT model on `math` with `tiny`, on held-out tasks.

    python benchmarks/learn.py [--only grpo,gae] [--steps 40] [--seed 0] [--out runs/learn]

One SFT model is trained as in quickstart (400 demonstrations, the best of its validations), then every entry trains
from it as `practicum train` does and is compared with it on the same 400 test tasks, greedy, by McNemar's mid-p test.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import shutil
import time
from pathlib import Path

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.engines.base import Sampling
from practicum.environments.math import MathEnvironment
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.models import loader
from practicum.quickstart import Quickstart, default_plan
from practicum.training import build
from practicum.training.trainable_policy import TrainablePolicy

LEVELS = (1, 2)
ACTOR, ROLLOUT = "actor_rollout_ref.actor", "actor_rollout_ref.rollout"
ENTRIES = {
    "gae": ["algorithm.adv_estimator=gae", "critic.optim.lr=1e-3"],
    "turn_gae": ["algorithm.adv_estimator=turn_gae", "critic.optim.lr=1e-3"],
    "grpo": ["algorithm.adv_estimator=grpo"],
    "flow_grpo": ["algorithm.adv_estimator=flow_grpo"],
    "rloo": ["algorithm.adv_estimator=rloo"],
    "remax": ["algorithm.adv_estimator=remax"],
    "reinforce_plus_plus": ["algorithm.adv_estimator=reinforce_plus_plus"],
    "reinforce_plus_plus_baseline": ["algorithm.adv_estimator=reinforce_plus_plus_baseline"],
    "Dr.GRPO": ["algorithm.adv_estimator=grpo", "algorithm.norm_adv_by_std_in_grpo=false",
                f"{ACTOR}.loss_agg_mode=seq-mean-token-sum-norm"],
    "DAPO": ["algorithm.adv_estimator=grpo", f"{ACTOR}.clip_ratio_high=0.28", "algorithm.filter_groups.enable=true",
             "algorithm.filter_groups.max_num_gen_batches=2"],
    "GSPO": ["algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode=gspo",
             f"{ACTOR}.loss_agg_mode=seq-mean-token-mean", f"{ACTOR}.ppo_mini_batch_size=8"],
    "CISPO": ["algorithm.adv_estimator=grpo", f"{ACTOR}.policy_loss.loss_mode=cispo", f"{ACTOR}.ppo_mini_batch_size=8"],
    "PPO (gae, 2 epochs, KL in reward)": [
        "algorithm.adv_estimator=gae", "critic.optim.lr=1e-3", f"{ACTOR}.ppo_epochs=2",
        "algorithm.use_kl_in_reward=true", "algorithm.kl_ctrl.type=adaptive"],
}  # fmt: skip


async def make_sft_model(out: Path, seed: int) -> Path:
    """Return the folder of the SFT model, which is trained once."""
    folder = out / f"start-{seed}"
    if not (folder / "sft" / "model").exists():
        await Quickstart(folder, seed, default_plan(seed), sft_only=True).run()
    return folder / "sft" / "model"


async def evaluate(policy: TrainablePolicy, name: str, panel: Panel) -> EvalResult:
    agent = Agent(format="hf", max_turns=max(LEVELS) + 2, sampling=Sampling(0.0, max_tokens=32))
    result, _ = await policy.evaluate(name, panel, lambda: MathEnvironment(levels=LEVELS), agent)
    return result


async def train_entry(
    name: str, extra: list[str], start: Path, out: Path, steps: int, seed: int, panel: Panel
) -> EvalResult:
    folder = out / "runs"
    label = "".join(c if c.isalnum() else "-" for c in name) + f"-{seed}"
    shutil.rmtree(folder / "learn" / label, ignore_errors=True)
    overrides = [
        "recipe=math-tiny", f"actor_rollout_ref.model.path={start}", f"trainer.total_training_steps={steps}",
        f"trainer.seed={seed}", f"trainer.default_local_dir={folder}", "trainer.project_name=learn",
        f"trainer.experiment_name={label}", "trainer.val_before_train=false", "trainer.test_freq=-1",
        "trainer.logger=[]", *extra,
    ]  # fmt: skip
    run = build.build_run(resolve_train(overrides).config)
    try:
        await run.train()
        return await evaluate(run.policy, name, panel)
    finally:
        await run.policy.close()


async def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help="comma-separated entries")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tasks", type=int, default=400)
    parser.add_argument("--out", type=Path, default=Path("runs/learn"))
    args = parser.parse_args()
    names = args.only.split(",") if args.only else list(ENTRIES)
    start = await make_sft_model(args.out, args.seed)
    panel = Panel(tuple(MathEnvironment(levels=LEVELS).tasks("test", args.tasks, 1000 * args.seed)), args.seed)
    policy = TrainablePolicy(loader.load(str(start)), max_batch=128)
    before = await evaluate(policy, "sft", panel)
    await policy.close()
    results = Path(__file__).parent / "results" / "learn.json"
    rows = json.loads(results.read_text())["rows"] if results.exists() and args.only else {}
    print(f"start: {before.success_rate:.1%} of {len(before.scored)}\n")
    print("| entry | held-out success | against the start, points [95 %] | p | minutes |\n|---|---|---|---|---|")
    for name in names:
        started = time.monotonic()
        after = await train_entry(name, ENTRIES[name], start, args.out, args.steps, args.seed, panel)
        minutes = (time.monotonic() - started) / 60
        gain = compare_pair(before, after).success
        rows[name] = {
            "success": after.success_rate, "difference": gain.difference, "low": gain.interval.low,
            "high": gain.interval.high, "p": gain.p_value, "minutes": minutes, "n": gain.num_tasks,
        }  # fmt: skip
        print(
            f"| {name} | {after.success_rate:.1%} | {100 * gain.difference:+.1f} "
            f"[{100 * gain.interval.low:.1f}, {100 * gain.interval.high:.1f}] | {gain.p_value:.1g} | {minutes:.1f} |",
            flush=True,
        )
        record = {"start": before.summary(), "panel": panel.hash, "steps": args.steps, "seed": args.seed, "rows": rows}
        results.parent.mkdir(exist_ok=True)
        results.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(main())
