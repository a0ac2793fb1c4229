"""Affine's pipeline with SmolLM2-135M in each of its eight environments: base, SFT and RL on held-out tasks.

    python benchmarks/affine_gpu.py [--only sat,babyai] [--out runs/affine-gpu] [--minutes 18] [--at-once 8]

One model per environment, with the settings of the recipe `affine-smollm2-gpu` and those of `SIZES` below. Every
environment runs in a process of its own: the expert's episodes, the base model evaluated, SFT (the weights with the
least loss on held-out demonstrations), evaluated, GRPO until the time is up (the weights with the best validation, the
SFT model among them), evaluated on the same test tasks. `affine_gpu.json` in --out has all figures so far and is
written again every few seconds. Finished stages are not done again when the same command is given again; with
`--until collect` only the demonstrations are made, so that they can be taken to the GPU with the folder.
"""

from __future__ import annotations

from gpu_legs import needs
from gpu_legs.clock import Clock

needs.prepare()

import argparse
import asyncio
import ctypes
import faulthandler
import gc
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from practicum.config.pipeline import PipelineConfig
from practicum.models import loader
from practicum.pipeline import stages
from practicum.pipeline.runner import PipelineRunner
from practicum.training import build, build_supervised
from practicum.training.run import Run

RECIPE = "affine-smollm2-gpu"
RESULTS = Path(__file__).parent / "results" / "affine_gpu.json"
MIN_EVALUATION_SECONDS = 50.0
"""Seconds that the RL stage leaves to the last evaluation, at least."""
GRACE_SECONDS = 45.0
"""Seconds beyond its time after which an environment's process is ended from outside."""
POLL_SECONDS = 5.0
"""Seconds between two checks of the processes."""


@dataclass(frozen=True)
class EnvironmentSizes:
    """Sizes of one environment: what its episodes need, and what the time allows."""

    demonstrations: int
    turns: int = 1
    tokens: int = 64
    epochs: int = 4
    tasks_per_step: int = 32
    steps: int = 140
    evaluated: int = 300
    validated: int = 100
    validate_every: int = 20
    slots: int = 160
    """Requests decoded at once: eight processes share the card's memory, and long episodes need most of it."""


SIZES = {
    "agentgym:sciworld": EnvironmentSizes(
        786, turns=16, tokens=32, epochs=8, tasks_per_step=16, evaluated=200, validated=64, validate_every=15, slots=128
    ),
    "agentgym:alfworld": EnvironmentSizes(
        1400, turns=30, tokens=32, tasks_per_step=16, evaluated=200, validated=64, validate_every=15, slots=128
    ),
    "agentgym:webshop": EnvironmentSizes(2000, turns=8, tokens=64),
    "agentgym:textcraft": EnvironmentSizes(2000, turns=14, tokens=64),
    "agentgym:babyai": EnvironmentSizes(2500, turns=20, tokens=24, steps=100),
    "affine:abd": EnvironmentSizes(4000, tokens=128, epochs=5, slots=256),
    "affine:ded": EnvironmentSizes(3000, tokens=128, slots=256),
    "affine:sat": EnvironmentSizes(4000, tokens=64, steps=300, slots=256),
}
"""The slowest first."""


def config_of(name: str, out: Path, tiny: bool) -> PipelineConfig:
    """The recipe cut down to one environment, with the sizes of `SIZES`."""
    config, sizes = stages.resolve([f"recipe={RECIPE}"]).config, SIZES[name]
    data, rl = config.data, config.rl_training
    for group in (data.affine, data.agentgym):
        group.environments = [environment for environment in group.environments if environment == name]
    data.affine.num_samples = data.agentgym.num_episodes = sizes.demonstrations
    data.agentgym.max_episode_length, data.max_response_tokens = sizes.turns, sizes.tokens
    data.environment_args = {name: data.environment_args[name]}
    config.training.num_epochs = sizes.epochs
    rl.rollout_batch_size, rl.num_rollouts = sizes.tasks_per_step, sizes.steps
    rl.overrides = [
        *rl.overrides, f"data.val_batch_size={sizes.validated}", f"trainer.test_freq={sizes.validate_every}",
        "trainer.val_before_train=true", "actor_rollout_ref.actor.ppo_max_token_len_per_gpu=8192",
    ]  # fmt: skip
    config.evaluation.num_eval_samples = sizes.evaluated
    config.output_dir = str(out / stages.file_name(name))
    if tiny:
        make_tiny(config)
    return config


def make_tiny(config: PipelineConfig) -> None:
    """Sizes at which all stages take a minute: shows that they work, on a CPU with the tiny model."""
    data, rl, training = config.data, config.rl_training, config.training
    on_gpu = torch.cuda.is_available()
    config.model.path = "smollm2" if on_gpu else "tiny"
    data.affine.num_samples = data.agentgym.num_episodes = 12
    data.max_response_tokens = min(12, data.max_response_tokens)
    data.agentgym.max_episode_length = min(10, data.agentgym.max_episode_length)
    training.num_epochs, training.batch_size, training.eval_steps, training.bf16 = 1, 4, 2, on_gpu
    rl.rollout_batch_size, rl.num_chains, rl.num_rollouts = 2, 2, 2
    rl.overrides = [text for text in rl.overrides if not text.startswith(("data.val_batch_size", "trainer.test_freq"))]
    rl.overrides += ["data.val_batch_size=2", "trainer.test_freq=1"]
    config.evaluation.num_eval_samples = 3
    for options in data.environment_args.values():
        if "workers" in options:
            options["workers"] = 1


class TimedPipeline(PipelineRunner):
    """A pipeline whose RL stage ends in time for the last evaluation, with its best weights by validation."""

    def __init__(self, config: PipelineConfig, clock: Clock) -> None:
        super().__init__(config, lambda text: clock.say(f"{self.name}: {text.strip()}"), progress=False)
        self.clock, self.name = clock, stages.environments(config)[0]
        for name, function in self.functions.items():
            self.functions[name] = self._with_free_memory(function)

    def _with_free_memory(self, function: Any) -> Any:
        def call() -> None:
            gc.collect()
            if torch.cuda.is_available():
                torch.cuda.empty_cache()
            function()

        return call

    def _shared_settings(self, environment: str) -> dict[str, Any]:
        return {**super()._shared_settings(environment), "concurrency": 256}

    def sft(self) -> None:
        """SFT to its end, then the weights with the least loss on held-out demonstrations; nothing else is saved."""
        config, best = stages.sft_config(self.config), BestWeights("eval/loss", -1)

        def on_step(step: int, values: dict[str, float]) -> None:
            best.offer(run, step, values)
            if "eval/loss" in values:
                self.log(f"SFT {step}: loss {values['actor/loss']:.3f}, held out {values['eval/loss']:.3f}")

        run = build_supervised.build_sft(config, on_step, self.log)
        run.checkpoints, run.settings = None, replace(run.settings, keep_best=False)
        asyncio.run(self._finish(run, best, stages.model_path(self.config, "sft")))

    async def _finish(self, run: Run, best: BestWeights, model: str) -> None:
        """Train to the end or until a stop is requested, and save the best weights."""
        best.keep(run)
        try:
            try:
                await run.train()
            except KeyboardInterrupt:
                self.log(f"the time for RL is up at step {run.state.step}")
            best.restore(run)
            run.policy.save(Path(model))
        finally:
            await run.policy.close()
        record = {"steps": run.state.step, **best.record()}
        (Path(model).parent / "chosen.json").write_text(json.dumps(record) + "\n")

    def train(self) -> None:
        """RL until the time is up, then the weights with the best validation, those of SFT among them."""
        clock, best = self.clock, BestWeights("val/success/mean", 1)
        evaluation = max(MIN_EVALUATION_SECONDS, 1.5 * self.stage_log.usage["eval-sft"].seconds)
        step_seconds: list[float] = []

        def on_step(step: int, values: dict[str, float]) -> None:
            best.offer(run, step, values)
            step_seconds.append(values.get("timing/rollout", 0.0) + values.get("timing/update", 0.0))
            if step <= 2 or step % 10 == 0:
                val = f", validation {values['val/success/mean']:.2f}" if "val/success/mean" in values else ""
                success = values.get("success/mean", values.get("reward/mean", 0.0))
                self.log(
                    f"step {step}: success {success:.2f}{val}, mismatch "
                    f"{values.get('mismatch/logprob/mean', 0.0):.2g}, {values.get('timing/rollout', 0.0):.1f} + "
                    f"{values.get('timing/update', 0.0):.1f} s"
                )
            if clock.left < evaluation + 2 * max(step_seconds[-5:]):
                run.request_stop()

        run = build.build_run(stages.rl_config(self.config), on_step=on_step, say=self.log)
        run.checkpoints, run.settings = None, replace(run.settings, keep_best=False, save_on_stop=False)
        asyncio.run(self._finish(run, best, stages.model_path(self.config, "rl")))


class BestWeights:
    """The weights of the best validation, kept in memory: a checkpoint of this model has 2 GB. The first of equals."""

    def __init__(self, metric: str, sign: int) -> None:
        """`sign`: 1 where more is better, -1 where less is."""
        self.metric, self.sign = metric, sign
        self.step, self.value = 0, float("-inf")
        self.weights: dict[str, torch.Tensor] = {}
        self.values: list[tuple[int, float]] = []

    def keep(self, run: Run) -> None:
        """Copy the current weights."""
        self.weights = {name: tensor.detach().cpu().clone() for name, tensor in weights_of(run).items()}

    def offer(self, run: Run, step: int, values: dict[str, float]) -> None:
        if not self.values and run.state.best_step == 0 and run.state.best_value is not None:
            self.value = self.sign * run.state.best_value  # of the validation before the first step
            self.values.append((0, run.state.best_value))
        value = values.get(self.metric)
        if value is None:
            return
        self.values.append((step, value))
        if self.sign * value > self.value:
            self.step, self.value = step, self.sign * value
            self.keep(run)

    def restore(self, run: Run) -> None:
        """Put the best weights back, unless the last ones are they or nothing was validated."""
        if self.values and self.step != run.state.step:
            with torch.no_grad():
                for name, tensor in weights_of(run).items():
                    tensor.copy_(self.weights[name])

    def record(self) -> dict[str, Any]:
        return {"metric": self.metric, "best_step": self.step, "validations": self.values}


def weights_of(run: Run) -> dict[str, torch.Tensor]:
    return dict(run.policy.loaded.model.named_parameters())


def read_results(folder: Path) -> dict[str, Any]:
    """The figures of one environment, finished or not."""
    row: dict[str, Any] = {"evaluations": {}}
    files = {"stages": folder / "stages.json"} | {key: folder / key / "chosen.json" for key in ("sft", "rl")}
    row |= {key: read_json(path) for key, path in files.items()}
    for model in stages.MODELS:
        for path in sorted((folder / "eval" / model).glob("*.json")):
            row["evaluations"][model] = (read_json(path) or {}).get("aggregated_metrics")
    row["results"] = read_json(folder / "logs" / "evaluation_results.json")
    for stage, keys in {"sft": ("actor/loss", "eval/loss"), "rl": RL_CURVES}.items():
        rows = json_lines(folder / stage / "metrics.jsonl")
        curves = {key: [[row["step"], row[key]] for row in rows if key in row] for key in keys}
        row[f"{stage}_curves"] = {key: thinned(curve) for key, curve in curves.items() if curve}
    return row


RL_CURVES = (
    "success/mean", "reward/mean", "val/success/mean", "mismatch/logprob/mean", "response_length/mean",
    "rollout/truncated",
)  # fmt: skip


def thinned(curve: list[list[float]], count: int = 200) -> list[list[float]]:
    return curve[:: max(1, len(curve) // count)]


def read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def json_lines(path: Path) -> list[dict[str, Any]]:
    """The lines of a file; the last one may be half written."""
    rows = []
    for line in path.read_text().splitlines() if path.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def write_record(out: Path, names: list[str], clock: Clock, errors: dict[str, str]) -> dict[str, Any]:
    record = {
        "seconds": clock.seconds, "device": loader.resolve_device().describe(), "torch": torch.__version__,
        "date": time.strftime("%Y-%m-%d"), "errors": errors,
        "environments": {name: read_results(out / stages.file_name(name)) for name in names},
    }  # fmt: skip
    temporary = out / "affine_gpu.json.new"
    temporary.write_text(json.dumps(record, indent=1) + "\n")
    temporary.replace(out / "affine_gpu.json")
    return record


def markdown(record: dict[str, Any]) -> str:
    """The figures as a table for docs/affine.md."""
    lines = ["| | base | SFT | RL | RL against SFT | SFT updates | RL steps |", "|---|---|---|---|---|---|---|"]
    for name, row in record["environments"].items():
        cells = []
        for model in stages.MODELS:
            evaluation = row["evaluations"].get(model)
            low, high = (evaluation["success_low"], evaluation["success_high"]) if evaluation else (0.0, 0.0)
            cells.append(f"{evaluation['success_rate']:.3f} [{low:.3f}, {high:.3f}]" if evaluation else "–")
        compared = (row["results"] or {}).get("comparisons", [])
        verdict = compared[-1]["verdict"] if compared else "–"
        steps = [f"{row[key]['best_step']} of {row[key]['steps']}" if row[key] else "–" for key in ("sft", "rl")]
        lines.append(f"| {' | '.join([name, *cells, verdict, *steps])} |")
    return "\n".join(lines)


def run_environment(name: str, args: argparse.Namespace) -> None:
    """One environment's pipeline in this process."""
    if sys.platform == "linux":  # whoever started this may be killed: nobody is to go on using the card then
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
    faulthandler.dump_traceback_later(max(60.0, 60 * args.minutes + GRACE_SECONDS - 5))
    clock = Clock(args.minutes)
    loader.GPU_BATCH_SIZE = SIZES[name].slots
    runner = TimedPipeline(config_of(name, args.out, args.tiny), clock)
    result = runner.run(args.until)
    if result is not None:
        print("\n".join(result.lines()), flush=True)


def run_environments(names: list[str], args: argparse.Namespace) -> dict[str, Any]:
    """All environments, `--at-once` processes at a time; each has until the end of the time."""
    clock, waiting, errors = Clock(args.minutes), list(names), dict[str, str]()
    running: dict[str, tuple[subprocess.Popen[bytes], Any, float]] = {}
    args.out.mkdir(parents=True, exist_ok=True)
    while waiting or running:
        while waiting and len(running) < args.at_once:
            name = waiting.pop(0)
            # A share of the time where not all run at once, and all of what is left in the last round.
            rounds = -(-(len(waiting) + 1) // args.at_once)
            share = clock.left / rounds
            words = ["--environment", name, "--out", str(args.out), "--minutes", f"{share / 60:.3f}"]
            words += ["--tiny"] if args.tiny else []
            words += ["--until", args.until] if args.until else []
            log = (args.out / f"{stages.file_name(name)}.log").open("ab")
            command = [sys.executable, "-u", __file__, *words]
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
            running[name] = (process, log, clock.seconds + share + GRACE_SECONDS)
            clock.say(f"{name} starts")
        time.sleep(POLL_SECONDS)
        for name, (process, log, end) in list(running.items()):
            if process.poll() is None and clock.seconds < end:
                continue
            if process.poll() is None:
                errors[name] = "ended from outside: its time was up"
                process.kill()
            elif process.returncode:
                errors[name] = f"exit code {process.returncode}"
            process.wait()
            log.close()
            del running[name]
            clock.say(f"{name} {errors.get(name, 'is done')}")
        write_record(args.out, names, clock, errors)
    return write_record(args.out, names, clock, errors)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {', '.join(SIZES)}, without what is before the colon")
    parser.add_argument("--environment", help=argparse.SUPPRESS)  # this process is to do that one itself
    parser.add_argument("--out", type=Path, default=Path("runs/affine-gpu"))
    parser.add_argument("--minutes", type=float, default=18.0)
    parser.add_argument("--at-once", type=int, default=8)
    parser.add_argument("--until", choices=stages.STAGES, help="stop after this stage")
    parser.add_argument("--tiny", action="store_true", help="small sizes, to show that it works")
    parser.add_argument("--table", type=Path, help="print the table of this affine_gpu.json, and do nothing else")
    args = parser.parse_args()
    if args.table:
        print(markdown(json.loads(args.table.read_text())))
        return
    if args.environment:
        run_environment(args.environment, args)
        return
    short = {name.partition(":")[2]: name for name in SIZES}
    unknown = set(args.only.split(",")) - set(short) if args.only else set()
    if unknown:
        raise SystemExit(f"There is no {', '.join(sorted(unknown))}; choose among {', '.join(short)}.")
    names = [name for key, name in short.items() if not args.only or key in args.only.split(",")]
    os.environ.setdefault("OMP_NUM_THREADS", "2")
    loader.model_folder(
        "tiny" if args.tiny else "smollm2"
    )  # converted once, before all processes want it at the same time
    record = run_environments(names, args)
    print(markdown(record), flush=True)
    if not args.tiny and not args.until and not record["errors"]:
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    if record["errors"]:
        raise SystemExit("; ".join(f"{name}: {text}" for name, text in record["errors"].items()))


if __name__ == "__main__":
    main()
