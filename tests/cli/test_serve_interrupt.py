"""Ctrl-C while `practicum serve` loads its models: one line, and nothing is served."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from practicum.cli.main import main
from practicum.serving.served_models import ModelLoader


def test_ctrl_c_while_the_models_are_loaded_is_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    load = ModelLoader.load_base

    def interrupted(self: ModelLoader, *args: Any, **options: Any) -> Any:
        loaded = load(self, *args, **options)
        os.kill(os.getpid(), signal.SIGINT)
        return loaded

    monkeypatch.setattr(ModelLoader, "load_base", interrupted)
    assert main(["serve", "tiny", "--port", "0", "--device", "cpu"]) == 130
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.strip().startswith("practicum: stopped")
    assert len(shown.err.strip().splitlines()) == 1
