"""What `practicum sft` and `practicum dpo` share: flags that are short names of keys, and the last line."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from practicum.cli.main import recipes_and_keys
from practicum.cli.options import HelpFormatter, print_warnings
from practicum.utils.tables import counted
from practicum.utils.terminal import ArgumentParser, say

if TYPE_CHECKING:
    from practicum.training.build import TrainResult


class Flag(NamedTuple):
    """A flag's key (or `key=value`, for a switch) and its help."""

    key: str
    help: str


class SupervisedCommand(NamedTuple):
    """`practicum sft` or `practicum dpo`: `flags` take a value, `switches` do not."""

    name: str
    description: str | None
    flags: Mapping[str, Flag]
    switches: Mapping[str, Flag]
    loss: str
    """Name of the training loss among the metrics."""


def run_command(
    command: SupervisedCommand, argv: list[str], schema: Any, function: Callable[[Any], TrainResult]
) -> int:
    """Read flags and overrides, call `function` with the configuration, print the result."""
    args = make_parser(command, schema).parse_intermixed_args(argv)

    from practicum.config.overrides import quote
    from practicum.config.provenance import annotated_yaml
    from practicum.config.resolve_supervised import resolve_supervised
    from practicum.training.build_supervised import hardware_overrides

    values = [(key, getattr(args, flag)) for flag, (key, _) in command.flags.items()]
    from_flags = [f"{key}={quote(value)}" for key, value in values if value is not None]
    from_flags += [key for switch, (key, _) in command.switches.items() if getattr(args, switch)]
    from_hardware = hardware_overrides(args.hardware) if args.hardware else []
    resolved = resolve_supervised(schema, [*from_hardware, *from_flags, *args.overrides])
    if args.dry_run:
        from practicum.training.dry_run import check_supervised_run

        warnings = check_supervised_run(resolved.config)
        print(annotated_yaml(resolved), end="")
        print_warnings(warnings)
        return 0
    print_result(function(resolved), command.loss)
    return 0


def make_parser(command: SupervisedCommand, schema: Any) -> ArgumentParser:
    from omegaconf import OmegaConf

    from practicum.config.overrides import leaves

    parser = ArgumentParser(
        prog=f"practicum {command.name}",
        description=command.description,
        formatter_class=HelpFormatter,
        epilog=f"example: practicum {command.name} --episodes runs/collect --model tiny --out runs/{command.name}\n"
        + recipes_and_keys(command.name),
    )
    defaults = dict(leaves(OmegaConf.structured(schema)))
    for flag, (key, text) in command.flags.items():
        parser.add_argument(
            *_spellings(flag),
            dest=flag,
            metavar=key.rsplit(".", 1)[-1].rsplit("_", 1)[-1].upper(),
            help=f"{text} ({key}, default: {defaults[key]})",
        )
    for switch, (key, text) in command.switches.items():
        parser.add_argument(*_spellings(switch), dest=switch, action="store_true", help=f"{text} ({key})")
    parser.add_argument(
        "--hardware", metavar="CARD", help="batch and accumulation for a card: 80gb, 40gb, 24gb, 4090, ..."
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    return parser


def print_result(result: TrainResult, loss: str) -> None:
    outcome = f"last loss {result.metrics[loss]:.4f}" if result.metrics else "nothing was left to do"
    if result.best_value is not None:
        outcome += f", best eval loss {result.best_value:.4f} at step {result.best_step}"
    say(f"{counted(result.num_steps, 'update')}; {outcome}; model in {result.model}")


def _spellings(name: str) -> list[str]:
    return sorted({f"--{name}", f"--{name.replace('_', '-')}"})
