"""Schema of `practicum train`: typed groups with the names that verl and AgentFly users know.

Keys that AgentFly documents keep its defaults. `config/resolve.py` fills the schema from recipes and overrides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from practicum.config.actor_rollout_ref import ActorRolloutRefConfig, CriticConfig
from practicum.config.fields import above, at_least, between, one_of, unbounded
from practicum.config.health import HealthSettings, RewardHackingSettings


@dataclass
class DeadlinesConfig:
    """Seconds that each wait of an episode may take."""

    reset: float = above(0, 60.0)
    """The environment's reset."""
    generate: float = above(0, 600.0)
    """One reply of the engine; time in its queue does not count."""
    step: float = above(0, 120.0)
    """One step of the environment, tool calls included."""
    episode: float = above(0, 3600.0)
    """The whole episode."""
    open: float = above(0, 300.0)
    """Opening a resource that all episodes share, such as a browser; it is no part of the episode's time."""
    tool: float | None = above(0, None)
    """One call of a tool; null: the tool's own limit, 30 s. Tools without one, as `python_executor`, keep theirs."""
    judge: float | None = above(0, None)
    """One reply of a judge, or of another model that the environment calls; null: as long as the step may take."""


@dataclass
class RoleConfig:
    """A role of an episode in which several models act. What is null is as for the agent."""

    model: str | None = None
    """Another model (name or folder), which is not trained; null: the policy's own."""
    url: str | None = None
    """OpenAI-compatible server that has the model; it is not trained."""
    tokenizer: str | None = None
    """Model whose tokenizer records the replies of a server; null: the policy's."""
    adapter: bool = False
    """An adapter of its own over the policy's base model; needs actor_rollout_ref.model.lora_rank."""
    agent_type: str | None = None
    """Format of the role's replies."""
    temperature: float | None = at_least(0, None)
    """Sampling temperature in training; validation has val_temperature, and an untrained role always this one."""
    max_tokens_per_turn: int | None = at_least(1, None)
    """Tokens of one reply, at most."""
    thoughts: str | None = None
    """`keep` or `strip`: the reasoning of earlier turns."""
    max_turns: int | None = at_least(1, None)
    """Turns of the role in an episode, at most; null: as many as the episode has."""
    response_format: Any = None
    """Form of the role's replies, as agent.response_format; `{type: text}`: any."""


@dataclass
class AgentConfig:
    """The agent, its environment and its rewards."""

    use_agent: bool = True
    """false: one turn, without tools."""
    environment: str | None = None
    """Environment; null: the one that the data and the tools belong to (`--dry-run` shows it)."""
    environment_args: dict[str, Any] = field(default_factory=dict)
    """Options of the environment."""
    model_name_or_path: str | None = None
    """Another name of actor_rollout_ref.model.path."""
    template: str | None = None
    """Chat template by name; null: the model's own."""
    agent_type: str = "hf"
    """Format of replies: `hf`, `react`, `code`, ...; `external`: the agent is a program of its own, agent.command."""
    command: str | None = None
    """Program of an external agent with its arguments, or `file.py:function`."""
    reward_from: str = "environment"
    """Reward of an external agent: `environment` (of its answer), `callback` (what it posts), `exit_code`."""
    keep_system: bool = False
    """An external agent's conversation continues where it renders its system message again at each call."""
    train_abandoned: bool = False
    """Train replies too of which an external agent used another one to the same prompt."""
    sandbox: bool = False
    """An external agent's program runs in a sandbox (bubblewrap): no network but the gateway, few files."""
    tools: list[str] | None = None
    """Tools by name, or `file.py:function`; null: the environment's own."""
    reward_name: str | None = None
    """Reward by name, or `file.py:function`; null: the environment's own."""
    verifier_name: str | None = None
    """A second reward, which is recorded and never trained on."""
    backend: str = "async_verl"
    """AgentFly's name of the engine: `async_verl` (what rollout.name says), `async_vllm`, `transformers`, `client`."""
    thoughts: str = "keep"
    """`strip`: the <think>...</think> of earlier turns is not shown again."""
    response_format: Any = None
    """Form of every reply (JSON, a schema, a regex, choices, tool calls, legal actions: docs/engine.md); null: any."""
    stream: bool = False
    """Print one episode as it happens; needs agent.num_chains=1."""
    max_turns: int = at_least(1, 4)
    """Turns of an episode, at most."""
    num_chains: int = at_least(1, 8)
    """Episodes per task."""
    max_tokens_per_turn: int | None = at_least(1, None)
    """Tokens of one reply, at most; null: actor_rollout_ref.rollout.response_length."""
    concurrency: int | None = at_least(1, None)
    """Episodes that run at the same time, at most; null: twice actor_rollout_ref.rollout.max_num_seqs."""
    roles: dict[str, RoleConfig] = field(default_factory=dict)
    """Settings of single roles, by name, where several models act in an episode: see docs/roles.md."""
    train_roles: list[str] | None = None
    """Roles whose replies are trained; null: the environment's first."""
    deadlines: DeadlinesConfig = field(default_factory=DeadlinesConfig)


@dataclass
class KLControlConfig:
    """The coefficient of the KL penalty in the reward."""

    type: str = "fixed"
    """`fixed`, or `adaptive` (steered towards target_kl)."""
    kl_coef: float = at_least(0, 0.001)
    """Coefficient (of `adaptive`: at the start)."""
    target_kl: float = at_least(0, 0.1)
    """KL that `adaptive` steers to; above 0."""
    horizon: int = at_least(0, 10_000)
    """Sequences over which `adaptive` changes the coefficient; above 0."""


@dataclass
class FilterGroupsConfig:
    """Dynamic sampling: train only on groups whose rewards differ."""

    enable: bool = False
    """Whether groups without a difference are left out."""
    max_num_gen_batches: int = at_least(1, 1)
    """Batches drawn to fill one step, at most."""


@dataclass
class OverlongBufferConfig:
    """DAPO's overlong reward shaping: a reply that comes near its token limit costs reward."""

    enable: bool = False
    """Whether long replies cost reward."""
    len: int = at_least(1, 16)
    """Tokens before the limit over which the penalty grows from 0 to its full size."""
    penalty_factor: float = at_least(0, 1.0)
    """Penalty of a reply that reaches the limit."""


@dataclass
class GroupRewardConfig:
    """A function that sees the episodes of a task together and adjusts their rewards."""

    name: str | None = None
    """`plan_diversity` (htdag), or path/to/file.py:function; null: none."""
    weight: float = unbounded(1.0)
    """Factor on the difference that the function makes."""


@dataclass
class OfflineConfig:
    """How logged episodes are trained on, where data.from_trajectories names some."""

    method: str = "grpo"
    """`grpo`: logged episodes of a task are compared; `bandit`: logged actions are rewarded, as in HALO."""
    top_percent: float = between(0, 1, 0.2, includes_low=False)
    """bandit: share of a task's episodes, the furthest first, whose actions are rewarded."""


@dataclass
class AlgorithmConfig:
    """Advantages, and the KL penalty in the reward."""

    adv_estimator: str = "gae"
    """`gae`, `grpo`, `reinforce_plus_plus`, `rloo`, `remax`, ...; where a log is trained on, `grpo`."""
    gamma: float = between(0, 1, 1.0)
    """Discount per token (`turn_gae`, `flow_grpo`: per turn); read by these, `gae` and `reinforce_plus_plus`."""
    lam: float = between(0, 1, 1.0)
    """GAE's lambda; read by `gae` and `turn_gae`."""
    norm_adv_by_std_in_grpo: bool = True
    """Divide a group's advantages by their standard deviation."""
    turn_rewards: bool = False
    """Put every turn's own reward at the last token of that turn, not the whole reward at the end."""
    row_weighted: bool = False
    """flow_grpo: mean and deviation of a group are taken over turns, so that long episodes weigh more."""
    role_credit: str = "shared"
    """`shared`: all trained roles have the episode's reward; `own`: each has its own, and its own baseline."""
    bootstrap_truncated: bool | None = None
    """Whether the critic's value is bootstrapped at the end of a truncated episode; null: where gamma is below 1."""
    use_kl_in_reward: bool = False
    """Whether the KL to the reference policy is subtracted from the reward."""
    kl_penalty: str = "kl"
    """Estimator of that KL: `kl`, `abs`, `mse`, `low_var_kl` or `full`."""
    kl_ctrl: KLControlConfig = field(default_factory=KLControlConfig)
    filter_groups: FilterGroupsConfig = field(default_factory=FilterGroupsConfig)
    overlong_buffer: OverlongBufferConfig = field(default_factory=OverlongBufferConfig)
    group_reward: GroupRewardConfig = field(default_factory=GroupRewardConfig)
    offline: OfflineConfig = field(default_factory=OfflineConfig)
    error_budget: float = between(0, 1, 0.5)
    """Share of a step's episodes without a score that stops the run."""
    mismatch_limit: float | None = at_least(0, None)
    """Mean |engine - learner| log-prob that stops the run; null: 0.01, and 0.1 in bfloat16."""


@dataclass
class TrainerConfig:
    """The run: its length, folder, checkpoints and validation."""

    project_name: str = "practicum"
    """Folder of the run, and project in W&B."""
    experiment_name: str | None = None
    """Folder of the run below the project; null: made of environment, estimator, model and a hash of the keys, so that
    the same command goes on with its run and another one has a folder of its own."""
    default_local_dir: str = "runs"
    """Folder of all projects."""
    logger: list[str] = field(default_factory=lambda: ["console"])
    """Where metrics go besides metrics.jsonl: `console`, `tensorboard`, `wandb`."""
    log_file: str | None = None
    """File for a line per step and every message, with their times; %Y%m%d_%H%M%S is the time of the start."""
    log_file_max_bytes: int = at_least(0, 10_000_000)
    """Size at which log_file is renamed to log_file.1 and begun anew; 0: never."""
    log_file_backups: int = at_least(1, 5)
    """Renamed log files kept."""
    total_training_steps: int | None = at_least(1, None)
    """Steps; null: from total_epochs."""
    total_epochs: int | None = at_least(1, None)
    """Passes over data.train_files, or data.num_train_tasks, where total_training_steps is null."""
    nnodes: int = at_least(1, 1)
    """Machines."""
    n_gpus_per_node: int = at_least(0, 8)
    """GPUs per machine; 0: the CPU."""
    device: str = "auto"
    """`auto` (a CUDA GPU if there is one), `cpu`, `cuda` or `cuda:N`."""
    save_freq: int = at_least(-1, -1)
    """Steps between checkpoints; 0 and below: none."""
    save_total_limit: int | None = at_least(1, None)
    """Newest checkpoints kept, besides the best; null: all."""
    test_freq: int = at_least(-1, -1)
    """Steps between validations; 0 and below: none."""
    val_before_train: bool = True
    """Validate before the first step."""
    required_figures: dict[str, float] = field(default_factory=dict)
    """Figures of the environment, and the means that the validation before the first step must reach to go on."""
    best_metric: str = "val/success/mean"
    """Metric that says which checkpoint is the best."""
    early_stopping_patience: int = at_least(0, 0)
    """Validations without a new best after which the run stops; 0: never."""
    critic_warmup: int = at_least(0, 0)
    """Steps in which only the critic is updated."""
    overlap: bool = False
    """Roll out the next batch while this one trains; it is then one step off-policy."""
    max_staleness: int = at_least(0, 0)
    """Steps that the batches rolled out beside the training are ahead of it, at most; 0: none is, the reference."""
    resume_mode: str = "auto"
    """`auto` (the newest checkpoint), `disable`, or `resume_path`."""
    resume_from_path: str | None = None
    """Checkpoint of resume_mode=resume_path."""
    seed: int = unbounded(0)
    """Seed of tasks, sampling and mini-batches."""


@dataclass
class CurriculumConfig:
    """Tasks from easy to hard."""

    enable: bool = False
    """Whether harder tasks are held back until the easier ones are solved."""
    field: str = "level"
    """Field of a task that says how hard it is."""
    threshold: float = between(0, 1, 0.7)
    """Success rate that opens the next level."""
    window: int = at_least(1, 64)
    """Episodes that the rate is measured over."""


@dataclass
class DataConfig:
    """Tasks to train and validate on."""

    train_files: Any = None
    """File of tasks (JSON, JSON lines or parquet), or a list of files; null: the environment generates them."""
    val_files: Any = None
    """The same for validation; needed where train_files is given and validation is on."""
    num_train_tasks: int | None = at_least(1, None)
    """Tasks that the environment generates for training, where there is no file; null: no task comes twice."""
    shuffle: bool = True
    """Whether the tasks of train_files, or num_train_tasks, come in another order in every epoch."""
    seed: int | None = unbounded(None)
    """Seed of that order; null: trainer.seed."""
    from_trajectories: str | None = None
    """Folder of collected episodes to train on instead of new ones (`--from-trajectories`)."""
    train_batch_size: int = at_least(1, 16)
    """Tasks per step."""
    val_batch_size: int = at_least(1, 300)
    """Tasks of a validation."""
    curriculum: CurriculumConfig = field(default_factory=CurriculumConfig)


@dataclass
class SandboxConfig:
    """Where programs written by the model run."""

    level: str = one_of(("rlimits", "namespaces", "bubblewrap"), "namespaces")
    """The weakest isolation that is accepted."""
    concurrency: int | None = at_least(1, None)
    """Programs running at once; null: as many as there are cores."""


@dataclass
class TrainConfig:
    """Everything `practicum train` reads."""

    agent: AgentConfig = field(default_factory=AgentConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)
    critic: CriticConfig = field(default_factory=CriticConfig)
    sandbox: SandboxConfig = field(default_factory=SandboxConfig)
    health: HealthSettings = field(default_factory=HealthSettings)
    hacking: RewardHackingSettings = field(default_factory=RewardHackingSettings)
