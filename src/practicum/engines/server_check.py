"""Check before a collection or an evaluation that a server answers and has the model.

Without it, a wrong address or name would fail every episode after its retries, one error per episode.
"""

from __future__ import annotations

import json
from typing import Any

from practicum.engines.chat_client import MAX_ANSWER_BYTES, connection_options, headers
from practicum.errors import NoServerAnswers, UserError, did_you_mean

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
    import httpx  # slow to import: only for those who use a server

    try:
        with (
            httpx.Client(timeout=TIMEOUT_SECONDS, **connection_options(url)) as client,
            client.stream("GET", url.rstrip("/") + "/models", headers=headers()) as answer,
        ):
            if answer.status_code in (401, 403):
                raise UserError(
                    f"The server at {url} refuses the request ({answer.status_code}); put its key into OPENAI_API_KEY."
                )
            if answer.status_code == 404 and not url.rstrip("/").endswith("/v1"):
                raise UserError(f"The server at {url} has nothing at this address; should it end in /v1?")
            if answer.is_redirect:
                raise UserError(
                    f"The server at {url} redirects to {answer.headers.get('Location')}; give the address itself as "
                    "--url, since the key goes to no other server than the one named."
                )
            if not answer.is_success:
                return None
            content = bytearray()
            for chunk in answer.iter_raw():
                content += chunk
                if len(content) > MAX_ANSWER_BYTES:
                    return None
            return _names(json.loads(content))
    except (httpx.HTTPError, httpx.InvalidURL, OSError, ValueError, RecursionError) as error:
        reason = str(error) or type(error).__name__
        raise NoServerAnswers(url, reason) from None


def _names(answer: Any) -> list[str] | None:
    """The ids of an answer in the API's format; None for any other."""
    try:
        return [str(model["id"]) for model in answer["data"]]
    except (KeyError, TypeError):
        return None
