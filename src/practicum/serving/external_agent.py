"""An agent that is a program of its own: started for each episode, it talks to the model through the gateway.

`command` is a program with its arguments (`python my_agent.py`), or `file.py:function`, a function that is called in
this process. Either gets the task and the address; a program finds them in its environment:

    OPENAI_BASE_URL, OPENAI_API_KEY, ANTHROPIC_BASE_URL, ANTHROPIC_API_KEY    the address, and the episode's key
    PRACTICUM_TASK_FILE                                                       the task as a JSON file
    PRACTICUM_EPISODE_URL                                                     POST …/reward and …/answer there
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import json
import os
import shlex
import signal
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from practicum.agent import FUNCTION_COMMAND, ExternalAgent
from practicum.environment import Observation, Step
from practicum.errors import JudgeError, UserError
from practicum.serving.agent_sandbox import kept_variables, sandbox_command
from practicum.serving.episode_recorder import EpisodeRecorder, PostedReward
from practicum.serving.gateway import Gateway, shared_gateway
from practicum.utils import user_files
from practicum.utils.concurrency import in_thread

MAX_OUTPUT_BYTES = 64 << 10
"""The end of a program's output that is kept."""
KILL_SECONDS = 2.0
"""Seconds between asking a program to end and killing it."""


@dataclass(frozen=True)
class ExternalTask:
    """What an external agent gets of its episode."""

    id: str
    messages: list[dict[str, Any]]
    tools: list[Mapping[str, Any]]
    base_url: str
    """OpenAI's base URL, with /v1."""
    anthropic_base_url: str
    api_key: str
    episode_url: str


@dataclass
class ExternalRun:
    """One run of an agent: its record, and how it ended."""

    recorder: EpisodeRecorder
    exit_code: int | None = None
    """The program's; of a function None."""
    output: str = ""
    """The end of what the program wrote."""
    returned: Any = field(default=None)
    """What the function returned."""

    async def run(self, agent: ExternalAgent, task_id: str, observation: Observation) -> None:
        """Run the agent to its end. It may be cancelled at any time."""
        async with shared_gateway() as gateway:
            key = self.recorder.key
            task = ExternalTask(
                id=task_id,
                messages=[{"role": message.role, "content": message.content} for message in observation.messages],
                tools=[dict(tool) for tool in observation.tools],
                base_url=f"{gateway.url}/v1",
                anthropic_base_url=gateway.url,
                api_key=key,
                episode_url=f"{gateway.url}/episodes/{key}",
            )
            with gateway.episode(self.recorder, asdict(task)):
                matched = FUNCTION_COMMAND.fullmatch(agent.command)
                if matched is not None:
                    await self._call(agent_function(Path(matched[1]), matched[2]), task)
                else:
                    await self._start(agent, task, gateway)

    def check_ended_well(self) -> None:
        """Raise where a program failed by itself: that says nothing about the policy."""
        if self.exit_code and not self.recorder.reached_limit:
            last = " ".join(self.output.split())[-500:]
            raise RuntimeError(f"the agent's program ended with exit code {self.exit_code}: {last}")

    def reported_step(self, agent: ExternalAgent) -> Step:
        """The reward that the agent posted, or that its exit code is; JudgeError where there is none."""
        if agent.reward_from == "exit_code":
            if self.exit_code is None:
                raise UserError("agent.reward_from=exit_code needs a program; a function has no exit code.")
            return Step(reward=float(self.exit_code == 0), terminated=True)
        if not self.recorder.rewards:
            self.check_ended_well()
            raise JudgeError("the agent posted no reward (POST to PRACTICUM_EPISODE_URL/reward)")
        total = sum(posted.reward for posted in self.recorder.rewards)
        final = [posted for posted in self.recorder.rewards if posted.response_id is None]
        components = {name: value for posted in final for name, value in posted.components.items()}
        successes = [posted.success for posted in self.recorder.rewards if posted.success is not None]
        reward = sum(posted.reward for posted in final)
        return Step(
            reward=reward, components=components, terminated=True, success=successes[-1] if successes else total > 0
        )

    async def _call(self, function: Callable[[ExternalTask], Any], task: ExternalTask) -> None:
        try:
            self.returned = await (
                function(task) if inspect.iscoroutinefunction(function) else in_thread(function, task)
            )
        except Exception:  # a client raises what a refused request was answered with
            if not self.recorder.reached_limit:
                raise
        if isinstance(self.returned, str):
            self.recorder.post_answer(self.returned)
        elif isinstance(self.returned, int | float):
            self.recorder.post_reward(PostedReward(float(self.returned)))
        elif self.returned is not None:
            raise TypeError(f"the agent returned a {type(self.returned).__name__}; return an answer, a reward or None")

    async def _start(self, agent: ExternalAgent, task: ExternalTask, gateway: Gateway) -> None:
        words = shlex.split(agent.command)
        with tempfile.TemporaryDirectory(prefix="practicum-task-") as folder:
            file = Path(folder) / "task.json"
            file.write_text(json.dumps(asdict(task), ensure_ascii=False))
            inherited: Mapping[str, str] = os.environ
            if agent.sandbox:
                words = sandbox_command(words, Path(folder), await gateway.unix_socket(), gateway.port)
                inherited = kept_variables(os.environ, Path(folder))
            process = await asyncio.create_subprocess_exec(
                *words,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.STDOUT,
                env={**inherited, **_variables(task, file)},
                start_new_session=True,  # it is ended with everything that it has started
            )
            try:
                self.output = await _last_output(process)
                self.exit_code = await process.wait()
            finally:
                await asyncio.shield(_end(process))


def agent_function(path: Path, name: str) -> Callable[[ExternalTask], Any]:
    """The function of a user's file."""
    function = getattr(user_files.load(path), name, None)
    if not callable(function):
        raise UserError(f"agent.command: '{path}' has no function '{name}'.")
    result: Callable[[ExternalTask], Any] = function
    return result


def _variables(task: ExternalTask, file: Path) -> dict[str, str]:
    local = "127.0.0.1,localhost"
    return {
        "OPENAI_BASE_URL": task.base_url,
        "OPENAI_API_BASE": task.base_url,
        "OPENAI_API_KEY": task.api_key,
        "ANTHROPIC_BASE_URL": task.anthropic_base_url,
        "ANTHROPIC_API_KEY": task.api_key,
        "PRACTICUM_TASK_FILE": str(file),
        "PRACTICUM_EPISODE_URL": task.episode_url,
        "NO_PROXY": ",".join(filter(None, (os.environ.get("NO_PROXY"), local))),
        "no_proxy": ",".join(filter(None, (os.environ.get("no_proxy"), local))),
    }


async def _last_output(process: asyncio.subprocess.Process) -> str:
    """The end of what a program writes until it closes its output."""
    assert process.stdout is not None
    data = b""
    while chunk := await process.stdout.read(MAX_OUTPUT_BYTES):
        data = (data + chunk)[-MAX_OUTPUT_BYTES:]
    return data.decode(errors="replace")


async def _end(process: asyncio.subprocess.Process) -> None:
    """End a program and what it has started."""
    for signal_number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal_number)
        if process.returncode is None:
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(process.wait(), KILL_SECONDS)
