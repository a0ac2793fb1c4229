from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.data.task_file import read_task_file
from practicum.errors import UserError


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_reads_the_json_list_form(tmp_path: Path) -> None:
    path = write(tmp_path / "d.json", json.dumps([{"question": "1+1?", "answer": "2"}, {"problem": "2+2?"}]))
    tasks = read_task_file(path, "math", "train")
    assert [task.fields["question"] for task in tasks] == ["1+1?", "2+2?"]
    assert tasks[0].fields["answer"] == "2"


def test_reads_json_lines(tmp_path: Path) -> None:
    path = write(tmp_path / "d.jsonl", '{"question": "a"}\n{"question": "b"}\n')
    assert len(read_task_file(path, "math", "train")) == 2


def test_only_a_newline_ends_a_line(tmp_path: Path) -> None:
    rows = ['{"question": "a\u2028b\x85c"}', '{"question": "d"}']
    path = write(tmp_path / "d.jsonl", "\n".join(rows))
    assert [task.fields["question"] for task in read_task_file(path, "math", "train")] == ["a\u2028b\x85c", "d"]


@pytest.mark.parametrize("text", ['[{"question": "a"}]', '{"question": "a"}\n{"question": "b"}\n'])
def test_a_byte_order_mark_is_no_part_of_the_text(tmp_path: Path, text: str) -> None:
    path = write(tmp_path / "d.json", f"\ufeff{text}")
    assert read_task_file(path, "math", "train")[0].fields["question"] == "a"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not json", "is not JSON"),
        ("[]", "is empty"),
        ("", "is empty"),
        ('[{"answer": "2"}]', "row 0 lacks 'question'"),
        ("[1]", "expected an object"),
        ('"text"', "expected an object"),
        ('[{"question": ""}]', "must be a non-empty text"),
        ('[{"question": "a", "id": 1}, {"question": "b", "id": "1"}]', "the id '1' is used twice"),
        ('{"question": "a"}\n{"question": \n', "line 2 is not JSON"),
        ('[{"question": "a"}, {"question": "b", "answer": NaN}]', "row 1 holds NaN or Infinity"),
        ('{"question": "a", "answer": [1e999]}\n{"question": "b"}', "row 0 holds NaN or Infinity"),
    ],
)
def test_bad_files_get_one_clear_sentence(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as exc_info:
        read_task_file(write(tmp_path / "d.json", text), "math", "train")
    assert "\n" not in str(exc_info.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="There is no file"):
        read_task_file(tmp_path / "none.json", "math", "train")
    (tmp_path / "latin.json").write_bytes(b'[{"question": "\xff"}]')
    with pytest.raises(UserError, match="not UTF-8"):
        read_task_file(tmp_path / "latin.json", "math", "train")
