"""`sft` and `dpo`: supervised runs put together from a configuration or overrides, and run."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import torch

from practicum.config import overrides
from practicum.config.dpo import DPOConfig, DPOTrainingConfig
from practicum.config.overrides import Resolved
from practicum.config.resolve import Launch, is_changed, ranks_asked_for, read_launch, select_gpu
from practicum.config.resolve_supervised import LORA_KEYS, check_supervised, resolve_supervised
from practicum.config.sft import SFTConfig, SFTTrainingConfig
from practicum.data.export import DPO_FIELDS, check_roles
from practicum.data.jsonl import read_rows
from practicum.data.run_folder import FolderLock, ModelRef, lock_for_run, resolve_model, write_atomic
from practicum.data.store import read_training_episodes
from practicum.data.task_overlap import write_train_tasks
from practicum.errors import UserError, nearest_name
from practicum.models import loader, lora, quantisation
from practicum.models.loader import Device
from practicum.training import ranks
from practicum.training.build import StepCallback, TrainResult, explain_out_of_memory
from practicum.training.checkpoint import check_supervised_continuation, record_version
from practicum.training.dpo import DPOSettings, DPOTrainer
from practicum.training.follower_rank import run_follower
from practicum.training.micro_batches import MicroBatchLimits, sft_samples
from practicum.training.monitor.supervised_health import SupervisedMonitor
from practicum.training.preference_pairs import fitting_pairs, mine_pairs, pairs_from_rows
from practicum.training.run import Run, TrainState
from practicum.training.sft import SFTSettings, SFTTrainer, without_too_long
from practicum.training.supervised import SupervisedTrainer, place_adapter, supervised_run_settings
from practicum.training.text_dataset import read_demonstration_rows
from practicum.training.trainable_policy import GPU_MICRO_BATCH_TOKENS, ShardingSettings, TrainablePolicy
from practicum.trajectory import Outcome, Trajectory, is_trained, learned_roles
from practicum.utils.concurrency import run_async
from practicum.utils.tables import percent
from practicum.utils.terminal import Progress

Item = TypeVar("Item")
Config = TypeVar("Config", SFTConfig, DPOConfig)
OnStep = Callable[[int, dict[str, float]], None]
HARDWARE: Mapping[str, tuple[int, int]] = {
    "24gb": (1, 16), "40gb": (2, 8), "80gb": (4, 4),  # Affine, for its 4 B model
    "3090": (1, 16), "4090": (2, 8), "a100": (4, 4), "h100": (8, 2),  # HALO, for its 3 B model
}  # fmt: skip
"""batch_size and gradient_accumulation_steps by card: 16 sequences per update on each."""


def hardware_overrides(name: str) -> list[str]:
    """The overrides for a card, by its name."""
    if name not in HARDWARE:
        raise UserError(f"Unknown hardware '{name}'.{nearest_name(name, HARDWARE)} Known: {', '.join(HARDWARE)}.")
    batch_size, accumulation = HARDWARE[name]
    return [f"training.batch_size={batch_size}", f"training.gradient_accumulation_steps={accumulation}"]


def load_policy(config: SFTConfig | DPOConfig, template: str | None) -> TrainablePolicy:
    """The model to train, with its adapter and its micro-batch limits."""
    model, training = config.model, config.training
    check_supervised(config)
    on = resolve_device(config)
    quantised = quantisation.config_of_keys(model.load_in_8bit, model.load_in_4bit)
    loaded = resolve_policy(config).load(on.dtype, on.device, trainable=True, quantised=quantised)
    if training.use_lora and loaded.adapter is None:
        settings = lora.LoRASettings(
            training.lora_r, training.lora_alpha, training.lora_dropout, training.lora_target_modules,
            training.use_dora, training.use_rslora,
        )  # fmt: skip
        loaded = lora.add_adapter(loaded, settings, training.seed)
    limits = MicroBatchLimits(GPU_MICRO_BATCH_TOKENS if on.on_gpu else MicroBatchLimits.tokens, training.batch_size)
    is_sharded = training.strategy == "fsdp2" and ranks.num_ranks() > 1
    sharding = ShardingSettings(has_engine=False) if is_sharded else None
    policy = TrainablePolicy(loaded, template, max_batch=on.batch_size, limits=limits, sharding=sharding)
    policy.decoder.checkpointing = training.gradient_checkpointing
    policy.decoder.autocast = training.bf16 and on.dtype == torch.float32
    policy.decoder.dropout = bool(training.use_lora and training.lora_dropout)
    return policy


def resolve_policy(config: SFTConfig | DPOConfig) -> ModelRef:
    """The model to train. An adapter is trained further, whether `model.path` or `model.adapter_path` names it."""
    model, ref = config.model, resolve_model(config.model.path)
    if model.adapter_path:
        ref = replace(ref, adapter=model.adapter_path) if ref.adapter is None else ref
    if ref.adapter is None:
        return ref
    if ref.adapter != model.adapter_path and model.adapter_path:
        raise UserError("model.path and model.adapter_path both name an adapter; leave one of them out.")
    if not config.training.use_lora:
        raise UserError(
            f"'{ref.adapter}' is an adapter, which training.use_lora=false (--full) cannot train further; merge it "
            "first (`practicum merge`)."
        )
    for key in (f"training.{name}" for name in LORA_KEYS):
        if is_changed(config, key):
            raise UserError(f"{key} is for a new adapter, and '{ref.adapter}' has its own; leave it out.")
    return ref


def resolve_device(config: SFTConfig | DPOConfig) -> Device:
    """Find the device and write it into the configuration. With training.bf16 a GPU holds the weights in bfloat16,
    beside float32 masters; a CPU holds them in float32 and computes in bfloat16."""
    name = loader.resolve_device(config.model.device, key="model.device").device
    config.model.device = name
    return loader.resolve_device(name, "bfloat16" if name != "cpu" and config.training.bf16 else "float32")


def read_demonstrations(
    config: SFTConfig | DPOConfig,
    is_wanted: Callable[[Trajectory], bool] | None = None,
    log: Callable[[str], None] = print,
) -> list[Trajectory]:
    """Scored episodes of a folder's training tasks, all of one chat template.

    With `is_wanted` they are demonstrations to imitate: only the wanted ones, and none with an empty reply; how many
    are left out for that is printed.
    """
    if config.data.episodes is None:
        raise UserError("What to learn from? Set data.episodes to a folder written by `practicum collect`.")
    folder = Path(config.data.episodes)
    episodes: list[Trajectory] = []
    with_empty_reply: list[Path] = []
    for path, episode in read_training_episodes(
        folder, include_held_out=config.data.include_held_out, include_setting="data.include_held_out=true", log=log
    ):
        if not episode.scored or (is_wanted is not None and not is_wanted(episode)):
            continue
        learned = learned_roles(episode, config.data.roles)
        if is_wanted is not None and any(not t.reply.strip() and is_trained(t, learned) for t in episode.turns):
            with_empty_reply.append(path)
            continue
        episodes.append(episode)
    if with_empty_reply:
        print(
            f"{len(with_empty_reply)} episodes with an empty reply are left out: there is no action to imitate "
            f"(the first: '{with_empty_reply[0]}')",
            flush=True,
        )
    templates = {episode.provenance.get("template") for episode in episodes}
    if len(templates) > 1:
        raise UserError(
            f"These episodes were rendered under different chat templates ({templates}); train on one kind."
        )
    check_roles(episodes, config.data.roles, "data.roles")
    return episodes


def check_tokens(
    policy: TrainablePolicy, episodes: Sequence[Trajectory], model: str, roles: Collection[str] | None = None
) -> None:
    """Require that the learned roles' turns hold tokens of the policy's own tokenizer."""
    vocabulary, size = loader.tokenizer_hash(policy.loaded.tokenizer), policy.decoder.shape.vocabulary
    for episode in episodes:
        turns = [turn for turn in episode.turns if is_trained(turn, learned_roles(episode, roles))]
        largest = max((max(span.ids, default=0) for turn in turns for span in turn.spans), default=0)
        if episode.provenance.get("tokenizer", vocabulary) != vocabulary or largest >= size:
            raise UserError(
                f"Episode '{episode.task.id}' holds tokens of '{episode.provenance.get('model')}', not of '{model}'; "
                f"collect again with --tokenizer {model}."
            )


def sft_settings(training: SFTTrainingConfig) -> SFTSettings:
    return SFTSettings(
        num_epochs=training.num_epochs,
        batch_size=training.batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        warmup_steps=training.warmup_steps,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        scheduler_type=training.scheduler_type,
        min_lr_ratio=training.min_lr_ratio,
        seed=training.seed,
    )


def dpo_settings(training: DPOTrainingConfig) -> DPOSettings:
    return DPOSettings(
        num_epochs=training.num_epochs,
        batch_size=training.batch_size,
        gradient_accumulation_steps=training.gradient_accumulation_steps,
        learning_rate=training.learning_rate,
        warmup_ratio=training.warmup_ratio,
        weight_decay=training.weight_decay,
        max_grad_norm=training.max_grad_norm,
        scheduler_type=training.scheduler_type,
        min_lr_ratio=training.min_lr_ratio,
        beta=training.beta,
        loss=training.loss,
        label_smoothing=training.label_smoothing,
        seed=training.seed,
    )


def check_data_source(config: SFTConfig | DPOConfig) -> None:
    """Require episodes or rows, and not both."""
    if (config.data.episodes is None) == (config.data.dataset_path is None):
        remedy = (
            "data.episodes (pairs are mined from them) or data.dataset_path (rows of pairs)"
            if isinstance(config, DPOConfig)
            else "data.episodes (a folder written by `practicum collect`) or data.dataset_path (rows)"
        )
        raise UserError(f"Give either {remedy}.")


def build_sft(config: SFTConfig, on_step: OnStep | None = None, say: Callable[[str], None] = print) -> Run:
    """A supervised fine-tuning run over episodes or rows, resumed where there is a checkpoint."""
    with lock_for_run(Path(config.output_dir)) as lock:
        return _build_sft(config, lock, on_step, say)


def _build_sft(config: SFTConfig, lock: FolderLock, on_step: OnStep | None, say: Callable[[str], None]) -> Run:
    check_data_source(config)
    resolve_device(config)
    check_supervised_continuation(config, Path(config.output_dir))
    trainer, episodes = sft_trainer(config, say)
    run = _build_run(config, lock, trainer, on_step, say)
    if episodes:
        write_train_tasks(run.folder, (episode.task for episode in episodes))
    return run


def sft_trainer(config: SFTConfig, say: Callable[[str], None]) -> tuple[SFTTrainer, list[Trajectory]]:
    """The trainer with model and data loaded, and the episodes, if it learns from any. Every rank has one."""
    training, data = config.training, config.data
    episodes: list[Trajectory] = []
    if data.episodes is not None:
        episodes = read_demonstrations(config, lambda e: data.include_failed or e.outcome is Outcome.SUCCESS, say)
        if not episodes:
            raise UserError(
                f"No successful episode below '{data.episodes}'; collect some, or set data.include_failed=true."
            )
    template = episodes[0].provenance.get("template") if episodes else None
    policy = load_policy(config, config.model.template or template)
    check_tokens(policy, episodes, config.model.path, config.data.roles)
    settings = sft_settings(training)
    if data.dataset_path is not None:
        rows = read_demonstration_rows(Path(data.dataset_path), policy.renderer)
        train, val = split_by_task(rows, lambda row: row[0], data.val_share, training.seed)
    else:
        train, val = (
            [(e.task.id, sample) for e in side for sample in sft_samples([e], learned_roles(e, data.roles))]
            for side in split_by_task(episodes, lambda episode: episode.task.id, data.val_share, training.seed)
        )
    context = policy.decoder.shape.context
    samples, held_out = (without_too_long([sample for _, sample in side], context, say) for side in (train, val))
    tasks = [task for task, sample in train if len(sample.ids) <= context] if data.group_by_task else None
    return SFTTrainer(policy, samples, settings, held_out, tasks=tasks), episodes


def build_dpo(config: DPOConfig, on_step: OnStep | None = None, say: Callable[[str], None] = print) -> Run:
    """A preference run over mined pairs or rows of pairs, resumed where there is a checkpoint."""
    with lock_for_run(Path(config.output_dir)) as lock:
        return _build_dpo(config, lock, on_step, say)


def _build_dpo(config: DPOConfig, lock: FolderLock, on_step: OnStep | None, say: Callable[[str], None]) -> Run:
    check_data_source(config)
    resolve_device(config)
    check_supervised_continuation(config, Path(config.output_dir))
    return _build_run(config, lock, dpo_trainer(config, say), on_step, say)


def dpo_trainer(config: DPOConfig, say: Callable[[str], None]) -> DPOTrainer:
    """The trainer with model and pairs loaded. Every rank has one."""
    if config.data.dataset_path is not None:
        policy = load_policy(config, config.model.template)
        rows = read_rows(Path(config.data.dataset_path), DPO_FIELDS[:3])
        pairs = pairs_from_rows(rows, policy.renderer, config.data.dataset_path)
    else:
        episodes = read_demonstrations(config, log=say)
        template = config.model.template or (episodes[0].provenance.get("template") if episodes else None)
        policy = load_policy(config, template)
        check_tokens(policy, episodes, config.model.path, config.data.roles)
        pairs = [mined.pair for mined in mine_pairs(episodes, config.data.pairing, roles=config.data.roles)]
    pairs = fitting_pairs(pairs, policy.decoder.shape.context, say)
    return DPOTrainer(policy, pairs, dpo_settings(config.training))


def _build_run(
    config: SFTConfig | DPOConfig,
    lock: FolderLock,
    trainer: SupervisedTrainer,
    on_step: OnStep | None,
    say: Callable[[str], None],
) -> Run:
    training, folder = config.training, lock.folder
    settings = supervised_run_settings(
        trainer.num_steps, training.save_steps, training.eval_steps, training.save_total_limit
    )
    trainer.folder = folder
    monitor = SupervisedMonitor(folder, config.health, say)
    run = Run(folder, trainer, settings, monitor, on_step=on_step, say=say, lock=lock)
    run.resume()
    write_atomic(folder / "config.yaml", overrides.to_yaml(config).encode())
    record_version(folder, run.state.step)
    return run


def split_by_task(
    items: Sequence[Item], task: Callable[[Item], str], share: float, seed: int
) -> tuple[list[Item], list[Item]]:
    """Train and validation items: all items of one task are on one side."""
    tasks = sorted({task(item) for item in items})
    random.Random(f"split/{seed}").shuffle(tasks)
    held_out = set(tasks[: round(share * len(tasks))])
    return [item for item in items if task(item) not in held_out], [item for item in items if task(item) in held_out]


def describe_parameters(policy: TrainablePolicy) -> str:
    """How many parameters are trained, of how many."""
    trainable, total = lora.parameter_counts(policy.loaded)
    return f"{trainable:,} of {total:,} parameters are trained ({percent(trainable / total, digits=2)})"


LESS_MEMORY_SUPERVISED = (
    "lower training.batch_size and raise training.gradient_accumulation_steps by as much, set "
    "training.gradient_checkpointing=true, or train a smaller adapter (training.lora_r)"
)


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
    resolved = resolve_supervised(SFTConfig, config)
    make_trainer = lambda: sft_trainer(resolved.config, _say_nothing)[0]  # noqa: E731
    return _train("sft", "actor/loss", resolved, build_sft, make_trainer, progress, log, on_step)


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
    resolved = resolve_supervised(DPOConfig, config)
    make_trainer = lambda: dpo_trainer(resolved.config, _say_nothing)  # noqa: E731
    return _train("dpo", "dpo/loss", resolved, build_dpo, make_trainer, progress, log, on_step)


def _train(
    command: str,
    loss: str,
    resolved: Resolved[Config],
    build: Callable[[Config, OnStep, Callable[[str], None]], Run],
    make_trainer: Callable[[], SupervisedTrainer],
    progress: bool,
    log: Callable[[str], None],
    on_step: StepCallback | None,
) -> TrainResult:
    """Train in this process, on ranks that are started, or as one rank of a launcher's; `loss` names the metric shown.

    `build` makes the run of the first rank, `make_trainer` what the other ranks follow it with.
    """
    if _starts_ranks(resolved):
        return _train_on_ranks(command, resolved, progress, log, on_step)
    config = resolved.config
    with explain_out_of_memory(LESS_MEMORY_SUPERVISED), _joined(config) as launch:
        if not launch.is_first:
            return _follow(config, make_trainer())
        return _supervised(command, loss, lambda report: build(config, report, log), progress, log, on_step)


def _starts_ranks(resolved: Resolved[Any]) -> bool:
    """Whether several ranks are requested, and no launcher has started them."""
    return read_launch().num_ranks == 1 and ranks_asked_for(resolved.config, resolved.chosen) > 1


def _train_on_ranks(
    command: str, resolved: Resolved[Any], progress: bool, log: Callable[[str], None], on_step: StepCallback | None
) -> TrainResult:
    from practicum.training.cluster.learner_ranks import train_on_ranks  # whose ranks import this module

    check_data_source(resolved.config)
    return train_on_ranks(command, resolved, progress, log, on_step)


def _joined(config: SFTConfig | DPOConfig) -> contextlib.AbstractContextManager[Launch]:
    """The other ranks, where a launcher has started some; on a GPU every rank has one of its own."""
    select_gpu(read_launch())
    check_data_source(config)
    return ranks.joined(resolve_device(config).device)


def _say_nothing(text: str) -> None:
    """For ranks other than the first, which prints the messages."""


def _follow(config: SFTConfig | DPOConfig, trainer: SupervisedTrainer) -> TrainResult:
    """Train as another rank than the first: nothing is written here, and the first rank decides."""

    async def finish() -> int:
        try:
            return await run_follower(trainer)
        finally:
            await trainer.policy.close()

    folder = Path(config.output_dir)
    return TrainResult(folder, folder / "model", run_async(finish()), None, None, {})


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
    log(describe_parameters(run.policy))
    line.total, line.done = run.settings.total_training_steps, run.state.step

    async def finish() -> TrainState:
        try:
            with line:
                return await run.train()
        finally:
            await run.policy.close()

    state = run_async(finish())
    if run.policy.loaded.adapter is not None:
        place_adapter(run.folder)
    return TrainResult(run.folder, run.folder / "model", state.step, state.best_step, state.best_value, metrics)
