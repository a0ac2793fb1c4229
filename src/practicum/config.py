"""Configuration: typed groups with the names verl and AgentFly users know, and no key that does nothing.

Every key below is honoured. An override that names no key is an error that names the nearest one.
Both spellings of the agent group work: `agent.tools=[...]` and `agent.init_args.tools=[...]`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from practicum.errors import UserError, nearest


@dataclass
class AgentConfig:
    environment: str = "math"
    environment_args: dict[str, Any] = field(default_factory=dict)
    model_name_or_path: str = "tiny"
    template: str | None = None
    agent_type: str = "hf"
    tools: list[str] | None = None
    reward_name: str | None = None
    max_turns: int = 4
    num_chains: int = 8
    max_tokens_per_turn: int = 256


@dataclass
class AlgorithmConfig:
    adv_estimator: str = "grpo"
    norm_adv_by_std_in_grpo: bool = True
    gamma: float = 1.0


@dataclass
class TrainerConfig:
    project_name: str = "practicum"
    experiment_name: str = "run"
    default_local_dir: str = "runs"
    total_training_steps: int = 50
    save_freq: int = -1
    test_freq: int = -1
    val_before_train: bool = True
    seed: int = 0


@dataclass
class DataConfig:
    train_files: str | None = None
    val_files: str | None = None
    train_batch_size: int = 16
    val_batch_size: int = 300


@dataclass
class OptimConfig:
    lr: float = 5e-7
    lr_warmup_steps: int = 0
    warmup_style: str = "constant"
    weight_decay: float = 0.0


@dataclass
class ActorConfig:
    optim: OptimConfig = field(default_factory=OptimConfig)
    clip_ratio_low: float = 0.2
    clip_ratio_high: float = 0.2
    clip_ratio_c: float = 3.0
    entropy_coeff: float = 0.001
    loss_agg_mode: str = "token-mean"
    grad_clip: float = 1.0
    ppo_max_token_len_per_gpu: int = 4096


@dataclass
class ModelConfig:
    path: str | None = None


@dataclass
class RolloutConfig:
    name: str = "local"
    temperature: float = 1.0
    val_temperature: float = 0.0
    max_num_seqs: int = 64


@dataclass
class ActorRolloutRefConfig:
    actor: ActorConfig = field(default_factory=ActorConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    rollout: RolloutConfig = field(default_factory=RolloutConfig)


@dataclass
class TrainConfig:
    """Everything `practicum train` reads."""

    agent: AgentConfig = field(default_factory=AgentConfig)
    algorithm: AlgorithmConfig = field(default_factory=AlgorithmConfig)
    trainer: TrainerConfig = field(default_factory=TrainerConfig)
    data: DataConfig = field(default_factory=DataConfig)
    actor_rollout_ref: ActorRolloutRefConfig = field(default_factory=ActorRolloutRefConfig)


def resolve(overrides: list[str], recipes: Path | None = None) -> TrainConfig:
    """Defaults, then the recipe (`recipe=NAME`), then the overrides, checked key by key."""
    config = OmegaConf.structured(TrainConfig)
    try:
        parsed = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as error:
        raise UserError(f"Cannot read the override '{error.override}'; write KEY=VALUE.") from None
    for override in parsed:
        if override.key_or_group == "recipe":
            _merge_recipe(config, str(override.value()), recipes)
    for override in parsed:
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"'{override.input_line}': keys are set with KEY=VALUE; none can be added or removed.")
        if override.key_or_group != "recipe":
            _set(config, str(override.key_or_group), override.value())
    return _typed(config)


def _set(config: DictConfig, key: str, value: Any) -> None:
    key = key.replace("agent.init_args.", "agent.")
    node: Any = config
    parts = key.split(".")
    for depth, part in enumerate(parts):
        if not OmegaConf.is_dict(node) or (part not in node and not _free(parts[:depth])):
            raise UserError(f"Unknown key '{key}'.{nearest(key, known_keys())}")
        if _free(parts[:depth]):
            break
        node = node[part]
    try:
        OmegaConf.update(config, key, value, merge=True, force_add=_free(parts[:-1]))
    except OmegaConfBaseException as error:
        raise UserError(f"{key}={value}: {str(error).splitlines()[0]}.") from None


def _free(path: list[str]) -> bool:
    """Whether keys below this path belong to the environment, not to us."""
    return path[:2] == ["agent", "environment_args"]


def _merge_recipe(config: DictConfig, name: str, recipes: Path | None) -> None:
    folder = recipes or Path("recipes")
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        known = [p.stem for p in folder.glob("*.yaml")]
        raise UserError(f"There is no recipe '{name}'.{nearest(name, known)}")
    try:
        loaded = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # YAML's own errors have no common base with OmegaConf's
        raise UserError(f"Recipe '{path}' is not valid YAML: {str(error).splitlines()[0]}") from None
    for key, value in _leaves(loaded if isinstance(loaded, dict) else {}, ""):
        _set(config, key, value)


def _leaves(tree: dict[Any, Any], prefix: str) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and not _free(path.split(".")):
            found += _leaves(value, f"{path}.")
        else:
            found.append((path, value))
    return found


def known_keys() -> list[str]:
    tree = OmegaConf.to_container(OmegaConf.structured(TrainConfig))
    assert isinstance(tree, dict)
    return [key for key, _ in _leaves(tree, "")]


def _typed(config: DictConfig) -> TrainConfig:
    try:
        made = OmegaConf.to_object(config)
    except OmegaConfBaseException as error:
        raise UserError(f"{str(error).splitlines()[0]}.") from None
    assert isinstance(made, TrainConfig)
    return made


def show(config: TrainConfig) -> str:
    return OmegaConf.to_yaml(OmegaConf.structured(config))
