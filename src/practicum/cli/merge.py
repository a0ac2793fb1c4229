"""`practicum merge`: merge a LoRA adapter into the full weights of its model."""

from __future__ import annotations

from pathlib import Path

from practicum.utils.terminal import ArgumentParser, say


def run(argv: list[str]) -> int:
    parser = ArgumentParser(prog="practicum merge", description=__doc__)
    parser.add_argument("--model", required=True, help="what the adapter was trained on (name, folder, hub id)")
    parser.add_argument("--adapter", type=Path, required=True, help="PEFT folder (adapter_config.json, …)")
    parser.add_argument("--out", type=Path, required=True, help="folder for the full model")
    args = parser.parse_args(argv)
    from practicum.models.lora import merge_adapter

    num_parameters = merge_adapter(args.model, args.adapter, args.out)
    say(f"{num_parameters:,} adapter parameters merged into '{args.model}'; full model in {args.out}")
    return 0
