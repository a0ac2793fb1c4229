"""The three commands of AgentFly's guide, with the tiny model, two steps and small batches."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.cli.main import main
from tests.config.test_train_config import CODE_COMMAND, MATH_COMMAND, SEARCH_COMMAND

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
    assert lines[-1]["mismatch/logprob/max"] < 1e-4
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
def test_two_steps_on_two_ranks_of_a_local_ray(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("ray")
    monkeypatch.setenv("RAY_ADDRESS", "local")
    two = ["trainer.n_gpus_per_node=2", "trainer.device=cpu"]
    assert run_command(name, tmp_path, monkeypatch, *two) == 0, capsys.readouterr().err
    check_run(tmp_path)
