"""How many files of the package one `math` task enters on its way from `practicum train` to a checkpoint.

Fine-tunes the built-in `tiny` model on a few demonstrations until it calls its calculator, runs one training step of it
and lists the files of which a function was called after import: what a reader has to open to follow the run.
`make walk` fails above MAX_FILES, where no reply called the calculator, and where no weight was updated.
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
"""Files at most, without those of the tools, which a run whose model calls none does not enter."""
TOOLS = "tools/"
CALCULATOR = f"{TOOLS}calculator.py"
LEARNER = "training/learner.py"


def model_that_calls_tools(folder: Path) -> Path:
    """Fine-tune `tiny` on the expert's episodes of eight tasks, about 20 seconds on two cores."""
    settings = practicum.CollectSettings(
        environment="math", environment_options={"levels": [1, 2]}, num_tasks=8, out=folder, run_id="expert"
    )
    episodes = practicum.collect(settings, progress=False)
    result = practicum.sft(
        [
            "model.path=tiny", "training.use_lora=false", "training.bf16=false", "training.num_epochs=60",
            f"data.episodes={episodes.folder}", "data.val_share=0", f"output_dir={folder}/sft",
        ],
        progress=False,
    )  # fmt: skip
    return result.model


def in_import(frame: FrameType) -> bool:
    """Whether a module of the package is being imported: its code is then called, but not as part of the run."""
    current: FrameType | None = frame
    while current is not None:
        code = current.f_code
        if code.co_name == "<module>" and code.co_filename.startswith(PACKAGE):
            return True
        if code.co_filename.startswith("<frozen importlib"):  # a hook of the import system
            return True
        current = current.f_back
    return False


def files_entered(overrides: list[str]) -> dict[str, set[str]]:
    """Run `practicum train` and return, per file of the package, the functions that were called."""
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
    return dict(sorted(functions.items()))


def run() -> int:
    with tempfile.TemporaryDirectory() as name:
        model = model_that_calls_tools(Path(name))
        files = files_entered([
            "recipe=math-tiny", f"actor_rollout_ref.model.path={model}", "trainer.total_training_steps=1",
            "data.train_batch_size=2", "agent.num_chains=4", "trainer.val_before_train=false", "trainer.test_freq=-1",
            "trainer.save_freq=1", f"trainer.default_local_dir={name}",
            "actor_rollout_ref.rollout.temperature=0.5",  # calls of the form that it was trained on
            "actor_rollout_ref.actor.entropy_coeff=0.001",  # a gradient also where all rewards of a task are equal
            *sys.argv[1:],
        ])  # fmt: skip
    for file, functions in files.items():
        print(f"{len(functions):4}  {file}")
    num_files = sum(not file.startswith(TOOLS) for file in files)
    print(f"{num_files} files, at most {MAX_FILES}; {len(files) - num_files} more where the model calls a tool")
    is_whole = True
    if CALCULATOR not in files:
        is_whole = False
        print("no reply called the calculator: this is not the whole walk")
    if "update" not in files[LEARNER]:
        is_whole = False
        print("no weight was updated: this is not the whole walk")
    return int(num_files > MAX_FILES or not is_whole)


if __name__ == "__main__":
    sys.exit(run())
