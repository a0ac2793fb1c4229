"""What `practicum sft` and `practicum dpo` share: flags that are short names of keys, progress, a last sentence."""

from __future__ import annotations

import argparse
import asyncio
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from practicum.training.supervised import SupervisedTrainer


class Flag(NamedTuple):
    """A flag's key (or `key=value`, for a switch) and its help."""

    key: str
    help: str


def run_stage(
    name: str,
    about: str | None,
    argv: list[str],
    flags: Mapping[str, Flag],
    switches: Mapping[str, Flag],
    schema: Any,
    build: Callable[..., SupervisedTrainer],
    figure: str,
) -> int:
    """Read flags and overrides, run the stage, say what came of it."""
    parser = argparse.ArgumentParser(prog=f"practicum {name}", description=about)
    for flag, (key, text) in flags.items():
        parser.add_argument(
            *_spellings(flag), dest=flag, metavar=key.rsplit(".", 1)[-1].upper(), help=f"{text} ({key})"
        )
    for switch, (key, text) in switches.items():
        parser.add_argument(*_spellings(switch), dest=switch, action="store_true", help=f"{text} ({key})")
    parser.add_argument(
        "--hardware", metavar="CARD", help="batch and accumulation for a card: 80gb, 40gb, 24gb, 4090, ..."
    )
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args(argv)

    from practicum.config import overrides
    from practicum.training import build_supervised
    from practicum.utils.progress import Progress

    asked = [
        f"{key}={_quoted(value)}" for flag, (key, _) in flags.items() if (value := getattr(args, flag)) is not None
    ]
    asked += [key for switch, (key, _) in switches.items() if getattr(args, switch)]
    fitting = build_supervised.preset(args.hardware) if args.hardware else []
    config, given = overrides.read_overrides(schema, [*fitting, *asked, *args.overrides])
    build_supervised.check_given(config, given)
    if args.dry_run:
        print(overrides.show(config), end="")
        return 0
    progress = Progress(name, 0, "steps")
    last: dict[str, float] = {}

    def heard(step: int, values: dict[str, float]) -> None:
        last.update(values)
        progress.advance(
            1, f"loss {values[figure]:.3f}" + (f", eval {last['eval/loss']:.3f}" if "eval/loss" in last else "")
        )

    stage = build(config, heard)
    print(build_supervised.describe(stage.policy))
    try:
        progress.total, progress.done = stage.settings.steps, stage.standing.step
        with progress:
            standing = stage.run()
    finally:
        asyncio.run(stage.policy.close())
    outcome = f"last loss {last[figure]:.4f}" if last else "nothing was left to do"
    if standing.best_value is not None:
        outcome += f", best eval loss {standing.best_value:.4f} at step {standing.best_step}"
    print(f"{standing.step} updates; {outcome}; model in {stage.folder / 'model'}")
    return 0


def _spellings(name: str) -> list[str]:
    return sorted({f"--{name}", f"--{name.replace('_', '-')}"})


def _quoted(value: str) -> str:
    """A flag's value as the override grammar wants it: paths may hold anything."""
    escaped = value.replace("\\", "\\\\").replace("'", "\\'")
    return f"'{escaped}'"
