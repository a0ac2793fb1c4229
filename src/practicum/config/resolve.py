"""From overrides to a checked configuration of `practicum train`, and what `sft` and `dpo` share with it.

Values come from the schema's defaults, the model's defaults, the recipe and the command line, in this order. A key that
could not be honoured is an error where somebody chose it. The model's defaults (`TINY`) are for the built-in `tiny`
models on a CPU: the schemas have those of AgentFly, Affine and HALO, for models a thousand times as large on a GPU.

A launcher (`torchrun`, `accelerate launch`) says by environment variables which rank a process is (`read_launch`).
"""

from __future__ import annotations

import importlib.util
import operator
import os
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from practicum.config.actor_rollout_ref import ENGINES
from practicum.config.async_training import check_asynchrony
from practicum.config.dpo import DPOConfig
from practicum.config.fields import check_fields
from practicum.config.overrides import (
    ARGUMENT,
    ENGINE_OF_BACKEND,
    RECIPES,
    Resolved,
    Schema,
    read_overrides,
    schema_keys,
)
from practicum.config.pipeline import PipelineConfig
from practicum.config.sft import SFTConfig, SFTTrainingConfig
from practicum.config.train import TrainConfig, TrainerConfig
from practicum.errors import UserError, did_you_mean, nearest_name

ALGORITHM, ACTOR, MODEL = "algorithm.", "actor_rollout_ref.actor.", "actor_rollout_ref.model."
TINY_MODELS = ("tiny", "tiny-pretrained")
WITH_CRITIC = ("gae", "turn_gae")
READ_BY_ESTIMATORS: Mapping[str, tuple[str, ...]] = {
    f"{ALGORITHM}gamma": (*WITH_CRITIC, "reinforce_plus_plus", "flow_grpo"),
    f"{ALGORITHM}lam": WITH_CRITIC,
    f"{ALGORITHM}bootstrap_truncated": WITH_CRITIC,
    f"{ALGORITHM}norm_adv_by_std_in_grpo": ("grpo", "flow_grpo"),
    f"{ALGORITHM}row_weighted": ("flow_grpo",),
    f"{ALGORITHM}turn_rewards": (*WITH_CRITIC, "reinforce_plus_plus", "remax"),
}
"""Keys that only some advantage estimators read, and which."""


def keys_needing(keys: Iterable[str], other: str, value: Any = True) -> dict[str, tuple[str, Any]]:
    return dict.fromkeys(keys, (other, value))


TRAIN_NEEDS: Mapping[str, tuple[str, Any]] = {
    **keys_needing((MODEL + key for key in ("lora_alpha", "lora_dropout", "target_modules")), f"{MODEL}lora_rank"),
    **keys_needing((f"{ALGORITHM}kl_ctrl.type", f"{ALGORITHM}kl_ctrl.kl_coef"), f"{ALGORITHM}use_kl_in_reward"),
    **keys_needing(
        (f"{ALGORITHM}kl_ctrl.target_kl", f"{ALGORITHM}kl_ctrl.horizon"), f"{ALGORITHM}kl_ctrl.type", "adaptive"
    ),
    **keys_needing((f"{ALGORITHM}kl_penalty",), f"{ALGORITHM}use_kl_in_reward"),
    **keys_needing((f"{ACTOR}kl_loss_type", f"{ACTOR}kl_loss_coef"), f"{ACTOR}use_kl_loss"),
    **keys_needing((f"{ACTOR}optim.min_lr_ratio",), f"{ACTOR}optim.warmup_style", "cosine"),
    **keys_needing((f"{ALGORITHM}filter_groups.max_num_gen_batches",), f"{ALGORITHM}filter_groups.enable"),
    **keys_needing((f"{ALGORITHM}group_reward.weight",), f"{ALGORITHM}group_reward.name"),
    **keys_needing((f"{ALGORITHM}offline.top_percent",), f"{ALGORITHM}offline.method", "bandit"),
    **keys_needing((f"data.curriculum.{key}" for key in ("field", "threshold", "window")), "data.curriculum.enable"),
    **keys_needing(("trainer.log_file_max_bytes", "trainer.log_file_backups"), "trainer.log_file"),
    **keys_needing(("trainer.resume_from_path",), "trainer.resume_mode", "resume_path"),
}
"""Keys of `practicum train` that do nothing unless another key has a value (True: any but 0, false and null)."""


def check_unused(config: TrainConfig, chosen: Set[str]) -> None:
    """Refuse chosen keys of `practicum train` that nothing would read."""
    estimator = config.algorithm.adv_estimator
    for key, readers in READ_BY_ESTIMATORS.items():
        if key in chosen and estimator not in readers and is_changed(config, key):
            raise UserError(
                f"{key} does nothing with algorithm.adv_estimator={estimator}: only {' and '.join(readers)} "
                f"read{'s' if len(readers) == 1 else ''} it; leave it out."
            )
    check_needs(config, TRAIN_NEEDS, chosen)


def is_changed(config: Any, key: str) -> bool:
    """Whether a key has another value than its schema's default."""
    return bool(_value(config, key) != _value(type(config)(), key))


def check_needs(config: Any, needs: Mapping[str, tuple[str, Any]], chosen: Set[str]) -> None:
    for key, (other, required) in needs.items():
        if key not in chosen or not is_changed(config, key):
            continue
        value = _value(config, other)
        if (not value) if required is True else value != required:
            suffix = "" if required is True else f"={required}"
            raise UserError(
                f"{key}={_value(config, key)} does nothing without {other}{suffix}; set that too, or leave it out."
            )


def _value(config: Any, key: str) -> Any:
    return operator.attrgetter(key)(config)


SUPERVISED = {
    "training.batch_size": 8,
    "training.gradient_accumulation_steps": 1,
    "training.learning_rate": 1e-3,
    "training.warmup_steps": 30,
    "training.eval_steps": 100,
}
TINY: Mapping[type, Mapping[str, Any]] = {
    TrainConfig: {
        "trainer.total_training_steps": 10,
        "trainer.test_freq": 5,
        "data.val_batch_size": 20,
        "data.train_batch_size": 4,
        "agent.num_chains": 4,
        "agent.max_turns": 2,
        "actor_rollout_ref.rollout.response_length": 32,
        "actor_rollout_ref.actor.optim.lr": 3e-4,
        "critic.optim.lr": 1e-3,
    },
    SFTConfig: SUPERVISED,
    DPOConfig: {
        "training.batch_size": 8,
        "training.gradient_accumulation_steps": 1,
        "training.learning_rate": 5e-4,
    },
    PipelineConfig: {
        **SUPERVISED,
        "data.affine.num_samples": 1200,
        "data.agentgym.num_episodes": 500,
        "data.agentgym.max_episode_length": 10,
        "data.max_response_tokens": 64,
        "rl_training.num_rollouts": 35,
        "rl_training.rollout_batch_size": 64,
        "rl_training.learning_rate": 2e-4,
        "rl_training.value_learning_rate": 1e-3,
        "evaluation.num_eval_samples": 100,
    },
}
"""By schema, the keys that have another default for `tiny` on a CPU."""


SIZES = ("data.train_batch_size", "agent.num_chains", "agent.max_turns")
"""Sizes of a step of `tiny`, where neither its tasks nor its mini-batches are given: its weights are random, so such a
run shows that everything works, within a minute."""
MINI_BATCHES = {"actor_rollout_ref.actor.ppo_mini_batch_size", "critic.ppo_mini_batch_size"}


def with_model_defaults(resolved: Resolved[Schema]) -> Resolved[Schema]:
    """The configuration with the defaults of `tiny` on a CPU, where it is about that and no recipe is named."""
    config = resolved.config
    if resolved.has_recipe or not _is_tiny(config) or not _is_on_cpu(config):
        return resolved
    values = dict(TINY[type(config)])
    if "trainer.total_epochs" in resolved.sources:
        del values["trainer.total_training_steps"]
    if isinstance(config, TrainConfig):
        if not _can_validate(config):
            del values["trainer.test_freq"], values["data.val_batch_size"]
        if config.data.train_files or config.data.from_trajectories or MINI_BATCHES & resolved.chosen:
            for key in SIZES:
                del values[key]
    return resolved.with_defaults(values)


def _can_validate(config: TrainConfig) -> bool:
    """Whether validation is wanted, and there are tasks for it that training does not use."""
    own_files = bool(config.data.train_files) and not config.data.val_files
    return config.trainer.val_before_train and not own_files and config.data.from_trajectories is None


def _is_tiny(config: Any) -> bool:
    if isinstance(config, TrainConfig):
        return (config.actor_rollout_ref.model.path or config.agent.model_name_or_path or "tiny") in TINY_MODELS
    return config.model.path in TINY_MODELS


def _is_on_cpu(config: Any) -> bool:
    if isinstance(config, TrainConfig):
        device = "cpu" if config.trainer.n_gpus_per_node == 0 else config.trainer.device
    else:
        device = config.model.device
    if device != "auto":
        return bool(device == "cpu")
    import torch  # slow to import: only where the answer depends on the machine

    return not torch.cuda.is_available()


STRATEGY = "actor_rollout_ref.actor.strategy"
STRATEGIES = ("ddp", "fsdp2")
SHARDED_ONLY = (
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.ref.fsdp_config.param_offload",
)
"""Keys of a sharded learner."""
SERVER_ONLY = (
    "actor_rollout_ref.rollout.tensor_model_parallel_size",
    "actor_rollout_ref.rollout.gpu_memory_utilization",
)
"""Keys of an engine that is a server; the local engine cannot honour them, but for the memory where it has a GPU."""
VLLM = "actor_rollout_ref.rollout.vllm."
STARTED_SERVER_ONLY = (
    *SERVER_ONLY,
    *(VLLM + key for key in ("python", "port", "dtype", "max_model_len", "extra_args", "start_timeout")),
)
"""Keys of a server that we start; a server that runs already has values of its own."""
OFFLINE_ONLY = ("algorithm.offline.method", "algorithm.offline.top_percent")
NOT_OFFLINE = {
    "algorithm.filter_groups.enable": "groups without a difference are left out of a log anyway",
    "algorithm.group_reward.name": "logged rewards are compared as they are",
    "data.curriculum.enable": "it follows the successes of the policy, which a log does not hold",
    "agent.stream": "no episode is played that could be shown",
    "trainer.overlap": "there is no rollout that could go beside the updates",
}
NOT_OFFLINE_GRPO = {
    "algorithm.use_kl_in_reward": "logged rewards are compared as they are; use actor_rollout_ref.actor.use_kl_loss",
    "actor_rollout_ref.actor.tis_imp_ratio_cap": "ratios are taken against the log's own log-probs",
}
"""Keys without a meaning where a log is trained on, and why."""


def resolve_train(
    config: TrainConfig | Resolved[TrainConfig] | Iterable[str], recipes: Path = RECIPES, *, model_defaults: bool = True
) -> Resolved[TrainConfig]:
    """The configuration of `practicum train`, checked key by key. A TrainConfig is used as it is: what differs from the
    defaults counts as chosen. One that is resolved already is returned."""
    if isinstance(config, Resolved):
        return config
    if isinstance(config, TrainConfig):
        check_fields(config)
        resolved = Resolved(config, dict.fromkeys(changed_keys(config), ARGUMENT))
    else:
        resolved = read_overrides(TrainConfig, list(config), recipes)
        resolved = with_model_defaults(resolved) if model_defaults else resolved
    choose_engine(resolved.config, resolved.chosen)
    check_engine(resolved.config, resolved.chosen)
    check_batches(resolved.config)
    check_generated(resolved.config)
    check_offline(resolved.config, resolved.chosen)
    check_unused(resolved.config, resolved.chosen)
    return resolved


def changed_keys(config: TrainConfig | SFTConfig | DPOConfig) -> list[str]:
    """Keys whose value is not the default of the schema."""
    tree, defaults = OmegaConf.structured(config), OmegaConf.structured(type(config))
    keys = schema_keys(type(config))
    return [key for key in keys if OmegaConf.select(tree, key) != OmegaConf.select(defaults, key)]


def choose_engine(config: TrainConfig, chosen: Set[str]) -> None:
    """Set the engine of agent.backend, unless actor_rollout_ref.rollout.name is set."""
    backend, rollout = config.agent.backend, config.actor_rollout_ref.rollout
    if backend not in ENGINE_OF_BACKEND:
        raise UserError(f"Unknown agent.backend '{backend}'.{did_you_mean(backend, ENGINE_OF_BACKEND)}")
    engine = ENGINE_OF_BACKEND[backend]
    if engine is None or engine == rollout.name:
        return
    if "actor_rollout_ref.rollout.name" in chosen:
        raise UserError(
            f"agent.backend={backend} is the engine {engine}, not actor_rollout_ref.rollout.name={rollout.name}; "
            "leave one of them out."
        )
    rollout.name = engine


def check_engine(config: TrainConfig, chosen: Set[str]) -> None:
    """Refuse settings that the chosen engine cannot honour, where they were set explicitly."""
    engine = config.actor_rollout_ref.rollout.name
    if engine not in ENGINES:
        raise UserError(f"Unknown actor_rollout_ref.rollout.name '{engine}'.{did_you_mean(engine, ENGINES)}")
    check_launch(config, chosen)
    if engine == "local":
        _check_local(config, chosen)
    if config.agent.backend == "client" and not config.actor_rollout_ref.rollout.vllm.url:
        raise UserError(f"agent.backend=client is a server that runs: give its address, {VLLM}url=http://HOST:PORT.")
    if engine == "vllm" and config.actor_rollout_ref.rollout.vllm.url:
        for key in STARTED_SERVER_ONLY:
            if key in chosen:
                raise UserError(f"{key} is for a server that is started here; leave it out, or leave out {VLLM}url.")
    check_sharding(config, chosen)


def check_sharding(config: TrainConfig, chosen: Set[str]) -> None:
    """Refuse offloading without a sharded learner, and what a sharded one cannot do."""
    actor = config.actor_rollout_ref.actor
    check_strategy(actor.strategy, STRATEGY)
    launch = read_launch()
    num_ranks = ranks_asked_for(config, chosen) if launch.num_ranks == 1 else launch.num_ranks
    if actor.strategy != "fsdp2" or num_ranks == 1:
        for key in SHARDED_ONLY:
            if _value(config, key):
                raise UserError(
                    f"{key}=true: only a learner that is sharded over several ranks ({STRATEGY}=fsdp2) can offload; "
                    "set it to false."
                )
        return
    if actor.fsdp_config.param_offload != actor.fsdp_config.optimizer_offload:
        raise UserError(f"FSDP2 offloads weights and moments together: give {SHARDED_ONLY[0]} and {SHARDED_ONLY[1]} "
                        "the same value.")  # fmt: skip
    if config.critic.model.path:
        raise UserError(f"{STRATEGY}=fsdp2 does not shard a critic's own model yet; leave out critic.model.path.")
    if any(role.adapter for role in config.agent.roles.values()):
        raise UserError(f"{STRATEGY}=fsdp2 does not go with roles that have adapters of their own yet; use ddp.")


def check_strategy(strategy: str, key: str) -> None:
    """Refuse a way to divide the learner that there is not."""
    if strategy not in STRATEGIES:
        raise UserError(f"Unknown {key} '{strategy}'.{nearest_name(strategy, STRATEGIES)} Known: ddp, fsdp2.")


def check_launch(config: TrainConfig, chosen: Set[str]) -> None:
    """Refuse numbers of machines and GPUs that are not those of the launch, and what several ranks cannot do yet."""
    check_workers(config)
    if (num_ranks := check_ranks(config, chosen)) > 1:
        _check_several_ranks(config, num_ranks)
        _check_servers(config, num_ranks)
    if config.trainer.max_staleness:
        check_asynchrony(config, num_ranks)


def check_ranks(config: TrainConfig | SFTConfig | DPOConfig, chosen: Set[str]) -> int:
    """Return the number of learner ranks; refuse numbers that are not the launcher's, and ranks without Ray."""
    launch, (group, values) = read_launch(), rank_keys(config)
    nnodes, per_node = f"{group}.nnodes={values.nnodes}", f"{group}.n_gpus_per_node={values.n_gpus_per_node}"
    if launch.num_ranks == 1:
        if (num_asked_for := ranks_asked_for(config, chosen)) > 1:
            _check_ray(
                f"{nnodes} {per_node}",
                f", or start the ranks yourself (torchrun --nnodes {values.nnodes} --nproc-per-node "
                f"{num_asked_for // values.nnodes} -m practicum.cli ...)",
            )
        return num_asked_for
    if f"{group}.nnodes" in chosen and values.nnodes != launch.nnodes:
        raise UserError(f"{nnodes}, but the launcher has started ranks on {launch.nnodes}.")
    if f"{group}.n_gpus_per_node" in chosen and values.n_gpus_per_node not in (0, launch.ranks_per_node):
        raise UserError(
            f"{per_node}, but the launcher has started {launch.ranks_per_node} ranks per machine; every GPU needs one "
            "(0: the CPU)."
        )
    return launch.num_ranks


def rank_keys(config: TrainConfig | SFTConfig | DPOConfig) -> tuple[str, TrainerConfig | SFTTrainingConfig]:
    """The group of keys that has the numbers of machines and ranks, and its values."""
    return ("trainer", config.trainer) if isinstance(config, TrainConfig) else ("training", config.training)


def ranks_asked_for(config: TrainConfig | SFTConfig | DPOConfig, chosen: Set[str]) -> int:
    """The learner ranks that were requested: one per GPU of every machine (or, on CPUs, as many processes)."""
    group, values = rank_keys(config)
    key = f"{group}.n_gpus_per_node"
    if key not in chosen and values.nnodes > 1:
        raise UserError(f"{group}.nnodes={values.nnodes} needs {key} too: the ranks per machine.")
    return values.nnodes * (max(1, values.n_gpus_per_node) if key in chosen else 1)


def check_workers(config: TrainConfig) -> None:
    """Refuse what rollout workers cannot do yet."""
    rollout = config.actor_rollout_ref.rollout
    num_workers, fewest, num_gpus = rollout.num_workers, rollout.min_workers, rollout.gpus_per_worker
    if fewest is not None and fewest > num_workers:
        raise UserError(f"{ROLLOUT_WORKERS}={num_workers} are fewer than rollout.min_workers={fewest}; lower that.")
    if num_gpus != 1 and not num_workers:
        raise UserError(f"{GPUS_PER_WORKER}={num_gpus:g} is for rollout workers: set {ROLLOUT_WORKERS} too.")
    if num_gpus > 1 and num_gpus % 1:
        raise UserError(f"{GPUS_PER_WORKER}={num_gpus:g}: a worker takes a part of one GPU, or whole ones.")
    if not num_workers:
        return
    for key, refused, reason in NOT_WITH_WORKERS:
        if _value(config, key) == refused:
            raise UserError(f"{key}={refused} does not go with {ROLLOUT_WORKERS}={num_workers} yet: {reason}.")
    if config.data.from_trajectories is not None:
        raise UserError(f"{ROLLOUT_WORKERS}={num_workers}: a log is trained on, and no episode is run; leave it out.")
    _check_ray(f"{ROLLOUT_WORKERS}={num_workers}", ", or leave it out")


def _check_ray(setting: str, otherwise: str) -> None:
    if importlib.util.find_spec("ray") is None:
        raise UserError(f"{setting} needs Ray: pip install 'practicum[ray]'{otherwise}; see docs/cluster.md.")


def _check_several_ranks(config: TrainConfig, num_ranks: int) -> None:
    for key, refused, reason in NOT_ON_SEVERAL_RANKS:
        if _value(config, key) == refused:
            raise UserError(f"{key}={refused} does not go with {num_ranks} ranks yet: {reason}.")


def _check_servers(config: TrainConfig, num_ranks: int) -> None:
    """Refuse vLLM servers that several ranks cannot have: a rank starts one, on the GPUs of ranks of its machine."""
    rollout, launch = config.actor_rollout_ref.rollout, read_launch()
    if rollout.name != "vllm":
        return
    if rollout.vllm.url:
        raise UserError(
            f"{VLLM}url is one server, and each of {num_ranks} ranks starts its own: leave it out, or set {VLLM}python."
        )
    per_node = launch.ranks_per_node if launch.num_ranks > 1 else num_ranks // config.trainer.nnodes
    if per_node % rollout.tensor_model_parallel_size:
        raise UserError(
            f"{TENSOR_PARALLEL}={rollout.tensor_model_parallel_size} does not divide the {per_node} ranks of a "
            "machine, on whose GPUs the servers run; choose a divisor."
        )


TENSOR_PARALLEL = "actor_rollout_ref.rollout.tensor_model_parallel_size"
ROLLOUT_WORKERS = "actor_rollout_ref.rollout.num_workers"
GPUS_PER_WORKER = "actor_rollout_ref.rollout.gpus_per_worker"
NOT_WITH_WORKERS: tuple[tuple[str, Any, str], ...] = (
    ("actor_rollout_ref.rollout.name", "vllm", "every worker generates with a local engine; use local"),
    ("trainer.overlap", True, "the weights of an unfinished update would be sent to the workers; set it to false"),
    ("agent.stream", True, "episodes run in other processes; set it to false"),
)
"""Key, refused value and reason."""
NOT_ON_SEVERAL_RANKS: tuple[tuple[str, Any, str], ...] = (
    ("trainer.overlap", True, "an update and the rollout beside it would wait for each other; set it to false"),
    ("algorithm.offline.method", "bandit", "its replies are not divided among ranks; start one process"),
)
"""Key, refused value and reason."""


def _check_local(config: TrainConfig, chosen: Set[str]) -> None:
    for key in sorted(chosen):
        if key == "actor_rollout_ref.rollout.gpu_memory_utilization" and not _is_on_cpu(config):
            continue
        if key == "actor_rollout_ref.rollout.tensor_model_parallel_size" and _value(config, key) == 1:
            continue  # which the local engine is
        if key in SERVER_ONLY or key.startswith(VLLM):
            raise UserError(f"{key} means nothing to actor_rollout_ref.rollout.name=local; leave it out.")


def check_batches(config: TrainConfig) -> None:
    """Check the mini-batch sizes against the number of tasks per step."""
    num_tasks = config.data.train_batch_size
    for name, size in (
        ("actor_rollout_ref.actor.ppo_mini_batch_size", config.actor_rollout_ref.actor.ppo_mini_batch_size),
        ("critic.ppo_mini_batch_size", config.critic.ppo_mini_batch_size),
    ):
        if size is None:
            continue
        if size > num_tasks:
            raise UserError(
                f"{name}={size} counts tasks of one step, of which there are data.train_batch_size={num_tasks}; "
                "choose a number from 1 to that."
            )
        if num_tasks % size:
            raise UserError(
                f"{name}={size} does not divide data.train_batch_size={num_tasks}: the last update of a step would be "
                f"over {num_tasks % size} tasks and weigh as much as the others; choose a divisor."
            )


def check_generated(config: TrainConfig) -> None:
    """Refuse a number of generated tasks where the tasks come from elsewhere."""
    data = config.data
    if data.num_train_tasks is None:
        return
    for key, value in (("data.train_files", data.train_files), ("data.from_trajectories", data.from_trajectories)):
        if value:
            raise UserError(
                f"data.num_train_tasks counts generated tasks, and {key} gives others; leave one of them out."
            )
    if data.num_train_tasks < data.train_batch_size:
        raise UserError(
            f"data.num_train_tasks={data.num_train_tasks} are fewer than the {data.train_batch_size} tasks of one "
            "step; lower data.train_batch_size."
        )


def check_offline(config: TrainConfig, chosen: Set[str]) -> None:
    """Refuse what training on a log cannot honour; its estimator is grpo where nobody chose another."""
    if config.data.from_trajectories is None:
        for key in OFFLINE_ONLY:
            if key in chosen:
                raise UserError(f"{key} is for learning from a log; name one with --from-trajectories.")
        return
    if "algorithm.adv_estimator" not in chosen:
        config.algorithm.adv_estimator = "grpo"
    method = config.algorithm.offline.method
    for key, reason in (NOT_OFFLINE | (NOT_OFFLINE_GRPO if method == "grpo" else {})).items():
        if _value(config, key):
            raise UserError(f"{key} does not go with --from-trajectories: {reason}.")


# -- the launcher ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Launch:
    """The place of this process among those that a launcher has started; one process is rank 0 of 1."""

    rank: int = 0
    num_ranks: int = 1
    local_rank: int = 0
    """Its index on this machine."""
    ranks_per_node: int = 1

    @property
    def nnodes(self) -> int:
        return self.num_ranks // self.ranks_per_node

    @property
    def is_first(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0


def read_launch() -> Launch:
    """Read the place of this process; raise UserError where the variables contradict each other."""
    num_ranks = _number("WORLD_SIZE", 1)
    if num_ranks == 1:
        return Launch()
    rank = _number("RANK", None)
    launch = Launch(rank, num_ranks, _number("LOCAL_RANK", rank), _number("LOCAL_WORLD_SIZE", num_ranks))
    if not (launch.rank < num_ranks and launch.local_rank < launch.ranks_per_node) or num_ranks % launch.ranks_per_node:
        raise UserError(
            f"The launcher's variables contradict each other (RANK={launch.rank}, WORLD_SIZE={num_ranks}, LOCAL_RANK="
            f"{launch.local_rank}, LOCAL_WORLD_SIZE={launch.ranks_per_node}); start every machine with as many ranks."
        )
    return launch


def _number(name: str, default: int | None) -> int:
    text = os.environ.get(name, "")
    if not text and default is not None:
        return default
    if not text.isdigit():
        raise UserError(f"The launcher has set {name}='{text}', which is not a number; use torchrun.")
    return int(text)


SELECTED = "PRACTICUM_SELECTED_GPU"
"""Variable that is set once CUDA_VISIBLE_DEVICES is this rank's own."""


def select_gpu(launch: Launch) -> None:
    """Let this process see one GPU, that of its local rank. Must run before CUDA is initialised."""
    if launch.num_ranks == 1 or os.environ.get(SELECTED) == str(launch.local_rank):
        return
    visible = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name]
    own = str(launch.local_rank) if not visible else "".join(visible[launch.local_rank : launch.local_rank + 1])
    os.environ["CUDA_VISIBLE_DEVICES"], os.environ[SELECTED] = own, str(launch.local_rank)
