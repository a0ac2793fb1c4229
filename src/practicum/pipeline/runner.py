"""Run the pipeline: collect → evaluate base → SFT → evaluate → RL → evaluate, each stage a call of the library.

Stop it anywhere and run it again: finished stages are skipped, and the one that was not finished continues.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.collector import CollectSettings, collect
from practicum.config.pipeline import PipelineConfig
from practicum.data.run_folder import locked, write_atomic
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.policy_results import PolicyResults
from practicum.evaluation.result import EvalResult, read_results
from practicum.evaluation.result_table import describe
from practicum.evaluation.runner import EvalRunner, evaluate_all
from practicum.evaluation.settings import EvalSettings
from practicum.pipeline import stages
from practicum.pipeline.log import EpochSummary, PipelineLog, evaluation_line, rollout_line
from practicum.pipeline.stage_table import StageTable, read_stage_table
from practicum.training.build import train
from practicum.training.build_supervised import sft
from practicum.utils.tables import table
from practicum.utils.terminal import printable

NUM_RL_LINES = 10
"""Lines about RL steps that are logged, at most."""


@dataclass(frozen=True)
class PipelineResult:
    """The models of all stages side by side, what the stages took, and the file that holds both as JSON."""

    table: StageTable
    log: PipelineLog
    path: Path

    def lines(self) -> list[str]:
        """All of it for a terminal."""
        folders = [self.path.parent.parent / "eval" / name for name in ("sft", "rl")]
        return [
            "",
            table(["Stage", "Time", "Processor", "Memory", "Starts"], self.log.rows()),
            "",
            *self.table.lines(),
            f"all of it in {self.path}; `practicum compare {folders[0]} {folders[1]}` tells more",
        ]


def write_record(path: Path, record: dict[str, Any]) -> None:
    write_atomic(path, (json.dumps(record, indent=1, ensure_ascii=False, allow_nan=False) + "\n").encode())


def check_stage_name(name: str | None) -> None:
    if name is not None and name not in stages.STAGES:
        raise UserError(f"--until: there is no stage '{name}'.{did_you_mean(name, stages.STAGES)}")


class PipelineRunner:
    """One pipeline in its folder; `log` gets its lines, `progress` shows a progress line on stderr."""

    def __init__(self, config: PipelineConfig, log: Callable[[str], None] = print, progress: bool = True) -> None:
        self.config, self.log, self.progress = config, log, progress
        self.stage_log = PipelineLog(stages.folder(config))
        self.functions: dict[str, Callable[[], None]] = {
            "collect": self.collect,
            "sft": self.sft,
            "train": self.train,
            **{f"eval-{name}": self._evaluation(name) for name in stages.MODELS},
        }

    def run(self, until: str | None = None) -> PipelineResult | None:
        """Run the stages that are not finished, up to and with `until`; None where that is not the last one."""
        check_stage_name(until)
        with locked(stages.folder(self.config), "choose another output_dir"):
            return self._run(until)

    def _run(self, until: str | None) -> PipelineResult | None:
        if not self.stage_log.finished("eval-base"):  # after it, every task has been found
            stages.check_tasks(self.config)
        # Writes pipeline.yaml: what was refused until here leaves no folder behind.
        stages.check_continuation(self.config, self.stage_log.started)
        for index, name in enumerate(stages.STAGES, 1):
            self._run_stage(name, f"[{index}/{len(stages.STAGES)}] {name}")
            if name == until:
                return None
        return self.finish()

    def _run_stage(self, name: str, title: str) -> None:
        if self.stage_log.finished(name):
            self.log(f"{title}: done before ({self.stage_log.summary(name)})")
            return
        self.log(f"{title}: {'continues' if self.stage_log.started(name) else 'starts'}")
        with self.stage_log.stage(name):
            self.functions[name]()
        self.log(f"{title}: done ({self.stage_log.summary(name)})")

    def collect(self) -> None:
        """The expert's episodes of every environment, each in a folder of its own."""
        config = self.config
        for name, count in stages.demonstrations(config).items():
            if count == 0:
                continue
            settings = CollectSettings(
                policy="expert",
                num_tasks=count,
                seed=config.seed + 1,  # another seed than RL has: its tasks are new ones, as far as there are others
                out=config.output_dir,
                experiment="collect",
                run_id=stages.file_name(name),
                **self._shared_settings(name),
            )
            result = collect(settings, progress=self.progress, log=lambda text: self.stage_log.append("collect", text))
            self.stage_log.append("collect", result.describe())
            self.log(f"  {name}: {printable(result.describe())}")
            if not result.rewards:
                raise UserError(f"No episode of {name} could be scored; see {self.stage_log.path('collect')}.")

    def sft(self) -> None:
        """Supervised fine-tuning on the collected episodes, with a line per epoch."""
        epochs = EpochSummary(self.config.training.num_epochs)

        def report(step: int, num_steps: int, values: Any) -> None:
            line = epochs.add(step, num_steps, values)
            if line is not None:
                self.log(f"  {line}")

        sft(
            stages.sft_config(self.config),
            progress=self.progress,
            log=lambda text: self.log(f"  {text}"),
            on_step=report,
        )

    def train(self) -> None:
        """Reinforcement learning over all environments at once, with a line for every tenth of the steps."""

        def report(step: int, num_steps: int, values: Any) -> None:
            if step % max(1, num_steps // NUM_RL_LINES) == 0 or step == num_steps:
                self.log(f"  {rollout_line(step, num_steps, values)}")

        train(
            stages.rl_config(self.config),
            model_folder=stages.model_path(self.config, "rl"),
            progress=self.progress,
            log=self.log,
            on_step=report,
        )

    def _evaluation(self, model: str) -> Callable[[], None]:
        return lambda: self.evaluate(model)

    def evaluate(self, model: str) -> None:
        """Evaluate base, sft or rl on the test tasks of every environment."""
        config, stage = self.config, f"eval-{model}"

        def write_table(runner: EvalRunner, result: EvalResult) -> None:
            self.stage_log.append(stage, describe(runner, result))

        for name in stages.evaluated_environments(config):
            settings = EvalSettings(
                policy=stages.model_path(config, model),
                base=config.model.path if model != "base" and config.training.use_lora else None,
                name=model,
                num_tasks=config.evaluation.num_eval_samples,
                seed=config.seed,
                temperature=config.evaluation.temperature,
                level=config.evaluation.confidence,
                out=stages.folder(config, "eval", model, f"{stages.file_name(name)}.json"),
                **self._shared_settings(name),
            )
            (result,) = evaluate_all([settings], progress=self.progress, on_result=write_table)
            if not result.scored:
                error = next((attempt.error for attempt in result.unscored if attempt.error), "no error recorded")
                raise UserError(f"No episode of {name} could be scored ({error}); see {self.stage_log.path(stage)}.")
            self.log(f"  {name}: {evaluation_line(result, config.evaluation.confidence)}")
        if model == "base":
            self._write_baseline()

    def _write_baseline(self) -> None:
        """Keep the results of the base model in logs/baseline_results.json, to compare every later model with."""
        level = self.config.evaluation.confidence
        results = read_results([stages.folder(self.config, "eval", "base")])
        base = PolicyResults("base", {result.panel: result for result in results})
        record = {"format": "practicum pipeline 1", **StageTable((base,), (), level).baseline_record()}
        write_record(stages.folder(self.config, "logs", "baseline_results.json"), record)

    def finish(self) -> PipelineResult:
        """The results of all stages, written to logs/evaluation_results.json."""
        config = self.config
        folders = [stages.folder(config, "eval", name) for name in stages.MODELS]
        stage_table = read_stage_table(folders, config.evaluation.confidence)
        path = stages.folder(config, "logs", "evaluation_results.json")
        record = {"format": "practicum pipeline 1", **stage_table.record(), "stages": self.stage_log.record()}
        write_record(path, record)
        return PipelineResult(stage_table, self.stage_log, path)

    def _shared_settings(self, environment: str) -> dict[str, Any]:
        """An environment with its options, and what collecting and evaluating share."""
        config = self.config
        return {
            "environment": environment,
            "environment_options": json.loads(json.dumps(stages.environment_options(config, environment))),
            "format": "hf",
            "tokenizer": config.model.path,
            "template": config.model.template,
            "max_turns": config.data.agentgym.max_episode_length,
            "max_tokens": config.data.max_response_tokens,
            "device": config.model.device,
        }
