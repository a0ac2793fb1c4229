"""A small engine for the worker's tests: it counts, and can do everything that goes wrong."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from practicum.environments.worker_child import Broken
from practicum.errors import UserError


class Counter:
    """One number a seat."""

    def __init__(self, start: int = 0) -> None:
        if start < 0:
            raise UserError("A counter starts at 0 or above.")
        self.start = start
        self.counts: dict[int, int] = {}
        self.sick = False
        self.child: subprocess.Popen[bytes] | None = None

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {
            "count": self.count, "leave": self.leave, "seats": self.seats, "pids": self.pids, "sleep": self.sleep,
            "spin": self.spin, "fail": self.fail, "refuse": self.refuse, "break": self.break_, "sicken": self.sicken,
            "exit": self.exit,
        }  # fmt: skip

    def alive(self) -> bool:
        return not self.sick

    def count(self, seat: int, by: int = 1) -> int:
        print("a library's chatter")
        os.write(1, b"chatter from C")
        self.counts[seat] = self.counts.get(seat, self.start) + by
        return self.counts[seat]

    def leave(self, seat: int) -> None:
        self.counts.pop(seat, None)

    def seats(self) -> int:
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

    def fail(self, seat: int) -> None:
        raise ValueError("no such thing")

    def refuse(self, seat: int) -> None:
        raise UserError("Do otherwise.")

    def break_(self, seat: int) -> None:
        raise Broken("the engine is gone")

    def sicken(self, seat: int) -> None:
        self.sick = True

    def exit(self, seat: int) -> None:
        print("last words", file=sys.stderr, flush=True)
        os._exit(7)


class Slow:
    """An engine that takes its time to be made."""

    def __init__(self, seconds: float) -> None:
        begun = time.monotonic()
        time.sleep(seconds)
        self.span = [begun, time.monotonic()]

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {"made": self.made}

    def alive(self) -> bool:
        return True

    def made(self, seat: int) -> list[float]:
        return self.span
