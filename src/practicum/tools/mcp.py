"""MCP servers as tools.

`mcp:COMMAND`                     a server that is started here and connected over its pipes
`mcp:http://HOST/mcp`             a server that runs elsewhere (streamable HTTP)
`…#one,two`                       only these of its tools
`mcp[servers=8]:COMMAND`          a new server for every episode; at most eight at once
`mcp[timeout=60,length=4096]:…`   seconds per call, characters per observation, at most

If a server dies, its running calls raise `ToolFailure`, since the agent is not the cause, and it is started again for
the next call. What a tool itself reports as an error is an observation.
"""

from __future__ import annotations

import functools
import math
import re
import threading
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from practicum.errors import UserError, did_you_mean
from practicum.tools.base import Tool
from practicum.tools.errors import ToolFailure
from practicum.tools.mcp_server import MCPConnection
from practicum.tools.pool import StatePool

ADDRESS_PATTERN = re.compile(r"mcp(?:\[(?P<options>[^\]]*)\])?:(?P<target>.+?)(?:#(?P<chosen>[^#\s]+))?", re.S)
OPTIONS: Mapping[str, Callable[[str], float]] = {"servers": int, "timeout": float, "length": int}

_lock = threading.RLock()
_servers: dict[str, MCPConnection] = {}
_tools: dict[str, tuple[Tool, ...]] = {}


@dataclass(frozen=True)
class Address:
    """A server and how it is used. `servers` 0: one server, shared by all episodes."""

    target: str
    chosen: tuple[str, ...] = ()
    servers: int = 0
    timeout: float = 30.0
    length: int = 2048


def read_address(text: str) -> Address:
    """Parse an address; UserError says what is wrong with it."""
    match = ADDRESS_PATTERN.fullmatch(text)
    if match is None or not match["target"].strip():
        raise UserError(
            f"'{text}': write mcp:COMMAND or mcp:http://HOST/mcp, and #TOOL,TOOL to choose among its tools."
        )
    options: dict[str, Any] = {}
    for pair in filter(None, (match["options"] or "").split(",")):
        key, _, value = (part.strip() for part in pair.partition("="))
        if key not in OPTIONS:
            raise UserError(f"'{text}' has an unknown option '{key}'.{did_you_mean(key, OPTIONS)}")
        try:
            options[key] = OPTIONS[key](value)
        except ValueError:
            options[key] = 0
        if not 0 < options[key] < math.inf:
            raise UserError(f"'{text}': {key} must be a number above 0.")
    target = match["target"].strip()
    if target.startswith("http") and "servers" in options:
        raise UserError(f"'{text}': servers= is for a command; a server at an address is there once.")
    return Address(target, tuple(match["chosen"].split(",")) if match["chosen"] else (), **options)


def tools_of(name: str) -> tuple[Tool, ...]:
    """Return the tools of an address. The server is started the first time; later calls return the same tools."""
    with _lock:
        if name not in _tools:
            address = read_address(name)
            try:
                _tools[name] = _make_tools(address)
            except ToolFailure as error:
                raise UserError(f"'{name}' cannot be used: {error}.") from error
        return _tools[name]


def _make_tools(address: Address) -> tuple[Tool, ...]:
    pool: StatePool | None = None
    if address.servers:
        server = MCPConnection(address.target).start()
        make = lambda: MCPConnection(address.target).start()  # noqa: E731
        pool = StatePool(make, address.servers, f"the MCP server '{address.target}'")
        pool.add(server)
    else:
        if address.target not in _servers:
            _servers[address.target] = MCPConnection(address.target)
        server = _servers[address.target].start()
    names = [offer.name for offer in server.offers]
    for tool_name in address.chosen:
        if tool_name not in names:
            raise UserError(
                f"The MCP server '{address.target}' has no tool '{tool_name}'.{did_you_mean(tool_name, names)}"
            )
    chosen = [offer for offer in server.offers if not address.chosen or offer.name in address.chosen]
    if not chosen:
        raise UserError(f"The MCP server '{address.target}' offers no tools.")
    return tuple(_make_tool(offer, address, server, pool) for offer in chosen)


def _make_tool(offer: Any, address: Address, server: MCPConnection, pool: StatePool | None) -> Tool:
    """Return one tool of a server, with the server's own schema."""
    schema: Mapping[str, Any] = offer.input_schema
    properties = schema.get("properties") or {}
    call_tool = _caller(offer.name)
    return Tool(
        name=offer.name,
        description=offer.description or "",
        function=functools.partial(call_tool, server) if pool is None else call_tool,
        parameters={key: value if isinstance(value, Mapping) else {} for key, value in properties.items()},
        required=tuple(schema.get("required") or ()),
        max_length=address.length,
        timeout=address.timeout,
        pool=pool,
        input_schema=schema,
    )


def _caller(name: str) -> Callable[..., Awaitable[str]]:
    async def call_tool(server: MCPConnection, /, **arguments: Any) -> str:
        return await server.call(name, arguments)

    return call_tool
