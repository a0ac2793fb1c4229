"""Imitation and preference as configured stages: what `practicum sft` and `practicum dpo` read and run."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import torch
from omegaconf import OmegaConf

from practicum.config import overrides
from practicum.config.train import check_numbers
from practicum.data.export import DPO_FIELDS
from practicum.data.jsonl import read_rows
from practicum.data.store import read_training_episodes, write_atomic
from practicum.errors import UserError, did_you_mean
from practicum.models import device, loader, lora
from practicum.models.device import Device
from practicum.training import dpo, sft
from practicum.training.micro_batches import MicroBatchLimits, Sample
from practicum.training.optimizer import OptimizerSettings
from practicum.training.preference_pairs import fitting_pairs, mine_pairs, pairs_from_rows
from practicum.training.run import Run
from practicum.training.samples import sft_samples
from practicum.training.supervised import SupervisedTrainer, supervised_run_settings
from practicum.training.text_dataset import read_demonstration_rows
from practicum.training.trainable_policy import GPU_TOKENS, TrainablePolicy
from practicum.trajectory import Outcome, Trajectory

Item = TypeVar("Item")
PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass
class StageModel:
    path: str = "tiny"
    template: str | None = None
    adapter_path: str | None = None  # go on from this adapter
    load_in_8bit: bool = False
    load_in_4bit: bool = False
    device: str = "auto"  # a CUDA GPU where there is one; or cpu, cuda, cuda:N


@dataclass
class StageData:
    episodes: str | None = None  # folder written by `practicum collect`
    dataset_path: str | None = None  # a JSON-lines file instead: messages, or prompt and action (sft); pairs (dpo)
    include_failed: bool = False
    include_held_out: bool = False  # episodes of val and test tasks too
    val_share: float = 0.1
    pairing: str = "same_state"  # dpo from episodes: or trajectory


@dataclass
class SFTTraining:
    """Founding paper 003's keys and defaults."""

    use_lora: bool = True
    lora_r: int = 64
    lora_alpha: float = 128.0
    lora_dropout: float = 0.05
    lora_target_modules: list[str] = field(default_factory=lambda: list(PROJECTIONS))
    use_dora: bool = False
    use_rslora: bool = False
    num_epochs: int = 3
    batch_size: int = 2
    gradient_accumulation_steps: int = 8
    learning_rate: float = 2.0e-5
    warmup_steps: int = 100
    weight_decay: float = 0.01
    max_grad_norm: float = 1.0
    scheduler_type: str = "cosine"
    min_lr_ratio: float = 0.1
    bf16: bool = True
    fp16: bool = False
    gradient_checkpointing: bool = True
    save_steps: int = 1000
    save_total_limit: int | None = 3
    eval_steps: int = 500
    seed: int = 42


@dataclass
class DPOTraining(SFTTraining):
    """Founding paper 002's, where it says otherwise."""

    lora_r: int = 16
    lora_alpha: float = 32.0
    num_epochs: int = 2
    learning_rate: float = 5.0e-5
    warmup_ratio: float = 0.1
    beta: float = 0.1
    loss: str = "dpo"  # or ipo, kto
    label_smoothing: float = 0.0
    save_steps: int = 50


@dataclass
class SFTConfig:
    """Everything `practicum sft` reads."""

    model: StageModel = field(default_factory=StageModel)
    data: StageData = field(default_factory=StageData)
    training: SFTTraining = field(default_factory=SFTTraining)
    output_dir: str = "runs/sft"


@dataclass
class DPOConfig:
    """Everything `practicum dpo` reads."""

    model: StageModel = field(default_factory=StageModel)
    data: StageData = field(default_factory=StageData)
    training: DPOTraining = field(default_factory=DPOTraining)
    output_dir: str = "runs/dpo"


HARDWARE: Mapping[str, tuple[int, int]] = {
    "24gb": (1, 16), "40gb": (2, 8), "80gb": (4, 4),  # paper 003, for its 4 B model
    "3090": (1, 16), "4090": (2, 8), "a100": (4, 4), "h100": (8, 2),  # paper 002, for its 3 B model
}  # fmt: skip
"""Sequences computed at once, and such batches an update, by card: 16 an update on each."""


def preset(name: str) -> list[str]:
    """The overrides that a card's name stands for."""
    if name not in HARDWARE:
        raise UserError(f"Unknown hardware '{name}'.{did_you_mean(name, HARDWARE)} Known: {', '.join(HARDWARE)}.")
    batch, accumulation = HARDWARE[name]
    return [f"training.batch_size={batch}", f"training.gradient_accumulation_steps={accumulation}"]


MAY_CHANGE = ("training.save_steps", "training.save_total_limit", "training.eval_steps")
NOT_DPO = {
    "training.warmup_steps": "it warms up over a share of all updates, training.warmup_ratio",
    "training.eval_steps": "all pairs are trained on, so there is nothing to evaluate on",
    "data.val_share": "all pairs are trained on",
    "data.include_failed": "failed episodes are what the better ones are compared with",
}
NOT_ROWS = {
    "data.pairing": "rows are pairs already",
    "data.include_held_out": "rows do not say which split they are of",
}
"""Keys that mean nothing to `practicum dpo`, or to its rows, and why."""


def check_given(config: SFTConfig | DPOConfig, given: set[str]) -> None:
    """A key that somebody set and the stage would not read is an error, and so is what cannot be trained."""
    if isinstance(config, DPOConfig):
        unread = NOT_DPO | (NOT_ROWS if config.data.dataset_path is not None else {})
        for key, why in unread.items():
            if key in given:
                raise UserError(f"{key} means nothing to `practicum dpo`: {why}; leave it out.")
    check_training(config)


def check_training(config: SFTConfig | DPOConfig) -> None:
    """What cannot be trained, known before anything is loaded."""
    check_numbers(config)
    if config.training.fp16:
        raise UserError("training.fp16=true needs loss scaling, which is not built; use training.bf16=true.")
    if config.model.adapter_path and not config.training.use_lora:
        raise UserError(
            "model.adapter_path goes on with an adapter, and training.use_lora=false (--full) trains all weights: "
            "leave one of them out, or merge the adapter first (`practicum merge`)."
        )


def load_policy(config: SFTConfig | DPOConfig, template: str | None) -> TrainablePolicy:
    """The model to train, with its adapter, cut as the configuration says."""
    model, training = config.model, config.training
    check_training(config)
    where = settle_place(config)
    quantised = loader.quantisation(model.load_in_8bit, model.load_in_4bit)
    loaded = loader.load(model.path, where.dtype, where.device, quantised)
    if model.adapter_path:
        loaded = lora.load_adapter(loaded, model.adapter_path)
    elif training.use_lora:
        settings = lora.LoRASettings(
            training.lora_r, training.lora_alpha, training.lora_dropout, training.lora_target_modules,
            training.use_dora, training.use_rslora,
        )  # fmt: skip
        loaded = lora.add_adapter(loaded, settings, training.seed)
    limits = MicroBatchLimits(GPU_TOKENS if where.on_gpu else MicroBatchLimits.tokens, training.batch_size)
    policy = TrainablePolicy(loaded, template, max_batch=where.batch_size, limits=limits)
    policy.decoder.checkpointing = training.gradient_checkpointing
    policy.decoder.autocast = training.bf16 and where.dtype == torch.float32
    policy.decoder.dropout = bool(training.use_lora and training.lora_dropout)
    return policy


def settle_place(config: SFTConfig | DPOConfig) -> Device:
    """Where the model lies, written into the configuration. With training.bf16 a GPU holds the weights in bfloat16,
    beside float32 masters; a CPU holds them in float32 and computes in bfloat16."""
    name = device.resolve(config.model.device, key="model.device").device
    config.model.device = name
    return device.resolve(name, "bfloat16" if name != "cpu" and config.training.bf16 else "float32")


def read_demonstrations(
    config: SFTConfig | DPOConfig, imitated: Callable[[Trajectory], bool] | None = None
) -> list[Trajectory]:
    """Scored episodes of a folder's training tasks, all of one chat template.

    One that is to be `imitated` must say something.
    """
    if config.data.episodes is None:
        raise UserError("What to learn from? Set data.episodes to a folder written by `practicum collect`.")
    folder = Path(config.data.episodes)
    episodes = []
    for path, episode in read_training_episodes(
        folder, include_held_out=config.data.include_held_out, include_setting="data.include_held_out=true"
    ):
        if not episode.scored or (imitated is not None and not imitated(episode)):
            continue
        silent = next((number for number, turn in enumerate(episode.turns) if not turn.reply.strip()), None)
        if imitated is not None and silent is not None:
            raise UserError(
                f"'{path}', line {silent + 2}: 'reply' is empty, so there is no action to imitate; "
                "take that episode out of the folder."
            )
        episodes.append(episode)
    templates = {episode.provenance.get("template") for episode in episodes}
    if len(templates) > 1:
        raise UserError(
            f"These episodes were rendered under different chat templates ({templates}); train on one kind."
        )
    return episodes


def check_tokens(policy: TrainablePolicy, episodes: Sequence[Trajectory], model: str) -> None:
    vocabulary = loader.tokenizer_hash(policy.loaded.tokenizer)
    for episode in episodes:
        if episode.provenance.get("tokenizer", vocabulary) != vocabulary:
            raise UserError(
                f"Episode '{episode.task.id}' holds tokens of '{episode.provenance.get('model')}', not of '{model}'; "
                f"collect again with --tokenizer {model}."
            )


def optimizer_of(training: SFTTraining) -> OptimizerSettings:
    return OptimizerSettings(training.learning_rate, training.weight_decay, grad_clip=training.max_grad_norm)


def sft_settings(training: SFTTraining) -> sft.SFTSettings:
    return sft.SFTSettings(
        epochs=training.num_epochs,
        batch_size=training.batch_size * training.gradient_accumulation_steps,
        lr=training.learning_rate,
        warmup=training.warmup_steps,
        schedule=training.scheduler_type,
        min_lr_ratio=training.min_lr_ratio,
        seed=training.seed,
        optimizer=optimizer_of(training),
    )


def build_sft(config: SFTConfig, on_step: Callable[[int, dict[str, float]], None] | None = None) -> Run:
    training, folder = config.training, Path(config.output_dir)
    settle_place(config)
    check_continuation(config, folder)
    if (config.data.episodes is None) == (config.data.dataset_path is None):
        raise UserError(
            "Give either data.episodes (a folder written by `practicum collect`) or data.dataset_path (rows)."
        )
    wanted: list[Trajectory] = []
    if config.data.episodes is not None:
        wanted = read_demonstrations(config, lambda e: config.data.include_failed or e.outcome is Outcome.SUCCESS)
        if not wanted:
            raise UserError(
                f"No successful episode below '{config.data.episodes}'; collect some, or set data.include_failed=true."
            )
    known = wanted[0].provenance.get("template") if wanted else None
    policy = load_policy(config, config.model.template or known)
    check_tokens(policy, wanted, config.model.path)
    settings = sft_settings(training)
    if config.data.dataset_path is not None:
        rows = read_demonstration_rows(Path(config.data.dataset_path), policy.renderer)
        sides = split(rows, lambda row: row[0], config.data.val_share, training.seed)
        samples, checked = ([sample for _, sample in side] for side in sides)
    else:
        train, held_out = split(wanted, lambda episode: episode.task.id, config.data.val_share, training.seed)
        samples, checked = sft_samples(train), sft_samples(held_out)
    samples, checked = (sft.without_too_long(side, policy.decoder.shape.context) for side in (samples, checked))
    return _build_run(config, sft.SFTTrainer(policy, samples, settings, checked), on_step)


def build_dpo(config: DPOConfig, on_step: Callable[[int, dict[str, float]], None] | None = None) -> Run:
    training, folder = config.training, Path(config.output_dir)
    settle_place(config)
    check_continuation(config, folder)
    if (config.data.episodes is None) == (config.data.dataset_path is None):
        raise UserError("Give either data.episodes (pairs are mined from them) or data.dataset_path (rows of pairs).")
    if config.data.dataset_path is not None:
        policy = load_policy(config, config.model.template)
        rows = read_rows(Path(config.data.dataset_path), DPO_FIELDS[:3])
        pairs = pairs_from_rows(rows, policy.renderer, config.data.dataset_path)
    else:
        episodes = read_demonstrations(config)
        template = config.model.template or (episodes[0].provenance.get("template") if episodes else None)
        policy = load_policy(config, template)
        check_tokens(policy, episodes, config.model.path)
        pairs = [mined.pair for mined in mine_pairs(episodes, config.data.pairing)]
    pairs = fitting_pairs(pairs, policy.decoder.shape.context)
    settings = dpo.DPOSettings(
        epochs=training.num_epochs,
        batch_size=training.batch_size * training.gradient_accumulation_steps,
        lr=training.learning_rate,
        beta=training.beta,
        loss=training.loss,
        label_smoothing=training.label_smoothing,
        warmup_ratio=training.warmup_ratio,
        schedule=training.scheduler_type,
        min_lr_ratio=training.min_lr_ratio,
        seed=training.seed,
        optimizer=optimizer_of(training),
    )
    return _build_run(config, dpo.DPOTrainer(policy, pairs, settings), on_step)


def _build_run(
    config: SFTConfig | DPOConfig,
    trainer: SupervisedTrainer,
    on_step: Callable[[int, dict[str, float]], None] | None,
) -> Run:
    training, folder = config.training, Path(config.output_dir)
    settings = supervised_run_settings(
        trainer.num_steps, training.save_steps, training.eval_steps, training.save_total_limit
    )
    run = Run(folder, trainer, settings, on_step=on_step)
    run.resume()
    write_atomic(folder / "config.yaml", overrides.show(config).encode())
    return run


def split(found: Sequence[Item], task: Callable[[Item], str], share: float, seed: int) -> tuple[list[Item], list[Item]]:
    """Train and validation by task: all that belongs to one task is on one side."""
    if not 0 <= share < 1:
        raise UserError(f"data.val_share={share} must be from 0 to below 1.")
    tasks = sorted({task(item) for item in found})
    random.Random(f"split/{seed}").shuffle(tasks)
    held = set(tasks[: round(share * len(tasks))])
    return [item for item in found if task(item) not in held], [item for item in found if task(item) in held]


def check_continuation(config: SFTConfig | DPOConfig, folder: Path) -> None:
    """A folder that holds another run, or a finished one without a checkpoint of its end, is not to be written into."""
    stored = folder / "config.yaml"
    if not stored.is_file():
        if (folder / "metrics.jsonl").exists():
            raise UserError(f"'{folder}' already holds a run, and not its config.yaml; choose another output_dir.")
        return
    before, now = OmegaConf.load(stored), OmegaConf.structured(config)
    for key in overrides.schema_keys(type(config)):
        if key not in MAY_CHANGE and OmegaConf.select(before, key) != OmegaConf.select(now, key):
            raise UserError(
                f"'{folder}' holds a run with {key}={OmegaConf.select(before, key)}, "
                f"not {OmegaConf.select(now, key)}; choose another output_dir."
            )
    if config.training.save_steps <= 0 and (folder / "model").exists():
        raise UserError(f"'{folder}' already holds a finished run; choose another output_dir, or remove that folder.")


def describe(policy: TrainablePolicy, samples: Sequence[Sample] = ()) -> str:
    """How much is trained: true counts."""
    trainable, everything = lora.parameter_counts(policy.loaded)
    return f"{trainable:,} of {everything:,} parameters are trained ({trainable / everything:.2%})"
