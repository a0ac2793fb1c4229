"""`practicum pipeline recipe=NAME KEY=VALUE ...`: collect → sft → train → eval, one command.

Stop it anywhere and run it again: finished stages are skipped, and the one that was not finished continues.
"""

from __future__ import annotations

from practicum.cli.main import recipes_and_keys
from practicum.cli.options import HelpFormatter, print_warnings
from practicum.utils.terminal import ArgumentParser


def run(argv: list[str]) -> int:
    parser = ArgumentParser(
        prog="practicum pipeline",
        description=__doc__,
        formatter_class=HelpFormatter,
        epilog="example: practicum pipeline recipe=affine-tiny\n" + recipes_and_keys("pipeline"),
    )
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--until", metavar="STAGE", help="stop after this stage (they are listed by --dry-run)")
    parser.add_argument(
        "--dry-run", action="store_true", help="print the configuration and the numbers derived from it"
    )
    args = parser.parse_intermixed_args(argv)

    from practicum.config.provenance import annotated_yaml
    from practicum.errors import UserError
    from practicum.pipeline import stages
    from practicum.pipeline.runner import PipelineRunner, check_stage_name

    if not args.overrides and not args.dry_run:
        raise UserError(
            "Say what to run: recipe=affine-tiny is small; Affine's whole pipeline (15,000 demonstrations) is "
            "recipe=affine model.path=PATH."
        )
    check_stage_name(args.until)
    resolved = stages.resolve(args.overrides)
    config = resolved.config
    if args.dry_run:
        warnings = stages.check_run(config)
        print(annotated_yaml(resolved), end="")
        print("# derived")
        print("\n".join(f"# {line}" for line in [f"stages: {', '.join(stages.STAGES)}", *stages.summarize(config)]))
        print_warnings(warnings)
        return 0
    result = PipelineRunner(config, log=lambda text: print(text, flush=True)).run(args.until)
    if result is not None:
        print("\n".join(result.lines()), flush=True)
    return 0
