"""`practicum merge`: an adapter into full weights."""

from __future__ import annotations

import argparse
from pathlib import Path


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum merge", description=__doc__)
    parser.add_argument("--model", required=True, help="what the adapter was trained on (name, folder, hub id)")
    parser.add_argument("--adapter", type=Path, required=True, help="PEFT folder (adapter_config.json, …)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the full model")
    args = parser.parse_args(argv)
    from practicum.errors import UserError
    from practicum.models import loader, lora

    if args.out.exists():
        raise UserError(f"'{args.out}' already exists; choose another --out.")
    loaded = lora.load_adapter(loader.load(args.model), args.adapter, trainable=False)
    trained = sum(value.numel() for name, value in loaded.adapter.named_parameters() if "lora_" in name)
    merged = lora.merge(loaded)
    template = args.adapter / "chat_template.jinja"
    if template.is_file():
        merged.tokenizer.chat_template = template.read_text(encoding="utf-8")
    loader.save(merged, args.out)
    print(f"{trained:,} adapter parameters merged into '{args.model}'; full model in {args.out}")
    return 0
