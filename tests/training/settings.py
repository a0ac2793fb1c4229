"""Settings of small runs on the tiny model: the defaults are for large models, so everything that counts is given."""

from __future__ import annotations

from typing import Any

from practicum.training.critic import CriticSettings
from practicum.training.dpo import DPOSettings
from practicum.training.estimators import EstimatorSettings
from practicum.training.objective import Objective
from practicum.training.settings import RLSettings
from practicum.training.sft import SFTSettings

POLICY_GRADIENT = Objective("pg", entropy_coeff=0.0, kl_loss_coef=0.0)
"""The clipped policy gradient alone."""
CRITIC = CriticSettings(lr=1e-3)


def policy_gradient(**changes: Any) -> Objective:
    """The policy gradient with nothing else but what is given."""
    return Objective("pg", **{"entropy_coeff": 0.0, "kl_loss_coef": 0.0, "kl_loss_type": "low_var_kl", **changes})


def rl_settings(**changes: Any) -> RLSettings:
    """GRPO without entropy bonus and KL, at a rate that moves the tiny model."""
    small: dict[str, Any] = {
        "adv_estimator": "grpo",
        "estimation": EstimatorSettings(bootstrap_truncated=True),
        "lr": 3e-4,
        "lr_warmup_steps": 5,
        "objective": POLICY_GRADIENT,
        "critic": CRITIC,
        "mismatch_limit": 0.1,
    }
    return RLSettings(**{**small, **changes})


def sft_settings(**changes: Any) -> SFTSettings:
    """One epoch in batches of eight, at a rate that moves the tiny model."""
    small = {"num_epochs": 1, "batch_size": 8, "gradient_accumulation_steps": 1, "learning_rate": 2e-3,
             "warmup_steps": 50, "seed": 0}  # fmt: skip
    return SFTSettings(**{**small, **changes})


def dpo_settings(**changes: Any) -> DPOSettings:
    """Batches of 16 pairs without weight decay."""
    return DPOSettings(
        **{"batch_size": 16, "gradient_accumulation_steps": 1, "weight_decay": 0.0, "seed": 0, **changes}
    )
