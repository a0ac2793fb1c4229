"""Every deadline, and the number of episodes at once, is a key of `train` and a flag of `collect` and `eval`."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from practicum.cli.main import main
from practicum.data.store import read_episode
from practicum.engines.local.engine import LocalEngine

from ..environments import slow_environment

SLOW = f"{Path(slow_environment.__file__)}:Slow"
SECONDS = 0.1
SAYS = {
    "reset": "environment reset did not answer within 0.1 s",
    "step": "environment step did not answer within 0.1 s",
    "episode": "the episode's time was up",
    "open": "the resource 'door' could not be opened: TimeoutError: it was not open after 0.1 s",
    "tool": "tool 'look' did not answer within 0.1 s",
    "judge": "the judge's engine failed: the model did not answer within 0.1 s",
    "generate": "engine did not answer within 0.1 s",
}
OUTCOMES = {"open": "env_error", "judge": "judge_error"}
"""The outcomes of episodes whose deadline of that name expires; of others, `timeout`."""


@pytest.fixture(autouse=True)
def slow_engine(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine that takes a second for a reply of a model that is asked, or of the policy."""
    wait = request.node.callspec.params.get("wait") if hasattr(request.node, "callspec") else None
    generate = LocalEngine.generate

    async def slowly(self: LocalEngine, asked: object) -> object:
        await asyncio.sleep(1)
        return await generate(self, asked)  # type: ignore[arg-type]

    if wait in ("generate", "judge"):
        monkeypatch.setattr(LocalEngine, "generate", slowly)


def slow_part(wait: str) -> str:
    """What the environment must be slow in."""
    return "step" if wait == "episode" else wait


@pytest.mark.parametrize("command", ["collect", "eval"])
@pytest.mark.parametrize("wait", SAYS)
def test_a_deadline_of_collect_and_eval_takes_effect(
    command: str, wait: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / ("episodes" if command == "collect" else "result.json")
    arguments = [command, "--env", SLOW, "--env-arg", f"slow={slow_part(wait)}", "--tasks", "1", "--max-tokens", "2",
                 "--max-turns", "1", "--out", str(out), "--deadline", f"{wait}={SECONDS}",
                 "--policy", "tiny" if wait == "generate" else "expert"]  # fmt: skip
    code = main([*arguments, *(["--role", "judge=tiny"] if wait == "judge" else [])])
    error = capsys.readouterr().err
    if wait == "open":  # what all episodes need is opened before the first one: none is played
        assert code == 2
        assert SAYS[wait][1:] in error
        return
    (path,) = [path for path in tmp_path.rglob("*.jsonl") if "__attempt_" in path.name]
    episode = read_episode(path)
    assert SAYS[wait] in str(episode.error)
    assert episode.outcome.value == OUTCOMES.get(wait, "timeout")


def overrides(tmp_path: Path, *more: str) -> list[str]:
    return [
        f"agent.environment={SLOW}",
        "agent.num_chains=4",
        "agent.max_turns=1",
        "agent.max_tokens_per_turn=2",
        "algorithm.adv_estimator=grpo",
        "actor_rollout_ref.model.path=tiny",
        "data.train_batch_size=2",
        "data.val_batch_size=6",
        "trainer.total_training_steps=1",
        "trainer.val_before_train=false",
        "trainer.logger=[]",
        "trainer.experiment_name=x",
        f"trainer.default_local_dir={tmp_path}",
        *more,
    ]


@pytest.mark.parametrize("wait", SAYS)
def test_a_deadline_of_train_takes_effect(wait: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    slow = [f"agent.environment_args.slow={slow_part(wait)}", f"agent.deadlines.{wait}={SECONDS}"]
    judge = ["agent.roles.judge.model=tiny", "agent.deadlines.generate=30"] if wait == "judge" else []
    assert main(["train", *overrides(tmp_path, *slow, *judge)]) == 2
    error = capsys.readouterr().err
    truncating = "environment truncate did not answer within 0.1 s"
    assert SAYS[wait].replace("The", "the") in error.replace("The", "the") or (wait == "step" and truncating in error)


@pytest.mark.parametrize("command", ["collect", "eval", "train"])
def test_at_most_so_many_episodes_run_at_once(command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "log"
    if command == "train":
        keys = [f"agent.environment_args.log={log}", "agent.concurrency=3", "trainer.test_freq=1"]
        assert main(["train", *overrides(tmp_path, *keys)]) == 0
    else:
        flags = ["--env-arg", f"log={log}", "--tasks", "8", "--concurrency", "3", "--out", str(tmp_path / "out.json")]
        assert main([command, "--env", SLOW, *flags]) == 0
    counts = [int(line) for line in log.read_text().split()]
    assert max(counts) == 3
    assert len(counts) == (14 if command == "train" else 8)


def test_a_deadline_that_is_no_time_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["collect", "--env", SLOW, "--deadline", "tool=0", "--out", str(tmp_path)]) == 2
    assert "deadlines.tool=0.0: it must be above 0" in capsys.readouterr().err
    assert main(["train", *overrides(tmp_path, "agent.concurrency=0")]) == 2
    assert "agent.concurrency=0: it must be at least 1" in capsys.readouterr().err
