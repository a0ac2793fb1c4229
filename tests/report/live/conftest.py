"""The live page checks the folder more often than it does for people."""

from __future__ import annotations

import pytest

from practicum.report.live import watcher


@pytest.fixture(autouse=True)
def frequent_checks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watcher, "REFRESH_SECONDS", 0.2)
    monkeypatch.setattr(watcher, "SEARCH_SECONDS", 0.4)
