"""Pytest's option `--trained-policy`: tests that use the fixture `htdag_planner` plan with the promoted model.

    pytest tests/test_my_planner.py --trained-policy

The plugin is loaded wherever Practicum is installed. The model is the current version of `htdag` in the registry that
HTDAG_REGISTRY names (default: `registry`). Without the option the flag HTDAG_USE_TRAINED_POLICY decides.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from practicum.planner import HTDAGPlanner


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("practicum").addoption(
        "--trained-policy", action="store_true", help="let `htdag_planner` plan with the promoted model"
    )


@pytest.fixture
def htdag_planner(request: pytest.FixtureRequest) -> HTDAGPlanner:
    """A planner without a language model: the promoted policy if it is requested, else heuristics."""
    from practicum.planner import HTDAGPlanner
    from practicum.planner.htdag_planner import trained_policy_wanted

    use_trained = bool(request.config.getoption("--trained-policy")) or trained_policy_wanted()
    return HTDAGPlanner(use_trained_policy=use_trained)
