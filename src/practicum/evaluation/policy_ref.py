"""A policy by name: a scripted one, a server's model, a model, an adapter, or the last stage in a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.data.checkpoint_folder import newest_checkpoint
from practicum.engines.local.engine import LocalEngine
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.models.decoder import Decoder
from practicum.registry import environment_maker
from practicum.rollout_settings import RolloutSettings
from practicum.rollout_setup import SCRIPTED, RolloutSetup

STAGE_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "rl": ("rl/model", "rl_final", "rl"),
    "dpo": ("dpo/model", "dpo_final", "dpo"),
    "sft": ("sft/model", "sft_final", "sft"),
    "base": ("base/model", "base"),
}
"""Where a run's folder may hold the model of each stage, the last stage first: the most trained one is evaluated."""


@dataclass(frozen=True)
class PolicyRef:
    """A resolved policy. With an `adapter`, `model` is its base model."""

    model: str
    stage: str
    """`scripted`, `server`, `model`, a stage of STAGE_FOLDERS, or the name of a checkpoint."""
    adapter: str | None = None
    run: str | None = None
    """Folder of the training run that holds its metrics.jsonl."""

    @property
    def name(self) -> str:
        return self.adapter or self.model

    def make_setup(self, settings: RolloutSettings, default_temperature: float) -> RolloutSetup:
        """The environment of `settings` with this policy acting in it; a local model is loaded now."""
        if self.adapter is None:
            return replace(settings, policy=self.model).make_setup(default_temperature)
        device, template = settings.find_device(), settings.template
        make_environment, format = environment_maker(
            settings.environment, settings.format, settings.environment_options
        )
        loaded = lora.load_adapter(loader.load(self.model, device.dtype, device.device), self.adapter, trainable=False)
        trained_template = Path(self.adapter) / "chat_template.jinja"
        if template is None and trained_template.is_file():
            loaded.tokenizer.chat_template = trained_template.read_text(encoding="utf-8")
        renderer = Renderer(loaded.tokenizer, template, loaded.end_ids)
        engine = LocalEngine(Decoder(loaded.model), renderer, max_batch=device.batch_size)
        sampling = settings.sampling(default_temperature)
        agent = Agent(format=format, max_turns=settings.max_turns, sampling=sampling)
        return RolloutSetup(make_environment, make_environment(), agent, engine, renderer, self.model, template)


def find(policy: str, url: str | None = None, base: str | None = None) -> PolicyRef:
    """Resolve a policy's name. In a folder that is no model itself, the stages RL, DPO, SFT, base are searched."""
    if url is not None:
        return PolicyRef(policy, "server")
    if policy in SCRIPTED:
        return PolicyRef(policy, "scripted")
    folder = Path(policy).expanduser()
    if not folder.is_dir():
        return PolicyRef(policy, "model")
    if _is_model(folder):
        return _model_in(folder, "model", base)
    for stage, subfolders in STAGE_FOLDERS.items():
        for subfolder in subfolders:
            if _is_model(folder / subfolder):
                return _model_in(folder / subfolder, stage, base)
    if _is_model(folder / "model"):  # what `train`, `sft` and `dpo` write into their folder
        return _model_in(folder / "model", "model", base)
    checkpoint = newest_checkpoint(folder)[0]
    if checkpoint is not None and _is_model(checkpoint / "actor"):
        return _model_in(checkpoint / "actor", checkpoint.name, base, folder)
    raise UserError(
        f"'{policy}' holds no model: neither it nor its rl/, dpo/, sft/, base/, model/ or newest checkpoint has a "
        "config.json or adapter_config.json."
    )


def _is_model(folder: Path) -> bool:
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()


def _model_in(folder: Path, stage: str, base: str | None, run: Path | None = None) -> PolicyRef:
    """The model or adapter in a folder; its run's metrics are beside or above it."""
    run_folders = [run] if run is not None else [folder, folder.parent]
    metrics = next((str(path) for path in run_folders if (path / "metrics.jsonl").is_file()), None)
    if (folder / "config.json").is_file():
        return PolicyRef(str(folder), stage, None, metrics)
    path = folder / "adapter_config.json"
    try:
        base_model = base or json.loads(path.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base_model = None
    if not isinstance(base_model, str) or not base_model:
        raise UserError(f"'{path}' does not say which model the adapter belongs to; name it with --base.")
    return PolicyRef(base_model, stage, str(folder), metrics)
