"""The server an engine speaks to: found or started, asked again where that is harmless, mended when it dies."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from practicum.chat.renderer import Renderer
from practicum.engines.base import Sampling
from practicum.engines.vllm.protocol import Call, Choice, HTTPConnection, Refused, Unreachable, completion, read_choice
from practicum.engines.vllm.server import KEY, ServerSettings, VLLMServer
from practicum.errors import ContextFull, EngineError, UserError

RETRY_SECONDS = (0.5, 2.0)
PASSING = (408, 425, 429, 502, 503, 504)
"""Answers of a server that has not sampled anything and may do better in a moment."""


class VLLMClient:
    """A server that runs at `url`, or one of ours by `server`. `base` is the model it should serve.

    Everything here blocks; threads may call it side by side.
    """

    def __init__(
        self, renderer: Renderer, base: str, url: str | None, server: ServerSettings | None, timeout: float = 600.0
    ) -> None:
        if (url is None) == (server is None):
            raise UserError(f"Give {KEY}.url for a server that runs, or {KEY}.python to start one: one of the two.")
        self.renderer = renderer
        self.base = base
        self.server = VLLMServer(server) if server is not None else None
        self.served = ""
        """The name of the model itself, without an adapter."""
        self.context = 0
        self.mending = threading.RLock()
        """Held while the server is started: one thread mends it, the others wait."""
        self._url = url
        self._timeout = timeout
        self._wire: HTTPConnection | None = None
        self._closed = False

    @property
    def url(self) -> str:
        return self.server.url if self.server is not None else self._url or ""

    @property
    def lives(self) -> bool:
        return self.server is None or self.server.alive

    def begin(self, model: str, lora_rank: int | None) -> None:
        """Start our server on a model, or again on another one."""
        assert self.server is not None, "a server of somebody else's is not ours to start"
        with self.mending:
            if self._closed:
                raise EngineError("the engine was closed")
            if self.server.starts and not self.server.alive:
                self.server.revive(model, lora_rank)
            else:
                self.server.start(model, lora_rank)
            self._connect()

    def mend(self, restore: Callable[[], None]) -> None:
        """Start our server again if it has died, and let the caller put back what it held."""
        with self.mending:
            if self._closed:
                raise EngineError("the engine was closed")
            if self.server is None or self.server.alive:
                return
            self.server.revive(self.server.model, self.server.lora_rank)
            try:
                self._connect()
                restore()
            except BaseException:
                self.server.stop()  # half restored is not restored: the next request finds it dead
                raise

    def close(self) -> None:
        self._closed = True
        if self.server is not None:
            self.server.give_up()
        with self.mending:
            if self.server is not None:
                self.server.stop()
            if self._wire is not None:
                self._wire.close()

    # -- replies ----------------------------------------------------------------------------

    def complete(
        self,
        served: str,
        salt: str,
        ids: Sequence[int],
        sampling: Sampling,
        end_ids: Sequence[int] = (),
        call: Call | None = None,
        **more: int,
    ) -> Choice:
        """One completion by the model or adapter of that name."""
        limit = min(sampling.max_tokens, self.context - len(ids))
        body = completion(served, ids, sampling, limit, end_ids, salt) | more
        return read_choice(self._ask(body, call), ids)

    def _ask(self, body: dict[str, Any], call: Call | None) -> Any:
        """Asked for again where nothing was sampled, or nobody heard it: with its seed it is the same reply."""
        wire = self.wire
        for wait in (*RETRY_SECONDS, None):
            try:
                return wire.post("/v1/completions", body, call)
            except Refused as error:
                if error.status == 400 and "context length" in error.detail:
                    raise ContextFull(str(error)) from None
                if error.status >= 500 and self.server is not None and not self.server.check():
                    raise EngineError(f"the vLLM server is not well: {error.detail}") from None
                if error.status not in PASSING or wait is None:
                    raise
            except Unreachable:
                if wait is None or (call is not None and call.aborted):
                    raise
                if not self.lives:
                    raise EngineError("the vLLM server died while it was asked") from None
            time.sleep(wait)
        raise AssertionError("the last try raises")

    # -- weights ----------------------------------------------------------------------------

    def load(self, name: str, folder: Path) -> None:
        """An adapter, at run time, under a name."""
        try:
            self.wire.post("/v1/load_lora_adapter", {"lora_name": name, "lora_path": str(folder)})
        except Refused as error:
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

    def unload(self, name: str) -> None:
        try:
            self.wire.post("/v1/unload_lora_adapter", {"lora_name": name})
        except (EngineError, UserError):
            return  # a server that died has unloaded it too

    def reload(self, folder: Path) -> bool:
        """Ask our server to read whole weights again; False if it will not. Whether it really did is not known here."""
        try:
            self.wire.post("/collective_rpc", {"method": "reload_weights", "kwargs": {"weights_path": str(folder)}})
            self.wire.post("/reset_prefix_cache", {})
        except EngineError:
            return False
        assert self.server is not None
        self.server.model = str(folder)
        return True

    # -- the connection ---------------------------------------------------------------------

    @property
    def wire(self) -> HTTPConnection:
        if self._wire is not None:
            return self._wire
        with self.mending:
            self._connect()
            assert self._wire is not None
            return self._wire

    def _connect(self) -> None:
        """Find out what the server serves, and that it reads ids as we do."""
        if self._wire is not None:
            self._wire.close()
        wire = HTTPConnection(self.url, self._timeout, os.environ.get("VLLM_API_KEY"))
        try:
            models = [row for row in wire.get("/v1/models", timeout=30.0)["data"] if not row.get("parent")]
        except (Unreachable, Refused, KeyError, TypeError) as error:
            raise UserError(f"No vLLM server is to be found at {self.url} ({error}); correct {KEY}.url.") from None
        names = {self.server.served} if self.server is not None else {self.base, Path(self.base).name}
        own = [row for row in models if row["id"] in names or row.get("root") in names] or models
        if len(own) != 1 or (self.server is not None and own[0]["id"] != self.server.served):
            listed = ", ".join(str(row["id"]) for row in models)
            raise UserError(f"The server at {self.url} serves {listed or 'nothing'}, not '{self.base}'.")
        self._wire, self.served, self.context = wire, str(own[0]["id"]), int(own[0]["max_model_len"])
        self._check_tokenizer(wire)

    def _check_tokenizer(self, wire: HTTPConnection) -> None:
        tokenizer = self.renderer.tokenizer
        text = f"Ids of {tokenizer.decode([self.renderer.close_id])} must be ours: 12 × 3 = 36."
        try:
            answer = wire.post("/tokenize", {"model": self.served, "prompt": text, "add_special_tokens": False})
        except Refused:
            return  # a server without this route; the canary speaks ids with it all the same
        own = tokenizer(text, add_special_tokens=False)["input_ids"]
        if isinstance(answer, dict) and answer.get("tokens") != own:
            raise UserError(f"The server at {self.url} has another tokenizer than '{self.base}'.")
