"""Memory and time of a training step before it runs, from the sizes of model, batch and hardware.

Memory is a sum of named parts. Time is FLOPs and bytes divided by rates that were measured (`EFFICIENCIES`, on an H200
and on two CPU cores), plus the host's work per sequence and turn. `plan_points` compares it with what was measured.
"""

from __future__ import annotations

import bisect
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from practicum.config.resolve import resolve_train
from practicum.config.train import TrainConfig
from practicum.data.run_folder import resolve_model
from practicum.errors import UserError, nearest_name
from practicum.kernels.paged_kv import PAGE_TOKENS
from practicum.models.decoder import Shape, attention_flops, forward_flops, peak_flops, update_flops
from practicum.models.loader import CPU_BATCH_SIZE, GPU_BATCH_SIZE
from practicum.training.estimators import ESTIMATORS
from practicum.training.learner import MAX_TWO_THREAD_HIDDEN_SIZE
from practicum.training.micro_batches import MicroBatchLimits
from practicum.training.settings import max_reply_tokens, max_turns, model_name, rl_settings
from practicum.training.trainable_policy import GPU_MICRO_BATCH_TOKENS

GIB = float(2**30)
MODEL_SIZES = {
    "tiny": Shape(5, 160, 5, 1, 32, 772, 432, True),
    "tiny-pretrained": Shape(5, 160, 5, 1, 32, 772, 432, True),
    "smollm2": Shape(30, 576, 9, 3, 64, 49152, 1536, True),
    "smollm2-135m": Shape(30, 576, 9, 3, 64, 49152, 1536, True),
    "smollm2-360m": Shape(32, 960, 15, 5, 64, 49152, 2560, True),
    "smollm2-1.7b": Shape(24, 2048, 32, 32, 64, 49152, 8192, True),
    "qwen2.5-0.5b": Shape(24, 896, 14, 2, 64, 151936, 4864, True),
    "qwen2.5-1.5b": Shape(28, 1536, 12, 2, 128, 151936, 8960, True),
    "qwen2.5-3b": Shape(36, 2048, 16, 2, 128, 151936, 11008, True),
    "qwen2.5-7b": Shape(28, 3584, 28, 4, 128, 152064, 18944, False),
    "qwen2.5-14b": Shape(48, 5120, 40, 8, 128, 152064, 13824, False),
    "qwen2.5-32b": Shape(64, 5120, 40, 8, 128, 152064, 27648, False),
    "qwen2.5-72b": Shape(80, 8192, 64, 8, 128, 152064, 29568, False),
    "qwen3-0.6b": Shape(28, 1024, 16, 8, 128, 151936, 3072, True),
    "qwen3-1.7b": Shape(28, 2048, 16, 8, 128, 151936, 6144, True),
    "qwen3-4b": Shape(36, 2560, 32, 8, 128, 151936, 9728, True),
    "qwen3-8b": Shape(36, 4096, 32, 8, 128, 151936, 12288, False),
    "qwen3-14b": Shape(40, 5120, 40, 8, 128, 151936, 17408, False),
    "qwen3-32b": Shape(64, 5120, 64, 8, 128, 151936, 25600, False),
    "llama-3.2-1b": Shape(16, 2048, 32, 8, 64, 128256, 8192, True),
    "llama-3.2-3b": Shape(28, 3072, 24, 8, 128, 128256, 8192, True),
    "llama-3.1-8b": Shape(32, 4096, 32, 8, 128, 128256, 14336, False),
    "llama-3.1-70b": Shape(80, 8192, 64, 8, 128, 128256, 28672, False),
}
"""Sizes by a model's name without its owner and suffix, for models that are not on this machine."""


def known_size(name: str) -> Shape | None:
    """The size of a model by its name, such as Qwen/Qwen2.5-7B-Instruct; None where it is not known."""
    short = name.rstrip("/").rsplit("/", 1)[-1].lower()
    matches = [model for model in MODEL_SIZES if short == model or short.startswith(f"{model}-")]
    return MODEL_SIZES[max(matches, key=len)] if matches else None


@dataclass(frozen=True)
class Hardware:
    """One device and its links. Rates are FLOP/s and bytes per second."""

    name: str
    memory: float
    """Bytes that one process may use."""
    bandwidth: float
    """Of the device's memory, as a large copy reaches it."""
    node_link: float
    """Between the devices of one machine, per device."""
    network: float
    """Between machines, per device."""
    peak: float | None
    """Dense bfloat16 FLOP/s; None: a CPU, whose rates are measured as such."""
    cores: int = 2

    @property
    def on_gpu(self) -> bool:
        return self.peak is not None


def _gpu(name: str, memory_gib: float, bandwidth: float, node_link: float) -> Hardware:
    return Hardware(name, memory_gib * GIB, bandwidth, node_link, 50e9, peak_flops(name))


HARDWARE = {
    "h200": _gpu("H200", 139, 4.27e12, 450e9),
    "h100": _gpu("H100", 79, 2.98e12, 450e9),
    "a100-80gb": _gpu("A100", 79, 1.81e12, 300e9),
    "a100-40gb": _gpu("A100", 39, 1.38e12, 300e9),
    "cpu": Hardware("CPU", 16 * GIB, 20e9, 1e9, 1e9, None),
}
"""H200: bandwidth measured (`benchmarks/gpu.py --only context`); the others: 0.89 of the maker's figure, as there.
Links are the makers' figures, the network 400 Gbit/s per GPU."""


def find_hardware(name: str) -> Hardware:
    if name.lower() not in HARDWARE:
        raise UserError(f"Unknown hardware '{name}'.{nearest_name(name, HARDWARE)} Known: {', '.join(HARDWARE)}.")
    return HARDWARE[name.lower()]


@dataclass(frozen=True)
class Efficiencies:
    """Measured rates by hidden size, and the host's seconds."""

    hidden: tuple[int, ...]
    update: tuple[float, ...]
    """Share of the peak that forward and backward reach; on a CPU FLOP/s per core."""
    prefill: tuple[float, ...]
    sequence_seconds: float
    """Host: one sequence becomes a sample of an update."""
    turn_seconds: float
    """Host: one turn of an episode with several, beside its decoding."""
    episode_seconds: float
    """Host: one episode of a single turn."""
    request_seconds: float = 0.0
    """Host: one request of the engine alone, which the two before include."""
    layer_seconds: float = 0.0
    """Decoding: one layer's kernels of a step, beside their bytes and FLOPs."""
    row_seconds: float = 0.0
    """Decoding: one row of a step, with a vocabulary of 49,152."""
    decode_bandwidth: float = 1.0
    """Decoding: share of the bandwidth at which weights, keys and values are read."""
    decode_compute: float = 1.0
    """Decoding: share of the peak."""

    def at(self, rates: Sequence[float], hidden: int) -> float:
        """The rate at a hidden size, on the straight line between the measured ones."""
        index = bisect.bisect_left(self.hidden, hidden)
        if index in (0, len(self.hidden)):
            return rates[min(index, len(rates) - 1)]
        low, high = self.hidden[index - 1], self.hidden[index]
        return rates[index - 1] + (rates[index] - rates[index - 1]) * (hidden - low) / (high - low)


EFFICIENCIES = {
    True: Efficiencies(
        hidden=(576, 2048, 3584), update=(0.31, 0.33, 0.455), prefill=(0.75, 0.75, 0.75), sequence_seconds=2e-4,
        turn_seconds=8e-4, episode_seconds=4e-4, request_seconds=1.9e-4, layer_seconds=27.9e-6, row_seconds=0.55e-6,
        decode_bandwidth=0.9, decode_compute=0.65,
    ),
    False: Efficiencies((160, 576), (32e9, 46e9), (16e9, 33e9), 2e-4, 2e-3, 3e-4),
}  # fmt: skip
"""By whether it is a GPU. H200: updates of SmolLM2-135M, Qwen2.5-3B's and 7B's shapes, and prompts and decoding of
shapes from SmolLM2-135M to Qwen2.5-7B (`benchmarks/plan_rates.py` fits those); two CPU cores: tiny and SmolLM2-135M."""
LOGIT_CELLS = 1 << 27
"""Logits that the LM head's kernel computes at once, about."""
CPU_LOGITS = 4_000_000
PROCESS_BYTES = {True: 0.5 * GIB, False: 40 * 2.0**20}
"""CUDA's own memory; on a CPU what threads and late imports need, beside about 0.5 GiB of libraries that are not
counted here."""
CPU_ALLOCATOR = 1.2
"""Peak of a CPU process over the sum of its tensors, with what the allocator holds back."""
PREFIX_CACHE_BYTES = {True: 8 * GIB, False: 1 * GIB}


@dataclass(frozen=True)
class StepWorkload:
    """What one training step computes, over all ranks."""

    groups: int
    """Prompts of a step."""
    chains: int
    prompt_tokens: float
    reply_tokens: float
    """Tokens sampled per turn."""
    turns: float = 1.0
    num_updates: int = 1
    """Times that every sample is trained on (epochs)."""
    micro_tokens: int = GPU_MICRO_BATCH_TOKENS
    max_num_seqs: int = 256
    gpu_memory_utilization: float = 0.5
    """Share of a GPU's memory beside the weights that keys and values may have."""
    kv_bytes: float | None = None
    """Bytes that keys and values may have instead of that share."""
    lora_rank: int = 0
    checkpointing: bool = False
    reference: bool = False
    critic_head: bool = False
    online: bool = True
    """Whether a step plays episodes."""

    @property
    def sequences(self) -> int:
        return self.groups * self.chains

    @property
    def length(self) -> float:
        """Tokens of one sequence."""
        return self.prompt_tokens + self.turns * self.reply_tokens

    @property
    def computed_tokens(self) -> float:
        """Tokens of all sequences, with the prompt of a group once."""
        return self.groups * (self.prompt_tokens + self.chains * self.turns * self.reply_tokens)

    @property
    def predictions(self) -> float:
        return self.sequences * self.turns * self.reply_tokens


@dataclass(frozen=True)
class Plan:
    """The estimate of one step: bytes per device by purpose, and seconds by phase."""

    memory: dict[str, float]
    sharded_memory: dict[str, float]
    """The same with weights, gradients and moments divided among all ranks (strategy fsdp2); never measured."""
    first_update_bytes: float
    """Peak of tensors that torch counts: what CUDA graphs hold is no tensor any more after they are captured."""
    seconds: dict[str, float]
    update_flops: float
    mfu: float | None
    """Model FLOPs utilisation of the update; None on a CPU."""

    @property
    def total_bytes(self) -> float:
        return sum(self.memory.values())

    @property
    def step_seconds(self) -> float:
        return sum(self.seconds.values())


def estimate(size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int = 1, nnodes: int = 1) -> Plan:
    """Estimate memory and time of one step on `num_ranks` devices."""
    parts = memory_parts(size, hardware, work, num_ranks)
    sharded = {name: value / num_ranks if name in SHARDABLE else value for name, value in parts.items()}
    if num_ranks > 1:  # two layers at a time are whole, and an engine in the same process has all weights
        sharded["gathered layers"] = 2.0 * size.layer_weights * (2 if hardware.on_gpu else 4)
        sharded["engine's weights"] = parts["weights"] if work.online else 0.0
    seconds = step_seconds(size, hardware, work, num_ranks, nnodes)
    flops = (
        update_flops(size, work.computed_tokens, work.predictions, size.lora_weights(work.lora_rank)) * work.num_updates
    )
    update = seconds["update"]
    mfu = None if hardware.peak is None or not update else flops / (update * hardware.peak * num_ranks)
    # Before the first step of the optimizer there are neither moments nor master copies, and one set of gradients.
    later = ("moments and master copies", "gradients", "CUDA")
    first = sum(value for name, value in parts.items() if name not in later) + parts["gradients"] / 4
    return Plan(parts, sharded, first, seconds, flops, mfu)


SHARDABLE = ("weights", "reference", "gradients", "moments and master copies")


def memory_parts(size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int = 1) -> dict[str, float]:
    """Bytes of one device by purpose; every rank holds the whole model."""
    width = 2.0 if hardware.on_gpu else 4.0
    trained = size.lora_weights(work.lora_rank) if work.lora_rank else size.weights
    weights = size.weights + (trained if work.lora_rank else 0)
    two_threads = not hardware.on_gpu and size.hidden < MAX_TWO_THREAD_HIDDEN_SIZE
    parts = {
        "weights": weights * width,
        "reference": trained * width if work.reference and not work.lora_rank else 0.0,
        # In half precision: of a micro-batch, joined, and their float32 sum.
        "gradients": trained * (2 * width + 4.0 if hardware.on_gpu else width * (2 if two_threads else 1)),
        "moments and master copies": trained * (12.0 if hardware.on_gpu else 8.0),
        "critic": 16.0 * size.hidden * (size.hidden + 2) if work.critic_head else 0.0,
        "activations": _activations(size, hardware, work, num_ranks),
        "logits": _logits(size, hardware, work, num_ranks),
        "KV cache": _kv_cache(size, hardware, work, num_ranks, width) if work.online else 0.0,
        "CUDA" if hardware.on_gpu else "threads": PROCESS_BYTES[hardware.on_gpu],
    }
    if not hardware.on_gpu:
        parts = {name: value * CPU_ALLOCATOR for name, value in parts.items()}
    return {name: value for name, value in parts.items() if value}


def _activations(size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int) -> float:
    """Bytes that a micro-batch saves for its backward pass, and those of the layer that is computed."""
    tokens = max(work.length, min(float(work.micro_tokens), work.computed_tokens / num_ranks))
    hidden, inner, query = size.hidden, size.inner, size.heads * size.head_size
    qkv = query + 2 * size.kv_width
    if not hardware.on_gpu:  # norms, rotations and padded rows are operations of their own there
        saved = 4.0 * (9 * hidden + 2 * qkv + 3 * (query + size.kv_width) + 2 * query + 3 * inner)
        saved *= 4 / 3 if hidden < MAX_TWO_THREAD_HIDDEN_SIZE else 1  # two micro-batches of two thirds of the size
        return tokens * saved * (1 if work.checkpointing else size.layers) + (
            tokens * size.layers * hidden * 4.0 if work.checkpointing else 0.0
        )
    inside = tokens * 2.0 * (9 * hidden + 2 * qkv + 5 * inner + 14 * work.lora_rank)
    if work.checkpointing:
        return inside + tokens * size.layers * hidden * 6.0
    # The float32 stream twice, projections, attention's output, gate and up; adapters also keep what they multiply.
    saved = 8.0 * hidden + 2.0 * (qkv + query + 2 * inner)
    if work.lora_rank:
        saved += 2.0 * (2 * hidden + query + inner + qkv + 2 * inner + hidden)
    return inside / 2 + tokens * size.layers * saved


def _logits(size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int) -> float:
    """Bytes of the logits that are held at once, and what is computed from them."""
    predictions = min(float(work.micro_tokens), work.predictions / num_ranks)
    cells = max(size.vocabulary, min(LOGIT_CELLS if hardware.on_gpu else CPU_LOGITS, predictions * size.vocabulary))
    return cells * (6.0 if hardware.on_gpu else 24.0)


def _kv_cache(size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int, width: float) -> float:
    """Bytes of the pages of requests that run at once, and of the prefixes of prompts that do not."""
    per_token = 2.0 * size.layers * size.kv_width * width
    sequences, groups = -(-work.sequences // num_ranks), work.groups / num_ranks
    if not hardware.on_gpu:
        prefixes = min(PREFIX_CACHE_BYTES[False], groups * work.prompt_tokens * per_token)
        return min(work.max_num_seqs, sequences) * work.length * per_token + prefixes
    running = min(work.max_num_seqs, sequences)
    prefixes = max(0.0, groups - -(-running // work.chains)) * work.prompt_tokens * per_token
    pages = running * _bytes_per_request(size, work) + min(PREFIX_CACHE_BYTES[True], prefixes)
    return min(pages, _kv_limit(size, hardware, work))


def _bytes_per_request(size: Shape, work: StepWorkload) -> float:
    """Bytes of the pages of one request on a GPU; requests with one prompt have its full pages in common."""
    shared = int(work.prompt_tokens) // PAGE_TOKENS
    pages = -(-int(work.length) // PAGE_TOKENS) - shared + shared / work.chains
    return pages * PAGE_TOKENS * 4.0 * size.layers * size.kv_width


def _kv_limit(size: Shape, hardware: Hardware, work: StepWorkload) -> float:
    """Bytes that keys and values may have on a GPU; requests wait for room."""
    if work.kv_bytes is not None:
        return work.kv_bytes
    return work.gpu_memory_utilization * max(0.0, hardware.memory - 2.0 * size.weights)


def step_seconds(
    size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int = 1, nnodes: int = 1
) -> dict[str, float]:
    """Seconds by phase of one step; all ranks have the same share of it."""
    share = replace(work, groups=1)  # of one group; multiplied below, since a rank may have a part of one
    scale = max(work.groups / num_ranks, 1 / work.chains)  # at least one whole sequence
    trained = size.lora_weights(work.lora_rank) if work.lora_rank else size.weights
    seconds = {}
    if work.online:
        seconds["rollout"] = rollout_seconds(size, hardware, work, num_ranks)
    if work.reference:
        seconds["reference"] = scale * forward_seconds(size, hardware, share)
    seconds["update"] = work.num_updates * scale * update_seconds(size, hardware, share)
    seconds["optimizer"] = work.num_updates * trained * (30.0 if hardware.on_gpu else 28.0) / hardware.bandwidth
    if num_ranks > 1:
        link = hardware.network if nnodes > 1 else hardware.node_link
        seconds["sum of gradients"] = work.num_updates * 2.0 * (num_ranks - 1) / num_ranks * trained * 4.0 / link
    return seconds


def _rate(size: Shape, hardware: Hardware, prefill: bool = False) -> float:
    """FLOP/s of one device at the size of a model."""
    efficiencies = EFFICIENCIES[hardware.on_gpu]
    rate = efficiencies.at(efficiencies.prefill if prefill else efficiencies.update, size.hidden)
    return rate * (hardware.peak if hardware.peak is not None else hardware.cores)


def update_seconds(size: Shape, hardware: Hardware, work: StepWorkload) -> float:
    """Seconds of forward and backward of one device over a workload, the host's packing included."""
    flops = update_flops(size, work.computed_tokens, work.predictions, size.lora_weights(work.lora_rank))
    passes = 2.0 if work.lora_rank else 3.0
    if work.checkpointing:
        flops += forward_flops(size, work.computed_tokens, 0)
        passes += 1
    flops += passes * attention_flops(size, work.computed_tokens, work.length / 2)
    return flops / _rate(size, hardware) + work.sequences * EFFICIENCIES[hardware.on_gpu].sequence_seconds


def forward_seconds(size: Shape, hardware: Hardware, work: StepWorkload) -> float:
    """Seconds of a forward pass of one device over a workload."""
    flops = forward_flops(size, work.computed_tokens, work.predictions)
    return (flops + attention_flops(size, work.computed_tokens, work.length / 2)) / _rate(size, hardware)


def rollout_seconds(size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int = 1) -> float:
    """Seconds of the episodes of one rank; tools and environments take their own time beside it."""
    efficiencies = EFFICIENCIES[hardware.on_gpu]
    host = efficiencies.episode_seconds if work.turns <= 1 else efficiencies.turn_seconds * work.turns
    return _generation_seconds(size, hardware, work, num_ranks, host)


def generation_seconds(size: Shape, hardware: Hardware, work: StepWorkload) -> float:
    """Seconds of the engine alone, without agents: one request per sequence."""
    return _generation_seconds(size, hardware, work, 1, EFFICIENCIES[hardware.on_gpu].request_seconds)


def _generation_seconds(
    size: Shape, hardware: Hardware, work: StepWorkload, num_ranks: int, host_seconds: float
) -> float:
    groups = -(-work.groups // num_ranks)  # the episodes of a group are on one rank
    sequences = groups * work.chains
    rows = min(work.max_num_seqs, sequences)
    if hardware.on_gpu:
        rows = max(1, min(rows, int(_kv_limit(size, hardware, work) / _bytes_per_request(size, work))))
    waves = sequences / rows
    prompt_tokens = groups * work.prompt_tokens
    prefill = forward_flops(size, prompt_tokens, 0) / _rate(size, hardware, prefill=True)
    steps = waves * work.turns * work.reply_tokens
    shared = work.prompt_tokens * (1 / work.chains)
    context = shared + work.turns * work.reply_tokens / 2
    return prefill + sequences * host_seconds + steps * decode_seconds(size, hardware, rows, context)


def decode_seconds(size: Shape, hardware: Hardware, rows: int, context: float) -> float:
    """Seconds of one decode step of `rows` requests whose keys and values are `context` tokens each, on average."""
    efficiencies = EFFICIENCIES[hardware.on_gpu]
    if not hardware.on_gpu:
        flops = forward_flops(size, rows, rows) + attention_flops(size, rows, context)
        return flops / _rate(size, hardware, prefill=True)
    read = 2.0 * size.weights + rows * context * 4.0 * size.layers * size.kv_width
    compute = forward_flops(size, rows, rows) / ((hardware.peak or 0.0) * efficiencies.decode_compute)
    kernels = size.layers * efficiencies.layer_seconds + rows * efficiencies.row_seconds * size.vocabulary / 49152
    return read / (hardware.bandwidth * efficiencies.decode_bandwidth) + compute + kernels


def workload_of(
    config: TrainConfig, hardware: Hardware, prompt_tokens: int, reply_tokens: int | None = None
) -> StepWorkload:
    """What a step of `practicum train` computes; replies have `reply_tokens`, by default as many as they may."""
    actor, rollout, model = (
        config.actor_rollout_ref.actor,
        config.actor_rollout_ref.rollout,
        config.actor_rollout_ref.model,
    )
    settings = rl_settings(config, config.trainer.total_training_steps or 1)
    limit = actor.ppo_max_token_len_per_gpu
    return StepWorkload(
        groups=config.data.train_batch_size,
        chains=config.agent.num_chains,
        prompt_tokens=prompt_tokens,
        reply_tokens=max_reply_tokens(config) if reply_tokens is None else reply_tokens,
        turns=max_turns(config),
        num_updates=actor.ppo_epochs,
        micro_tokens=limit if hardware.on_gpu else min(limit, MicroBatchLimits.tokens),
        max_num_seqs=rollout.max_num_seqs or (GPU_BATCH_SIZE if hardware.on_gpu else CPU_BATCH_SIZE),
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        kv_bytes=None if rollout.kv_cache_gib is None else rollout.kv_cache_gib * GIB,
        lora_rank=model.lora_rank,
        checkpointing=model.enable_gradient_checkpointing,
        reference=settings.needs_reference,
        critic_head=ESTIMATORS[settings.adv_estimator].needs_critic,
        online=config.data.from_trajectories is None,
    )


NUMBER_KEYS = ("trainer.nnodes", "trainer.n_gpus_per_node")


def read_plan_overrides(overrides: Sequence[str]) -> tuple[TrainConfig, int, int]:
    """The configuration, and the numbers of machines and of devices per machine that it asks for.

    The numbers are taken out before the rest is resolved: a run here could not have them, a plan can.
    """
    numbers = [1, 1]
    rest = []
    for override in overrides:
        key, _, value = override.partition("=")
        if key not in NUMBER_KEYS:
            rest.append(override)
        elif not value.isdigit():
            raise UserError(f"{key}={value} is no number.")
        else:
            numbers[NUMBER_KEYS.index(key)] = max(1, int(value))
    return resolve_train(rest).config, numbers[0], numbers[1]


def size_of_model(config: TrainConfig) -> tuple[str, Shape]:
    """The name and size of the model to train: of its folder's config.json, or of a known name."""
    name = model_name(config)
    path = Path(resolve_model(name).model) / "config.json"
    if path.is_file():
        return name, Shape.of_config(json.loads(path.read_text()))
    size = known_size(name)
    if size is None:
        raise UserError(f"The size of '{name}' is not known here; give a folder with its config.json.")
    return name, size
