"""Published data sets converted into the JSON files that tasks are read from.

Each reader takes a file's text and returns rows with a `question` and what the reward needs, and, where the set comes
with texts to read, documents for a search corpus. Everything is read and checked before anything is written.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from practicum.data.jsonl import list_or_lines, parse_json, read_text
from practicum.data.retrieval import Document
from practicum.data.store import write_atomic
from practicum.errors import UserError, did_you_mean

Row = dict[str, Any]


@dataclass(frozen=True)
class Converted:
    """Rows for a task file; documents for a corpus, where there are any."""

    rows: Sequence[Row]
    documents: Sequence[Document] = field(default=())


class InvalidRow(ValueError):
    """What is wrong with a row; `_naming` adds the file and the location."""


def text_field(row: Mapping[str, Any], name: str) -> str:
    """Return a field that must be a non-empty text."""
    value = _field(row, name)
    if not isinstance(value, str) or not value.strip():
        raise InvalidRow(f"'{name}' must be a non-empty text")
    return value


def list_field(row: Mapping[str, Any], name: str) -> list[Any]:
    value = _field(row, name)
    if not isinstance(value, list):
        raise InvalidRow(f"'{name}' must be a list")
    return value


def _field(row: Any, name: str) -> Any:
    if not isinstance(row, Mapping):
        raise InvalidRow(f"expected an object with '{name}', found {type(row).__name__}")
    if name not in row:
        raise InvalidRow(f"the field '{name}' is missing (it has: {', '.join(map(str, row)) or 'nothing'})")
    return row[name]


def gsm8k(row: Mapping[str, Any], number: int) -> Row:
    """GSM8K: `question` and a worked `answer` whose last line is `#### 42`."""
    solution, mark, last = text_field(row, "answer").rpartition("####")
    answer = last.strip().replace(",", "").removeprefix("$")
    if not mark or not re.fullmatch(r"-?\d+(\.\d+)?", answer):
        raise InvalidRow("'answer' must end in '#### ' and a number")
    return {
        "id": f"gsm8k-{number}",
        "question": text_field(row, "question").strip(),
        "answer": answer,
        "solution": solution.strip(),
    }


def humaneval(row: Mapping[str, Any], number: int) -> Row:
    """HumanEval: `prompt` is the head of the function `entry_point`, `test` defines `check(candidate)`."""
    prompt, entry = text_field(row, "prompt"), text_field(row, "entry_point")
    return {
        "id": text_field(row, "task_id").replace("/", "-"),
        "question": f"Complete this Python function. Give the whole function.\n\n{prompt.strip()}",
        "prompt": prompt,
        "test_cases": [text_field(row, "test")],
        "entry_point": entry,
        "solution": prompt + text_field(row, "canonical_solution"),
    }


def mbpp(row: Mapping[str, Any], number: int) -> Row:
    """MBPP: `text` (`prompt` in the sanitized file), `code`, and asserts in `test_list`."""
    tests = list_field(row, "test_list")
    if not tests or not all(isinstance(test, str) and test.strip() for test in tests):
        raise InvalidRow("'test_list' must be a list of asserts")
    question = text_field(row, "text" if "text" in row or "prompt" not in row else "prompt").strip()
    # The two files have different fields for what the tests need: a block of code, or import lines.
    needs = {key: row[key] for key in ("test_setup_code", "test_imports") if row.get(key)}
    return {
        "id": f"mbpp-{_field(row, 'task_id')}",
        # Only the tests name the function, so the first one is shown.
        "question": f"{question} Your code should pass this test:\n\n{tests[0]}",
        "test_cases": tests,
        **needs,
        "solution": text_field(row, "code"),
    }


def hotpotqa(text: str, path: Path) -> Converted:
    """HotpotQA: a list of questions, each with the paragraphs (title, sentences) it was asked of."""
    rows: list[Row] = []
    documents: dict[str, Document] = {}
    for location, row in list_or_lines(text, path):
        with _naming(path, location):
            rows.append({
                "id": text_field(row, "_id"),
                "question": text_field(row, "question").strip(),
                "answer": text_field(row, "answer"),
                **{key: row[key] for key in ("level", "type") if key in row},
            })  # fmt: skip
            for paragraph in list_field(row, "context"):
                match paragraph:
                    case [str(title), [*sentences]] if all(isinstance(sentence, str) for sentence in sentences):
                        _add_document(documents, title, "".join(sentences))
                    case _:
                        raise InvalidRow("'context' must hold pairs of a title and its sentences")
    return Converted(rows, tuple(documents.values()))


def squad(text: str, path: Path) -> Converted:
    """SQuAD 1.1 and 2.0: articles of paragraphs of questions. A question without an answer has `noanswer`."""
    rows: list[Row] = []
    documents: dict[str, Document] = {}
    with _naming(path, "the file"):
        articles = list_field(parse_json(text, path), "data")
    for a, article in enumerate(articles):
        with _naming(path, f"article {a}"):
            title, paragraphs = text_field(article, "title"), list_field(article, "paragraphs")
        for p, paragraph in enumerate(paragraphs):
            with _naming(path, f"article {a}, paragraph {p}"):
                _add_document(documents, title.replace("_", " "), text_field(paragraph, "context"))
                questions = list_field(paragraph, "qas")
            for q, asked in enumerate(questions):
                with _naming(path, f"article {a}, paragraph {p}, question {q}"):
                    rows.append({
                        "id": text_field(asked, "id"),
                        "question": text_field(asked, "question").strip(),
                        "answer": _squad_answer(asked),
                    })  # fmt: skip
    return Converted(rows, tuple(documents.values()))


def _squad_answer(asked: Mapping[str, Any]) -> str | list[str]:
    if asked.get("is_impossible"):
        return "noanswer"
    texts = list(dict.fromkeys(text_field(answer, "text") for answer in list_field(asked, "answers")))
    if not texts:
        raise InvalidRow("'answers' is empty and 'is_impossible' is not set")
    return texts[0] if len(texts) == 1 else texts


def _add_document(documents: dict[str, Document], title: str, text: str) -> None:
    """Add a paragraph once, however many questions are about it."""
    key = f"{title}\n{text}"
    if key not in documents:
        documents[key] = Document(f"{len(documents):07d}", title, " ".join(text.split()))


def _by_line(read: Callable[[Mapping[str, Any], int], Row]) -> Callable[[str, Path], Converted]:
    """Return the reader of a file with one object per line, or one list, given the reader of one object."""

    def convert(text: str, path: Path) -> Converted:
        rows = []
        for index, (location, row) in enumerate(list_or_lines(text, path)):
            with _naming(path, location):
                rows.append(read(row, index))
        return Converted(rows)

    return convert


FORMATS: Mapping[str, Callable[[str, Path], Converted]] = {
    "gsm8k": _by_line(gsm8k),
    "hotpotqa": hotpotqa,
    "squad": squad,
    "humaneval": _by_line(humaneval),
    "mbpp": _by_line(mbpp),
}


def convert(name: str, source: Path) -> Converted:
    """Return the rows of a published file, `.gz` or not; raise UserError naming the location of what is wrong."""
    if name not in FORMATS:
        raise UserError(f"Unknown data set '{name}'.{did_you_mean(name, FORMATS)}")
    converted = FORMATS[name](read_text(source), source)
    if not converted.rows:
        raise UserError(f"'{source}' holds no questions.")
    seen: set[str] = set()
    for row in converted.rows:
        if row["id"] in seen:
            raise UserError(f"'{source}' has the id '{row['id']}' twice; ids must be unique.")
        seen.add(row["id"])
    return converted


def write(converted: Converted, output: Path, corpus: Path) -> None:
    """Write the task file, and the corpus as one file in a folder of its own; existing files are not overwritten."""
    documents = corpus / "documents.jsonl"
    for path in (output, *([documents] if converted.documents else [])):
        if path.exists():
            raise UserError(f"'{path}' exists already; choose another name or remove it.")
    if converted.documents:
        lines = (
            json.dumps({"id": d.id, "title": d.title, "text": d.text}, ensure_ascii=False) for d in converted.documents
        )
        write_atomic(documents, "".join(f"{line}\n" for line in lines).encode())
    # The task file comes last: where it exists, its corpus does too.
    write_atomic(output, (json.dumps(list(converted.rows), ensure_ascii=False, indent=1) + "\n").encode())


class _naming:
    """A context in which an InvalidRow becomes a UserError that names the file and the location."""

    def __init__(self, path: Path, location: str) -> None:
        self.path, self.location = path, location

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if isinstance(error, InvalidRow):
            raise UserError(f"'{self.path}', {self.location}: {error}.") from None
