"""One GRPO step, Practicum's against TRL's: rollout, advantages, update, on one device in one run.

Practicum's is `Practice.step` itself: episodes of an environment, typed outcomes, mismatch check and all. TRL's is
`GRPOTrainer` with what is fastest for it: bf16, fused AdamW, no look at old or reference log-probs (`beta=0`,
`num_iterations=1`), no checkpointing, no logging, and the fastest of the micro-batch sizes tried; where vLLM can be
imported, also with vLLM in its process. No reply may end early on either side, both get prompts of the same length, and
both take the mean loss over all tokens.
"""

from __future__ import annotations

import asyncio
import importlib.util
import os
import random
import statistics
import tempfile
import time
import traceback
import zlib
from typing import Any

import torch

from gpu_legs.common import Row, Size, forget_peak, gib, load_real, peak_bytes, synchronise
from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.environment import Action, Environment, Message, Observation, Step
from practicum.environments.math import make_problem
from practicum.task import Task
from practicum.training.micro_batches import MicroBatchLimits
from practicum.training.objective import Objective
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.settings import RLSettings
from practicum.training.trainable_policy import TrainablePolicy

LEARNING_RATE = 1e-6
WARM_UP = 3
"""Warm-up steps, in which graphs are captured: which sizes a step needs depends on the order of its episodes."""
SPLITS = (256, 64)
"""Completions in one micro-batch of TRL; the rest follows by gradient accumulation."""
VLLM_SPLIT = 64
"""The same for TRL with vLLM, which has the memory of keys and values beside it."""
VLLM_MEMORY = 0.3


class Questions(Environment):
    """One question, one reply, and the reply's checksum as reward: only the time matters."""

    name = "bench"

    async def reset(self, task: Task, seed: int) -> Observation:
        return Observation((Message("user", task.fields["question"]),))

    async def step(self, action: Action) -> Step:
        return Step(reward=zlib.crc32(action.text.encode()) / 2**32, terminated=True)

    async def truncate(self) -> Step:
        return Step(reward=random.random(), truncated=True)


def story(rng: random.Random) -> str:
    return " ".join(str(make_problem(rng, 5)["question"]) for _ in range(16))


def make_tasks(renderer: Renderer, tokens: int, count: int) -> list[Task]:
    """Questions whose first prompt has exactly `tokens` tokens."""
    rng, tasks = random.Random(tokens), list[Task]()
    while len(tasks) < count:
        words = story(rng).split()
        for num_words in range(1, len(words)):
            text = " ".join(words[:num_words])
            length = sum(len(span.ids) for span in renderer.start([Message("user", text)]))
            if length >= tokens:
                break
        if length == tokens:
            tasks.append(Task(f"q{len(tasks)}", "bench", "train", {"question": text}))
    return tasks


def make_texts(tokenizer: Any, tokens: int, count: int) -> list[str]:
    """Texts that TRL's tokenizer reads as exactly `tokens` tokens."""
    rng, texts = random.Random(tokens), list[str]()
    while len(texts) < count:
        text = tokenizer.decode(tokenizer(story(rng))["input_ids"][:tokens])
        if len(tokenizer(text)["input_ids"]) == tokens:
            texts.append(text)
    return texts


def make_trainer(size: Size, overlap: bool, steps: int) -> tuple[RLTrainer, str]:
    """A trainer for `steps` steps on questions, and the name of its model."""
    loaded, what = load_real(size)
    limits = MicroBatchLimits() if size.tiny else MicroBatchLimits(16384)
    policy = TrainablePolicy(loaded, max_batch=size.tasks * size.chains, limits=limits, separate_engine_weights=overlap)
    policy.renderer.end_ids = ()
    settings = RLSettings(
        total_training_steps=steps, train_batch_size=size.tasks, num_chains=size.chains, adv_estimator="grpo",
        lr=LEARNING_RATE, loss_agg_mode="token-mean", objective=Objective(entropy_coeff=0.0, kl_loss_coef=0.0),
        lr_warmup_steps=0, mismatch_limit=10.0, overlap=overlap,
    )  # fmt: skip
    tasks = make_tasks(policy.renderer, size.prompt, size.tasks)
    agent = Agent(max_turns=1, sampling=Sampling(1.0, max_tokens=size.new))
    return RLTrainer(policy, OnlineSource(policy, tasks, Questions, agent, settings), settings), what


def measure_practicum(size: Size, overlap: bool = False) -> Row:
    forget_peak(size)
    trainer, what = make_trainer(size, overlap, WARM_UP + 2 * size.repeats + 1)

    async def run() -> list[dict[str, float]]:
        steps = []
        for step in range(WARM_UP + 2 * size.repeats):
            synchronise(size)
            started = time.perf_counter()
            metrics, _ = await trainer.step(step)
            synchronise(size)
            metrics["seconds"] = time.perf_counter() - started
            if metrics["actor/tokens"] != size.tasks * size.chains * size.new:
                raise SystemExit(f"a step trained {metrics['actor/tokens']:.0f} tokens")
            steps.append(metrics)
        await trainer.policy.close()
        return steps[WARM_UP:]

    steps = asyncio.run(run())
    keys = [key for key in steps[0] if key == "seconds" or key.startswith(("timing/", "mismatch/", "staleness/"))]
    middle = {key.removeprefix("timing/"): statistics.median(one[key] for one in steps) for key in keys}
    side = "practicum, overlapped" if overlap else "practicum"
    return {"side": side, "model": what, **middle, "peak GiB": gib(peak_bytes(size))}


def generation_settings(size: Size, loaded: Any, scratch: str, with_vllm: bool) -> dict[str, Any]:
    """TRL's settings of generation: by transformers, or by vLLM in this process, which loads a folder."""
    if not with_vllm:
        return {"generation_kwargs": {"min_new_tokens": size.new}}
    loaded.model.save_pretrained(f"{scratch}/model")
    loaded.tokenizer.save_pretrained(f"{scratch}/model")
    loaded.model.name_or_path = f"{scratch}/model"
    os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    return {
        "use_vllm": True, "vllm_mode": "colocate", "vllm_gpu_memory_utilization": VLLM_MEMORY,
        "vllm_max_model_length": size.prompt + size.new + 8,
        "vllm_importance_sampling_correction": False,  # it would compute the log-probs of each reply once more
        "generation_kwargs": {"ignore_eos": True, "detokenize": False},
    }  # fmt: skip


def measure_trl(size: Size, split: int, with_vllm: bool = False) -> Row:
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer

    forget_peak(size)
    loaded, what = load_real(size)
    texts = make_texts(loaded.tokenizer, size.prompt, size.tasks)
    now: dict[str, float] = {}
    steps: list[dict[str, float]] = []

    class Clock(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            synchronise(size)
            now.update(begun=time.perf_counter(), rollout=0.0)

        def on_step_end(self, *_: Any, **__: Any) -> None:
            synchronise(size)
            steps.append({"seconds": time.perf_counter() - now["begun"], "rollout": now["rollout"]})

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        trained = sum(len(ids) for ids in completion_ids)
        if trained != size.tasks * size.chains * size.new:
            raise SystemExit(f"a step of TRL trained {trained} tokens")
        return [random.random() for _ in completions]

    with tempfile.TemporaryDirectory() as scratch:
        trainer: Any = GRPOTrainer(
            model=loaded.model, reward_funcs=reward, callbacks=[Clock()],
            train_dataset=Dataset.from_dict({"prompt": texts * (size.repeats + 2)}),
            processing_class=loaded.tokenizer,
            args=GRPOConfig(
                output_dir=scratch, per_device_train_batch_size=split,
                gradient_accumulation_steps=size.tasks * size.chains // split, gradient_checkpointing=False,
                num_generations=size.chains, max_completion_length=size.new, temperature=1.0, top_p=1.0, top_k=0,
                beta=0.0, num_iterations=1, shuffle_dataset=False,
                **generation_settings(size, loaded, scratch, with_vllm),
                learning_rate=LEARNING_RATE, lr_scheduler_type="constant", optim="adamw_torch_fused",
                max_grad_norm=1.0, bf16=size.dtype == torch.bfloat16, fp16=False, use_cpu=size.device == "cpu",
                report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
                dataloader_num_workers=0, max_steps=size.repeats + 1, seed=0,
            ),
        )  # fmt: skip
        generate = trainer._generate_single_turn

        def timed(*args: Any, **keywords: Any) -> Any:
            synchronise(size)
            started = time.perf_counter()
            try:
                return generate(*args, **keywords)
            finally:
                synchronise(size)
                now["rollout"] += time.perf_counter() - started

        trainer._generate_single_turn = timed
        trainer.train()
    middle = {key: statistics.median(one[key] for one in steps[1:]) for key in steps[0]}
    side = f"TRL{' with vLLM' * with_vllm}, {split} × {size.tasks * size.chains // split}"
    return {"side": side, "model": what, **middle, "peak GiB": gib(peak_bytes(size))}


def leg(size: Size) -> list[Row]:
    ours = measure_practicum(size)
    show(size, ours)
    theirs = measure_peer(size)
    rows = [ours, *theirs]
    if theirs:
        fastest = min(theirs, key=lambda row: float(row["seconds"]))
        ratio = fastest["seconds"] / ours["seconds"]
        print(f"ratio: {ratio:.2f} against {fastest['side']}", flush=True)
        rows.append({"side": "ratio", "against": fastest["side"], "ratio": ratio})
    try:
        rows.append(measure_practicum(size, overlap=True))
        show(size, rows[-1])
    except Exception as error:  # what was measured before it counts all the same
        traceback.print_exc()
        print(f"overlapped: {type(error).__name__}: {error}", flush=True)
        if size.tiny:
            raise
    return rows


def measure_peer(size: Size) -> list[Row]:
    """TRL in each of the splits, and with vLLM where that can be imported; empty where TRL is not installed."""
    try:
        import trl  # noqa: F401
    except ImportError as error:
        print(f"TRL is not here ({error}); see --needs.", flush=True)
        return []
    total, rows = size.tasks * size.chains, list[Row]()
    for split in sorted({min(split, total) for split in SPLITS}, reverse=True):
        rows.append(measure_trl(size, split))
        show(size, rows[-1])
    if importlib.util.find_spec("vllm") is None:
        print("vLLM is not here, so TRL generates by transformers only; see --needs.", flush=True)
        return rows
    try:
        rows.append(measure_trl(size, min(VLLM_SPLIT, total), with_vllm=True))
        show(size, rows[-1])
    except Exception as error:  # what was measured before it counts all the same
        traceback.print_exc()
        print(f"TRL with vLLM: {type(error).__name__}: {error}", flush=True)
    return rows


def show(size: Size, row: Row) -> None:
    sampled = size.tasks * size.chains * size.new
    split = ", ".join(f"{key} {row[key]:.3f}" for key in ("rollout", "credit", "update") if key in row)
    wrong = row.get("mismatch/logprob/mean")
    print(
        f"{row['side']} ({row['model']}): {row['seconds']:.3f} s a step ({split}), {sampled / row['seconds']:,.0f} "
        f"sampled tokens/s, peak {row['peak GiB']:.1f} GiB"
        + (f", mismatch {wrong:.2g} a token" if wrong is not None else ""),
        flush=True,
    )
