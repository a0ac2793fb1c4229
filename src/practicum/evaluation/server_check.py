"""Check before an evaluation that a server answers and has the model.

Without it, a wrong address or name would fail every episode after its retries, one error per episode.
"""

from __future__ import annotations

import http.client
import json
import os
import urllib.error
import urllib.request
from typing import Any

from practicum.errors import UserError, did_you_mean

TIMEOUT_SECONDS = 15.0


def check_server(url: str, model: str) -> None:
    """Ask an OpenAI-compatible server for its models; a server without such a list is accepted."""
    if not url.startswith(("http://", "https://")):
        raise UserError(f"--url {url}: give the address of a server, such as http://localhost:8000/v1.")
    models = _models(url)
    if models is not None and model not in models:
        raise UserError(
            f"The server at {url} has no model '{model}'; --policy is its name there.{did_you_mean(model, models[:20])}"
        )


def _models(url: str) -> list[str] | None:
    """Names of a server's models, or None where it has no such list."""
    headers = {"Authorization": f"Bearer {key}"} if (key := os.environ.get("OPENAI_API_KEY")) else {}
    try:
        request = urllib.request.Request(url.rstrip("/") + "/models", headers=headers)
        with urllib.request.urlopen(request, timeout=TIMEOUT_SECONDS) as answer:
            return _names(json.load(answer))
    except urllib.error.HTTPError as error:
        if error.code in (401, 403):
            raise UserError(
                f"The server at {url} refuses us ({error.code}); put its key into OPENAI_API_KEY."
            ) from None
        if error.code == 404 and not url.rstrip("/").endswith("/v1"):
            raise UserError(f"The server at {url} does not know this address; should it end in /v1?") from None
        return None
    except (OSError, ValueError, http.client.HTTPException) as error:
        why = getattr(error, "reason", None) or error
        raise UserError(f"No server answers at {url} ({why}); start it, or check --url.") from None


def _names(answer: Any) -> list[str] | None:
    """The ids of an answer in the API's format; None for any other."""
    try:
        return [str(model["id"]) for model in answer["data"]]
    except (KeyError, TypeError):
        return None
