"""The examples of docs/api.md run, one after the other, in an empty folder."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[1] / "docs" / "api.md"
MAX_LINES = 30


def blocks() -> list[str]:
    return re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(), re.M | re.S)


def test_every_example_of_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    examples = blocks()
    assert len(examples) >= 8
    for index, code in enumerate(examples):
        assert len(code.splitlines()) <= MAX_LINES
        file_name = re.match(r"# (\w+\.py)\n", code)
        if file_name:  # a user's own module
            (tmp_path / file_name[1]).write_text(code)
        else:
            exec(compile(code, f"<example {index} of api.md>", "exec"), {"__name__": "example"})
