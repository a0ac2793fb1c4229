"""A small engine for the worker's tests: it counts, and can do everything that goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from practicum.environments.worker_child import EngineBroken
from practicum.errors import UserError


class Counter:
    """One number per session."""

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise UserError("A counter starts at 0 or above.")
        self.start = start
        self.counts: dict[int, int] = {}
        self.sick = False
        self.child: subprocess.Popen[bytes] | None = None

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "count": self.count, "close_session": self.close_session, "sessions": self.sessions, "pids": self.pids,
            "sleep": self.sleep, "spin": self.spin, "fail": self.fail, "refuse": self.refuse, "break": self.break_,
            "sicken": self.sicken, "exit": self.exit,
        }  # fmt: skip

    def alive(self) -> bool:
        return not self.sick

    def count(self, session: int, by: int = 1) -> int:
        print("a library's chatter")
        os.write(1, b"chatter from C")
        self.counts[session] = self.counts.get(session, self.start) + by
        return self.counts[session]

    def close_session(self, session: int) -> None:
        self.counts.pop(session, None)

    def sessions(self) -> int:
        return len(self.counts)

    def pids(self) -> list[int]:
        self.child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        return [os.getpid(), self.child.pid]

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)

    def spin(self, seconds: float) -> None:
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            pass

    def fail(self, session: int) -> None:
        raise ValueError("no such thing")

    def refuse(self, session: int) -> None:
        raise UserError("Do otherwise.")

    def break_(self, session: int) -> None:
        raise EngineBroken("the engine is gone")

    def sicken(self, session: int) -> None:
        self.sick = True

    def exit(self, session: int) -> None:
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)


class Slow:
    """An engine that takes its time to be made."""

    def __init__(self, seconds: float) -> None:
        started = time.monotonic()
        time.sleep(seconds)
        self.span = [started, time.monotonic()]

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"made": self.made}

    def alive(self) -> bool:
        return True

    def made(self, session: int) -> list[float]:
        return self.span
