"""`practicum train KEY=VALUE ...`: reinforcement learning; `recipe=NAME` loads an experiment, `--dry-run` shows it.

`--from-trajectories DIR` learns from episodes that were collected before instead of running new ones.
"""

from __future__ import annotations

import argparse

from practicum.cli.main import recipes_and_keys
from practicum.cli.options import HelpFormatter, print_warnings


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(
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
    args = parser.parse_intermixed_args(argv)

    from practicum.config.overrides import quote
    from practicum.config.resolve import resolve_train

    if args.from_trajectories is not None:
        args.overrides.append(f"data.from_trajectories={quote(args.from_trajectories)}")
    resolved = resolve_train(args.overrides)
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
    print(f"{result.num_steps} steps{best}; metrics in {result.folder / 'metrics.jsonl'}, model in {result.model}")
    return 0
