"""The far side of a worker: a process of its own that holds one engine and answers calls about it.

    python -m practicum.environments.worker_child MODULE:CLASS

A frame is four bytes of length and that much JSON. The first frame holds the engine's options; then each call
`{"call": NAME, "arguments": {...}}` is answered with `{"value": ...}`, or with `{"fault": TEXT}` if the engine
raised. The process ends when its parent closes the pipe or is gone, and when the engine says that it is broken.
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

LENGTH = struct.Struct(">I")
BROKEN = 3
"""Exit status of a process whose engine is gone."""
TICK = 1.0
"""Seconds between two looks at the engine's and the parent's health."""


class Broken(Exception):
    """The engine cannot go on: the process ends, and with it all episodes that it held."""


class Host(Protocol):
    """An engine in a worker: made once from its options, then called from one thread, one call at a time."""

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        """What can be asked of it, by name. Arguments and values are JSON."""

    def alive(self) -> bool:
        """Whether what it stands on (another process, say) still runs; asked from another thread."""


def write_frame(stream: BinaryIO, message: Mapping[str, Any]) -> None:
    body = json.dumps(message).encode()
    stream.write(LENGTH.pack(len(body)) + body)
    stream.flush()


def read_frame(stream: BinaryIO) -> Any:
    """The next message; None at the end of the stream."""
    head = _exactly(stream, LENGTH.size)
    if head is None:
        return None
    body = _exactly(stream, LENGTH.unpack(head)[0])
    return None if body is None else json.loads(body)


def _exactly(stream: BinaryIO, count: int) -> bytes | None:
    held = b""
    while len(held) < count:
        more = stream.read(count - len(held))
        if not more:
            return None
        held += more
    return held


def main(target: str) -> None:
    source = os.fdopen(os.dup(0), "rb", buffering=0)
    answers = os.fdopen(os.dup(1), "wb")
    # What a library prints must not get between the frames, and a child of ours must not hold them open.
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    waiting: queue.SimpleQueue[Any] = queue.SimpleQueue()
    hosts: list[Host] = []
    parent = os.getppid()

    def listen() -> None:
        while True:
            ready, _, _ = select.select([source], [], [], TICK)
            message = read_frame(source) if ready else None
            if ready and message is None:
                os._exit(0)  # the parent closed the pipe or is gone; what the engine is at now, nobody will hear
            if ready:
                waiting.put(message)
            if os.getppid() != parent:
                os._exit(0)
            if hosts and not hosts[0].alive():
                print("the engine's own process ended", file=sys.stderr, flush=True)
                os._exit(BROKEN)

    threading.Thread(target=listen, daemon=True).start()
    module, _, name = target.partition(":")
    make = getattr(importlib.import_module(module), name)
    while True:
        message = waiting.get()
        try:
            if not hosts:
                hosts.append(make(**message["arguments"]))
                value = None
            else:
                value = hosts[0].calls()[message["call"]](**message["arguments"])
            answer = {"value": value}
        except Broken as error:
            print(f"{type(error).__name__}: {error}", file=sys.stderr, flush=True)
            os._exit(BROKEN)
        except UserError as error:
            answer = {"user": str(error)}
        except Exception as error:  # the episode's own fault; the engine goes on
            answer = {"fault": f"{type(error).__name__}: {error}"}
        write_frame(answers, answer)


if __name__ == "__main__":
    # By its own name: a `Broken` of the module that runs as a script would be another class than the hosts'.
    from practicum.environments import worker_child

    worker_child.main(sys.argv[1])
