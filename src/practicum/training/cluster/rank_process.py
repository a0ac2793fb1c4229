"""One learner rank that Ray has placed: `python -m practicum.training.cluster.rank_process`.

Its configuration comes as a line of JSON on stdin; the process ends when stdin does, so that it never outlives whoever
started it. Lines of JSON on stdout tell what happens: messages, steps, the result, or why it failed.
"""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any, TextIO

from practicum.config.dpo import DPOConfig
from practicum.config.overrides import Resolved, from_yaml
from practicum.config.sft import SFTConfig
from practicum.config.train import TrainConfig
from practicum.errors import UserError
from practicum.training.build import StepCallback, TrainResult, train
from practicum.training.build_supervised import dpo, sft
from practicum.training.ranks import RanksLost

INTERRUPTED = 130
"""Exit status after Ctrl-C."""


class EventWriter(io.TextIOBase):
    """Writes events as lines of JSON; text that is printed to it becomes messages."""

    def __init__(self, target: TextIO) -> None:
        self._target, self._lock, self._text = target, threading.Lock(), ""

    def send(self, kind: str, value: Any) -> None:
        with self._lock:
            self._target.write(json.dumps([kind, value]) + "\n")
            self._target.flush()

    def write(self, text: str) -> int:
        *lines, self._text = (self._text + text).split("\n")
        for line in lines:
            self.send("log", line)
        return len(text)


def end_with_stdin() -> None:
    """Kill this process once stdin is closed: whoever started it is gone."""
    while os.read(0, 1024):  # not sys.stdin: its lock would be held when the interpreter ends
        pass
    os.kill(os.getpid(), signal.SIGKILL)


def run_command(request: Mapping[str, Any], log: Callable[[str], None], on_step: StepCallback) -> TrainResult:
    """Run `train`, `sft` or `dpo` as this rank."""
    text, sources = request["config"], request["sources"]
    if request["command"] == "sft":
        return sft(Resolved(from_yaml(SFTConfig, text), sources), progress=False, log=log, on_step=on_step)
    if request["command"] == "dpo":
        return dpo(Resolved(from_yaml(DPOConfig, text), sources), progress=False, log=log, on_step=on_step)
    resolved = Resolved(from_yaml(TrainConfig, text), sources)
    return train(resolved, model_folder=request["model_folder"], progress=False, log=log, on_step=on_step)


def main() -> int:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})  # Ray blocks it in its own processes
    request: dict[str, Any] = json.loads(sys.stdin.readline())
    threading.Thread(target=end_with_stdin, daemon=True).start()
    events = EventWriter(sys.stdout)
    sys.stdout = events

    def on_step(step: int, total: int, values: Mapping[str, float]) -> None:
        events.send("step", [step, total, dict(values)])

    try:
        result = run_command(request, lambda text: events.send("log", text), on_step)
    except RanksLost as error:
        events.send("ranks_lost", str(error))
        return 2
    except UserError as error:
        events.send("user_error", str(error))
        return 2
    except KeyboardInterrupt:
        return INTERRUPTED
    values = {**vars(result), "folder": str(result.folder), "model": str(result.model), "metrics": dict(result.metrics)}
    events.send("result", values)
    return 0


if __name__ == "__main__":
    sys.exit(main())
