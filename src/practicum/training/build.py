"""A training run put together from its configuration: every key is read here, and nowhere else."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from practicum.agent import Agent
from practicum.algorithms import kl
from practicum.chat.console import ConsoleEpisodeWatcher
from practicum.chat.renderer import Renderer
from practicum.config import overrides
from practicum.config.train import TrainConfig
from practicum.data.store import write_atomic
from practicum.engines.base import PolicyEngine, Sampling
from practicum.engines.vllm.engine import VLLMEngine, VLLMSettings
from practicum.engines.vllm.server import ServerSettings, find_python
from practicum.environment import Environment
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.models import device, loader, lora
from practicum.models.decoder import Decoder
from practicum.models.device import Device
from practicum.registry import environment_maker
from practicum.rollout import MakeEnvironment
from practicum.sandbox import base as sandbox
from practicum.task import Task
from practicum.training.bandit_source import BanditSource, LoggedState, tabulate_actions
from practicum.training.checkpoint import Checkpoints
from practicum.training.critic import CriticSettings
from practicum.training.curriculum import CurriculumSettings
from practicum.training.estimators import ESTIMATORS, EstimatorSettings
from practicum.training.group_filter import GroupFilter
from practicum.training.logged_source import METHODS, LoggedSource, TrajectoryLog, read_trajectory_log, signal_groups
from practicum.training.micro_batches import MicroBatchLimits
from practicum.training.monitor.loggers import make_loggers
from practicum.training.monitor.run_monitor import RunMonitor
from practicum.training.objective import Objective
from practicum.training.online_source import OnlineSource
from practicum.training.optimizer import OptimizerSettings
from practicum.training.rl_settings import RLSettings
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import RolloutSource
from practicum.training.run import METRICS, Run, RunSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory

GENERATED_TASKS = 100_000
ENGINES = ("local", "vllm")
MAY_CHANGE = (
    "trainer.total_training_steps",
    "trainer.total_epochs",
    "trainer.logger",
    "trainer.save_freq",
    "trainer.save_total_limit",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    "trainer.default_local_dir",
    "trainer.early_stopping_patience",
    "actor_rollout_ref.rollout.vllm.url",
    "actor_rollout_ref.rollout.vllm.python",
    "actor_rollout_ref.rollout.vllm.port",
    "actor_rollout_ref.rollout.vllm.start_timeout",
)
"""Keys that a resumed run may have otherwise than the one it goes on from."""
MODEL, CONTROL = "actor_rollout_ref.model.", "algorithm.kl_ctrl."
NEEDS = {
    **{MODEL + key: MODEL + "lora_rank" for key in ("lora_alpha", "lora_dropout", "target_modules")},
    **{CONTROL + key: "algorithm.use_kl_in_reward" for key in ("type", "kl_coef", "target_kl", "horizon")},
}
"""Keys that do nothing unless another is set."""


@dataclass(frozen=True)
class RunComponents:
    """Where the episodes take place."""

    make_environment: MakeEnvironment
    environment: Environment
    format: str


def model_name(config: TrainConfig) -> str:
    """`actor_rollout_ref.model.path` and `agent.model_name_or_path` are two names of one thing."""
    path, name = config.actor_rollout_ref.model.path, config.agent.model_name_or_path
    if path and name and path != name:
        raise UserError(
            f"actor_rollout_ref.model.path={path} and agent.model_name_or_path={name} name two models; give one."
        )
    return path or name or "tiny"


def environment_name(config: TrainConfig) -> str:
    """The one that is named, or the one that a file's tasks, this agent and these tools belong to."""
    agent = config.agent
    if agent.environment is not None:
        return agent.environment
    if not config.data.train_files:
        return "math"
    if agent.agent_type == "code":
        return "code"
    return "search" if "google_search" in (agent.tools or ()) else "tools"


def reply_tokens(config: TrainConfig) -> int:
    """The most tokens of one reply."""
    return config.agent.max_tokens_per_turn or config.actor_rollout_ref.rollout.response_length


def turns(config: TrainConfig) -> int:
    return config.agent.max_turns if config.agent.use_agent else 1


def run_folder(config: TrainConfig) -> Path:
    trainer = config.trainer
    return Path(trainer.default_local_dir) / trainer.project_name / trainer.experiment_name


def validates(config: TrainConfig) -> bool:
    return config.trainer.val_before_train or config.trainer.test_freq > 0


def build_components(config: TrainConfig) -> RunComponents:
    agent, data = config.agent, config.data
    sandbox.configure(config.sandbox.level, config.sandbox.concurrency)
    options = dict(agent.environment_args)
    tools = agent.tools if agent.use_agent else []
    for key, value in (("tools", tools), ("reward", agent.reward_name), ("verifier", agent.verifier_name)):
        if value is not None:
            options[key] = value
    files = {split: path for split, path in (("train", data.train_files), ("val", data.val_files)) if path}
    if files:
        options["files"] = files
    maker, chosen = environment_maker(environment_name(config), agent.agent_type, options)
    return RunComponents(maker, maker(), chosen)


def training_steps(config: TrainConfig, tasks: int | None = None) -> int:
    """The run's steps: said directly, or from epochs over a file's tasks."""
    trainer = config.trainer
    if trainer.total_training_steps is not None:
        return trainer.total_training_steps
    if trainer.total_epochs is None:
        raise UserError("How long? Set trainer.total_training_steps (or trainer.total_epochs with data.train_files).")
    if not (config.data.train_files or config.data.from_trajectories) or tasks is None:
        raise UserError("trainer.total_epochs counts passes over data.train_files; set trainer.total_training_steps.")
    return max(1, trainer.total_epochs * (tasks // config.data.train_batch_size))


def training_tasks(world: Environment, config: TrainConfig) -> Sequence[Task]:
    """A file's tasks, all of them; or as many generated ones as the run will see."""
    if config.data.train_files:
        return world.tasks("train", GENERATED_TASKS)
    wanted = config.data.train_batch_size * training_steps(config)
    return world.tasks("train", min(wanted, GENERATED_TASKS), config.trainer.seed)


def rl_settings(config: TrainConfig, steps: int) -> RLSettings:
    algorithm, actor, critic = config.algorithm, config.actor_rollout_ref.actor, config.critic
    curriculum = config.data.curriculum
    settings = RLSettings(
        steps=steps,
        tasks_per_step=config.data.train_batch_size,
        chains=config.agent.num_chains,
        estimator=algorithm.adv_estimator,
        credit=EstimatorSettings(
            gamma=algorithm.gamma,
            lam=algorithm.lam,
            normalise=algorithm.norm_adv_by_std_in_grpo,
            turn_rewards=algorithm.turn_rewards,
            row_weighted=algorithm.row_weighted,
            # Undiscounted, a cut-off episode would be worth its own forecast, round after round.
            bootstrap=algorithm.gamma < 1 if algorithm.bootstrap_truncated is None else algorithm.bootstrap_truncated,
        ),
        aggregation=actor.loss_agg_mode,
        lr=actor.optim.lr,
        warmup=actor.optim.lr_warmup_steps,
        schedule=actor.optim.warmup_style,
        min_lr_ratio=actor.optim.min_lr_ratio,
        objective=Objective(
            "pg",
            clip_low=actor.clip_ratio_low,
            clip_high=actor.clip_ratio_high,
            dual_clip=actor.clip_ratio_c,
            entropy_coeff=actor.entropy_coeff,
            kl_coeff=actor.kl_loss_coef if actor.use_kl_loss else 0.0,
            kl_kind=actor.kl_loss_type,
            policy_loss=actor.policy_loss.loss_mode,
        ),
        optimizer=OptimizerSettings(actor.optim.lr, actor.optim.weight_decay, grad_clip=actor.grad_clip),
        epochs=actor.ppo_epochs,
        mini_batch=actor.ppo_mini_batch_size,
        importance_cap=actor.tis_imp_ratio_cap,
        kl_in_reward=algorithm.use_kl_in_reward,
        kl_penalty=algorithm.kl_penalty,
        kl_control=kl.Controller(
            algorithm.kl_ctrl.type, algorithm.kl_ctrl.kl_coef, algorithm.kl_ctrl.target_kl, algorithm.kl_ctrl.horizon
        ),
        critic=CriticSettings(
            lr=critic.optim.lr,
            clip=critic.cliprange_value,
            epochs=critic.ppo_epochs,
            optimizer=OptimizerSettings(critic.optim.lr, critic.optim.weight_decay, grad_clip=critic.grad_clip),
        ),
        critic_mini_batch=critic.ppo_mini_batch_size,
        critic_warmup=config.trainer.critic_warmup,
        group_filter=GroupFilter(algorithm.filter_groups.enable, algorithm.filter_groups.max_num_gen_batches),
        curriculum=CurriculumSettings(curriculum.field, curriculum.threshold, curriculum.window)
        if curriculum.enable
        else None,
        error_budget=algorithm.error_budget,
        mismatch_limit=mismatch_limit(config),
        overlap=config.trainer.overlap,
        seed=config.trainer.seed,
    )
    check_used(config)
    return settings


def check_used(config: TrainConfig) -> None:
    """A key that somebody changed and that does nothing here is an error."""
    model, now, usual = config.actor_rollout_ref.model, OmegaConf.structured(config), OmegaConf.structured(TrainConfig)
    if model.lora_adapter_path and model.lora_rank:
        raise UserError(
            f"{MODEL}lora_adapter_path brings an adapter with a rank of its own; leave out {MODEL}lora_rank, "
            "or the path for a new adapter."
        )
    for key, needed in NEEDS.items():
        value = OmegaConf.select(now, key)
        if value != OmegaConf.select(usual, key) and not OmegaConf.select(now, needed):
            raise UserError(f"{key}={value} does nothing without {needed}; set that too, or leave it out.")


def mismatch_limit(config: TrainConfig) -> float:
    """The mean |engine − learner| log-prob that stops a run. In bfloat16 rounding alone makes 0.01 to 0.04 a token."""
    given, rollout = config.algorithm.mismatch_limit, config.actor_rollout_ref.rollout
    if given is not None:
        return given
    served = rollout.vllm.dtype if rollout.name == "vllm" else "float32"
    return 0.1 if "bfloat16" in (served, find_place(config).dtype_name) else 0.01


def run_settings(config: TrainConfig, steps: int) -> RunSettings:
    trainer = config.trainer
    return RunSettings(
        steps=steps,
        save_freq=trainer.save_freq,
        save_total_limit=trainer.save_total_limit,
        test_freq=trainer.test_freq,
        val_before_train=trainer.val_before_train,
        best_metric=trainer.best_metric,
        patience=trainer.early_stopping_patience,
        resume_mode=trainer.resume_mode,
        resume_from_path=trainer.resume_from_path,
    )


def build_run(
    config: TrainConfig,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
    on_micro_batch: Callable[[], None] | None = None,
    say: Callable[[str], None] = print,
) -> Run:
    """Everything loaded and checked, resumed where there is something to resume."""
    check_machine(config)
    where = settle_place(config)
    folder = run_folder(config)
    check_continuation(config, folder)
    world = build_components(config)
    material = logged_material(config, world) if config.data.from_trajectories else None
    tasks = training_tasks(world.environment, config) if material is None else ()
    steps = training_steps(config, len(tasks if material is None else material.units))
    settings, running = rl_settings(config, steps), run_settings(config, steps)
    rollout, actor = config.actor_rollout_ref.rollout, config.actor_rollout_ref.actor
    agent = Agent(
        format=world.format,
        max_turns=turns(config),
        thoughts=config.agent.thoughts,
        sampling=Sampling(rollout.temperature, max_tokens=reply_tokens(config)),
    )
    if config.data.train_files and not config.data.val_files and validates(config):
        raise UserError("Validation needs data.val_files beside data.train_files (or trainer.val_before_train=false).")
    loaded = load_model(config, where)
    limit = actor.ppo_max_token_len_per_gpu
    if not where.on_gpu:
        limit = min(limit, MicroBatchLimits.tokens)  # smaller pieces are as fast there, and need less memory
    policy = TrainablePolicy(
        loaded,
        config.agent.template or (material.log.template if material is not None else None),
        max_batch=sequences(config, where),
        limits=MicroBatchLimits(limit, actor.ppo_micro_batch_size_per_gpu),
        logprob_limits=MicroBatchLimits(limit, rollout.log_prob_micro_batch_size_per_gpu),
        make_engine=engine_maker(config, folder, where),
        separate_engine_weights=config.trainer.overlap,
    )
    policy.decoder.checkpointing = config.actor_rollout_ref.model.enable_gradient_checkpointing
    own = config.critic.model.path if ESTIMATORS[settings.estimator].needs_critic else None
    if config.agent.stream and config.agent.num_chains != 1:
        raise UserError("agent.stream shows one chain as it happens: set agent.num_chains=1.")
    watcher = ConsoleEpisodeWatcher(policy.renderer) if config.agent.stream else None
    source: RolloutSource
    if material is not None:
        source, critic = material.source(policy, agent, settings, say), None
    else:
        source = OnlineSource(policy, tasks, world.make_environment, agent, settings, watcher)
        critic = Decoder(loader.load(own, where.dtype, where.device).model) if own else None
    evaluate = None
    if validates(config):
        panel = Panel(tuple(world.environment.tasks("val", config.data.val_batch_size)), config.trainer.seed)
        examined = Agent(
            format=world.format,
            max_turns=turns(config),
            thoughts=config.agent.thoughts,
            sampling=Sampling(rollout.val_temperature, max_tokens=reply_tokens(config)),
        )
        evaluate = functools.partial(_evaluate, policy, panel, world.make_environment, examined)
    trainer = RLTrainer(policy, source, settings, critic, evaluate, on_episode, on_micro_batch)
    if trainer.critic is not None and config.critic.ppo_micro_batch_size_per_gpu is not None:
        trainer.critic.limits = MicroBatchLimits(limit, config.critic.ppo_micro_batch_size_per_gpu)
    write_atomic(folder / "config.yaml", overrides.show(config).encode())
    keys = config.trainer
    run = Run(
        folder,
        trainer,
        running,
        RunMonitor(folder, trainer, config.health, config.hacking, say),
        lambda resumed: make_loggers(
            keys.logger, folder, keys.project_name, keys.experiment_name, asdict(config), resumed
        ),
        say,
        on_step,
    )
    run.resume()
    return run


@dataclass(frozen=True)
class Material:
    """A log and what a run draws from it: groups of episodes, or states with their actions."""

    log: TrajectoryLog
    groups: Sequence[list[Trajectory]] = ()
    states: Sequence[LoggedState] = ()

    @property
    def units(self) -> Sequence[object]:
        return self.groups or self.states

    def source(
        self, policy: TrainablePolicy, agent: Agent, settings: RLSettings, say: Callable[[str], None]
    ) -> RolloutSource:
        self.log.check_tokens(policy)
        if self.states:
            return BanditSource(policy, self.states, agent, settings, say)
        return LoggedSource(policy, list(self.groups), agent, settings, say)


def logged_material(config: TrainConfig, world: RunComponents) -> Material:
    """The episodes that `data.from_trajectories` names, as its method wants them."""
    method, seed = config.algorithm.offline.method, config.trainer.seed
    if method not in METHODS:
        raise UserError(f"Unknown algorithm.offline.method '{method}'.{did_you_mean(method, METHODS)}")
    log = read_trajectory_log(Path(str(config.data.from_trajectories)))
    played = sorted({episode.task.environment for episode in log.episodes})
    if validates(config) and world.environment.name not in played:
        raise UserError(
            f"Validation would be on '{world.environment.name}', but the log is of {', '.join(played)}; "
            "set agent.environment."
        )
    formats = sorted({str(episode.provenance.get("format", world.format)) for episode in log.episodes})
    if formats != [world.format] and (validates(config) or method == "bandit"):
        raise UserError(f"The log's replies are in the format {', '.join(formats)}, not {world.format}; "
                        "set agent.agent_type.")  # fmt: skip
    if method == "bandit":
        return Material(log, states=tabulate_actions(log, config.algorithm.offline.top_percent, seed))
    return Material(log, groups=signal_groups(log, seed))


def engine_maker(
    config: TrainConfig, folder: Path, where: Device | None = None
) -> Callable[[Renderer], PolicyEngine] | None:
    """The engine that the configuration names; None is the one in this process."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "local":
        return None
    vllm, place = rollout.vllm, folder / "vllm"
    settings = VLLMSettings(
        base=loader.model_folder(model_name(config)),
        folder=place,
        url=vllm.url,
        server=None
        if vllm.url
        else ServerSettings(
            folder=place,
            python=vllm.python,
            port=vllm.port,
            dtype=vllm.dtype,
            max_model_len=vllm.max_model_len,
            max_num_seqs=sequences(config, where or Device()),
            tensor_parallel=rollout.tensor_model_parallel_size,
            memory_share=rollout.gpu_memory_utilization,
            extra_args=tuple(vllm.extra_args),
            start_timeout=vllm.start_timeout,
        ),
        max_num_seqs=sequences(config, where or Device()),
        canary_limit=vllm.canary_limit,
    )
    return functools.partial(VLLMEngine, settings=settings)


def load_model(config: TrainConfig, where: Device) -> loader.LoadedModel:
    """The policy, with an adapter where the configuration wants one."""
    loaded, model = loader.load(model_name(config), where.dtype, where.device), config.actor_rollout_ref.model
    if model.lora_adapter_path:
        return lora.load_adapter(loaded, model.lora_adapter_path)
    if not model.lora_rank:
        return loaded
    if model.lora_dropout:
        raise UserError(
            "actor_rollout_ref.model.lora_dropout must be 0 here: a policy that drops weights at random is not "
            "the one that sampled."
        )
    settings = lora.LoRASettings(model.lora_rank, model.lora_alpha, targets=model.target_modules or lora.ALL_LINEAR)
    return lora.add_adapter(loaded, settings, config.trainer.seed)


async def _evaluate(policy: TrainablePolicy, panel: Panel, maker: MakeEnvironment, agent: Agent) -> EvalResult:
    result, _ = await policy.evaluate("val", panel, maker, agent)
    return result


def check_machine(config: TrainConfig) -> None:
    """What this machine lacks, said before anything is loaded."""
    name, trainer = config.actor_rollout_ref.rollout.name, config.trainer
    if name not in ENGINES:
        raise UserError(f"Unknown actor_rollout_ref.rollout.name '{name}'.{did_you_mean(name, ENGINES)}")
    if name == "vllm" and not config.actor_rollout_ref.rollout.vllm.url:
        find_python(config.actor_rollout_ref.rollout.vllm.python)
    if name == "vllm" and trainer.nnodes > 1:
        raise UserError(
            f"trainer.nnodes={trainer.nnodes}: the learner is one process; only the vLLM server may be large."
        )
    if trainer.n_gpus_per_node == 1 and not find_place(config).on_gpu:
        raise UserError("trainer.n_gpus_per_node=1, but no GPU is to be seen here; set it to 0.")


def find_place(config: TrainConfig) -> Device:
    """Where the policy lies. No GPUs on a node means the CPU."""
    trainer = config.trainer
    none = trainer.n_gpus_per_node == 0
    if none and trainer.device not in ("auto", "cpu"):
        raise UserError(f"trainer.device={trainer.device} and trainer.n_gpus_per_node=0 do not go together; choose.")
    dtype_key = "actor_rollout_ref.model.dtype"
    name = "cpu" if none else trainer.device
    return device.resolve(name, config.actor_rollout_ref.model.dtype, "trainer.device", dtype_key)


def settle_place(config: TrainConfig) -> Device:
    """The same, written into the configuration: a run that goes on elsewhere would go on otherwise."""
    where = find_place(config)
    config.trainer.device, config.actor_rollout_ref.model.dtype = where.device, where.dtype_name
    return where


def sequences(config: TrainConfig, where: Device) -> int:
    """Replies decoded at once."""
    chosen = config.actor_rollout_ref.rollout.max_num_seqs
    return where.batch_size if chosen is None else chosen


def check_continuation(config: TrainConfig, folder: Path) -> None:
    """A folder that holds another experiment's run, or a finished one without a checkpoint, is not to be written into.

    A start that failed before its first step leaves nothing that counts.
    """
    stored, metrics, saved = folder / "config.yaml", folder / METRICS, Checkpoints(folder).steps()
    if not saved and not (metrics.is_file() and metrics.stat().st_size):
        return
    if config.trainer.resume_mode == "disable" or not stored.is_file():
        raise UserError(f"'{folder}' already holds a run; choose another trainer.experiment_name.")
    if not saved and (folder / "model").exists():
        raise UserError(
            f"'{folder}' already holds a finished run, and no checkpoint to go on from; "
            "choose another trainer.experiment_name."
        )
    before = _flat(OmegaConf.to_container(OmegaConf.load(stored)))
    now = _flat(OmegaConf.to_container(OmegaConf.structured(config)))
    changed = [key for key in sorted(before.keys() | now.keys()) if before.get(key) != now.get(key)]
    refused = [key for key in changed if key not in MAY_CHANGE]
    if refused:
        key = refused[0]
        raise UserError(
            f"'{folder}' holds a run with {key}={before.get(key)}, not {now.get(key)} "
            f"({len(refused)} such differences); choose another trainer.experiment_name."
        )


def _flat(tree: Any, prefix: str = "") -> dict[str, Any]:
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    found: dict[str, Any] = {}
    for key, value in tree.items():
        found |= _flat(value, f"{prefix}{key}.")
    return found


def derived(config: TrainConfig) -> list[str]:
    """The numbers that follow from the settings."""
    actor, tasks, chains = config.actor_rollout_ref.actor, config.data.train_batch_size, config.agent.num_chains
    mini = actor.ppo_mini_batch_size or tasks
    estimator = config.algorithm.adv_estimator
    settings = rl_settings(config, config.trainer.total_training_steps or 1)
    run_settings(config, settings.steps)  # refuses what it cannot be
    long = config.trainer.total_training_steps or f"{config.trainer.total_epochs} epochs of"
    limit = actor.ppo_max_token_len_per_gpu
    if not find_place(config).on_gpu:
        limit = min(limit, MicroBatchLimits.tokens)
    size = f" = {mini * chains} episodes" if config.data.from_trajectories is None else ""
    lines = [
        f"model: {model_name(config)}",
        f"environment: {environment_name(config)}",
        f"device: {find_place(config).describe()}",
        f"run folder: {run_folder(config)}",
        *(_drawn(config) if config.data.from_trajectories is None else _logged(config)),
        f"updates per step: {actor.ppo_epochs * tasks // mini} ({actor.ppo_epochs} epochs × {tasks // mini} "
        f"mini-batches of {mini} tasks{size})",
        f"one update goes through in pieces of at most {limit} tokens"
        + (f" and {actor.ppo_micro_batch_size_per_gpu} sequences" if actor.ppo_micro_batch_size_per_gpu else "")
        + "; its gradient does not depend on that",
        f"steps: {long}",
        f"loss aggregation: {settings.loss_aggregation}",
        f"reference model: {_reference(config) if settings.needs_reference else 'none'}",
    ]
    if ESTIMATORS[estimator].needs_critic:
        lines.append(f"critic: {config.critic.model.path or 'a two-layer head on the policy'}")
    elif config.critic.model.path:
        lines.append(f"critic.model.path is not used: {estimator} has no critic")
    return lines


def _reference(config: TrainConfig) -> str:
    model = config.actor_rollout_ref.model
    if model.lora_adapter_path:
        return "a frozen copy of the adapter at the start, over the same weights"
    return "the model beneath its new adapter" if model.lora_rank else "a frozen copy of the start"


def _drawn(config: TrainConfig) -> list[str]:
    tasks, chains = config.data.train_batch_size, config.agent.num_chains
    return [
        f"episodes per step: {tasks * chains} ({tasks} tasks × {chains} chains)",
        f"sampled tokens per step, at most: {tasks * chains * turns(config) * reply_tokens(config)}",
    ]


def _logged(config: TrainConfig) -> list[str]:
    """What a step takes from a log."""
    tasks, actor = config.data.train_batch_size, config.actor_rollout_ref.actor
    log = config.data.from_trajectories
    if config.algorithm.offline.method == "bandit":
        share = config.algorithm.offline.top_percent
        return [
            f"learns from: the states of '{log}', actions of each task's furthest {share:.0%} of episodes",
            f"replies per step: {tasks * config.agent.num_chains} ({tasks} states × {config.agent.num_chains} chains)",
        ]
    return [
        f"learns from: the episodes of '{log}'; nothing is rolled out",
        f"logged tasks per step: {tasks}, each with all its episodes",
        f"a logged token may become {1 + actor.clip_ratio_high:g} times as likely as it was, or "
        f"{1 - actor.clip_ratio_low:g} times (the floor)",
    ]
