"""Several learner ranks train as one process does: the same losses, files and checkpoints."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from safetensors.torch import load_file

from practicum.cli.main import main
from practicum.config.resolve import Launch, read_launch, resolve_train
from practicum.errors import UserError
from practicum.training import ranks
from tests.training.rank_runs import carry_out

ROOT = Path(__file__).parents[2]
ACTOR = "actor_rollout_ref.actor"
TIMEOUT_SECONDS = 600
LOSSES = ("actor/loss", "dpo/loss", "actor/grad_norm", "critic/vf_loss", "reward/mean", "eval/loss", "val/reward/mean")


def start_ranks(tmp_path: Path, plan: list[dict[str, Any]], num_ranks: int = 2) -> None:
    """Carry out a plan on several ranks, one process each."""
    file = tmp_path / "plan.json"
    file.write_text(json.dumps(plan))
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)  # no port is chosen beforehand
    processes = []
    for rank in range(num_ranks):
        env = {
            **os.environ, "RANK": str(rank), "WORLD_SIZE": str(num_ranks), "LOCAL_RANK": str(rank),
            "LOCAL_WORLD_SIZE": str(num_ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0",
            "OMP_NUM_THREADS": "1", "PYTHONPATH": f"{ROOT / 'src'}:{ROOT}",
        }  # fmt: skip
        command = [sys.executable, "-m", "tests.training.rank_runs", str(file)]
        processes.append(
            subprocess.Popen(command, env=env, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        )
    try:
        outputs = [process.communicate(timeout=TIMEOUT_SECONDS)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [process.returncode for process in processes] == [0] * num_ranks, "\n".join(outputs)


def metrics_of(folder: Path) -> list[dict[str, float]]:
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def check_same(first_run: Path, second_run: Path, steps: int) -> None:
    """The metrics of two runs agree in losses to 1e-5 and in everything that is counted; the files are the same."""
    first, second = metrics_of(first_run), metrics_of(second_run)
    assert [line["step"] for line in first] == [line["step"] for line in second] == list(range(1, steps + 1))
    for actual, expected in zip(first, second, strict=True):
        assert list(actual) == list(expected)
        for name in (key for key in actual if key in LOSSES):
            assert actual[name] == pytest.approx(expected[name], abs=1e-5, rel=1e-5), (actual["step"], name)
        assert actual["actor/tokens"] == expected["actor/tokens"]
    assert len([name for name in first[-1] if name in LOSSES]) >= 2
    assert files_of(first_run) == files_of(second_run)


def files_of(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


NAMES = ("gae", "grpo", "sft", "dpo", "lora")


def runs(folder: Path, steps: int, total: int, sharded: bool = False) -> list[dict[str, Any]]:
    own: dict[str, Any] = {"steps": steps, "total": total, "sharded": sharded}
    return [
        {"kind": "rl", "estimator": "gae", "use_kl_in_reward": True, "folder": str(folder / "gae"), **own},
        {"kind": "rl", "estimator": "grpo", "folder": str(folder / "grpo"), **own},
        {"kind": "sft", "folder": str(folder / "sft"), **own},
        {"kind": "dpo", "folder": str(folder / "dpo"), **own},
        {"kind": "rl", "estimator": "grpo", "lora_rank": 4, "folder": str(folder / "lora"), **own},
    ]


def weights_of(folder: Path) -> torch.Tensor:
    (file,) = (folder / "actor").glob("*.safetensors")
    tensors = load_file(file)
    return torch.cat([tensors[name].flatten() for name in sorted(tensors)])


def test_two_ranks_equal_one_process_and_resume_each_other(tmp_path: Path) -> None:
    """Three steps whole; and two steps on two ranks, the third in one process; and the reverse: `ddp` and `fsdp2`."""
    strategies = {"ddp": False, "fsdp2": True}
    plan = []
    for name, sharded in strategies.items():
        plan += runs(tmp_path / f"{name}-two", 2, 3, sharded)
        carry_out(runs(tmp_path / f"{name}-grown", 2, 3))
        plan += runs(tmp_path / f"{name}-grown", 3, 3, sharded)
    start_ranks(tmp_path, plan)
    carry_out(runs(tmp_path / "one", 3, 3))
    for strategy in strategies:
        carry_out(runs(tmp_path / f"{strategy}-two", 3, 3))
        for name in NAMES:
            check_same(tmp_path / "one" / name, tmp_path / f"{strategy}-grown" / name, 3)
            check_same(tmp_path / "one" / name, tmp_path / f"{strategy}-two" / name, 3)
            actual, expected = (
                weights_of(tmp_path / run / name / "global_step_3") for run in ("one", f"{strategy}-two")
            )
            assert (
                float((actual - expected).abs().mean()) < 1e-6
            )  # AdamW makes a step of a gradient that is only rounding


@pytest.mark.slow
@pytest.mark.parametrize("sharded", [False, True])
def test_ten_steps_of_two_ranks_equal_those_of_one_process(tmp_path: Path, sharded: bool) -> None:
    carry_out(runs(tmp_path / "one", 10, 10))
    start_ranks(tmp_path, runs(tmp_path / "two", 10, 10, sharded))
    for name in NAMES:
        check_same(tmp_path / "one" / name, tmp_path / "two" / name, 10)


def test_parts_are_contiguous_and_balanced() -> None:
    assert ranks.part_bounds([1, 1, 1, 1], 2) == [(0, 2), (2, 4)]
    assert ranks.part_bounds([10, 1, 1], 2) == [(0, 1), (1, 3)]
    assert ranks.part_bounds([3], 3) == [(0, 0), (0, 1), (1, 1)]
    assert ranks.part_bounds([], 2) == [(0, 0), (0, 0)]
    bounds = ranks.part_bounds(list(range(1, 60)), 4)
    assert [start for start, _ in bounds][1:] == [end for _, end in bounds][:-1]
    sizes = [sum(range(1, 60)[start:end]) for start, end in bounds]
    assert max(sizes) - min(sizes) < 60


def test_without_a_launcher_there_is_one_rank() -> None:
    assert ranks.num_ranks() == 1
    assert ranks.own_part([1, 2, 3], lambda number: number) == [1, 2, 3]
    assert ranks.own_positions(["a", "b", "a"]) == [0, 1, 2]
    assert ranks.broadcast_json({"a": 1}) == {"a": 1}


def launched(monkeypatch: pytest.MonkeyPatch, **values: str) -> None:
    for name, value in {"RANK": "1", "WORLD_SIZE": "4", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", **values}.items():
        monkeypatch.setenv(name, value)


def test_the_launch_is_read_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    launched(monkeypatch)
    assert read_launch() == Launch(1, 4, 1, 2)
    assert (read_launch().nnodes, read_launch().is_first) == (2, False)
    launched(monkeypatch, RANK="4")
    with pytest.raises(UserError, match="contradict each other"):
        read_launch()
    launched(monkeypatch, RANK="a")
    with pytest.raises(UserError, match="not a number"):
        read_launch()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["trainer.nnodes=3"], "the launcher has started ranks on 2"),
        (["trainer.n_gpus_per_node=8"], "has started 2 ranks per machine"),
        (["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.vllm.url=http://a:1"], "is one server"),
        (
            ["actor_rollout_ref.rollout.name=vllm", "actor_rollout_ref.rollout.tensor_model_parallel_size=4"],
            "size=4 does not divide the 2 ranks of a machine",
        ),
        (["trainer.overlap=true"], "does not go with 4 ranks yet"),
        (["actor_rollout_ref.actor.fsdp_config.param_offload=true"], "only a learner that is sharded"),
        ([f"{ACTOR}.strategy=fsdp2", f"{ACTOR}.fsdp_config.param_offload=true"], "together"),
        ([f"{ACTOR}.strategy=fsdp2", "critic.model.path=tiny"], "does not shard a critic's own model yet"),
    ],
)
def test_numbers_that_are_not_the_launchers_are_refused(
    monkeypatch: pytest.MonkeyPatch, overrides: list[str], message: str
) -> None:
    launched(monkeypatch)
    with pytest.raises(UserError, match=message):
        resolve_train(["trainer.device=cpu", *overrides])
    resolve_train(["trainer.nnodes=2", "trainer.n_gpus_per_node=0", f"{ACTOR}.strategy=fsdp2"])


def test_commands_of_one_process_are_refused(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    launched(monkeypatch)
    assert main(["eval"]) == 2
    assert "is one process, and a launcher has started 4" in capsys.readouterr().err
