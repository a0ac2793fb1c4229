"""One browser for all tests; the live page checks the folder more often than it does for people."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from practicum.report.live import watcher
from tests.report.report_files import launch_chromium


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with launch_chromium() as chromium:
        yield chromium


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "REFRESH_SECONDS", 0.2)
    monkeypatch.setattr(watcher, "SEARCH_SECONDS", 0.4)
