"""Schema of `practicum sft`: Affine's keys and defaults of supervised fine-tuning."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.config.fields import above, at_least, between, unbounded
from practicum.config.health import SupervisedHealthSettings

PROJECTIONS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


@dataclass
class SupervisedModelConfig:
    """The model to train."""

    path: str = "tiny"
    """Model: `tiny`, `smollm2`, a folder or a hub id."""
    template: str | None = None
    """Chat template by name; null: that of the episodes, else the model's own."""
    adapter_path: str | None = None
    """Folder of an adapter to train further."""
    load_in_8bit: bool = False
    """Quantise the frozen weights to 8 bits (CUDA GPU only)."""
    load_in_4bit: bool = False
    """Quantise the frozen weights to 4 bits (CUDA GPU only)."""
    device: str = "auto"
    """`auto` (a CUDA GPU if there is one), `cpu`, `cuda` or `cuda:N`."""


@dataclass
class SupervisedDataConfig:
    """What to learn from: episodes or rows, one of the two."""

    episodes: str | None = None
    """Folder written by `practicum collect`."""
    dataset_path: str | None = None
    """JSON-lines file: messages, or prompt and action or response (sft); prompt, chosen and rejected (dpo)."""
    include_failed: bool = False
    """sft: learn from failed episodes too."""
    include_held_out: bool = False
    """Learn from episodes of validation and test tasks too."""
    val_share: float = between(0, 1, 0.1, includes_high=False)
    """sft: share of the tasks that the loss is evaluated on."""
    roles: list[str] | None = None
    """Roles whose replies are learned; null: those in training where the episodes were made, else the policy's own."""
    group_by_task: bool = False
    """sft: learn the rows (or turns) of a task in one update: what their prompts share is computed once."""
    pairing: str = "same_state"
    """dpo from episodes: `same_state` pairs two replies to one prompt, `trajectory` two episodes of one task."""


@dataclass
class SFTTrainingConfig:
    """Adapter, optimizer, batches and checkpoints of supervised fine-tuning."""

    use_lora: bool = True
    """Train a LoRA adapter; false: all weights."""
    lora_r: int = at_least(1, 64)
    """Rank of the adapter."""
    lora_alpha: float = at_least(0, 128.0)
    """Scale of the adapter."""
    lora_dropout: float = between(0, 1, 0.05, includes_high=False)
    """Dropout before the adapter."""
    lora_target_modules: list[str] = field(default_factory=lambda: list(PROJECTIONS))
    """Projections that get an adapter."""
    use_dora: bool = False
    """Weight-decomposed adapter (DoRA)."""
    use_rslora: bool = False
    """Rank-stabilised scale (rsLoRA)."""
    strategy: str = "ddp"
    """Several ranks: `ddp` gives every rank the whole learner, `fsdp2` divides weights, gradients and moments."""
    nnodes: int = at_least(1, 1)
    """Machines."""
    n_gpus_per_node: int = at_least(1, 1)
    """Ranks per machine: one per GPU, or as many processes with model.device=cpu."""
    num_epochs: int = at_least(1, 3)
    """Passes over the data."""
    batch_size: int = at_least(1, 2)
    """Sequences (dpo: pairs) computed at once."""
    gradient_accumulation_steps: int = at_least(1, 8)
    """Such batches in one update."""
    learning_rate: float = above(0, 2.0e-5)
    """Peak learning rate."""
    warmup_steps: int = at_least(0, 100)
    """Updates of linear warm-up."""
    weight_decay: float = at_least(0, 0.01)
    """AdamW's decoupled weight decay."""
    max_grad_norm: float = at_least(0, 1.0)
    """Largest norm of the gradient; 0: no limit."""
    scheduler_type: str = "cosine"
    """Schedule after the warm-up: `constant` or `cosine`."""
    min_lr_ratio: float = between(0, 1, 0.1)
    """Share of the peak that a cosine schedule ends at."""
    bf16: bool = True
    """Compute in bfloat16; on a GPU the weights are bfloat16 too, with float32 master weights."""
    fp16: bool = False
    """Refused here: float16 needs loss scaling, which is not built."""
    gradient_checkpointing: bool = True
    """Recompute activations in the backward pass to save memory."""
    save_steps: int = at_least(-1, 1000)
    """Updates between checkpoints; 0 and below: only what an evaluation finds best."""
    save_total_limit: int | None = at_least(1, 3)
    """Newest checkpoints kept, besides the best; null: all."""
    eval_steps: int = at_least(-1, 500)
    """Updates between evaluations; 0 and below: only at the end."""
    seed: int = unbounded(42)
    """Order of the data, split, start of the adapter, dropout."""


@dataclass
class SFTConfig:
    """Everything `practicum sft` reads."""

    model: SupervisedModelConfig = field(default_factory=SupervisedModelConfig)
    data: SupervisedDataConfig = field(default_factory=SupervisedDataConfig)
    training: SFTTrainingConfig = field(default_factory=SFTTrainingConfig)
    health: SupervisedHealthSettings = field(default_factory=SupervisedHealthSettings)
    output_dir: str = "runs/sft"
    """Folder for checkpoints, metrics and the trained model."""
