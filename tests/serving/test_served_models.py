"""Models and adapters by name: the same tokens as the learner samples, and changes while requests are under way."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from practicum.chat.renderer import Renderer
from practicum.data.run_folder import ModelRef, resolve_model
from practicum.engines.base import Generation, Request, Sampling
from practicum.engines.local.engine import LocalEngine
from practicum.environment import Observation
from practicum.errors import UserError
from practicum.models import loader, lora
from practicum.models.decoder import Decoder
from practicum.models.loader import Device
from practicum.policy import NO_TASK
from practicum.serving.app import ModelServer, make_app
from practicum.serving.served_models import ModelLoader, ServedModels
from tests.serving.conftest import post, until

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Ada has 3 apples."}], "max_tokens": 24, "return_token_ids": True}


def write_adapter(folder: Path, seed: int) -> Path:
    """An adapter of the tiny model that is far from it."""
    loaded = lora.add_adapter(loader.load("tiny"), lora.LoRASettings(rank=4), seed)
    with torch.no_grad():
        generator = torch.Generator().manual_seed(seed)
        for name, parameter in loaded.model.named_parameters():
            if "lora_B" in name:
                parameter.normal_(0, 0.2, generator=generator)
    loader.save(loaded, folder)
    return folder


@pytest.fixture(scope="module")
def adapters(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    root = tmp_path_factory.mktemp("adapters")
    return [write_adapter(root / f"a{seed}", seed) for seed in (1, 2)]


@pytest.fixture
def server() -> Iterator[ModelServer]:
    models = ServedModels(ModelLoader(Device(), max_num_seqs=8).load_base("tiny", resolve_model("tiny")))
    yield ModelServer(models)
    asyncio.run(models.close())


def learner_samples(ref: ModelRef, prompt: list[int], **sampling: Any) -> Generation:
    """What the engine of a training run samples: its decoder has PEFT's layers, not the server's joined matrices."""
    loaded = ref.load(torch.float32)
    engine = LocalEngine(Decoder(loaded.model), Renderer(loaded.tokenizer), max_batch=8)

    async def run() -> Generation:
        try:
            return await engine.generate(Request(tuple(prompt), Sampling(**sampling), NO_TASK, Observation(), ()))
        finally:
            await engine.close()

    return asyncio.run(run())


def test_served_tokens_are_the_learners(server: ModelServer, adapters: list[Path]) -> None:
    async def load() -> None:
        assert server.models is not None
        await server.models.load_adapter("first", adapters[0])

    asyncio.run(load())
    for model, ref in (("tiny", resolve_model("tiny")), ("first", resolve_model(str(adapters[0]), "tiny"))):
        for seed, temperature, top_p in ((5, 1.0, 1.0), (6, 0.7, 0.9)):
            body = {**BODY, "model": model, "seed": seed, "temperature": temperature, "top_p": top_p, "logprobs": True}
            answer = post(server, CHAT, body).json()
            sampling = {"seed": seed, "temperature": temperature, "top_p": top_p, "max_tokens": 24}
            sampled = learner_samples(ref, answer["prompt_token_ids"], **sampling)
            assert answer["choices"][0]["token_ids"] == list(sampled.ids)
            served = [row["logprob"] for row in answer["choices"][0]["logprobs"]["content"]]
            expected = list(sampled.logprobs or ())
            assert served == (expected if model == "tiny" else pytest.approx(expected, abs=1e-4))


def test_an_adapter_is_replaced_while_its_requests_go_on(server: ModelServer, adapters: list[Path]) -> None:
    async def run() -> tuple[list[Any], list[str]]:
        assert server.models is not None
        transport = httpx.ASGITransport(make_app(server))
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:

            async def ask(limit: int = 24) -> Any:
                body = {**BODY, "model": "mine", "seed": 3, "max_tokens": limit}
                return (await client.post(CHAT, json=body)).json()["choices"][0]["token_ids"]

            async def load(path: Path) -> int:
                body = {"lora_name": "mine", "lora_path": str(path)}
                return (await client.post("/v1/load_lora_adapter", json=body)).status_code

            assert await load(adapters[0]) == 200
            before = await ask()
            request = asyncio.create_task(ask(400))
            models = server.models
            await until(lambda: models.get("mine").num_leases == 1)
            assert await load(adapters[1]) == 200
            after = await ask()
            long = await request
            names = [row["id"] for row in (await client.get("/v1/models")).json()["data"]]
            response = await client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
            assert response.status_code == 200
            refused = await client.post(CHAT, json={**BODY, "model": "mine"})
            assert refused.status_code == 404
            loaded = models.default.engine.adapters
            assert loaded is not None
            await until(lambda: loaded.matrices.names == ())  # replaced adapters are freed
            return [before, after, long], names

    (before, after, long), names = asyncio.run(run())
    assert names == ["tiny", "mine"]
    assert before != after
    assert long[:24] == before, "a request ends with the weights that it began with"


def test_models_that_cannot_be_loaded_are_errors(server: ModelServer, tmp_path: Path) -> None:
    for path, word in ((str(tmp_path / "none"), "adapter"), ("tiny", "adapter")):
        answer = post(server, "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": path})
        assert answer.status_code == 400
        assert word in answer.json()["error"]["message"]
    assert post(server, "/v1/unload_lora_adapter", {"lora_name": "tiny"}).status_code == 400
    assert post(server, "/v1/unload_lora_adapter", {"lora_name": "x"}).status_code == 404
    server.may_load_adapters = False
    assert post(server, "/v1/load_lora_adapter", {"lora_name": "x", "lora_path": "y"}).status_code == 403


@pytest.mark.parametrize("sampling", [{"top_p": 5e-324}, {"temperature": 1e-40}, {"temperature": 5e-324}])
def test_sampling_parameters_near_zero_are_greedy(server: ModelServer, sampling: dict[str, float]) -> None:
    """They are above 0 in the request, and 0 or close to it as a float32."""
    body = {**BODY, "model": "tiny", "seed": 1, "logprobs": True}
    greedy, near_zero = (post(server, CHAT, {**body, **extra}).json() for extra in ({"temperature": 0}, sampling))
    assert near_zero["choices"][0]["message"] == greedy["choices"][0]["message"]
    assert len(near_zero["choices"][0]["logprobs"]["content"]) == len(greedy["choices"][0]["logprobs"]["content"])


def test_two_names_for_one_model(server: ModelServer) -> None:
    assert server.models is not None
    server.models.add_alias("other", "tiny")
    answers = [post(server, CHAT, {**BODY, "model": name, "seed": 1}).json() for name in ("tiny", "other")]
    assert [answer["model"] for answer in answers] == ["tiny", "other"]
    assert answers[0]["choices"] == answers[1]["choices"]
    with pytest.raises(UserError, match="Two models"):
        server.models.add_alias("other", "tiny")


def test_an_unloaded_adapter_takes_its_other_names_with_it(server: ModelServer, adapters: list[Path]) -> None:
    async def run() -> tuple[list[str], int]:
        models = server.models
        assert models is not None
        await models.load_adapter("mine", adapters[0])
        models.add_alias("other", "mine")
        async with httpx.AsyncClient(transport=httpx.ASGITransport(make_app(server)), base_url="http://test") as client:
            await client.post("/v1/unload_lora_adapter", json={"lora_name": "mine"})
            names = [row["id"] for row in (await client.get("/v1/models")).json()["data"]]
            return names, (await client.get("/health")).status_code

    assert asyncio.run(run()) == (["tiny"], 200)


def test_an_adapter_of_cancelled_requests_is_freed(adapters: list[Path]) -> None:
    """They are being decoded beside a request of the base model, which goes on."""

    async def run() -> None:
        models = ServedModels(ModelLoader(Device(), max_num_seqs=8).load_base("tiny", resolve_model("tiny")))
        await models.load_adapter("mine", adapters[0])
        engine = models.default.engine
        adapter = models.get("mine").adapter
        requests = [
            Request((5, 6, 7), Sampling(max_tokens=1500, seed=seed), NO_TASK, Observation(), (), adapter=name)
            for seed, name in enumerate(["", adapter, adapter, adapter])
        ]
        tasks = [asyncio.create_task(engine.generate(request)) for request in requests]
        await until(lambda: engine.num_running == len(tasks))
        for task in tasks[1:]:
            task.cancel()
        models.remove_adapter("mine")
        loaded = engine.adapters
        assert loaded is not None
        await until(lambda: loaded.matrices.names == ())
        assert not tasks[0].done()
        tasks[0].cancel()
        await models.close()

    asyncio.run(run())
