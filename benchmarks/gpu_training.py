"""SFT and RL of SmolLM2-135M on one GPU, evaluated on held-out tasks.

    python benchmarks/gpu_training.py [--only math,math-lora,textcraft] [--out runs/gpu] [--minutes 20] [--pack FOLDER]
        [KEY=VALUE ...]

For each case: evaluation of the base model on the test tasks, demonstrations of the expert, SFT to its best validation,
RL by the case's recipe, each evaluated on the same test tasks; then McNemar's test of RL against SFT, intervals, and
one HTML report of all cases. KEY=VALUE are further keys of `practicum train` (`trainer.total_training_steps=80`).
Every case runs in a process of its own, so that one that fails or hangs does not stop the others. Its time is an equal
share of what is left; when RL has used it up, the weights of that step are evaluated. `gpu_training.json` in --out has
all figures so far, after every case. Finished parts are not run again, and RL continues from its last checkpoint: run
the same command again after an interruption.

--pack writes what a report reads of each case (episodes, metrics, configuration, tokenizer; no weights) to
FOLDER/CASE.tar.gz, after every case, to be brought to another machine; see docs/gpu.md for the reports made of them.
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
import shutil
import signal
import subprocess
import sys
import tarfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from practicum.agent import Agent
from practicum.cli import compare as compare_command
from practicum.cli import eval as eval_command
from practicum.cli import report as report_command
from practicum.config.resolve import resolve_train
from practicum.config.train import TrainConfig
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.models import loader, lora
from practicum.registry import make_format
from practicum.rollout import run_episodes
from practicum.training import build, settings
from practicum.training.sft import SFTSettings, train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import plan_attempts

RESULTS = Path(__file__).parent / "results" / "gpu_training.json"
EVALUATION_SECONDS = 45.0
"""Seconds of a case's time that RL leaves to the last evaluation."""
GRACE_SECONDS = 60.0
"""Seconds beyond its time after which a case is ended from outside."""
WEIGHTS = (".safetensors", ".gguf", ".bin", ".pt")
CHECKPOINTS = ("global_step_", "last", "model")
"""Prefixes of the names of folders that hold weights only."""
MAX_PACK_BYTES = 15 << 20
"""A larger archive is cut into parts of this size."""


@dataclass(frozen=True)
class Case:
    """A recipe and its SFT model: the best of the validations on `num_validation_tasks` tasks."""

    recipe: str
    model: str = "smollm2"
    lora_rank: int = 0
    extra: tuple[str, ...] = ()
    demonstrations: int = 512
    epochs: int = 6
    batch: int = 16
    lr: float = 5e-5
    num_validation_tasks: int = 150
    check_every: int = 16
    num_test_tasks: int = 600


CASES = {
    "math": Case("math-smollm2-gpu"),
    "math-lora": Case(
        "math-smollm2-gpu", lora_rank=16, lr=3e-4,
        extra=("actor_rollout_ref.actor.optim.lr=2e-4", "trainer.total_training_steps=60"),
    ),
    "textcraft": Case("textcraft-smollm2-gpu", num_test_tasks=300, num_validation_tasks=100),
}  # fmt: skip
TINY = {
    "math": Case(
        "math-tiny", "tiny", 0, ("trainer.total_training_steps=1", "data.train_batch_size=2", "agent.num_chains=2"),
        16, 1, 8, 1e-3, 4, 2, 8,
    ),
    "math-lora": Case(
        "math-tiny", "tiny", 4, ("trainer.total_training_steps=1", "data.train_batch_size=2", "agent.num_chains=2"),
        16, 1, 8, 1e-3, 4, 2, 8,
    ),
}  # fmt: skip


class OutOfTime(Exception):
    """The time is up in a stage; what it has written is kept."""


def agent_of(config: TrainConfig, components: build.RunComponents, temperature: float) -> Agent:
    sampling = Sampling(temperature, max_tokens=settings.max_reply_tokens(config))
    return Agent(format=components.format, max_turns=config.agent.max_turns, sampling=sampling)


async def train_sft_model(case: Case, config: TrainConfig, folder: Path, seed: int, clock: Clock) -> None:
    """Train the SFT model; `sft_cost.json` beside its weights says what it took."""
    started, device, components = clock.seconds, settings.find_device(config), build.build_components(config)
    loaded = loader.load(case.model, device.dtype, device.device)
    if case.lora_rank:
        loaded = lora.add_adapter(loaded, lora.LoRASettings(case.lora_rank, 2 * case.lora_rank), seed)
    policy = TrainablePolicy(loaded, config.agent.template, max_batch=device.batch_size)
    agent = agent_of(config, components, 1.0)
    engine = ScriptedEngine.of("expert", components.environment, make_format(agent.format), policy.renderer)
    tasks = components.environment.tasks("train", case.demonstrations, 1000 * seed + 1)
    episodes = await run_episodes(
        plan_attempts(tasks, 1, seed), components.make_environment, agent, engine, policy.renderer
    )
    panel = Panel(tuple(components.environment.tasks("val", case.num_validation_tasks, 1000 * seed)), seed)
    rates: list[float] = []

    async def validate() -> EvalResult:
        result, _ = await policy.evaluate("val", panel, components.make_environment, agent_of(config, components, 0.0))
        rates.append(result.success_rate)
        clock.say(f"SFT: {100 * rates[-1]:.0f} % of {case.num_validation_tasks} validation tasks")
        if clock.over:
            raise OutOfTime("SFT")
        return result

    sft_settings = SFTSettings(
        num_epochs=case.epochs, batch_size=case.batch, gradient_accumulation_steps=1, learning_rate=case.lr,
        warmup_steps=2, scheduler_type="constant", seed=seed, check_every=case.check_every,
    )  # fmt: skip
    try:
        # Beside the weights and not among them: saving a model replaces its folder.
        state = await train_sft(policy, episodes, sft_settings, folder.parent / "sft-training", evaluate=validate)
        policy.save(folder)
    finally:
        await policy.close()
    took = {
        "updates": state.step,
        "best_step": state.best_step,
        "demonstrations": len(episodes),
        "validation": rates,
        "seconds": clock.seconds - started,
    }
    (folder / "sft_cost.json").write_text(json.dumps(took) + "\n")
    clock.say(
        f"SFT: {state.step} updates of {case.batch}, the best after {state.best_step}, "
        f"validation {' '.join(f'{100 * rate:.0f} %' for rate in rates)}"
    )


def training_config(case: Case, out: Path, name: str, seed: int, extra: list[str]) -> TrainConfig:
    start = out / name / "start"
    model = [f"actor_rollout_ref.model.path={start}"]
    if case.lora_rank:
        model = [f"actor_rollout_ref.model.path={case.model}", f"actor_rollout_ref.model.lora_adapter_path={start}"]
    return resolve_train(
        [
            f"recipe={case.recipe}", *model, f"trainer.seed={seed}", f"trainer.default_local_dir={out}",
            f"trainer.project_name={name}", "trainer.experiment_name=rl-training", "trainer.logger=[]",
            "trainer.val_before_train=true", "trainer.test_freq=20", "trainer.save_freq=20", *case.extra, *extra,
        ]
    ).config  # fmt: skip


async def train_rl(config: TrainConfig, clock: Clock) -> Path:
    """RL to its end, or until the time is up; the folder of the model, `model` or `model-at-STEP`."""
    started = clock.seconds

    def on_step(step: int, values: dict[str, float]) -> None:
        if step <= 3 or step % 5 == 0:
            val = f", validation {values['val/success/mean']:.2f}" if "val/success/mean" in values else ""
            clock.say(
                f"step {step}: success {values.get('success/mean', values.get('reward/mean', 0.0)):.2f}{val}, "
                f"mismatch {values.get('mismatch/logprob/mean', 0.0):.2g}, "
                f"{values['timing/rollout']:.2f} + {values['timing/update']:.2f} s"
            )
        if clock.left < EVALUATION_SECONDS:
            run.request_stop()

    run = build.build_run(config, on_step=on_step)
    try:
        before, target = run.state.step, run.folder / "model"
        try:
            await run.train()
        except KeyboardInterrupt:
            clock.say(f"the time is up at step {run.state.step}; run the same command again to go on")
            target = run.folder / f"model-at-{run.state.step}"
        run.policy.save(target)
    finally:
        await run.policy.close()
    clock.say(f"RL: steps {before} to {run.state.step} in {clock.seconds - started:.0f} s")
    return target


def evaluate_model(case: Case, config: TrainConfig, policy: str, result: Path, name: str) -> None:
    """Evaluate a model or adapter on the test tasks: those of the first evaluation in the same folder."""
    agent, panel = config.agent, next(iter(sorted(result.parent.glob("*.run/panel.json"))), None)
    flags = ["--env", str(settings.environment_name(config)), "--policy", policy, "--name", name,
             "--max-turns", str(agent.max_turns), "--max-tokens", str(settings.max_reply_tokens(config)),
             "--out", str(result), "--level", "0.95", "--concurrency", "512",
             "--device", settings.find_device(config).device,
             *([] if agent.agent_type is None else ["--format", agent.agent_type]),
             *([] if agent.template is None else ["--template", agent.template]),
             *(["--base", case.model] if case.lora_rank and policy != case.model else []),
             *(["--panel", str(panel)] if panel else ["--tasks", str(case.num_test_tasks), "--seed", "7"])]  # fmt: skip
    for key, value in agent.environment_args.items():
        plain = list(value) if not isinstance(value, str | int | float) else value
        flags += ["--env-arg", f"{key}={json.dumps(plain)}"]
    if eval_command.run(flags):
        raise SystemExit(f"nothing could be scored: {result}")


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def run_case(name: str, case: Case, out: Path, seed: int, clock: Clock, extra: list[str]) -> None:
    """Run what is left of one case, to its comparison or until its time is up."""
    folder = out / name
    base, before = folder / "base.json", folder / "sft.json"
    clock.say(f"-- {name}")
    plain = resolve_train([f"recipe={case.recipe}", *case.extra, *extra]).config
    if not base.exists():
        folder.mkdir(parents=True, exist_ok=True)
        evaluate_model(case, plain, case.model, base, f"{name}: base")
        free()
    if not (folder / "start" / "sft_cost.json").exists():
        asyncio.run(train_sft_model(case, plain, folder / "start", seed, clock))
        free()
    if not before.exists():
        evaluate_model(case, plain, str(folder / "start"), before, f"{name}: SFT")
        free()
    model = folder / "rl-training" / "model"
    if not model.exists():
        if clock.left < EVALUATION_SECONDS:
            raise OutOfTime("RL")
        model = asyncio.run(train_rl(training_config(case, out, name, seed, extra), clock))
        free()
    part = model.name.removeprefix("model")  # "" where RL has come to its end
    after = folder / f"rl{part}.json"
    if not after.exists():
        evaluate_model(case, plain, str(model), after, f"{name}: GRPO{part}")
    compare_command.run([str(before), str(after), "--level", "0.95", "--json", str(folder / f"comparison{part}.json")])


def lines_of(file: Path) -> list[dict[str, Any]]:
    """JSON lines; the last one may be half written."""
    rows = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            rows.append(json.loads(line))
        except ValueError:
            break
    return rows


def read_results(folder: Path) -> dict[str, Any]:
    """The figures of a case, finished or not."""
    training = folder / "rl-training"
    timing, metrics = lines_of(training / "timing.jsonl"), lines_of(training / "metrics.jsonl")
    spent = {key: sum(row.get(f"timing/{key}", 0.0) for row in timing) for key in ("rollout", "credit", "update")}
    curves = {
        key: [[row["step"], row[key]] for row in metrics if key in row]
        for key in ("success/mean", "reward/mean", "val/success/mean", "mismatch/logprob/mean")
    }
    row: dict[str, Any] = {
        "finished": (folder / "comparison.json").exists(),
        "rl": {"steps": len(timing), "seconds": spent, "curves": {k: v for k, v in curves.items() if v}},
    }
    compared = sorted(folder.glob("comparison*.json"), key=lambda file: file.stat().st_mtime)
    files = {"base": "base.json", "sft_training": "start/sft_cost.json", "sft": "sft.json"}
    for key, file in {key: folder / name for key, name in files.items()}.items():
        if file.exists():
            record = json.loads(file.read_text())
            row[key] = record.get("aggregated_metrics", record)
    if compared:
        row["comparison"] = json.loads(compared[-1].read_text())
    return row


def pack(folder: Path, target: Path) -> list[Path]:
    """Write a case without its weights as `target`/NAME.tar.gz, or as parts NAME.tar.gz.part0, .part1, ... of it."""
    target.mkdir(parents=True, exist_ok=True)

    def without_weights(member: tarfile.TarInfo) -> tarfile.TarInfo | None:
        name = Path(member.name).name
        weights = name.startswith(CHECKPOINTS) if member.isdir() else name.endswith(WEIGHTS)
        return None if weights else member

    path = target / f"{folder.name}.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        archive.add(folder, folder.name, filter=without_weights)
    content = path.read_bytes()
    if len(content) <= MAX_PACK_BYTES:
        return [path]
    path.unlink()
    parts = []
    for index, start in enumerate(range(0, len(content), MAX_PACK_BYTES)):
        parts.append(path.with_name(f"{path.name}.part{index}"))
        parts[-1].write_bytes(content[start : start + MAX_PACK_BYTES])
    return parts


def run_process(words: list[str], seconds: float) -> str:
    """Run a case in a process of its own, for at most `seconds`; return what went wrong, or ""."""
    process = subprocess.Popen([sys.executable, "-u", __file__, *words])
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"ended from outside after {seconds:.0f} s"
    finally:
        process.kill()
        process.wait()
    return "" if code == 0 else f"exit code {code}"


def run_cases(
    names: list[str], out: Path, seed: int, minutes: float, tiny: bool, words: list[str], packed: Path | None = None
) -> dict[str, Any]:
    """Run cases one after the other; `words` are further arguments of their processes, `packed` is --pack."""
    clock, errors = Clock(minutes), dict[str, str]()
    out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {}
    all_cases = TINY if tiny else CASES
    for index, name in enumerate(names):
        share = clock.left / (len(names) - index)
        if share < EVALUATION_SECONDS:
            errors[name] = "not begun: the time is up"
        else:
            case_flags = ["--case", name, "--out", str(out), "--seed", str(seed), "--minutes", f"{share / 60:.3f}"]
            errors[name] = run_process([*case_flags, *(["--tiny"] if tiny else []), *words], share + GRACE_SECONDS)
        if errors[name]:
            clock.say(f"{name}: {errors[name]}")
        record = {
            "seed": seed, "seconds": clock.seconds,
            "device": loader.resolve_device().describe(), "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"), "errors": {key: text for key, text in errors.items() if text},
            "cases": {case: read_results(out / case) for case in all_cases if (out / case).is_dir()},
        }  # fmt: skip
        (out / "gpu_training.json").write_text(json.dumps(record, indent=1) + "\n")
        if packed is not None and (out / name).is_dir():
            for file in pack(out / name, packed):
                clock.say(f"{file}: {file.stat().st_size / 2**20:.1f} MiB")
            shutil.copy(out / "gpu_training.json", packed)
    finished = [out / name for name in all_cases if (out / name / "sft.json").exists()]
    if finished:
        try:
            report_command.run([*map(str, finished), "--out", str(out / "report.html"), "--episodes-mb", "4"])
        except Exception as error:  # the figures are written; a page can be made of them later
            clock.say(f"no report: {type(error).__name__}: {error}")
    clock.say(f"figures in {out / 'gpu_training.json'}")
    return record


def leg(size: Any) -> list[dict[str, Any]]:
    """For `benchmarks/gpu.py --only train`."""
    names, out = list(TINY if size.tiny else CASES), Path("runs/gpu-tiny" if size.tiny else "runs/gpu")
    return [run_cases(names, out, 0, 20.0, size.tiny, [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {','.join(CASES)}")
    parser.add_argument("--case", help=argparse.SUPPRESS)  # this process is to do that one itself
    parser.add_argument("--tiny", action="store_true", help="the tiny model on CPU: shows that it works")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--sft-lr", type=float)
    parser.add_argument("--test-tasks", type=int, help="test tasks")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("--pack", type=Path, metavar="FOLDER", help="also write each case without weights as a .tar.gz")
    parser.add_argument("extra", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    cases = TINY if args.tiny else CASES
    selected = [args.case] if args.case else args.only.split(",") if args.only else list(cases)
    for name in selected:
        if name not in cases:
            raise SystemExit(f"There is no case '{name}'; choose among {', '.join(cases)}.")
    options = {"lr": args.sft_lr, "num_test_tasks": args.test_tasks}
    changed = {key: value for key, value in options.items() if value is not None}
    if args.case:
        if sys.platform == "linux":  # whoever started this may be killed: nobody is to go on using the card then
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        faulthandler.dump_traceback_later(60 * args.minutes + GRACE_SECONDS - 5)
        try:
            run_case(
                args.case, replace(cases[args.case], **changed), args.out, args.seed, Clock(args.minutes), args.extra
            )
        except OutOfTime as error:
            raise SystemExit(f"{args.case}: the time is up in {error}; run the same command again to go on") from None
        return
    flags = {"lr": "--sft-lr", "num_test_tasks": "--test-tasks"}
    words = [word for key, value in changed.items() for word in (flags[key], str(value))]
    record = run_cases(selected, args.out, args.seed, args.minutes, args.tiny, [*words, *args.extra], args.pack)
    if not args.tiny and all(row["finished"] for row in record["cases"].values()):
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    if record["errors"]:
        raise SystemExit("; ".join(f"{name}: {text}" for name, text in record["errors"].items()))


if __name__ == "__main__":
    main()
