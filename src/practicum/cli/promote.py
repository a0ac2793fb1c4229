"""`practicum promote MODEL`: hand a model over to production through the gate of a comparison; --rollback goes back."""

from __future__ import annotations

from pathlib import Path

from practicum.data.model_registry import ModelRegistry
from practicum.errors import UserError
from practicum.utils.tables import table
from practicum.utils.terminal import ArgumentParser, say


def run(argv: list[str]) -> int:
    args = make_parser().parse_args(argv)
    registry = ModelRegistry(args.registry)
    if args.list:
        return _list(registry)
    if args.rollback is not None:
        version = registry.rollback(args.name, args.force or "asked for", args.rollback or None)
        say(f"version {version.number} of '{version.name}' is current again")
        return 0
    if args.model is None:
        raise UserError("Name the model to promote, or give --rollback or --list.")
    from practicum.evaluation.promotion import promote

    version = promote(registry, args.name, args.model, args.baseline, args.trained, args.force, args.different_settings)
    card = version.card
    say(f"version {version.number} of '{version.name}' is current: {version.model}")
    say(f"forced: {card['forced']}" if card["forced"] else f"gate: {card['gate']}")
    return 0


def make_parser() -> ArgumentParser:
    parser = ArgumentParser(prog="practicum promote", description=__doc__)
    parser.add_argument("model", nargs="?", help="folder of a model, adapter, run or checkpoint")
    parser.add_argument("--name", default="model", help="its name in the registry (default: model)")
    parser.add_argument("--registry", type=Path, default=Path("registry"), help="folder of promoted models")
    parser.add_argument("--baseline", type=Path, help="the baseline's result of `practicum eval --out`")
    parser.add_argument("--trained", type=Path, help="this model's result on the same panel")
    parser.add_argument("--force", default="", metavar="REASON", help="promote without passing the gate, and why")
    parser.add_argument("--different-settings", action="store_true", help="compare although decoding settings differ")
    parser.add_argument(
        "--rollback", nargs="?", const=0, type=int, metavar="VERSION", help="go back (default: to the version before)"
    )
    parser.add_argument("--list", action="store_true", help="print names, versions and what is current")
    return parser


def _list(registry: ModelRegistry) -> int:
    rows = []
    for name in registry.names():
        current = registry.linked(name)
        for version in registry.versions(name):
            card = version.card
            rate = card["scores"].get("trained", {}).get("success_rate")
            explanation = f"forced: {card['forced']}" if card["forced"] else "gate passed"
            mark = "current" if version == current else ""
            score = "–" if rate is None else f"{100 * rate:.1f} %"
            rows.append([name, str(version.number), mark, score, explanation, "damaged" if version.damage else ""])
    print(table(["name", "version", "", "success", "promoted", ""], rows) if rows else "no models are promoted")
    return 0
