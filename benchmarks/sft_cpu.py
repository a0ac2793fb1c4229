"""Supervised fine-tuning against TRL's `SFTTrainer`: same model, same conversations, same batches, one run.

    python benchmarks/sft_cpu.py [--model tiny|smollm2] [--batches 24] [--rounds 3] [--out FILE.json]

The conversations are the expert's on `math`, levels 1 to 5: many turns, many lengths; only what the expert wrote is
trained. Each side is a process of its own, trains over the same batches of 8 in the same order with AdamW at the same
learning rate, in fp32 and with all threads, and the sides alternate run by run. The first two batches are not timed.
TRL is measured "as it comes" (its defaults: gradient checkpointing) and tuned (without); it pads, since packing without
flash attention would let conversations attend to one another. Tokens are those of the conversations without padding.
The losses of every step are compared: both sides must follow the same curve.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

BATCH, UNTIMED, LEARNING_RATE = 8, 2, 5e-4
LEVELS = (1, 2, 3, 4, 5)
SIDES = ("practicum", "trl", "trl as it comes")


def make_samples(model: str, count: int) -> tuple[Any, list[Any]]:
    """The model, and the expert's conversations as samples for the learner."""
    from practicum.agent import Agent
    from practicum.chat.renderer import Renderer
    from practicum.engines.base import Sampling
    from practicum.engines.scripted import ScriptedEngine
    from practicum.environments.math import MathEnvironment
    from practicum.models import loader
    from practicum.registry import make_format
    from practicum.rollout import run_episodes
    from practicum.training.micro_batches import sft_samples
    from practicum.trajectory import plan_attempts

    loaded = loader.load(model)
    renderer = Renderer(loaded.tokenizer, None, loaded.end_ids)
    agent = Agent(format="hf", max_turns=12, sampling=Sampling(1.0, max_tokens=64))
    environment = MathEnvironment(levels=LEVELS)
    engine = ScriptedEngine.of("expert", environment, make_format(agent.format), renderer)
    planned = plan_attempts(environment.tasks("train", count, 1), 1, 0)
    episodes = asyncio.run(run_episodes(planned, lambda: MathEnvironment(levels=LEVELS), agent, engine, renderer))
    return loaded, sft_samples(episodes)


def practicum_run(model: str, batches: int) -> dict[str, Any]:
    from practicum.training.learner import OptimizerSettings
    from practicum.training.objective import CROSS_ENTROPY
    from practicum.training.trainable_policy import TrainablePolicy

    loaded, samples = make_samples(model, batches * BATCH)
    policy = TrainablePolicy(loaded)
    policy.reset_optimizer(OptimizerSettings(lr=LEARNING_RATE, betas=(0.9, 0.999)))
    losses, started = [], 0.0
    for index in range(batches):
        if index == UNTIMED:
            started = time.perf_counter()
        batch = samples[index * BATCH : (index + 1) * BATCH]
        count = float(sum(int(sample.mask.sum()) for sample in batch))
        losses.append(policy.update(batch, count, CROSS_ENTROPY, LEARNING_RATE)["actor/loss"])
    return report(samples, losses, time.perf_counter() - started)


def trl_run(model: str, batches: int, tuned: bool) -> dict[str, Any]:
    import transformers
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]

    transformers.utils.logging.set_verbosity_error()
    loaded, samples = make_samples(model, batches * BATCH)
    rows = [
        {"input_ids": list(s.ids), "labels": [i if m else -100 for i, m in zip(s.ids, s.mask, strict=True)]}
        for s in samples
    ]
    step_ends: dict[int, float] = {}

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, _: Any, state: Any, *__: Any, **___: Any) -> None:
            step_ends[state.global_step] = time.perf_counter()

    class InOrder(SFTTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any, **__: Any) -> Any:
            from torch.utils.data import SequentialSampler

            return SequentialSampler(self.train_dataset)

    with tempfile.TemporaryDirectory() as scratch:
        trainer: Any = InOrder(
            model=loaded.model,
            train_dataset=Dataset.from_list(rows),
            processing_class=loaded.tokenizer,
            callbacks=[Clock()],
            args=SFTConfig(
                output_dir=scratch, per_device_train_batch_size=BATCH, gradient_accumulation_steps=1, max_length=None,
                learning_rate=LEARNING_RATE, lr_scheduler_type="constant", weight_decay=0.0,
                max_grad_norm=1.0, num_train_epochs=1, bf16=False, fp16=False, use_cpu=True, packing=False,
                report_to="none", logging_steps=1, save_strategy="no", disable_tqdm=True, seed=0,
                dataset_kwargs={"skip_prepare_dataset": True}, dataloader_pin_memory=False, remove_unused_columns=False,
                **({"gradient_checkpointing": False} if tuned else {}),
            ),
        )  # fmt: skip
        trainer.train()
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
    return report(samples, losses, step_ends[batches] - step_ends[UNTIMED])


def report(samples: list[Any], losses: list[float], seconds: float) -> dict[str, Any]:
    peak_line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    timed = samples[UNTIMED * BATCH :]
    tokens = sum(len(sample.ids) for sample in timed)
    longest = [max(len(s.ids) for s in timed[i : i + BATCH]) for i in range(0, len(timed), BATCH)]
    return {
        "tokens": tokens, "seconds": seconds, "tokens per second": tokens / seconds, "losses": losses,
        "padded tokens": BATCH * sum(longest), "peak MiB": int(peak_line.split()[1]) / 1024,
    }  # fmt: skip


def one_run(side: str, model: str, batches: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "result.json"
        command = [
            sys.executable,
            __file__,
            "--model",
            model,
            "--batches",
            str(batches),
            "--side",
            side,
            "--out",
            str(out),
        ]
        process = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "HF_HUB_OFFLINE": "1"})
        if process.returncode:
            raise SystemExit(f"a side of the benchmark failed:\n{process.stderr}")
        result: dict[str, Any] = json.loads(out.read_text())
        return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="tiny", choices=["tiny", "smollm2"])
    parser.add_argument("--batches", type=int, default=24)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", choices=SIDES, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        if args.side == "practicum":
            result = practicum_run(args.model, args.batches)
        else:
            result = trl_run(args.model, args.batches, tuned=args.side == "trl")
        args.out.write_text(json.dumps(result))
        return
    runs: dict[str, list[dict[str, Any]]] = {side: [] for side in SIDES}
    for index in range(args.rounds):
        for side in SIDES if index % 2 == 0 else reversed(SIDES):
            runs[side].append(one_run(side, args.model, args.batches))
    rates = {side: statistics.median(run["tokens per second"] for run in result) for side, result in runs.items()}
    practicum_result, trl_result = runs["practicum"][0], runs["trl"][0]
    largest_difference = max(abs(a - b) for a, b in zip(practicum_result["losses"], trl_result["losses"], strict=True))
    print(
        f"{args.model}: {args.batches} batches of {BATCH}, {practicum_result['tokens']} tokens "
        f"({practicum_result['padded tokens']} padded)"
    )
    print("| | tokens/s, median | ratio | peak memory, MiB |\n|---|---|---|---|")
    for side, result in runs.items():
        print(f"| {side} | {rates[side]:.0f} | {rates['practicum'] / rates[side]:.2f} | {result[0]['peak MiB']:.0f} |")
    first, last = practicum_result["losses"][0], practicum_result["losses"][-1]
    print(f"loss {first:.3f} → {last:.3f}; largest difference of a step: {largest_difference:.1e}")
    if args.out:
        import torch
        import trl

        versions = {"torch": torch.__version__, "trl": trl.__version__, "date": time.strftime("%Y-%m-%d")}
        row = {"versions": versions, "rates": rates, "largest loss difference": largest_difference, "runs": runs}
        existing = json.loads(args.out.read_text()) if args.out.exists() else {}
        args.out.write_text(json.dumps(existing | {args.model: row}, indent=1) + "\n")


if __name__ == "__main__":
    main()
