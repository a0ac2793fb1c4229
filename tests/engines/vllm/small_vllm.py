"""A small server that speaks the part of vLLM's HTTP that the engine uses, over a real model.

It shares no code with the engine: transformers computes, LoRA is merged into a copy of the weights. Run as
a program it takes vLLM's command line, so that it can stand where a supervised server stands.
"""

from __future__ import annotations

import copy
import itertools
import json
import os
import sys
import threading
import time
from collections.abc import Sequence
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from transformers import AutoTokenizer, LlamaForCausalLM


class SmallVLLM:
    """The model, its adapters, and the faults that a test has planted."""

    def __init__(self, folder: str, served: str, context: int = 256, processed: bool = True, lora: bool = True) -> None:
        self.folder, self.served, self.context, self.processed, self.lora = folder, served, context, processed, lora
        self.tokenizer = AutoTokenizer.from_pretrained(folder)
        self.model = LlamaForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.adapters: dict[str, Any] = {}
        self.lock = threading.Lock()
        self.seen: list[tuple[str, dict[str, Any]]] = []
        self.answered: list[Any] = []
        """What it answered to completions, in the order of its answers."""
        self.script: list[tuple[int, Any]] = []
        """Answers to completions given before the model is asked: (status, body); status 0 breaks the connection."""
        self.stale = ""
        """`all`: a new adapter is the one before it; `upper`: so are its upper layers."""
        self.newest: Any = None
        self.under_way, self.dead = 0, False
        self.slow = float(os.environ.get("VLLM_SMALL_SLOW", "0"))
        """Seconds that a token takes besides what it takes."""

    # -- weights ----------------------------------------------------------------------------

    def load(self, name: str, path: str) -> tuple[int, Any]:
        if not self.lora:
            return 404, {"detail": "Not Found"}
        folder = Path(path)
        if not (folder / "adapter_config.json").is_file():
            return 404, {"error": {"message": f"Loading lora {name} failed: No adapter found for {path}"}}
        if name in self.adapters:
            return 400, {"error": {"message": f"The lora adapter '{name}' has already been loaded."}}
        merged_model = self.newest if self.stale == "all" else merged(self.model, folder)
        if self.stale == "upper":
            with torch.no_grad():
                for layer, old in zip(merged_model.model.layers[2:], self.newest.model.layers[2:], strict=True):
                    for a, b in zip(layer.parameters(), old.parameters(), strict=True):
                        a.copy_(b)
        self.adapters[name] = self.newest = merged_model
        return 200, f"Success: LoRA adapter '{name}' added successfully."

    def reload(self, path: str) -> None:
        """What vLLM was seen to do on CPU: the embedding is new, the output layer tied to it is not."""
        head = copy.deepcopy(self.model.lm_head)
        self.model = LlamaForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.model.lm_head = head

    # -- replies ----------------------------------------------------------------------------

    def complete(self, body: dict[str, Any]) -> tuple[int, Any]:
        if self.script:
            return self.script.pop(0)
        model = self.model if body["model"] == self.served else self.adapters.get(body["model"])
        prompt = body["prompt"]
        if model is None:
            return 404, {"error": {"message": f"The model `{body['model']}` does not exist."}}
        if len(prompt) >= self.context:
            return 400, {"error": {"message": f"This model's maximum context length is {self.context} tokens."}}
        self.under_way += 1
        try:
            time.sleep(self.slow * body["max_tokens"])
            with self.lock, torch.inference_mode():
                if self.dead or (body.get("prompt_logprobs") is not None and self.under_way > 1):
                    self.dead = True  # what becomes of vLLM on CPU, under an adapter
                    return 500, {"error": {"message": "EngineCore encountered an issue."}}
                ids, logprobs, finish = self._sample(model, prompt, body)
                scored = self._score(model, prompt) if body.get("prompt_logprobs") is not None else None
        finally:
            self.under_way -= 1
        return 200, {
            "choices": [
                {
                    "token_ids": ids,
                    "logprobs": {"token_logprobs": logprobs},
                    "finish_reason": finish,
                    "prompt_token_ids": prompt,
                    "prompt_logprobs": scored,
                }
            ],
            "usage": {"prompt_tokens_details": {"cached_tokens": 0}},
        }

    def _sample(self, model: Any, prompt: list[int], body: dict[str, Any]) -> tuple[list[int], list[float], str]:
        generator = torch.Generator().manual_seed(body["seed"])
        ids: list[int] = []
        logprobs: list[float] = []
        input_ids, past = torch.tensor([prompt]), None
        for _ in range(min(body["max_tokens"], self.context - len(prompt))):
            out = model(input_ids, past_key_values=past, use_cache=True)
            logits, past = out.logits[0, -1], out.past_key_values
            temperature = body["temperature"] or 1.0
            scaled = logits / temperature
            if body["top_k"]:
                scaled = scaled.masked_fill(scaled < scaled.topk(body["top_k"]).values[-1], -torch.inf)
            drawn = torch.multinomial(scaled.softmax(-1), 1, generator=generator)
            token = int(logits.argmax()) if body["temperature"] == 0 else int(drawn)
            ids.append(token)
            logprobs.append(float((scaled if self.processed else logits).log_softmax(-1)[token]))
            if token in body["stop_token_ids"]:
                return ids, logprobs, "stop"
            text = self.tokenizer.decode(ids, skip_special_tokens=body["skip_special_tokens"])
            if any(stop in text for stop in body["stop"]):
                return ids, logprobs, "stop"
            input_ids = torch.tensor([[token]])
        return ids, logprobs, "length"

    def _score(self, model: Any, prompt: list[int]) -> list[Any]:
        logprobs = model(torch.tensor([prompt])).logits[0].log_softmax(-1)
        return [None, *({str(token): {"logprob": float(logprobs[n, token])}} for n, token in enumerate(prompt[1:]))]

    # -- routes -----------------------------------------------------------------------------

    def get(self, path: str) -> tuple[int, Any]:
        if path == "/health":
            return (503 if self.dead else 200), ""
        base = {"id": self.served, "root": self.folder, "parent": None, "max_model_len": self.context}
        return 200, {"data": [base, *({"id": name, "parent": self.served} for name in self.adapters)]}

    def post(self, path: str, body: dict[str, Any]) -> tuple[int, Any]:
        self.seen.append((path, body))
        if path == "/v1/completions":
            status, value = self.complete(body)
            self.answered.append(value)
            return status, value
        if path == "/v1/load_lora_adapter":
            return self.load(body["lora_name"], body["lora_path"])
        if path == "/v1/unload_lora_adapter":
            return (200, "Success") if self.adapters.pop(body["lora_name"], None) else (404, "no such adapter")
        if path == "/tokenize":
            return 200, {"tokens": self.tokenizer(body["prompt"], add_special_tokens=False)["input_ids"]}
        if path == "/collective_rpc":
            self.reload(body["kwargs"]["weights_path"])
            return 200, {"results": [None]}
        return (200, "") if path == "/reset_prefix_cache" else (404, {"detail": "Not Found"})

    def serve(self, port: int = 0) -> ThreadingHTTPServer:
        small = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                self.answer(*(small.get(self.path) if self.authorized() else (401, {"error": "Unauthorized"})))

            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                status, value = small.post(self.path, body) if self.authorized() else (401, {"error": "Unauthorized"})
                if status == 200 and body.get("stream"):
                    self.stream(value)
                else:
                    self.answer(status, value)

            def stream(self, value: Any) -> None:
                """One event per token, then the usage and the end, as vLLM streams a completion."""
                [choice] = value["choices"]
                tokens = list(zip(choice["token_ids"], choice["logprobs"]["token_logprobs"], strict=True))
                events: list[Any] = []
                for number, (token, logprob) in enumerate(tokens, 1):
                    finish = choice["finish_reason"] if number == len(tokens) else None
                    row = {"token_ids": [token], "logprobs": {"token_logprobs": [logprob]}, "finish_reason": finish}
                    events.append({"choices": [row]})
                events.append({"choices": [], "usage": value["usage"]})
                data = "".join(f"data: {json.dumps(event)}\n\n" for event in events) + "data: [DONE]\n\n"
                self.send_response(200)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data.encode())

            def authorized(self) -> bool:
                """As vLLM does: with a key in VLLM_API_KEY, routes below /v1 ask for it."""
                key = os.environ.get("VLLM_API_KEY")
                ids = self.headers.get("Authorization")
                return not key or not self.path.startswith("/v1") or ids == f"Bearer {key}"

            def answer(self, status: int, value: Any) -> None:
                if status == 0:
                    self.close_connection = True
                    return
                data = value.encode() if isinstance(value, str) else json.dumps(value).encode()
                self.send_response(status)
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            def log_message(self, *arguments: Any) -> None:
                return None

        class Server(ThreadingHTTPServer):
            def handle_error(self, *arguments: Any) -> None:
                return None  # a caller who hung up

        return Server(("127.0.0.1", port), Handler)


def merged(model: LlamaForCausalLM, folder: Path) -> LlamaForCausalLM:
    """A copy of the model with a PEFT adapter added to its weights."""
    settings = json.loads((folder / "adapter_config.json").read_text())
    tensors = load_file(folder / "adapter_model.safetensors")
    merged_model = copy.deepcopy(model)
    with torch.no_grad():
        for name, lower in tensors.items():
            if name.endswith(".lora_A.weight"):
                module = name.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
                upper = tensors[name.replace("lora_A", "lora_B")]
                merged_model.get_submodule(module).weight += settings["lora_alpha"] / settings["r"] * upper @ lower
    return merged_model


def main(arguments: Sequence[str]) -> None:
    options = dict(itertools.pairwise(arguments))
    torch.set_num_threads(1)
    small = SmallVLLM(
        options["--model"],
        options["--served-model-name"],
        int(options.get("--max-model-len", 256)),
        processed=options.get("--logprobs-mode") == "processed_logprobs",
        lora="--enable-lora" in arguments and bool(os.environ.get("VLLM_ALLOW_RUNTIME_LORA_UPDATING")),
    )
    small.serve(int(options["--port"])).serve_forever()


if __name__ == "__main__":
    main(sys.argv[1:])
