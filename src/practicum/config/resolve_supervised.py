"""From overrides to a checked configuration of `practicum sft` and `dpo`, and the SFT stage of `practicum pipeline`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from pathlib import Path
from typing import Any, TypeVar

from practicum.config.dpo import DPOConfig
from practicum.config.fields import check_fields
from practicum.config.overrides import ARGUMENT, RECIPES, Resolved, read_overrides
from practicum.config.pipeline import PipelineConfig
from practicum.config.resolve import (
    changed_keys,
    check_needs,
    check_ranks,
    check_strategy,
    keys_needing,
    with_model_defaults,
)
from practicum.config.sft import SFTConfig
from practicum.errors import UserError

LORA_KEYS = ("lora_r", "lora_alpha", "lora_dropout", "lora_target_modules", "use_dora", "use_rslora")
SUPERVISED_NEEDS: Mapping[str, tuple[str, Any]] = {
    **keys_needing((f"training.{key}" for key in LORA_KEYS), "training.use_lora"),
    **keys_needing(("training.min_lr_ratio",), "training.scheduler_type", "cosine"),
    **keys_needing(("data.include_failed", "data.include_held_out", "data.pairing", "data.roles"), "data.episodes"),
}
"""The same of `practicum sft`, `dpo` and the SFT stage of `practicum pipeline`."""
NOT_DPO = {
    "training.warmup_steps": "it warms up over a share of all updates, training.warmup_ratio",
    "training.eval_steps": "all pairs are trained on, so there is nothing to evaluate on",
    "data.val_share": "all pairs are trained on",
    "data.group_by_task": "pairs are learned one by one",
    "data.include_failed": "failed episodes are what the better ones are compared with",
}
NOT_DPO_ROWS = {
    "data.pairing": "rows are pairs already",
    "data.roles": "rows do not say whose replies they are",
    "data.include_held_out": "rows do not say which split they are of",
}
"""Keys without a meaning for `practicum dpo`, or for its rows, and why."""
Supervised = TypeVar("Supervised", SFTConfig, DPOConfig)


def resolve_supervised(
    schema: type[Supervised], config: Supervised | Resolved[Supervised] | Iterable[str], recipes: Path = RECIPES
) -> Resolved[Supervised]:
    """The configuration of `practicum sft` or `practicum dpo`, checked key by key; a typed one is used as it is, and
    one that is resolved already is returned."""
    if isinstance(config, Resolved):
        return config
    if isinstance(config, Iterable):
        resolved = with_model_defaults(read_overrides(schema, list(config), recipes))
    else:
        check_fields(config)
        resolved = Resolved(config, dict.fromkeys(changed_keys(config), ARGUMENT))
    if isinstance(resolved.config, DPOConfig):
        unread = NOT_DPO | (NOT_DPO_ROWS if resolved.config.data.dataset_path is not None else {})
        for key, reason in unread.items():
            if key in resolved.chosen:
                raise UserError(f"{key} means nothing to `practicum dpo`: {reason}; leave it out.")
    check_supervised(resolved.config)
    check_ranks(resolved.config, resolved.chosen)
    check_unused_supervised(resolved.config, resolved.chosen)
    return resolved


def check_supervised(config: SFTConfig | DPOConfig) -> None:
    """Refuse what cannot be trained, before anything is loaded."""
    if config.training.fp16:
        raise UserError("training.fp16=true needs loss scaling, which is not built; use training.bf16=true.")
    check_strategy(config.training.strategy, "training.strategy")
    if config.training.strategy == "fsdp2" and (config.model.load_in_8bit or config.model.load_in_4bit):
        raise UserError("training.strategy=fsdp2 does not shard quantised weights; use ddp, or load them as they are.")
    if config.model.adapter_path and not config.training.use_lora:
        raise UserError(
            "model.adapter_path goes on with an adapter, and training.use_lora=false (--full) trains all weights: "
            "leave one of them out, or merge the adapter first (`practicum merge`)."
        )


def check_unused_supervised(config: SFTConfig | DPOConfig | PipelineConfig, chosen: Set[str]) -> None:
    """Refuse chosen keys of supervised fine-tuning that nothing would read."""
    check_needs(config, SUPERVISED_NEEDS, chosen)
