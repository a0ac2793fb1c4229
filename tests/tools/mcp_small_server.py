"""A small MCP server for the tests, made with the official package.

`python mcp_small_server.py FOLDER [PORT]`: leaves its process number in the folder, and speaks over its
pipes, or over HTTP where it is given a port.
"""

from __future__ import annotations

import asyncio
import base64
import os
import sys
import time
from pathlib import Path
from typing import Annotated, Literal

from mcp.server.mcpserver import Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, INVALID_PARAMS
from pydantic import Field

PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)
server = MCPServer("small")
counted = 0


@server.tool()
def add(a: int, b: Annotated[int, Field(description="the other one")] = 1) -> str:
    """Add two numbers."""
    return str(a + b)


@server.tool()
def count() -> str:
    """One more than the last time."""
    global counted
    counted += 1
    return f"{counted} {os.getpid()}"


@server.tool()
def refuse(why: str) -> str:
    """An error of the tool's own."""
    raise ToolError(why)


@server.tool()
def answer_with(kind: Literal["invalid", "internal", "own"]) -> str:
    """An error of the protocol."""
    raise MCPError({"invalid": INVALID_PARAMS, "internal": INTERNAL_ERROR, "own": 7}[kind], f"{kind} it is")


@server.tool(structured_output=False)
def mixed() -> list[object]:
    """Text, a picture, text."""
    return ["before", Image(data=PIXEL, format="png"), "after"]


@server.tool()
async def wait(seconds: float) -> str:
    """Take some time, and let others go on."""
    await asyncio.sleep(seconds)
    return "waited"


@server.tool()
async def hang(seconds: float) -> str:
    """Take some time, and let nobody else go on."""
    time.sleep(seconds)
    return "hung"


@server.tool()
def die() -> str:
    """End the server in the middle of a call."""
    os._exit(3)


@server.tool()
def variable(name: str) -> str:
    """A variable of the server's environment."""
    return os.environ.get(name, "(none)")


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    (folder / str(os.getpid())).touch()
    print("small server is up", file=sys.stderr, flush=True)
    if len(sys.argv) > 2:
        server.run("streamable-http", host="127.0.0.1", port=int(sys.argv[2]))
    else:
        server.run("stdio")
