"""Rewards that ask a judge: a local model, or a server that dies half-way."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from practicum.config.resolve import resolve_train
from practicum.errors import UserError
from practicum.evaluation.result import EvalResult
from practicum.evaluation.runner import evaluate
from practicum.evaluation.settings import EvalSettings
from practicum.training.build import build_run
from practicum.training.rollout_source import group_scored
from practicum.trajectory import Outcome, Trajectory

REWARD = """
from practicum import Message, reward

@reward
async def judged(answer_given, question, judge):
    reply = await judge.reply([Message("user", f"{question} Is {answer_given} right?")])
    return {"reward": float(len(reply.text) % 2), "judge_tokens": reply.usage.completion_tokens}
"""


def train(tmp_path: Path, *more: str) -> tuple[list[Trajectory], str]:
    """One step with the judging reward; its episodes, and the sentence that it stopped with."""
    (tmp_path / "judged.py").write_text(REWARD)
    episodes: list[Trajectory] = []
    config = resolve_train(
        [
            "agent.environment=math", f"agent.reward_name={tmp_path}/judged.py:judged", "agent.max_turns=1",
            "agent.max_tokens_per_turn=6", "algorithm.adv_estimator=grpo", "actor_rollout_ref.model.path=tiny",
            "data.train_batch_size=3", "agent.num_chains=2", "trainer.total_training_steps=1",
            "trainer.val_before_train=false", "trainer.test_freq=-1", "trainer.logger=[]",
            f"trainer.default_local_dir={tmp_path}", *more,
        ]
    ).config  # fmt: skip

    async def run_it() -> str:
        run = build_run(config, on_episode=episodes.append, say=lambda text: None)
        try:
            await run.train()
        except UserError as error:
            return str(error)
        finally:
            await run.policy.close()
        return ""

    return episodes, asyncio.run(run_it())


def test_a_reward_asks_a_local_model(tmp_path: Path) -> None:
    episodes, stopped = train(tmp_path, "agent.roles.judge.model=tiny", "agent.roles.judge.max_tokens_per_turn=4")
    assert not stopped
    assert len(episodes) == 6
    assert all(episode.scored for episode in episodes)
    assert all(0 <= episode.components["judge_tokens"] <= 4 for episode in episodes)


def test_a_judge_that_is_not_configured_is_an_error_before_any_rollout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"asks a model named 'judge': set agent\.roles\.judge\.model"):
        train(tmp_path)


class Dying(BaseHTTPRequestHandler):
    """Answers two requests, then refuses all."""

    left = threading.Semaphore(2)

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        alive = self.left.acquire(blocking=False)
        body = json.dumps({"choices": [{"message": {"content": "yes"}, "finish_reason": "stop"}]}).encode()
        self.send_response(200 if alive else 400)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


@pytest.fixture
def server() -> Iterator[str]:
    Dying.left = threading.Semaphore(2)
    running = ThreadingHTTPServer(("127.0.0.1", 0), Dying)
    thread = threading.Thread(target=running.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{running.server_address[1]}/v1"
    running.shutdown()
    running.server_close()
    thread.join()


def test_a_server_that_dies_leaves_unscored_episodes_and_no_baseline_with_them(tmp_path: Path, server: str) -> None:
    roles = [f"agent.roles.judge.url={server}", "agent.roles.judge.model=m"]
    episodes, stopped = train(tmp_path, *roles, "algorithm.error_budget=1.0")
    outcomes = Counter(episode.outcome for episode in episodes)
    assert set(outcomes) <= {Outcome.SUCCESS, Outcome.FAILURE, Outcome.TRUNCATED, Outcome.JUDGE_ERROR}
    assert outcomes[Outcome.JUDGE_ERROR] >= 1 or "requests in a row failed" in stopped
    assert all(episode.scored for group in group_scored(episodes, 2) for episode in group)
    _, stopped = train(tmp_path, *roles, "trainer.experiment_name=strict", "algorithm.error_budget=0.1")
    assert "could not be scored" in stopped or "requests in a row failed" in stopped


def evaluate_with_judge(tmp_path: Path, judge: str | None) -> EvalResult:
    (tmp_path / "judged.py").write_text(REWARD)
    return evaluate(
        EvalSettings(
            environment="math", environment_options={"reward": f"{tmp_path}/judged.py:judged"}, policy="null",
            split="test", num_tasks=4, max_turns=1, roles={} if judge is None else {"judge": judge},
        ),
        progress=False,
    )  # fmt: skip


def test_an_evaluation_asks_a_judge_and_leaves_out_what_it_could_not_judge(tmp_path: Path, server: str) -> None:
    local = evaluate_with_judge(tmp_path, "tiny")
    assert len(local.scored) == 4
    remote = evaluate_with_judge(tmp_path, f"m@{server}")
    assert len(remote.scored) == 2
    assert {attempt.outcome for attempt in remote.unscored} == {Outcome.JUDGE_ERROR}
    with pytest.raises(UserError, match="name it with --role judge=MODEL"):
        evaluate_with_judge(tmp_path, None)
