"""Gold answers and changed ones in small files of the published forms, judged by `benchmarks/judges.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from benchmarks import judges

from practicum.errors import UserError
from practicum.sandbox import base


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


GSM8K = [
    {"question": "Nuts?", "answer": "3 bags of 4 are $<<3*4=12>>12 and 5 more.\n#### 12"},
    {"question": "Price?", "answer": "It is 1200 + 34 = <<1200+34=1234>>1,234.\n#### 1,234"},
    {"question": "Half?", "answer": "It is 1 / 2.\n#### 0.5"},
]
MATH = [
    {"problem": "$x$?", "solution": "So $x = \\boxed{\\frac{5}{3}}$.", "level": "Level 1", "type": "Algebra"},
    {"problem": "Who?", "solution": "It is $\\boxed{\\text{Evelyn}}$.", "level": "Level 1", "type": "Algebra"},
    {
        "problem": "Where?",
        "solution": "At $\\boxed{(2, -\\frac{\\pi}{3})}$, not 3.",
        "level": "Level 3",
        "type": "Algebra",
    },
]
HUMANEVAL = [
    {"task_id": "H/0", "prompt": "def shift(s):\n    return s[1:] + s[:1]\n\n\ndef back(s):\n    ''' undo '''\n",
     "entry_point": "back", "canonical_solution": "    return s[-1:] + s[:-1]\n",
     "test": "def check(candidate):\n    for s in ('abc', 'xyzw'):\n        assert candidate(shift(s)) == s\n"},
    {"task_id": "H/1", "prompt": "def add(xs):\n", "entry_point": "add", "canonical_solution": "    return sum(xs)\n",
     "test": "def check(candidate):\n    assert candidate([1, 2]) == 3\n    assert abs(candidate([.1]) - .1) < 1e-6\n"},
]  # fmt: skip
MBPP = [
    {"task_id": 2, "prompt": "Shared?", "code": "def shared(a, b):\n  return tuple(set(a) & set(b))",
     "test_list": ["assert set(shared((3, 4), (4, 5))) == set((4,))", "assert shared((1,), (2,)) == ()"]},
    {"task_id": 3, "prompt": "Size?", "code": "import sys\ndef size(x):\n  return sys.getsizeof(x)", "test_imports": [],
     "test_list": ["assert size((1, 2)) == sys.getsizeof((1, 2))"]},
    {"task_id": 4, "prompt": "Begins?", "code": "import re\ndef begins(s):\n  return re.search('^a', s)",
     "test_imports": ["import math"], "test_list": ["assert begins('ab')", "assert not begins('ba')"]},
]  # fmt: skip
CRUX = [
    {
        "id": "sample_0",
        "code": "def f(xs, k):\n    return [x + k for x in xs]",
        "input": "[1, 2], 3",
        "output": "[4, 5]",
    },
    {"id": "sample_1", "code": "def f():\n    return 'ab'", "input": "", "output": "'ab'"},
]
SQUAD = {"version": "v2.0", "data": [{"title": "Rusko", "paragraphs": [{"context": "Rusko lies on the Sela.", "qas": [
    {"id": "a", "question": "On what?", "answers": [{"text": "the Sela", "answer_start": 14}], "is_impossible": False},
    {"id": "b", "question": "Who?", "answers": [], "is_impossible": True},
]}]}]}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "content"),
    [("gsm8k", GSM8K), ("math", MATH), ("humaneval", HUMANEVAL), ("mbpp", MBPP), ("cruxeval", CRUX), ("squad", SQUAD)],
)
def test_gold_is_right_and_changed_gold_is_wrong(tmp_path: Path, name: str, content: Any) -> None:
    if name == "math":
        pytest.importorskip("math_verify")
    path = tmp_path / "file.json"
    path.write_text(json.dumps(content))
    title, *lines = judges.examine(path, None, None, 0, 2)
    assert f"({name}, " in title
    gold, changed, errors = (next(line for line in lines if word in line) for word in ("gold", "changed", "errors"))
    assert "100.00 %" in gold, lines
    assert " 0 of " in changed, lines
    assert " 0 of 0 " not in changed
    assert "judge errors           0 of" in errors


def test_what_cannot_be_judged_is_counted_apart(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "plus.jsonl"
    path.write_text(json.dumps({**HUMANEVAL[1], "test": f"import numpy as np\n{HUMANEVAL[1]['test']}"}))
    assert judges.main([str(path)]) == 0
    shown = capsys.readouterr().out
    assert "gold judged right      0 of 0" in shown
    assert "the tests import 'numpy', which the sandbox does not have" in shown
    path.write_text('{"x": 1}')
    assert judges.main([str(path)]) == 2
    assert "say --format" in capsys.readouterr().err
