"""The supervised server: a real child process, ended with us, started again when it dies; and the engine upon it."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from practicum.agent import Agent
from practicum.engines.base import Sampling
from practicum.engines.vllm import engine as vllm_engine
from practicum.engines.vllm.engine import VLLMEngine, VLLMSettings
from practicum.engines.vllm.server import ServerSettings, VLLMServer, find_python
from practicum.environments.math import MathEnvironment
from practicum.errors import EngineError, UserError
from practicum.models import loader, lora
from practicum.rollout import run_episodes
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import Outcome, Trajectory, plan_attempts

LIGHT = """
import http.server, json, os, pathlib, subprocess, sys
fault = os.environ.get("VLLM_TEST_FAULT", "")
if fault == "refuse":
    sys.exit("ValueError: no such flag")
helper = subprocess.Popen(["sleep", "600"])
pathlib.Path("facts.json").write_text(
    json.dumps({"arguments": sys.argv[1:], "environment": dict(os.environ), "helper": helper.pid})
)
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(503 if pathlib.Path("sick").exists() else 200)
        self.end_headers()
    def log_message(self, *arguments):
        pass
if fault != "mute":
    http.server.HTTPServer(("127.0.0.1", int(sys.argv[sys.argv.index("--port") + 1])), Handler).serve_forever()
helper.wait()
"""


def interpreter(folder: Path, script: Path) -> str:
    """A program that takes an interpreter's place and runs a script instead of vLLM."""
    path = folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {script} "$@"\n')
    path.chmod(0o755)
    return str(path)


def settings_for(folder: Path, **more: float | int | str | None) -> ServerSettings:
    script = folder / "light.py"
    script.write_text(LIGHT)
    return ServerSettings(folder=folder / "run", python=interpreter(folder, script), **{"start_timeout": 60, **more})  # type: ignore[arg-type]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[VLLMServer]:
    made = VLLMServer(settings_for(tmp_path))
    yield made
    made.stop()


def facts(server: VLLMServer) -> dict[str, object]:
    result: dict[str, object] = json.loads((server.settings.folder / "facts.json").read_text())
    return result


def runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def eventually(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not condition() and time.monotonic() < deadline:
        time.sleep(0.05)
    return condition()


def test_the_server_gets_its_own_environment_and_ends_with_all_its_processes(
    server: VLLMServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("OPENAI_API_KEY", "secret"), ("VIRTUAL_ENV", "/ours"), ("PYTHONPATH", "/ours"), ("HF_X", "1"),
                        ("VLLM_API_KEY", "known-to-others")):  # fmt: skip
        monkeypatch.setenv(name, value)
    server.start("model-folder", 12)
    assert server.alive
    result = facts(server)
    environment, arguments = result["environment"], result["arguments"]
    assert isinstance(environment, dict)
    assert isinstance(arguments, list)
    assert not {"OPENAI_API_KEY", "VIRTUAL_ENV", "PYTHONPATH"} & set(environment)
    assert environment["HF_X"] == "1"
    assert environment["VLLM_API_KEY"] == server.key != "known-to-others"
    assert server.key not in " ".join(arguments)
    assert environment["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_SERVER_DEV_MODE" not in environment
    assert environment["PATH"].startswith(str(Path(server.python).parent))
    flags = dict(itertools.pairwise(arguments))
    assert arguments[:2] == ["-m", "vllm.entrypoints.openai.api_server"]
    assert (flags["--model"], flags["--logprobs-mode"], flags["--max-lora-rank"]) == (
        "model-folder", "processed_logprobs", "16",
    )  # fmt: skip
    pids = [server.pid, int(str(result["helper"]))]
    assert all(map(runs, pids))
    server.stop()
    assert not any(map(runs, pids))
    assert not server.alive


def test_the_end_of_the_log_is_in_the_error_of_a_failed_start(
    tmp_path: Path, server: VLLMServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VLLM_TEST_FAULT", "refuse")
    with pytest.raises(UserError, match="vLLM did not start \\(ValueError: no such flag\\); its log is '.*server.log'"):
        server.start("m", None)
    monkeypatch.setenv("VLLM_TEST_FAULT", "mute")
    slow = VLLMServer(settings_for(tmp_path, start_timeout=2.0))
    with pytest.raises(UserError, match="did not answer within actor_rollout_ref.rollout.vllm.start_timeout=2 s"):
        slow.start("m", None)
    if (slow.settings.folder / "facts.json").exists():  # on a busy machine it has not come that far
        assert not runs(int(str(facts(slow)["helper"])))


def test_a_start_can_be_cancelled(server: VLLMServer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VLLM_TEST_FAULT", "mute")
    threading.Timer(1.0, server.cancel_start).start()
    started = time.monotonic()
    with pytest.raises(EngineError, match="closed while its server started"):
        server.start("m", None)
    assert time.monotonic() - started < 30


def test_a_running_server_that_is_not_healthy_is_ended(server: VLLMServer) -> None:
    server.start("m", 8)
    assert server.check_health()
    (server.settings.folder / "sick").touch()
    pid = server.pid
    assert not server.check_health()
    assert not runs(pid)
    assert not server.alive


def test_a_crash_loop_stops_with_a_sentence(server: VLLMServer) -> None:
    server.start("m", 8)
    for _ in range(3):
        helper = int(str(facts(server)["helper"]))
        os.kill(server.pid, signal.SIGKILL)
        assert eventually(lambda: not server.alive)
        server.restart("m", 8)
        assert server.alive
        assert not runs(helper)  # nothing of the dead one is left
    os.kill(server.pid, signal.SIGKILL)
    assert eventually(lambda: not server.alive)
    with pytest.raises(UserError, match="died 4 times within 900 s"):
        server.restart("m", 8)
    assert server.num_starts == 4


def test_a_server_that_cannot_be_restarted_is_given_up(server: VLLMServer, monkeypatch: pytest.MonkeyPatch) -> None:
    server.start("m", 8)
    server.stop()
    monkeypatch.setenv("VLLM_TEST_FAULT", "refuse")
    with pytest.raises(UserError, match="vLLM did not start"):
        server.restart("m", 8)
    assert server.num_starts == 4


def test_the_server_ends_with_its_parent(tmp_path: Path) -> None:
    """The parent is killed, and can clean up nothing."""
    settings = settings_for(tmp_path)
    code = (
        "import os, signal, sys; from pathlib import Path\n"
        "from practicum.engines.vllm.server import ServerSettings, VLLMServer\n"
        f"server = VLLMServer(ServerSettings(Path({str(settings.folder)!r}), {settings.python!r}))\n"
        "server.start('m', None); print(server.pid, flush=True); os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == -signal.SIGKILL, done.stderr
    helper = json.loads((settings.folder / "facts.json").read_text())["helper"]
    assert eventually(lambda: not runs(int(done.stdout)) and not runs(helper))


def test_a_taken_port_and_a_missing_interpreter_are_user_errors(tmp_path: Path) -> None:
    with socket.socket() as occupied:
        occupied.bind(("127.0.0.1", 0))
        occupied.listen()
        port = occupied.getsockname()[1]
        with pytest.raises(UserError, match=f"vllm.port={port} cannot be used"):
            VLLMServer(settings_for(tmp_path, port=port)).start("m", None)
    with pytest.raises(UserError, match="is not a program"):
        find_python(str(tmp_path / "nothing"))
    with pytest.raises(UserError, match="set actor_rollout_ref.rollout.vllm.url to a running one"):
        find_python(None)


# -- the engine upon it -----------------------------------------------------------------------


def make_policy(folder: Path, rank: int | None) -> TrainablePolicy:
    script = Path(__file__).with_name("small_vllm.py")
    server = ServerSettings(folder / "vllm", interpreter(folder, script), max_model_len=256, start_timeout=120)
    settings = VLLMSettings(loader.model_folder("tiny"), folder / "vllm", server)
    loaded = loader.load("tiny")
    if rank is not None:
        loaded = lora.add_adapter(loaded, lora.LoRASettings(rank))
    return TrainablePolicy(loaded, make_engine=lambda renderer: VLLMEngine(renderer, settings))


def learn(policy: TrainablePolicy, size: float) -> None:
    with torch.no_grad():
        for parameter in (policy.loaded.adapter or policy.loaded.model).parameters():
            if parameter.requires_grad:
                parameter += size * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    policy.set_version(policy.version + 1)


def test_a_server_killed_in_a_rollout_is_started_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_engine, "REPLY_TOKENS", 8)
    monkeypatch.setenv("VLLM_SMALL_SLOW", "0.02")
    policy = make_policy(tmp_path, 4)
    engine = policy.engine
    assert isinstance(engine, VLLMEngine)
    server = engine.client.server
    assert server is not None
    agent = Agent(max_turns=1, sampling=Sampling(max_tokens=100))

    async def play(label: str, kill: bool) -> list[Trajectory]:
        planned = plan_attempts(MathEnvironment().tasks("train", 2), 2, 0, label)
        episodes = asyncio.create_task(
            run_episodes(planned, MathEnvironment, agent, engine, policy.renderer, concurrency=4)
        )
        if kill:
            await asyncio.sleep(0.3)
            os.kill(server.pid, signal.SIGKILL)  # that child and no other
        return await episodes

    async def run() -> None:
        try:
            learn(policy, 0.02)
            await engine.update_weights(policy.version, policy)
            before = server.pid
            hit = await play("a/", kill=True)
            assert {e.outcome for e in hit} == {Outcome.ENGINE_ERROR}
            assert all("vLLM server" in (e.error or "") or "did not answer" in (e.error or "") for e in hit)
            well = await play("b/", kill=False)
            assert all(e.scored for e in well)
            assert server.pid != before
            assert server.num_starts == 2
            turn = well[0].turns[0]
            *prompt, reply = turn.spans
            expected = policy.score([i for span in prompt for i in span.ids], reply.ids)
            assert reply.logprobs == pytest.approx(expected, abs=1e-4)  # the adapter is back, not the bare model
            os.kill(server.pid, signal.SIGKILL)
            assert eventually(lambda: not server.alive)
            learn(policy, 0.02)
            await engine.update_weights(policy.version, policy)  # finds it dead
            assert engine.reports[-1].verdict == "proven"
            assert server.num_starts == 3
        finally:
            await policy.close()

    asyncio.run(run())
    assert not server.alive


def test_full_weights_whose_reload_keeps_the_old_head_are_served_by_a_fresh_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What vLLM does on CPU: reload_weights answers with success and leaves the tied output layer as it was."""
    monkeypatch.setattr(vllm_engine, "REPLY_TOKENS", 8)
    policy = make_policy(tmp_path, None)
    engine = policy.engine
    assert isinstance(engine, VLLMEngine)
    server = engine.client.server
    assert server is not None

    async def run() -> None:
        try:
            await engine.update_weights(policy.version, policy)
            learn(policy, 0.001)
            await engine.update_weights(policy.version, policy)
        finally:
            await policy.close()

    asyncio.run(run())
    result = [(report.version, report.verdict) for report in engine.reports]
    assert result == [(0, "first"), (1, "lost"), (1, "proven")]
    assert server.num_starts == 2
    assert not list((tmp_path / "vllm").glob("v*"))
