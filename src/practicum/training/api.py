"""Training as functions: `train` (reinforcement learning), `sft` and `dpo`, from a typed configuration or overrides."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from practicum.config.dpo import DPOConfig
from practicum.config.overrides import Resolved
from practicum.config.resolve import resolve_supervised, resolve_train
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.training import build, build_supervised
from practicum.training.build_settings import run_folder
from practicum.training.checkpoint import MODEL, keep_stored_defaults
from practicum.training.run import Run, TrainState
from practicum.training.supervised import place_adapter
from practicum.utils.memory import out_of_memory_in
from practicum.utils.terminal import Progress

StepCallback = Callable[[int, int, Mapping[str, float]], None]
"""Called after each update with its number, from 1, the number of updates in all, and its metrics."""


@dataclass(frozen=True)
class TrainResult:
    """A finished run: its folder, the trained model in it, and the last value of each metric of this process."""

    folder: Path
    model: Path
    num_steps: int
    best_step: int | None
    """Step of the best validation, or None where nothing was validated."""
    best_value: float | None
    metrics: Mapping[str, float]
    """Empty where the run was finished before and nothing was left to do."""


LESS_MEMORY_TRAIN = (
    "lower actor_rollout_ref.actor.ppo_max_token_len_per_gpu (learner) or actor_rollout_ref.rollout.max_num_seqs "
    "(engine), set actor_rollout_ref.model.enable_gradient_checkpointing=true, or train an adapter "
    "(actor_rollout_ref.model.lora_rank=16)"
)
LESS_MEMORY_SUPERVISED = (
    "lower training.batch_size and raise training.gradient_accumulation_steps by as much, set "
    "training.gradient_checkpointing=true, or train a smaller adapter (training.lora_r)"
)


@contextmanager
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """Raise running out of memory as a UserError that says what to lower. Checkpoints stay as they are."""
    try:
        yield
    except (MemoryError, RuntimeError, ExceptionGroup) as error:
        cause = out_of_memory_in(error)
        if cause is None:
            raise
        what = (str(cause).splitlines() or ["the machine has no more"])[0][:200]
        raise UserError(
            f"Out of memory ({what}): {remedy}; docs/troubleshooting.md has more. The same command goes on from the "
            "last checkpoint, if there is one."
        ) from error


def train(
    config: TrainConfig | Resolved[TrainConfig] | Iterable[str],
    *,
    model_folder: str | Path | None = None,
    progress: bool = True,
    log: Callable[[str], None] = print,
    on_step: StepCallback | None = None,
) -> TrainResult:
    """Train by reinforcement learning, online or from logged episodes, and save the model.

    `config` is a `TrainConfig` or overrides as `practicum train` takes them, such as ["recipe=math-tiny"]. A folder
    that holds an unfinished run of the same configuration is continued. The model goes to `model_folder`, by default
    model/ in the run's folder: the best one by validation, or the last where nothing is validated. last/ beside it
    has the last weights. `log` gets messages, `progress` shows a line on stderr.
    """
    resolved = resolve_train(config)
    keep_stored_defaults(resolved, run_folder(resolved.config))
    with explain_out_of_memory(LESS_MEMORY_TRAIN):
        return asyncio.run(_train(resolved.config, model_folder, progress, log, on_step))


async def _train(
    config: TrainConfig,
    model_folder: str | Path | None,
    progress: bool,
    log: Callable[[str], None],
    on_step: StepCallback | None,
) -> TrainResult:
    online = config.data.from_trajectories is None or config.algorithm.offline.method == "bandit"
    episodes_per_step = config.data.train_batch_size * config.agent.num_chains if online else 1
    line = Progress("train", 0, "episodes" if online else "steps", shown=progress)
    metrics: dict[str, float] = {}

    def report(step: int, values: dict[str, float]) -> None:
        metrics.update(values)
        if online:
            line.note = f"step {step}: reward {values.get('reward/mean', float('nan')):.3f}"
        else:
            distance = values.get("offline/distance/mean", float("nan"))
            loss = values.get("actor/loss", float("nan"))
            line.advance(1, f"loss {loss:+.4f}, distance from the log {distance:.3f}")
        if on_step is not None:
            on_step(step, run.settings.total_training_steps, values)

    def show_validation(done: int, total: int) -> None:
        line.note = f"validation: {done}/{total} tasks" if done < total else ""

    def show_update() -> None:
        line.note = "updating the policy"

    on_episode = (lambda episode: line.advance(1, "rolling out")) if online else None
    run = build.build_run(config, report, on_episode, show_update, log, show_validation)
    model = run.model_folder = run.folder / MODEL if model_folder is None else Path(model_folder)
    try:
        line.total = run.settings.total_training_steps * episodes_per_step
        line.done = run.state.step * episodes_per_step
        with line:
            state = await run.train()
    finally:
        await run.policy.close()
    return TrainResult(run.folder, model, state.step, state.best_step, state.best_value, metrics)


def sft(
    config: SFTConfig | Resolved[SFTConfig] | Iterable[str],
    *,
    progress: bool = True,
    log: Callable[[str], None] = print,
    on_step: StepCallback | None = None,
) -> TrainResult:
    """Train on the replies of collected episodes or of a file of rows (supervised fine-tuning).

    `config` is an `SFTConfig` or overrides as `practicum sft` takes them, such as ["data.episodes=runs/collect"].
    """
    resolved = resolve_supervised(SFTConfig, config).config
    build_run = lambda report: build_supervised.build_sft(resolved, report, log)  # noqa: E731
    with explain_out_of_memory(LESS_MEMORY_SUPERVISED):
        return _supervised("sft", "actor/loss", build_run, progress, log, on_step)


def dpo(
    config: DPOConfig | Resolved[DPOConfig] | Iterable[str],
    *,
    progress: bool = True,
    log: Callable[[str], None] = print,
    on_step: StepCallback | None = None,
) -> TrainResult:
    """Train on pairs of replies, the better one preferred (direct preference optimization).

    `config` is a `DPOConfig` or overrides as `practicum dpo` takes them, such as ["data.episodes=runs/collect"].
    """
    resolved = resolve_supervised(DPOConfig, config).config
    build_run = lambda report: build_supervised.build_dpo(resolved, report, log)  # noqa: E731
    with explain_out_of_memory(LESS_MEMORY_SUPERVISED):
        return _supervised("dpo", "dpo/loss", build_run, progress, log, on_step)


def _supervised(
    name: str,
    loss: str,
    build_run: Callable[[Callable[[int, dict[str, float]], None]], Run],
    progress: bool,
    log: Callable[[str], None],
    on_step: StepCallback | None,
) -> TrainResult:
    line = Progress(name, 0, "steps", shown=progress)
    metrics: dict[str, float] = {}

    def report(step: int, values: dict[str, float]) -> None:
        metrics.update(values)
        evaluated = f", eval {metrics['eval/loss']:.3f}" if "eval/loss" in metrics else ""
        line.advance(1, f"loss {values[loss]:.3f}{evaluated}")
        if on_step is not None:
            on_step(step, run.settings.total_training_steps, values)

    run = build_run(report)
    log(build_supervised.describe_parameters(run.policy))
    line.total, line.done = run.settings.total_training_steps, run.state.step

    async def finish() -> TrainState:
        try:
            with line:
                return await run.train()
        finally:
            await run.policy.close()

    state = asyncio.run(finish())
    if run.policy.loaded.adapter is not None:
        place_adapter(run.folder)
    return TrainResult(run.folder, run.folder / "model", state.step, state.best_step, state.best_value, metrics)
