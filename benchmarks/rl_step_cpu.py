"""One whole GRPO step against TRL's `GRPOTrainer`: same weights, same prompts, one run, ratios.

A step is 8 prompts × 8 chains × 32 sampled tokens: rollout, advantages, loss without KL, backward, AdamW.

    python benchmarks/rl_step_cpu.py [--model tiny|smollm2|all] [--repeats 3] [--search] [--out FILE.json]

Each side is a process of its own with the same imports, the same environment variables and all threads; the two
alternate, so that other load on the machine affects both. Each warms up with a short step (4 tokens per chain), and two
full ones where they are cheap. Beside the wall-clock time there is the processor time of all threads: it varies less
on a busy machine, but does not show how well two cores are used.
TRL runs in fp32, without logging, with its fused AdamW, and without old or reference log-probs (`beta=0`,
`num_iterations=1`). On `tiny` it is measured twice. "As it comes": with its defaults, micro-batches of 8 and gradient
checkpointing. Tuned: no checkpointing, and the fastest of the micro-batch sizes and thread counts tried.
On `smollm2` it is tuned: tried with `--search`, else the fastest known.
Practicum runs as `TrainablePolicy` sets it up, nothing tuned to the case.
No chain may end early: Practicum ignores end tokens, and TRL suppresses them (`min_new_tokens`).
Memory is the peak resident set of each process (VmHWM), and its growth over what it was after the imports.
"""

from __future__ import annotations

import os

os.environ.setdefault("GOMP_SPINCOUNT", "0")

import argparse
import asyncio
import json
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

PROMPTS, CHAINS, TOKENS, WARM_UP_TOKENS = 8, 8, 32, 4
LEARNING_RATE = 1e-6
CORES = os.cpu_count() or 1
SPLITS = (64, 16, 8)
"""Completions in one micro-batch of TRL; gradients are accumulated over all 64."""
FASTEST_KNOWN = {40: 8, 200: 8}
"""TRL's fastest split on SmolLM2 by prompt length, from `--search`; two threads were always faster than one."""
TRL_DEFAULTS = 0
"""Instead of a micro-batch size: TRL's default size and gradient checkpointing."""


@dataclass(frozen=True)
class Case:
    """A model and the length of its prompts."""

    model: str
    prompt_tokens: int

    def __str__(self) -> str:
        return f"{self.model}, prompts of {self.prompt_tokens}"


CASES = (Case("tiny", 40), Case("smollm2", 40), Case("smollm2", 200))


# -- inputs of both sides ---------------------------------------------------------------------------


def make_prompts(tokenizer: Any, length: int) -> list[str]:
    """Texts of exactly `length` tokens that are tokenised to the same ids again: arithmetic stories, cut to length."""
    from practicum.environments.math import make_problem

    rng = random.Random(length)
    texts: list[str] = []
    while len(texts) < PROMPTS:
        story = " ".join(str(make_problem(rng, 1 + len(texts) % 5)["question"]) for _ in range(16))
        ids = tokenizer(story)["input_ids"][:length]
        text = tokenizer.decode(ids)
        if len(ids) == length and tokenizer(text)["input_ids"] == ids:
            texts.append(text)
    return texts


def make_rewards(step: int) -> list[float]:
    rng = random.Random(step)
    return [rng.random() for _ in range(PROMPTS * CHAINS)]


def resident_bytes(field: str) -> int:
    """VmRSS (current) or VmHWM (peak) of this process."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise OSError(f"no {field} in /proc/self/status")


# -- the two sides, each in its own process --------------------------------------------------------

SendResult = Callable[[dict[str, float]], None]
ReceiveStep = Callable[[], dict[str, int] | None]
"""Returns the next step to run ({"step", "tokens", "threads"}), or None when there is none."""


def practicum_side(case: Case, receive_step: ReceiveStep, send_result: SendResult) -> None:
    """Engine and learner of a TrainablePolicy, as `practicum train` uses them."""
    import numpy as np

    from practicum.algorithms.advantages import grpo
    from practicum.engines.base import Generation, Request, Sampling
    from practicum.environment import Observation
    from practicum.models import loader
    from practicum.task import Task
    from practicum.training.learner import OptimizerSettings
    from practicum.training.micro_batches import Sample
    from practicum.training.objective import Objective
    from practicum.training.trainable_policy import TrainablePolicy

    loaded = loader.load(case.model)
    policy = TrainablePolicy(loaded)
    policy.renderer.end_ids = ()
    policy.reset_optimizer(OptimizerSettings(lr=LEARNING_RATE))
    texts = make_prompts(loaded.tokenizer, case.prompt_tokens)
    prompts = [tuple(loaded.tokenizer(text)["input_ids"]) for text in texts]

    def sample(ids: tuple[int, ...], reply: Generation, advantage: float) -> Sample:
        all_ids = (*ids, *reply.ids)
        mask = np.arange(len(all_ids)) >= len(ids)
        logprobs = np.zeros(len(all_ids), dtype=np.float32)
        logprobs[mask] = reply.logprobs
        weights = mask.astype(np.float32)
        return Sample(all_ids, mask, weights, weights * np.float32(advantage), logprobs)

    async def one_step(step: int, tokens: int) -> dict[str, float]:
        started, cpu_started = time.perf_counter(), time.process_time()
        prompt_ids = [ids for ids in prompts for _ in range(CHAINS)]
        task = Task("b", "bench", "train")
        requests = [
            Request(ids, Sampling(max_tokens=tokens, seed=1000 * step + n), task, Observation(), ())
            for n, ids in enumerate(prompt_ids)
        ]
        await policy.engine.update_weights(policy.version, policy)  # drops what the last step cached with older weights
        replies = await asyncio.gather(*(policy.engine.generate(request) for request in requests))
        rollout_ended = time.perf_counter()
        rewards = make_rewards(step)
        advantages = [a for g in range(PROMPTS) for a in grpo(rewards[g * CHAINS : (g + 1) * CHAINS])]
        samples = [sample(*row) for row in zip(prompt_ids, replies, advantages, strict=True)]
        total = float(sum(len(reply.ids) for reply in replies))  # the mean over tokens, TRL's default too
        metrics = policy.update(samples, total, Objective(entropy_coeff=0.0, kl_loss_coef=0.0), LEARNING_RATE)
        ended = time.perf_counter()
        return {
            "seconds": ended - started, "rollout": rollout_ended - started,
            "processor": time.process_time() - cpu_started, "trained": metrics["actor/tokens"],
        }  # fmt: skip

    async def serve() -> None:
        send_result({})
        while (request := await asyncio.to_thread(receive_step)) is not None:
            send_result(await one_step(request["step"], request["tokens"]))
        await policy.close()

    asyncio.run(serve())


def trl_side(case: Case, split: int, receive_step: ReceiveStep, send_result: SendResult) -> None:
    """`GRPOTrainer.train()`, which waits before each step until it is requested."""
    import torch
    from datasets import Dataset
    from transformers import TrainerCallback
    from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

    from practicum.models import loader

    loaded = loader.load(case.model)
    texts = make_prompts(loaded.tokenizer, case.prompt_tokens)
    current: dict[str, Any] = {}
    micro_batch_options = (
        {} if split == TRL_DEFAULTS else {"per_device_train_batch_size": split, "gradient_checkpointing": False}
    )
    accumulation_steps = PROMPTS * CHAINS // (split or GRPOConfig.per_device_train_batch_size)

    class NoMoreSteps(Exception):
        pass

    class StepCallback(TrainerCallback):  # type: ignore[misc]
        def on_step_begin(self, *_: Any, **__: Any) -> None:
            request = receive_step()
            if request is None:
                raise NoMoreSteps
            torch.set_num_threads(request["threads"])
            config = trainer.generation_config
            config.max_new_tokens = config.min_new_tokens = request["tokens"]
            trainer.generation_kwargs |= {"max_new_tokens": request["tokens"], "min_new_tokens": request["tokens"]}
            current.update(step=request["step"], started=time.perf_counter(), cpu_started=time.process_time())

        def on_step_end(self, *_: Any, **__: Any) -> None:
            seconds, processor = time.perf_counter() - current["started"], time.process_time() - current["cpu_started"]
            send_result(
                {
                    "seconds": seconds,
                    "rollout": current["rollout"],
                    "processor": processor,
                    "trained": current["trained"],
                }
            )

    def reward(completions: list[str], completion_ids: list[list[int]], **_: Any) -> list[float]:
        current["trained"] = float(sum(len(ids) for ids in completion_ids))
        return make_rewards(current["step"])

    with tempfile.TemporaryDirectory() as scratch:
        trainer: Any = GRPOTrainer(
            model=loaded.model,
            reward_funcs=reward,
            train_dataset=Dataset.from_dict({"prompt": texts * 100}),
            processing_class=loaded.tokenizer,
            callbacks=[StepCallback()],
            args=GRPOConfig(
                output_dir=scratch, gradient_accumulation_steps=accumulation_steps, **micro_batch_options,
                num_generations=CHAINS, max_completion_length=TOKENS, temperature=1.0, top_p=1.0, top_k=0,
                beta=0.0, num_iterations=1, generation_kwargs={"min_new_tokens": TOKENS}, shuffle_dataset=False,
                learning_rate=LEARNING_RATE, lr_scheduler_type="constant", optim="adamw_torch_fused",
                max_grad_norm=1.0, bf16=False, fp16=False, use_cpu=True,
                report_to="none", logging_strategy="no", save_strategy="no", disable_tqdm=True,
                dataloader_num_workers=0, dataloader_pin_memory=False, max_steps=1000, seed=0,
            ),
        )  # fmt: skip
        generate = trainer._generate_single_turn

        def timed(*args: Any, **keywords: Any) -> Any:
            started = time.perf_counter()
            try:
                return generate(*args, **keywords)
            finally:
                current["rollout"] = time.perf_counter() - started

        trainer._generate_single_turn = timed
        send_result({})
        try:
            trainer.train()
        except NoMoreSteps:
            return


def serve(side: str, case: Case, split: int) -> None:
    """Run one side: requests are lines on stdin, results are written to the original stdout."""
    import datasets  # noqa: F401
    import torch
    import transformers
    import trl  # noqa: F401

    import practicum.training.trainable_policy  # noqa: F401

    transformers.utils.logging.set_verbosity_error()
    torch.manual_seed(0)
    imported = resident_bytes("VmRSS")
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what a library prints is not a result

    def receive_step() -> dict[str, int] | None:
        line = sys.stdin.readline()
        return json.loads(line) if line.strip() else None

    def send_result(result: dict[str, float]) -> None:
        print(json.dumps({**result, "imported": imported, "peak": resident_bytes("VmHWM")}), file=channel, flush=True)

    if side == "trl":
        trl_side(case, split, receive_step, send_result)
    else:
        practicum_side(case, receive_step, send_result)


# -- the benchmark ---------------------------------------------------------------------------------


class PeerProcess:
    """A process that runs a step on request and is idle in between."""

    def __init__(self, name: str, case: Case, split: int = 0) -> None:
        command = [sys.executable, __file__, "--side", name, "--split", str(split), "--case", json.dumps(asdict(case))]
        environment = {**os.environ, "OMP_NUM_THREADS": str(CORES), "HF_HUB_OFFLINE": "1"}
        self.log = tempfile.TemporaryFile("w+")  # noqa: SIM115
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.log, text=True, env=environment
        )
        self.steps = 0
        self.last = self._answer()

    def _answer(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            self.log.seek(0)
            raise SystemExit(f"a side of the benchmark failed:\n{self.log.read()}")
        result: dict[str, float] = json.loads(line)
        return result

    def step(self, tokens: int = TOKENS, threads: int = CORES) -> dict[str, float]:
        channel: IO[str] | None = self.process.stdin
        assert channel is not None
        channel.write(json.dumps({"step": self.steps, "tokens": tokens, "threads": threads}) + "\n")
        channel.flush()
        self.steps += 1
        self.last = self._answer()
        if self.last["trained"] != PROMPTS * CHAINS * tokens:
            raise SystemExit(f"a step trained {self.last['trained']:.0f} tokens, not {PROMPTS * CHAINS * tokens}")
        return self.last

    def warm_up(self, cheap: bool) -> None:
        for tokens in (WARM_UP_TOKENS, TOKENS, TOKENS) if cheap else (WARM_UP_TOKENS,):
            self.step(tokens)

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()
        self.log.close()


def search(case: Case, repeats: int) -> tuple[int, int, dict[str, float]]:
    """TRL's fastest micro-batch size and thread count, and the median seconds of each that was tried."""
    tried: dict[tuple[int, int], float] = {}
    for split in SPLITS:
        side = PeerProcess("trl", case, split)
        side.warm_up(case.model == "tiny")
        for threads in (1, CORES) if case.model == "tiny" else (CORES,):
            tried[split, threads] = statistics.median(
                side.step(threads=threads)["seconds"] for _ in range(repeats if case.model == "tiny" else 1)
            )
        side.close()
    split, threads = min(tried, key=lambda key: tried[key])
    return split, threads, {f"{s} × {64 // s}, {t} threads": seconds for (s, t), seconds in tried.items()}


def run_case(case: Case, repeats: int, search_splits: bool) -> dict[str, Any]:
    """Alternate the sides; return medians, their ratio, and the memory of each side."""
    split, threads, tried = FASTEST_KNOWN[case.prompt_tokens], CORES, dict[str, float]()
    if search_splits or case.model == "tiny":
        split, threads, tried = search(case, repeats)
    sides = {"practicum": PeerProcess("practicum", case), "trl": PeerProcess("trl", case, split)}
    counts = {"practicum": CORES, "trl": threads}
    if case.model == "tiny":
        sides["trl as it comes"], counts["trl as it comes"] = PeerProcess("trl", case, TRL_DEFAULTS), CORES
    for side in sides.values():
        side.warm_up(case.model == "tiny")
    result: dict[str, list[dict[str, float]]] = {name: [] for name in sides}
    load: list[float] = []
    for repeat in range(repeats):
        for name in sorted(sides, reverse=bool(repeat % 2)):  # each is first as often as the other
            load.append(os.getloadavg()[0])
            result[name].append(sides[name].step(threads=counts[name]))
    for side in sides.values():
        side.close()

    def median(name: str, key: str) -> float:
        return statistics.median(row[key] for row in result[name])

    peaks = {name: side.last["peak"] / 2**20 for name, side in sides.items()}
    return {
        "case": str(case),
        "ratio": median("trl", "seconds") / median("practicum", "seconds"),
        "ratios": {n: median(n, "seconds") / median("practicum", "seconds") for n in sides if n != "practicum"},
        "seconds": {name: median(name, "seconds") for name in sides},
        "processor seconds": {name: median(name, "processor") for name in sides},
        "rollout seconds": {name: median(name, "rollout") for name in sides},
        "peak MiB": peaks,
        "peak over imports MiB": {n: peaks[n] - side.last["imported"] / 2**20 for n, side in sides.items()},
        "memory ratio": peaks["practicum"] / peaks["trl"],
        "TRL micro-batch": split,
        "TRL threads": threads,
        "TRL tried, seconds": tried,
        "load average": load,
        "every step": result,
    }


def table(results: Sequence[dict[str, Any]]) -> str:
    lines = [
        "| case | practicum, s (rollout) | TRL, s (rollout) | ratio | of processor time | "
        "peak memory, MiB, practicum / TRL |",
        "|---|---|---|---|---|---|",
    ]
    for result in results:
        for peer, ratio in result["ratios"].items():
            sides = [f"{result['seconds'][n]:.2f} ({result['rollout seconds'][n]:.2f})" for n in ("practicum", peer)]
            peaks = " / ".join(f"{result['peak MiB'][name]:.0f}" for name in ("practicum", peer))
            cpu_ratio = result["processor seconds"][peer] / result["processor seconds"]["practicum"]
            variant = "as it comes" if peer.endswith("comes") else "tuned"
            lines.append(
                f"| {result['case']} | {sides[0]} | {variant}: {sides[1]} | {ratio:.2f} | {cpu_ratio:.2f} | {peaks} |"
            )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="all", choices=["tiny", "smollm2", "all"])
    parser.add_argument("--repeats", type=int, help="timed steps a side (default: 7 for tiny, 2 for smollm2)")
    parser.add_argument("--search", action="store_true", help="try TRL's splits on smollm2 too (minutes)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--side", help=argparse.SUPPRESS)
    parser.add_argument("--split", type=int, default=64, help=argparse.SUPPRESS)
    parser.add_argument("--case", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.side:
        serve(args.side, Case(**json.loads(args.case)), args.split)
        return
    results = []
    for case in CASES:
        if args.model in ("all", case.model):
            results.append(run_case(case, args.repeats or (7 if case.model == "tiny" else 2), args.search))
            print(f"{case}: ratio {results[-1]['ratio']:.2f}", flush=True)
    print(table(results))
    if args.out:
        import torch
        import transformers
        import trl

        versions = {"torch": torch.__version__, "transformers": transformers.__version__, "trl": trl.__version__,
                    "cpu": platform.processor(), "cores": CORES, "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"versions": versions, "results": results}, indent=1) + "\n")


if __name__ == "__main__":
    main()
