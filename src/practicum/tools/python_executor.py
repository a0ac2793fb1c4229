"""The tool that runs a Python program in a sandbox and returns what it prints."""

from __future__ import annotations

import dataclasses
import math

from practicum.sandbox import base
from practicum.sandbox.limits import Limits, Reason, Result, SandboxError
from practicum.tools.base import tool
from practicum.tools.errors import ToolFailure
from practicum.utils.concurrency import judge_seconds

LIMITS = Limits(wall=10.0, cpu=5, output=16 * 1024)
MIN_WALL_SECONDS = 0.1
STOP_MESSAGES = {
    Reason.TIMEOUT: f"Error: stopped, it took too long (at most {LIMITS.cpu} s of computing, {LIMITS.wall:g} s in all)",
    Reason.MEMORY: f"Error: stopped, it wanted more than {LIMITS.memory // 2**20} MiB of memory",
    Reason.OUTPUT: f"Error: stopped, it printed more than {LIMITS.output // 1024} KiB",
    Reason.KILLED: "Error: it was killed",
}


def show_result(result: Result) -> str:
    """Return the text that the agent sees of a run: its output, then the error."""
    parts = [result.stdout.rstrip(), result.stderr.strip(), STOP_MESSAGES.get(result.reason, "")]
    if result.reason is Reason.ERROR and not result.stderr.strip():
        parts.append(f"Error: exit status {result.status}")
    return "\n".join(part for part in parts if part) or "(no output)"


# The sandbox has its own limits, and waiting for a free slot among many episodes has none.
@tool(timeout=math.inf, agent_code=True)
async def python_executor(code: str) -> str:
    """Run Python code; returns what it prints. Nothing is kept between calls.

    Args:
        code: a whole program; the value of a last line that is an expression is printed too
    """
    try:
        limits = dataclasses.replace(LIMITS, wall=max(judge_seconds(LIMITS.wall), MIN_WALL_SECONDS))
        return show_result(await base.current().run(code, limits=limits, show_last=True))
    except SandboxError as error:
        raise ToolFailure(str(error)) from error  # not an error of the agent's program


code_interpreter = dataclasses.replace(python_executor, name="code_interpreter")
"""The same tool under the name that AgentFly's code agent uses."""
