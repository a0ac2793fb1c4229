"""Tests in the forms of published data sets: what they compare, what belongs to the problem, what cannot be judged."""

from __future__ import annotations

import time

import pytest

from practicum import registry
from practicum.errors import JudgeError, UserError
from practicum.rewards.base import Score
from practicum.rewards.code_answer import complete, extract_code, fenced_blocks
from practicum.sandbox import base
from practicum.task import Task


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


def judge(answer: str | None, test_cases: object, **fields: object) -> Score:
    task = Task("t", "code", "train", {"question": "?", "test_cases": test_cases, **fields})
    return registry.reward("code_reward").score(task, answer, ())


MATCH = "import re\ndef f(text):\n    return re.search('^a', text)"
STACK = (
    "class Stack:\n    def __init__(self, items=()):\n        self.items = list(items)\n"
    "    def push(self, item):\n        self.items.append(item)\n        return self\n"
    "    def pop(self):\n        if not self.items:\n            raise Empty('no')\n        return self.items.pop()\n"
    "    def __len__(self):\n        return len(self.items)\n    def __contains__(self, item):\n"
    "        return item in self.items\n    def __add__(self, other):\n        return Stack(self.items + other.items)\n"
    "    def __eq__(self, other):\n        return self.items == other.items\n    __hash__ = None\n"
    "class Empty(ValueError):\n    pass\n"
)


@pytest.mark.parametrize(
    ("answer", "test"),
    [
        pytest.param(MATCH, "assert f('abc')", id="truth of a match"),
        pytest.param(MATCH, "assert not f('bc')", id="truth of None"),
        pytest.param(MATCH, "for word in ('a', 'ab'):\n    assert f(word)", id="truth of a match in a loop"),
        pytest.param(
            "import sys\ndef f(x):\n    return sys.getsizeof(x)", "assert f((1, 2)) == sys.getsizeof((1, 2))", id="sys"
        ),
        pytest.param(
            "def f(xs):\n    xs.sort()", "xs = [3, 1, [2]][:2]\nf(xs)\nassert xs == [1, 3]", id="sorted in place"
        ),
        pytest.param(
            "def f(grid, seen):\n    grid[0][1] = 7\n    seen['a'] = {1}\n    return 2",
            "grid, seen = [[1, 2], [3]], {}\nk = f(grid, seen)\n"
            "assert (k, grid, seen) == (2, [[1, 7], [3]], {'a': {1}})",
            id="nested in place",
        ),
        pytest.param(
            STACK, "s = Stack()\ns.push(1).push(2)\nassert s.pop() == 2\nassert len(s) == 1 and 1 in s", id="state"
        ),
        pytest.param(
            STACK, "s = Stack()\ntry:\n    s.pop()\n    assert False\nexcept Empty:\n    pass", id="own error"
        ),
        pytest.param(
            STACK, "s = Stack([1])\nassert s + s == Stack([1, 1])\nassert isinstance(s.push(2), Stack)", id="+"
        ),
        pytest.param(
            "def f(n):\n    def g():\n        nonlocal n\n        n += 1\n        return n\n    return g",
            "g = f(5)\nassert g() == 6\nassert g() == 7",
            id="closure",
        ),
        pytest.param(
            "def f(n):\n    yield from range(n)", "values = f(3)\nassert [*values] == [0, 1, 2]", id="generator"
        ),
        pytest.param(
            "from fractions import Fraction\ndef f(a, b):\n    return Fraction(a, b)",
            "assert f(1, 2) == Fraction(2, 4)",
            id="Fraction",
        ),
        pytest.param(
            "from decimal import Decimal\ndef f(x):\n    return [Decimal(x)]",
            "from decimal import Decimal\nassert f('1.10') == [Decimal('1.1')]",
            id="Decimal",
        ),
        pytest.param(
            "import datetime\ndef f(y):\n    return datetime.date(y, 2, 28) + datetime.timedelta(days=1)",
            "import datetime\nassert f(2024) == datetime.date(2024, 2, 29)",
            id="date",
        ),
        pytest.param(
            "def f(start, hours):\n    import datetime\n    return start + datetime.timedelta(hours=hours)",
            "assert f(datetime.datetime(2024, 1, 1), 25) == datetime.datetime(2024, 1, 2, 1)",
            id="datetime as argument",
        ),
        pytest.param(
            "from collections import deque\ndef f(n):\n    return deque(range(n))",
            "from collections import deque\nassert f(2) == deque([0, 1])",
            id="deque",
        ),
    ],
)
def test_right_programs_pass_tests_that_compare_more_than_literals(answer: str, test: str) -> None:
    assert judge(answer, [test]).success


ANYTHING = (
    "class Any:\n    def __eq__(self, other):\n        return True\n    def __lt__(self, other):\n        return True\n"
    "    __gt__ = __le__ = __ge__ = __contains__ = startswith = issuperset = count = __lt__\n"
    "    def __sub__(self, other):\n        return self\n    __rsub__ = __mul__ = __sub__\n"
    "    def __abs__(self):\n        return self\n    def __float__(self):\n        return 5.0\n    __hash__ = None\n"
)


@pytest.mark.parametrize("as_class", [False, True])
@pytest.mark.parametrize(
    "test",
    [
        "value = f(3)\nassert value == 5",
        "value = f(3)\nassert abs(value - 5) < 0.1",
        "for n in (5, 6):\n    assert n in f(3)",
        "value = f(3)\nassert value.startswith('5')",
        "value = f(3)\nassert value.issuperset({5})",
        "value = f(3)\nassert isclose(value, 5)",
        "assert f(3) > 4",
        "assert sorted([f(3), 4])[1] == 5",
    ],
)
def test_an_object_that_agrees_with_everything_passes_no_test_of_a_function(test: str, as_class: bool) -> None:
    answer = f"{ANYTHING}class f(Any):\n    def __init__(self, *a):\n        pass" if as_class else (
        f"{ANYTHING}def f(*given):\n    return Any()"
    )  # fmt: skip
    assert not judge(answer, [test]).success


def test_objects_that_the_setup_creates_from_the_program_s_class() -> None:
    tree = (
        "class Node:\n    def __init__(self, value):\n        self.value, self.left = value, None\n"
        "def total(node):\n    return node.value + (total(node.left) if node.left else 0)"
    )
    setup = "root = Node(1)\nroot.left = Node(2)"
    assert judge(tree, ["assert total(root) == 3", "assert total(root) in (3, 4)"], test_setup_code=setup).success


def test_an_argument_that_is_also_the_reference_cannot_be_emptied() -> None:
    test = "import random\nfor n in range(5):\n    xs = [n, 3, 1]\n    assert f(xs) == sorted(xs)"
    assert judge("def f(xs):\n    return sorted(xs)", [test]).success
    assert not judge("def f(xs):\n    xs.clear()\n    return []", [test]).success


HELPED = (
    "import math\n\ndef poly(xs, x):\n    return sum(c * x ** i for i, c in enumerate(xs))\n\n\n"
    'def find_zero(xs):\n    """ Find x with poly(xs, x) = 0. """\n'
)
ZERO_CHECK = (
    "def check(candidate):\n    for a in (2, 5, -7):\n        assert abs(poly([a, 1], candidate([a, 1]))) < 1e-4\n"
)


def test_helpers_come_from_the_problem_and_not_from_the_answer() -> None:
    fields = {"entry_point": "find_zero", "prompt": HELPED}
    assert judge("def find_zero(xs):\n    return -xs[0]", [ZERO_CHECK], **fields).success
    hack = "def poly(xs, x):\n    return 0\ndef find_zero(xs):\n    return 1"
    assert not judge(hack, [ZERO_CHECK], **fields).success
    inverse = (
        "def encode(s):\n    return s[::-1]\n\ndef decode(s):\n", "def check(candidate):\n    for s in ('ab', 'xyz'):\n"
        "        assert candidate(encode(s)) == s\n",
    )  # fmt: skip
    fields = {"entry_point": "decode", "prompt": inverse[0]}
    assert judge("def decode(s):\n    return s[::-1]", [inverse[1]], **fields).success
    assert not judge("def encode(s):\n    return s\ndef decode(s):\n    return s", [inverse[1]], **fields).success


@pytest.mark.parametrize(
    ("tests", "fields"),
    [
        (["import numpy as np\nassert np.allclose(f(3), 9)"], {}),
        (["import numpy as np\n\ndef check(candidate):\n    assert candidate(3) == 9"], {"entry_point": "f"}),
        (["assert f(3) == 9"], {"test_imports": ["import numpy"]}),
        (["class Own(f):\n    pass\nassert Own(3)"], {}),
        (["try:\n    f(lambda x: x)\nexcept Exception:\n    pass\nassert True"], {}),
    ],
)
def test_a_test_that_cannot_run_is_a_judge_error_and_not_a_zero(tests: list[str], fields: dict[str, object]) -> None:
    with pytest.raises(JudgeError, match="which the sandbox does not have|cannot be judged"):
        judge("def f(x):\n    return x * x", tests, **fields)


def test_a_candidate_cannot_make_a_test_unusable() -> None:
    answer = "import builtins\nbuiltins.__import__ = None\ndef f(x):\n    raise ImportError('numpy')"
    tests = ["import math\nassert f(3) == math.floor(9.5)", "assert f(3) == 9"]
    assert judge(answer, tests).reward == 0.0


def test_the_time_limit_is_a_setting() -> None:
    slow = "import time\ndef f(x):\n    end = time.process_time() + 1.2\n    while time.process_time() < end:\n" \
        "        pass\n    return x"  # fmt: skip
    assert judge(slow, ["assert f(3) == 3"], cpu_seconds=3).success
    assert not judge(slow, ["assert f(3) == 3"], cpu_seconds=1).success


def test_a_program_that_sleeps_under_many_tests_fails_within_its_time() -> None:
    tests = [f"value = f({n})\nassert value == {n}" for n in range(13)]
    begin = time.monotonic()
    score = judge("import time\ndef f(x):\n    time.sleep(1000)", tests, judge_seconds=1.0)
    assert (score.reward, score.success) == (0.0, False)
    assert time.monotonic() - begin < 6


def test_a_whole_function_after_a_prompt_without_docstring() -> None:
    fields = {"entry_point": "f", "prompt": "import math\n\ndef f(x):\n"}
    check = "def check(candidate):\n    assert candidate(4) == 2"
    assert judge("def f(x):\n    return math.isqrt(x)", [check], **fields).success
    assert judge("return math.isqrt(x)", [check], **fields).success
    method = "class Solution:\n    def f(self, x):\n"
    assert "        return 1" in complete("return 1", method, "f")


def test_an_unclosed_fence_ends_with_the_answer() -> None:
    assert extract_code("Here:\n```python\nx = 1\ny = 2") == "x = 1\ny = 2"
    assert extract_code("```python\nx = 1```") == "x = 1"
    assert fenced_blocks("```python\nx = 1\n```\nsee ```\n") == [("python", "x = 1")]


def test_fences_are_read_in_linear_time() -> None:
    begin = time.perf_counter()
    fenced_blocks("```python\n" * 40_000)
    fenced_blocks("```a\nb\n" * 40_000)
    fenced_blocks(" " * 200_000 + "```")
    assert time.perf_counter() - begin < 2
