"""`train`: a run of reinforcement learning, put together from a configuration or overrides, and run."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch.distributed as dist

from practicum.agent import Agent, Deadlines
from practicum.chat.console import ConsoleEpisodeWatcher
from practicum.chat.response_format import read_response_format
from practicum.config import overrides
from practicum.config.fields import default_of
from practicum.config.launch import Launch, read_launch, select_gpu
from practicum.config.overrides import Resolved
from practicum.config.resolve import ranks_asked_for, resolve_train
from practicum.config.train import TrainConfig, TrainerConfig
from practicum.data.run_folder import MODEL, FolderLock, lock_for_run, resolve_model, write_atomic
from practicum.data.task_overlap import num_shared, write_train_tasks
from practicum.engines.vllm.server import find_python
from practicum.environment import DEFAULT_ROLE, Environment
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.panel import Panel
from practicum.models import loader, lora
from practicum.models.decoder import Decoder
from practicum.models.loader import Device
from practicum.registry import environment_maker
from practicum.resources import RunResources
from practicum.rollout import MakeEnvironment, with_models
from practicum.sandbox import base as sandbox
from practicum.task import Task
from practicum.training import ranks
from practicum.training.async_source import AsyncSource
from practicum.training.checkpoint import check_continuation, keep_stored_defaults, record_version
from practicum.training.estimators import ESTIMATORS
from practicum.training.follower_rank import run_follower
from practicum.training.logged_data import read_logged_data
from practicum.training.logged_source import METHODS
from practicum.training.micro_batches import MicroBatchLimits
from practicum.training.monitor.log_file import LogFile, open_log_file
from practicum.training.monitor.loggers import Logger, make_loggers
from practicum.training.rl_trainer import RLTrainer
from practicum.training.roles import (
    add_roles,
    asked_models,
    check_roles,
    role_settings,
)
from practicum.training.rollout_engine import engine_maker, ranks_per_engine, resolve_policy
from practicum.training.rollout_source import OnlineSource, RolloutSource
from practicum.training.run import Run, RunMonitor
from practicum.training.settings import (
    environment_name,
    external_agent,
    find_device,
    max_micro_batch_tokens,
    max_num_seqs,
    max_turns,
    reply_format,
    resolve_device,
    rl_settings,
    run_folder,
    run_settings,
    training_sampling,
    training_steps,
    validates,
)
from practicum.training.supervised import place_adapter
from practicum.training.trainable_policy import ShardingSettings, TrainablePolicy, sharing_weights
from practicum.training.trainer import Evaluated
from practicum.trajectory import Trajectory
from practicum.utils.concurrency import run_async
from practicum.utils.memory import out_of_memory_in
from practicum.utils.terminal import Progress, sparkline

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


@contextmanager
def explain_out_of_memory(remedy: str) -> Iterator[None]:
    """Raise running out of memory as a UserError that says what to lower. Checkpoints stay as they are."""
    try:
        yield
    except (MemoryError, RuntimeError, ExceptionGroup) as error:
        cause = out_of_memory_in(error)
        if cause is None:
            raise
        reason = (str(cause).splitlines() or ["the machine has no more"])[0][:200]
        raise UserError(
            f"Out of memory ({reason}): {remedy}; docs/troubleshooting.md has more. The same command goes on from the "
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
    has the last weights. `log` gets messages, `progress` shows a line on stderr. Under `torchrun`, or with
    trainer.n_gpus_per_node above 1, all ranks train together; the first one writes files and messages.
    """
    select_gpu(read_launch())
    resolved = resolve_train(config)
    keep_stored_defaults(resolved, run_folder(resolved.config))
    if read_launch().num_ranks == 1 and ranks_asked_for(resolved.config, resolved.chosen) > 1:
        from practicum.training.cluster.learner_ranks import train_on_ranks  # which imports this module

        return train_on_ranks("train", resolved, progress, log, on_step, model_folder)
    with explain_out_of_memory(LESS_MEMORY_TRAIN), _all_ranks(resolved.config) as launch:
        if not launch.is_first:
            model = run_folder(resolved.config) / MODEL if model_folder is None else Path(model_folder)
            return run_async(_follow(resolved.config, model))
        return run_async(_train(resolved.config, model_folder, progress, log, on_step))


def _all_ranks(config: TrainConfig) -> AbstractContextManager[Launch]:
    """Join the other ranks for the block, where a launcher has started some."""
    launch = read_launch()
    return nullcontext(launch) if launch.num_ranks == 1 else ranks.joined(find_device(config).device)


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
    rewards: list[float] = []

    def report(step: int, values: dict[str, float]) -> None:
        metrics.update(values)
        if online:
            rewards.append(values.get("reward/mean", float("nan")))
            line.note = f"step {step}: reward {rewards[-1]:.3f} {sparkline(rewards)}".rstrip()
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
    run = build_run(config, report, on_episode, show_update, log, show_validation)
    model = run.model_folder = run.folder / MODEL if model_folder is None else Path(model_folder)
    try:
        line.total = run.settings.total_training_steps * episodes_per_step
        line.done = run.state.step * episodes_per_step
        with line:
            state = await run.train()
    finally:
        await run.policy.close()
    if model_folder is None and (model / loader.ADAPTER_CONFIG).is_file():
        place_adapter(run.folder)
    return TrainResult(run.folder, model, state.step, state.best_step, state.best_value, metrics)


MAX_GENERATED_TASKS = 100_000


@dataclass(frozen=True)
class RunComponents:
    """Where the episodes of a run take place, the format of its replies, and what its episodes share."""

    make_environment: MakeEnvironment
    environment: Environment
    format: str
    resources: RunResources
    """What all episodes of the run share."""


def build_components(config: TrainConfig) -> RunComponents:
    """The environment with its tools, rewards and task files; the sandbox is configured on the way."""
    sandbox.settings = sandbox.Settings(config.sandbox.level, config.sandbox.concurrency)
    return make_components(config)


def make_components(config: TrainConfig) -> RunComponents:
    """The environment with its tools, rewards and task files."""
    agent, data = config.agent, config.data
    options = dict(agent.environment_args)
    tools = agent.tools if agent.use_agent else []
    for key, value in (("tools", tools), ("reward", agent.reward_name), ("verifier", agent.verifier_name)):
        if value is not None:
            options[key] = value
    files = {split: path for split, path in (("train", data.train_files), ("val", data.val_files)) if path}
    if files:
        options["files"] = files
    make_environment, format_name = environment_maker(environment_name(config), reply_format(config), options)
    environment = make_environment()
    resources = environment.run_resources(agent.deadlines.open)
    return RunComponents(make_environment, environment, format_name, resources)


def build_agent(config: TrainConfig, components: RunComponents, temperature: float, validating: bool = False) -> Agent:
    """The agent of training, or of validation."""
    return Agent(
        format=components.format,
        max_turns=max_turns(config),
        thoughts=config.agent.thoughts,
        deadlines=Deadlines(**vars(config.agent.deadlines)),
        sampling=training_sampling(config, temperature, validating),
        roles=role_settings(config, validating) if config.agent.roles else {},
        train_roles=None if config.agent.train_roles is None else tuple(config.agent.train_roles),
        response_format=None
        if config.agent.response_format is None
        else read_response_format(config.agent.response_format, "agent.response_format"),
        external=external_agent(config),
    )


def training_tasks(environment: Environment, config: TrainConfig) -> Sequence[Task]:
    """All tasks of a file; or data.num_train_tasks generated ones, or as many as the run will use."""
    if config.data.train_files:
        return environment.tasks("train", MAX_GENERATED_TASKS)
    if (num_wanted := config.data.num_train_tasks) is not None:
        tasks = environment.tasks("train", num_wanted, config.trainer.seed)
        if len(tasks) < num_wanted:
            raise UserError(
                f"data.num_train_tasks={num_wanted}: '{environment.name}' has {len(tasks)} training tasks; lower it."
            )
        return tasks
    num_tasks = config.data.train_batch_size * training_steps(config)
    return environment.tasks("train", min(num_tasks, MAX_GENERATED_TASKS), config.trainer.seed)


def task_order(
    components: RunComponents, config: TrainConfig
) -> tuple[Callable[[int], Sequence[Task]] | None, int | None]:
    """How to generate more tasks than `training_tasks` has, and the seed that a fixed list of them is shuffled by."""
    data, seed = config.data, config.trainer.seed
    if data.train_files or data.num_train_tasks is not None:
        return None, (seed if data.seed is None else data.seed) if data.shuffle else None

    def more(count: int) -> Sequence[Task]:
        try:
            return components.environment.tasks("train", min(count, MAX_GENERATED_TASKS), seed)
        except UserError:  # it has no more than it gave
            return ()

    return more, None


def check_sources(config: TrainConfig) -> None:
    """Refuse a run without tasks to validate on, an unknown way to read a log, or several chains to show at once."""
    if config.data.train_files and not config.data.val_files and validates(config):
        raise UserError(
            "Validation needs data.val_files beside data.train_files "
            "(or trainer.val_before_train=false and trainer.test_freq=-1)."
        )
    method = config.algorithm.offline.method
    if method not in METHODS:
        raise UserError(f"Unknown algorithm.offline.method '{method}'.{did_you_mean(method, METHODS)}")
    if config.agent.stream and config.agent.num_chains != 1:
        raise UserError("agent.stream shows one chain as it happens: set agent.num_chains=1.")


def build_run(
    config: TrainConfig,
    on_step: Callable[[int, dict[str, float]], None] | None = None,
    on_episode: Callable[[Trajectory], None] | None = None,
    on_micro_batch: Callable[[], None] | None = None,
    say: Callable[[str], None] = print,
    on_validation: Callable[[int, int], None] | None = None,
) -> Run:
    """Everything loaded and checked, resumed where there is a checkpoint; the run holds the lock of its folder.

    `on_validation` is called with the number of validation episodes done and to do.
    """
    check_machine(config)
    folder = run_folder(config)
    config.trainer.experiment_name = folder.name
    with lock_for_run(folder) as lock:
        return _build_run(config, lock, on_step, on_episode, on_micro_batch, say, on_validation)


def _build_run(
    config: TrainConfig,
    lock: FolderLock,
    on_step: Callable[[int, dict[str, float]], None] | None,
    on_episode: Callable[[Trajectory], None] | None,
    on_micro_batch: Callable[[], None] | None,
    say: Callable[[str], None],
    on_validation: Callable[[int, int], None] | None,
) -> Run:
    on, folder = resolve_device(config), lock.folder
    components = build_components(config)
    check_components(config, components)
    check_continuation(config, folder)
    log_file = None if config.trainer.log_file is None else open_log_file(config.trainer, folder)
    say = say if log_file is None else log_file.with_copy(say)
    trainer, tasks, steps = build_trainer(
        config, folder, on, components, on_episode, on_micro_batch, say, on_validation
    )
    write_atomic(folder / "config.yaml", overrides.to_yaml(config).encode())
    run = Run(
        folder,
        trainer,
        run_settings(config, steps),
        RunMonitor(folder, trainer, config.health, config.hacking, say),
        functools.partial(_loggers, config, folder, log_file),
        say,
        on_step,
        lock=lock,
    )
    run.resume()
    record_version(folder, run.state.step)
    if config.data.train_files:
        for warning in overlap_warnings(config, components.environment, write_train_tasks(folder, tasks)):
            say(f"Warning: {warning}")
    return run


def check_components(config: TrainConfig, components: RunComponents) -> None:
    """Check roles and shared resources; may set agent.train_roles, which a resumed run has stored."""
    has_roles = config.agent.roles or config.agent.train_roles is not None
    if has_roles or components.environment.roles != (DEFAULT_ROLE,) or components.environment.model_names():
        check_roles(config, components.environment)
    at_once = config.trainer.max_staleness or config.actor_rollout_ref.rollout.num_workers
    if components.resources.has_state and (at_once or ranks.num_ranks() > 1):
        raise UserError(
            f"The episodes of '{components.environment.name}' write to what they share, which several ranks, rollout "
            "workers or batches at the same time do not share yet; start one process with trainer.max_staleness=0."
        )


def build_trainer(
    config: TrainConfig,
    folder: Path,
    on: Device,
    components: RunComponents,
    on_episode: Callable[[Trajectory], None] | None = None,
    on_micro_batch: Callable[[], None] | None = None,
    say: Callable[[str], None] = print,
    on_validation: Callable[[int, int], None] | None = None,
) -> tuple[RLTrainer, Sequence[Task], int]:
    """The trainer with everything loaded, its tasks and its number of steps. Every rank has one."""
    environment = components.environment
    logged = read_logged_data(config, environment, components.format) if config.data.from_trajectories else None
    tasks = training_tasks(environment, config) if logged is None else ()
    check_sources(config)
    steps = training_steps(config, len(tasks if logged is None else logged.units))
    settings = rl_settings(config, steps)
    run_settings(config, steps)  # what is wrong with them is an error before the model is loaded
    agent = build_agent(config, components, config.actor_rollout_ref.rollout.temperature)
    policy = build_policy(config, folder, on, logged.log.template if logged is not None else None)
    if num_workers := config.actor_rollout_ref.rollout.num_workers:
        from practicum.training.cluster.worker_pool import RolloutWorkerPool  # which imports this module

        min_workers = min(num_workers, config.actor_rollout_ref.rollout.min_workers or num_workers)
        policy.workers = RolloutWorkerPool(config, folder, components, num_workers, min_workers, say)
    if environment.model_names():
        models = asked_models(policy, environment, agent, config)
        components = replace(components, make_environment=with_models(components.make_environment, models))
    watcher = ConsoleEpisodeWatcher(policy.renderer) if config.agent.stream else None
    source: RolloutSource
    if logged is not None:
        source, critic = logged.make_source(policy, agent, settings, say), None
    else:
        source = online = OnlineSource(
            policy, tasks, components.make_environment, agent, settings, watcher, *task_order(components, config),
            components.resources,
        )  # fmt: skip
        if settings.max_staleness:
            source = AsyncSource(online)
        critic = load_critic(config, on) if ESTIMATORS[settings.adv_estimator].needs_critic else None
    evaluate = build_evaluation(config, components, policy, on_validation) if validates(config) else None
    trainer = RLTrainer(policy, source, settings, critic, evaluate, on_episode, on_micro_batch, components.resources)
    if trainer.critic is not None and config.critic.ppo_micro_batch_size_per_gpu is not None:
        limit = max_micro_batch_tokens(config, on)
        trainer.critic.limits = MicroBatchLimits(limit, config.critic.ppo_micro_batch_size_per_gpu)
    return trainer, tasks, steps


async def _follow(config: TrainConfig, model: Path) -> TrainResult:
    """Train as another rank than the first: nothing is written here, and the first rank decides."""
    on, folder = resolve_device(config), run_folder(config)
    config.agent.stream = False
    components = build_components(config)
    check_components(config, components)
    trainer, _, _ = build_trainer(config, folder, on, components, say=lambda text: None)
    try:
        steps = await run_follower(trainer)
    finally:
        await trainer.policy.close()
    return TrainResult(folder, model, steps, None, None, {})


def _loggers(config: TrainConfig, folder: Path, log_file: LogFile | None, resumed: bool) -> list[Logger]:
    """Where the metrics of the run go besides its own files."""
    keys = config.trainer
    loggers = make_loggers(keys.logger, folder, keys.project_name, folder.name, asdict(config), resumed)
    return loggers if log_file is None else [*loggers, log_file]


def overlap_warnings(config: TrainConfig, environment: Environment, trained: set[str]) -> list[str]:
    """A sentence with the number of validation tasks that are training tasks too, if there are any."""
    tasks = environment.tasks("val", config.data.val_batch_size) if validates(config) else ()
    count = num_shared(tasks, trained)
    sentence = (
        f"{count} of {len(tasks)} validation tasks are training tasks too (data.train_files, data.val_files): "
        "validation is not held out, and the best model by it may be one that memorised."
    )
    return [sentence] if count else []


def build_policy(config: TrainConfig, folder: Path, on: Device, template: str | None) -> TrainablePolicy:
    """The policy with its engine; `template` is the chat template where the configuration names none."""
    actor, rollout = config.actor_rollout_ref.actor, config.actor_rollout_ref.rollout
    limit = max_micro_batch_tokens(config, on)
    loaded, base = load_model(config, on)
    policy = TrainablePolicy(
        loaded,
        config.agent.template or template,
        max_batch=max_num_seqs(config, on),
        kv_bytes=None if rollout.kv_cache_gib is None else int(rollout.kv_cache_gib * 2**30),
        gpu_memory_utilization=rollout.gpu_memory_utilization,
        limits=MicroBatchLimits(limit, actor.ppo_micro_batch_size_per_gpu),
        logprob_limits=MicroBatchLimits(limit, rollout.log_prob_micro_batch_size_per_gpu),
        make_engine=engine_maker(config, folder, on),
        separate_engine_weights=engine_has_weights(config),
        sharding=sharding_settings(config),
    )
    policy.concurrency = config.agent.concurrency or policy.concurrency
    policy.ranks_per_engine = ranks_per_engine(config)
    if config.agent.roles:
        add_roles(policy, base, config, on, config.agent.template or template)
    for model in policy.models:
        model.decoder.checkpointing = config.actor_rollout_ref.model.enable_gradient_checkpointing
    return policy


def engine_has_weights(config: TrainConfig) -> bool:
    """Whether the engine of this process samples during updates, and needs trained weights of its own."""
    ahead = config.trainer.max_staleness > 0 and not config.actor_rollout_ref.rollout.num_workers
    return config.trainer.overlap or ahead


def sharding_settings(config: TrainConfig) -> ShardingSettings | None:
    """How the learner is divided among the ranks that have joined; None: every rank has all of it."""
    actor, reference = config.actor_rollout_ref.actor, config.actor_rollout_ref.ref
    if actor.strategy != "fsdp2" or not dist.is_initialized():
        return None
    return ShardingSettings(True, actor.fsdp_config.param_offload, reference.fsdp_config.param_offload)


def load_critic(config: TrainConfig, on: Device) -> Decoder | None:
    """The critic's own model; None: a head on the policy."""
    path = config.critic.model.path
    return Decoder(resolve_model(path).load(on.dtype, on.device).model) if path else None


def build_evaluation(
    config: TrainConfig,
    components: RunComponents,
    policy: TrainablePolicy,
    on_validation: Callable[[int, int], None] | None = None,
) -> Callable[[], Awaitable[Evaluated]]:
    """A function that evaluates the policy on the panel of validation tasks."""
    tasks = tuple(components.environment.tasks("val", config.data.val_batch_size))
    agent = build_agent(config, components, config.actor_rollout_ref.rollout.val_temperature, validating=True)
    panel = Panel(tasks, config.trainer.seed)
    return functools.partial(_evaluate, policy, panel, components, agent, on_validation)


async def _evaluate(
    policy: TrainablePolicy,
    panel: Panel,
    components: RunComponents,
    agent: Agent,
    on_validation: Callable[[int, int], None] | None,
) -> Evaluated:
    num_done = itertools.count(1)

    def on_done(episode: Trajectory) -> None:
        if on_validation is not None:
            on_validation(next(num_done), len(panel.tasks))

    if on_validation is not None:
        on_validation(0, len(panel.tasks))
    return await policy.evaluate(
        "val", panel, components.make_environment, agent, on_done, resources=components.resources
    )


def load_model(config: TrainConfig, on: Device) -> tuple[loader.LoadedModel, loader.LoadedModel | None]:
    """The policy's weights, with an adapter where the configuration asks for one; and, where roles have adapters of
    their own, the model without any."""
    model = config.actor_rollout_ref.model
    loaded = resolve_policy(config).load(on.dtype, on.device, trainable=True)
    if loaded.adapter is not None or not model.lora_rank:
        return loaded, None
    base = sharing_weights(loaded) if any(role.adapter for role in config.agent.roles.values()) else None
    return lora.add_adapter(loaded, lora.settings_of(model), config.trainer.seed), base


def check_machine(config: TrainConfig) -> None:
    """Refuse what this machine does not have, before anything is loaded."""
    rollout = config.actor_rollout_ref.rollout
    if rollout.name == "vllm" and not rollout.vllm.url:
        find_python(rollout.vllm.python)
    gpus, num_ranks = config.trainer.n_gpus_per_node, read_launch().ranks_per_node
    was_asked = gpus == 1 if num_ranks == 1 else gpus == num_ranks != default_of(TrainerConfig, "n_gpus_per_node")
    if was_asked and config.trainer.device != "cpu" and not find_device(config).on_gpu:
        raise UserError(f"trainer.n_gpus_per_node={gpus}, but no GPU is to be seen here; set it to 0.")
