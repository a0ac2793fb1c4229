"""Several learner ranks with vLLM servers: one per rank, or one for the GPUs of several."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.config.resolve import resolve_train
from practicum.training import ranks, rollout_engine
from tests.engines.vllm.test_server import interpreter

ROOT = Path(__file__).parents[3]
ENVIRONMENT = ROOT / "tests" / "training" / "cluster" / "lowercase_replies.py"
GROUP = "actor_rollout_ref.rollout"
LOSSES = ("actor/loss", "actor/grad_norm", "reward/mean")


def train(folder: Path, name: str, num_ranks: int, *more: str) -> Path:
    """Train two steps, on ranks that torchrun starts; returns the run's folder."""
    launcher = ["torch.distributed.run", "--nproc-per-node", str(num_ranks), "-m"] if num_ranks > 1 else []
    keys = [
        f"agent.environment={ENVIRONMENT}:LowercaseReplies", "agent.max_turns=1", f"{GROUP}.response_length=10",
        "data.train_batch_size=4", "agent.num_chains=2", "actor_rollout_ref.actor.optim.lr=1e-3",
        "algorithm.adv_estimator=grpo", "trainer.val_before_train=false", "trainer.test_freq=-1",
        "trainer.total_training_steps=2", "trainer.device=cpu", f"trainer.default_local_dir={folder}",
        f"trainer.experiment_name={name}", f"{GROUP}.name=vllm", f"{GROUP}.vllm.max_model_len=256",
        f"{GROUP}.vllm.python={interpreter(folder, Path(__file__).with_name('small_vllm.py'))}", *more,
    ]  # fmt: skip
    env = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    command = [sys.executable, "-m", *launcher, "practicum.cli", "train", *keys]
    done = subprocess.run(command, env=env, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "practicum" / name


@pytest.mark.slow
def test_every_rank_has_a_server_and_the_losses_of_one_process(tmp_path: Path) -> None:
    """Adapters and whole weights with a server per rank; sharded, with one server for both ranks."""
    lora = "actor_rollout_ref.model.lora_rank=4"
    shared = [f"{GROUP}.tensor_model_parallel_size=2", "actor_rollout_ref.actor.strategy=fsdp2"]
    for name, one, two, servers in (
        ("lora", [lora], [lora], {"vllm", "vllm-rank-1"}),
        ("whole", [], [], {"vllm", "vllm-rank-1"}),
        ("shared", [], shared, {"vllm"}),
    ):
        first, second = train(tmp_path, f"{name}-one", 1, *one), train(tmp_path, f"{name}-two", 2, *two)
        lines = [[json.loads(text) for text in (run / "metrics.jsonl").read_text().splitlines()]
                 for run in (first, second)]  # fmt: skip
        assert [line["step"] for line in lines[1]] == [1, 2]
        for mine, theirs in zip(*lines, strict=True):
            for metric in LOSSES:
                assert mine[metric] == pytest.approx(theirs[metric], abs=1e-5, rel=1e-5), (name, mine["step"], metric)
        assert {path.name for path in second.glob("vllm*")} == servers


def test_a_server_has_the_gpus_of_its_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight ranks on two machines, two per server: four servers, which run all groups."""
    config = resolve_train([f"{GROUP}.name=vllm", f"{GROUP}.tensor_model_parallel_size=2"]).config
    monkeypatch.setattr(ranks, "num_ranks", lambda: 8)
    monkeypatch.setattr(ranks, "gather_json", lambda value: ["0", "1", "2", "3"] * 2)
    on = rollout_engine.Device("cuda")
    taken: list[int] = []
    for rank in range(8):
        monkeypatch.setattr(ranks, "own_rank", lambda rank=rank: rank)
        maker = rollout_engine.engine_maker(config, tmp_path, on)
        settings = getattr(maker, "keywords", {}).get("settings")
        assert (settings is None) == bool(rank % 2)
        own = ranks.own_positions([f"group-{index // 3}" for index in range(18)], 2)
        assert (not own) == bool(rank % 2)
        taken += own
        if settings is not None:
            assert settings.server.gpus == ("0,1", "2,3")[rank // 2 % 2]
            assert settings.folder == tmp_path / ("vllm" if rank == 0 else f"vllm-rank-{rank}")
    assert sorted(taken) == list(range(18))
