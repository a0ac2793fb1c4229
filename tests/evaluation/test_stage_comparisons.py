"""The comparisons of `benchmarks/training_stages.py`: which there are, and what their p-values are corrected for."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

from practicum.evaluation.result import EvalResult

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def stages(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    yield importlib.import_module("training_stages")
    for name in ("training_stages", "parallel_jobs"):
        sys.modules.pop(name, None)


def test_verdicts_are_of_p_values_corrected_over_all_comparisons(
    stages: ModuleType, make_result: Callable[..., EvalResult]
) -> None:
    """A step with p = 0.03 at one seed, one of 14 comparisons, was 'better'; BC and online GRPO were not compared."""
    solved = {"base": 0, "BC": 30, "DPO": 30, "offline GRPO": 36, "online GRPO": 50, stages.TEN_TIMES: 50}
    results = {
        seed: {name: make_result(name, [1] * count + [0] * (60 - count)) for name, count in solved.items()}
        for seed in (3, 4)
    }
    steps = stages.compare_steps(results)
    for by_seed in steps.values():
        assert {seed: pair.num_comparisons for seed, pair in by_seed.items()} == {"3": 14, "4": 14, "all": 7}
    unsure = steps["BC → offline GRPO"]
    assert unsure["3"].success.p_value < 0.05 < unsure["3"].p_corrected
    assert (unsure["3"].conclusion, unsure["all"].conclusion) == ("no difference shown", "better")
    assert stages.comparison_record(unsure["3"])["p_holm"] == unsure["3"].p_corrected
    assert steps["BC → online GRPO"]["3"].conclusion == "better"
    lines = list(stages.table(results))
    assert sum("| no difference shown |" in line for line in lines if line.startswith("| BC → offline")) == 2
