"""Runs an agent's program inside its sandbox, with the gateway at the address that it has outside.

    python -c SOURCE PORT SOCKET PROGRAM ARGUMENTS…

The sandbox has no network: connections to 127.0.0.1:PORT are passed on through the gateway's Unix socket. Standard
library only: the interpreter in the sandbox may be any. The exit code is the program's.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys

READ_BYTES = 65536
SIGNAL_EXIT_CODE = 128
"""A program that a signal ended has this exit code plus the signal's number, as in a shell."""


async def copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(READ_BYTES):
            writer.write(data)
            await writer.drain()
    writer.close()


async def run(port: int, path: str, words: list[str]) -> int:
    async def connect(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        gateway_reader, gateway_writer = await asyncio.open_unix_connection(path)
        await asyncio.gather(copy(reader, gateway_writer), copy(gateway_reader, writer))

    await asyncio.start_server(connect, "127.0.0.1", port)
    program = await asyncio.create_subprocess_exec(*words)
    code = await program.wait()
    return code if code >= 0 else SIGNAL_EXIT_CODE - code


if __name__ == "__main__":
    sys.exit(asyncio.run(run(int(sys.argv[1]), sys.argv[2], sys.argv[3:])))
