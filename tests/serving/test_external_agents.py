"""External agents: their record is the one that the agent loop would have made, token by token."""

from __future__ import annotations

import asyncio
import shutil
import socket
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from practicum.agent import Agent, Deadlines, ExternalAgent
from practicum.chat.renderer import Renderer
from practicum.data.export import bc_rows
from practicum.data.preferences import mine_preferences
from practicum.engines.base import Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.decoder import Decoder
from practicum.rollout import run_episodes
from practicum.serving.agent_sandbox import sandbox_command
from practicum.training.preference_pairs import mine_pairs
from practicum.trajectory import SAME_PROMPT, Origin, Outcome, Trajectory, plan_attempts

AGENTS = Path(__file__).with_name("agents.py")


@pytest.fixture(scope="module")
def model() -> Any:
    """A tiny model that often calls the calculator: fine-tuned for a moment on the expert's replies."""
    loaded = loader.load_tiny(0)
    renderer = Renderer(loaded.tokenizer)
    environment, texts = MathEnvironment(levels=(1,)), []
    for task in environment.tasks("train", 24):
        expert = environment.expert(task)
        text = environment.format.write(expert(None), True)  # type: ignore[arg-type]
        question = asyncio.run(environment.reset(task, 0))
        prompt = [token for span in renderer.start(question.messages, question.tools) for token in span.ids]
        texts.append((prompt, list(renderer.encode_reply(text))))
    optimizer = torch.optim.Adam(loaded.model.parameters(), 3e-3)
    for step in range(30):
        prompt, reply = texts[step % len(texts)]
        ids = torch.tensor([prompt + reply])
        labels = torch.tensor([[-100] * len(prompt) + reply])
        loaded.model(input_ids=ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return loaded.model.eval()


def episodes(
    model: Any, renderer: Renderer, agent: ExternalAgent | None, count: int = 4, **extra: Any
) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        engine = LocalEngine(Decoder(model), renderer, max_batch=8)
        options = {"levels": (1,), **extra.pop("environment", {})}
        settings = Agent("hf", extra.pop("max_turns", 4), Sampling(1.0, max_tokens=32), external=agent, **extra)
        tasks = MathEnvironment(levels=(1,)).tasks("val", count)
        try:
            return await run_episodes(
                plan_attempts(tasks, 2, 0), lambda: MathEnvironment(**options), settings, engine, renderer
            )
        finally:
            await engine.close()

    return asyncio.run(run())


def spans(episode: Trajectory) -> list[Any]:
    return [(turn.spans, turn.restart, turn.continues, turn.seed, turn.role) for turn in episode.turns]


@pytest.mark.parametrize("name", ["chat", "streaming_chat", "responses", "messages_api"])
def test_the_record_is_the_agent_loops(model: Any, renderer: Renderer, name: str) -> None:
    internal = episodes(model, renderer, None)
    external = episodes(model, renderer, ExternalAgent(f"{AGENTS}:{name}"))
    num_turns = 0
    for expected, actual in zip(internal, external, strict=True):
        assert actual.outcome.scored, actual.error
        # The agent loop answers a reply that does not parse; what an agent does with one is its own business.
        count = (
            next((i for i, turn in enumerate(expected.turns) if turn.action.error is not None), len(expected.turns) - 1)
            + 1
        )
        assert spans(actual)[:count] == spans(expected)[: len(actual.turns)][:count]
        assert not any(turn.branch_reason for turn in actual.turns)
        if len(actual.turns) == len(expected.turns) and not expected.invalid_replies:
            assert (actual.reward, actual.outcome) == (expected.reward, expected.outcome)
        num_turns = max(num_turns, len(actual.turns))
    assert num_turns > 1, "the model never called its tool: nothing was continued"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["chat", "streaming_chat", "responses", "messages_api"])
def test_250_episodes_have_no_accidental_branch(model: Any, renderer: Renderer, name: str) -> None:
    """1,000 in all."""
    recorded = episodes(model, renderer, ExternalAgent(f"{AGENTS}:{name}"), 125)
    turns = [turn for episode in recorded for turn in episode.turns]
    assert len(recorded) == 250
    assert all(episode.outcome.scored for episode in recorded)
    assert len(turns) > 300
    assert {turn.branch_reason for turn in turns} == {""}


def test_what_the_agent_asks_for_is_recorded_and_the_run_decides(model: Any, renderer: Renderer) -> None:
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:chat"), 1)
    assert episode.turns[0].info == {"asked": {"temperature": 0.3}, "model": "gpt-4o"}
    assert episode.provenance["temperature"] == 1.0
    assert [tool["function"]["name"] for tool in episode.provenance["tools"]] == ["calculator"]


def test_rewards_by_callback(model: Any, renderer: Renderer) -> None:
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:rewarding", "callback"), 1)
    assert (episode.reward, episode.outcome) == (0.75, Outcome.FAILURE)
    assert episode.components == {"form": 0.25}
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:silent", "callback"), 1)
    assert episode.outcome is Outcome.JUDGE_ERROR
    assert "no reward" in (episode.error or "")
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:rewarding"), 1)
    assert episode.outcome is Outcome.ENV_ERROR, "this run takes no rewards from the agent, and says so to it"
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:idle"), 1)
    assert episode.outcome is Outcome.JUDGE_ERROR


def test_choices_that_an_agent_did_not_use_are_rejected_in_preference_pairs(model: Any, renderer: Renderer) -> None:
    """And are no demonstrations, although their episode succeeded."""
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:choosing", "callback"), 1)
    assert (episode.outcome, [turn.is_abandoned for turn in episode.turns]) == (
        Outcome.SUCCESS,
        [True, True, False, False],
    )
    used_reply, unused = episode.turns[2].reply, {turn.reply for turn in episode.turns[:2]}
    pairs = mine_preferences([episode], "same_state")
    assert {(pair.chosen.turn.reply, pair.rejected.turn.reply) for pair in pairs} == {
        (used_reply, reply) for reply in unused
    }
    for pair in mine_pairs([episode]):
        assert sum(pair.chosen.mask) == len(episode.turns[2].spans[-1].ids)
    assert len(mine_pairs([episode])) == 2
    rows = list(bc_rows([episode], lambda episode, index: "prompt"))
    assert not unused & {row["action"] for row in rows}


def test_replies_that_were_all_used_are_no_preference_pairs(model: Any, renderer: Renderer) -> None:
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:voting", "callback"), 1)
    assert [turn.branch_reason for turn in episode.turns] == ["", SAME_PROMPT, SAME_PROMPT]
    assert not any(turn.is_abandoned for turn in episode.turns)
    assert not mine_preferences([episode], "same_state")


def test_a_reward_function_over_the_finished_episode(model: Any, renderer: Renderer, tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(
        "from practicum import reward\n\n@reward()\ndef replies(trajectory):\n    return float(len(trajectory.turns))\n"
    )
    options = {"reward": f"{tmp_path}/rewards.py:replies"}
    [episode, *_] = episodes(model, renderer, ExternalAgent(f"{AGENTS}:chat"), 1, environment=options)
    assert episode.reward == len(episode.turns) > 0


@pytest.mark.parametrize("name", ["chat", "raising_chat"])
def test_the_limit_of_turns_truncates(model: Any, renderer: Renderer, name: str) -> None:
    """Also where the agent, as clients do, raises what it is answered."""
    recorded = episodes(model, renderer, ExternalAgent(f"{AGENTS}:{name}"), max_turns=1)
    assert all(len(episode.turns) == 1 for episode in recorded)
    assert any(episode.outcome is Outcome.TRUNCATED for episode in recorded)
    assert all(episode.outcome.scored for episode in recorded)


PROGRAM = """
import json, os, sys, urllib.request
task = json.load(open(os.environ["PRACTICUM_TASK_FILE"]))
assert "answer" not in json.dumps(task["messages"])
body = json.dumps({"model": "m", "messages": task["messages"]}).encode()
headers = {"content-type": "application/json", "authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
json.load(urllib.request.urlopen(request))
mode = sys.argv[1]
if mode == "hang":
    import time; time.sleep(60)
sys.exit(int(mode))
"""


def test_programs_their_exit_codes_and_their_deadline(model: Any, renderer: Renderer, tmp_path: Path) -> None:
    (tmp_path / "agent.py").write_text(PROGRAM)
    command = f"{sys.executable} {tmp_path}/agent.py"
    zero, *_ = episodes(model, renderer, ExternalAgent(f"{command} 0", "exit_code"), 1)
    assert (zero.outcome, zero.reward) == (Outcome.SUCCESS, 1.0)
    three_turns, *_ = episodes(model, renderer, ExternalAgent(f"{command} 3", "exit_code"), 1)
    assert (three_turns.outcome, three_turns.reward) == (Outcome.FAILURE, 0.0)
    broken, *_ = episodes(model, renderer, ExternalAgent(f"{command} 3"), 1)
    assert broken.outcome is Outcome.ENV_ERROR
    assert "exit code 3" in (broken.error or "")
    for seconds in (2.0, 10.0, 50.0):  # on a slow machine the program has not come to its call after the first
        deadlines = replace(Deadlines(), episode=seconds)
        timed_out, *_ = episodes(model, renderer, ExternalAgent(f"{command} hang"), 1, deadlines=deadlines)
        assert timed_out.outcome is Outcome.TIMEOUT
        if timed_out.turns:
            break
    assert len(timed_out.turns) == 1, "what was sampled before the deadline is in the record"


SHUT_IN = """
import os, pathlib, socket, sys
open("note.txt", "w").write("a folder to write to")
hidden = [pathlib.Path(path).exists() for path in ("/home", sys.argv[2].partition("=")[2])]
try:
    socket.create_connection(("127.0.0.1", int(sys.argv[3])), 2)
    hidden.append(True)
except OSError:
    pass
try:
    open(__file__, "a")
    hidden.append(True)
except OSError:
    pass
if any(hidden) or "SECRET" in os.environ:
    sys.exit(f"it sees what it should not: {hidden}")
"""


@pytest.mark.skipif(shutil.which("bwrap") is None, reason="needs bubblewrap")
def test_a_program_in_the_sandbox(
    model: Any, renderer: Renderer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It reaches the model and nothing else: no network, no files but its own, no variables. The folder for temporary
    files may have a path that is too long for a Unix socket."""
    long = tmp_path / ("t" * 100)
    long.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(long))
    (tmp_path / "agent").mkdir()
    (tmp_path / "secret").write_text("x")
    (tmp_path / "agent" / "agent.py").write_text(SHUT_IN + PROGRAM)
    monkeypatch.setenv("SECRET", "x")
    with socket.create_server(("127.0.0.1", 0)) as other:
        command = f"{sys.executable} {tmp_path}/agent/agent.py 0 hidden={tmp_path / 'secret'} {other.getsockname()[1]}"
        agent = ExternalAgent(command, sandbox=True).checked()
        episode, *_ = episodes(model, renderer, replace(agent, reward_from="exit_code"), 1)
    assert (episode.outcome, episode.reward) == (Outcome.SUCCESS, 1.0), episode.error
    assert len(episode.turns) == 1
    with pytest.raises(UserError, match="for a program"):
        ExternalAgent(f"{AGENTS}:chat", sandbox=True).checked()


def test_only_paths_of_a_sandboxed_command_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A word is not a path because a folder happens to have its name."""
    (tmp_path / "math").mkdir()
    (tmp_path / "agent.py").write_text("")
    monkeypatch.chdir(tmp_path)
    words = ["math", "./math", "agent.py", "none.py", "-c", "x" * 300, "y/" * 3000]
    command = sandbox_command([sys.executable, *words], tmp_path / "work", tmp_path / "socket", 1)
    named = ["math", f"{tmp_path}/math", f"{tmp_path}/agent.py", *words[3:]]
    assert command[-len(words) :] == named


def test_commands_that_cannot_run_are_user_errors() -> None:
    for command, word in (("", "needs agent.command"), ("no-such-program x", "no program"), ("none.py:f", "no file")):
        with pytest.raises(UserError, match=word):
            ExternalAgent(command).checked()
    with pytest.raises(UserError, match="reward_from"):
        ExternalAgent("true", "judge").checked()


def test_sampled_tokens_have_log_probs(model: Any, renderer: Renderer) -> None:
    for episode in episodes(model, renderer, ExternalAgent(f"{AGENTS}:chat"), 2):
        for turn in episode.turns:
            assert turn.spans[-1].origin is Origin.SAMPLED
            assert turn.spans[-1].logprobs is not None
