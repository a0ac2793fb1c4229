"""`practicum serve --vllm-url` in front of a real vLLM (`make vllm`): what vLLM samples is what OpenAI's client gets.

vLLM runs on CPU in an environment of its own, PRACTICUM_VLLM_PYTHON or .venv-vllm; without one all of this is skipped.
Its start takes about a minute on two idle cores. It has its default backend for structured outputs, `auto`.
"""

from __future__ import annotations

import json
import os
import re
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from test_openai import MESSAGES, TOOL, Answer

ROOT = Path(__file__).parents[1]
PYTHON = Path(os.environ.get("PRACTICUM_VLLM_PYTHON") or ROOT / ".venv-vllm" / "bin" / "python")
MODEL = Path(os.environ.get("PRACTICUM_MODEL", "tiny"))
ADAPTER = MODEL.with_name(f"{MODEL.name}-adapter")
START_SECONDS = 600
VLLM_OPTIONS = {
    "--max-lora-rank": 8, "--max-loras": 2, "--max-model-len": 2048, "--dtype": "float32", "--host": "127.0.0.1",
    "--logprobs-mode": "processed_logprobs", "--generation-config": "vllm",
}  # fmt: skip
pytestmark = [
    pytest.mark.skipif(not PYTHON.exists(), reason=f"no vLLM: {PYTHON} does not exist; `make vllm` installs it"),
    pytest.mark.skipif(not ADAPTER.is_dir(), reason="PRACTICUM_MODEL is not a folder of client_tests/short_model.py"),
]


def wait_for(condition: Callable[[], Any], seconds: float = 60) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def end(process: subprocess.Popen[Any]) -> None:
    process.terminate()
    process.wait(90)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def is_healthy(url: str, process: subprocess.Popen[Any], log: Path) -> bool:
    assert process.poll() is None, log.read_text()[-3000:]
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=60):
            return True
    except OSError:
        return False


@pytest.fixture(scope="module")
def vllm_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """vLLM with the model; PRACTICUM_VLLM_URL names one that runs already."""
    if url := os.environ.get("PRACTICUM_VLLM_URL"):
        yield url
        return
    folder = tmp_path_factory.mktemp("vllm")
    log = folder / "vllm.log"
    words = [str(word) for option in VLLM_OPTIONS.items() for word in option]
    port = free_port()
    command = [PYTHON, "-m", "vllm.entrypoints.openai.api_server", "--model", MODEL.resolve(), "--port", str(port)]
    more = {"VLLM_ALLOW_RUNTIME_LORA_UPDATING": "1", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1"}
    environment = {**os.environ, **more, "PATH": f"{PYTHON.parent}{os.pathsep}{os.environ['PATH']}"}
    with log.open("w") as output:
        process = subprocess.Popen(
            [*command, "--enable-lora", "--enforce-eager", *words],
            stdout=output, stderr=subprocess.STDOUT, env=environment, cwd=folder,
        )  # fmt: skip
    try:
        wait_for(lambda: is_healthy(f"http://127.0.0.1:{port}", process, log), START_SECONDS)
        yield f"http://127.0.0.1:{port}"
    finally:
        end(process)


@pytest.fixture(scope="module")
def served_url(vllm_url: str) -> Iterator[str]:
    """Our server in front of it, with an adapter that is loaded into vLLM."""
    program = os.environ.get("PRACTICUM", ".venv/bin/practicum")
    options = ["--served-model-name", "tiny", "--port", "0", "--lora-modules", f"own={ADAPTER}"]
    process = subprocess.Popen(
        [program, "serve", MODEL, "--vllm-url", vllm_url, *options], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    url = process.stdout.readline().split()[0]
    yield url
    end(process)
    assert len(vllm_models(vllm_url)) == 1, "the adapter is unloaded from vLLM at the end"


def vllm_models(url: str) -> list[str]:
    with urllib.request.urlopen(f"{url}/v1/models", timeout=60) as answer:
        return [model["id"] for model in json.load(answer)["data"]]


def metric(url: str, name: str) -> float:
    with urllib.request.urlopen(f"{url}/metrics", timeout=60) as answer:
        values = re.findall(rf"^{name}{{.*}} (\S+)$", answer.read().decode(), re.MULTILINE)
    return sum(map(float, values))


@pytest.fixture
def client(served_url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=served_url, api_key="none", max_retries=0, timeout=600)


def chat(client: openai.OpenAI, **options: Any) -> Any:
    return client.chat.completions.create(**{"model": "tiny", "messages": MESSAGES, "max_tokens": 24, **options})


def joined(stream: Any) -> dict[str, Any]:
    """The choice of a stream, its deltas joined."""
    result: dict[str, Any] = {"text": "", "logprobs": [], "calls": [], "reasons": [], "usage": None}
    for chunk in stream:
        result["usage"] = chunk.usage or result["usage"]
        for choice in chunk.choices:
            result["text"] += choice.delta.content or ""
            result["logprobs"] += choice.logprobs.content if choice.logprobs else []
            result["calls"] += choice.delta.tool_calls or []
            result["reasons"] += [choice.finish_reason] if choice.finish_reason else []
    return result


def test_a_stream_is_the_whole_answer(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"seed": 3, "temperature": 1.0, "logprobs": True, "top_logprobs": 3}
    answer = chat(client, **options)
    stream = joined(chat(client, **options, stream=True, stream_options={"include_usage": True}))
    [choice] = answer.choices
    assert stream["text"] == choice.message.content
    assert stream["reasons"] == [choice.finish_reason]
    assert stream["usage"].completion_tokens == answer.usage.completion_tokens == len(choice.logprobs.content)
    assert [row.token for row in stream["logprobs"]] == [row.token for row in choice.logprobs.content]


@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.7}, {"temperature": 0.0}])
def test_top_logprobs_are_those_of_the_distribution_sampled_from(
    client: openai.OpenAI, sampling: dict[str, float]
) -> None:
    answer = chat(client, seed=4, logprobs=True, top_logprobs=5, **sampling)
    for row in answer.choices[0].logprobs.content:
        values = [top.logprob for top in row.top_logprobs]
        assert len(values) == 5
        assert values == sorted(values, reverse=True)
        listed = {bytes(top.bytes): top.logprob for top in row.top_logprobs}
        assert row.logprob == pytest.approx(listed.get(bytes(row.bytes), row.logprob), abs=1e-4)
        if sampling["temperature"] == 0:
            assert row.logprob == pytest.approx(values[0], abs=1e-4)


def test_log_probs_are_the_local_engines(client: openai.OpenAI, base_url: str) -> None:
    """Greedy replies of vLLM and of our own engine: the same tokens with the same log-probs, top ones too."""
    local = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    options: dict[str, Any] = {"temperature": 0, "logprobs": True, "top_logprobs": 3}
    extra = {"return_tokens_as_token_ids": True}
    ours, theirs = (chat(api, **options, extra_body=extra).choices[0] for api in (local, client))
    assert theirs.message.content == ours.message.content
    for own, other in zip(ours.logprobs.content, theirs.logprobs.content, strict=True):
        assert own.token == other.token
        assert other.logprob == pytest.approx(own.logprob, abs=1e-3)
        assert [top.logprob for top in other.top_logprobs] == pytest.approx(
            [top.logprob for top in own.top_logprobs], abs=1e-3
        )


def test_choices_seeds_and_stop_strings(client: openai.OpenAI) -> None:
    options: dict[str, Any] = {"seed": 5, "temperature": 1.0, "max_tokens": 40}
    first, second, third = chat(client, n=3, **options).choices
    assert [choice.index for choice in (first, second, third)] == [0, 1, 2]
    assert len({choice.message.content for choice in (first, second, third)}) > 1
    assert chat(client, **options).choices[0].message.content == first.message.content
    letter = next(letter for letter in first.message.content[2:] if letter.isalpha())
    stopped = chat(client, stop=[letter], **options).choices[0]
    assert stopped.finish_reason == "stop"
    assert stopped.message.content == first.message.content.partition(letter)[0]
    streamed = joined(chat(client, stop=[letter], stream=True, **options))
    assert streamed["text"] == stopped.message.content


def test_response_formats_of_all_types_one_after_the_other(client: openai.OpenAI) -> None:
    """Strings of the model end soon, so that its JSON is complete."""
    parsed = client.chat.completions.parse(model="tiny", messages=MESSAGES, response_format=Answer, seed=1)
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    response = client.responses.parse(model="tiny", input="x", text_format=Answer)
    assert isinstance(response.output_parsed, Answer)
    formats: list[tuple[dict[str, Any], Callable[[str], bool]]] = [
        ({"type": "json_object"}, lambda text: isinstance(json.loads(text), dict)),
        ({"type": "regex", "regex": "[0-9]{2}/[ab]"}, lambda text: re.fullmatch("[0-9]{2}/[ab]", text) is not None),
        ({"type": "choice", "choice": ["yes", "no"]}, lambda text: text in ("yes", "no")),
        ({"type": "grammar", "grammar": 'start: "x" | "yz"'}, lambda text: text in ("x", "yz")),
    ]
    for form, is_valid in formats:
        choice = chat(client, extra_body={"response_format": form}, max_tokens=600, seed=2).choices[0]
        assert choice.finish_reason == "stop", form
        assert is_valid(choice.message.content), form
    with pytest.raises(openai.BadRequestError):
        chat(client, extra_body={"response_format": {"type": "grammar", "grammar": "start: ("}})


@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "add"}}])
def test_forced_tools_streamed_too(client: openai.OpenAI, choice: object) -> None:
    options: dict[str, Any] = {"tools": [TOOL], "tool_choice": choice, "max_tokens": 600, "seed": 2}
    answer = chat(client, **options).choices[0]
    assert answer.finish_reason == "tool_calls"
    [call] = answer.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert arguments["a"] <= 99
    assert arguments["b"] in (1, 2)
    stream = joined(chat(client, **options, stream=True))
    assert [call.function.arguments for call in stream["calls"]] == [call.function.arguments]


def test_a_tool_or_a_schema(client: openai.OpenAI) -> None:
    """A response format beside tools: the reply is a call, or JSON of the schema."""
    message = client.chat.completions.parse(
        model="tiny", messages=MESSAGES, tools=[{**TOOL, "function": {**TOOL["function"], "strict": True}}],
        response_format=Answer, seed=3, max_tokens=600,
    ).choices[0].message  # fmt: skip
    assert message.tool_calls or isinstance(message.parsed, Answer)


def test_adapters_by_name(client: openai.OpenAI, vllm_url: str, base_url: str) -> None:
    assert [model.id for model in client.models.list()] == ["tiny", "own"]
    options: dict[str, Any] = {"temperature": 0, "max_tokens": 30}
    base, adapted = (chat(client, model=name, **options).choices[0].message.content for name in ("tiny", "own"))
    assert base != adapted
    local = openai.OpenAI(base_url=base_url, api_key="none", max_retries=0)
    load = {"lora_name": "own", "lora_path": str(ADAPTER.resolve())}
    local.post("/load_lora_adapter", body=load, cast_to=object)
    assert chat(local, model="own", **options).choices[0].message.content == adapted, "as our own engine answers"
    local.post("/unload_lora_adapter", body={"lora_name": "own"}, cast_to=object)
    load["lora_name"] = "second"
    client.post("/load_lora_adapter", body=load, cast_to=object)
    assert chat(client, model="second", **options).choices[0].message.content == adapted
    client.post("/unload_lora_adapter", body={"lora_name": "second"}, cast_to=object)
    with pytest.raises(openai.NotFoundError):
        chat(client, model="second")
    wait_for(lambda: len(vllm_models(vllm_url)) == 2)


def test_a_client_that_goes_away_ends_its_reply_in_vllm(client: openai.OpenAI, vllm_url: str) -> None:
    """The reply has no end before 1,900 tokens; vLLM must have sampled fewer when nothing runs any more."""
    endless = {"response_format": {"type": "regex", "regex": "[a-z]{4000}"}}
    before = metric(vllm_url, "vllm:generation_tokens_total")
    stream = chat(client, max_tokens=1900, stream=True, extra_body=endless)
    for chunk in stream:
        if chunk.choices and chunk.choices[0].delta.content:
            break
    stream.close()
    wait_for(lambda: metric(vllm_url, "vllm:num_requests_running") == 0)
    assert metric(vllm_url, "vllm:generation_tokens_total") - before < 1900
    assert chat(client, max_tokens=4).choices, "others are answered"
