"""A server of the tiny model for other people's clients.

The light ones are in the environment of the tests and run in `make test`; the others have one of their own, and the
program PRACTICUM is then that of the server (`make test-clients`).
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator

import pytest

MODEL = "tiny"
SECOND_NAME = "tiny-again"
"""Another name of the same model."""


@pytest.fixture(scope="session")
def base_url() -> Iterator[str]:
    """The address of a server: PRACTICUM_URL, or one that is started (PRACTICUM, or this environment's own)."""
    if url := os.environ.get("PRACTICUM_URL"):
        yield url
        return
    own = [sys.executable, "-m", "practicum.cli"]
    program = [os.environ["PRACTICUM"]] if "PRACTICUM" in os.environ else own
    model = os.environ.get("PRACTICUM_MODEL", MODEL)
    options = ["--served-model-name", MODEL, SECOND_NAME, "--port", "0", "--return-tokens-as-token-ids"]
    process = subprocess.Popen([*program, "serve", model, *options], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    url = process.stdout.readline().split()[0]
    try:
        for _ in range(100):
            try:
                urllib.request.urlopen(url.replace("/v1", "/health"), timeout=5)
                break
            except OSError:
                time.sleep(0.1)
        yield url
    finally:
        process.terminate()
        process.wait(90)  # replies under way get 60 seconds


@pytest.fixture(autouse=True)
def address(base_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Clients find the server where they look for it by themselves."""
    monkeypatch.setenv("OPENAI_BASE_URL", base_url)
    monkeypatch.setenv("OPENAI_API_KEY", "none")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", base_url.removesuffix("/v1"))
    monkeypatch.setenv("ANTHROPIC_API_KEY", "none")
    monkeypatch.setenv("OPENAI_AGENTS_DISABLE_TRACING", "1")
