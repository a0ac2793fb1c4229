"""Schemas filled from recipes and `KEY=VALUE` overrides, in Hydra's grammar, with the source of every value.

An override that names no key is an error that names the nearest one. Spellings of verl, AgentFly, TRL and HTDAG are
translated (`RENAMED`, `SEVERAL`, `VALUES`).
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from practicum.config.dpo import DPOConfig
from practicum.config.fields import check_fields
from practicum.config.pipeline import PipelineConfig
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.errors import UserError, close_name, nearest_name

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor.", "actor_rollout_ref.rollout.", "actor_rollout_ref.model."
CLIP = (f"{ACTOR}clip_ratio_low", f"{ACTOR}clip_ratio_high")

VERL = {
    f"{ROLLOUT}n": "agent.num_chains",
    f"{ROLLOUT}multi_turn.max_assistant_turns": "agent.max_turns",
    f"{ROLLOUT}multi_turn.max_turns": "agent.max_turns",
    f"{ROLLOUT}multi_turn.enable": "agent.use_agent",
    f"{ROLLOUT}val_kwargs.temperature": f"{ROLLOUT}val_temperature",
    f"{ROLLOUT}max_model_len": f"{ROLLOUT}vllm.max_model_len",
    f"{ROLLOUT}dtype": f"{ROLLOUT}vllm.dtype",
    f"{ROLLOUT}log_prob_micro_batch_size": f"{ROLLOUT}log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size": f"{ROLLOUT}log_prob_micro_batch_size_per_gpu",
    "actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu": f"{ROLLOUT}log_prob_micro_batch_size_per_gpu",
    f"{ACTOR}ppo_micro_batch_size": f"{ACTOR}ppo_micro_batch_size_per_gpu",
    f"{ACTOR}optim.lr_scheduler_type": f"{ACTOR}optim.warmup_style",
    f"{ACTOR}optim.clip_grad": f"{ACTOR}grad_clip",
    "critic.ppo_micro_batch_size": "critic.ppo_micro_batch_size_per_gpu",
    "critic.optim.clip_grad": "critic.grad_clip",
    "data.max_response_length": f"{ROLLOUT}response_length",
    "trainer.max_actor_ckpt_to_keep": "trainer.save_total_limit",
}
TRL_GRPO = {
    "num_generations": "agent.num_chains",
    "max_completion_length": f"{ROLLOUT}response_length",
    **{name: f"{ROLLOUT}{name}" for name in ("temperature", "top_k", "top_p", "min_p")},
    "learning_rate": f"{ACTOR}optim.lr",
    "lr_scheduler_type": f"{ACTOR}optim.warmup_style",
    "warmup_steps": f"{ACTOR}optim.lr_warmup_steps",
    "weight_decay": f"{ACTOR}optim.weight_decay",
    "max_grad_norm": f"{ACTOR}grad_clip",
    "beta": f"{ACTOR}kl_loss_coef",
    "epsilon_high": f"{ACTOR}clip_ratio_high",
    "num_iterations": f"{ACTOR}ppo_epochs",
    "scale_rewards": "algorithm.norm_adv_by_std_in_grpo",
    "gradient_checkpointing": f"{MODEL}enable_gradient_checkpointing",
    "model_name_or_path": f"{MODEL}path",
    "max_steps": "trainer.total_training_steps",
    "num_train_epochs": "trainer.total_epochs",
    "save_steps": "trainer.save_freq",
    "save_total_limit": "trainer.save_total_limit",
    "eval_steps": "trainer.test_freq",
    "output_dir": "trainer.default_local_dir",
    "seed": "trainer.seed",
}
TRL_SUPERVISED = {
    "model_name_or_path": "model.path",
    "num_train_epochs": "training.num_epochs",
    "per_device_train_batch_size": "training.batch_size",
    "lr_scheduler_type": "training.scheduler_type",
    "training.lr_scheduler_type": "training.scheduler_type",
    "training.num_train_epochs": "training.num_epochs",
    "training.per_device_train_batch_size": "training.batch_size",
    "trainer.nnodes": "training.nnodes",
    "trainer.n_gpus_per_node": "training.n_gpus_per_node",
    "lora_r": "training.lora_r",
    "lora_alpha": "training.lora_alpha",
    "lora_dropout": "training.lora_dropout",
    "lora_target_modules": "training.lora_target_modules",
    "use_dora": "training.use_dora",
    "use_rslora": "training.use_rslora",
    **{name: f"training.{name}" for name in (
        "gradient_accumulation_steps", "learning_rate", "warmup_steps", "weight_decay", "max_grad_norm", "bf16", "fp16",
        "gradient_checkpointing", "save_steps", "save_total_limit", "eval_steps", "seed")},
}  # fmt: skip
TRL_DPO = {
    **TRL_SUPERVISED,
    "loss_type": "training.loss",
    **{name: f"training.{name}" for name in ("beta", "label_smoothing", "warmup_ratio")},
}
HTDAG = {
    "algorithm.adv_norm": "algorithm.norm_adv_by_std_in_grpo",
    "algorithm.discount": "algorithm.gamma",
    "trainer.n_gpus": "trainer.n_gpus_per_node",
}
SEVERAL = {f"{ACTOR}clip_ratio": CLIP, "epsilon": CLIP}
"""Names that set several keys."""
RENAMED: Mapping[type, Mapping[str, str]] = {
    TrainConfig: {**VERL, **TRL_GRPO, **HTDAG},
    SFTConfig: TRL_SUPERVISED,
    DPOConfig: TRL_DPO,
    PipelineConfig: {},
}

_WHOLE_PROMPTS = "prompts are never cut; an episode ends where the model's window is full, so leave it out"
_VLLM_ARGUMENTS = f"arguments of a vLLM server go into {ROLLOUT}vllm.extra_args"
_PACKED = f"batches are always packed up to {ACTOR}ppo_max_token_len_per_gpu tokens; leave it out"
_ONE_PROCESS = "the learner is one process; leave it out"
_FILE_FIELDS = "a task file has the field 'question' (docs/environments.md); leave it out"
_REWARD = "set agent.reward_name to a reward's name or to file.py:function"
_LOSS_TYPE = f"set {ACTOR}policy_loss.loss_mode, {ACTOR}loss_agg_mode or algorithm.adv_estimator"
_TASKS = f"set data.train_batch_size (tasks per step) and {ACTOR}ppo_mini_batch_size (tasks per update)"
_WINDOW = "sequences are never cut; those longer than the model's window are left out"

REFUSED: Mapping[type, Mapping[str, str]] = {
    TrainConfig: {
        "data.max_prompt_length": _WHOLE_PROMPTS,
        "max_prompt_length": _WHOLE_PROMPTS,
        f"{ROLLOUT}prompt_length": _WHOLE_PROMPTS,
        "data.truncation": _WHOLE_PROMPTS,
        "data.filter_overlong_prompts": _WHOLE_PROMPTS,
        f"{ROLLOUT}do_sample": f"set {ROLLOUT}temperature",
        f"{ROLLOUT}val_kwargs.do_sample": f"set {ROLLOUT}val_temperature (0 is greedy)",
        f"{ROLLOUT}val_kwargs.n": "validation is one episode per task; `practicum eval` takes several",
        f"{ROLLOUT}mode": "rollouts are always asynchronous; leave it out",
        f"{ROLLOUT}max_num_batched_tokens": _VLLM_ARGUMENTS,
        f"{ROLLOUT}enforce_eager": _VLLM_ARGUMENTS,
        f"{ROLLOUT}free_cache_engine": _VLLM_ARGUMENTS,
        f"{ROLLOUT}load_format": _VLLM_ARGUMENTS,
        f"{ROLLOUT}multi_turn.format": "set agent.agent_type",
        f"{ROLLOUT}multi_turn.tool_config_path": "set agent.tools to names or to file.py:function",
        f"{ACTOR}use_dynamic_bsz": _PACKED,
        f"{ROLLOUT}log_prob_use_dynamic_bsz": _PACKED,
        "critic.use_dynamic_bsz": _PACKED,
        "critic.ppo_max_token_len_per_gpu": f"set {ACTOR}ppo_max_token_len_per_gpu, which holds for the critic too",
        f"{ROLLOUT}log_prob_max_token_len_per_gpu": f"set {ACTOR}ppo_max_token_len_per_gpu, which holds here too",
        f"{MODEL}use_remove_padding": _PACKED,
        f"{ACTOR}ulysses_sequence_parallel_size": _ONE_PROCESS,
        f"{ACTOR}fsdp_config.fsdp_size": _ONE_PROCESS,
        "trainer.balance_batch": _ONE_PROCESS,
        "actor_rollout_ref.hybrid_engine": _ONE_PROCESS,
        "ray_init.num_cpus": _ONE_PROCESS,
        "ray_kwargs.ray_init.num_cpus": _ONE_PROCESS,
        f"{ACTOR}optim.lr_warmup_steps_ratio": f"set {ACTOR}optim.lr_warmup_steps",
        f"{ACTOR}optim.total_training_steps": "set trainer.total_training_steps",
        "warmup_ratio": f"set {ACTOR}optim.lr_warmup_steps",
        f"{ACTOR}shuffle": "mini-batches are always shuffled; leave it out",
        "algorithm.filter_groups.metric": "groups are compared by their reward; leave it out",
        "data.prompt_key": _FILE_FIELDS,
        "data.reward_fn_key": _FILE_FIELDS,
        "data.image_key": _FILE_FIELDS,
        "data.return_raw_chat": _FILE_FIELDS,
        "data.gen_batch_size": "set data.train_batch_size and algorithm.filter_groups.max_num_gen_batches",
        "data.custom_cls.path": "set agent.environment to file.py:Class",
        "reward_model.enable": _REWARD,
        "reward_model.reward_manager": _REWARD,
        "custom_reward_function.path": _REWARD,
        "custom_reward_function.name": _REWARD,
        "reward_funcs": _REWARD,
        "trainer.val_only": "use `practicum eval`",
        "trainer.default_hdfs_dir": "set trainer.default_local_dir",
        "trainer.log_val_generations": "every validation is in metrics.jsonl; `practicum report` shows episodes",
        "loss_type": _LOSS_TYPE,
        "per_device_train_batch_size": _TASKS,
        "gradient_accumulation_steps": _TASKS,
        "steps_per_generation": _TASKS,
        "generation_batch_size": _TASKS,
        "use_vllm": f"set {ROLLOUT}name=vllm",
        "vllm_mode": f"set {ROLLOUT}vllm.url for a server that runs; without it one is started",
        "vllm_gpu_memory_utilization": f"set {ROLLOUT}gpu_memory_utilization",
        "vllm_tensor_parallel_size": f"set {ROLLOUT}tensor_model_parallel_size",
        "report_to": "set trainer.logger, such as [console,wandb]",
        "logging_steps": "every step is logged; leave it out",
        "bf16": f"set {MODEL}dtype=bfloat16",
        "lora_r": f"set {MODEL}lora_rank",
        "lora_alpha": f"set {MODEL}lora_alpha",
    },
    SFTConfig: dict.fromkeys(
        ("max_length", "max_seq_length", "training.max_length", "training.max_seq_length"), _WINDOW
    )
    | {
        "packing": "sequences are always packed; leave it out",
        "assistant_only_loss": "only the tokens that the agent wrote are trained; leave it out",
        "completion_only_loss": "only the tokens that the agent wrote are trained; leave it out",
        "dataset_name": "set data.dataset_path to a JSON-lines file",
        "report_to": "metrics are in metrics.jsonl; leave it out",
        "logging_steps": "every update is logged; leave it out",
        "max_steps": "set training.num_epochs",
    },
    DPOConfig: dict.fromkeys(("max_length", "max_prompt_length", "max_completion_length"), _WINDOW)
    | {
        "dataset_name": "set data.dataset_path to a JSON-lines file",
        "report_to": "metrics are in metrics.jsonl; leave it out",
        "logging_steps": "every update is logged; leave it out",
        "max_steps": "set training.num_epochs",
    },
    PipelineConfig: {},
}
VALUES: Mapping[str, Mapping[str, str]] = {
    f"{ACTOR}kl_loss_type": {"k1": "kl", "k2": "mse", "k3": "low_var_kl"},
    "algorithm.kl_penalty": {"k1": "kl", "k2": "mse", "k3": "low_var_kl"},
    "training.loss": {"sigmoid": "dpo", "kto_pair": "kto"},
}
"""Other names of values."""
ENGINE_OF_BACKEND: Mapping[str, str | None] = {
    "async_verl": None, "verl": None, "async_vllm": "vllm", "vllm": "vllm", "client": "vllm",
    "transformers": "local", "local": "local", "async_local": "local",
}  # fmt: skip
"""The engine (actor_rollout_ref.rollout.name) for each of AgentFly's agent.backend values; None: whichever is set."""


def translate(schema: type, name: str, value: Any) -> list[tuple[str, Any]]:
    """Our keys and values for a name that may be another framework's; the name itself where it is not."""
    name = name.replace("agent.init_args.", "agent.")
    refused = REFUSED.get(schema, {}).get(name)
    if refused is not None:
        raise UserError(f"{name} has no meaning here: {refused}.")
    keys: tuple[str, ...] = (RENAMED.get(schema, {}).get(name, name),)
    if schema is TrainConfig and name in SEVERAL:
        keys = SEVERAL[name]
    return [(key, VALUES.get(key, {}).get(value, value) if isinstance(value, str) else value) for key in keys]


Schema = TypeVar("Schema")
RECIPES = Path(__file__).parent.parent / "recipes"
"""The recipes that come with the package."""
FREE_KEYS = ("agent.environment_args", "data.environment_args", "rl_training.shares", "trainer.required_figures")
"""Keys below which any name is allowed: options, figures or names of environments."""
MAPPING = "response_format"
"""Last part of the keys whose value may be a mapping, which is set as a whole: a later one replaces it."""
ROLES = ["agent", "roles"]
"""The group whose members are named by the user, each with the keys of a role."""
ENVIRONMENT_REFERENCE = re.compile(r"oc\.(?:env|decode)\s*:\s*(?:\$\{\s*oc\.env\s*:\s*)?['\"]?(\w+)")
SECRET_NAME = re.compile(r"TOKEN|SECRET|PASS|CREDENTIAL|AUTH|KEY", re.IGNORECASE)
"""Names of environment variables whose values are not for a run's folder."""
DEFAULT, MODEL, RECIPE, COMMAND_LINE = "default", "model", "recipe", "command line"
"""Where a value comes from; of two sources the later one wins."""
ARGUMENT = "argument"
"""The source of the values of a typed configuration."""


@dataclass(frozen=True)
class Resolved(Generic[Schema]):
    """A filled schema, and the source of each key that does not have its default."""

    config: Schema
    sources: dict[str, str]

    @property
    def chosen(self) -> set[str]:
        """Keys that somebody chose: in a recipe or on the command line."""
        return {key for key, source in self.sources.items() if source != MODEL}

    @property
    def has_recipe(self) -> bool:
        return any(source.startswith(RECIPE) for source in self.sources.values())

    def with_defaults(self, values: dict[str, Any]) -> Resolved[Schema]:
        """Return this configuration with a model's defaults for the keys that nobody set."""
        tree = OmegaConf.structured(self.config)
        missing = {key: value for key, value in values.items() if key not in self.sources}
        for key, value in missing.items():
            OmegaConf.update(tree, key, value)
        return Resolved(_as_object(tree), {**self.sources, **dict.fromkeys(missing, MODEL)})


def read_overrides(schema: type[Schema], overrides: list[str], recipes: Path = RECIPES) -> Resolved[Schema]:
    """Defaults, then the recipe (`recipe=NAME`), then the overrides; every number within its bounds."""
    tree = OmegaConf.structured(schema)
    parsed = _parse(overrides)
    sources: dict[str, str] = {}
    for override in parsed:
        if override.key_or_group == "recipe":
            name = str(override.value())
            for key, value in _read_recipe(name, recipes):
                sources |= dict.fromkeys(_set(schema, tree, key, value), f"{RECIPE} {Path(name).stem}")
    for key, value in _in_order(schema, parsed):
        sources |= dict.fromkeys(_set(schema, tree, key, value), COMMAND_LINE)
    _refuse_secrets(tree)
    config: Schema = _as_object(tree)
    check_fields(config)
    return Resolved(config, sources)


def _parse(overrides: list[str]) -> list[Override]:
    try:
        parsed: list[Override] = OverridesParser.create().parse_overrides(overrides)
    except OverrideParseException as error:
        syntax = "KEY=VALUE"
        if "=" in str(error.override).partition("=")[2]:
            syntax += """, and quotes around what holds '=' itself: "KEY='A=B'", "KEY=['A=B']" for a list"""
        raise UserError(f"Cannot read the override '{error.override}'; write {syntax}.") from None
    for override in parsed:
        if override.is_delete() or override.is_add() or override.is_force_add():
            raise UserError(f"'{override.input_line}': keys are set with KEY=VALUE; none can be added or removed.")
        if override.is_sweep_override():
            raise UserError(f"'{override.input_line}': a list is written in brackets, KEY=[A,B]; there are no sweeps.")
    return parsed


def _in_order(schema: type, parsed: Iterable[Override]) -> list[tuple[str, Any]]:
    """The overrides in the order in which they apply: a name that stands for several keys (verl's clip_ratio) before
    the keys themselves, whichever was written first. Two names of one key may not disagree."""
    pairs = [(str(override.key_or_group), override.value()) for override in parsed if override.key_or_group != "recipe"]
    written: dict[str, tuple[str, Any]] = {}
    for name, value in pairs:
        keys = translate(schema, name, value)
        if len(keys) != 1:
            continue
        key, translated = keys[0]
        other, before = written.setdefault(key, (name, translated))
        if other != name and before != translated:
            raise UserError(f"{other} and {name} are two names of {key} and have two values; give one.")
    return sorted(pairs, key=lambda pair: -len(translate(schema, *pair)))


def _refuse_secrets(tree: DictConfig) -> None:
    """Refuse references to environment variables that hold secrets: values are written into the run's folder."""
    for key, value in leaves(tree):
        for name in ENVIRONMENT_REFERENCE.findall(str(value)):
            if SECRET_NAME.search(name):
                raise UserError(
                    f"{key} refers to the environment variable {name}, and its value would be written into the run's "
                    "folder; leave it out: what needs a secret reads it from the environment itself."
                )


def _as_object(tree: DictConfig) -> Any:
    try:
        return OmegaConf.to_object(tree)
    except OmegaConfBaseException as error:
        raise UserError(f"{str(error).splitlines()[0]}.") from None


def schema_keys(schema: Any) -> list[str]:
    """Every key of a schema, dotted."""
    return [key for key, _ in leaves(OmegaConf.structured(schema))]


def _set(schema: type, tree: DictConfig, name: str, value: Any) -> list[str]:
    """Set the keys behind a name; returns these keys."""
    keys = []
    for key, translated in translate(schema, name, value):
        _set_key(schema, tree, key, translated)
        keys.append(key)
    return keys


def _key_hint(schema: type, tree: DictConfig, key: str) -> str:
    """The key that was probably meant: one that ends as the given name does (`rollout.n`), or the nearest one."""
    names = schema_keys(tree)
    matches = [name for name in (*names, *RENAMED[schema], *SEVERAL) if name.endswith(f".{key}")]
    if len(matches) == 1:
        return f" Did you mean '{matches[0]}'?"
    if matches:
        return _which(matches)
    if not difflib.get_close_matches(key, names, n=1, cutoff=0.9):
        # `trainer.total_steps`: every word of it is in `trainer.total_training_steps`
        section, _, last = key.rpartition(".")
        words = set(last.split("_"))
        siblings = [name.rpartition(".") for name in names if name.startswith(f"{section}.")]
        longer = [sibling for head, _, sibling in siblings if head == section and words < set(sibling.split("_"))]
        if len(words) > 1 and len(longer) == 1:
            return f" Did you mean '{section}.{longer[0]}'?"
    return _nearest_key(key, names) or " `--dry-run` prints every key, and docs/config.md says what they mean."


def _nearest_key(key: str, names: list[str]) -> str:
    """ " Did you mean ...?" for a misspelt key: what follows the part that exists is compared, because a section's name
    alone would make every key in it look near; "" where none is near."""
    parts = key.split(".")
    heads = [".".join([*parts[:depth], ""]) for depth in range(len(parts))]
    section = max((head for head in heads if any(name.startswith(head) for name in names)), key=len)
    by_rest: dict[str, list[str]] = {}
    for name in names:
        if name.startswith(section):
            rest = name.removeprefix(section)
            # In no section, `rollout.temprature` is also compared with the ends of keys.
            for ending in {rest} if section else {rest, ".".join(rest.split(".")[-len(parts) :])}:
                by_rest.setdefault(ending, []).append(name)
    close = close_name(key.removeprefix(section), by_rest)
    if close is None:
        return ""
    return f" Did you mean '{by_rest[close][0]}'?" if len(by_rest[close]) == 1 else _which(by_rest[close])


def _which(names: list[str]) -> str:
    return f" Which one: {', '.join(names)}?"


def _set_key(schema: type, tree: DictConfig, key: str, value: Any) -> None:
    node: Any = tree
    parts = key.split(".")
    if parts[:2] == ROLES and len(parts) == 4 and "roles" in tree.get("agent", ()) and parts[2] not in tree.agent.roles:
        # A role is named by its first key; which names there are is known when the environment is.
        tree.agent.roles[parts[2]] = OmegaConf.structured(tree.agent.roles._metadata.element_type)
    for depth, part in enumerate(parts):
        if not OmegaConf.is_dict(node) or (part not in node and not _is_free(parts[:depth])):
            raise UserError(f"Unknown key '{key}'.{_key_hint(schema, tree, key)}")
        if _is_free(parts[:depth]):
            break
        node = node[part]
    force = _is_free(parts[:-1])
    try:
        OmegaConf.update(tree, key, value, merge=parts[-1] != MAPPING, force_add=force)
    except OmegaConfBaseException as error:
        if isinstance(value, str):  # `trainer.logger=console`: a list of one
            with contextlib.suppress(OmegaConfBaseException):
                OmegaConf.update(tree, key, [value], merge=True, force_add=force)
                return
        raise UserError(f"{key}={value}: {str(error).splitlines()[0]}.") from None


def _is_free(path: list[str]) -> bool:
    """Whether any name is allowed below this path."""
    return ".".join(path[:2]) in FREE_KEYS


def recipe_names(folder: Path = RECIPES) -> list[str]:
    """The recipes in a folder, by name."""
    return sorted(path.stem for path in folder.glob("*.yaml"))


def _read_recipe(name: str, folder: Path, including: tuple[Path, ...] = ()) -> list[tuple[str, Any]]:
    """The keys and values of a recipe; those of the recipe that its key `recipe` names come before its own."""
    path = Path(name) if name.endswith((".yaml", ".yml")) else folder / f"{name}.yaml"
    if not path.is_file():
        names = recipe_names(folder)
        raise UserError(
            f"There is no recipe '{name}'.{nearest_name(name, names)} Recipes: {', '.join(names)}; "
            "or give the path of a YAML file."
        )
    try:
        content = OmegaConf.to_container(OmegaConf.load(path))
    except Exception as error:  # YAML's own errors have no common base with OmegaConf's
        raise UserError(f"Recipe '{path}' is not valid YAML: {str(error).splitlines()[0]}") from None
    if not isinstance(content, dict):
        return []
    base, including = content.pop("recipe", None), (*including, path.resolve())
    if base is None:
        return leaves(content)
    base_path = path.parent / str(base)
    base = str(base_path) if base_path.suffix in (".yaml", ".yml") else str(base)
    if (base_path if base_path.suffix else folder / f"{base}.yaml").resolve() in including:
        raise UserError(f"Recipe '{path}' is made from itself by way of 'recipe: {base}'; name another one.")
    return [*_read_recipe(base, folder, including), *leaves(content)]


def leaves(tree: Any, prefix: str = "") -> list[tuple[str, Any]]:
    """Every key below a tree of groups, dotted, with its value. Free keys and response formats are one value."""
    if OmegaConf.is_config(tree):
        tree = OmegaConf.to_container(tree)
    pairs: list[tuple[str, Any]] = []
    for key, value in tree.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and key != MAPPING and not _is_free(path.split(".")):
            pairs += leaves(value, f"{path}.")
        else:
            pairs.append((path, value))
    return pairs


def to_yaml(config: Any) -> str:
    """A filled schema as YAML, as it is written beside a run."""
    return OmegaConf.to_yaml(OmegaConf.structured(config))


def from_yaml(schema: type[Schema], text: str) -> Schema:
    """The filled schema that `to_yaml` wrote."""
    tree = OmegaConf.merge(OmegaConf.structured(schema), OmegaConf.create(text))
    assert isinstance(tree, DictConfig)
    config: Schema = _as_object(tree)
    return config


def quote(text: str) -> str:
    """A text in the quotes of the override grammar: quotes are escaped, and so are backslashes that precede one."""
    return "'" + re.sub(r"(\\*)('|$)", lambda match: match[1] * 2 + (match[2] and "\\'"), text) + "'"
