from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from practicum.models import loader
from practicum.quickstart import Quickstart, QuickstartSettings
from tests.training.settings import rl_settings, sft_settings

from .short_problems import ShortProblems


class SmallQuickstart(Quickstart):
    """The quickstart on problems of a few words, which the tiny model begins to solve after 90 steps of SFT."""

    def make_environment(self, levels: tuple[int, ...] | None = None) -> ShortProblems:
        return ShortProblems()

    def load_model(self) -> loader.LoadedModel:
        return loader.load_tiny(self.seed)


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of a small quickstart; its SFT model, two thirds right, is the start of other tests' training."""
    out = tmp_path_factory.mktemp("quickstart")
    plan = QuickstartSettings(
        levels=(1,),
        demonstrations=720,
        panel=100,
        check_tasks=50,
        sft=sft_settings(
            num_epochs=1,
            batch_size=8,
            learning_rate=2e-3,
            warmup_steps=10,
            scheduler_type="constant",
            check_every=45,
            seed=0,
        ),
        rl=rl_settings(total_training_steps=16, train_batch_size=12, num_chains=8, lr=2e-4, lr_warmup_steps=3, seed=0),
    )
    asyncio.run(SmallQuickstart(out, 0, plan, say=lambda text: None).run())
    return out
