"""Documents in a folder, and a BM25 index over them.

The index is about sixty lines of numpy rather than a dependency: packages leave the order of equal scores to their
sort, and here the same query must give the same observation on every machine.
The formula is Lucene's, which is never negative:
idf(t) · f / (f + k1 · (1 - b + b · length / mean length)), idf(t) = ln(1 + (N - n + 0.5) / (n + 0.5)).
"""

from __future__ import annotations

import re
import threading
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from practicum.data.jsonl import iter_objects, read_text
from practicum.errors import UserError
from practicum.resources import Resource
from practicum.utils.concurrency import in_thread

WORD = re.compile(r"\w+")
SENTENCE = re.compile(r"(?<=[.!?])\s+")


@dataclass(frozen=True, slots=True)
class Document:
    """A document of the corpus; title and text are both indexed."""

    id: str
    title: str
    text: str


@dataclass(frozen=True, slots=True)
class Hit:
    """A document that matches a query, and its BM25 score."""

    document: Document
    score: float


def words(text: str) -> list[str]:
    """Return the terms that are indexed: runs of letters and digits, in lower case."""
    return WORD.findall(text.lower())


class BM25Index:
    """A BM25 index. It never changes after it is built, so any number of threads may search it."""

    def __init__(self, documents: Iterable[Document], k1: float = 1.5, b: float = 0.75) -> None:
        # Sorted by id, so that equal scores come in the order of ids.
        self.documents: tuple[Document, ...] = tuple(sorted(documents, key=lambda document: document.id))
        counts = [Counter(words(f"{document.title} {document.text}")) for document in self.documents]
        lengths = np.array([sum(count.values()) for count in counts], dtype=np.float64)
        mean = float(lengths.mean()) if lengths.any() else 1.0
        norms = k1 * (1 - b + b * lengths / mean)
        documents_with: defaultdict[str, list[int]] = defaultdict(list)
        occurrences: defaultdict[str, list[int]] = defaultdict(list)
        for index, count in enumerate(counts):
            for word, times in count.items():
                documents_with[word].append(index)
                occurrences[word].append(times)
        self._postings: dict[str, tuple[np.ndarray, np.ndarray]] = {}
        for word, indices in documents_with.items():
            matching, frequency = np.array(indices), np.array(occurrences[word], dtype=np.float64)
            idf = np.log(1 + (len(counts) - len(indices) + 0.5) / (len(indices) + 0.5))
            self._postings[word] = (matching, idf * frequency / (frequency + norms[matching]))

    def search(self, query: str, count: int = 3) -> list[Hit]:
        """Return at most `count` documents that share a word with the query, best first, equal scores by id."""
        scores = np.zeros(len(self.documents))
        for word in sorted(set(words(query))):
            if word in self._postings:
                matching, weights = self._postings[word]
                scores[matching] += weights
        matches = np.flatnonzero(scores)
        values = scores[matches].round(9)  # a last bit that differs between machines must not break a tie
        if len(matches) > count:
            threshold = np.partition(values, len(matches) - count)[len(matches) - count]
            matches, values = matches[values >= threshold], values[values >= threshold]
        best = np.argsort(-values, kind="stable")[:count]
        return [Hit(self.documents[matches[index]], float(values[index])) for index in best]


def snippet(text: str, query: str, limit: int) -> str:
    """Return at most `limit` characters of a text, from the sentence that has most words of the query."""
    text = " ".join(text.split())
    if len(text) <= limit:
        return text
    query_words = set(words(query))
    starts = [0, *(match.end() for match in SENTENCE.finditer(text))]

    def value(span: tuple[int, int]) -> tuple[int, int]:
        """Words of the query in the piece, then in its first sentence: the piece must not end where they begin."""
        piece, first = text[span[0] : span[0] + limit], text[span[0] : min(span[1], span[0] + limit)]
        return len(query_words & set(words(piece))), len(query_words & set(words(first)))

    begin = max(zip(starts, [*starts[1:], len(text)], strict=True), key=value)[0]
    piece = text[begin : begin + limit]
    if begin + limit < len(text):
        piece = f"{piece.rsplit(' ', 1)[0]} …"
    return piece


def corpus_files(folder: Path) -> list[Path]:
    """Return the files of a corpus below a folder, `*.txt` and `*.jsonl`; UserError if there are none."""
    if not folder.is_dir():
        raise UserError(f"The search corpus '{folder}' is not a folder; give one that holds *.txt or *.jsonl files.")
    files = sorted(path for path in folder.rglob("*") if path.suffix in (".txt", ".jsonl") and path.is_file())
    if not files:
        raise UserError(f"The search corpus '{folder}' holds no documents; put *.txt or *.jsonl files into it.")
    return files


def read_corpus(folder: Path) -> list[Document]:
    """Return the documents below a folder: `*.txt`, one each, and `*.jsonl`, objects with `text`, `title`, `id`."""
    documents: list[Document] = []
    for path in corpus_files(folder):
        name = path.relative_to(folder).with_suffix("").as_posix()
        documents += _documents(path, name) if path.suffix == ".jsonl" else [Document(name, path.stem, read_text(path))]
    if not documents:
        raise UserError(f"The search corpus '{folder}' holds no documents; put *.txt or *.jsonl files into it.")
    twice = [name for name, times in Counter(document.id for document in documents).items() if times > 1]
    if twice:
        raise UserError(f"The search corpus '{folder}' has the document id '{twice[0]}' twice; ids must be unique.")
    return documents


_indexes: dict[Path, BM25Index] = {}
_index_lock = threading.Lock()


def index_of(folder: str | Path) -> BM25Index:
    """Return the index of a corpus folder; it is built once per process, and other threads wait for it."""
    path = Path(folder).expanduser().resolve()
    with _index_lock:
        if path not in _indexes:
            _indexes[path] = BM25Index(read_corpus(path))
        return _indexes[path]


@dataclass
class CorpusIndex(Resource):
    """The index of a corpus folder as a resource: built once, in a thread, before the first episode that needs it."""

    folder: str
    _index: BM25Index | None = field(default=None, compare=False, repr=False)

    def check(self) -> None:
        corpus_files(Path(self.folder).expanduser())

    async def open(self) -> None:
        self._index = await in_thread(index_of, self.folder)

    async def close(self) -> None:
        self._index = None

    @property
    def index(self) -> BM25Index:
        assert self._index is not None, "the index is open while episodes run"
        return self._index


def _documents(path: Path, name: str) -> Iterator[Document]:
    """Yield the documents of a JSON-lines file; one without an id is named by file and line."""
    for line_number, row in iter_objects(path):
        if not isinstance(row.get("text"), str):
            raise UserError(f"'{path}', line {line_number} must be an object with a 'text'.")
        yield Document(str(row.get("id", f"{name}:{line_number}")), str(row.get("title") or ""), row["text"])


def show(hits: Sequence[Hit], query: str, limit: int) -> str:
    """Return hits as an agent sees them: one line each, the title before the text."""
    lines = []
    for hit in hits:
        text = snippet(hit.document.text, query, limit)
        lines.append(f"{hit.document.title}: {text}" if hit.document.title else text)
    return "\n".join(lines) or "No results."
