"""Suites that are programs: compatcanary (npm), schemathesis, OpenEnv's check."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.mark.parametrize("profile", ["modern", "chat"])
def test_compatcanary(base_url: str, profile: str, tmp_path: Path) -> None:
    if shutil.which("npx") is None:
        pytest.skip("needs Node")
    report = tmp_path / "report.json"
    command = ["npx", "--yes", "compatcanary@0.2.2", "scan", "--base-url", base_url, "--model", "tiny"]
    done = subprocess.run(
        [*command, "--profile", profile, "--format", "json", "--output", str(report)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads(report.read_text())["score"] == 100


def test_schemathesis_finds_no_server_error(base_url: str) -> None:
    """All endpoints of /openapi.json, negative data included."""
    program = Path(sys.executable).with_name("schemathesis")
    url = base_url.replace("/v1", "/openapi.json")
    options = ["--checks", "not_a_server_error", "--max-examples", "20", "--request-timeout", "600"]
    done = subprocess.run(
        [program, "run", url, *options, "--generation-database", "none"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout[-5000:]


def test_openenv_says_that_the_endpoint_can_be_trained_through(base_url: str) -> None:
    """Token ids, processed log-probs; its packages need an environment of their own, OPENENV_PYTHON."""
    python = os.environ.get("OPENENV_PYTHON")
    if python is None:
        pytest.skip("OPENENV_PYTHON is not set")
    done = subprocess.run([python, HERE / "openenv_check.py", base_url, "tiny"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
