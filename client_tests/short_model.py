"""Write a tiny model whose replies and strings end soon, and an adapter of it beside it (FOLDER-adapter):
python client_tests/short_model.py FOLDER.

An untrained model ends a string once in some hundred tokens: clients that ask for JSON would meet their token limit.
The embeddings of the quotation mark and of the end token are moved towards the mean hidden state, which makes both
likely at every position; everything else stays random.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch

from practicum.chat.renderer import Renderer
from practicum.environment import Message
from practicum.models import loader, lora

QUOTE_STRENGTH, END_STRENGTH = 8.0, 6.0
"""By how much the logits of the two tokens rise."""


def main(folder: Path) -> None:
    loaded = loader.load_tiny(0)
    model, tokenizer = loaded.model, loaded.tokenizer
    renderer = Renderer(tokenizer)
    with torch.no_grad():
        prompt = renderer.render_text([Message("user", "Reply with exactly: hello")], ())
        ids = torch.tensor([renderer.encode(prompt)[0] + list(range(10, 700))])
        hidden = model.model(input_ids=ids).last_hidden_state[0]
        mean = hidden.mean(0)
        direction = mean / (hidden @ mean).mean()
        quote = tokenizer.encode('"', add_special_tokens=False)[0]
        model.model.embed_tokens.weight[quote] += QUOTE_STRENGTH * direction
        model.model.embed_tokens.weight[tokenizer.eos_token_id] += END_STRENGTH * direction
    loader.save(loaded, folder)
    write_adapter(folder, folder.with_name(f"{folder.name}-adapter"))


def write_adapter(model: Path, folder: Path) -> None:
    """An adapter that is far from the model."""
    loaded = lora.add_adapter(loader.load(str(model)), lora.LoRASettings(rank=4), seed=1)
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2, generator=generator)
    loader.save(loaded, folder)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
