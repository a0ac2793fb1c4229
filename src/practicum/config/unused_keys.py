"""Keys that do nothing with the rest of a configuration: an error where somebody chose another value than the default.

The tables here say what each key needs. A key with its default value is never refused: nothing is lost by it, and
commands that AgentFly publishes name some of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from omegaconf import OmegaConf

from practicum.config.dpo import DPOConfig
from practicum.config.pipeline import PipelineConfig
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.errors import UserError

ALGORITHM, ACTOR, MODEL = "algorithm.", "actor_rollout_ref.actor.", "actor_rollout_ref.model."
WITH_CRITIC = ("gae", "turn_gae")
READ_BY_ESTIMATORS: Mapping[str, tuple[str, ...]] = {
    f"{ALGORITHM}gamma": (*WITH_CRITIC, "reinforce_plus_plus"),
    f"{ALGORITHM}lam": WITH_CRITIC,
    f"{ALGORITHM}bootstrap_truncated": WITH_CRITIC,
    f"{ALGORITHM}norm_adv_by_std_in_grpo": ("grpo", "flow_grpo"),
    f"{ALGORITHM}row_weighted": ("flow_grpo",),
    f"{ALGORITHM}turn_rewards": (*WITH_CRITIC, "reinforce_plus_plus", "remax"),
}
"""Keys that only some advantage estimators read, and which."""


def _needs(keys: Iterable[str], other: str, value: Any = True) -> dict[str, tuple[str, Any]]:
    return dict.fromkeys(keys, (other, value))


TRAIN_NEEDS: Mapping[str, tuple[str, Any]] = {
    **_needs((MODEL + key for key in ("lora_alpha", "lora_dropout", "target_modules")), f"{MODEL}lora_rank"),
    **_needs((f"{ALGORITHM}kl_ctrl.type", f"{ALGORITHM}kl_ctrl.kl_coef"), f"{ALGORITHM}use_kl_in_reward"),
    **_needs((f"{ALGORITHM}kl_ctrl.target_kl", f"{ALGORITHM}kl_ctrl.horizon"), f"{ALGORITHM}kl_ctrl.type", "adaptive"),
    **_needs((f"{ALGORITHM}kl_penalty",), f"{ALGORITHM}use_kl_in_reward"),
    **_needs((f"{ACTOR}kl_loss_type", f"{ACTOR}kl_loss_coef"), f"{ACTOR}use_kl_loss"),
    **_needs((f"{ACTOR}optim.min_lr_ratio",), f"{ACTOR}optim.warmup_style", "cosine"),
    **_needs((f"{ALGORITHM}filter_groups.max_num_gen_batches",), f"{ALGORITHM}filter_groups.enable"),
    **_needs((f"{ALGORITHM}offline.top_percent",), f"{ALGORITHM}offline.method", "bandit"),
    **_needs((f"data.curriculum.{key}" for key in ("field", "threshold", "window")), "data.curriculum.enable"),
    **_needs(("trainer.resume_from_path",), "trainer.resume_mode", "resume_path"),
}
"""Keys of `practicum train` that do nothing unless another key has a value (True: any but 0, false and null)."""
LORA_KEYS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_dora", "use_rslora")
SUPERVISED_NEEDS: Mapping[str, tuple[str, Any]] = {
    **_needs((f"training.{key}" for key in LORA_KEYS), "training.use_lora"),
    **_needs(("training.min_lr_ratio",), "training.scheduler_type", "cosine"),
    **_needs(("data.include_failed", "data.include_held_out", "data.pairing"), "data.episodes"),
}
"""The same of `practicum sft`, `dpo` and the SFT stage of `practicum pipeline`."""


def check_unused(config: TrainConfig, chosen: Set[str]) -> None:
    """Refuse chosen keys of `practicum train` that nothing would read."""
    estimator = config.algorithm.adv_estimator
    for key, readers in READ_BY_ESTIMATORS.items():
        if key in chosen and estimator not in readers and is_changed(config, key):
            raise UserError(
                f"{key} does nothing with algorithm.adv_estimator={estimator}: only {' and '.join(readers)} "
                f"read{'s' if len(readers) == 1 else ''} it; leave it out."
            )
    _check_needs(config, TRAIN_NEEDS, chosen)


def check_unused_supervised(config: SFTConfig | DPOConfig | PipelineConfig, chosen: Set[str]) -> None:
    """Refuse chosen keys of supervised fine-tuning that nothing would read."""
    _check_needs(config, SUPERVISED_NEEDS, chosen)


def is_changed(config: Any, key: str) -> bool:
    """Whether a key has another value than its schema's default."""
    return bool(_value(config, key) != _value(type(config), key))


def _check_needs(config: Any, needs: Mapping[str, tuple[str, Any]], chosen: Set[str]) -> None:
    for key, (other, wanted) in needs.items():
        if key not in chosen or not is_changed(config, key):
            continue
        value = _value(config, other)
        if (not value) if wanted is True else value != wanted:
            suffix = "" if wanted is True else f"={wanted}"
            raise UserError(
                f"{key}={_value(config, key)} does nothing without {other}{suffix}; set that too, or leave it out."
            )


def _value(config: Any, key: str) -> Any:
    return OmegaConf.select(OmegaConf.structured(config), key)
