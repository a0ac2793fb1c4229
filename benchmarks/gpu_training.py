"""A real training on one GPU: SmolLM2-135M from demonstrations to practice, and what held-out tasks say of it.

    python benchmarks/gpu_training.py [--only math,math-lora,textcraft] [--out runs/gpu] [--minutes 20] [KEY=VALUE ...]

For each case: demonstrations of the expert, imitation to its best validation, the same test tasks examined, practice by
the case's recipe, the same test tasks again; then McNemar's test over the pairs, intervals, and one HTML report of all
cases. KEY=VALUE are further keys of `practicum train` (`trainer.total_training_steps=80`).
Every case runs in a process of its own: one that fails or hangs does not take the others with it. Its time is what is
left, shared among the cases left; practice that has used it up is examined as it stands. `gpu_training.json` in --out
has all figures so far, after every case. Whatever is finished is not done again, and practice goes on from its last
checkpoint: run the same command again after a break.
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
import signal
import subprocess
import sys
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
EXAMINING = 45.0
"""Seconds of a case's time that practice leaves to the last examination."""
GRACE = 60.0
"""Seconds beyond its time after which a case is ended from outside."""


@dataclass(frozen=True)
class Case:
    """A recipe and its start: the best of the validations of imitation on `checked` tasks."""

    recipe: str
    model: str = "smollm2"
    lora_rank: int = 0
    extra: tuple[str, ...] = ()
    demonstrations: int = 512
    epochs: int = 6
    batch: int = 16
    lr: float = 5e-5
    checked: int = 150
    check_every: int = 16
    examined: int = 600


CASES = {
    "math": Case("math-smollm2-gpu"),
    "math-lora": Case(
        "math-smollm2-gpu", lora_rank=16, lr=3e-4,
        extra=("actor_rollout_ref.actor.optim.lr=2e-4", "trainer.total_training_steps=60"),
    ),
    "textcraft": Case("textcraft-smollm2-gpu", examined=300, checked=100),
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
    """A stage had to be left off; what it has written is there."""


def agent_of(config: TrainConfig, world: build.RunComponents, temperature: float) -> Agent:
    sampling = Sampling(temperature, max_tokens=settings.max_reply_tokens(config))
    return Agent(format=world.format, max_turns=config.agent.max_turns, sampling=sampling)


async def make_start(case: Case, config: TrainConfig, folder: Path, seed: int, clock: Clock) -> None:
    """The SFT start, with `imitation.json` beside the weights: what it took."""
    begun, where, world = clock.seconds, settings.find_device(config), build.build_components(config)
    loaded = loader.load(case.model, where.dtype, where.device)
    if case.lora_rank:
        loaded = lora.add_adapter(loaded, lora.LoRASettings(case.lora_rank, 2 * case.lora_rank), seed)
    policy = TrainablePolicy(loaded, config.agent.template, max_batch=where.batch_size)
    shown = agent_of(config, world, 1.0)
    engine = ScriptedEngine.of("expert", world.environment, make_format(shown.format), policy.renderer)
    tasks = world.environment.tasks("train", case.demonstrations, 1000 * seed + 1)
    episodes = await run_episodes(plan_attempts(tasks, 1, seed), world.make_environment, shown, engine, policy.renderer)
    panel = Panel(tuple(world.environment.tasks("val", case.checked, 1000 * seed)), seed)
    rates: list[float] = []

    async def validate() -> EvalResult:
        result, _ = await policy.evaluate("val", panel, world.make_environment, agent_of(config, world, 0.0))
        rates.append(result.success_rate)
        clock.say(f"imitation: {rates[-1]:.0%} of {case.checked} validation tasks")
        if clock.over:
            raise OutOfTime("imitation")
        return result

    sft_settings = SFTSettings(
        num_epochs=case.epochs, batch_size=case.batch, gradient_accumulation_steps=1, learning_rate=case.lr,
        warmup_steps=2, scheduler_type="constant", seed=seed, check_every=case.check_every,
    )  # fmt: skip
    try:
        state = await train_sft(policy, episodes, sft_settings, folder / "sft", evaluate=validate)
        policy.save(folder)
    finally:
        await policy.close()
    took = {
        "updates": state.step,
        "best_step": state.best_step,
        "demonstrations": len(episodes),
        "validation": rates,
        "seconds": clock.seconds - begun,
    }
    (folder / "imitation.json").write_text(json.dumps(took) + "\n")
    clock.say(
        f"imitation: {state.step} updates of {case.batch}, the best after {state.best_step}, "
        f"validation {' '.join(f'{rate:.0%}' for rate in rates)}"
    )


def training_config(case: Case, out: Path, name: str, seed: int, extra: list[str]) -> TrainConfig:
    start = out / name / "start"
    model = [f"actor_rollout_ref.model.path={start}"]
    if case.lora_rank:
        model = [f"actor_rollout_ref.model.path={case.model}", f"actor_rollout_ref.model.lora_adapter_path={start}"]
    return resolve_train(
        [
            f"recipe={case.recipe}", *model, f"trainer.seed={seed}", f"trainer.default_local_dir={out}",
            f"trainer.project_name={name}", "trainer.experiment_name=rl", "trainer.logger=[]",
            "trainer.val_before_train=false", "trainer.test_freq=20", "trainer.save_freq=20", *case.extra, *extra,
        ]
    ).config  # fmt: skip


async def practise(config: TrainConfig, clock: Clock) -> Path:
    """Practice to its end, or to the end of the time: where the model is, `model` or `model-at-STEP`."""
    began = clock.seconds

    def stepped(step: int, values: dict[str, float]) -> None:
        if step <= 3 or step % 5 == 0:
            val = f", validation {values['val/success/mean']:.2f}" if "val/success/mean" in values else ""
            clock.say(
                f"step {step}: success {values.get('success/mean', values.get('reward/mean', 0.0)):.2f}{val}, "
                f"mismatch {values.get('mismatch/logprob/mean', 0.0):.2g}, "
                f"{values['timing/rollout']:.2f} + {values['timing/update']:.2f} s"
            )
        if clock.left < EXAMINING:
            run.request_stop()

    run = build.build_run(config, on_step=stepped)
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
    clock.say(f"practice: steps {before} to {run.state.step} in {clock.seconds - began:.0f} s")
    return target


def examine(case: Case, config: TrainConfig, policy: Path, result: Path, name: str, panel: Path | None) -> None:
    agent = config.agent
    flags = ["--env", str(settings.environment_name(config)), "--policy", str(policy), "--name", name,
             "--max-turns", str(agent.max_turns), "--max-tokens", str(settings.max_reply_tokens(config)),
             "--out", str(result), "--level", "0.95", "--concurrency", "512",
             "--device", settings.find_device(config).device,
             *([] if agent.agent_type is None else ["--format", agent.agent_type]),
             *([] if agent.template is None else ["--template", agent.template]),
             *(["--base", case.model] if case.lora_rank else []),
             *(["--panel", str(panel)] if panel else ["--tasks", str(case.examined), "--seed", "7"])]  # fmt: skip
    for key, value in agent.environment_args.items():
        plain = list(value) if not isinstance(value, str | int | float) else value
        flags += ["--env-arg", f"{key}={json.dumps(plain)}"]
    if eval_command.run(flags):
        raise SystemExit(f"nothing could be scored: {result}")


def free() -> None:
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def learn(name: str, case: Case, out: Path, seed: int, clock: Clock, extra: list[str]) -> None:
    """One case from whatever stands in its folder to its comparison, or as far as its time goes."""
    folder = out / name
    before = folder / "sft.json"
    clock.say(f"-- {name}")
    plain = resolve_train([f"recipe={case.recipe}", *case.extra, *extra]).config
    if not (folder / "start" / "imitation.json").exists():
        asyncio.run(make_start(case, plain, folder / "start", seed, clock))
        free()
    if not before.exists():
        examine(case, plain, folder / "start", before, f"{name}: SFT", None)
        free()
    model = folder / "rl" / "model"
    if not model.exists():
        if clock.left < EXAMINING:
            raise OutOfTime("practice")
        model = asyncio.run(practise(training_config(case, out, name, seed, extra), clock))
        free()
    part = model.name.removeprefix("model")  # "" where practice has come to its end
    after = folder / f"rl{part}.json"
    if not after.exists():
        examine(case, plain, model, after, f"{name}: GRPO{part}", folder / "sft.run" / "panel.json")
    compare_command.run([str(before), str(after), "--level", "0.95", "--json", str(folder / f"comparison{part}.json")])


def lines_of(file: Path) -> list[dict[str, Any]]:
    """JSON lines; the last one may be half written."""
    found = []
    for line in file.read_text().splitlines() if file.exists() else []:
        try:
            found.append(json.loads(line))
        except ValueError:
            break
    return found


def gathered(folder: Path) -> dict[str, Any]:
    """What a case has to show, finished or not."""
    timing, metrics = lines_of(folder / "rl" / "timing.jsonl"), lines_of(folder / "rl" / "metrics.jsonl")
    spent = {key: sum(row.get(f"timing/{key}", 0.0) for row in timing) for key in ("rollout", "credit", "update")}
    curves = {
        key: [[row["step"], row[key]] for row in metrics if key in row]
        for key in ("success/mean", "reward/mean", "val/success/mean", "mismatch/logprob/mean")
    }
    row: dict[str, Any] = {
        "finished": (folder / "comparison.json").exists(),
        "practice": {"steps": len(timing), "seconds": spent, "curves": {k: v for k, v in curves.items() if v}},
    }
    compared = sorted(folder.glob("comparison*.json"), key=lambda file: file.stat().st_mtime)
    for key, file in {"imitation": folder / "start" / "imitation.json", "sft": folder / "sft.json"}.items():
        if file.exists():
            found = json.loads(file.read_text())
            row[key] = found.get("aggregated_metrics", found)
    if compared:
        row["comparison"] = json.loads(compared[-1].read_text())
    return row


def run_apart(words: list[str], seconds: float) -> str:
    """A case in a process of its own, at most so long; what went wrong, or nothing."""
    process = subprocess.Popen([sys.executable, "-u", __file__, *words])
    try:
        code = process.wait(seconds)
    except subprocess.TimeoutExpired:
        return f"ended from outside after {seconds:.0f} s"
    finally:
        process.kill()
        process.wait()
    return "" if code == 0 else f"exit code {code}"


def run_cases(names: list[str], out: Path, seed: int, minutes: float, tiny: bool, words: list[str]) -> dict[str, Any]:
    """`words`: what else a case's process is told."""
    clock, wrong = Clock(minutes), dict[str, str]()
    out.mkdir(parents=True, exist_ok=True)
    record: dict[str, Any] = {}
    known = TINY if tiny else CASES
    for number, name in enumerate(names):
        share = clock.left / (len(names) - number)
        if share < EXAMINING:
            wrong[name] = "not begun: the time is up"
        else:
            own = ["--case", name, "--out", str(out), "--seed", str(seed), "--minutes", f"{share / 60:.3f}"]
            wrong[name] = run_apart([*own, *(["--tiny"] if tiny else []), *words], share + GRACE)
        if wrong[name]:
            clock.say(f"{name}: {wrong[name]}")
        record = {
            "seed": seed, "seconds": clock.seconds,
            "place": loader.resolve_device().describe(), "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"), "wrong": {key: text for key, text in wrong.items() if text},
            "cases": {one: gathered(out / one) for one in known if (out / one).is_dir()},
        }  # fmt: skip
        (out / "gpu_training.json").write_text(json.dumps(record, indent=1) + "\n")
    made = [out / name for name in known if (out / name / "sft.json").exists()]
    if made:
        try:
            report_command.run([*map(str, made), "--out", str(out / "report.html"), "--episodes-mb", "4"])
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
    parser.add_argument("--target", type=float, help="share of validation tasks at which imitation ends")
    parser.add_argument("--sft-lr", type=float)
    parser.add_argument("--examined", type=int, help="test tasks")
    parser.add_argument("--out", type=Path, default=Path("runs/gpu"))
    parser.add_argument("extra", nargs="*", metavar="KEY=VALUE")
    args = parser.parse_intermixed_args()
    cases = TINY if args.tiny else CASES
    wanted = [args.case] if args.case else args.only.split(",") if args.only else list(cases)
    for name in wanted:
        if name not in cases:
            raise SystemExit(f"There is no case '{name}'; choose among {', '.join(cases)}.")
    given = {"target": args.target, "lr": args.sft_lr, "examined": args.examined}
    changed = {key: value for key, value in given.items() if value is not None}
    if args.case:
        if sys.platform == "linux":  # whoever started this may be killed: nobody is to go on using the card then
            ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        faulthandler.dump_traceback_later(60 * args.minutes + GRACE - 5)
        try:
            learn(args.case, replace(cases[args.case], **changed), args.out, args.seed, Clock(args.minutes), args.extra)
        except OutOfTime as error:
            raise SystemExit(f"{args.case}: the time is up in {error}; run the same command again to go on") from None
        return
    flags = {"target": "--target", "lr": "--sft-lr", "examined": "--examined"}
    words = [word for key, value in changed.items() for word in (flags[key], str(value))]
    record = run_cases(wanted, args.out, args.seed, args.minutes, args.tiny, [*words, *args.extra])
    if not args.tiny and all(row["finished"] for row in record["cases"].values()):
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    if record["wrong"]:
        raise SystemExit("; ".join(f"{name}: {text}" for name, text in record["wrong"].items()))


if __name__ == "__main__":
    main()
