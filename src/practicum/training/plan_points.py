"""What was measured of memory and time, and how far `plan` is off.

The measured figures are those of `benchmarks/results/`: H200s (`gpu.json`, `gpu_session.json`, torch 2.11) and two CPU
cores (`rl_step_cpu.json`, torch 2.13). The rates of `plan.EFFICIENCIES` were chosen on the same points, so their errors
are those of a fit; `benchmarks/plan_rates.py` leaves one model out at a time, and measures others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from practicum.training.plan import (
    GIB,
    HARDWARE,
    MODEL_SIZES,
    StepWorkload,
    decode_seconds,
    estimate,
    generation_seconds,
    rollout_seconds,
    update_seconds,
)

MIB = float(2**20)


@dataclass(frozen=True)
class MeasuredPoint:
    """One measurement: of a whole step, of its rollout or update alone, or of one decode step."""

    name: str
    model: str
    hardware: str
    work: StepWorkload
    seconds: float | None = None
    peak_bytes: float | None = None
    part: str = "step"
    """`step`, `update`, `rollout`, `generation`: the engine alone, or `decode`: one decode step with
    `work.prompt_tokens` keys per row."""


class PointError(NamedTuple):
    """A point with the estimates; errors are shares of what was measured."""

    point: MeasuredPoint
    seconds: float
    peak_bytes: float

    @property
    def time_error(self) -> float | None:
        measured = self.point.seconds
        return None if measured is None else self.seconds / measured - 1

    @property
    def memory_error(self) -> float | None:
        measured = self.point.peak_bytes
        return None if measured is None else self.peak_bytes / measured - 1


def _decode(name: str, model: str, rows: int, context: float, milliseconds: float) -> MeasuredPoint:
    work = StepWorkload(rows, 1, context, 1, max_num_seqs=rows)
    return MeasuredPoint(f"decode step, {name}", model, "h200", work, milliseconds / 1000, None, "decode")


def _generation(model: str, rows: int, prompt: int, reply: int, seconds: float, chains: int = 1) -> MeasuredPoint:
    work = StepWorkload(rows // chains, chains, prompt, reply, max_num_seqs=rows)
    name = f"engine, {rows:,} × {prompt:,} × {reply}" + f", {chains} per prompt" * (chains > 1)
    return MeasuredPoint(name, model, "h200", work, seconds, None, "generation")


def _update(name: str, model: str, work: StepWorkload, seconds: float, gib: float) -> MeasuredPoint:
    return MeasuredPoint(f"update, {name}", model, "h200", work, seconds, gib * GIB, "update")


def _cpu(name: str, model: str, prompt: int, seconds: float, rollout: float, mib: float) -> list[MeasuredPoint]:
    work = StepWorkload(8, 8, prompt, 32, micro_tokens=480, max_num_seqs=64)
    return [
        MeasuredPoint(f"GRPO step, {name}", model, "cpu", work, seconds, mib * MIB),
        MeasuredPoint(f"rollout, {name}", model, "cpu", work, rollout, None, "rollout"),
    ]


_GRPO = StepWorkload(32, 8, 200, 128, max_num_seqs=256)
_LORA = StepWorkload(8, 1, 512, 1536, lora_rank=16, checkpointing=True, online=False)
CELLS = ((64, 200, 128), (256, 200, 128), (1024, 200, 128), (256, 1000, 256))
"""Requests, tokens of a prompt and of a reply in the table of `gpu_session.json`."""
POINTS: tuple[MeasuredPoint, ...] = (
    _update("256 × 328 tokens", "smollm2", StepWorkload(256, 1, 200, 128, online=False), 0.2335, 7.49),
    _update("8 per prompt", "smollm2", StepWorkload(32, 8, 200, 128, online=False), 0.1530, 7.75),
    _update("LoRA, 16,384 tokens", "qwen2.5-3b", _LORA, 16384 / 17150.9, 15.54),
    _update("LoRA, 16,384 tokens", "qwen2.5-7b", _LORA, 16384 / 10505.3, 28.20),
    MeasuredPoint("GRPO step, 32 × 8 × 128", "smollm2", "h200", _GRPO, 0.4351, 8.61 * GIB),
    MeasuredPoint("rollout, 32 × 8 × 128", "smollm2", "h200", _GRPO, 0.2702, None, "rollout"),
    _decode("64 rows", "smollm2", 64, 264, 0.996),
    _decode("256 rows", "smollm2", 256, 264, 1.465),
    _decode("1,024 rows", "smollm2", 1024, 264, 3.225),
    _decode("64 rows, 1,024 keys", "smollm2", 64, 1024, 1.454),
    _decode("64 rows, 2,048 keys", "smollm2", 64, 2048, 1.717),
    _decode("64 rows, 4,096 keys", "smollm2", 64, 4096, 2.503),
    _decode("64 rows, 8,000 keys", "smollm2", 64, 8000, 3.833),
    _decode("64 rows", "qwen2.5-0.5b", 64, 264, 1.201),
    _decode("64 rows", "qwen2.5-1.5b", 64, 264, 2.612),
    _decode("64 rows", "qwen2.5-3b", 64, 264, 3.970),
    _decode("64 rows", "qwen2.5-7b", 64, 264, 6.837),
    _generation("smollm2", 64, 200, 128, 0.1458),
    _generation("smollm2", 256, 200, 128, 0.2788),
    _generation("smollm2", 1024, 200, 128, 0.6582),
    _generation("smollm2", 64, 200, 128, 0.1350, 8),
    _generation("smollm2", 256, 200, 128, 0.2221, 8),
    _generation("smollm2", 1024, 200, 128, 0.5244, 8),
    *(
        _generation(model, rows, prompt, reply, seconds)
        for model, measured in {
            "qwen2.5-0.5b": (0.1921, 0.3616, 1.0062, 1.1137),
            "qwen2.5-1.5b": (0.3663, 0.6409, 2.2985, 2.4550),
            "qwen2.5-3b": (0.5416, 1.1202, 4.0135, 4.3422),
            "qwen2.5-7b": (0.8994, 2.1439, 8.1389, 8.4280),
        }.items()
        for (rows, prompt, reply), seconds in zip(CELLS, measured, strict=True)
    ),
    *_cpu("prompts of 40", "tiny", 40, 0.5248, 0.2190, 146.8),
    *_cpu("prompts of 40", "smollm2", 40, 27.44, 8.527, 4019.0),
    *_cpu("prompts of 200", "smollm2", 200, 50.97, 16.91, 4328.3),
)


def estimate_point(point: MeasuredPoint) -> PointError:
    """The estimate of what a point measured."""
    size, hardware, work = MODEL_SIZES[point.model], HARDWARE[point.hardware], point.work
    plan = estimate(size, hardware, work)
    seconds = plan.step_seconds
    if point.part == "decode":
        seconds = decode_seconds(size, hardware, work.groups, work.prompt_tokens)
    elif point.part == "generation":
        seconds = generation_seconds(size, hardware, work)
    elif point.part == "rollout":
        seconds = rollout_seconds(size, hardware, work)
    elif point.part == "update":
        seconds = update_seconds(size, hardware, work) + plan.seconds["optimizer"]
    # What torch counted as tensors is the peak of the first update, in which CUDA graphs are captured.
    captured = hardware.on_gpu and not work.checkpointing and not work.lora_rank
    counted = plan.first_update_bytes if captured else plan.total_bytes - plan.memory.get("CUDA", 0.0)
    return PointError(point, seconds, counted)


def point_errors() -> list[PointError]:
    return [estimate_point(point) for point in POINTS]


def largest_errors() -> tuple[float, float]:
    """The largest errors of memory and of time."""
    errors = point_errors()
    memory = max(abs(error.memory_error) for error in errors if error.memory_error is not None)
    return memory, max(abs(error.time_error) for error in errors if error.time_error is not None)
