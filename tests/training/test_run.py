"""The training loop: what is saved and kept, what stops a run, and with which message."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from practicum.agent import Agent
from practicum.cli.main import main
from practicum.config.health import HealthSettings, RewardHackingSettings
from practicum.config.resolve import resolve_train
from practicum.engines.base import Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Action, Observation, Step
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import AttemptResult, EvalResult
from practicum.models import loader, lora
from practicum.models.decoder import Decoder
from practicum.rewards.base import reward
from practicum.task import Task
from practicum.training.checkpoint import Checkpoints
from practicum.training.estimators import Advantages, Estimator
from practicum.training.learner import OptimizerSettings
from practicum.training.micro_batches import unweighted_samples
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.run import Run, RunMonitor
from practicum.training.settings import GroupFilter, RLSettings, RunSettings
from practicum.training.trainable_policy import TrainablePolicy
from practicum.training.trainer import StepResult, Trainer, Validation
from practicum.trajectory import Outcome, Trajectory, plan_attempts
from tests.training.settings import policy_gradient, rl_settings

AGENT = Agent(max_turns=1, sampling=Sampling(max_tokens=10, stop=("e",)))
RL = rl_settings(total_training_steps=6, train_batch_size=3, num_chains=4, lr=1e-3, lr_warmup_steps=0)


class ByLength(MathEnvironment):
    """Pays for short answers."""

    async def step(self, action: Action) -> Step:
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True, success=False)


def make_run(
    folder: Path,
    settings: RunSettings,
    rl: RLSettings = RL,
    environment: type[MathEnvironment] = ByLength,
    **more: Any,
) -> Run:
    tasks = environment().tasks("train", rl.train_batch_size * rl.total_training_steps)
    return monitored(folder, TrainablePolicy(loader.load_tiny(0)), tasks, environment, settings, rl, **more)


def monitored(
    folder: Path,
    policy: TrainablePolicy,
    tasks: Sequence[Task],
    environment: Callable[[], MathEnvironment],
    settings: RunSettings,
    rl: RLSettings,
    evaluate: Any = None,
    health: HealthSettings | None = None,
    hacking: RewardHackingSettings | None = None,
    say: Callable[[str], None] = lambda text: None,
) -> Run:
    trainer = RLTrainer(policy, OnlineSource(policy, tasks, environment, AGENT, rl), rl, evaluate=evaluate)
    return Run(folder, trainer, settings, RunMonitor(folder, trainer, health, hacking, say), say=say)


def go(run: Run) -> None:
    async def run_one() -> None:
        try:
            await run.train()
        finally:
            await run.policy.close()

    asyncio.run(run_one())


def validations(*rates: float | None) -> Any:
    """A validation that has these success rates, one after the other; None: the engine fails."""
    remaining = iter(rates)

    async def validate() -> EvalResult:
        share = next(remaining)
        attempts = []
        for i in range(10):
            outcome, reward = (Outcome.SUCCESS, 1.0) if i < (share or 0) * 10 else (Outcome.FAILURE, 0.0)
            if share is None:
                outcome = Outcome.ENGINE_ERROR
            error = "gone" if share is None else None
            attempts.append(AttemptResult(str(i), str(i), 0, outcome, reward, 1, 1, 0, error=error))
        return EvalResult("val", "math", "panel", 10, 1, tuple(attempts))

    return validate


def test_the_best_checkpoint_is_kept_beyond_the_limit(tmp_path: Path) -> None:
    settings = RunSettings(6, save_freq=1, save_total_limit=2, test_freq=1)
    run = make_run(tmp_path, settings, evaluate=validations(0.0, 0.3, 0.9, 0.5, 0.4, 0.3, 0.2))
    go(run)
    assert run.state.best_step == 2
    assert Checkpoints(tmp_path).steps() == [2, 5, 6]
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2, 3, 4, 5, 6]
    assert lines[2]["val/success/mean"] == 0.9
    assert not any(key.startswith("timing/") for line in lines for key in line)
    assert "timing/rollout" in (tmp_path / "timing.jsonl").read_text()


def test_a_new_best_is_saved_at_once(tmp_path: Path) -> None:
    settings = RunSettings(4, save_freq=4, test_freq=1)
    go(make_run(tmp_path, settings, replace(RL, total_training_steps=4), evaluate=validations(0.0, 0.1, 0.8, 0.2, 0.3)))
    assert Checkpoints(tmp_path).steps() == [1, 2, 4]


def test_without_a_save_frequency_there_is_no_checkpoint(tmp_path: Path) -> None:
    run = make_run(
        tmp_path, RunSettings(2, test_freq=1), replace(RL, total_training_steps=2), evaluate=validations(0.0, 0.3, 0.9)
    )
    go(run)
    assert Checkpoints(tmp_path).steps() == []


def test_the_recipe_of_the_readme_can_be_resumed() -> None:
    trainer = resolve_train(["recipe=math-tiny"]).config.trainer
    assert 0 < trainer.save_freq < (trainer.total_training_steps or 0)


def test_early_stopping(tmp_path: Path) -> None:
    messages: list[str] = []
    settings = RunSettings(6, save_freq=10, test_freq=1, early_stopping_patience=2)
    run = make_run(tmp_path, settings, evaluate=validations(0.0, 0.5, 0.4, 0.5, 0.6, 0.7, 0.8), say=messages.append)
    go(run)
    assert run.state.step == 3
    assert any("2 validations without a new best" in text for text in messages)
    again = make_run(tmp_path, settings, evaluate=validations(), say=messages.append)
    again.resume()
    go(again)
    assert messages[-1].startswith("Nothing to do")


def written(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_a_run_stopped_in_its_first_validation_resumes_without_another(tmp_path: Path) -> None:
    settings, rates = RunSettings(4, save_freq=4, test_freq=1, early_stopping_patience=2), (0.5, 0.4, 0.6, 0.6, 0.7)
    full = make_run(tmp_path / "whole", settings, replace(RL, total_training_steps=4), evaluate=validations(*rates))
    go(full)
    first = validations(*rates[:1])

    async def interrupted() -> EvalResult:
        os.kill(os.getpid(), signal.SIGINT)
        await asyncio.sleep(0.05)
        return await first()

    with pytest.raises(KeyboardInterrupt):
        go(make_run(tmp_path / "cut", settings, replace(RL, total_training_steps=4), evaluate=interrupted))
    again = make_run(tmp_path / "cut", settings, replace(RL, total_training_steps=4), evaluate=validations(*rates[1:]))
    again.resume()
    go(again)
    assert again.state == full.state
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


@pytest.mark.parametrize("metric", ["val/success/mean", "val/reward/mean"])
def test_a_validation_without_a_score_does_not_count(metric: str, tmp_path: Path) -> None:
    messages: list[str] = []
    settings = RunSettings(4, test_freq=1, early_stopping_patience=2, best_metric=metric)
    rates = (None, 0.5, None, None, 0.4)
    run = make_run(
        tmp_path, settings, replace(RL, total_training_steps=4), evaluate=validations(*rates), say=messages.append
    )
    go(run)
    assert (run.state.step, run.state.best_step, run.state.stale_validations) == (4, 1, 1)
    requests = [{name: value for name, value in line.items() if name.startswith("val/")} for line in written(tmp_path)]
    assert [metrics for metrics in requests if metrics["val/n"] == 0] == [{"val/n": 0.0, "val/errors": 10.0}] * 3
    assert requests[1]["val/success/mean"] == 0.5
    assert (
        sum("no episode of the validation could be scored (first: engine_error: gone)" in text for text in messages)
        == 3
    )


def test_impossible_run_settings_are_refused() -> None:
    with pytest.raises(UserError, match=r"best_metric=val/sucess/mean: validation gives val/success/mean, .*/max"):
        RunSettings(4, best_metric="val/sucess/mean")
    with pytest.raises(UserError, match=r"early_stopping_patience=3 counts validations .*set trainer.test_freq"):
        RunSettings(4, early_stopping_patience=3)


# -- what a policy is measured from -----------------------------------------------------------


def adapted(folder: Path, rl: RLSettings, adapter: str | None, steps: int) -> Run:
    loaded = loader.load_tiny(0)
    loaded = lora.load_adapter(loaded, adapter) if adapter else lora.add_adapter(loaded, lora.LoRASettings(4), 1)
    tasks = ByLength().tasks("train", 12)
    return monitored(folder, TrainablePolicy(loaded), tasks, ByLength, RunSettings(steps, save_freq=1), rl)


def test_the_reference_of_a_loaded_adapter_is_that_adapter(tmp_path: Path) -> None:
    """Also where the run is resumed: the start's, not the checkpoint's."""
    rl = replace(RL, total_training_steps=4, objective=policy_gradient(kl_loss_coef=0.1))
    fresh = adapted(tmp_path / "fresh", replace(rl, lr=1e-2), None, 2)
    assert fresh.policy.reference.model is fresh.policy.loaded.model  # beneath the adapter: no second copy
    go(fresh)
    start = str(tmp_path / "fresh/global_step_2/actor")
    full = adapted(tmp_path / "whole", rl, start, 4)
    reference_ids = {id(weight) for weight in full.policy.reference.model.parameters()}
    shared = [weight for weight in full.policy.loaded.model.parameters() if not weight.requires_grad]
    assert shared
    assert all(id(weight) in reference_ids for weight in shared)
    go(full)
    lines = written(tmp_path / "whole")
    assert lines[0]["actor/kl"] == pytest.approx(0.0, abs=1e-6)
    assert lines[3]["actor/kl"] > 1e-5
    go(adapted(tmp_path / "cut", rl, start, 2))
    again = adapted(tmp_path / "cut", rl, start, 4)
    again.resume()
    go(again)
    assert (tmp_path / "cut/metrics.jsonl").read_bytes() == (tmp_path / "whole/metrics.jsonl").read_bytes()


def test_resuming_is_refused_where_it_would_lose_something(tmp_path: Path) -> None:
    go(make_run(tmp_path, RunSettings(2, save_freq=1), replace(RL, total_training_steps=2)))
    for settings, message in (
        (RunSettings(2, resume_mode="disable"), "holds checkpoints"),
        (RunSettings(2, resume_mode="resume_path"), "needs trainer.resume_from_path"),
        (RunSettings(2, resume_mode="resume_path", resume_from_path=str(tmp_path / "global_step_9")), "needs trainer"),
    ):
        with pytest.raises(UserError, match=message):
            make_run(tmp_path, settings).resume()
    with pytest.raises(UserError, match="choose one of auto"):
        RunSettings(2, resume_mode="sometimes")
    path = tmp_path / "global_step_1"
    run = make_run(tmp_path / "other", RunSettings(3, resume_mode="resume_path", resume_from_path=str(path)))
    run.resume()
    assert run.state.step == 1


SHORT = ["agent.environment=math", "algorithm.adv_estimator=grpo", "agent.num_chains=2", "data.train_batch_size=2",
         "agent.max_tokens_per_turn=8", "trainer.val_before_train=false", "trainer.logger=[]"]  # fmt: skip


def short(folder: Path, *more: str) -> list[str]:
    return ["train", *SHORT, f"trainer.default_local_dir={folder}", "trainer.experiment_name=run", *more]


class SamePay(MathEnvironment):
    """Pays the same for every reply: no group has signal, so that no step has an update."""

    async def step(self, action: Action) -> Step:
        return Step(reward=0.5, terminated=True, success=False)

    async def truncate(self) -> Step:
        return Step(reward=0.5, truncated=True)


def run_without_updates(folder: Path, num_steps: int) -> list[int]:
    """Play the same task in every step and validate on it; the prompt tokens that each step has computed."""
    rl = replace(RL, total_training_steps=num_steps, train_batch_size=1)
    policy, computed = TrainablePolicy(loader.load_tiny(0)), [0]
    task = SamePay().tasks("train", 1)[0]

    async def validate() -> EvalResult:
        return (await policy.evaluate("val", Panel((task,), 0), SamePay, AGENT))[0]

    settings = RunSettings(num_steps, save_freq=1, test_freq=1, val_before_train=False)
    run = monitored(folder, policy, [task] * num_steps, SamePay, settings, rl, evaluate=validate)
    assert isinstance(policy.engine, LocalEngine)
    stats = policy.engine.stats
    run.on_step = lambda step, values: computed.append(stats.prefilled)
    run.resume()
    go(run)
    assert policy.version == 0
    return [after - before for before, after in itertools.pairwise(computed)]


def test_a_run_resumed_after_a_step_without_an_update_equals_an_unbroken_one(tmp_path: Path) -> None:
    unbroken, resumed = tmp_path / "unbroken", tmp_path / "resumed"
    first, second = run_without_updates(unbroken, 2)
    assert second == first > 0  # no step begins with what the one before has cached
    run_without_updates(resumed, 1)
    assert run_without_updates(resumed, 2) == [second]
    for name in ("metrics.jsonl", "global_step_2/state.json", "global_step_2/actor/model.safetensors"):
        assert (resumed / name).read_bytes() == (unbroken / name).read_bytes(), name


def test_a_failed_start_leaves_the_folder_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    async def fail(*arguments: object) -> None:
        raise UserError("This world needs a key.")

    expected = ["agent.max_turns=1", "trainer.total_training_steps=1"]
    with monkeypatch.context() as patched:
        patched.setattr(RLTrainer, "step", fail)
        assert main(short(tmp_path, *expected, "trainer.seed=1")) == 2
    assert [path.read_bytes() for path in tmp_path.rglob("metrics.jsonl")] == [b""]
    assert main(short(tmp_path, *expected)) == 0
    capsys.readouterr()
    assert main(short(tmp_path, *expected)) == 2
    assert "already holds a finished run, and no checkpoint to go on from" in capsys.readouterr().err


def test_killed_before_its_first_checkpoint_the_same_run_begins_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Killed(BaseException):
        pass

    def act(monitor: RunMonitor, step: int) -> None:
        raise Killed

    expected = ["agent.max_turns=1", "trainer.total_training_steps=2"]
    with monkeypatch.context() as patched:
        patched.setattr(RunMonitor, "act", act)
        with pytest.raises(Killed):
            main(short(tmp_path / "cut", *expected))
    (metrics,) = (tmp_path / "cut").rglob("metrics.jsonl")
    assert len(metrics.read_text().splitlines()) == 1
    assert main(short(tmp_path / "cut", *expected, "trainer.seed=1")) == 2
    assert "holds a run with trainer.seed=0, not 1" in capsys.readouterr().err
    assert main(short(tmp_path / "cut", *expected)) == 0
    assert "holds no checkpoint to go on from: the run begins anew" in capsys.readouterr().out
    assert main(short(tmp_path / "whole", *expected)) == 0
    (full,) = (tmp_path / "whole").rglob("metrics.jsonl")
    assert metrics.read_bytes() == full.read_bytes()


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    go(make_run(tmp_path, RunSettings(2, save_freq=2), replace(RL, total_training_steps=2)))
    run = make_run(tmp_path, RunSettings(2, save_freq=2), replace(RL, adv_estimator="gae"))
    with pytest.raises(UserError, match="has no critic"):
        run.resume()


# -- what must stop a run ---------------------------------------------------------------------


def test_nan_advantages_stop_the_run(tmp_path: Path) -> None:
    """An estimator that begins to give NaN at the third step."""
    run = make_run(tmp_path, RunSettings(6, save_freq=1))
    calls = 0

    def broken(groups: Any, settings: Any) -> Advantages:
        nonlocal calls
        calls += 1
        value = np.nan if calls == 3 else 1.0
        return Advantages([[np.full(len(rated.rewards), value) for rated in group] for group in groups])

    run.trainer.estimator = Estimator(broken)
    with pytest.raises(UserError, match=r"Step 3: the loss is nan .*nothing was updated.*last good .*global_step_2"):
        go(run)
    assert all(torch.isfinite(value).all() for value in run.policy.loaded.model.state_dict().values())


def test_a_broken_environment_stops_the_run(tmp_path: Path) -> None:
    class Dying(ByLength):
        steps = 0

        async def reset(self, task: Task, seed: int) -> Observation:
            Dying.steps += 1
            if Dying.steps > 2 * 12:
                raise ConnectionError("the simulator is gone")
            return await super().reset(task, seed)

    with pytest.raises(UserError, match="Step 2: 12 of 12 episodes could not be scored .*the simulator is gone"):
        go(make_run(tmp_path, RunSettings(6), environment=Dying))


def test_updates_that_change_no_weight_stop_the_run(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunSettings(6))
    run.policy.learner.optimizer.step = lambda closure=None: None
    with pytest.raises(UserError, match="3 updates in a row changed no weight"):
        go(run)


def test_an_engine_with_old_weights_stops_the_run(tmp_path: Path) -> None:
    """The engine keeps decoding the weights of the start, while the learner moves on."""
    stale = Decoder(loader.load_tiny(0).model)
    policy = TrainablePolicy(loader.load_tiny(0), make_engine=lambda renderer: LocalEngine(stale, renderer))
    run = monitored(tmp_path, policy, ByLength().tasks("train", 18), ByLength, RunSettings(6), RL)
    with pytest.raises(UserError, match="the engine is not running the policy being trained"):
        go(run)


# -- health -----------------------------------------------------------------------------------


def test_health_can_stop_a_run_and_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    run = make_run(tmp_path, RunSettings(6, save_freq=1), health=HealthSettings(action="stop"))
    original = run.trainer.step

    async def step(number: int, *remaining: Any) -> Any:
        values, episodes = await original(number, *remaining)
        return (values | {"actor/kl": 0.9} if number == 3 else values), episodes

    run.trainer.step = step  # type: ignore[method-assign]
    with pytest.raises(UserError, match=r"kl_high 0.9, limit 0.5.*The run stops here.*global_step_3"):
        go(run)
    assert Checkpoints(tmp_path).steps() == [1, 2, 3]


def test_health_can_adjust(tmp_path: Path) -> None:
    messages: list[str] = []
    run = make_run(
        tmp_path,
        RunSettings(3),
        replace(RL, total_training_steps=3),
        health=HealthSettings(action="adjust"),
        say=messages.append,
    )
    original = run.trainer.step

    async def step(number: int, *remaining: Any) -> Any:
        values, episodes = await original(number, *remaining)
        return values | {"actor/kl": 0.9}, episodes

    run.trainer.step = step  # type: ignore[method-assign]
    go(run)
    assert run.trainer.clip_scale == 0.5  # 0.2 → 0.1, once
    assert any("clip × 0.5" in text for text in messages)


@reward()
def short_answers(answer_given: str | None) -> float:
    """The planted exploit: it never looks at the answer."""
    return 1.0 / (1 + len(answer_given or ""))


def test_a_planted_exploit_is_flagged_before_thirty_steps(tmp_path: Path) -> None:
    """Trained on a reward that pays for shortness; the verifier that is never trained on stays where it was."""
    path = Path(__file__)
    rl = replace(RL, total_training_steps=29, train_batch_size=6, num_chains=6, lr=2e-3)
    maker = lambda: MathEnvironment(reward=f"{path}:short_answers", verifier="math_reward")  # noqa: E731
    messages: list[str] = []
    run = monitored(
        tmp_path,
        TrainablePolicy(loader.load_tiny(0)),
        maker().tasks("train", 6 * 29),
        maker,
        RunSettings(29),
        rl,
        hacking=RewardHackingSettings(action="stop"),
        say=messages.append,
    )
    with pytest.raises(UserError, match="verifier .*The run stops here"):
        go(run)
    lines = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len(lines) < 29
    assert lines[-1]["reward/mean"] > lines[0]["reward/mean"]
    assert lines[-1]["hacking/gap"] > 0.2
    paths = list((tmp_path / "top_episodes").rglob("*.jsonl"))
    assert len(paths) == RewardHackingSettings().keep_top


# -- which groups are trained on ------------------------------------------------------------------------


class Half(ByLength):
    """Every other task pays all chains alike."""

    async def step(self, action: Action) -> Step:
        assert self._task is not None
        is_even = int(self._task.id.rsplit("-", 1)[1]) % 2
        return Step(reward=1.0 if is_even else 1.0 / (1 + len(action.content)), terminated=True)

    async def truncate(self) -> Step:
        return Step(truncated=True, reward=1.0 if self._task and int(self._task.id.rsplit("-", 1)[1]) % 2 else 0.0)


def first_step(settings: RLSettings) -> dict[str, float]:
    policy = TrainablePolicy(loader.load_tiny(0))
    trainer = RLTrainer(policy, OnlineSource(policy, Half().tasks("train", 24), Half, AGENT, settings), settings)

    async def once() -> dict[str, float]:
        try:
            return (await trainer.step(0))[0]
        finally:
            await policy.close()

    return asyncio.run(once())


def test_dynamic_sampling_draws_again_until_enough_groups_have_signal() -> None:
    settings = replace(RL, train_batch_size=4, num_chains=6)
    plain = first_step(settings)
    assert plain["rollout/episodes"] == 24
    assert plain["rollout/dead_groups"] == pytest.approx(0.5)
    skipping = first_step(replace(settings, filter_groups=GroupFilter(True, 1)))
    assert skipping["rollout/episodes"] == 24
    drawing = first_step(replace(settings, filter_groups=GroupFilter(True, 3)))
    assert drawing["rollout/episodes"] == 48
    assert drawing["rollout/rounds"] == 2
    assert drawing["actor/tokens"] > 1.5 * skipping["actor/tokens"]


class Counter(Trainer):
    """Adds one to a weight at every step; its validations give the values of a list."""

    def __init__(self, values: list[float]) -> None:
        self.policy = TrainablePolicy(loader.load_tiny(0))
        self.policy.reset_optimizer(OptimizerSettings())
        self.weight = next(iter(self.policy.decoder.parameters()))
        self.first = float(self.weight.detach().flatten()[0])
        self.values = iter(values)

    async def step(self, step: int) -> StepResult:
        with torch.no_grad():
            self.weight.add_(1.0)
        return StepResult({"reward/mean": 0.0})

    def state(self) -> dict[str, Any]:
        return {}

    def restore(self, state: dict[str, Any]) -> None:
        pass

    async def validate(self) -> Validation:
        return Validation({"val/success/mean": next(self.values)})

    def steps_of(self, folder: Path) -> int:
        """Steps after which the weights of a folder were saved."""
        weight = next(iter(loader.load(str(folder)).model.parameters()))
        return round(float(weight.detach().flatten()[0]) - self.first)


@pytest.mark.parametrize(
    ("values", "best"), [([0.1, 0.5, 0.2, 0.2], 1), ([0.3, 0.1, 0.2, 0.2], 0), ([0.1, 0.3, 0.3, 0.2], 2)]
)
@pytest.mark.parametrize("save_freq", [-1, 2])
def test_the_model_is_that_of_the_best_validation_and_the_last_one_lies_beside_it(
    tmp_path: Path, values: list[float], best: int, save_freq: int
) -> None:
    trainer = Counter(values)
    settings = RunSettings(
        3, save_freq=save_freq, save_total_limit=1, test_freq=1, val_before_train=True, keep_best=True
    )
    run = Run(tmp_path, trainer, settings, say=lambda text: None)
    asyncio.run(run.train())
    assert trainer.steps_of(tmp_path / "model") == best
    assert trainer.steps_of(tmp_path / "last") == 3


class Drifting(Counter):
    """Every step changes the weights, and every validation fills the engine's caches."""

    async def step(self, step: int) -> StepResult:
        with torch.no_grad():
            self.weight.mul_(1.5)
        self.policy.set_version(self.policy.version + 1)
        return StepResult({"reward/mean": 0.0})

    async def play(self) -> list[Trajectory]:
        planned = plan_attempts(MathEnvironment().tasks("val", 4), 1, 0)
        return await self.policy.roll_out(planned, MathEnvironment, AGENT)

    async def validate(self) -> Validation:
        await self.play()
        return await super().validate()


def test_the_engine_forgets_what_it_cached_of_later_weights_when_the_best_are_loaded(tmp_path: Path) -> None:
    trainer = Drifting([0.5, 0.1])
    settings = RunSettings(2, save_freq=-1, test_freq=1, val_before_train=False, keep_best=True)

    async def run_one() -> list[Trajectory]:
        await Run(tmp_path, trainer, settings, say=lambda text: None).train()
        try:
            return await trainer.play()
        finally:
            await trainer.policy.close()

    samples = [sample for item in asyncio.run(run_one()) for sample in unweighted_samples(item)]
    metrics = trainer.policy.learner.measure(samples, policy_gradient())
    assert metrics["mismatch/logprob/max"] < 1e-4
