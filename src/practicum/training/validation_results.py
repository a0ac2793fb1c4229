"""Results of the validations of a run, task by task (`validation/step_N.jsonl`), and the change from first to last.

The episodes of the first tasks of the panel are in `validation/step_N/`, to be read and compared between steps.
"""

from __future__ import annotations

import contextlib
import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from practicum.data.run_folder import write_atomic
from practicum.data.store import write_episode
from practicum.errors import UserError, did_you_mean
from practicum.evaluation.compare import Comparison, compare_pair
from practicum.evaluation.result import EvalResult, read_result
from practicum.trajectory import Trajectory

VALIDATION = "validation"
"""Folder of the results in a run's folder."""
MAX_FILE_BYTES = 64 << 20
MAX_SAVED_EPISODES = 32
"""Episodes that are kept of each validation."""
FILE_NAME = re.compile(r"step_(\d{1,9})\.jsonl")


def write_validation(folder: Path, step: int, result: EvalResult, episodes: Sequence[Trajectory] = ()) -> None:
    """Write the result of a step, and the first of its episodes.

    Those of later steps are from before the run was taken up again, and are deleted.
    """
    for later, path in validation_files(folder).items():
        if later > step:
            path.unlink(missing_ok=True)
            shutil.rmtree(path.with_suffix(""), ignore_errors=True)
    for episode in episodes[:MAX_SAVED_EPISODES]:
        write_episode(folder / VALIDATION / f"step_{step}", episode)
    timeless = replace(result, attempts=tuple(replace(attempt, seconds=None) for attempt in result.attempts))
    text = json.dumps(timeless.record(), ensure_ascii=False, allow_nan=False)
    write_atomic(folder / VALIDATION / f"step_{step}.jsonl", (text + "\n").encode("utf-8", "backslashreplace"))


def check_required_figures(result: EvalResult, required: Mapping[str, float]) -> None:
    """Raise UserError where the mean of a figure of the environment is below what training needs to begin."""
    metrics = result.metrics()
    for name, minimum in required.items():
        mean = metrics.get(f"figure/{name}")
        if mean is None:
            known = result.env_metric_names
            raise UserError(
                f"trainer.required_figures.{name}: the environment has no figure '{name}'.{did_you_mean(name, known)}"
            )
        if mean < minimum:
            raise UserError(
                f"The validation before training has a mean '{name}' of {mean:.2f} over {len(result.scored)} episodes "
                f"and needs {minimum:g} (trainer.required_figures.{name}): start from a model that was fine-tuned on "
                f"demonstrations, or set trainer.required_figures.{name}=0."
            )


def validation_files(folder: Path) -> dict[int, Path]:
    """The files of a run's validations by step, in order; links, and files too large for a result, are left out."""
    paths: dict[int, Path] = {}
    with contextlib.suppress(OSError):
        if (folder / VALIDATION).is_symlink():
            return paths
        for path in (folder / VALIDATION).iterdir():
            match = FILE_NAME.fullmatch(path.name)
            if match is None or path.is_symlink() or not path.is_file() or path.stat().st_size > MAX_FILE_BYTES:
                continue
            paths[int(match[1])] = path
    return dict(sorted(paths.items()))


def first_and_last(folder: Path) -> list[EvalResult]:
    """The results of the first and of the last validation, named by their steps; fewer where there are fewer."""
    steps = list(validation_files(folder).items())
    chosen = steps[:1] + steps[1:][-1:]
    return [replace(read_result(path), policy=f"step {step}") for step, path in chosen]


def compare_first_and_last(folder: Path) -> Comparison | None:
    """The paired comparison of the last validation with the first; None where there are not two of one panel.

    The last one is not the best of several, so its p-value needs no correction for the choice.
    """
    try:
        results = first_and_last(folder)
        return compare_pair(results[0], results[1]) if len(results) == 2 else None
    except (UserError, ValueError):
        return None
