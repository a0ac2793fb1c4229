"""`practicum pipeline recipe=NAME KEY=VALUE ...`: collect → sft → train → eval, one command.

Stop it anywhere and run it again: stages that are finished are skipped, the one that was not goes on where it stopped.
"""

from __future__ import annotations

import argparse
import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from practicum.errors import UserError

if TYPE_CHECKING:
    from practicum.pipeline.log import PipelineLog
    from practicum.pipeline.stages import PipelineConfig


def run(argv: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="practicum pipeline", description=__doc__)
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    parser.add_argument("--until", metavar="STAGE", help="stop after this stage (they are listed by --dry-run)")
    parser.add_argument("--dry-run", action="store_true", help="print the resolved configuration and what follows")
    args = parser.parse_intermixed_args(argv)

    from practicum.config import overrides
    from practicum.errors import did_you_mean
    from practicum.pipeline import stages
    from practicum.pipeline.log import PipelineLog, print_lines

    if not args.overrides and not args.dry_run:
        raise UserError(
            "Say what to run: recipe=affine-tiny is small; the paper's whole pipeline (15,000 demonstrations) is "
            "recipe=affine model.path=PATH."
        )
    config = stages.resolve(args.overrides)
    if args.until is not None and args.until not in stages.STAGES:
        raise UserError(f"--until: there is no stage '{args.until}'.{did_you_mean(args.until, stages.STAGES)}")
    if args.dry_run:
        print(overrides.show(config), end="")
        print("# derived")
        print("\n".join(f"# {line}" for line in [f"stages: {', '.join(stages.STAGES)}", *stages.derived(config)]))
        return 0
    log = PipelineLog(stages.folder(config))
    if not log.finished("eval-base"):  # after it every task has been seen to be there
        stages.check_tasks(config)
    stages.check_continuation(config, log.begun)  # it marks a new folder: what has failed until here leaves none
    functions: dict[str, Callable[[PipelineConfig, PipelineLog], None]] = {
        "collect": collect,
        "sft": sft,
        "train": train,
        **{f"eval-{rung}": _evaluation(rung) for rung in stages.RUNGS},
    }
    for number, name in enumerate(stages.STAGES, 1):
        title = f"[{number}/{len(stages.STAGES)}] {name}"
        if log.finished(name):
            print(f"{title}: done before ({log.said(name)})", flush=True)
        else:
            print(f"{title}: {'goes on' if log.begun(name) else 'begins'}", flush=True)
            with log.stage(name):
                functions[name](config, log)
            print(f"{title}: done ({log.said(name)})", flush=True)
        if name == args.until:
            return 0
    print_lines(report(config, log))
    return 0


def collect(config: PipelineConfig, log: PipelineLog) -> None:
    """The expert's episodes of every environment, each in a folder of its own."""
    from practicum.cli import collect as command
    from practicum.pipeline import stages

    for name, count in stages.demonstrations(config).items():
        # Another seed than practice has: its tasks are new ones, as far as there are others.
        argv = [
            "--policy", "expert", "--tasks", str(count), "--split", "train", "--seed", str(config.seed + 1),
            "--out", config.output_dir, "--experiment", "collect", "--run-id", stages.place_of(name),
            *_world_flags(config, name),
        ]  # fmt: skip
        with log.told("collect") as told:
            code = command.run(argv)
        print(f"  {name}: {told.last_line()}", flush=True)
        if code:
            raise UserError(f"No episode of {name} could be scored; see {log.path('collect')}.")


def sft(config: PipelineConfig, log: PipelineLog) -> None:
    """Imitation, with a line an epoch."""
    from practicum.pipeline import stages
    from practicum.pipeline.log import Epochs
    from practicum.training.build_supervised import build_sft, describe
    from practicum.utils.progress import Progress

    progress = Progress("sft", 0, "steps")
    epochs = Epochs(config.training.num_epochs)

    def heard(step: int, values: dict[str, float]) -> None:
        progress.advance(1, f"loss {values['actor/loss']:.3f}")
        line = epochs.hear(step, values)
        if line is not None:
            print(f"  {line}", flush=True)

    run = build_sft(stages.sft_config(config), heard)
    print(f"  {describe(run.policy)}", flush=True)
    progress.total = epochs.steps = run.settings.steps
    progress.done = run.state.step

    async def go() -> None:
        try:
            with progress:
                await run.train()
        finally:
            await run.policy.close()

    asyncio.run(go())


def train(config: PipelineConfig, log: PipelineLog) -> None:
    """Practice over the mix, with a line now and then."""
    from practicum.pipeline import stages
    from practicum.pipeline.log import rollout_line
    from practicum.training import build
    from practicum.utils.progress import Progress

    made = stages.rl_config(config)
    total = config.rl_training.num_rollouts
    each = made.data.train_batch_size * made.agent.num_chains
    progress = Progress("train", total * each, "episodes")

    def stepped(step: int, values: dict[str, float]) -> None:
        progress.note = f"step {step}: reward {values.get('reward/mean', float('nan')):.3f}"
        if step % max(1, total // 10) == 0 or step == total:
            print(f"  {rollout_line(step, total, values)}", flush=True)

    async def go() -> None:
        run = build.build_run(made, on_step=stepped, on_episode=lambda episode: progress.advance())
        try:
            progress.done = run.state.step * each
            with progress:
                await run.train()
            run.policy.save(Path(stages.policy(config, "rl")))
        finally:
            await run.policy.close()

    asyncio.run(go())


def _evaluation(rung: str) -> Callable[[PipelineConfig, PipelineLog], None]:
    def stage(config: PipelineConfig, log: PipelineLog) -> None:
        from practicum.cli import eval as command
        from practicum.evaluation.result import read_result
        from practicum.pipeline import stages
        from practicum.pipeline.log import evaluation_line

        settings = config.evaluation
        for name in stages.examined(config):
            out = stages.folder(config, "eval", rung, f"{stages.place_of(name)}.json")
            argv = [
                "--policy", stages.policy(config, rung), "--name", rung, "--tasks", str(settings.num_eval_samples),
                "--split", "test", "--seed", str(config.seed), "--temperature", str(settings.temperature),
                "--level", str(settings.confidence), "--out", str(out),
                *(["--base", config.model.path] if rung != "base" and config.training.use_lora else []),
                *_world_flags(config, name),
            ]  # fmt: skip
            with log.told(f"eval-{rung}"):
                code = command.run(argv)
            if code:
                why = next((sitting.error for sitting in read_result(out).unscored if sitting.error), "no error told")
                raise UserError(f"No episode of {name} could be scored ({why}); see {log.path(f'eval-{rung}')}.")
            print(f"  {name}: {evaluation_line(read_result(out), settings.confidence)}", flush=True)

    return stage


def report(config: PipelineConfig, log: PipelineLog) -> list[str]:
    """The table; and everything for machines in logs/evaluation_results.json."""
    from practicum.data.store import write_atomic
    from practicum.pipeline import stages
    from practicum.pipeline.stage_table import read_stage_table
    from practicum.utils.tables import table

    rungs = read_stage_table(
        [stages.folder(config, "eval", rung) for rung in stages.RUNGS], config.evaluation.confidence
    )
    path = stages.folder(config, "logs", "evaluation_results.json")
    whole = {"format": "practicum pipeline 1", **rungs.record(), "stages": log.record()}
    write_atomic(path, (json.dumps(whole, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())
    return [
        "",
        table(["Stage", "Time", "Processor", "Memory", "Starts"], log.rows()),
        "",
        *rungs.lines(),
        f"all of it in {path}; `practicum compare {stages.folder(config, 'eval', 'sft')} "
        f"{stages.folder(config, 'eval', 'rl')}` tells more",
    ]


def _world_flags(config: PipelineConfig, name: str) -> list[str]:
    """An environment with its options, and what all stages share."""
    from practicum.pipeline import stages

    flags = ["--env", name, "--format", "hf", "--tokenizer", config.model.path]
    flags += ["--max-turns", str(config.data.agentgym.max_episode_length)]
    flags += ["--max-tokens", str(config.data.max_response_tokens), "--device", config.model.device]
    if config.model.template is not None:
        flags += ["--template", config.model.template]
    for key, value in stages.options(config, name).items():
        flags += ["--env-arg", f"{key}={json.dumps(value)}"]
    return flags
