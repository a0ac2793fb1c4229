"""A model by name, the same for every command: a built-in or hub name, a model folder, an adapter, a checkpoint, or the
last stage in a run's folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.data.checkpoint_folder import CHECKPOINT_NAME, newest_checkpoint
from practicum.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from practicum.models.loader import LoadedModel

STAGE_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "rl": ("rl/model", "rl_final", "rl"),
    "dpo": ("dpo/model", "dpo_final", "dpo"),
    "sft": ("sft/model", "sft_final", "sft"),
    "base": ("base/model", "base"),
}
"""Where a run's folder may hold the model of each stage, the last stage first: the most trained one is taken."""


@dataclass(frozen=True)
class ModelRef:
    """A resolved model. With an `adapter`, `model` is its base model."""

    model: str
    stage: str = "model"
    """`model`, a stage of STAGE_FOLDERS, or the name of a checkpoint."""
    adapter: str | None = None
    run: str | None = None
    """Folder of the training run that holds its metrics.jsonl."""

    @property
    def name(self) -> str:
        return self.adapter or self.model

    def load(
        self, dtype: torch.dtype, device: str = "cpu", *, trainable: bool = False, quantised: Any = None
    ) -> LoadedModel:
        """The model, with its adapter where it is one (`trainable`: to be trained further)."""
        from practicum.models import loader, lora  # slow to import: not for names alone

        loaded = loader.load(self.model, dtype, device, quantised)
        if self.adapter is None:
            return loaded
        loaded = lora.load_adapter(loaded, self.adapter, trainable=trainable)
        self._set_template(loaded.tokenizer)
        return loaded

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        from practicum.models import loader

        tokenizer = loader.load_tokenizer(self.model)
        self._set_template(tokenizer)
        return tokenizer

    def _set_template(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Give the tokenizer the chat template that the adapter was trained under."""
        trained_template = Path(self.adapter or "") / "chat_template.jinja"
        if self.adapter is not None and trained_template.is_file():
            tokenizer.chat_template = trained_template.read_text(encoding="utf-8")


def resolve_model(name: str, base: str | None = None) -> ModelRef:
    """Find the model that a name stands for; `base` is the base model of an adapter that does not name it.

    In a folder that is no model itself, the stages RL, DPO, SFT and base are searched, then model/ and the newest
    checkpoint. A name that is no folder is returned as it is: loading it says what is wrong with it.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return ModelRef(name)
    if is_model(folder):
        return _model_in(folder, "model", base)
    if CHECKPOINT_NAME.fullmatch(folder.name) and is_model(folder / "actor"):
        return _model_in(folder / "actor", folder.name, base, folder.parent)
    for stage, subfolders in STAGE_FOLDERS.items():
        for subfolder in subfolders:
            if is_model(folder / subfolder):
                return _model_in(folder / subfolder, stage, base)
    if is_model(folder / "model"):  # what `train`, `sft` and `dpo` write into their folder
        return _model_in(folder / "model", "model", base)
    checkpoint = newest_checkpoint(folder)[0]
    if checkpoint is not None and is_model(checkpoint / "actor"):
        return _model_in(checkpoint / "actor", checkpoint.name, base, folder)
    raise UserError(
        f"'{name}' holds no model: neither it nor its rl/, dpo/, sft/, base/, model/ or newest checkpoint has a "
        "config.json or adapter_config.json."
    )


def is_model(folder: Path) -> bool:
    """Whether a folder is a model or an adapter."""
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()


def _model_in(folder: Path, stage: str, base: str | None, run: Path | None = None) -> ModelRef:
    """The model or adapter in a folder; its run's metrics are beside or above it."""
    run_folders = [run] if run is not None else [folder, folder.parent]
    metrics = next((str(path) for path in run_folders if (path / "metrics.jsonl").is_file()), None)
    if (folder / "config.json").is_file():
        return ModelRef(str(folder), stage, None, metrics)
    path = folder / "adapter_config.json"
    try:
        base_model = base or json.loads(path.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base_model = None
    if not isinstance(base_model, str) or not base_model:
        raise UserError(f"'{path}' does not say which model the adapter belongs to; name it with --base.")
    return ModelRef(base_model, stage, str(folder), metrics)
