"""The containers as files: what HALO names is there, and what they refer to exists."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
COMPOSE = ROOT / "docker" / "docker-compose.train.yml"
INSTRUCTIONS = ("FROM", "RUN", "WORKDIR", "ENV", "COPY", "CMD")


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text())["services"]
    return loaded


def test_the_services_are_halos(services: dict[str, Any]) -> None:
    assert list(services) == ["vllm", "vllm-lora", "train"]
    assert services["vllm"]["ports"] == ["127.0.0.1:8000:8000"]
    assert services["vllm-lora"]["ports"] == ["127.0.0.1:8001:8000"]
    assert services["vllm-lora"]["profiles"] == ["lora"]
    assert services["train"]["image"] == "halo-train:latest"
    assert services["train"]["tty"]
    assert services["train"]["stdin_open"]
    assert "depends_on" not in services["train"]
    for name in ("vllm", "vllm-lora"):
        assert services[name]["healthcheck"]["test"][-1].endswith("/v1/models")
        assert "--trust-remote-code" not in services[name]["command"]
    assert "--lora-modules qwen_grpo=/lora/" in services["vllm-lora"]["command"]


def test_mounts(services: dict[str, Any]) -> None:
    mounts = dict(re.sub(r"\$\{[^}]*\}", "ROOT", volume).split(":")[:2] for volume in services["train"]["volumes"])
    assert mounts == {
        "ROOT/models": "/models",
        "ROOT/lora": "/lora",
        "ROOT/data/trajectories": "/workspace/data/trajectories",
        "ROOT/data/datasets": "/workspace/data/datasets",
        "ROOT/results": "/workspace/results",
    }


def test_what_the_image_is_built_from_exists(services: dict[str, Any]) -> None:
    build = services["train"]["build"]
    context = (COMPOSE.parent / build["context"]).resolve()
    assert context == ROOT
    text = re.sub(r"\\\n", " ", (context / build["dockerfile"]).read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    assert lines[0].startswith("FROM ")
    for line in lines:
        assert line.split()[0] in INSTRUCTIONS, line
        if line.startswith("COPY"):
            *sources, _ = line.split()[1:]
            assert all((context / source).exists() for source in sources), line
