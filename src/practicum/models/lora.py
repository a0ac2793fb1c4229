"""LoRA through PEFT: small trainable matrices beside frozen weights, in PEFT's file format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from practicum.config.actor_rollout_ref import ModelConfig
from practicum.config.fields import default_of
from practicum.errors import UserError
from practicum.models.loader import LoadedModel, first_line, load, save

ALL_LINEAR = "all-linear"


@dataclass(frozen=True)
class LoRASettings:
    """The settings of PEFT's LoraConfig. `targets`: names of projections, or all-linear."""

    rank: int
    alpha: float = default_of(ModelConfig, "lora_alpha")
    dropout: float = default_of(ModelConfig, "lora_dropout")
    targets: str | Sequence[str] = ALL_LINEAR
    dora: bool = False
    rslora: bool = False

    def __post_init__(self) -> None:
        if self.rank < 1:
            raise UserError(f"A LoRA rank must be at least 1, got {self.rank}.")
        if not 0 <= self.dropout < 1:
            raise UserError(f"A LoRA dropout must be from 0 to below 1, got {self.dropout}.")


def settings_of(model: ModelConfig) -> LoRASettings:
    """Return the settings of the new adapters of a training run."""
    return LoRASettings(model.lora_rank, model.lora_alpha, targets=model.target_modules or ALL_LINEAR)


def _peft() -> Any:
    try:
        import peft
    except ImportError:
        raise UserError(
            "LoRA adapters need the package peft: pip install 'practicum[lora]', or train all weights (--full, "
            "training.use_lora=false)."
        ) from None
    return peft


def add_adapter(loaded: LoadedModel, settings: LoRASettings, seed: int = 0) -> LoadedModel:
    """The model with a new adapter; its own weights are frozen. The same seed gives the same adapter."""
    import torch

    peft = _peft()

    targets = settings.targets if isinstance(settings.targets, str) else list(settings.targets)
    config = peft.LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # PEFT takes fractions too
        lora_dropout=settings.dropout,
        target_modules=targets,
        use_dora=settings.dora,
        use_rslora=settings.rslora,
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        try:
            # In the dtype of the base weights: the learner keeps float32 master weights of half-precision ones.
            wrapped = peft.get_peft_model(loaded.model, config, autocast_adapter_dtype=False)
        except ValueError as error:
            raise UserError(f"LoRA targets {settings.targets}: {str(error).splitlines()[0]}") from error
    wrapped.eval()
    return replace(loaded, adapter=wrapped)


def load_adapter(loaded: LoadedModel, folder: str | Path, trainable: bool = True) -> LoadedModel:
    """The model with an adapter from a PEFT folder."""
    peft = _peft()
    path = Path(folder)
    if not (path / "adapter_config.json").is_file() or not (path / "adapter_model.safetensors").is_file():
        raise UserError(f"'{folder}' is not an adapter (it needs adapter_config.json and adapter_model.safetensors).")
    try:
        wrapped = peft.PeftModel.from_pretrained(
            loaded.model, str(path), is_trainable=trainable, autocast_adapter_dtype=False
        )
    except SafetensorError as error:
        raise UserError(f"The weights of adapter '{folder}' are damaged ({error}); copy or save them again.") from error
    except (ValueError, RuntimeError, KeyError) as error:
        message = first_line(error, "its weights have other shapes than this model and adapter_config.json ask for.")
        raise UserError(f"Adapter '{folder}' does not fit this model: {message}") from error
    wrapped.eval()
    return replace(loaded, adapter=wrapped)


def merge(loaded: LoadedModel) -> LoadedModel:
    """The model with its adapter's matrices added into its own weights."""
    if loaded.adapter is None:
        raise UserError("There is no adapter to merge.")
    return replace(loaded, model=loaded.adapter.merge_and_unload(), adapter=None)


def merge_adapter(model: str, adapter: Path, out: Path) -> int:
    """Write `model` with the adapter of a PEFT folder merged into it to `out`; the number of adapter parameters."""
    if out.exists():
        raise UserError(f"'{out}' already exists; choose another --out.")
    loaded = load_adapter(load(model), adapter, trainable=False)
    assert loaded.adapter is not None
    num_parameters: int = sum(value.numel() for name, value in loaded.adapter.named_parameters() if "lora_" in name)
    merged = merge(loaded)
    template = adapter / "chat_template.jinja"
    if template.is_file():  # the one that the adapter was trained under
        merged.tokenizer.chat_template = template.read_text(encoding="utf-8")
    save(merged, out)
    return num_parameters


def parameter_counts(loaded: LoadedModel) -> tuple[int, int]:
    """Trainable parameters and all of them, counted one by one."""
    model: Any = loaded.adapter or loaded.model
    parameters = list(model.parameters())
    return sum(p.numel() for p in parameters if p.requires_grad), sum(p.numel() for p in parameters)
