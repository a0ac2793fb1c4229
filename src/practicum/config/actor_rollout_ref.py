"""Schemas of the groups `actor_rollout_ref` (the policy, its updates, its rollouts, its reference) and `critic`."""

from __future__ import annotations

from dataclasses import dataclass, field

from practicum.config.fields import above, above_or_zero, at_least, between, unbounded

ENGINES = ("local", "vllm")
"""Engines that sample in a training run; `training/build.py` makes them."""


@dataclass
class OptimConfig:
    """AdamW and the schedule of its learning rate."""

    lr: float = at_least(0, 5e-7)
    """Peak learning rate of the policy."""
    lr_warmup_steps: int = at_least(0, 0)
    """Steps of linear warm-up."""
    warmup_style: str = "constant"
    """Schedule after the warm-up: `constant` or `cosine`."""
    min_lr_ratio: float = between(0, 1, 0.1)
    """Share of the peak that a cosine schedule ends at."""
    weight_decay: float = at_least(0, 0.0)
    """AdamW's decoupled weight decay."""


@dataclass
class FSDPConfig:
    """Offloading of a sharded learner (strategy `fsdp2` on several ranks); true is refused without one."""

    param_offload: bool = False
    """Keep a sharded learner's weights and gradients in host memory; needs optimizer_offload too."""
    optimizer_offload: bool = False
    """Keep a sharded learner's moments in host memory, and step there; needs param_offload too."""


@dataclass
class PolicyLossConfig:
    """Which surrogate of the policy gradient is minimised."""

    loss_mode: str = "vanilla"
    """`vanilla` (PPO's clipped surrogate), `gspo` or `cispo`."""


@dataclass
class ActorConfig:
    """How the policy is updated."""

    strategy: str = "ddp"
    """Several ranks: `ddp` gives every rank the whole learner, `fsdp2` divides weights, gradients and moments."""
    optim: OptimConfig = field(default_factory=OptimConfig)
    ppo_mini_batch_size: int | None = at_least(1, None)
    """Tasks of one update; null: all tasks of the step. It must divide data.train_batch_size."""
    ppo_micro_batch_size_per_gpu: int | None = at_least(1, None)
    """Sequences of one forward pass, at most; null: as many as the token limit allows."""
    ppo_max_token_len_per_gpu: int = at_least(1, 16384)
    """Tokens of one forward pass, at most; on a CPU at most 480."""
    ppo_epochs: int = at_least(1, 1)
    """Passes over the batch of one step."""
    clip_ratio_low: float = at_least(0, 0.2)
    """How far below 1 the probability ratio counts."""
    clip_ratio_high: float = at_least(0, 0.2)
    """How far above 1 the probability ratio counts."""
    clip_ratio_c: float = above_or_zero(1, 3.0)
    """Dual clip: bound of the ratio where the advantage is negative; 0: none."""
    policy_loss: PolicyLossConfig = field(default_factory=PolicyLossConfig)
    use_kl_loss: bool = True
    """Whether a KL to the reference policy is added to the loss."""
    kl_loss_coef: float = at_least(0, 0.001)
    """Coefficient of that KL."""
    kl_loss_type: str = "mse"
    """Estimator of that KL: `kl`, `abs`, `mse`, `low_var_kl`, `full`; a `+` behind it takes the gradient of `mse`."""
    entropy_coeff: float = unbounded(0.001)
    """Coefficient of the entropy bonus; below 0 it is a penalty."""
    loss_agg_mode: str | None = None
    """How token losses are averaged; null: as the paper of the advantage estimator does."""
    tis_imp_ratio_cap: float = at_least(-1, 0.0)
    """Cap of the importance weights that correct for the engine's log-probs; 0 and below: no correction."""
    grad_clip: float = at_least(0, 1.0)
    """Largest norm of the gradient; 0: no limit."""
    fsdp_config: FSDPConfig = field(default_factory=FSDPConfig)


@dataclass
class ModelConfig:
    """The policy's weights."""

    path: str | None = None
    """Model: `tiny`, `smollm2`, a folder or a hub id; null: agent.model_name_or_path, else `tiny`."""
    dtype: str = "auto"
    """Of the weights: `float32` or `bfloat16` (with float32 master weights); `auto`: bfloat16 on a GPU."""
    enable_gradient_checkpointing: bool = False
    """Recompute activations in the backward pass to save memory."""
    lora_rank: int = at_least(0, 0)
    """Rank of a new LoRA adapter; 0: all weights are trained."""
    lora_alpha: float = at_least(0, 32.0)
    """Scale of the adapter."""
    lora_dropout: float = between(0, 1, 0.0, includes_high=False)
    """Must be 0 in reinforcement learning: the policy that is trained is the one that sampled."""
    target_modules: list[str] | None = None
    """Projections that get an adapter; null: all linear layers."""
    lora_adapter_path: str | None = None
    """Folder of an adapter to train further."""


@dataclass
class VLLMConfig:
    """The server behind actor_rollout_ref.rollout.name=vllm."""

    url: str | None = None
    """URL of a running server; null: one is started."""
    python: str | None = None
    """Interpreter of an environment that has vLLM; null: this one."""
    port: int = between(0, 65535, 0)
    """Port of a server that is started; 0: a free one."""
    dtype: str = "float32"
    """Precision of a server that is started; bfloat16 is faster and needs actor.tis_imp_ratio_cap."""
    max_model_len: int | None = at_least(1, None)
    """Context window in tokens; null: the model's own."""
    extra_args: list[str] = field(default_factory=list)
    """Further arguments of the server's command line."""
    start_timeout: float = above(0, 600.0)
    """Seconds that the server may take to start."""
    canary_limit: float = above(0, 0.1)
    """Mean |engine - learner| log-prob at which a weight update is refused."""


@dataclass
class RolloutConfig:
    """How replies are sampled."""

    name: str = ENGINES[0]
    """Engine: `local` (in this process) or `vllm` (a server)."""
    temperature: float = at_least(0, 1.0)
    """Sampling temperature of training episodes; above 0."""
    top_k: int = at_least(-1, 0)
    """Training episodes sample among the k likeliest tokens; 0 or -1: all. For the engine `local`, as the next two."""
    top_p: float = between(0, 1, 1.0, includes_low=False)
    """Training episodes sample among the likeliest tokens of this probability; 1: all."""
    min_p: float = between(0, 1, 0.0)
    """Training episodes leave out tokens with less than this share of the likeliest one's probability; 0: none."""
    val_temperature: float = at_least(0, 0.0)
    """Sampling temperature of validation; 0: greedy."""
    response_length: int = at_least(1, 256)
    """Tokens of one reply, at most, where agent.max_tokens_per_turn is null."""
    num_workers: int = at_least(0, 0)
    """Ray processes that run the episodes, each an engine with its environments; 0: the learner's own process."""
    min_workers: int | None = at_least(1, None)
    """Workers with which a rollout begins, while the others start or wait for a machine to join; null: num_workers."""
    gpus_per_worker: float = above(0, 1.0)
    """GPUs that a rollout worker takes; 0.25: four workers share one, each with a quarter of gpu_memory_utilization."""
    max_num_seqs: int | None = at_least(1, None)
    """Replies decoded at once; null: 256 on a GPU, else 64."""
    kv_cache_gib: float | None = above(0, None)
    """GiB of keys and values in the local engine, at most; null: no bound (CPU), gpu_memory_utilization (GPU)."""
    tensor_model_parallel_size: int = at_least(1, 1)
    """GPUs that a vLLM server splits the model over."""
    gpu_memory_utilization: float = between(0, 1, 0.5, includes_low=False)
    """Share of the GPU's memory for a vLLM server; locally of what is free at the start, for keys and values."""
    log_prob_micro_batch_size_per_gpu: int | None = at_least(1, None)
    """Sequences of one forward pass without a gradient, at most; null: as the token limit allows."""
    vllm: VLLMConfig = field(default_factory=VLLMConfig)


@dataclass
class RefFSDPConfig:
    """Offloading of a sharded reference policy (actor.strategy `fsdp2`); true is refused without one."""

    param_offload: bool = False
    """Keep a sharded reference's weights in host memory."""


@dataclass
class RefConfig:
    """The reference policy: the policy as it is before the first step."""

    fsdp_config: RefFSDPConfig = field(default_factory=RefFSDPConfig)


@dataclass
class ActorRolloutRefConfig:
    """The policy: its weights, updates, rollouts and reference."""

    actor: ActorConfig = field(default_factory=ActorConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)
    ref: RefConfig = field(default_factory=RefConfig)


@dataclass
class CriticModelConfig:
    """The critic's weights."""

    path: str | None = None
    """Model of the critic's own; null: a two-layer head on the policy's hidden states."""


@dataclass
class CriticOptimConfig:
    """The critic's AdamW."""

    lr: float = at_least(0, 1e-5)
    """Learning rate of the critic."""
    weight_decay: float = at_least(0, 0.0)
    """AdamW's decoupled weight decay."""


@dataclass
class CriticConfig:
    """The value network of estimators that need one (`gae`, `turn_gae`)."""

    model: CriticModelConfig = field(default_factory=CriticModelConfig)
    optim: CriticOptimConfig = field(default_factory=CriticOptimConfig)
    ppo_mini_batch_size: int | None = at_least(1, None)
    """Tasks of one update of the critic; null: all tasks of the step."""
    ppo_micro_batch_size_per_gpu: int | None = at_least(1, None)
    """Sequences of one forward pass of the critic, at most; null: as the token limit allows."""
    ppo_epochs: int = at_least(1, 1)
    """Passes of the critic over the batch of one step."""
    vf_coef: float = at_least(0, 0.5)
    """Coefficient of the squared error in the critic's loss. AdamW cancels a constant factor, so it acts through
    grad_clip: the larger it is, the more updates are clipped."""
    cliprange_value: float = at_least(0, 0.5)
    """How far a value may move in the updates of one step; 0: no limit."""
    grad_clip: float = at_least(0, 1.0)
    """Largest norm of the critic's gradient; 0: no limit."""
