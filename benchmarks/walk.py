"""How many files of the package one `math` task enters on its way from `practicum train` to a checkpoint.

Runs one training step of the built-in `tiny` model and lists the files of which a function was called after import:
what a reader has to open to follow the run. `make walk` fails above MAX_FILES.
"""

from __future__ import annotations

import sys
import tempfile
import threading
from pathlib import Path
from types import FrameType
from typing import Any

import practicum
from practicum.cli.main import main

PACKAGE = f"{Path(practicum.__file__).parent}/"
MAX_FILES = 45


def in_import(frame: FrameType) -> bool:
    """Whether a module of the package is being imported: its code is then called, but not as part of the run."""
    current: FrameType | None = frame
    while current is not None:
        if current.f_code.co_name == "<module>" and current.f_code.co_filename.startswith(PACKAGE):
            return True
        current = current.f_back
    return False


def files_entered(overrides: list[str]) -> dict[str, int]:
    """Run `practicum train` and return, per file of the package, how many of its functions were called."""
    functions: dict[str, set[str]] = {}

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event != "call" or code.co_name.startswith("<") or not code.co_filename.startswith(PACKAGE):
            return
        if not in_import(frame):
            functions.setdefault(code.co_filename.removeprefix(PACKAGE), set()).add(code.co_name)

    threading.setprofile(profile)
    sys.setprofile(profile)
    try:
        code = main(["train", *overrides])
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    if code != 0:
        raise SystemExit(code)
    return {file: len(names) for file, names in sorted(functions.items())}


def run() -> int:
    with tempfile.TemporaryDirectory() as folder:
        files = files_entered([
            "recipe=math-tiny", "actor_rollout_ref.model.path=tiny", "trainer.total_training_steps=1",
            "data.train_batch_size=2", "agent.num_chains=2", "trainer.val_before_train=false", "trainer.test_freq=-1",
            "trainer.save_freq=1", f"trainer.default_local_dir={folder}", *sys.argv[1:],
        ])  # fmt: skip
    for file, num_functions in files.items():
        print(f"{num_functions:4}  {file}")
    print(f"{len(files)} files, at most {MAX_FILES}")
    return int(len(files) > MAX_FILES)


if __name__ == "__main__":
    sys.exit(run())
