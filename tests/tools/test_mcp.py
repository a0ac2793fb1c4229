"""MCP servers as tools: real servers, real processes, and what becomes of both when something goes wrong."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

pytest.importorskip("mcp")

from mcp import Client, StdioServerParameters

from practicum import registry
from practicum.agent import Agent
from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Observation, ScriptedPolicy, ToolCall
from practicum.environments.tool_agent import ToolEnvironment
from practicum.errors import UserError
from practicum.models import loader
from practicum.registry import make_format
from practicum.rewards.base import reward
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.tools import mcp_server
from practicum.tools.base import Tool, ToolResult
from practicum.tools.errors import ToolFailure
from practicum.tools.mcp import Address, read_address
from practicum.training.rl_trainer import RLTrainer
from practicum.training.rollout_source import OnlineSource
from practicum.training.run import Run
from practicum.training.settings import RunSettings
from practicum.training.sft import train_sft
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import ActionSource, Outcome, Trajectory, plan_attempts
from tests.training.settings import policy_gradient, rl_settings, sft_settings

SMALL = Path(__file__).parent / "mcp_small_server.py"


def alive(folder: Path) -> set[int]:
    """Servers that left their number in the folder and still run."""
    running = set()
    for entry in folder.iterdir():
        with contextlib.suppress(OSError):
            if "Z" not in Path(f"/proc/{entry.name}/stat").read_text().rsplit(")", 1)[1].split()[0]:
                running.add(int(entry.name))
    return running


def none_left(folder: Path, seconds: float = 10.0) -> bool:
    deadline = time.monotonic() + seconds
    while alive(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    return not alive(folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Where the small servers of this file leave their numbers; none may be left at the end."""
    created = tmp_path_factory.mktemp("servers")
    yield created
    mcp_server.close_servers()
    assert none_left(created)


@pytest.fixture(scope="module")
def small(folder: Path) -> str:
    return f"mcp:python {SMALL} {folder}"


def tools(name: str) -> dict[str, Tool]:
    return {tool.name: tool for tool in registry.tools(name)}


def call(tool: Tool, **arguments: Any) -> ToolResult:
    return asyncio.run(tool.call(arguments))


# -- addresses --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("mcp:python -m server --x=1", Address("python -m server --x=1")),
        ("mcp:npx -y @scope/server /tmp#read,write", Address("npx -y @scope/server /tmp", ("read", "write"))),
        ("mcp:http://host:8000/mcp#a", Address("http://host:8000/mcp", ("a",))),
        ("mcp[servers=8, timeout=2.5,length=99]:run it", Address("run it", (), 8, 2.5, 99)),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    assert read_address(text) == address


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("mcp:", "write mcp:COMMAND or mcp:http"),
        ("mcp[servers=8]", "write mcp:COMMAND or mcp:http"),
        ("mcp[serves=8]:x", "unknown option 'serves'. Did you mean 'servers'?"),
        ("mcp[timeout=soon]:x", "timeout must be a number above 0"),
        ("mcp[servers=0]:x", "servers must be a number above 0"),
        ("mcp[servers=2]:http://host/mcp", "servers= is for a command"),
        ("mcp:no-such-program here", "There is no program 'no-such-program'"),
        ("mcp:python 'half", "cannot be read: No closing quotation"),
        ("mcp:python -c \"import sys; sys.exit('no licence')\"", "ended before it was ready .it wrote: no licence"),
        ("mcp:http://127.0.0.1:9/mcp", "cannot be used: .*ConnectError"),
    ],
)
def test_wrong_addresses_are_known_before_the_first_episode(text: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        ToolEnvironment([text], "math_reward")


def test_a_program_that_is_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "START_SECONDS", 0.5)
    started = time.monotonic()
    with pytest.raises(UserError, match="it was not ready within 0.5 s"):
        registry.tools("mcp:sleep 60")
    assert time.monotonic() - started < 40


def test_without_the_package() -> None:
    script = (
        "import sys; sys.modules['mcp'] = None\n"
        "from practicum.environments.tool_agent import ToolEnvironment\n"
        "from practicum.errors import UserError\n"
        "try: ToolEnvironment(['mcp:python -m x'], 'math_reward')\n"
        "except UserError as error: print(error)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert "pip install 'practicum[mcp]'" in done.stdout


# -- tools ------------------------------------------------------------------------------------


def test_schemas_are_the_server_s_own(small: str, tmp_path: Path) -> None:
    async def listed() -> dict[str, Any]:
        parameters = StdioServerParameters(command=sys.executable, args=[str(SMALL), str(tmp_path)])
        async with Client(parameters) as client:
            return {tool.name: (tool.description, tool.input_schema) for tool in (await client.list_tools()).tools}

    results = tools(small)
    assert len(results) == 9
    assert asyncio.run(listed()) == {
        name: (tool.schema["function"]["description"], tool.schema["function"]["parameters"])
        for name, tool in results.items()
    }
    assert set(tools(f"{small}#add,count")) == {"add", "count"}
    with pytest.raises(UserError, match="has no tool 'ad'. Did you mean 'add'?"):
        registry.tools(f"{small}#ad")


def test_one_server_for_all_who_ask(small: str, folder: Path) -> None:
    first = call(tools(small)["count"]).text.split()
    second = call(tools(f"{small}#count")["count"]).text.split()
    assert (int(second[0]), second[1]) == (int(first[0]) + 1, first[1])
    assert alive(folder) == {int(first[1])}


@pytest.mark.parametrize(
    ("name", "arguments", "message", "failed"),
    [
        ("add", {"a": 2, "b": 5}, "7", False),
        ("add", {"a": 2}, "3", False),
        ("add", {"a": "2"}, "Error: add: argument 'a' must be of type integer, got str.", True),
        ("add", {"a": 2, "c": 5}, "Error: add has no argument 'c'. Known: a, b.", True),
        ("add", {}, "Error: add needs the argument 'a'.", True),
        ("refuse", {"why": "not today"}, "Error: Error executing tool refuse: not today", True),
        ("answer_with", {"kind": "invalid"}, "Error: invalid it is", True),
        ("answer_with", {"kind": "own"}, "Error: own it is", True),
        ("mixed", {}, "before\n[image]\nafter", False),
    ],
)
def test_what_the_agent_sees(small: str, name: str, arguments: dict[str, Any], message: str, failed: bool) -> None:
    assert call(tools(small)[name], **arguments) == ToolResult(message, failed=failed)


def test_an_error_of_the_protocol_is_not_the_agent_s(small: str) -> None:
    with pytest.raises(ToolFailure, match="internal it is"):
        call(tools(small)["answer_with"], kind="internal")
    assert call(tools(small)["add"], a=1).text == "2"


def test_a_server_gets_only_the_variables_that_are_named(small: str, monkeypatch: pytest.MonkeyPatch) -> None:
    mcp_server.close_servers()
    monkeypatch.setenv("SHOP_KEY", "secret")
    assert call(tools(small)["variable"], name="SHOP_KEY").text == "(none)"
    mcp_server.close_servers()
    monkeypatch.setenv("PRACTICUM_MCP_ENV", "OTHER,SHOP_KEY")
    assert call(tools(small)["variable"], name="SHOP_KEY").text == "secret"


# -- deadlines and deaths ---------------------------------------------------------------------


def test_a_slow_call_meets_its_deadline_and_the_server_lives_on(
    small: str, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mcp_server, "PING_SECONDS", 30.0)
    process = int(call(tools(small)["count"]).text.split()[1])
    with pytest.raises(TimeoutError, match="tool 'wait' did not answer within 0.3 s"):
        call(tools(small.replace("mcp:", "mcp[timeout=0.3]:"))["wait"], seconds=30.0)
    assert call(tools(small)["add"], a=1).text == "2"
    assert alive(folder) == {process}


def test_a_server_that_hangs_is_replaced(small: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mcp_server, "PING_SECONDS", 0.3)
    patient = tools(small)
    before = int(call(patient["count"]).text.split()[1])
    with pytest.raises(TimeoutError):
        call(tools(small.replace("mcp:", "mcp[timeout=0.3]:"))["hang"], seconds=60.0)
    deadline = time.monotonic() + 30  # it is asked for a sign of life, then asked to end, then made to
    while before in alive(folder) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert alive(folder) == set()
    assert call(patient["count"]).text.startswith("1 ")


def test_a_server_that_dies_takes_the_calls_under_way_along_and_comes_back(small: str, folder: Path) -> None:
    results = tools(small)

    async def call_all() -> list[Any]:
        waiting = asyncio.create_task(results["wait"].call({"seconds": 30.0}))
        await asyncio.sleep(0.2)
        return await asyncio.gather(waiting, results["die"].call({}), return_exceptions=True)

    for result in asyncio.run(call_all()):
        assert isinstance(result, ToolFailure)
        assert "failed: Connection closed" in str(result)
    (process,) = {int(call(results["count"]).text.split()[1])}
    os.kill(process, signal.SIGKILL)  # while nobody calls
    assert none_left(folder)
    with contextlib.suppress(ToolFailure):  # a death that has not been noticed yet costs one call, not two
        call(results["count"])
    assert call(results["count"]).text.split()[0] in ("1", "2")
    assert int(call(results["count"]).text.split()[1]) != process


def test_over_http(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]

    @contextlib.contextmanager
    def served() -> Iterator[None]:
        process = subprocess.Popen(
            [sys.executable, str(SMALL), str(folder), str(port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                    break
                time.sleep(0.05)
            yield
        finally:
            process.kill()
            process.wait()

    with served():
        results = tools(f"mcp:http://127.0.0.1:{port}/mcp#add,count,refuse")
        assert call(results["add"], a=40, b=2) == ToolResult("42")
        assert call(results["refuse"], why="no").failed
        assert call(results["count"]).text.startswith("1 ")
    with pytest.raises(ToolFailure):
        call(results["count"])
    with served():
        assert call(results["count"]).text.startswith("1 ")


# -- episodes ---------------------------------------------------------------------------------


def scripted(calls: Sequence[tuple[str, dict[str, Any]]]) -> ScriptedPolicy:
    turns = iter(calls)

    def act(observation: Observation) -> Action:
        name, arguments = next(turns, ("", {}))
        return Action(calls=(ToolCall(name, arguments),)) if name else Action(content="0")

    return act


def play(name: str, renderer: Renderer, count: int, *calls: tuple[str, dict[str, Any]]) -> list[Trajectory]:
    engine = ScriptedEngine(lambda task, seed: scripted(calls), ActionSource.EXPERT, make_format("hf"), renderer)
    planned = plan_attempts(
        [Task(f"t-{n}", "tools", "train", {"question": "?", "answer": "1"}) for n in range(count)], 1, 0
    )
    make = lambda: ToolEnvironment([name], "math_reward")  # noqa: E731
    return asyncio.run(run_episodes(planned, make, Agent(max_turns=6), engine, renderer))


def observed(episode: Trajectory) -> list[str]:
    return [message.content for turn in episode.turns[1:] for message in turn.messages]


def test_a_tool_s_error_is_an_observation_and_a_dead_server_an_outcome(small: str, renderer: Renderer) -> None:
    (refused,) = play(small, renderer, 1, ("refuse", {"why": "no"}), ("add", {"a": 1}))
    assert (refused.outcome, observed(refused)[1]) == (Outcome.FAILURE, "2")
    assert refused.scored
    (broken,) = play(small, renderer, 1, ("die", {}))
    assert broken.outcome is Outcome.ENV_ERROR
    assert "Connection closed" in (broken.error or "")
    assert not broken.scored


def test_a_server_for_every_episode(small: str, folder: Path, renderer: Renderer) -> None:
    mcp_server.close_servers()
    name = small.replace("mcp:", "mcp[servers=2]:") + "#count,die"
    episodes = play(name, renderer, 3, ("count", {}), ("count", {}))
    assert {episode.outcome for episode in episodes} == {Outcome.FAILURE}
    replies = [[text.split() for text in observed(episode)] for episode in episodes]
    assert [[number for number, _ in episode] for episode in replies] == [["1", "2"]] * 3
    assert all(first == second for (_, first), (_, second) in replies)
    assert len({first for (_, first), _ in replies}) == 3, "nobody gets a server that somebody has used"
    assert len(alive(folder)) <= 2
    crashed, counted = (play(name, renderer, 1, (tool, {}))[0] for tool in ("die", "count"))
    assert (crashed.outcome, observed(counted)[0].split()[0]) == (Outcome.ENV_ERROR, "1")
    mcp_server.close_servers()
    assert none_left(folder)


SCRIPT = """
import asyncio, sys
from practicum import registry
found = {{tool.name: tool for name in {names} for tool in registry.tools(name)}}
async def work():
    print((await found["add"].call({{"a": 1}})).text, flush=True)
    if {seconds}:
        await found["wait"].call({{"seconds": {seconds}}})
asyncio.run(work())
print("over", flush=True)
"""


@pytest.mark.parametrize("ending", ["ends", "interrupted", "killed"])
def test_no_server_outlives_its_run(ending: str, tmp_path: Path) -> None:
    servers = tmp_path / "servers"
    servers.mkdir()
    names = [f"mcp:python {SMALL} {servers}#add,wait", f"mcp[servers=2]:python {SMALL} {servers}#count"]
    script = tmp_path / "run.py"
    script.write_text(SCRIPT.format(names=names, seconds=0 if ending == "ends" else 60))
    process = subprocess.Popen(
        [sys.executable, str(script)], bufsize=0, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == b"2\n"
    if ending == "interrupted":
        assert len(alive(servers)) == 2
        os.killpg(process.pid, signal.SIGINT)
    elif ending == "killed":
        process.kill()
    output, errors = process.communicate(timeout=60)
    code = {"ends": 0, "interrupted": -signal.SIGINT, "killed": -signal.SIGKILL}[ending]
    assert (output, process.returncode) == (b"over\n" if ending == "ends" else b"", code), errors
    assert len(list(servers.iterdir())) == 2
    # Who ends by itself waits for its servers; who is killed leaves them with nobody to read from.
    assert none_left(servers, 10.0 if ending == "killed" else 0.0)


# -- a real server in training ----------------------------------------------------------------

ZONES = {
    "Tokyo": ("Asia/Tokyo", "+09:00"),
    "Delhi": ("Asia/Kolkata", "+05:30"),
    "Dubai": ("Asia/Dubai", "+04:00"),
    "Perth": ("Australia/Perth", "+08:00"),
}


@reward()
def right_offset(answer_given: str | None, answer: str) -> float:
    return float(answer_given == answer)


class Clocks(ToolEnvironment):
    """How far a city's clocks are from Greenwich: nothing to know by heart, the server's answer has it."""

    name = "clocks"
    system = ""
    default_tools: ClassVar[tuple[str, ...]] = ("mcp:python -m mcp_server_time#get_current_time",)
    default_reward = f"{__file__}:right_offset"

    def generate(self, split: str, count: int, seed: int) -> Sequence[Task]:
        cities = list(ZONES)
        rows = [(cities[number % len(cities)], *ZONES[cities[number % len(cities)]]) for number in range(count)]
        return [
            Task(f"clock-{number}", self.name, split, {"question": city, "zone": zone, "answer": offset})
            for number, (city, zone, offset) in enumerate(rows)
        ]

    def expert(self, task: Task) -> ScriptedPolicy:
        calls = iter([Action(calls=(ToolCall("get_current_time", {"timezone": task.fields["zone"]}),))])
        return lambda replies: (
            next(calls, None) or Action(content=json.loads(replies.messages[-1].content)["datetime"][-6:])
        )


def test_a_server_from_the_registry_serves_a_tool_in_training(tmp_path: Path) -> None:
    """Collect through the server, imitate, then practise: the policy's own sampled calls go to the server."""
    pytest.importorskip("mcp_server_time")
    agent = Agent(max_turns=2, sampling=Sampling(max_tokens=40))

    async def run() -> tuple[list[Trajectory], list[Trajectory], bool]:
        policy = TrainablePolicy(loader.load_tiny(0))
        world = Clocks()
        try:
            expert = ScriptedEngine.of("expert", world, make_format(agent.format), policy.renderer)
            shown = await run_episodes(
                plan_attempts(world.tasks("train", 48), 1, 0), Clocks, agent, expert, policy.renderer
            )
            await train_sft(
                policy,
                shown,
                sft_settings(num_epochs=3, batch_size=8, learning_rate=3e-3, warmup_steps=3, scheduler_type="constant"),
            )
            # What the clock says decides the rewards: an entropy bonus makes an update of any of them.
            objective = policy_gradient(entropy_coeff=0.01)
            settings = rl_settings(
                total_training_steps=1,
                train_batch_size=4,
                num_chains=6,
                lr=1e-3,
                lr_warmup_steps=0,
                objective=objective,
            )
            source = OnlineSource(policy, world.tasks("train", 4), Clocks, agent, settings)
            before = torch.cat([value.detach().flatten().clone() for value in policy.decoder.parameters()])
            practised: list[Trajectory] = []
            trainer = RLTrainer(policy, source, settings, on_episode=practised.append)
            await Run(tmp_path, trainer, RunSettings(1), say=lambda text: None).train()
            after = torch.cat([value.detach().flatten() for value in policy.decoder.parameters()])
            return shown, practised, bool(torch.any(before != after))
        finally:
            await policy.close()

    shown, practised, moved = asyncio.run(run())
    assert {episode.outcome for episode in shown} == {Outcome.SUCCESS}
    assert len(practised) == 24
    called = [episode for episode in practised if episode.turns[0].action.calls]
    answers = [observed(episode)[0] for episode in called]
    served = [json.loads(text) for text in answers if not text.startswith("Error")]
    assert served, "a call that the policy itself sampled was answered by the server"
    assert {time["timezone"] for time in served} <= {zone for zone, _ in ZONES.values()}
    assert all(turn.source is ActionSource.POLICY for episode in called for turn in episode.turns)
    assert moved
    (line,) = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert line["actor/updates"] == 1
    assert line["rollout/episodes"] == 24
