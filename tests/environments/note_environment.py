"""An environment whose episodes share a board of notes: a resource with state. It logs what happens to the board."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from practicum.environment import Action, Environment, Message, Observation, ScriptedPolicy, Step
from practicum.resources import Resource
from practicum.task import Task

JITTER = random.Random()  # deliberately unseeded: episodes end in any order

SIGNALLED: list[bool] = []


class Board(Resource):
    """Notes by task, with a count of all; `log` is a file that gets a line for every opening and closing."""

    def __init__(self, log: str | None = None) -> None:
        self.log, self.is_open = log, False
        self.notes: dict[str, list[str]] = {}

    def _note(self, text: str) -> None:
        if self.log is not None:
            with Path(self.log).open("a") as file:
                file.write(f"{text}\n")

    async def open(self) -> None:
        await asyncio.sleep(0.01)
        self.is_open = True
        self._note("open")

    async def healthy(self) -> bool:
        return self.is_open

    async def close(self) -> None:
        await asyncio.sleep(0.01)
        self.is_open = False
        self._note("close")

    def state_dict(self) -> Any:
        return {"notes": self.notes}

    def load_state_dict(self, state: Any) -> None:
        self.notes = state["notes"]

    def commit(self, writes: Sequence[Any]) -> None:
        for write in writes:
            self.notes.setdefault(write["task"], []).append(write["text"])


class Notes(Environment):
    """Shows how many notes there are, and pays for short answers. An answer is a note of its task."""

    name = "notes"
    formats = ("hf",)

    def __init__(self, log: str | None = None, signal_at: int | None = None) -> None:
        """`signal_at`: this process gets SIGTERM in the task of that number."""
        self.log, self.signal_at = log, signal_at

    def make_resources(self) -> Mapping[str, Resource]:
        return {"board": Board(self.log)}

    async def reset(self, task: Task, seed: int) -> Observation:
        self.task, board = task, self.resources["board"]
        assert board.is_open
        count = sum(map(len, board.notes.values()))
        if task.fields["number"] == self.signal_at:
            if not SIGNALLED:  # a second signal would end the process at once
                SIGNALLED.append(True)
                os.kill(os.getpid(), signal.SIGTERM)
            await asyncio.sleep(30)
        await asyncio.sleep(JITTER.random() * 0.01)
        last = [texts[-1] for texts in board.notes.values()][-1:]
        return Observation((Message("user", f"{count} {json.dumps(last)}"),))

    async def step(self, action: Action) -> Step:
        self.resources.write("board", {"task": self.task.id, "text": action.content})
        await asyncio.sleep(JITTER.random() * 0.01)
        return Step(reward=1.0 / (1 + len(action.content)), terminated=True)

    async def truncate(self) -> Step:
        self.resources.write("board", {"task": self.task.id, "text": "nothing"})
        return Step(reward=-0.1, truncated=True)

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        return [Task(f"{split} {seed} {number}", "notes", split, {"number": number}) for number in range(count)]

    def expert(self, task: Task) -> ScriptedPolicy:
        return lambda observation: Action(content=f"note {task.fields['number']}")
