from __future__ import annotations

import pytest

from practicum import registry
from practicum.errors import JudgeError, UserError
from practicum.rewards.base import Score
from practicum.rewards.code_answer import complete, extract_code
from practicum.rewards.code_tests import lines, read_cases, same
from practicum.sandbox import base
from practicum.sandbox.base import Sandbox
from practicum.sandbox.harness import values
from practicum.sandbox.limits import SandboxError
from practicum.task import Task

SQUARE = "def f(x):\n    return x * x"
CALLS = [{"call": "f(3)", "expected": 9}, {"call": "f(-2)", "expected": 4}]
STREAMS = [{"input": "3\n4\n", "output": "7"}, {"input": "10\n-4\n", "output": "6\n"}]
ASSERTS = ["assert f(3) == 9", "assert f(-2) == 4"]
BESIDE = ["assert isclose(f(3), 9.0)", "for n in range(20):\n    assert f(n) == n * n"]
CHECK = "def check(candidate):\n    assert candidate(3) == 9\n    assert all(candidate(n) == n * n for n in range(9))"


@pytest.fixture(autouse=True, scope="module")
def _needs_a_sandbox() -> None:
    try:
        base.current()
    except UserError as error:
        pytest.skip(f"isolation is NOT tested: {error}")


def judge(answer: str | None, test_cases: object, **fields: object) -> Score:
    task = Task("t", "code", "train", {"question": "?", "test_cases": test_cases, **fields})
    return registry.reward("code_reward").score(task, answer, ())


@pytest.mark.parametrize(
    ("answer", "cases", "fields"),
    [
        (SQUARE, CALLS, {}),
        (f"Here:\n```python\n{SQUARE}\n```", CALLS, {}),
        ("print(int(input()) + int(input()))", STREAMS, {}),
        ("import sys\nif __name__ == '__main__':\n    print(sum(map(int, sys.stdin)))\n    sys.exit()", STREAMS, {}),
        (SQUARE, ASSERTS, {}),
        (SQUARE, [*ASSERTS, *BESIDE], {}),
        (SQUARE, CHECK, {"entry_point": "f"}),
        ("    return x * x", [CHECK], {"entry_point": "f", "prompt": 'def f(x):\n    """The square."""\n'}),
        ("return x * x", [CHECK], {"entry_point": "f", "prompt": 'def f(x):\n    """The square."""\n'}),
        (SQUARE, [CHECK], {"entry_point": "f", "prompt": 'import math\ndef f(x):\n    """The square."""\n'}),
        ("def up(n):\n    return n.value + 1", ["assert up(node) == 6"],
         {"test_setup_code": "class Node:\n    value = 5\nnode = Node()"}),
        ("def f(x):\n    return x > 2", ["assert f(3)", "assert not f(1)", "assert f(3) is True"], {}),
        ("def f(x):\n    raise ValueError(x)",
         ["try:\n    f(1)\n    assert False\nexcept ValueError as error:\n    assert str(error) == '1'"], {}),
        ("def f(x):\n    return {1: (2, 3)}, {'a', 'b'}, 1.5, None, b'x', float('inf')",
         ["assert f(0) == ({1: (2, 3)}, {'b', 'a'}, 1.5, None, b'x', 1e999)"], {}),
    ],
)  # fmt: skip
def test_right_programs_pass(answer: str, cases: list[object], fields: dict[str, object]) -> None:
    score = judge(answer, cases, **fields)
    count = 1.0 if isinstance(cases, str) else float(len(cases))
    assert (score.reward, score.success) == (1.0, True)
    assert score.components == {"passed": count, "cases": count, "compiled": 1.0}


def test_the_reward_is_the_share_that_passes() -> None:
    score = judge("def f(x):\n    return 9", [*CALLS, *ASSERTS, BESIDE[0], STREAMS[0]])
    assert (score.reward, score.success) == (3 / 6, False)
    assert score.components == {"passed": 3.0, "cases": 6.0, "compiled": 1.0}


@pytest.mark.parametrize("answer", [None, "", "   ", "nothing", "def f(x:", "def g(x):\n    return 9", "1/0", "\x00"])
def test_answers_that_are_no_program_get_nothing(answer: str | None) -> None:
    score = judge(answer, [*CALLS, *ASSERTS, BESIDE[0]])
    assert (score.reward, score.success, score.components["passed"]) == (0.0, False, 0.0)


def test_one_case_that_hangs_does_not_take_the_others_along() -> None:
    code = "def f(x):\n    while x == 3:\n        pass\n    return x * x"
    assert judge(code, CALLS).components["passed"] == 1.0


def test_a_case_starts_from_nothing() -> None:
    code = "seen = []\ndef f(x):\n    seen.append(x)\n    return len(seen)"
    assert judge(code, [{"call": "f(1)", "expected": 1}, {"call": "f(2)", "expected": 1}]).success


HIDDEN = 918273645
CHEATS = {
    "exits at once": "import sys\nsys.exit(0)",
    "exits harder": "import os\nos._exit(0)",
    "exits inside the call": "def f(*given):\n    import os\n    os._exit(0)",
    "prints words of the harness": (
        "print('compiled')\nprint('done \"9\"')\nprint('pass')\ndef f(*given):\n    print('done \"9\"')"
    ),
    "writes to every descriptor": (
        "import os\nfor number in range(64):\n    for text in (b'done \"9\"\\n', b'9', b'[\"value\", 9]\\n'):\n"
        "        try:\n"
        "            os.write(number, text)\n        except OSError:\n            pass\ndef f(*given):\n    os._exit(0)"
    ),
    "returns what is equal to everything": (
        "class Any:\n    def __eq__(self, other):\n        return True\n    def __hash__(self):\n        return 1\n"
        "    def __bool__(self):\n        return True\n    def __float__(self):\n        return 9.0\n"
        "def f(*given):\n    return Any()"
    ),
    "returns a number that is equal to everything": (
        "class Any(int):\n    def __eq__(self, other):\n        return True\n    __hash__ = int.__hash__\n"
        "def f(*given):\n    return Any(-1)"
    ),
    "overwrites builtins": (
        "import builtins\nbuiltins.eval = lambda *given: 9\nbuiltins.exec = lambda *given: None\n"
        "builtins.AssertionError = type('Never', (Exception,), {})\nbuiltins.all = builtins.any = lambda *given: True\n"
        "def f(*given):\n    return []"
    ),
    "overwrites comparing and judges itself": (
        "class Any(float):\n    def __eq__(self, other):\n        return True\n    __hash__ = None\n"
        "    def __sub__(self, other):\n        return self\n    def __abs__(self):\n        return self\n"
        "    __lt__ = __eq__\nimport math\nmath.isclose = all = lambda *given: True\n"
        "def f(*given):\n    return Any(0)"
    ),
    "overwrites comparing": (
        "import math\nmath.isclose = lambda *given, **named: True\nisclose = check = f = lambda *given: True"
    ),
    "replaces the harness's functions": (
        "import sys\nfor frame in sys._current_frames().values():\n    while frame:\n"
        "        for name in ('dumps', 'quoted'):\n"
        "            if name in frame.f_globals:\n                frame.f_globals[name] = lambda *given: '9'\n"
        "        frame = frame.f_back\ndef f(*given):\n    return 'x'"
    ),
    "kills its parent": "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)\ndef f(*given):\n    return None",
    "raises what tests catch": "def f(*given):\n    raise StopIteration",
    "looks for what is expected": f"""
import gc, os, re, sys
def everything():
    frame = sys._getframe()
    while frame:
        yield repr(frame.f_locals)
        yield repr(frame.f_globals)
        frame = frame.f_back
    for thing in gc.get_objects():
        try:
            yield repr(thing)
        except Exception:
            pass
    for folder, _, names in os.walk('/tmp'):
        for name in names:
            yield open(os.path.join(folder, name), errors='replace').read()
    for number in range(3, 64):
        try:
            os.lseek(number, 0, 0)
            yield os.read(number, 65536).decode(errors='replace')
        except OSError:
            pass
    for name in ('self', '1', str(os.getppid())):
        for file in ('cmdline', 'environ', 'maps'):
            try:
                yield open(f'/proc/{{name}}/{{file}}').read()
            except OSError:
                pass
def f(*given):
    found = [int(number) for text in everything() for number in re.findall(r"[0-9]{{9}}", text)]
    return next((number for number in found if number % 10007 == {HIDDEN % 10007}), None)
""",
}
TESTS = [
    {"call": "f(3)", "expected": HIDDEN},
    {"input": "3", "output": str(HIDDEN)},
    f"assert f(3) == {HIDDEN}",
    f"assert isclose(f(3), {HIDDEN})",
    f"assert isclose(f(3), {HIDDEN}) == True",
    f"assert all(abs(f(n) - {HIDDEN}) < 1 for n in (3, 4)) == True",
    f"assert (f(3) == {HIDDEN}) is True",
    f"value = f(3)\nassert value == {HIDDEN}",
    f"def check(candidate):\n    assert candidate(3) == {HIDDEN}",
]


@pytest.mark.parametrize("cheat", CHEATS)
def test_cheats_gain_nothing(cheat: str) -> None:
    score = judge(CHEATS[cheat], TESTS, entry_point="f")
    assert (score.reward, score.success, score.components["passed"]) == (0.0, False, 0.0)


def test_the_same_tests_can_be_passed_and_a_leak_would_be_found() -> None:
    """So the cheats failed for what they are."""
    leaking = [{"call": f"f({HIDDEN})", "expected": HIDDEN}]
    assert judge(CHEATS["looks for what is expected"], leaking).success
    assert judge(f"print({HIDDEN})\ndef f(x):\n    return {HIDDEN}", TESTS, entry_point="f").success


def test_a_sandbox_that_cannot_run_is_the_judge_s_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*given: object, **named: object) -> None:
        raise SandboxError("the sandbox did not start: no room")

    monkeypatch.setattr(Sandbox, "run_sync", broken)
    with pytest.raises(JudgeError, match="no room"):
        judge(SQUARE, CALLS)

    def refused() -> None:
        raise UserError("none works here: install bubblewrap")

    monkeypatch.setattr(base, "current", refused)
    with pytest.raises(JudgeError, match="install bubblewrap"):
        judge(SQUARE, CALLS)


@pytest.mark.parametrize(
    ("cases", "message"),
    [
        ([], "at least one test"),
        ([5], "test case 0 must be"),
        ([{"input": "3"}], "test case 0 must be"),
        (["f(3) == 9"], "needs an assert"),
        (["assert f(3) =="], "not Python"),
        ([CHECK], "'entry_point'"),
    ],
)
def test_tests_that_cannot_be_read_are_the_judge_s_error(cases: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        read_cases(cases)
    with pytest.raises(JudgeError, match=message):
        judge(SQUARE, cases)


def test_tests_that_pass_objects_over_the_wall_are_the_judge_s_error() -> None:
    with pytest.raises(JudgeError, match="pass a Node to f, and only data can cross"):
        judge(SQUARE, ["class Node: pass\nassert f(Node()) != 1"])


def test_what_stays_outside() -> None:
    """Of an assert with a literal on one side, only the other side goes in."""
    for text in ("assert f(1) == 5", "assert 5 == f(1)", "assert f(1) is None", "assert not f(1)", "assert f(1)",
                 "assert f(1) == True", "assert sorted(f([2, 1])) == [1, 2], 'sorted'", "assert sum(1, 2) == 5",
                 "assert Solution().f(1) == True", "assert f([Node(1)], 2) == 5"):  # fmt: skip
        (case,) = read_cases([text])
        assert case.inside is not None, text
        assert case.inside["call"] in text
        assert "5" not in case.inside["call"]
    for text in ("assert isclose(f(1), 5)", "assert f(1) in (5, 6)", "assert f(1) == g(1)", "assert abs(f(1) - 5) < 1",
                 "assert abs(-1)", "x = 1\nassert f(x) == 5", "assert isclose(f(1), 5) == True",
                 "assert (f(1) == 5) is True", "assert all(f(n) == 5 for n in (1, 2)) == True", "assert f(1)[0] == 5",
                 "assert int(isclose(f(1), 5)) == 1", "assert abs(f(1) - 5) == 0", "assert Solution(5).f() == True",
                 "assert f(1).startswith('5') == True", "assert isclose(Find(1), 5) == True"):  # fmt: skip
        (case,) = read_cases([text])
        assert case.inside is None, text


def test_objects_and_generators_of_the_candidate_s_own() -> None:
    pairs = "class Pair:\n    def __init__(self, a):\n        self.a = a\ndef f(pairs):\n    return pairs[0].a"
    assert judge(pairs, ["assert f([Pair(5)]) == 5"]).success
    assert judge("def f(n):\n    yield from range(n)", ["assert list(f(3)) == [0, 1, 2]"]).success
    method = "class Solution:\n    def f(self, n):\n        return n > 2"
    assert judge(method, ["assert Solution().f(3)", "assert Solution().f(1) == False"]).success


@pytest.mark.parametrize(
    "test",
    [
        "def check(candidate):\n    assert candidate([1, 2]) == sum([1, 2]) + 1",
        "assert sum([1, 2]) == 4",
        "for n in range(3):\n    assert sum([n]) == n + 1",
    ],
)
def test_a_function_named_like_a_builtin_is_the_one_that_is_tested(test: str) -> None:
    right = "def sum(numbers):\n    total = 1\n    for n in numbers:\n        total += n\n    return total"
    assert judge(right, [test], entry_point="sum").success
    assert not judge("def sum(numbers):\n    return 99", [test], entry_point="sum").success
    own = test.replace(" + 1", "").replace("== 4", "== 3")
    assert not judge("x = 1", [own], entry_point="sum").success
    assert not judge("def sum(numbers):\n    return 99", [own], entry_point="sum").success


@pytest.mark.parametrize("test", [{"call": "f(3)", "expected": 0.5}, {"call": "f(3)", "expected": [0.5]},
                                  "assert f(3) == 0.5", "assert isclose(f(3), 0.5)"])  # fmt: skip
def test_a_number_too_large_to_compare_is_a_wrong_one(test: object) -> None:
    assert judge("def f(x):\n    return 10**400", [test]).reward == 0.0
    assert judge("def f(x):\n    return [10**400]", [test]).reward == 0.0


@pytest.mark.parametrize(
    "answer",
    [
        f"```python\n{SQUARE}\n```\nExample usage:\n```python\nprint(f(3))\n```",
        f"```py\n{SQUARE}\n```\nOutput:\n```\n9\n```",
        f"```\n{SQUARE}\n```\nOutput:\n```\n9\n```",
        f"```python\n{SQUARE}\n```\n".replace("\n", "\r\n"),
        SQUARE.replace("\n", "\r\n"),
    ],
)
def test_what_stands_around_the_program_does_no_harm(answer: str) -> None:
    assert judge(answer, [*CALLS, *ASSERTS]).success
    assert judge(answer, [CHECK], entry_point="f").success


def test_comparing() -> None:
    assert same((1, [2]), [1, [2]])
    assert same({1: 2.0}, {"1": 2})
    assert same(0.1 + 0.2, 0.3)
    assert same(float("nan"), float("nan"))
    assert not same([1], [1, 2])
    assert not same("1", 1)
    assert not same({1: 2}, {"1": 3})
    assert not same(None, 0)
    assert not same(1.001, 1)
    assert lines("a \nb\n\n") == ["a", "b"]
    assert lines(" a") != lines("a")


def test_where_the_code_is() -> None:
    assert extract_code("x = 1") == "x = 1"
    assert extract_code("a\n```python\nx = 1\n```\nb\n```python\nx = 2\n```") == "x = 2"
    assert extract_code("a\n```python3\nx = 1\n```\nb\n```\nx = 2\n```") == "x = 1"
    assert extract_code("```\nx = 1\n```\n```text\n1\n```") == "x = 1"
    assert extract_code("```code\nx = 1\n```") == "x = 1"
    several = "```python\ndef f():\n    1\n```\n```python\ndef f():\n    2\n```\n```python\nf()\n```"
    assert extract_code(several, ["f"]) == "def f():\n    2"
    assert extract_code(several, ["g"]) == "f()"
    assert extract_code("  ```py\n  x = 1\n  ```") == "x = 1"
    assert extract_code("```python\nx = 1") == "x = 1"
    assert complete("x", "", "f") == "x"


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        0,
        -5,
        2**80,
        1.5,
        float("inf"),
        'é\ud800"\\\n',
        b"\x00\xff",
        2j,
        [],
        (1, [2]),
        {1, 2},
        {"a": {1: (2,)}},
    ],
    ids=repr,
)
def test_data_crosses_as_it_is(value: object) -> None:
    back = values.loads(values.dumps(value))
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize(
    "value", [object(), len, iter([]), range(3), [object()], Exception()], ids=lambda v: type(v).__name__
)
def test_what_is_more_than_data_does_not_cross(value: object) -> None:
    with pytest.raises(values.NotData):
        values.dumps(value)


@pytest.mark.parametrize(
    "text", ["", "{", "[" * 100_000, '{"set": [[]]}', '{"evil": []}', '{"a": 1, "b": 2}', '{"dict": 5}']
)
def test_texts_that_are_no_value(text: str) -> None:
    with pytest.raises(ValueError, match="value|kind|Expecting|unpack"):
        values.loads(text)
