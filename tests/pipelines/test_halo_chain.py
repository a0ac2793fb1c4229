"""HALO's RL-only chain on the tiny model: serve, collect at 0.8 through HALO_VLLM_URL, offline GRPO, serve the adapter
by its name, evaluate it."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from practicum.cli.main import main
from practicum.data.run_folder import resolve_model
from practicum.data.store import read_episodes
from practicum.models.loader import Device
from practicum.serving.app import ModelServer, make_app
from practicum.serving.served_models import ModelLoader, ServedModels
from practicum.serving.server import listen, serve_in_background

REWARD = f"{Path(__file__).with_name('rewards.py')}:written_length"
EXPERIMENTS = """
experiments:
  - {name: qwen_pure_zero, env: math, worker_model: Qwen3-4B-Instruct-2507, qwen_backend: vllm, max_tokens: 12}
  - {name: qwen_pure_grpo, mode: qwen_pure_zero, worker_model: qwen_grpo}
"""


@pytest.fixture
def url() -> Iterator[str]:
    """A server of the tiny model under HALO's name, in a thread of its own."""
    started, stop = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        base = ModelLoader(Device(), max_num_seqs=8).load_base("Qwen3-4B-Instruct-2507", resolve_model("tiny"))
        models = ServedModels(base)
        async with serve_in_background(make_app(ModelServer(models)), listen("127.0.0.1", 0)) as results:
            address.append(results)
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.05)
        await models.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(60)
    yield address[0]
    stop.set()
    thread.join(20)


def test_the_rl_only_chain(url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HALO_VLLM_URL", f"{url}/v1")
    file = tmp_path / "experiments.yaml"
    file.write_text(EXPERIMENTS)
    common = ["--config", str(file), "--reward", REWARD, "--max-turns", "2", "--tasks", "3"]
    served = httpx.get(f"{url}/v1/models").json()["data"]
    assert [model["id"] for model in served] == ["Qwen3-4B-Instruct-2507"]

    out = tmp_path / "trajectories"
    collect = ["collect", "--experiment", "qwen_pure_zero", *common, "--temperature", "0.8", "--rollouts_per_task", "4"]
    assert main([*collect, "--out", str(out)]) == 0
    episodes = list(read_episodes(out / "qwen_pure_zero"))
    assert len(episodes) == 12
    assert all(episode.scored and episode.provenance["temperature"] == 0.8 for episode in episodes)

    adapter = tmp_path / "lora" / "qwen_grpo"
    train = ["train", "recipe=halo-grpo", "--base_model", "tiny", "--input_dir", str(out / "qwen_pure_zero"),
             "--output_dir", str(adapter), "agent.environment=math", "agent.agent_type=hf",
             f"agent.reward_name={REWARD}",
             "algorithm.offline.method=grpo", "agent.max_turns=2", "agent.max_tokens_per_turn=12", "agent.num_chains=4",
             "data.train_batch_size=3", "actor_rollout_ref.actor.optim.lr=1e-2",
             "actor_rollout_ref.actor.optim.lr_warmup_steps=0", "trainer.logger=[]"]  # fmt: skip
    assert main(train) == 0
    assert resolve_model(str(adapter), "tiny").adapter is not None

    loaded = httpx.post(
        f"{url}/v1/load_lora_adapter", json={"lora_name": "qwen_grpo", "lora_path": str(adapter)}, timeout=60
    )
    assert loaded.status_code == 200, loaded.text
    served = httpx.get(f"{url}/v1/models").json()["data"]
    assert [model["id"] for model in served] == ["Qwen3-4B-Instruct-2507", "qwen_grpo"]

    result = tmp_path / "after.json"
    assert main(["eval", "--mode", "qwen_pure_grpo", *common, "--out", str(result)]) == 0
    assert json.loads(result.read_text())
