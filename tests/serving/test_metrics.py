"""`/metrics` of a server of the tiny model: what vLLM's names mean, while requests run and afterwards."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest

from practicum.serving.app import ModelServer, make_app
from practicum.serving.server import listen, serve_in_background
from tests.serving.conftest import MakeServer, post, until

CHAT = "/v1/chat/completions"
TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def body(**options: Any) -> dict[str, Any]:
    return {"model": "tiny", "messages": [{"role": "user", "content": "x"}], "seed": 1, **options}


def values_of(text: str) -> dict[str, float]:
    """The values by name, without labels but `finished_reason`."""
    values = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, labels = line.partition("{")
            reason = labels.partition('finished_reason="')[2].partition('"')[0]
            values[f"{name}:{reason}" if reason else name] = float(line.rsplit(" ", 1)[1])
    return values


async def read_metrics(client: httpx.AsyncClient) -> dict[str, float]:
    return values_of((await client.get("/metrics")).text)


def test_running_requests_and_their_share_of_the_kv_cache(
    tiny_server: ModelServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Grammar-bound replies and slow steps, so that they cannot end before the metrics are read."""
    endless = {"type": "regex", "regex": "[a-z]{4000}"}
    models = tiny_server.models
    assert models is not None
    engine: Any = models.default.engine
    decode = engine.runner.decode

    def decode_slowly(*arguments: Any) -> Any:
        time.sleep(0.01)
        return decode(*arguments)

    monkeypatch.setattr(engine.runner, "decode", decode_slowly)
    long = body(max_tokens=models.default.context - 100, stream=True, response_format=endless)

    async def run() -> None:
        async with (
            serve_in_background(make_app(tiny_server), listen("127.0.0.1", 0)) as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            before = await read_metrics(client)
            assert before["vllm:kv_cache_usage_perc"] == before["vllm:num_requests_running"] == 0
            async with (
                client.stream("POST", CHAT, json=long) as first,
                client.stream("POST", CHAT, json=long) as second,
            ):
                for response in (first, second):
                    async for line in response.aiter_lines():
                        if '"content":"' in line:
                            break
                during = await read_metrics(client)
            assert during["vllm:num_requests_running"] == 2
            assert during["vllm:num_requests_waiting"] == 0
            # Two of 16 slots have at least a page of 64 tokens, and at most a whole window.
            assert 2 * 64 / (16 * 2 * models.default.context) < during["vllm:kv_cache_usage_perc"] <= 2 / 16
            await until(lambda: tiny_server.queue.running == 0)
            while (after := await read_metrics(client))["vllm:num_requests_running"]:
                await asyncio.sleep(0.01)
            assert after["vllm:kv_cache_usage_perc"] == 0
            assert after["vllm:request_success_total:abort"] == 2
            assert after["vllm:generation_tokens_total"] >= 2, "what a client had before it went away counts"
            assert after["vllm:num_preemptions_total"] == 0

    asyncio.run(run())


@pytest.mark.parametrize("stream", [False, True])
def test_latencies_are_of_all_requests(make_server: MakeServer, stream: bool) -> None:
    server = make_server("one two three", seconds_per_token=0.01)
    assert post(server, CHAT, {**body(stream=stream), "model": "script"}).status_code == 200
    metrics = server.metrics
    num_tokens = metrics.generation_tokens
    assert num_tokens > 2
    assert sum(metrics.time_to_first_token.counts) == 1
    assert sum(metrics.inter_token_latency.counts) == num_tokens - 1
    assert metrics.inter_token_latency.sum >= 0.01 * (num_tokens - 1)
    assert metrics.time_to_first_token.sum + metrics.inter_token_latency.sum <= metrics.e2e_request_latency.sum + 1e-3


def test_a_tool_call_counts_as_a_stop_as_it_does_in_vllm(make_server: MakeServer) -> None:
    server = make_server('<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>')
    answer = post(server, CHAT, {**body(tools=[TOOL]), "model": "script"})
    assert answer.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert server.metrics.finished == {"stop": 1}
