"""Two more estimators improve an SFT start in a short run; `make learn` tests all of them in longer ones."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from practicum.agent import Agent
from practicum.config.resolve import resolve_train
from practicum.engines.base import Sampling
from practicum.environments.math import MathEnvironment
from practicum.evaluation.compare import compare_pair
from practicum.evaluation.panel import Panel
from practicum.evaluation.result import EvalResult
from practicum.training import build


@pytest.mark.parametrize(("estimator", "steps"), [("gae", 25), ("rloo", 50)])
def test_training_beats_its_start(estimator: str, steps: int, finished: Path, tmp_path: Path) -> None:
    panel = Panel(tuple(MathEnvironment(levels=(1,)).tasks("test", 300, 7)), 7)
    agent = Agent(format="hf", max_turns=3, sampling=Sampling(0.0, max_tokens=32))
    config = resolve_train(
        [
            "recipe=math-tiny", f"actor_rollout_ref.model.path={finished / 'sft' / 'model'}",
            f"trainer.default_local_dir={tmp_path}", f"trainer.total_training_steps={steps}", "trainer.logger=[]",
            "trainer.val_before_train=false", "trainer.test_freq=-1", "data.train_batch_size=12",
            "agent.environment_args.levels=[1]", "agent.max_turns=3", f"algorithm.adv_estimator={estimator}",
            "critic.optim.lr=1e-3",
        ]
    ).config  # fmt: skip
    run = build.build_run(config, say=lambda text: None)

    async def whole() -> tuple[EvalResult, EvalResult]:
        make = lambda: MathEnvironment(levels=(1,))  # noqa: E731
        try:
            before, _ = await run.policy.evaluate("sft", panel, make, agent)
            await run.train()
            after, _ = await run.policy.evaluate(estimator, panel, make, agent)
        finally:
            await run.policy.close()
        return before, after

    gain = compare_pair(*asyncio.run(whole()))
    assert gain.conclusion == "better", gain
    assert gain.success.difference > 0.05
