"""A planner that runs follows the registry: promotion, rollback, damaged versions, and plans under way."""

from __future__ import annotations

import asyncio
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from practicum.data.model_registry import ModelRegistry
from practicum.models import tiny
from practicum.planner import HTDAGPlanner, htdag_planner
from practicum.planner.local_client import LocalClient


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModelRegistry:
    """Version 1 is promoted; plans take one decision of two tokens."""
    monkeypatch.setenv("HTDAG_REGISTRY", str(tmp_path / "registry"))
    monkeypatch.setattr(htdag_planner, "MAX_STEPS_PER_EPISODE", 1)
    make = htdag_planner.local_client

    def brief(model: str) -> LocalClient:
        client = make(model)
        assert isinstance(client, LocalClient)
        client.sampling = replace(client.sampling, max_tokens=2)
        return client

    monkeypatch.setattr(htdag_planner, "local_client", brief)
    tiny.build(tmp_path / "model")
    registry = ModelRegistry(tmp_path / "registry")
    registry.promote("htdag", tmp_path / "model", {}, "a test")
    return registry


def version_of(planner: HTDAGPlanner) -> str:
    assert isinstance(planner.policy, LocalClient)
    return Path(planner.policy.ref.model).parent.name


def test_the_next_plan_uses_the_version_that_current_was_switched_to(
    registry: ModelRegistry, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def use() -> None:
        planner = HTDAGPlanner(use_trained_policy=True)
        await planner.decompose_task("buy a lamp")
        first = planner.policy
        assert isinstance(first, LocalClient)
        assert version_of(planner) == "0001"
        assert first.is_loaded
        await planner.decompose_task("buy a lamp")
        assert planner.policy is first  # nothing was switched: the model stays loaded
        registry.promote("htdag", tmp_path / "model", {}, "better")
        await planner.decompose_task("buy a lamp")
        assert version_of(planner) == "0002"
        assert not first.is_loaded  # its engine is closed
        assert planner.llm_calls == 3
        registry.rollback("htdag", "worse after all")
        await planner.decompose_task("buy a lamp")
        assert version_of(planner) == "0001"
        damaged = registry.promote("htdag", tmp_path / "model", {}, "copied badly")
        (damaged.model / "config.json").write_text("{}")
        with caplog.at_level(logging.ERROR):
            for _ in range(2):
                await planner.decompose_task("buy a lamp")
        assert version_of(planner) == "0001"
        assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == [
            "version 3 of 'htdag' is damaged (config.json is not what was written); version 1 stays in use"
        ]
        (registry.root / "htdag" / "current").unlink()
        await planner.decompose_task("buy a lamp")
        assert version_of(planner) == "0001"
        assert isinstance(planner.policy, LocalClient)
        await planner.policy.close()

    asyncio.run(use())


def test_a_plan_under_way_ends_with_the_version_it_began_with(registry: ModelRegistry, tmp_path: Path) -> None:
    async def use() -> None:
        planner = HTDAGPlanner(use_trained_policy=True)
        async with planner.policy_of_one_plan() as client:
            assert isinstance(client, LocalClient)
            registry.promote("htdag", tmp_path / "model", {}, "better")
            await planner.decompose_task("buy a lamp")
            assert version_of(planner) == "0002"
            assert client is not planner.policy
            client.policy  # noqa: B018 - it is loaded and used while the other one plans
            assert client.is_loaded
        assert not client.is_loaded
        assert isinstance(planner.policy, LocalClient)
        assert planner.policy.is_loaded
        await planner.policy.close()

    asyncio.run(use())


def test_a_run_that_was_loaded_by_hand_is_not_replaced(registry: ModelRegistry, tmp_path: Path) -> None:
    planner = HTDAGPlanner(use_trained_policy=True)
    planner.load_best_checkpoint(tmp_path)
    registry.promote("htdag", tmp_path / "model", {}, "better")

    async def use() -> None:
        await planner.decompose_task("buy a lamp")
        assert isinstance(planner.policy, LocalClient)
        assert planner.policy.ref.model == str(tmp_path / "model")
        await planner.policy.close()

    asyncio.run(use())
