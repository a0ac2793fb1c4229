"""Servers in this process: over given replies, and over the tiny model."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from practicum.chat.renderer import Renderer
from practicum.data.run_folder import resolve_model
from practicum.models.loader import Device
from practicum.serving.app import ModelServer, make_app
from practicum.serving.served_models import ModelLoader, ServedModel, ServedModels
from tests.serving.script_engine import ScriptEngine

MakeServer = Callable[..., ModelServer]


@pytest.fixture
def make_server(renderer: Renderer) -> MakeServer:
    """A server whose model 'script' replies with a text."""

    def make(reply: Any, **options: Any) -> ModelServer:
        engine_options = {name: options.pop(name) for name in ("seconds_per_token",) if name in options}
        engine = ScriptEngine(renderer, reply if callable(reply) else lambda request: reply, **engine_options)
        return ModelServer(ServedModels(ServedModel("script", engine, renderer, "script")), **options)  # type: ignore[arg-type]

    return make


@pytest.fixture(scope="module")
def tiny_server() -> Iterator[ModelServer]:
    """A server of the tiny model."""
    loader = ModelLoader(Device(), max_num_seqs=16)
    models = ServedModels(loader.load_base("tiny", resolve_model("tiny")))
    yield ModelServer(models)
    asyncio.run(models.close())


def call(server: ModelServer, *requests: tuple[str, dict[str, Any]], **headers: str) -> list[httpx.Response]:
    """Post requests one after the other; the answers."""

    async def run() -> list[httpx.Response]:
        transport = httpx.ASGITransport(make_app(server), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://test", headers=headers) as client:
            return [await client.post(path, json=body) for path, body in requests]

    return asyncio.run(run())


async def until(condition: Callable[[], bool]) -> None:
    """Wait for a condition; fails after a while."""
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def post(server: ModelServer, path: str, body: dict[str, Any], **headers: str) -> httpx.Response:
    return call(server, (path, body), **headers)[0]
