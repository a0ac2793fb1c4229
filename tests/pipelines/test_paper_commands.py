"""The three commands of AgentFly's guide, with the tiny model, two steps and small batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from practicum.cli.main import main
from tests.config.test_train_config import CODE_COMMAND, MATH_COMMAND, QWEN, SEARCH_COMMAND
from tests.engines.vllm import small_vllm
from tests.engines.vllm.test_server import interpreter

ROOT = Path(__file__).parents[2]

SMALL = [
    "actor_rollout_ref.rollout.name=local", "agent.model_name_or_path=tiny", "actor_rollout_ref.model.path=tiny",
    "critic.model.path=null", "data.train_batch_size=2", "data.val_batch_size=2", "trainer.n_gpus_per_node=0",
    "actor_rollout_ref.actor.ppo_mini_batch_size=2", "critic.ppo_mini_batch_size=null", "agent.template=chatml",
    "actor_rollout_ref.rollout.response_length=12", "trainer.total_training_steps=2", "trainer.test_freq=1",
    "trainer.save_freq=1", "actor_rollout_ref.rollout.tensor_model_parallel_size=1",
]  # fmt: skip
GPU_MEMORY = "actor_rollout_ref.rollout.gpu_memory_utilization"
ROWS = {
    "math": [{"question": "What is 2+3?", "answer": "5"}, {"question": "What is 4*5?", "answer": "20"}],
    "search": [{"question": "Who wrote Mivar?", "answer": "Ada"}, {"question": "Who wrote Dolke?", "answer": "Ben"}],
    "code": [
        {"question": "Write f(x) that returns x+1.", "test_cases": [{"call": "f(1)", "expected": 2}]},
        {"question": "Write f(x) that doubles x.", "test_cases": [{"call": "f(3)", "expected": 6}]},
    ],
}
COMMANDS = {"math": MATH_COMMAND, "search": SEARCH_COMMAND, "code": CODE_COMMAND}


def run_command(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> int:
    """Run a command on two tasks; returns its exit status."""
    data = tmp_path / "data.json"
    data.write_text(json.dumps(ROWS[name]))
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    (corpus / "books.txt").write_text("Mivar was written by Ada.")
    monkeypatch.setenv("PRACTICUM_SEARCH_CORPUS", str(corpus))
    monkeypatch.setenv("WANDB_MODE", "offline")
    files = [f"data.train_files={data}", f"data.val_files={data}", f"trainer.default_local_dir={tmp_path}"]
    value = [part for part in COMMANDS[name] if not part.startswith(GPU_MEMORY)]
    return main(["train", *value, *SMALL, *files, *more])


def check_run(folder: Path) -> None:
    (run,) = (folder / "AgentRL").iterdir()
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [line["step"] for line in lines] == [0, 1, 2]
    assert lines[-1]["rollout/episodes"] in (2, 8, 16)
    assert lines[-1]["mismatch/logprob/mean"] < 1e-4
    assert (run / "global_step_2" / "manifest.json").exists()
    assert list((run / "wandb").glob("offline-run-*"))


@pytest.mark.parametrize("name", list(COMMANDS))
def test_two_steps(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command(name, tmp_path, monkeypatch) == 0, capsys.readouterr().err
    check_run(tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(COMMANDS))
def test_two_ranks_of_a_local_ray_with_vllm(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands as they are written, tiny and two CPU ranks in place of the model and the number of GPUs; two small
    steps. PRACTICUM_VLLM_PYTHON names an environment with vLLM; without it a small server stands in for it."""
    pytest.importorskip("ray")
    program = os.environ.get("PRACTICUM_VLLM_PYTHON")
    write_data(tmp_path, name)
    keys = [part.replace(QWEN, "tiny") for part in COMMANDS[name] if not part.startswith("trainer.n_gpus_per_node")]
    small = [
        "trainer.n_gpus_per_node=2", "trainer.device=cpu", "actor_rollout_ref.rollout.vllm.max_model_len=1024",
        f"actor_rollout_ref.rollout.vllm.python={program or interpreter(tmp_path, Path(small_vllm.__file__))}",
        "data.train_batch_size=2", "data.val_batch_size=2", "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.response_length=12", "trainer.total_training_steps=2", "trainer.test_freq=1",
        "trainer.save_freq=1", f"trainer.default_local_dir={tmp_path}",
    ]  # fmt: skip
    if name == "search":
        small.append("critic.ppo_mini_batch_size=2")
    if program:  # vLLM does not divide the five heads of tiny
        small.append("actor_rollout_ref.rollout.tensor_model_parallel_size=1")
    env = {
        **os.environ, "RAY_ADDRESS": "local", "OMP_NUM_THREADS": "1", "WANDB_MODE": "offline",
        "PRACTICUM_SEARCH_CORPUS": str(tmp_path / "corpus"), "VLLM_CPU_KVCACHE_SPACE": "1",
        "PYTHONPATH": f"{ROOT / 'src'}:{os.environ.get('PYTHONPATH', '')}",
    }  # fmt: skip
    command = [sys.executable, "-m", "practicum.cli", "train", *keys, *small]
    done = subprocess.run(command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=1800, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    check_run(tmp_path)
    (run,) = (tmp_path / "AgentRL").iterdir()
    shared = name == "search" and not program  # tensor_model_parallel_size=2
    servers = {"vllm"} if shared else {"vllm", "vllm-rank-1"}
    assert {path.name for path in run.glob("vllm*")} == servers


def write_data(folder: Path, name: str) -> None:
    """Two rows at the places that the command names, and documents to search."""
    for part in COMMANDS[name]:
        key, _, path = part.partition("=")
        if key in ("data.train_files", "data.val_files"):
            (folder / path).parent.mkdir(parents=True, exist_ok=True)
            (folder / path).write_text(json.dumps(ROWS[name]))
    (folder / "corpus").mkdir()
    (folder / "corpus" / "books.txt").write_text("Mivar was written by Ada.")
