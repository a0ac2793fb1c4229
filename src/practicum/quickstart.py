"""The whole way of an agent at a small size: demonstrations, SFT, reinforcement learning, evaluation.

It uses the same record, engine, trainers, training loop and statistics as larger runs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from practicum.agent import Agent
from practicum.data import store
from practicum.data.episode_times import TIMING_FILE, append_times
from practicum.data.run_folder import locked, write_atomic
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.evaluation.compare import Comparison, compare_pair
from practicum.evaluation.learning_curve import Mark, learning_curve
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult, mean, result_from_episodes
from practicum.evaluation.stats.intervals import LEVEL
from practicum.models import loader
from practicum.registry import make_format
from practicum.resources import RunResources
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.training.checkpoint import record_version
from practicum.training.objective import Objective
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.run import Run
from practicum.training.settings import RLSettings, RunSettings
from practicum.training.sft import SFTSettings, planned_steps, train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Trajectory, plan_attempts
from practicum.utils.tables import percent, percent_interval
from practicum.utils.terminal import Progress, coloured, duration, sparkline

MODEL = "tiny-pretrained"
DEMONSTRATIONS = 200
LEVELS = (1, 2, 3, 4)
"""Levels (numbers of steps) of the problems of the evaluation."""
DEMONSTRATION_LEVELS = (1, 2) * 24 + (3, 4)
"""Levels of the demonstrations: mostly easy problems, and few of the hard ones."""
RL_LEVELS = (1, 2, 3, 3, 3, 4, 4, 4)
"""Levels of RL's problems: mostly hard ones, since a group of attempts that all succeed teaches nothing."""
SFT_SAMPLES = 5000
"""Demonstrations that SFT sees, over all epochs: 25 epochs of 200."""
MIN_EPOCHS = 10
SFT_VALIDATIONS, RL_VALIDATIONS = 8, 4
COLOURS = {"sft": "#b26a00", "rl": "#1a7f37"}
STAGE_KEYS = {
    "SFT": "imitate (SFT)",
    "RL (GRPO)": "practise (GRPO)",
    **{f"evaluate {name}": f"examine {name}" for name in ("base", "sft", "rl")},
}
"""Names of stages in summary.json, which are older than those of the progress lines."""


@dataclass(frozen=True)
class QuickstartSettings:
    """The sizes and settings of all stages.

    The evaluation is of problems of `levels`, demonstrations of `demonstration_levels`, RL of `rl_levels`; a level that
    is listed twice has twice as many. The SFT model is the best of its validations on `check_tasks` tasks of `levels`,
    and so is the RL model.
    """

    sft: SFTSettings
    rl: RLSettings
    levels: tuple[int, ...] = LEVELS
    demonstration_levels: tuple[int, ...] = DEMONSTRATION_LEVELS
    rl_levels: tuple[int, ...] = RL_LEVELS
    demonstrations: int = DEMONSTRATIONS
    panel: int = 400
    check_tasks: int = 120
    max_tokens: int = 32
    temperature: float = 1.0
    eval_temperature: float = 0.0


def default_plan(seed: int, demonstrations: int = DEMONSTRATIONS) -> QuickstartSettings:
    """The plan of `practicum quickstart`; with more demonstrations fewer epochs, at least ten."""
    epochs = max(MIN_EPOCHS, SFT_SAMPLES // demonstrations)
    sft = SFTSettings(
        num_epochs=epochs, batch_size=8, gradient_accumulation_steps=1, learning_rate=1e-3, warmup_steps=30,
        scheduler_type="cosine", weight_decay=1.0, seed=seed,
    )  # fmt: skip
    return QuickstartSettings(
        demonstrations=demonstrations,
        sft=replace(sft, check_every=max(1, planned_steps(demonstrations, sft) // SFT_VALIDATIONS)),
        rl=RLSettings(
            total_training_steps=80, train_batch_size=16, num_chains=8, adv_estimator="grpo", lr=2e-4,
            lr_warmup_steps=5, objective=Objective(entropy_coeff=0.0, kl_loss_coef=0.0), seed=seed,
        ),
    )  # fmt: skip


class Quickstart:
    """One run of the plan into a folder."""

    def __init__(
        self, out: Path, seed: int, plan: QuickstartSettings, say: Callable[[str], None] = print, sft_only: bool = False
    ) -> None:
        """With `sft_only`, it ends with the evaluation of the SFT model."""
        self.out, self.seed, self.plan, self.say, self.sft_only = out, seed, plan, say, sft_only
        self.resources = RunResources(self.make_environment().make_resources())
        self.begun = time.monotonic()
        self.sft_validations: list[float] = []
        self.rl_validations: list[float] = []
        self.seconds: dict[str, float] = {}

    def load_model(self) -> loader.LoadedModel:
        return loader.load(MODEL)

    def make_environment(self, levels: tuple[int, ...] | None = None) -> MathEnvironment:
        """The environment with problems of these levels; by default those of the evaluation."""
        return MathEnvironment(levels=levels or self.plan.levels)

    def agent(self, temperature: float) -> Agent:
        sampling = Sampling(temperature, max_tokens=self.plan.max_tokens)
        return Agent(format="hf", max_turns=max(self.plan.levels) + 2, sampling=sampling)

    def tasks(self, split: str, count: int, stream: int, levels: tuple[int, ...] | None = None) -> list[Task]:
        """Problems of a split, of `levels` or of those of the evaluation; another `stream` has other problems."""
        return list(self.make_environment(levels).tasks(split, count, 1000 * self.seed + stream))

    def demonstration_tasks(self) -> list[Task]:
        return self.tasks("train", self.plan.demonstrations, 1, self.plan.demonstration_levels)

    def rl_tasks(self, count: int) -> list[Task]:
        return self.tasks("train", count, 2, self.plan.rl_levels)

    async def run(self) -> dict[str, Any]:
        """Run all stages; returns the summary that is also written to `summary.json`."""
        with locked(self.out, "choose another --out"):
            return await self._run()

    async def _run(self) -> dict[str, Any]:
        plan = self.plan
        self._claim_folder()
        record_version(self.out, 0)
        with Progress(f"build {MODEL}", 1) as progress:
            self.policy = TrainablePolicy(self.load_model(), max_batch=128)
            progress.advance()
        self.panel = Panel(tuple(self.tasks("test", plan.panel, 0)), self.seed)
        count = sum(parameter.numel() for parameter in self.policy.decoder.parameters())
        self.say(f"model  {MODEL}, {count / 1e6:.2f} M parameters: it copies, and solves nothing")
        self.say(f"env    math, levels {listed(plan.levels)}, calculator; "
                 f"panel {self.panel.hash} of {plan.panel} held-out tasks")  # fmt: skip
        self.say(f"data   {plan.demonstrations} demonstrations; RL on new problems, by answers alone")
        try:
            return await self.run_stages()
        finally:
            await self.resources.close()
            await self.policy.close()

    def _claim_folder(self) -> None:
        """Write the plan, so that a folder that cannot be written to is an error before any work is done.

        A folder with a finished run or another plan is refused; an unfinished run of the same plan begins anew.
        """
        path = self.out / "plan.json"
        data = (json.dumps({"seed": self.seed, **asdict(self.plan)}, indent=1) + "\n").encode()
        has_other_plan = path.is_file() and path.read_bytes() != data
        if has_other_plan or (self.out / "summary.json").is_file():
            raise UserError(f"'{self.out}' already holds a quickstart; choose another --out, or remove that folder.")
        write_atomic(path, data)

    async def run_stages(self) -> dict[str, Any]:
        """Evaluate, train by SFT and RL, and evaluate after each; returns the summary."""
        null = await self._evaluate_scripted("null")
        base = await self._evaluate("base")
        await self._train_sft(await self.collect_demonstrations())
        results = {"null": null, "base": base, "sft": await self._evaluate("sft")}
        if self.sft_only:
            return self._report(results, [])
        curve = await self._train_rl()
        return self._report(results | {"rl": await self._evaluate("rl")}, curve)

    async def collect_demonstrations(self) -> list[Trajectory]:
        tasks = self.demonstration_tasks()
        agent = self.agent(1.0)
        engine = ScriptedEngine.of("expert", self.make_environment(), make_format(agent.format), self.policy.renderer)
        with self._stage("demonstrations", len(tasks), "episodes") as progress:
            return await run_episodes(
                plan_attempts(tasks, 1, self.seed), self.make_environment, agent, engine, self.policy.renderer,
                on_done=lambda episode: progress.advance(), resources=self.resources,
            )  # fmt: skip

    async def _train_sft(self, demonstrations: list[Trajectory]) -> None:
        """SFT over all epochs; the weights of the best validation are the result, in `sft/model`."""
        plan, rates = self.plan.sft, self.sft_validations
        with self._stage("SFT", planned_steps(len(demonstrations), plan), "steps") as progress:

            def show(step: int, metrics: dict[str, float]) -> None:
                val = percent(rates[-1] if rates else 0.0, digits=0)
                progress.advance(1, f"loss {metrics['actor/loss']:.3f}, val {val}")

            self.sft_state = await train_sft(
                self.policy, demonstrations, plan, self.out / "sft", show, self._validation(rates),
                say=lambda text: None,
            )  # fmt: skip

    def _validation(self, rates: list[float]) -> Callable[[], Awaitable[EvalResult]]:
        """A function that scores the policy on the validation tasks and appends its success rate to `rates`."""
        check = Panel(tuple(self.tasks("val", self.plan.check_tasks, 0)), self.seed)
        agent = self.agent(self.plan.eval_temperature)

        async def evaluate() -> EvalResult:
            result, _ = await self.policy.evaluate("val", check, self.make_environment, agent, resources=self.resources)
            rates.append(result.success_rate)
            return result

        return evaluate

    async def _train_rl(self) -> list[float]:
        """RL; the weights of the best validation are the result, in `rl/model`. Returns the success of every step."""
        plan, agent = self.plan.rl, self.agent(self.plan.temperature)
        tasks = self.rl_tasks(plan.total_training_steps * plan.train_batch_size)
        source = OnlineSource(self.policy, tasks, self.make_environment, agent, plan, resources=self.resources)
        curve: list[float] = []
        with self._stage("RL (GRPO)", plan.total_training_steps, "steps") as progress:

            def show(step: int, metrics: dict[str, float]) -> None:
                curve.append(metrics["success/mean"])
                progress.advance(1, f"success {percent(curve[-1])} {sparkline(curve, 8)}".rstrip())

            settings = RunSettings(
                plan.total_training_steps, val_before_train=False, save_on_stop=False, keep_best=True,
                test_freq=max(1, plan.total_training_steps // RL_VALIDATIONS),
            )  # fmt: skip
            trainer = RLTrainer(self.policy, source, plan, evaluate=self._validation(self.rl_validations))
            run = Run(self.out / "rl", trainer, settings, say=lambda text: None, on_step=show)
            self.rl_state = await run.train()
        return curve

    async def _evaluate_scripted(self, source: str) -> EvalResult:
        agent = self.agent(1.0)
        engine = ScriptedEngine.of(source, self.make_environment(), make_format(agent.format), self.policy.renderer)
        with self.resources.evaluation():
            episodes = await run_episodes(
                self.panel.attempts(), self.make_environment, agent, engine, self.policy.renderer,
                resources=self.resources,
            )  # fmt: skip
        return result_from_episodes(source, self.panel, episodes)

    async def _evaluate(self, name: str) -> EvalResult:
        agent = self.agent(self.plan.eval_temperature)
        with self._stage(f"evaluate {name}", len(self.panel.tasks), "episodes") as progress:
            result, episodes = await self.policy.evaluate(
                name, self.panel, self.make_environment, agent,
                on_done=lambda episode: progress.advance(), resources=self.resources,
            )  # fmt: skip
            folder = self.out / name / "examination"
            for episode in episodes:
                append_times(folder / TIMING_FILE, episode)
                store.write_episode(folder, episode)
        return result

    def _stage(self, label: str, total: int, unit: str) -> Progress:
        quickstart = self

        class Timed(Progress):
            def __exit__(self, *arguments: Any) -> None:
                super().__exit__(*arguments)
                quickstart.seconds[STAGE_KEYS.get(label, label)] = self.seconds

        return Timed(label, total, unit)

    def _report(self, results: dict[str, EvalResult], curve: list[float]) -> dict[str, Any]:
        gain = compare_pair(results["sft"], results["rl"]) if "rl" in results else None
        total = time.monotonic() - self.begun
        summary: dict[str, Any] = {
            **{name: result.summary() for name, result in results.items()},
            **({} if gain is None else comparison_figures(gain)),
            "seconds": total,
            "success_by_level": {name: self._success_by_level(result) for name, result in results.items()},
            "stages": self.seconds,
            "panel": self.panel.hash,
            "seed": self.seed,
            "sft_steps": self.sft_state.step,
            "sft_best_step": self.sft_state.best_step,
            "sft_validations": self.sft_validations,
            "rl_best_step": None if gain is None else self.rl_state.best_step,
            "rl_validations": self.rl_validations,
            "plan": asdict(self.plan),
            "curve": curve,
        }
        self.say("")
        self.say(table(results, {name: self._success_by_level(result) for name, result in results.items()}))
        self.say("")
        written = f"figures in {self.out / 'summary.json'}"
        if gain is not None:
            write_atomic(self.out / "curve.html", self._page(results, gain, curve).encode())
            written += f", curve in {self.out / 'curve.html'}"
            self.say(coloured(sentence(gain), str(gain.conclusion)))
        write_atomic(self.out / "summary.json", (json.dumps(summary, indent=1) + "\n").encode())
        self.say(f"{duration(total)} min in all; {written}")
        self.say(f"All of it on one page: practicum report {self.out}")
        self.say(f"Its episodes: practicum show {self.out / list(results)[-1] / 'examination'}")
        return summary

    def _success_by_level(self, result: EvalResult) -> dict[int, float]:
        """Return the success rate on the problems of each level."""
        level_of = {task.id: int(task.fields["level"]) for task in self.panel.tasks}
        flags: dict[int, list[float]] = {level: [] for level in sorted(set(level_of.values()))}
        for task, success in result.success_by_task().items():
            flags[level_of[task]].append(success)
        return {level: mean(values) for level, values in flags.items()}

    def _page(self, results: dict[str, EvalResult], gain: Comparison, curve: list[float]) -> str:
        marks = []
        for name in ("sft", "rl"):
            interval = results[name].interval(LEVEL)
            marks.append(Mark(name.upper(), results[name].success_rate, interval.low, interval.high, COLOURS[name]))
        subtitle = (
            f"{MODEL} on math, seed {self.seed}, panel {self.panel.hash} of {len(self.panel.tasks)} held-out tasks"
        )
        intervals = {name: result.interval(LEVEL) for name, result in results.items()}
        notes = [
            f"{name}: {percent(result.success_rate)} {percent_interval(intervals[name].low, intervals[name].high)}"
            for name, result in results.items()
        ]
        return learning_curve("Practicum quickstart", subtitle, curve, marks, [*notes, sentence(gain)])


def comparison_figures(gain: Comparison) -> dict[str, Any]:
    """The comparison of RL with SFT in summary.json."""
    return {
        "difference": gain.success.difference,
        "difference_low": gain.success.interval.low,
        "difference_high": gain.success.interval.high,
        "p_value": gain.success.p_value,
        "verdict": gain.conclusion,
    }


def listed(levels: Iterable[int]) -> str:
    """The different levels, as in "1, 2, 3"."""
    return ", ".join(map(str, sorted(set(levels))))


def table(results: dict[str, EvalResult], by_level: Mapping[str, Mapping[int, float]]) -> str:
    """Success of every policy with its 95 % interval, and on the problems of each level; for four, under 80 columns."""
    levels = sorted({level for rates in by_level.values() for level in rates})
    titles = [f"level {level}" if level == levels[0] else str(level) for level in levels]
    widths = [max(len(title), len(percent(1.0, digits=0))) for title in titles]
    heads = " ".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True))
    lines = [f"{'policy':<6} {'success':>7} {'95 % interval':<13} {'n':>3}  {heads}  {'turns':>5}  {'unusable':>8}"]
    for name, result in results.items():
        interval, metrics = result.interval(LEVEL), result.metrics()
        shares = [percent(by_level[name][level], digits=0) for level in levels]
        rates = " ".join(f"{share:>{width}}" for share, width in zip(shares, widths, strict=True))
        lines.append(
            f"{name:<6} {percent(result.success_rate):>7} {percent_interval(interval.low, interval.high):<13} "
            f"{len(result.scored):>3}  {rates}  {metrics['mean_turns'] or 0:>5.2f}  "
            f"{percent(metrics['invalid_reply_rate'] or 0):>8}"
        )
    return "\n".join(lines)


def sentence(gain: Comparison) -> str:
    """The comparison in words."""
    success = gain.success
    if not gain.significant:
        return f"RL against SFT: no difference shown (p = {success.p_value:.3g}, n = {success.num_tasks})."
    return (
        f"RL is {gain.conclusion} than SFT by {100 * abs(success.difference):.1f} points "
        f"[{100 * success.interval.low:+.1f}, {100 * success.interval.high:+.1f}] on the same {success.num_tasks} "
        f"tasks ({success.test} p = {success.p_value:.2g})."
    )
