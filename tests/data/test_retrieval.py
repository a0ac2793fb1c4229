"""The index against hand-worked values and another implementation; the tool over folders and HTTP services."""

from __future__ import annotations

import asyncio
import json
import math
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, urlsplit

import pytest

from practicum.data import retrieval
from practicum.data.retrieval import BM25Index, Document, index_of, read_corpus, snippet
from practicum.errors import UserError
from practicum.tools.base import ToolResult
from practicum.tools.errors import ToolFailure
from practicum.tools.google_search import google_search, google_search_over

FACTS = [
    Document("a", "", "Mivar was written by Tolen."),
    Document("b", "", "Tolen was born in Rusko."),
    Document("c", "", "Rusko lies on Sela."),
]


def test_golden_score() -> None:
    """By hand: N = 3, 'tolen' in 2, 'born' in 1; lengths 5, 5, 4, so the mean is 14/3; k1 = 1.5, b = 0.75."""
    norm = 1.5 * (0.25 + 0.75 * 5 / (14 / 3))
    tolen, born = math.log(1 + 1.5 / 2.5) / (1 + norm), math.log(1 + 2.5 / 1.5) / (1 + norm)
    hits = BM25Index(FACTS).search("Tolen born")
    assert [hit.document.id for hit in hits] == ["b", "a"]
    assert [hit.score for hit in hits] == pytest.approx([tolen + born, tolen], abs=1e-8)


def test_scores_agree_with_bm25s() -> None:
    bm25s = pytest.importorskip("bm25s")
    rng = random.Random(5)
    vocabulary = [f"w{number}" for number in range(60)]
    texts = [[rng.choice(vocabulary[: rng.randint(2, 60)]) for _ in range(rng.randint(1, 40))] for _ in range(200)]
    peer = bm25s.BM25(method="lucene", k1=1.5, b=0.75)
    peer.index(texts, show_progress=False)
    index = BM25Index(Document(f"{number:04d}", "", " ".join(text)) for number, text in enumerate(texts))
    for _ in range(50):
        query = rng.sample(vocabulary, rng.randint(1, 6))
        scores = {int(hit.document.id): hit.score for hit in index.search(" ".join(query), 200)}
        peer_scores = peer.get_scores(query)
        assert set(scores) == {number for number, score in enumerate(peer_scores) if score > 0}
        for number, score in scores.items():
            assert score == pytest.approx(float(peer_scores[number]), abs=1e-5)  # theirs are float32


def test_equals_stand_in_the_order_of_their_ids_and_not_of_their_coming() -> None:
    documents = [Document(f"{number:02d}", "", "the same words") for number in range(30)]
    for seed in range(5):
        random.Random(seed).shuffle(documents)
        hits = BM25Index(documents).search("same", 4)
        assert [hit.document.id for hit in hits] == ["00", "01", "02", "03"]


def test_a_better_one_is_found_among_many_equals() -> None:
    documents = [Document(f"{number:02d}", "", "red stone") for number in range(50)]
    hits = BM25Index([*documents, Document("99", "blue", "red stone")]).search("blue red", 2)
    assert [hit.document.id for hit in hits] == ["99", "00"]


def test_nothing_in_common_is_no_result() -> None:
    assert BM25Index(FACTS).search("zebra") == []
    assert BM25Index(FACTS).search("") == []
    assert BM25Index([]).search("zebra") == []
    assert BM25Index([Document("a", "", "...")]).search("zebra") == []


def test_snippets_begin_where_the_query_is() -> None:
    text = "Nothing here. " * 30 + "The river Sela rises at Dun. It is long. " + "More of nothing. " * 30
    result = snippet(text, "where does Sela rise", 60)
    assert result.startswith("The river Sela rises at Dun.")
    assert len(result) <= 62
    assert result.endswith(" …")
    assert snippet("short\n  text", "x", 60) == "short text"


def corpus(folder: Path) -> Path:
    folder.mkdir()
    (folder / "sub").mkdir()
    (folder / "sub" / "Rusko.txt").write_text("Rusko is a town on the Sela.", encoding="utf-8")
    rows = [{"id": "m", "title": "Mivar", "text": "Mivar was written by Tolen."}, {"text": "Tolen was born in Rusko."}]
    (folder / "facts.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    (folder / "notes.md").write_text("not a document")
    return folder


def test_corpus_folders(tmp_path: Path) -> None:
    documents = read_corpus(corpus(tmp_path / "c"))
    assert [(d.id, d.title) for d in documents] == [("m", "Mivar"), ("facts:2", ""), ("sub/Rusko", "Rusko")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", b'{"text": "x"}\n{"text": }\n', "line 2 is not JSON"),
        ("a.jsonl", b'{"title": "x"}\n', "line 1 must be an object with a 'text'"),
        ("a.jsonl", b'{"id": 1, "text": "x"}\n{"id": 1, "text": "y"}\n', "the document id '1' twice"),
        ("a.txt", b"\xff\xfe", "not UTF-8"),
        ("a.md", b"x", "holds no documents"),
    ],
)
def test_what_a_corpus_can_have_wrong(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read_corpus(tmp_path)


def test_a_corpus_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a folder"):
        index_of(tmp_path / "none")


def test_an_index_is_made_once_however_many_threads_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, reads = corpus(tmp_path / "c"), []

    def slow(path: Path) -> list[Document]:
        reads.append(path)
        time.sleep(0.05)
        return read_corpus(path)

    monkeypatch.setattr(retrieval, "read_corpus", slow)
    with ThreadPoolExecutor(16) as pool:
        results = list(pool.map(lambda _: index_of(folder), range(64)))
        assert len(reads) == 1
        assert all(index is results[0] for index in results)
        expected = results[0].search("Tolen Rusko", 3)
        assert all(hits == expected for hits in pool.map(lambda index: index.search("Tolen Rusko", 3), results))


# The tool


def call(query: str) -> ToolResult:
    return asyncio.run(google_search.call({"query": query}))


@pytest.fixture(autouse=True)
def unset(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CORPUS", "URL", "KEY", "STYLE", "CACHE", "TIMEOUT"):
        monkeypatch.delenv(f"PRACTICUM_SEARCH_{name}", raising=False)
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")


def test_one_line_a_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_SEARCH_CORPUS", str(corpus(tmp_path / "c")))
    assert call("who wrote Mivar?").text == "Mivar: Mivar was written by Tolen."
    assert call("zebra") == ToolResult("No results.")
    assert call("  ") == ToolResult("No results.")


def test_over_a_given_index_it_is_the_same_tool() -> None:
    scores = google_search_over(BM25Index(FACTS), results=1)
    assert scores.schema == google_search.schema
    assert asyncio.run(scores.call({"query": "Tolen"})).text == "Mivar was written by Tolen."
    assert asyncio.run(scores.call({})).text == "Error: google_search needs the argument 'query'."


def test_nothing_or_too_much_to_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match="set PRACTICUM_SEARCH_CORPUS to a folder"):
        call("x")
    monkeypatch.setenv("PRACTICUM_SEARCH_CORPUS", str(tmp_path))
    with pytest.raises(UserError, match="holds no documents"):
        call("x")
    monkeypatch.setenv("PRACTICUM_SEARCH_URL", "http://127.0.0.1:9")
    with pytest.raises(UserError, match="unset one of them"):
        call("x")


class Service(BaseHTTPRequestHandler):
    """A search service: answers both styles, or what `script` says first."""

    script: ClassVar[list[tuple[int, bytes, float]]] = []
    seen: ClassVar[list[tuple[str, dict[str, Any], str | None]]] = []

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        rows = [{"title": f"T{n}", "link": "http://x", "snippet": f"{body['q']} \n {n}"} for n in range(9)]
        self.answer((self.path, body, self.headers["X-API-KEY"]), {"organic": rows})

    def do_GET(self) -> None:
        requests = {key: value[0] for key, value in parse_qs(urlsplit(self.path).query).items()}
        rows = [{"title": "T", "url": "http://x", "description": f"about {requests['q']}"}]
        seen = (urlsplit(self.path).path, requests, self.headers["X-Subscription-Token"])
        self.answer(seen, {"web": {"results": rows}})

    def answer(self, call: tuple[str, dict[str, Any], str | None], body: Any) -> None:
        self.seen.append(call)
        status, data, wait = self.script.pop(0) if self.script else (200, json.dumps(body).encode(), 0.0)
        time.sleep(wait)
        self.send_response(status)
        if status == 302:
            self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *arguments: Any) -> None:
        return None


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    Service.script, Service.seen = [], []
    server = ThreadingHTTPServer(("127.0.0.1", 0), Service)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}/search"
    monkeypatch.setenv("PRACTICUM_SEARCH_URL", url)
    monkeypatch.setenv("PRACTICUM_SEARCH_KEY", "secret")
    yield url
    server.shutdown()
    server.server_close()


def test_a_service_like_serper(service: str) -> None:
    assert call("Tolen").text == "T0: Tolen 0\nT1: Tolen 1\nT2: Tolen 2"
    assert Service.seen == [("/search", {"q": "Tolen", "num": 3}, "secret")]


def test_a_service_like_brave(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_SEARCH_STYLE", "brave")
    assert call("Tolen & Rusko").text == "T: about Tolen & Rusko"
    assert Service.seen == [("/search", {"q": "Tolen & Rusko", "count": "3"}, "secret")]


def test_answers_are_kept_on_disk(service: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PRACTICUM_SEARCH_CACHE", str(tmp_path / "cache"))
    first = call("Tolen")
    assert call("Tolen") == first
    assert len(Service.seen) == 1
    (kept,) = (tmp_path / "cache").iterdir()
    assert "secret" not in kept.read_text()
    kept.write_text("{damaged")
    assert call("Tolen") == first
    assert len(Service.seen) == 2
    Service.script[:] = [(429, b"", 0.0)]
    assert call("Rusko").failed
    assert not call("Rusko").failed, "a fault is not kept"


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((401, b"", 0.0), "the search service answered 401"),
        ((403, b"secret key refused", 0.0), "the search service answered 403"),
        ((503, b"", 0.0), "the search service answered 503"),
        ((302, b"", 0.0), "the search service answered 302"),
        ((200, b"<html>", 0.0), "the search service did not answer in JSON"),
        ((200, b"[1]", 0.0), "the search service answered in an unknown form"),
        ((200, b'{"organic": [3]}', 0.0), "the search service answered in an unknown form"),
        ((200, b"{}", 0.6), "the search service did not answer within 0.2 s"),
    ],
)
def test_a_service_s_faults_are_not_the_agent_s(
    service: str, monkeypatch: pytest.MonkeyPatch, answer: tuple[int, bytes, float], message: str
) -> None:
    if answer[2]:
        monkeypatch.setenv("PRACTICUM_SEARCH_TIMEOUT", "0.2")
    Service.script[:] = [answer, answer]
    with pytest.raises(ToolFailure) as exc_info:
        call("Tolen")
    assert str(exc_info.value) == message
    assert len(Service.seen) == 2, "asked once more; a redirect is not followed with the key in hand"
    if not answer[2]:
        Service.script[:] = [answer]
        assert not call("Tolen").failed, "the second time it answered"


@pytest.mark.parametrize("status", [400, 429])
def test_a_query_that_is_refused_is_an_observation(service: str, status: int) -> None:
    Service.script[:] = [(status, b"", 0.0)]
    assert call("Tolen") == ToolResult(f"Error: the search service answered {status}", failed=True)
    assert len(Service.seen) == 1


def test_no_results_and_no_service(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Service.script[:] = [(200, b"{}", 0.0)]
    assert call("Tolen") == ToolResult("No results.")
    monkeypatch.setenv("PRACTICUM_SEARCH_URL", "http://127.0.0.1:9")
    with pytest.raises(ToolFailure, match="the search service could not be reached"):
        call("Tolen")


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("URL", "file:///etc/passwd", "begins with https://"),
        ("KEY", "", "without PRACTICUM_SEARCH_KEY"),
        ("STYLE", "serpr", "Did you mean 'serper'"),
        ("TIMEOUT", "soon", "PRACTICUM_SEARCH_TIMEOUT is 'soon'"),
        ("TIMEOUT", "60", "below 30"),
    ],
)
def test_wrong_settings(service: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str, message: str) -> None:
    monkeypatch.setenv(f"PRACTICUM_SEARCH_{name}", value)
    with pytest.raises(UserError, match=message):
        call("x")
    assert not Service.seen
