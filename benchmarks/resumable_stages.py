"""Stages of a benchmark that are commands of `practicum`; a stage that is done is not done again."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from practicum.cli.main import main as practicum
from practicum.data.run_folder import write_atomic
from practicum.utils.memory import cpu_seconds


def run_command(*arguments: object) -> None:
    """Print a command of `practicum` and run it in this process; a failure ends the program."""
    words = [str(argument) for argument in arguments]
    print(f"\n$ practicum {shlex.join(words)}", flush=True)
    code = practicum(words)
    if code:
        raise SystemExit(code)


def run_stages(file: Path, stages: Mapping[str, Callable[[], None]]) -> dict[str, dict[str, float]]:
    """Run the stages that `file` does not list as done; return the minutes and processor minutes of all of them."""
    recorded = json.loads(file.read_text()) if file.is_file() else {}
    done: dict[str, dict[str, float]] = {  # files of earlier versions say cpu_minutes
        name: {key.replace("cpu_", "processor_"): value for key, value in row.items()} for name, row in recorded.items()
    }
    for name, stage in stages.items():
        if name in done:
            print(f"{name}: done before, in {done[name]['minutes']:.1f} min", flush=True)
            continue
        print(f"\n=== {name} ===", flush=True)
        clock, processor = time.monotonic(), cpu_seconds()
        stage()
        minutes, processor_minutes = (time.monotonic() - clock) / 60, (cpu_seconds() - processor) / 60
        done[name] = {"minutes": minutes, "processor_minutes": processor_minutes}
        write_atomic(file, (json.dumps(done, indent=1) + "\n").encode())
    return done
