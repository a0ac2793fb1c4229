"""The program of a worker process: it holds one engine and answers calls to it.

    python -m practicum.environments.worker_child MODULE:CLASS

A frame is four bytes of length and that much JSON. The first frame holds the engine's options; then each call
`{"call": NAME, "arguments": {...}}` is answered with `{"value": ...}`, or with `{"fault": TEXT}` if the engine
raised. The process ends when its parent closes the pipe or has ended, and when the engine raises `EngineBroken`.
"""

from __future__ import annotations

import importlib
import json
import os
import queue
import select
import struct
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, BinaryIO, Protocol

from practicum.errors import UserError

FRAME_LENGTH = struct.Struct(">I")
BROKEN_EXIT_STATUS = 3
"""Exit status of a process whose engine cannot continue."""
HEALTH_CHECK_SECONDS = 1.0
"""Seconds between two checks that the engine and the parent process still run."""


class EngineBroken(Exception):
    """The engine cannot continue: the process ends, and with it all episodes that it held."""


class Host(Protocol):
    """An engine in a worker: created once from its options, then called from one thread, one call at a time."""

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """Return the callable functions by name. Arguments and values are JSON."""

    def alive(self) -> bool:
        """Return whether what the engine depends on (another process, say) still runs; called from another thread."""


def write_frame(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    """Write a message and flush the stream."""
    body = json.dumps(message).encode()
    stream.write(FRAME_LENGTH.pack(len(body)) + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """Return the next message; None at the end of the stream."""
    head = _read_exactly(stream, FRAME_LENGTH.size)
    if head is None:
        return None
    body = _read_exactly(stream, FRAME_LENGTH.unpack(head)[0])
    return None if body is None else json.loads(body)


def _read_exactly(stream: BinaryIO, count: int) -> bytes | None:
    received = b""
    while len(received) < count:
        more = stream.read(count - len(received))
        if not more:
            return None
        received += more
    return received


def main(target: str) -> None:
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb")
    # What a library prints must not mix with the frames, and a child process must not keep the pipes open.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    messages: queue.SimpleQueue[Any] = queue.SimpleQueue()
    hosts: list[Host] = []
    parent = os.getppid()

    def listen() -> None:
        while True:
            ready, _, _ = select.select([source], [], [], HEALTH_CHECK_SECONDS)
            message = read_frame(source) if ready else None
            if ready and message is None:
                os._exit(0)  # the parent closed the pipe or has ended: nobody waits for the current call
            if ready:
                messages.put(message)
            if os.getppid() != parent:
                os._exit(0)
            if hosts and not hosts[0].alive():
                print("the engine's own process ended", file=sys.stderr, flush=True)
                os._exit(BROKEN_EXIT_STATUS)

    threading.Thread(target=listen, daemon=True).start()
    module, _, name = target.partition(":")
    make = getattr(importlib.import_module(module), name)
    while True:
        message = messages.get()
        try:
            if not hosts:
                hosts.append(make(**message["arguments"]))
                value = None
            else:
                value = hosts[0].calls()[message["call"]](**message["arguments"])
            answer = {"value": value}
        except EngineBroken as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(BROKEN_EXIT_STATUS)
        except UserError as error:
            answer = {"user": str(error)}
        except Exception as error:  # an error of one episode; the engine continues
            answer = {"fault": f"{type(error).__name__}: {error}"}
        write_frame(answers, answer)


if __name__ == "__main__":
    # Imported by its own name: the script's own `EngineBroken` would be another class than the hosts'.
    from practicum.environments import worker_child

    worker_child.main(sys.argv[1])
