"""Does each RL algorithm learn? Every estimator from one SFT model on `math` with `tiny`, on held-out tasks.

    python benchmarks/learn.py [--only grpo,gae] [--jobs 13] [--seed 0] [--out runs/learn]

One SFT model is trained as in quickstart (the best of its validations), then every entry trains from it as
`practicum train` does and is compared with it on the same 400 test tasks, greedy, by McNemar's mid-p test. The results
have p-values also corrected over all entries (Holm), and what SFT reaches on ten times the demonstrations. A model or
entry that is finished is not trained again, so that entries may run in processes of their own.
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

from parallel_jobs import run_phases

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.data.run_folder import write_atomic
from practicum.engines.base import Sampling
from practicum.environments.math import MathEnvironment
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult, read_result
from practicum.evaluation.stats.multiple_testing import holm
from practicum.models import loader
from practicum.quickstart import DEMONSTRATIONS, LEVELS, Quickstart, default_plan
from practicum.training import build
from practicum.training.trainable_policy import TrainablePolicy

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


async def make_sft_model(out: Path, seed: int, demonstrations: int = DEMONSTRATIONS) -> Path:
    """Return the folder of the SFT model, which is trained once."""
    folder = out / f"start-{seed}-{demonstrations}"
    if not (folder / "summary.json").exists():
        await Quickstart(folder, seed, default_plan(seed, demonstrations), sft_only=True).run()
    return folder / "sft" / "model"


async def evaluate(policy: TrainablePolicy, name: str, panel: Panel) -> EvalResult:
    agent = Agent(format="hf", max_turns=max(LEVELS) + 2, sampling=Sampling(0.0, max_tokens=32))
    result, _ = await policy.evaluate(name, panel, lambda: MathEnvironment(levels=LEVELS), agent)
    return result


async def evaluate_sft(out: Path, seed: int, panel: Panel, demonstrations: int = DEMONSTRATIONS) -> EvalResult:
    """The result of the SFT model on the panel. Both are made once; the result is beside the model."""
    model = await make_sft_model(out, seed, demonstrations)
    path = model.parent.parent / "panel.json"
    if path.exists() and (result := read_result(path)).panel == panel.hash:
        return result
    policy = TrainablePolicy(loader.load(str(model)), max_batch=128)
    try:
        result = await evaluate(policy, "sft", panel)
    finally:
        await policy.close()
    result.write(path)
    return result


def label(name: str) -> str:
    """The name of an entry as that of a file."""
    return "".join(c if c.isalnum() else "-" for c in name)


async def train_entry(
    name: str, extra: list[str], start: Path, out: Path, steps: int, seed: int, panel: Panel
) -> EvalResult:
    folder = out / "runs"
    experiment = f"{label(name)}-{seed}"
    shutil.rmtree(folder / "learn" / experiment, ignore_errors=True)
    overrides = [
        "recipe=math-tiny", f"actor_rollout_ref.model.path={start}", f"trainer.total_training_steps={steps}",
        f"trainer.seed={seed}", f"trainer.default_local_dir={folder}", "trainer.project_name=learn",
        f"trainer.experiment_name={experiment}", "trainer.val_before_train=false", "trainer.test_freq=-1",
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
    parser.add_argument("--sft-only", type=int, metavar="N", help="only the SFT model on N demonstrations")
    parser.add_argument("--jobs", type=int, default=1, help="processes of one core each (default: 1, this one)")
    parser.add_argument("--out", type=Path, default=Path("runs/learn"))
    args = parser.parse_args()
    panel = Panel(tuple(MathEnvironment(levels=LEVELS).tasks("test", args.tasks, 1000 * args.seed)), args.seed)
    if args.sft_only:
        result = await evaluate_sft(args.out, args.seed, panel, args.sft_only)
        print(f"SFT on {args.sft_only} demonstrations: {100 * result.success_rate:.1f} %")
        return
    if args.jobs > 1:
        common = [f"--{key}={getattr(args, key)}" for key in ("seed", "steps", "tasks", "out")]
        models = [[f"--sft-only={count}", *common] for count in (10 * DEMONSTRATIONS, DEMONSTRATIONS)]
        run_phases(__file__, [models, [[f"--only={n}", *common] for n in ENTRIES]], args.jobs, args.out / "logs")
    start = await make_sft_model(args.out, args.seed)
    before = await evaluate_sft(args.out, args.seed, panel)
    print(f"start: {100 * before.success_rate:.1f} % of {len(before.scored)}\n")
    print("| entry | held-out success | against the start, points [95 %] | p | minutes |\n|---|---|---|---|---|")
    rows: dict[str, dict[str, float]] = {}
    for name in [args.only] if args.only in ENTRIES else args.only.split(",") if args.only else ENTRIES:
        path = args.out / f"entry-{args.seed}" / f"{label(name)}.json"
        if not path.exists():
            started = time.monotonic()
            after = await train_entry(name, ENTRIES[name], start, args.out, args.steps, args.seed, panel)
            row = entry_row(before, after) | {"minutes": (time.monotonic() - started) / 60}
            write_atomic(path, (json.dumps(row) + "\n").encode())
        rows[name] = row = json.loads(path.read_text())
        print(
            f"| {name} | {100 * row['success']:.1f} % | {100 * row['difference']:+.1f} "
            f"[{100 * row['low']:.1f}, {100 * row['high']:.1f}] | {row['p']:.1g} | {row['minutes']:.1f} |",
            flush=True,
        )
    if args.only:
        return
    for row, p_value in zip(rows.values(), holm([row["p"] for row in rows.values()]), strict=True):
        row["p_holm"] = p_value
    more = await evaluate_sft(args.out, args.seed, panel, 10 * DEMONSTRATIONS)
    print(f"\nSFT on ten times the demonstrations: {100 * more.success_rate:.1f} %")
    record = {"start": before.summary(), "sft_10x": more.summary(), "panel": panel.hash, "steps": args.steps,
              "seed": args.seed, "rows": rows}  # fmt: skip
    write_atomic(Path(__file__).parent / "results" / "learn.json", (json.dumps(record, indent=1) + "\n").encode())


def entry_row(before: EvalResult, after: EvalResult) -> dict[str, float]:
    gain = compare_pair(before, after).success
    return {
        "success": after.success_rate, "difference": gain.difference, "low": gain.interval.low,
        "high": gain.interval.high, "p": gain.p_value, "n": gain.num_tasks,
    }  # fmt: skip


if __name__ == "__main__":
    asyncio.run(main())
