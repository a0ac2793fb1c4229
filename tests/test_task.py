from __future__ import annotations

import json
from pathlib import Path

import pytest

from practicum.errors import UserError
from practicum.task import Task, read_task_file


def test_hash_names_content_not_place() -> None:
    one = Task("a", "math", "train", {"question": "1+1", "answer": "2"})
    two = Task("b", "math", "test", {"answer": "2", "question": "1+1"})
    assert one.hash == two.hash
    assert one.hash != Task("a", "math", "train", {"question": "1+2", "answer": "2"}).hash


def test_a_task_cannot_change_under_its_hash() -> None:
    fields = {"question": "x", "list": [1]}
    task = Task("a", "math", "train", fields)
    fields["question"] = "y"
    assert task.fields["question"] == "x"
    with pytest.raises(TypeError):
        task.fields["question"] = "z"  # type: ignore[index]


def test_frozen_all_the_way_down() -> None:
    task = Task("a", "math", "train", {"steps": ["1+1"], "deep": {"x": [1]}})
    assert task.fields["steps"] == ("1+1",)
    with pytest.raises(TypeError):
        task.fields["deep"]["x"] = 2


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
    ("text", "says"),
    [
        ("not json", "is not JSON"),
        ("[]", "is empty"),
        ("", "is empty"),
        ('[{"answer": "2"}]', "row 0 lacks 'question'"),
        ("[1]", "expected an object"),
        ('"text"', "must be a JSON list"),
        ('[{"question": ""}]', "must be a non-empty text"),
        ('[{"question": "a", "id": 1}, {"question": "b", "id": "1"}]', "the id '1' is used twice"),
        ('{"question": "a"}\n{"question": \n', "line 2 is not JSON"),
        ('[{"question": "a"}, {"question": "b", "answer": NaN}]', "row 1 holds NaN or Infinity"),
        ('{"question": "a", "answer": [1e999]}\n{"question": "b"}', "row 0 holds NaN or Infinity"),
    ],
)
def test_bad_files_get_one_clear_sentence(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(UserError, match=says) as caught:
        read_task_file(write(tmp_path / "d.json", text), "math", "train")
    assert "\n" not in str(caught.value)


def test_missing_and_unreadable_files(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="does not exist"):
        read_task_file(tmp_path / "none.json", "math", "train")
    (tmp_path / "latin.json").write_bytes(b'[{"question": "\xff"}]')
    with pytest.raises(UserError, match="not UTF-8"):
        read_task_file(tmp_path / "latin.json", "math", "train")
