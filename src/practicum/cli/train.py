"""`practicum train KEY=VALUE ...`: reinforcement learning; `recipe=NAME` loads an experiment, `--dry-run` shows it.

`--from-trajectories DIR` learns from episodes that were collected before instead of running new ones.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from practicum.cli.main import recipes_and_keys
from practicum.cli.options import HelpFormatter, print_warnings
from practicum.utils.terminal import ArgumentParser, coloured, say

FLAGS = {
    "base_model": ("actor_rollout_ref.model.path", "model to start from (actor_rollout_ref.model.path)"),
    "top_percent": (
        "algorithm.offline.top_percent",
        "share of a task's logged episodes whose actions are rewarded (algorithm.offline.top_percent)",
    ),
}
"""HALO's flags, and the keys that they set."""


def flag_overrides(args: argparse.Namespace) -> list[str]:
    """What the flags set, as overrides."""
    from practicum.config.overrides import quote

    values = {key: getattr(args, flag) for flag, (key, _) in FLAGS.items()}
    values["data.from_trajectories"] = args.from_trajectories
    if args.output_dir is not None:
        folder = args.output_dir.absolute()
        values["trainer.default_local_dir"] = str(folder.parent.parent)
        values |= {"trainer.project_name": folder.parent.name, "trainer.experiment_name": folder.name}
    return [f"{key}={quote(value)}" for key, value in values.items() if value is not None]


def run(argv: list[str]) -> int:
    parser = ArgumentParser(
        prog="practicum train",
        description=__doc__,
        formatter_class=HelpFormatter,
        epilog="example: practicum train recipe=math-tiny actor_rollout_ref.model.path=runs/quickstart-0/sft/model\n"
        + recipes_and_keys("train"),
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument(
        *("--dry-run", "--dry_run"),
        action="store_true",
        help="print the resolved configuration and what follows from it",
    )
    parser.add_argument(
        *("--from-trajectories", "--from_trajectories"),
        metavar="DIR",
        help="learn from the episodes below DIR (data.from_trajectories=DIR)",
    )
    parser.add_argument(
        *("--input-dir", "--input_dir"), dest="from_trajectories", metavar="DIR", help="HALO's name of the same"
    )
    for flag, (_, text) in FLAGS.items():
        parser.add_argument(f"--{flag}", f"--{flag.replace('_', '-')}", dest=flag, help=text)
    parser.add_argument("--output_dir", "--output-dir", metavar="DIR", type=Path, help="folder of the run")
    args = parser.parse_intermixed_args(argv)

    from practicum.config.resolve import resolve_train

    resolved = resolve_train([*args.overrides, *flag_overrides(args)])
    if args.dry_run:
        from practicum.config.provenance import annotated_yaml
        from practicum.training.checkpoint import keep_stored_defaults
        from practicum.training.dry_run import check_train, summarize
        from practicum.training.settings import run_folder

        keep_stored_defaults(resolved, run_folder(resolved.config))
        warnings = check_train(resolved.config)
        lines = summarize(resolved.config)
        print(annotated_yaml(resolved), end="")
        print("# derived")
        print("\n".join(f"# {line}" for line in lines))
        print_warnings(warnings)
        return 0
    from practicum.training.build import train

    result = train(resolved)
    best = f"; best validation at step {result.best_step}" if result.best_step is not None else ""
    written = f"metrics in {result.folder / 'metrics.jsonl'}, model in {result.model}"
    say(f"{result.num_steps} step{'' if result.num_steps == 1 else 's'}{best}; {written}")
    if result.best_step is not None:
        print_validations(result.folder)
    return 0


def print_validations(folder: Path) -> None:
    """Print the first, the best and the last validation of a run, and whether the last differs from the first."""
    from practicum.training.monitor.loggers import validation_sentence
    from practicum.training.validation_results import compare_first_and_last

    change = compare_first_and_last(folder)
    if line := validation_sentence(folder):
        say(line)
    if change is not None:
        say(coloured(change.sentence, str(change.conclusion)))
