from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from practicum.quickstart import Plan, Quickstart
from practicum.training.rl_settings import RLSettings
from practicum.training.sft import SFTSettings


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run of a small quickstart; its SFT model is the start of other tests' training."""
    out = tmp_path_factory.mktemp("quickstart")
    plan = Plan(
        levels=(1,),
        demonstrations=4000,
        panel=300,
        check_tasks=60,
        sft_target=0.35,
        sft=SFTSettings(epochs=1, batch_size=8, lr=1e-3, warmup=30, schedule="constant", check_every=25, seed=0),
        rl=RLSettings(steps=25, tasks_per_step=12, chains=8, lr=3e-4, warmup=3, seed=0),
    )
    asyncio.run(Quickstart(out, 0, plan, say=lambda text: None).run())
    return out
