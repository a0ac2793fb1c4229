"""The client of a vLLM server: requests with retries, adapters, weight reload, and restarts of a server of ours."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.engines.vllm.protocol import (
    Choice,
    ConnectionPool,
    ErrorStatus,
    PendingCall,
    Unreachable,
    completion_body,
    read_choice,
)
from practicum.engines.vllm.server import KEY, ServerSettings, VLLMServer
from practicum.errors import ContextFull, EngineError, UserError

RETRY_SECONDS = (0.5, 2.0)
"""Waits before the second and the third try."""
RETRY_STATUS = (408, 425, 429, 502, 503, 504)
"""Statuses of a server that has not sampled anything and may answer in a moment."""
MODELS_TIMEOUT_SECONDS = 30.0


class VLLMClient:
    """A server that runs at `url`, or one that is started by `server` settings. `base` is the model it should serve.

    All methods block; threads may call them at the same time.
    """

    def __init__(
        self, renderer: Renderer, base: str, url: str | None, server: ServerSettings | None, timeout: float = 600.0
    ) -> None:
        if (url is None) == (server is None):
            raise UserError(f"Give {KEY}.url for a server that runs, or {KEY}.python to start one: one of the two.")
        self.renderer = renderer
        self.base = base
        self.server = VLLMServer(server) if server is not None else None
        self.model_name = ""
        """The name that the model itself is served under, without an adapter."""
        self.context = 0
        """Tokens of the server's context window."""
        self.restart_lock = threading.RLock()
        """Held while the server is started: one thread starts it, the others wait."""
        self._url = url
        self._timeout = timeout
        self._connections: ConnectionPool | None = None
        self._closed = False

    @property
    def url(self) -> str:
        return self.server.url if self.server is not None else self._url or ""

    @property
    def alive(self) -> bool:
        """Whether our server's process runs; a server at a URL counts as alive."""
        return self.server is None or self.server.alive

    def start(self, model: str, lora_rank: int | None) -> None:
        """Start our server on a model, or start it again on another one."""
        assert self.server is not None, "a server at a URL is not ours to start"
        with self.restart_lock:
            if self._closed:
                raise EngineError("the engine was closed")
            if self.server.num_starts and not self.server.alive:
                self.server.restart(model, lora_rank)
            else:
                self.server.start(model, lora_rank)
            self._connect()

    def restart_if_dead(self, restore: Callable[[], None]) -> None:
        """Start our server again if it has died, and call `restore` to load the weights that it had."""
        with self.restart_lock:
            if self._closed:
                raise EngineError("the engine was closed")
            if self.server is None or self.server.alive:
                return
            self.server.restart(self.server.model, self.server.lora_rank)
            try:
                self._connect()
                restore()
            except BaseException:
                self.server.stop()  # half restored is not restored: the next request must restart it
                raise

    def close(self) -> None:
        self._closed = True
        if self.server is not None:
            self.server.cancel_start()
        with self.restart_lock:
            if self.server is not None:
                self.server.stop()
            if self._connections is not None:
                self._connections.close()

    # -- replies ----------------------------------------------------------------------------

    def complete(
        self,
        model: str,
        salt: str,
        ids: Sequence[int],
        sampling: Sampling,
        end_ids: Sequence[int] = (),
        call: PendingCall | None = None,
        **more: int,
    ) -> Choice:
        """Return one completion by the model or adapter served under that name; `more` is added to the request."""
        max_tokens = min(sampling.max_tokens, self.context - len(ids))
        body = completion_body(model, ids, sampling, max_tokens, end_ids, salt) | more
        return read_choice(self._post_completion(body, call), ids)

    def _post_completion(self, body: dict[str, Any], call: PendingCall | None) -> Any:
        """Send a request, again if nothing was sampled or the answer was lost: with its seed it is the same reply."""
        connections = self.connections
        for wait in (*RETRY_SECONDS, None):
            try:
                return connections.post("/v1/completions", body, call)
            except ErrorStatus as error:
                if error.status == 400 and "context length" in error.detail:
                    raise ContextFull(str(error)) from None
                if error.status >= 500 and self.server is not None and not self.server.check_health():
                    raise EngineError(f"the vLLM server is not well: {error.detail}") from None
                if error.status not in RETRY_STATUS or wait is None:
                    raise
            except Unreachable:
                if wait is None or (call is not None and call.aborted):
                    raise
                if not self.alive:
                    raise EngineError("the vLLM server died while it was asked") from None
            time.sleep(wait)
        raise AssertionError("the last try returns or raises")

    # -- weights ----------------------------------------------------------------------------

    def load_adapter(self, name: str, folder: Path) -> None:
        """Load an adapter into the running server under a name."""
        try:
            self.connections.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except ErrorStatus as error:
            if error.status != 404:
                raise
            if "adapter" in error.detail.lower():
                raise UserError(
                    f"The server at {self.url} cannot read the adapter folder '{folder}'; it must see the same disk."
                ) from None
            raise UserError(
                f"The server at {self.url} takes no adapters while it runs; start it with --enable-lora and "
                "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1."
            ) from None

    def unload_adapter(self, name: str) -> None:
        """Unload an adapter; a server that cannot is left as it is."""
        try:
            self.connections.post("/v1/unload_lora_adapter", {"lora_name": name})
        except (EngineError, UserError):
            return  # a server that died has unloaded it too

    def reload_weights(self, folder: Path) -> bool:
        """Ask our server to read all weights again, and return whether it accepted; the canary checks that it did."""
        try:
            body = {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}}
            self.connections.post("/collective_rpc", body)
            self.connections.post("/reset_prefix_cache", {})
        except EngineError:
            return False
        assert self.server is not None
        self.server.model = str(folder)
        return True

    # -- the connection ---------------------------------------------------------------------

    @property
    def connections(self) -> ConnectionPool:
        if self._connections is not None:
            return self._connections
        with self.restart_lock:
            self._connect()
            assert self._connections is not None
            return self._connections

    def _connect(self) -> None:
        """Find the served model and its context window, and check that the server tokenizes as we do."""
        if self._connections is not None:
            self._connections.close()
        key = self.server.key if self.server is not None else os.environ.get("VLLM_API_KEY")
        connections = ConnectionPool(self.url, self._timeout, key)
        try:
            listed = connections.get("/v1/models", timeout=MODELS_TIMEOUT_SECONDS)["data"]
            models = [row for row in listed if not row.get("parent")]
        except (Unreachable, ErrorStatus, KeyError, TypeError) as error:
            raise UserError(f"No vLLM server is to be found at {self.url} ({error}); correct {KEY}.url.") from None
        names = {self.server.model_name} if self.server is not None else {self.base, Path(self.base).name}
        matching = [row for row in models if row["id"] in names or row.get("root") in names] or models
        if len(matching) != 1 or (self.server is not None and matching[0]["id"] != self.server.model_name):
            served = ", ".join(str(row["id"]) for row in models)
            raise UserError(f"The server at {self.url} serves {served or 'nothing'}, not '{self.base}'.")
        self._connections = connections
        self.model_name, self.context = str(matching[0]["id"]), int(matching[0]["max_model_len"])
        self._check_tokenizer(connections)

    def _check_tokenizer(self, connections: ConnectionPool) -> None:
        tokenizer = self.renderer.tokenizer
        text = f"Ids of {tokenizer.decode([self.renderer.close_id])} must be ours: 12 × 3 = 36."
        try:
            body = {"model": self.model_name, "prompt": text, "add_special_tokens": False}
            answer = connections.post("/tokenize", body)
        except ErrorStatus:
            return  # a server without this route; the canary compares ids and log-probs all the same
        own_ids = tokenizer(text, add_special_tokens=False)["input_ids"]
        if isinstance(answer, dict) and answer.get("tokens") != own_ids:
            raise UserError(f"The server at {self.url} has another tokenizer than '{self.base}'.")
