"""Checkpoints: everything that the next step depends on, written atomically, hashed, and checked before use.

`<run>/global_step_N/` holds `actor/` (a Hugging Face folder), the moments of the optimizer, the critic, `state.json`,
and `manifest.json` with the SHA-256 of every file. It is written to a temporary folder and renamed; a checkpoint that
is incomplete or was edited does not match its manifest, and the one before it is used.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Collection, Iterable, Mapping
from pathlib import Path
from typing import Any

import torch
from omegaconf import OmegaConf
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from practicum import __version__
from practicum.config import overrides
from practicum.config.dpo import DPOConfig
from practicum.config.overrides import MODEL as FROM_MODEL
from practicum.config.overrides import Resolved
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.data.run_folder import (
    METRICS,
    UNFINISHED,
    checkpoint_path,
    checkpoint_steps,
    damage_of,
    newest_checkpoint,
    seal,
    sync,
    write_atomic,
)
from practicum.errors import UserError
from practicum.rollout_setup import ROLES
from practicum.training import ranks
from practicum.training.critic import Critic
from practicum.training.trainable_policy import TrainablePolicy

PACKAGE = Path(__file__).parent.parent
GIT_TIMEOUT_SECONDS = 10.0


@functools.cache
def source_version() -> dict[str, Any]:
    """Version of the package and of Python, and the machine; `commit` is null where the package is not under Git,
    `changed` says whether files of the package differ from that commit."""
    tracked = _git("ls-files", "--error-unmatch", "__init__.py") is not None
    commit = _git("rev-parse", "HEAD") if tracked else None
    changed = bool(_git("status", "--porcelain", "--", ".")) if commit else None
    python = platform.python_version()
    return {"practicum": __version__, "commit": commit, "changed": changed, "python": python, "machine": _machine()}


def _machine() -> str:
    """The system, its cores and its GPUs, in words."""
    gpus = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
    names = [f"{gpus.count(name)} × {name}" for name in dict.fromkeys(gpus)]
    return ", ".join([f"{platform.system()} {platform.machine()}", f"{os.cpu_count()} cores", *names])


def _git(*arguments: str) -> str | None:
    """The output of a Git command in the package's folder; None where it fails."""
    try:
        result = subprocess.run(
            ["git", "-C", str(PACKAGE), *arguments],
            capture_output=True, text=True, timeout=GIT_TIMEOUT_SECONDS, check=True,
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return result.stdout.strip()


RANK_KEYS = ("trainer.nnodes", "trainer.n_gpus_per_node")
"""Numbers of ranks: a run may go on with others, but they are part of the name of a run that has none."""
MAY_CHANGE = (
    *RANK_KEYS,
    "actor_rollout_ref.actor.strategy",
    "actor_rollout_ref.actor.fsdp_config.param_offload",
    "actor_rollout_ref.actor.fsdp_config.optimizer_offload",
    "actor_rollout_ref.ref.fsdp_config.param_offload",
    "agent.concurrency",
    "agent.deadlines.open",
    "agent.deadlines.tool",
    "agent.deadlines.judge",
    "trainer.total_training_steps",
    "trainer.total_epochs",
    "trainer.logger",
    "trainer.log_file",
    "trainer.log_file_max_bytes",
    "trainer.log_file_backups",
    "trainer.save_freq",
    "trainer.save_total_limit",
    "trainer.resume_mode",
    "trainer.resume_from_path",
    "trainer.default_local_dir",
    "trainer.early_stopping_patience",
    "actor_rollout_ref.rollout.num_workers",
    "actor_rollout_ref.rollout.min_workers",
    "actor_rollout_ref.rollout.vllm.url",
    "actor_rollout_ref.rollout.vllm.python",
    "actor_rollout_ref.rollout.vllm.port",
    "actor_rollout_ref.rollout.vllm.start_timeout",
)
"""Keys that a resumed RL run may have otherwise than the one it goes on from."""
SUPERVISED_MAY_CHANGE = (
    "training.strategy", "training.nnodes", "training.n_gpus_per_node", "training.save_steps",
    "training.save_total_limit", "training.eval_steps",
)  # fmt: skip
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
    before, now = _compared(OmegaConf.load(stored)), _compared(OmegaConf.structured(config))
    changed = [key for key in sorted({*before, *now}) if before.get(key) != now.get(key)]
    refused = [key for key in changed if key not in MAY_CHANGE]
    refused.sort(key=lambda key: key != "actor_rollout_ref.model.path")  # another model brings other defaults
    if refused:
        key = refused[0]
        others = f" ({len(refused)} keys differ)" if len(refused) > 1 else ""
        raise UserError(
            f"'{folder}' holds a run with {key}={before.get(key)}, not {now.get(key)}{others}; "
            "choose another trainer.experiment_name."
        )


def keep_stored_defaults(resolved: Resolved[TrainConfig], folder: Path) -> None:
    """Take over from an unfinished run the values that were not chosen and that the defaults of `tiny` would change.

    So runs that began before `tiny` had defaults of its own go on with those that they have.
    """
    stored = folder / "config.yaml"
    if not stored.is_file():
        return
    before, defaults = OmegaConf.load(stored), OmegaConf.structured(TrainConfig)
    tree = OmegaConf.structured(resolved.config)
    for key in (key for key, source in resolved.sources.items() if source == FROM_MODEL):
        value = OmegaConf.select(before, key)
        if value == OmegaConf.select(defaults, key) != OmegaConf.select(tree, key):
            group, _, name = key.rpartition(".")
            setattr(functools.reduce(getattr, group.split("."), resolved.config), name, value)


def continued_values(config: TrainConfig) -> dict[str, Any]:
    """What a run that is resumed must have the same, by key; device and dtype may differ, since they may be `auto`."""
    may_change = (key for key in MAY_CHANGE if key not in RANK_KEYS)
    skipped = (*may_change, "trainer.project_name", "trainer.experiment_name", "trainer.device")
    values = _compared(OmegaConf.structured(config))
    return {key: value for key, value in values.items() if key not in (*skipped, "actor_rollout_ref.model.dtype")}


def _compared(tree: Any) -> dict[str, Any]:
    """The values of a configuration by key, as far as two runs are compared by them. A key that was added since has its
    default; the model has one name, whichever of its keys it was given by."""
    defaults = _flat(OmegaConf.to_container(OmegaConf.structured(TrainConfig)))
    present = _flat(OmegaConf.to_container(tree))
    free_keys = (*overrides.FREE_KEYS, ".".join(overrides.ROLES))
    free = {key: value for key, value in present.items() if key.startswith(free_keys)}
    values = {**defaults, **{key: value for key, value in present.items() if key in defaults}, **free}
    path, name = "actor_rollout_ref.model.path", "agent.model_name_or_path"
    values[path] = values[path] or values.pop(name) or "tiny"
    values.pop(name, None)
    return values


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
    defaults = OmegaConf.structured(type(config))
    for key in overrides.schema_keys(type(config)):
        was = OmegaConf.select(before, key, default=OmegaConf.select(defaults, key))  # the key may be new
        if key not in SUPERVISED_MAY_CHANGE and was != OmegaConf.select(now, key):
            raise UserError(
                f"'{folder}' holds a run with {key}={was}, not {OmegaConf.select(now, key)}; choose another output_dir."
            )
    if config.training.save_steps <= 0 and (folder / "model").exists():
        raise UserError(f"'{folder}' already holds a finished run; choose another output_dir, or remove that folder.")


def record_version(folder: Path, step: int) -> None:
    """Note in version.json which code continues the run from `step`, unless it is the one that was noted last."""
    path, version = folder / "version.json", source_version()
    try:
        records = json.loads(path.read_text())
    except (OSError, ValueError):
        records = []
    if not records or {**records[-1], "from_step": 0} != {"from_step": 0, **version}:
        write_atomic(path, (json.dumps([*records, {"from_step": step, **version}], indent=1) + "\n").encode())


LATEST = "latest_checkpointed_iteration.txt"
ABANDONED = "abandoned_"
"""Beginning of the names of checkpoints that a resumption from an older one has left behind."""


class Checkpoints:
    """The checkpoints of one run folder; at most `limit` of the newest are kept, and the best one in addition."""

    def __init__(self, folder: Path, limit: int | None = None) -> None:
        if limit is not None and limit < 1:
            raise UserError("trainer.save_total_limit must be at least 1, or null to keep all checkpoints.")
        self.folder = folder
        self.limit = limit

    def steps(self) -> list[int]:
        """Steps that have a checkpoint folder, sound or not, oldest first."""
        return checkpoint_steps(self.folder)

    def path(self, step: int) -> Path:
        return checkpoint_path(self.folder, step)

    def save(
        self,
        step: int,
        policy: TrainablePolicy,
        critic: Critic | None,
        state: Mapping[str, Any],
        best: int | None = None,
    ) -> Path:
        """Write the checkpoint of a step, and delete old ones beyond the limit, except that of step `best`."""
        target = self.path(step)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self.folder, prefix=UNFINISHED) as scratch:
                folder = Path(scratch) / target.name
                folder.mkdir()
                _write_policy(policy, folder)
                for name, model in policy.role_policies.items():
                    _write_policy(model, folder / ROLES / name)
                if critic is not None:
                    save_file(_critic_weights(critic), folder / "critic.safetensors")
                    moments = _moments(critic.optimizer, _by_index(critic.parameters))
                    save_file(moments, folder / "critic_optimizer.safetensors")
                (folder / "state.json").write_text(json.dumps({"step": step, **state}, sort_keys=True, allow_nan=False))
                seal(folder)
                if target.exists():
                    shutil.rmtree(target)
                os.replace(folder, target)
                sync(self.folder)
        except (OSError, SafetensorError) as error:
            raise UserError(f"Cannot write the checkpoint '{target}' ({error}); free some space.") from error
        self.complete(step, best)
        return target

    def complete(self, step: int, best: int | None) -> None:
        """Name the newest checkpoint and delete old ones: the last part of `save`, which a killed process left out."""
        text = f"{step}\n".encode()
        latest = self.folder / LATEST
        if not latest.is_file() or latest.read_bytes() != text:
            write_atomic(latest, text)
        self._prune(step, best)

    def abandon_after(self, step: int) -> list[int]:
        """Rename the checkpoints after a step, so that nothing goes on from them; returns their steps."""
        abandoned = [other for other in self.steps() if other > step]
        for other in abandoned:
            path = self.path(other)
            target, suffix = path.with_name(f"{ABANDONED}{path.name}"), 1
            while target.exists():
                suffix += 1
                target = path.with_name(f"{ABANDONED}{path.name}_{suffix}")
            path.rename(target)
        return abandoned

    def newest(self) -> tuple[Path | None, list[str]]:
        """The newest sound checkpoint, and a sentence for each damaged one that was passed over."""
        return newest_checkpoint(self.folder)

    def _prune(self, newest: int, best: int | None) -> None:
        if self.limit is None:
            return
        older = [step for step in self.steps() if step != best and step <= newest]
        for step in older[: -self.limit]:
            shutil.rmtree(self.path(step), ignore_errors=True)


def load(path: Path, policy: TrainablePolicy, critic: Critic | None) -> dict[str, Any]:
    """Load the weights and moments of a checkpoint into a policy and its critic; returns the rest of its state."""
    damage = damage_of(path)
    if damage is not None:
        raise UserError(f"Checkpoint '{path}' cannot be used ({damage}); point at another one.")
    state: dict[str, Any] = json.loads((path / "state.json").read_text())
    _read_policy(policy, path)
    for name, model in policy.role_policies.items():
        _read_policy(model, path / ROLES / name)
    if critic is not None:
        if not (path / "critic.safetensors").exists():
            raise UserError(f"Checkpoint '{path}' has no critic; resume it with the estimator it was made with.")
        tensors = load_file(path / "critic.safetensors")
        _copy_into(critic.head, {k[5:]: v for k, v in tensors.items() if k.startswith("head.")}, path)
        if critic.own is not None:
            _copy_into(critic.own.model, {k[6:]: v for k, v in tensors.items() if k.startswith("model.")}, path)
        moments = load_file(path / "critic_optimizer.safetensors")
        _restore_moments(critic.optimizer, _by_index(critic.parameters), moments, path)
    return state


def broadcast_weights(policy: TrainablePolicy, critic: Critic | None) -> None:
    """Give the trained weights and the moments of rank 0 to all ranks."""
    for model in policy.models:
        if model.unsharded_copy is not None:
            model.unsharded_copy.scatter(model.trained_parameters(), model.learner.optimizer, model.decoder.device)
        else:
            _broadcast(model.trained_parameters(), model.learner.optimizer)
    if critic is not None:
        _broadcast(_by_index(critic.parameters), critic.optimizer)


@torch.no_grad()
def _broadcast(parameters: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer) -> None:
    device = next(iter(parameters.values())).device
    for name, value in ranks.broadcast_tensors(parameters, device):
        parameters[name].copy_(value)
    moments = dict(ranks.broadcast_tensors(_moments(optimizer, parameters), device))
    if ranks.own_rank() > 0:
        _restore_moments(optimizer, parameters, moments, Path("rank 0"))


def _write_policy(policy: TrainablePolicy, folder: Path) -> None:
    """Write weights (or the adapter) and the moments of the optimizer."""
    policy.write(folder / "actor")
    if policy.unsharded_copy is not None:
        moments = policy.unsharded_copy.moments
    else:
        moments = _moments(policy.learner.optimizer, policy.trained_parameters())
    save_file(moments, folder / "actor_optimizer.safetensors")


def _read_policy(policy: TrainablePolicy, path: Path) -> None:
    """Load what `_write_policy` wrote."""
    if not (path / "actor").is_dir():
        raise UserError(f"Checkpoint '{path.parent.parent}' has no adapter of the role '{path.name}'.")
    loaded, moments = policy.unsharded, load_file(path / "actor_optimizer.safetensors")
    if loaded.adapter is not None:
        _copy_adapter(loaded.adapter, path)
    else:
        _copy_into(loaded.model, _all_tensors(path / "actor"), path)
    if policy.unsharded_copy is not None:
        _check_names(policy.trained_parameters(), moments, path)
        policy.unsharded_copy.moments = moments
    else:
        _restore_moments(policy.learner.optimizer, policy.trained_parameters(), moments, path)


def _by_index(parameters: list[nn.Parameter]) -> dict[str, nn.Parameter]:
    return {str(index): parameter for index, parameter in enumerate(parameters)}


def _moments(optimizer: torch.optim.Optimizer, names: Mapping[str, nn.Parameter]) -> dict[str, Tensor]:
    """An optimizer's state as flat tensors `<parameter>/<moment>`."""
    return {
        f"{name}/{key}": value.detach().clone().contiguous()
        for name, parameter in names.items()
        for key, value in optimizer.state.get(parameter, {}).items()
    }


def _restore_moments(
    optimizer: torch.optim.Optimizer, names: Mapping[str, nn.Parameter], tensors: Mapping[str, Tensor], path: Path
) -> None:
    _check_names(names, tensors, path)
    optimizer.state.clear()
    for full, value in tensors.items():
        name, _, key = full.rpartition("/")
        parameter = names[name]
        optimizer.state[parameter][key] = value.to(parameter.device)


def _check_names(names: Collection[str], tensors: Iterable[str], path: Path) -> None:
    """Refuse moments of weights that are not trained here."""
    for name in (full.rpartition("/")[0] for full in tensors):
        if name not in names:
            raise UserError(f"Checkpoint '{path}' belongs to another model: it has moments for '{name}'.")


def _critic_weights(critic: Critic) -> dict[str, Tensor]:
    tensors = {f"head.{name}": value for name, value in critic.head.state_dict().items()}
    if critic.own is not None:  # tied tensors are written twice: safetensors does not store shared memory
        tensors |= {f"model.{name}": value for name, value in critic.own.model.state_dict().items()}
    return {name: value.detach().clone().contiguous() for name, value in tensors.items()}


def _all_tensors(folder: Path) -> dict[str, Tensor]:
    tensors: dict[str, Tensor] = {}
    for file in sorted(folder.glob("*.safetensors")):
        tensors |= load_file(file)
    return tensors


def _copy_adapter(adapter: Any, path: Path) -> None:
    import peft

    file = path / "actor" / "adapter_model.safetensors"
    if not file.exists():
        raise UserError(f"Checkpoint '{path}' holds a whole model, not an adapter; resume it without LoRA.")
    loaded: Any = peft.set_peft_model_state_dict(adapter, load_file(file))
    if loaded.unexpected_keys:
        raise UserError(f"Checkpoint '{path}' holds an adapter of another shape ({loaded.unexpected_keys[0]}).")


@torch.no_grad()
def _copy_into(module: nn.Module, tensors: Mapping[str, Tensor], path: Path) -> None:
    """Copy in place, since the engine and the optimizer have references to these tensors."""
    targets = module.state_dict()
    unknown = set(tensors) - set(targets)
    pointers = {targets[name].data_ptr() for name in tensors if name in targets}
    missing = [name for name, value in targets.items() if name not in tensors and value.data_ptr() not in pointers]
    if unknown or missing:
        raise UserError(f"Checkpoint '{path}' belongs to another model ({len(unknown) + len(missing)} tensors differ).")
    for name, value in tensors.items():
        if targets[name].shape != value.shape:
            raise UserError(f"Checkpoint '{path}' belongs to another model ('{name}' has another shape).")
        targets[name].copy_(value)
