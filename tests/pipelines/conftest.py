from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from practicum.quickstart import Quickstart, QuickstartSettings
from tests.training.settings import rl_settings, sft_settings


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of a small quickstart; its SFT model, half right, is the start of other tests' training."""
    out = tmp_path_factory.mktemp("quickstart")
    plan = QuickstartSettings(
        levels=(1,),
        demonstrations=2400,
        panel=300,
        check_tasks=60,
        sft=sft_settings(
            num_epochs=1,
            batch_size=8,
            learning_rate=1e-3,
            warmup_steps=20,
            scheduler_type="constant",
            check_every=50,
            seed=0,
        ),
        rl=rl_settings(total_training_steps=30, train_batch_size=12, num_chains=8, lr=3e-4, lr_warmup_steps=3, seed=0),
    )
    asyncio.run(Quickstart(out, 0, plan, say=lambda text: None).run())
    return out
