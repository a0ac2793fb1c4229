"""The Ray actor beside a learner rank. Ray imports this module in a process of its own, so it imports no torch."""

from __future__ import annotations

import asyncio
import json
import os
import re
import socket
import sys
from collections import deque
from pathlib import Path
from typing import Any

STDERR_LINES = 40
C_FRAME = re.compile(rb"\[0x[0-9a-f]+\]|^frame #\d")
"""A line of a stack trace of C code, of which errors of torch have a hundred behind the message."""
MODULE = "practicum.training.cluster.rank_process"
RAY_THREADS = ("OMP_NUM_THREADS",)
"""What Ray sets for its own processes; a rank has the threads that it would have without Ray."""


class RankActor:
    """Starts the process of one rank on its node and passes on what it tells."""

    def __init__(self) -> None:
        self._process: asyncio.subprocess.Process | None = None
        self._events: asyncio.Queue[Any] = asyncio.Queue()
        self._stderr: deque[str] = deque(maxlen=STDERR_LINES)

    async def start(self, request: str, env: dict[str, str], folder: str) -> str:
        """Start the process; returns the name of the host."""
        own = {key: value for key, value in os.environ.items() if key not in RAY_THREADS or key in env}
        self._process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", MODULE),
            env={**own, **env},
            cwd=folder if Path(folder).is_dir() else None,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            limit=2**24,
        )
        assert self._process.stdin is not None
        self._process.stdin.write(request.encode() + b"\n")
        await self._process.stdin.drain()
        self._pump = asyncio.create_task(self._read())  # kept: a task without a reference may be collected
        return socket.gethostname()

    async def _read(self) -> None:
        process = self._process
        assert process is not None
        assert process.stdout is not None
        assert process.stderr is not None

        async def read_stderr(stream: asyncio.StreamReader) -> None:
            async for line in stream:
                if not C_FRAME.search(line):
                    self._stderr.append(line.decode(errors="replace"))

        errors = asyncio.create_task(read_stderr(process.stderr))
        async for line in process.stdout:
            await self._events.put(json.loads(line))
        await errors
        await self._events.put(["exit", [await process.wait(), "".join(self._stderr)]])

    async def next_event(self) -> Any:
        """Wait for the next event: its kind and value. The last one is `exit`."""
        return await self._events.get()

    async def signal(self, signal_number: int) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.send_signal(signal_number)

    async def stop(self) -> None:
        """Kill the process, and wait for its end."""
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()
