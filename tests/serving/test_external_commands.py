"""External agents through the commands that users type: train, collect, eval, show."""

from __future__ import annotations

import asyncio
import json
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.run_folder import resolve_model
from practicum.data.store import read_episodes
from practicum.models.loader import Device
from practicum.serving.app import ModelServer, make_app
from practicum.serving.served_models import ModelLoader, ServedModels
from practicum.serving.server import listen, serve_in_background
from practicum.trajectory import Origin, Trajectory

ROOT = Path(__file__).parents[2]
AGENTS = Path(__file__).with_name("agents.py")
PROGRAM = f"{sys.executable} {ROOT / 'docs' / 'examples' / 'external_agent.py'}"
REWARD = f"{ROOT / 'tests' / 'pipelines' / 'rewards.py'}:written_length"
TOY = f"{ROOT / 'docs' / 'examples' / 'manager_worker.py'}:ManagerWorker"
BASE = [
    "agent.agent_type=external", "agent.num_chains=3", "agent.max_tokens_per_turn=6", "algorithm.adv_estimator=grpo",
    "actor_rollout_ref.model.path=tiny", "actor_rollout_ref.actor.optim.lr=1e-3", "data.train_batch_size=2",
    "trainer.total_training_steps=2", "trainer.test_freq=-1", "trainer.val_before_train=false", "trainer.logger=[]",
    "trainer.device=cpu", "trainer.experiment_name=x",
]  # fmt: skip


def train(folder: Path, *overrides: str) -> tuple[list[dict[str, float]], list[Trajectory]]:
    """The metrics of a run, and the episodes that it keeps: a group of three per step."""
    assert main(["train", *BASE, *overrides, f"trainer.default_local_dir={folder}"]) == 0
    run = folder / "practicum" / "x"
    metrics = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return metrics, list(read_episodes(run / "groups"))


def test_a_program_is_trained_evaluated_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = f"agent.command='{PROGRAM}'"
    metrics, episodes = train(
        tmp_path, "agent.environment=math", "agent.max_turns=2", f"agent.reward_name={REWARD}", command
    )
    steps = [row for row in metrics if "rollout/branches/mean" in row]
    assert len(steps) == 2
    assert {row["rollout/branches/mean"] for row in steps} == {0.0}
    assert all(row["actor/grad_norm"] > 0 for row in steps), "there was something to learn"
    assert len(episodes) == 6
    assert {episode.provenance["external_agent"] for episode in episodes} == {PROGRAM}
    assert {turn.policy_version for episode in episodes for turn in episode.turns} == {0, 1}
    model = str(tmp_path / "practicum" / "x" / "model")
    options = ["--agent-command", PROGRAM, "--tasks", "2", "--max-tokens", "6", "--max-turns", "2"]
    result = tmp_path / "result.json"
    assert main(["eval", "--env", "math", "--policy", model, *options, "--out", str(result)]) == 0
    assert PROGRAM in result.read_text()
    assert main(["collect", "--env", "math", "--policy", model, *options, "--out", str(tmp_path / "runs")]) == 0
    capsys.readouterr()
    assert main(["show", str(next((tmp_path / "runs").rglob("*__attempt_0.jsonl")))]) == 0
    assert "How many" in capsys.readouterr().out


def test_branches_are_counted_by_their_reasons(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    metrics, episodes = train(
        tmp_path, "agent.environment=math", "agent.max_turns=4", "agent.reward_from=callback",
        f"agent.command={AGENTS}:editing",
    )  # fmt: skip
    assert [[turn.branch_reason for turn in episode.turns] for episode in episodes] == [["", "edited reply", ""]] * 6
    assert metrics[0]["rollout/branches/mean"] == metrics[0]["rollout/branches/edited_reply"] == 1.0
    [path, *_] = sorted((tmp_path / "practicum" / "x" / "groups").rglob("*__attempt_0.jsonl"))
    capsys.readouterr()
    assert main(["show", str(path)]) == 0
    tree = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith("tree ")]
    assert tree == [["tree", "0"], ["tree", "1", "→", "2", "edited", "reply"]]


@pytest.fixture
def manager_url() -> Iterator[str]:
    """A server of another model, in a thread of its own."""
    started, stop = threading.Event(), threading.Event()
    address: list[str] = []

    async def serve() -> None:
        models = ServedModels(ModelLoader(Device(), max_num_seqs=8).load_base("boss", resolve_model("tiny")))
        async with serve_in_background(make_app(ModelServer(models)), listen("127.0.0.1", 0)) as url:
            address.append(url)
            started.set()
            while not stop.is_set():
                await asyncio.sleep(0.05)
        await models.close()

    thread = threading.Thread(target=asyncio.run, args=(serve(),), daemon=True)
    thread.start()
    assert started.wait(60)
    yield f"{address[0]}/v1"
    stop.set()
    thread.join(20)


@pytest.mark.parametrize("manager", ["trained", "frozen", "remote"])
def test_model_names_are_roles_trained_frozen_or_remote(tmp_path: Path, manager_url: str, manager: str) -> None:
    settings = {
        "trained": ["agent.train_roles=[worker,manager]"],
        "frozen": ["agent.roles.manager.model=tiny"],
        "remote": ["agent.roles.manager.model=boss", f"agent.roles.manager.url={manager_url}"],
    }[manager]
    _, episodes = train(
        tmp_path, f"agent.environment={TOY}", "agent.max_turns=4", "agent.reward_from=callback",
        f"agent.command={AGENTS}:delegating", *settings,
    )  # fmt: skip
    assert len(episodes) == 6
    versions: dict[str, set[int]] = {"manager": set(), "worker": set()}
    for episode in episodes:
        assert episode.outcome.scored, episode.error
        assert [turn.role for turn in episode.turns] == ["manager", "worker"]
        assert episode.turns[1].spans[-1].origin is Origin.SAMPLED
        assert episode.turns[0].reply.strip() in episode.turns[1].messages[-1].content
        for turn in episode.turns:
            versions[turn.role].add(turn.policy_version)
    # What is sampled under a version is recorded with it; a model that is not trained has one.
    assert versions == {"worker": {0, 1}, "manager": {0, 1} if manager == "trained" else {0}}


@pytest.mark.parametrize(
    "key", ["command=x", "reward_from=callback", "keep_system=true", "train_abandoned=true", "sandbox=true"]
)
def test_keys_of_external_agents_are_refused_for_others(key: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["train", *BASE[1:], "agent.environment=math", f"agent.{key}", "--dry-run"]) == 2
    assert f"agent.{key.split('=')[0]} is for external agents" in capsys.readouterr().err
