"""A server that follows the registry: promoted versions and rollbacks are taken up without dropping a request."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from practicum.data.model_registry import ModelRegistry
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.loader import Device
from practicum.serving import promotion
from practicum.serving.app import ModelServer, make_app
from practicum.serving.promotion import PromotionFollower
from practicum.serving.served_models import ModelLoader
from tests.serving.conftest import until
from tests.serving.test_served_models import write_adapter

CHAT = "/v1/chat/completions"
BODY = {"model": "mine", "messages": [{"role": "user", "content": "x"}], "seed": 1, "max_tokens": 16}


def write_model(folder: Path, seed: int) -> Path:
    loader.save(loader.load_tiny(seed), folder)
    return folder


def follow(registry: ModelRegistry, steps: Any) -> list[Any]:
    """Run steps on a server that follows a registry; each may look at the follower and ask."""

    async def run() -> list[Any]:
        follower = PromotionFollower(registry, "mine", ModelLoader(Device(), max_num_seqs=8))
        server = ModelServer(await follower.start("mine"), follower=follower)
        transport = httpx.ASGITransport(make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:

            async def ask(limit: int = 16) -> Any:
                answer = await client.post(CHAT, json={**BODY, "max_tokens": limit, "return_token_ids": True})
                assert answer.status_code == 200, answer.text
                return answer.json()["choices"][0]["token_ids"]

            try:
                return [await step(follower, ask) for step in steps]
            finally:
                await follower.served.close()

    return asyncio.run(run())


@pytest.mark.parametrize("kind", ["models", "adapters"])
def test_a_promotion_and_a_rollback_are_taken_up(tmp_path: Path, kind: str) -> None:
    write = write_model if kind == "models" else write_adapter
    registry = ModelRegistry(tmp_path / "registry")
    folders = [write(tmp_path / f"m{seed}", seed) for seed in (1, 2)]
    registry.promote("mine", folders[0], {"scores": {}, "forced": "x"}, "x")

    async def first(follower: PromotionFollower, ask: Any) -> Any:
        assert not await follower.update(), "nothing has changed"
        return await ask()

    async def promoted(follower: PromotionFollower, ask: Any) -> Any:
        request = asyncio.create_task(ask(300))
        await until(lambda: follower.served.get("mine").num_leases == 1)
        registry.promote("mine", folders[1], {"scores": {}, "forced": "x"}, "x")
        assert await follower.update()
        after = await ask()
        return [after, (await request)[:16], follower.version]

    async def rolled_back(follower: PromotionFollower, ask: Any) -> Any:
        registry.rollback("mine", "x")
        assert await follower.update()
        return [await ask(), follower.version]

    before, (after, long, version), (final, last) = follow(registry, [first, promoted, rolled_back])
    assert before != after
    assert long == before, "a request under way ends with the version that it began with"
    assert (version, last, final) == (2, 1, before)


def test_another_base_model_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    """From an adapter to a full model and back: the base model that nothing uses any more is freed."""
    registry = ModelRegistry(tmp_path / "registry")
    adapter, model = write_adapter(tmp_path / "a", 1), write_model(tmp_path / "m", 2)
    registry.promote("mine", adapter, {"scores": {}, "forced": "x"}, "x")
    closed: list[str] = []

    def watch(follower: PromotionFollower) -> None:
        engine, name = follower.served.default.engine, follower.served.default.name
        close = engine.close

        async def closing() -> None:
            closed.append(name)
            await close()

        engine.close = closing  # type: ignore[method-assign]

    async def step(follower: PromotionFollower, ask: Any, change: Any) -> Any:
        watch(follower)
        request = asyncio.create_task(ask(300))
        await until(lambda: follower.served.get("mine").num_leases == 1)
        change()
        assert await follower.update()
        assert not closed, "a request under way still uses the engine"
        after, long = await ask(), await request
        await until(lambda: bool(closed))
        names = [info.name for info in follower.served.list_models()]
        return [after, long[:16], names, follower.served.default.name, closed.pop()]

    async def first(follower: PromotionFollower, ask: Any) -> Any:
        return await ask()

    async def to_model(follower: PromotionFollower, ask: Any) -> Any:
        return await step(
            follower, ask, lambda: registry.promote("mine", model, {"scores": {}, "forced": "x"}, "x")
        )  # fmt: skip

    async def back(follower: PromotionFollower, ask: Any) -> Any:
        return await step(follower, ask, lambda: registry.rollback("mine", "x"))

    before, full, final = follow(registry, [first, to_model, back])
    tiny = loader.model_folder("tiny")
    assert full[1:] == [before, ["mine"], "mine", tiny]
    assert full[0] != before
    assert final == [before, full[0], ["mine", tiny], tiny, "mine"]


def test_adapters_over_a_promoted_model_share_its_engine(tmp_path: Path) -> None:
    """The first takes over the model's name, and the model is still the base of the next."""
    registry = ModelRegistry(tmp_path / "registry")
    model = registry.promote("mine", write_model(tmp_path / "m", 1), {"scores": {}, "forced": "x"}, "x").model

    async def promote(follower: PromotionFollower, ask: Any, seed: int) -> Any:
        before = follower.served.default.engine
        adapter = write_adapter(tmp_path / f"a{seed}", seed)
        config = json.loads((adapter / "adapter_config.json").read_text())
        (adapter / "adapter_config.json").write_text(json.dumps({**config, "base_model_name_or_path": str(model)}))
        registry.promote("mine", adapter, {"scores": {}, "forced": "x"}, "x")
        assert await follower.update(), follower.refused
        await ask()
        assert follower.served.get("mine").engine is follower.served.default.engine is before
        return [sorted(info.name for info in follower.served.list_models()), follower.served.default.adapter]

    steps = [lambda follower, ask, seed=seed: promote(follower, ask, seed) for seed in (1, 2)]
    assert follow(registry, steps) == [[sorted([str(model), "mine"]), ""]] * 2


def test_a_damaged_version_or_one_with_other_log_probs_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = ModelRegistry(tmp_path / "registry")
    registry.promote("mine", write_model(tmp_path / "m1", 1), {"scores": {}, "forced": "x"}, "x")

    async def damaged(follower: PromotionFollower, ask: Any) -> Any:
        version = registry.promote("mine", write_model(tmp_path / "m2", 2), {"scores": {}, "forced": "x"}, "x")
        (version.model / "config.json").write_text("{}")
        assert not await follower.update()
        return [follower.version, "damaged" in follower.refused[2], len(await ask())]

    async def apart(follower: PromotionFollower, ask: Any) -> Any:
        registry.promote("mine", write_model(tmp_path / "m3", 3), {"scores": {}, "forced": "x"}, "x")
        monkeypatch.setitem(promotion.MAX_DIFFERENCE, torch.float32, -1.0)
        assert not await follower.update()
        return [follower.version, "away from the learner" in follower.refused[3], len(await ask())]

    assert follow(registry, [damaged, apart]) == [[1, True, 16], [1, True, 16]]


def test_a_name_without_a_version(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No model 'mine'"):
        follow(ModelRegistry(tmp_path), [])
