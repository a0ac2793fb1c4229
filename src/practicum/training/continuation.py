"""Whether a folder may be written into: it is empty, or holds the same run, which then goes on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from omegaconf import OmegaConf

from practicum.config import overrides
from practicum.config.dpo import DPOConfig
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.training.checkpoint import Checkpoints
from practicum.training.run import METRICS

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
"""Keys that a resumed RL run may have otherwise than the one it goes on from."""
SUPERVISED_MAY_CHANGE = ("training.save_steps", "training.save_total_limit", "training.eval_steps")
"""The same for supervised runs."""


def check_continuation(config: TrainConfig, folder: Path) -> None:
    """Refuse a folder that holds another experiment's run, or a finished one without a checkpoint.

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
    """Every leaf of a tree of mappings by its dotted key."""
    if not isinstance(tree, dict):
        return {prefix[:-1]: tree}
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flat(value, f"{prefix}{key}.")
    return flat


def check_supervised_continuation(config: SFTConfig | DPOConfig, folder: Path) -> None:
    """Refuse a folder that holds another run, or a finished one without a checkpoint of its end."""
    stored = folder / "config.yaml"
    if not stored.is_file():
        if (folder / METRICS).exists():
            raise UserError(f"'{folder}' already holds a run, and not its config.yaml; choose another output_dir.")
        return
    before, now = OmegaConf.load(stored), OmegaConf.structured(config)
    for key in overrides.schema_keys(type(config)):
        if key not in SUPERVISED_MAY_CHANGE and OmegaConf.select(before, key) != OmegaConf.select(now, key):
            raise UserError(
                f"'{folder}' holds a run with {key}={OmegaConf.select(before, key)}, "
                f"not {OmegaConf.select(now, key)}; choose another output_dir."
            )
    if config.training.save_steps <= 0 and (folder / "model").exists():
        raise UserError(f"'{folder}' already holds a finished run; choose another output_dir, or remove that folder.")
