"""`practicum serve --vllm-url`: a vLLM server samples, and what clients get is what it sampled."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from llguidance import LLMatcher

from practicum.chat.formats.hermes import HermesFormat
from practicum.cli import serve
from practicum.data.run_folder import ModelRef
from practicum.engines.vllm.running_server import structured_outputs
from practicum.errors import UserError
from practicum.models import loader
from practicum.models.loader import Device
from practicum.serving.app import ModelServer, make_app
from practicum.serving.served_models import ModelLoader, ServedModels
from tests.engines.vllm.small_vllm import SmallVLLM
from tests.serving.test_served_models import write_adapter

CHAT = "/v1/chat/completions"
BODY = {"messages": [{"role": "user", "content": "Ada has 3 apples."}], "max_tokens": 12, "seed": 5, "logprobs": True}


@pytest.fixture
def small() -> Iterator[SmallVLLM]:
    small = SmallVLLM(loader.model_folder("tiny"), "tiny", context=512)
    server = small.serve()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    small.url = f"http://127.0.0.1:{server.server_address[1]}/v1"  # type: ignore[attr-defined]
    yield small
    server.shutdown()
    server.server_close()


def ask(small: SmallVLLM, steps: Any) -> Any:
    """Run steps with a client of our server over a vLLM server."""

    async def run() -> Any:
        url = small.url  # type: ignore[attr-defined]
        models: ServedModels = ModelLoader(Device()).load_running_vllm("mine", ModelRef("tiny"), url, None)
        transport = httpx.ASGITransport(make_app(ModelServer(models)))
        async with httpx.AsyncClient(transport=transport, base_url="http://t") as client:
            try:
                return await steps(client)
            finally:
                await models.close()

    return asyncio.run(run())


def test_replies_are_what_vllm_sampled_streamed_too(small: SmallVLLM) -> None:
    async def steps(client: httpx.AsyncClient) -> tuple[Any, str]:
        body = {**BODY, "model": "mine", "return_token_ids": True}
        answer = (await client.post(CHAT, json=body)).json()
        streamed = await client.post(CHAT, json={**body, "stream": True})
        return answer, streamed.text

    answer, streamed = ask(small, steps)
    bodies = [body for path, body in small.seen if path == "/v1/completions"]
    assert [body["prompt"] for body in bodies] == [answer["prompt_token_ids"]] * 2
    sampled, sampled_again = (answer["choices"][0] for answer in small.answered)
    [choice] = answer["choices"]
    assert choice["token_ids"] == sampled["token_ids"] == sampled_again["token_ids"]
    served = [row["logprob"] for row in choice["logprobs"]["content"]]
    assert served == sampled["logprobs"]["token_logprobs"]
    chunks = [json.loads(line[6:]) for line in streamed.splitlines() if line.startswith("data: {")]
    text = "".join(choice["delta"].get("content") or "" for chunk in chunks for choice in chunk["choices"])
    assert text == choice["message"]["content"]
    assert streamed.count("data: [DONE]") == 1


def test_adapters_are_loaded_into_the_server(small: SmallVLLM, tmp_path: Path) -> None:
    adapter = write_adapter(tmp_path / "a", 1)

    async def steps(client: httpx.AsyncClient) -> Any:
        load = {"lora_name": "own", "lora_path": str(adapter)}
        assert (await client.post("/v1/load_lora_adapter", json=load)).status_code == 200
        answers = [(await client.post(CHAT, json={**BODY, "model": name})).json() for name in ("mine", "own")]
        assert (await client.post("/v1/unload_lora_adapter", json={"lora_name": "own"})).status_code == 200
        return [answer["choices"][0]["message"]["content"] for answer in answers]

    base, adapted = ask(small, steps)
    assert base != adapted
    assert not small.adapters, "it was unloaded there too"


def test_a_server_that_ends_unloads_its_adapters_and_starts_beside_those_of_others(
    small: SmallVLLM, tmp_path: Path
) -> None:
    adapter = write_adapter(tmp_path / "a", 1)
    small.load("own#1", str(adapter))  # what a server that was killed has left

    async def steps(client: httpx.AsyncClient) -> list[str]:
        load = {"lora_name": "own", "lora_path": str(adapter)}
        loaded = await client.post("/v1/load_lora_adapter", json=load)
        assert loaded.status_code == 200, loaded.text
        return list(small.adapters)

    for _ in range(2):
        assert ask(small, steps) == ["own#1", "own#2"]
        assert list(small.adapters) == ["own#1"], "others' adapters stay"


def test_an_adapter_that_cannot_be_unloaded_does_not_keep_its_engine_open(
    small: SmallVLLM, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async def run() -> None:
        url = small.url  # type: ignore[attr-defined]
        models = ModelLoader(Device()).load_running_vllm("mine", ModelRef("tiny"), url, None)
        await models.load_adapter("own", write_adapter(tmp_path / "a", 1))
        engine = models.default.engine
        closed = asyncio.Event()
        close = engine.close

        async def closing() -> None:
            await close()
            closed.set()

        engine.close = closing  # type: ignore[method-assign]
        models.replace_base(ModelLoader(Device()).load_base("next", ModelRef("tiny")))
        small.adapters.clear()  # as if somebody else had unloaded it: the server refuses to do so again
        models.remove_adapter("own")
        await asyncio.wait_for(closed.wait(), 30)
        await models.close()

    asyncio.run(run())
    assert "was not unloaded" in caplog.text


def test_what_the_server_refuses_or_breaks_off_is_an_error(small: SmallVLLM) -> None:
    small.script += [(400, {"error": {"message": "no such grammar"}}), (500, "dead"), (0, None)]

    async def steps(client: httpx.AsyncClient) -> Any:
        return [(await client.post(CHAT, json={**BODY, "model": "mine"})).status_code for _ in range(4)]

    assert ask(small, steps) == [400, 503, 503, 200]
    small.url = "http://127.0.0.1:9"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match="no vLLM server"):
        ask(small, steps)


@pytest.mark.parametrize(
    "option",
    ["--dtype=bfloat16", "--gpu-memory-utilization=0.5", "--prefix-cache-mib=64", "--device=cpu"],
)
def test_options_that_vllm_would_not_follow_are_refused(option: str) -> None:
    with pytest.raises(UserError, match=f"^{option.partition('=')[0]} is for an engine of our own"):
        serve.run(["tiny", "--vllm-url", "http://127.0.0.1:9", option])


def test_response_formats_are_grammars_of_llguidance() -> None:
    """Of every type, marked as such, and with the tags of calls as the tokens that they are."""
    tokenizer = loader.load_tokenizer("tiny")
    formats: list[dict[str, Any]] = [
        {"type": "json_schema", "json_schema": {"schema": {"type": "object"}}},
        {"type": "json_object"},
        {"type": "regex", "regex": "a/b"},
        {"type": "choice", "choice": ["a", "b"]},
        {"type": "grammar", "grammar": HermesFormat().tool_call_grammar([{"function": {"name": "<tool_call>"}}])},
    ]
    for form in formats:
        grammar = structured_outputs(form, tokenizer)["grammar"]
        assert grammar.startswith("%llguidance {}\nstart: ")
        assert not LLMatcher.validate_grammar(grammar)
    tags = [tokenizer.convert_tokens_to_ids(tag) for tag in ("<tool_call>", "</tool_call>")]
    assert f"start: <[{tags[0]}]> call <[{tags[1]}]>\n" in grammar
    assert '{"const": "<tool_call>"}' in grammar, "names within the JSON are text"
