"""A real training on one GPU: SmolLM2-135M from demonstrations to practice, and what held-out tasks say of it.

    python benchmarks/gpu_training.py [--only math,math-lora,textcraft] [--out runs/gpu] [--minutes 20] [KEY=VALUE ...]

For each case: demonstrations of the expert, imitation until a stated share of validation tasks is solved, the same test
tasks examined, practice by the case's recipe, the same test tasks again; then McNemar's test over the pairs, intervals,
and one HTML report of all cases. KEY=VALUE are further keys of `practicum train` (`trainer.total_training_steps=80`).
Whatever is finished is not done again, and practice goes on from its last checkpoint: run the same command again after
a break. With --minutes, no stage is begun and practice stops (with a checkpoint) once so much time has gone.
"""

from __future__ import annotations

from gpu_legs import needs

needs.prepare()

import argparse
import asyncio
import gc
import json
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from practicum import experiment
from practicum.agent import Agent
from practicum.cli import compare as compare_command
from practicum.cli import eval as eval_command
from practicum.cli import report as report_command
from practicum.config import TrainConfig, resolve
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.evaluation.panel import Panel
from practicum.models import loader, lora, place
from practicum.rollout import attempts, run_episodes
from practicum.training.apprentice import Apprentice
from practicum.training.sft import SFTSettings, imitate

RECIPES = Path(__file__).parent.parent / "recipes"
RESULTS = Path(__file__).parent / "results" / "gpu_training.json"


@dataclass(frozen=True)
class Case:
    """A recipe and its start. Imitation ends when `target` of `checked` validation tasks are solved."""

    recipe: str
    model: str = "smollm2"
    lora_rank: int = 0
    extra: tuple[str, ...] = ()
    demonstrations: int = 512
    epochs: int = 2
    batch: int = 16
    lr: float = 5e-5
    target: float = 0.35
    checked: int = 150
    check_every: int = 2
    examined: int = 600


CASES = {
    "math": Case("math-smollm2-gpu"),
    "math-lora": Case("math-smollm2-gpu", lora_rank=16, lr=3e-4, extra=("actor_rollout_ref.actor.optim.lr=1e-4",)),
    "textcraft": Case("textcraft-smollm2-gpu", examined=300, checked=100),
}
TINY = {
    "math": Case(
        "math-tiny", "tiny", 0, ("trainer.total_training_steps=1", "data.train_batch_size=2", "agent.num_chains=2"),
        16, 1, 8, 1e-3, 0.0, 4, 2, 8,
    ),
    "math-lora": Case(
        "math-tiny", "tiny", 4, ("trainer.total_training_steps=1", "data.train_batch_size=2", "agent.num_chains=2"),
        16, 1, 8, 1e-3, 0.0, 4, 2, 8,
    ),
}  # fmt: skip


class Clock:
    """Seconds since the start, and whether there are any left."""

    def __init__(self, minutes: float) -> None:
        self.begun, self.limit = time.monotonic(), 60 * minutes

    @property
    def gone(self) -> float:
        return time.monotonic() - self.begun

    @property
    def over(self) -> bool:
        return self.gone > self.limit

    def say(self, text: str) -> None:
        print(f"[{self.gone:5.0f} s] {text}", flush=True)


def agent_of(config: TrainConfig, world: experiment.World, temperature: float) -> Agent:
    sampling = Sampling(temperature, max_tokens=experiment.reply_tokens(config))
    return Agent(format=world.format, max_turns=config.agent.max_turns, sampling=sampling)


async def make_start(case: Case, config: TrainConfig, folder: Path, seed: int, clock: Clock) -> None:
    """The SFT start, with `imitation.json` beside the weights: what it took."""
    begun, where, world = clock.gone, experiment.find_place(config), experiment.build_world(config)
    loaded = loader.load(case.model, where.dtype, where.device)
    if case.lora_rank:
        loaded = lora.add_adapter(loaded, lora.LoRASettings(case.lora_rank, 2 * case.lora_rank), seed)
    apprentice = Apprentice(loaded, config.agent.template, max_batch=where.sequences)
    shown = agent_of(config, world, 1.0)
    engine = ScriptedEngine.of("expert", world.environment, shown.make_format(), apprentice.renderer)
    tasks = world.environment.tasks("train", case.demonstrations, 1000 * seed + 1)
    episodes = await run_episodes(attempts(tasks, 1, seed), world.make_environment, shown, engine, apprentice.renderer)
    panel = Panel(tuple(world.environment.tasks("val", case.checked, 1000 * seed)), seed)
    rates: list[float] = []

    async def good_enough() -> bool:
        result, _ = await apprentice.examine("val", panel, world.make_environment, agent_of(config, world, 0.0))
        rates.append(result.success_rate)
        clock.say(f"imitation: {rates[-1]:.0%} of {case.checked} validation tasks")
        return rates[-1] >= case.target

    settings = SFTSettings(
        epochs=case.epochs, batch_size=case.batch, lr=case.lr, warmup=2, schedule="constant", seed=seed,
        check_every=case.check_every,
    )  # fmt: skip
    try:
        updates = await imitate(apprentice, episodes, settings, good_enough=good_enough)
        apprentice.save(folder)
    finally:
        await apprentice.close()
    took = {"updates": updates, "demonstrations": len(episodes), "validation": rates, "seconds": clock.gone - begun}
    (folder / "imitation.json").write_text(json.dumps(took) + "\n")
    clock.say(f"imitation: {updates} updates of {case.batch}, validation {' '.join(f'{rate:.0%}' for rate in rates)}")


def training_config(case: Case, out: Path, name: str, seed: int, extra: list[str]) -> TrainConfig:
    start = out / name / "start"
    model = [f"actor_rollout_ref.model.path={start}"]
    if case.lora_rank:
        model = [f"actor_rollout_ref.model.path={case.model}", f"actor_rollout_ref.model.lora_adapter_path={start}"]
    return resolve(
        [
            f"recipe={case.recipe}", *model, f"trainer.seed={seed}", f"trainer.default_local_dir={out}",
            f"trainer.project_name={name}", "trainer.experiment_name=rl", "trainer.logger=[]",
            "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.save_freq=20", *case.extra, *extra,
        ],
        RECIPES,
    )  # fmt: skip


async def practise(config: TrainConfig, clock: Clock) -> bool:
    """Practice to its end (True), or to the end of the time."""
    began = clock.gone

    def stepped(step: int, values: dict[str, float]) -> None:
        if step % 10 == 0:
            clock.say(
                f"step {step}: success {values.get('success/mean', values.get('reward/mean', 0.0)):.2f}, "
                f"mismatch {values.get('mismatch/logprob/mean', 0.0):.2g}, "
                f"{values['timing/rollout']:.2f} + {values['timing/update']:.2f} s"
            )
        if clock.over:
            run._asked_to_stop = True

    run = experiment.build_run(config, on_step=stepped)
    try:
        before = run.standing.step
        try:
            await run.go()
        except KeyboardInterrupt:
            clock.say(f"the time is up at step {run.standing.step}; run the same command again to go on")
            return False
        run.apprentice.save(run.folder / "model")
    finally:
        await run.apprentice.close()
    clock.say(f"practice: steps {before} to {run.standing.step} in {clock.gone - began:.0f} s")
    return True


def examine(case: Case, config: TrainConfig, policy: Path, result: Path, name: str, panel: Path | None) -> None:
    agent = config.agent
    flags = ["--env", str(experiment.environment_name(config)), "--policy", str(policy), "--name", name,
             "--max-turns", str(agent.max_turns), "--max-tokens", str(experiment.reply_tokens(config)),
             "--out", str(result), "--level", "0.95", "--concurrency", "512",
             "--device", experiment.find_place(config).device,
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


def learn(name: str, case: Case, out: Path, seed: int, clock: Clock, extra: list[str]) -> dict[str, Any] | None:
    """One case from whatever stands in its folder to its comparison; None where the time ran out."""
    folder = out / name
    before, after, both = (folder / part for part in ("sft.json", "rl.json", "comparison.json"))
    clock.say(f"-- {name}")
    plain = resolve([f"recipe={case.recipe}", *case.extra, *extra], RECIPES)
    if not (folder / "start" / "imitation.json").exists():
        asyncio.run(make_start(case, plain, folder / "start", seed, clock))
        free()
    if clock.over:
        return None
    if not before.exists():
        examine(case, plain, folder / "start", before, f"{name}: SFT", None)
        free()
    if not (folder / "rl" / "model").exists() and not asyncio.run(
        practise(training_config(case, out, name, seed, extra), clock)
    ):
        return None
    free()
    if not after.exists():
        examine(case, plain, folder / "rl" / "model", after, f"{name}: GRPO", folder / "sft.run" / "panel.json")
        free()
    compare_command.run([str(before), str(after), "--level", "0.95", "--json", str(both)])
    record: dict[str, Any] = json.loads(both.read_text())
    timing = [json.loads(line) for line in (folder / "rl" / "timing.jsonl").read_text().splitlines()]
    spent = {key: sum(row.get(f"timing/{key}", 0.0) for row in timing) for key in ("rollout", "credit", "update")}
    return {
        "imitation": json.loads((folder / "start" / "imitation.json").read_text()),
        "practice": {"steps": len(timing), "seconds": spent},
        "comparison": record,
    }


def run_cases(cases: dict[str, Case], out: Path, seed: int, minutes: float, extra: list[str]) -> dict[str, Any]:
    clock, found = Clock(minutes), dict[str, Any]()
    for name, case in cases.items():
        if clock.over:
            clock.say(f"{name} is not begun: the time is up")
            continue
        row = learn(name, case, out, seed, clock, extra)
        if row is not None:
            found[name] = row
    made = [out / name for name in found]
    if made:
        page = out / "report.html"
        report_command.run([*map(str, made), "--out", str(page), "--episodes-mb", "4"])
        clock.say(f"report in {page}")
    return {"seed": seed, "seconds": clock.gone, "place": place.find().describe(), "torch": torch.__version__,
            "date": time.strftime("%Y-%m-%d"), "cases": found}  # fmt: skip


def leg(size: Any) -> list[dict[str, Any]]:
    """For `benchmarks/gpu.py --only train`."""
    cases = TINY if size.tiny else CASES
    return [run_cases(cases, Path("runs/gpu-tiny" if size.tiny else "runs/gpu"), 0, 20.0, [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", help=f"some of {','.join(CASES)}")
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
    wanted = args.only.split(",") if args.only else list(cases)
    for name in wanted:
        if name not in cases:
            raise SystemExit(f"There is no case '{name}'; choose among {', '.join(cases)}.")
    given = {"target": args.target, "lr": args.sft_lr, "examined": args.examined}
    changed = {key: value for key, value in given.items() if value is not None}
    record = run_cases(
        {name: replace(cases[name], **changed) for name in wanted}, args.out, args.seed, args.minutes, args.extra
    )
    if not args.tiny and len(record["cases"]) == len(wanted):
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
