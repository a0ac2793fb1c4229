"""`google_search`: the best few snippets for a query.

By default it searches a folder of documents with an embedded BM25 index; with an address and a key it queries a
web-search service. Settings are environment variables, since a tool is selected by its name alone:

PRACTICUM_SEARCH_CORPUS   folder of *.txt and *.jsonl documents
PRACTICUM_SEARCH_URL      address of a web-search service, instead of a corpus
PRACTICUM_SEARCH_KEY      its key
PRACTICUM_SEARCH_STYLE    its protocol: serper (default) or brave
PRACTICUM_SEARCH_CACHE    folder in which its answers are kept (default: nowhere)
PRACTICUM_SEARCH_TIMEOUT  seconds it may take (default 10)
"""

from __future__ import annotations

import functools
import http.client
import json
import os
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from practicum.data.retrieval import BM25Index, index_of, show
from practicum.data.run_folder import write_atomic
from practicum.errors import UserError, did_you_mean
from practicum.task import content_hash
from practicum.tools.base import Tool, tool
from practicum.tools.errors import ToolFailure

NUM_RESULTS = 3
SNIPPET_LENGTH = 300
MAX_ANSWER_BYTES = 2_000_000
STYLES = ("serper", "brave")
QUERY_FAULTS = (400, 413, 414, 422, 429)
"""HTTP statuses that the agent can react to: with another query, a shorter one, fewer queries."""


@tool()
def google_search(query: str) -> str:
    """Search for facts.

    Args:
        query: a few words
    """
    return configured_search()(query)


def google_search_over(index: BM25Index, results: int = NUM_RESULTS) -> Tool:
    """Return `google_search` over one index, for an environment with its own corpus."""
    return replace(google_search, function=functools.partial(search_index, index, results))


def search_index(index: BM25Index, results: int, query: str) -> str:
    """Return the best documents of an index as the text that the agent sees."""
    return show(index.search(query, results), query, SNIPPET_LENGTH)


def configured_search() -> Callable[[str], str]:
    """Return the search that the environment variables select; UserError if they select none or two."""
    corpus, url = os.environ.get("PRACTICUM_SEARCH_CORPUS"), os.environ.get("PRACTICUM_SEARCH_URL")
    if corpus and url:
        raise UserError("Both PRACTICUM_SEARCH_CORPUS and PRACTICUM_SEARCH_URL are set; unset one of them.")
    if url:
        return web_service(os.environ).search
    if corpus:
        return functools.partial(search_index, index_of(corpus), NUM_RESULTS)
    raise UserError(
        "google_search has nothing to search: set PRACTICUM_SEARCH_CORPUS to a folder of documents, "
        "or PRACTICUM_SEARCH_URL and PRACTICUM_SEARCH_KEY to a web-search service."
    )


class _NoRedirectHandler(urllib.request.HTTPRedirectHandler):
    """Refuses redirects: they would send the key to another host."""

    def redirect_request(self, *arguments: Any, **named: Any) -> None:
        return None


@dataclass(frozen=True)
class WebService:
    """A web-search service with the JSON protocol of Serper or Brave."""

    url: str
    key: str
    style: str = "serper"
    cache: Path | None = None
    timeout: float = 10.0

    def search(self, query: str) -> str:
        """Return the first results, one line each.

        A query that the service refuses is a ValueError, which the agent sees. Any other error is retried once and is
        then a ToolFailure.
        """
        cache_path = self.cache / f"{content_hash([self.style, self.url, query])}.json" if self.cache else None
        lines = _cached(cache_path)
        if lines is None:
            try:
                lines = self._lines(self._fetch(query))
            except ToolFailure:
                lines = self._lines(self._fetch(query))
            if cache_path is not None:
                record = {"query": query, "lines": lines}
                write_atomic(cache_path, (json.dumps(record, ensure_ascii=False) + "\n").encode())
        return "\n".join(lines) or "No results."

    def _request(self, query: str) -> urllib.request.Request:
        if self.style == "serper":
            body = json.dumps({"q": query, "num": NUM_RESULTS}).encode()
            return urllib.request.Request(self.url, body, {"X-API-KEY": self.key, "Content-Type": "application/json"})
        parameters = urllib.parse.urlencode({"q": query, "count": NUM_RESULTS})
        headers = {"X-Subscription-Token": self.key, "Accept": "application/json"}
        return urllib.request.Request(f"{self.url}{'&' if '?' in self.url else '?'}{parameters}", headers=headers)

    def _fetch(self, query: str) -> Any:
        try:
            opener = urllib.request.build_opener(_NoRedirectHandler)
            with opener.open(self._request(query), timeout=self.timeout) as response:
                return json.loads(response.read(MAX_ANSWER_BYTES))
        except urllib.error.HTTPError as error:
            error_type = ValueError if error.code in QUERY_FAULTS else ToolFailure
            raise error_type(f"the search service answered {error.code}") from None
        except (OSError, http.client.HTTPException) as error:
            timed_out = isinstance(error, TimeoutError) or isinstance(getattr(error, "reason", None), TimeoutError)
            failure = f"did not answer within {self.timeout:g} s" if timed_out else "could not be reached"
            raise ToolFailure(f"the search service {failure}") from None
        except ValueError:
            raise ToolFailure("the search service did not answer in JSON") from None

    def _lines(self, answer: Any) -> list[str]:
        try:
            rows: Sequence[Mapping[str, Any]]
            if self.style == "serper":
                rows, text = answer.get("organic", []), "snippet"
            else:
                rows, text = answer.get("web", {}).get("results", []), "description"
            pairs = [(str(row.get("title", "")), str(row.get(text, ""))) for row in rows[:NUM_RESULTS]]
        except (AttributeError, TypeError, KeyError):
            raise ToolFailure("the search service answered in an unknown form") from None
        return [" ".join(f"{title}: {snippet}".split())[:SNIPPET_LENGTH] for title, snippet in pairs]


def web_service(settings: Mapping[str, str]) -> WebService:
    """Return the service that the variables describe; UserError says which of them is wrong."""
    url, key = settings["PRACTICUM_SEARCH_URL"], settings.get("PRACTICUM_SEARCH_KEY", "")
    if urllib.parse.urlsplit(url).scheme not in ("http", "https"):
        raise UserError(f"PRACTICUM_SEARCH_URL is '{url}'; give an address that begins with https://.")
    if not key:
        raise UserError("PRACTICUM_SEARCH_URL is set without PRACTICUM_SEARCH_KEY; set that to your key.")
    style = settings.get("PRACTICUM_SEARCH_STYLE", STYLES[0])
    if style not in STYLES:
        raise UserError(f"PRACTICUM_SEARCH_STYLE is '{style}'.{did_you_mean(style, STYLES)}")
    seconds = settings.get("PRACTICUM_SEARCH_TIMEOUT", "10")
    try:
        timeout = float(seconds)
    except ValueError:
        timeout = 0.0
    if not 0 < timeout < google_search.timeout:
        limit = f"above 0 and below {google_search.timeout:g}"
        raise UserError(f"PRACTICUM_SEARCH_TIMEOUT is '{seconds}'; give seconds {limit}.")
    cache = settings.get("PRACTICUM_SEARCH_CACHE")
    return WebService(url, key, style, Path(cache).expanduser() if cache else None, timeout)


def _cached(path: Path | None) -> list[str] | None:
    """Return the lines of a cache file; None if there is none or it is damaged."""
    try:
        lines = json.loads(path.read_text(encoding="utf-8"))["lines"] if path is not None else None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    return [str(line) for line in lines] if isinstance(lines, list) else None
