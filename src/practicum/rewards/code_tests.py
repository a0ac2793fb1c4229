"""Test cases of programming tasks, and how each is run and judged.

A test case is one of
* `{"input": text, "output": text}`: the program is run with that standard input;
* `{"call": "f(1, 2)", "expected": value}`: the expression's value after the program has run;
* a text of Python with asserts, as in MBPP;
* a text that defines `check(candidate)`, as in HumanEval; the task then has an `entry_point`.

The expected values never enter the candidate's sandbox. An assert of the form `CALL == LITERAL` is split: the call
runs inside, the literal stays here. Other tests run in a second sandbox.
"""

from __future__ import annotations

import ast
import builtins
import copy
import math
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from practicum.sandbox.harness import values

CLASSES_OF_TESTS = {
    "Fraction": "fractions",
    "Decimal": "decimal",
    "Counter": "collections",
    "OrderedDict": "collections",
    "defaultdict": "collections",
    "deque": "collections",
    "namedtuple": "collections",
    "date": "datetime",
    "datetime": "datetime",
    "timedelta": "datetime",
    "isclose": "math",
}
"""Names that tests call without an import, because the program that they were written for had one."""
CAMEL_CASE = re.compile(r"[A-Z][A-Za-z0-9]*")
METHODS_OF_DATA = {name for cls in (str, bytes, list, tuple, dict, set, int, float) for name in dir(cls)}
BUILTINS = frozenset(dir(builtins))


@dataclass(frozen=True)
class CodeTest:
    """One test: the input of the candidate's sandbox, and the judgement of its output outside."""

    inside: Mapping[str, str] | None
    """`input`, or `call` and what is `wanted` of its value; None for a test that needs a sandbox of its own."""
    judge: Callable[[str], bool] | None = None
    """Returns whether the output is right."""
    test: str = ""


def read_cases(test_cases: object, entry_point: str | None = None) -> list[CodeTest]:
    """Parse the test cases of a task; ValueError says which one is malformed."""
    if isinstance(test_cases, str):
        test_cases = [test_cases]
    if not isinstance(test_cases, Sequence) or not test_cases:
        raise ValueError("'test_cases' must be a list with at least one test")
    return [_read_case(case, index, entry_point) for index, case in enumerate(test_cases)]


def _read_case(case: object, index: int, entry_point: str | None) -> CodeTest:
    if isinstance(case, Mapping):
        if set(case) == {"input", "output"} and all(isinstance(text, str) for text in case.values()):
            expected_lines = lines(case["output"])
            return CodeTest({"input": case["input"]}, lambda output: lines(output) == expected_lines)
        if set(case) == {"call", "expected"} and isinstance(case["call"], str):
            return CodeTest({"call": case["call"]}, _judge_value(lambda value: same(value, case["expected"])))
    if isinstance(case, str):
        try:
            return _read_test(case, entry_point)
        except SyntaxError as error:
            raise ValueError(f"test case {index} is not Python: {error.msg}") from None
    raise ValueError(
        f"test case {index} must be {{input, output}}, {{call, expected}}, or a text of Python with asserts"
    )


def _read_test(text: str, entry_point: str | None) -> CodeTest:
    tree = ast.parse(textwrap.dedent(text))
    if any(isinstance(node, ast.FunctionDef) and node.name == "check" for node in tree.body):
        if not entry_point:
            raise ValueError("a test that defines check(candidate) needs the task's 'entry_point'")
        return CodeTest(None, test=f"{ast.unparse(_copy_shared_arguments(tree))}\ncheck(__candidate__)\n")
    if not any(isinstance(node, ast.Assert) for node in ast.walk(tree)):
        raise ValueError("a test written as Python needs an assert")
    if entry_point in BUILTINS:  # the builtin of that name must not stand in for a missing candidate
        return CodeTest(None, test=f"{entry_point} = __candidate__\n{ast.unparse(tree)}")
    if len(tree.body) == 1 and isinstance(tree.body[0], ast.Assert):
        split = _split_assert(tree.body[0].test)
        if split is not None:
            return split
    return CodeTest(None, test=ast.unparse(_copy_shared_arguments(tree)))


def _split_assert(test: ast.expr) -> CodeTest | None:
    """Split an assert of a call and a literal: the call runs inside, the literal stays here. None if it is another."""
    if isinstance(test, ast.Compare) and len(test.ops) == 1:
        left, right, operator = test.left, test.comparators[0], test.ops[0]
        if isinstance(operator, ast.Eq | ast.Is):
            for expression, expected_side in ((left, right), (right, left)):
                if isinstance(operator, ast.Is) and not isinstance(expected_side, ast.Constant):
                    continue
                try:
                    expected = ast.literal_eval(expected_side)
                except ValueError:
                    continue
                if _is_plain_call(expression, truth=isinstance(expected, bool)):
                    return CodeTest({"call": ast.unparse(expression)}, _judge_value(_equals(expected)))
        return None
    expected_truth = not (isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not))
    expression = test if expected_truth else test.operand  # type: ignore[attr-defined]
    if _is_plain_call(expression, truth=True):
        inside = {"call": ast.unparse(expression), "wanted": "truth"}
        return CodeTest(inside, _judge_value(lambda value: value is expected_truth))
    return None


def _is_plain_call(expression: ast.expr, *, truth: bool) -> bool:
    """Return whether an expression only calls a function of the candidate, so that its value is judged here.

    In anything more, isclose(f(2), 1.4) say, part of the judging would run in the sandbox. Unless a truth value is
    expected, the value may be converted, len(f(2)) or list(f(2)), and arguments may be constructed, f(Node(2)).
    """
    while not truth and isinstance(expression, ast.Call) and _is_conversion_call(expression):
        expression = expression.args[0]
    if not isinstance(expression, ast.Call):
        return False
    if isinstance(expression.func, ast.Attribute):  # Solution().f(2)
        receiver = expression.func.value
        if not (
            isinstance(receiver, ast.Call)
            and _is_constructor_call(receiver)
            and not receiver.args
            and not receiver.keywords
        ):
            return False
    elif not isinstance(expression.func, ast.Name) or (truth and expression.func.id in BUILTINS):
        return False
    within = [
        node
        for part in (*expression.args, *expression.keywords)
        for node in ast.walk(part)
        if isinstance(node, ast.Call)
    ]
    return not within if truth else all(_is_constructor_call(call) for call in within)


def _is_conversion_call(call: ast.Call) -> bool:
    by_name = isinstance(call.func, ast.Name) and call.func.id in BUILTINS
    return by_name and len(call.args) == 1 and not call.keywords and isinstance(call.args[0], ast.Call)


def _is_constructor_call(call: ast.Call) -> bool:
    return isinstance(call.func, ast.Name) and call.func.id[0].isupper()


def _equals(expected: object) -> Callable[[object], bool]:
    return lambda value: bool(value == expected)


def _judge_value(right: Callable[[object], bool]) -> Callable[[str], bool]:
    def judge(output: str) -> bool:
        try:
            return right(values.loads(output))
        except (ValueError, RecursionError, OverflowError):  # no output, not a value, or one that is too large
            return False

    return judge


def lines(text: str) -> list[str]:
    """Split a text into lines for comparison: trailing blanks and trailing empty lines do not count."""
    return [line.rstrip() for line in text.rstrip().splitlines()]


def same(actual: object, expected: object) -> bool:
    """Return whether two values are equal as JSON: lists equal tuples, keys are strings, floats to nine digits."""
    if isinstance(expected, float) and isinstance(actual, int | float):
        return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12) or (
            actual != actual and expected != expected
        )
    if isinstance(expected, int) and isinstance(actual, float):
        return math.isclose(actual, expected, rel_tol=1e-9, abs_tol=1e-12)
    if isinstance(expected, list | tuple):
        if not isinstance(actual, list | tuple) or len(actual) != len(expected):
            return False
        return all(same(first, second) for first, second in zip(actual, expected, strict=True))
    if isinstance(expected, Mapping):
        if not isinstance(actual, Mapping) or len(actual) != len(expected):
            return False
        by_name = {str(key): value for key, value in actual.items()}
        return all(str(key) in by_name and same(by_name[str(key)], value) for key, value in expected.items())
    return bool(actual == expected)


def called_names(cases: Sequence[CodeTest]) -> set[str]:
    """Return the names of the functions that the tests call; builtins only if there are no others."""
    names = set()
    for case in cases:
        try:
            tree = ast.parse((case.inside or {}).get("call", case.test))
        except (SyntaxError, ValueError):
            continue
        names |= {n.func.id for n in ast.walk(tree) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)}
    return names - BUILTINS or names


class _CopySharedArguments(ast.NodeTransformer):
    """Copies an argument that the same statement uses once more: in `f(x) == sorted(x)` a call must not change x."""

    def visit_stmt(self, node: ast.stmt) -> ast.AST:
        counts: dict[str, int] = {}
        for inner in ast.walk(node):
            if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load):
                counts[inner.id] = counts.get(inner.id, 0) + 1
        for inner in ast.walk(node):
            if isinstance(inner, ast.Call) and isinstance(inner.func, ast.Name) and inner.func.id not in BUILTINS:
                inner.args = [self._copied(argument, counts) for argument in inner.args]
        return node

    visit_Assert = visit_Assign = visit_Expr = visit_stmt

    @staticmethod
    def _copied(argument: ast.expr, counts: Mapping[str, int]) -> ast.expr:
        if not isinstance(argument, ast.Name) or counts.get(argument.id, 0) < 2:
            return argument
        copied = ast.parse("__import__('copy').deepcopy(x)", mode="eval").body
        assert isinstance(copied, ast.Call)
        copied.args = [argument]
        return copied


def _copy_shared_arguments(tree: ast.Module) -> ast.Module:
    changed = _CopySharedArguments().visit(copy.deepcopy(tree))
    assert isinstance(changed, ast.Module)
    return changed


def imports_for(texts: Iterable[str], entry_point: str | None) -> str:
    """Return import lines for what tests use without defining it: modules of the standard library, `Fraction`, `date`.

    They must not come from the candidate: a test compares with what they return.
    """
    lines_needed: dict[str, None] = {}
    for text in texts:
        tree = _parse(text)
        defined = {name for node in ast.walk(tree) for name in _defined_names(node)} | BUILTINS | {entry_point}
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id=name)) if name in sys.stdlib_module_names and name not in defined:
                    lines_needed[f"import {name}"] = None
                case ast.Call(func=ast.Name(id=name)) if name in CLASSES_OF_TESTS and name not in defined:
                    lines_needed[f"from {CLASSES_OF_TESTS[name]} import {name}"] = None
    return "\n".join(lines_needed)


def _defined_names(node: ast.AST) -> list[str]:
    match node:
        case ast.Import(names=names) | ast.ImportFrom(names=names):
            return [(alias.asname or alias.name).partition(".")[0] for alias in names]
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return [name]
        case ast.arg(arg=name):
            return [name]
        case ast.Name(id=name, ctx=ast.Store()):
            return [name]
    return []


def imported_modules(texts: Iterable[str]) -> set[str]:
    """Return the modules that tests need: those imported at the top level, not within a `try`."""
    names: set[str] = set()
    for text in texts:
        for node in _parse(text).body:
            if isinstance(node, ast.Import):
                names |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                names.add(node.module.partition(".")[0])
    return names


def class_names(test: str, prompt: str = "") -> list[str]:
    """Return the names that a test uses as classes: it reads attributes of what they create, or asks `isinstance`.

    A method of data (`startswith`, `pop`) says nothing, unless the name is written like that of a class.
    """
    tree = _parse(test)
    names = {node.name for node in _parse(prompt).body if isinstance(node, ast.ClassDef)}
    created: dict[str, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.Assign(targets=[ast.Name(id=variable)], value=ast.Call(func=ast.Name(id=name))):
                created[variable] = name
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, ast.Name(id=name)]):
                names.add(name)
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Call(func=ast.Name(id=name)), attr=attribute):
                pass
            case ast.Attribute(value=ast.Name(id=variable), attr=attribute) if variable in created:
                name = created[variable]
            case _:
                continue
        if attribute not in METHODS_OF_DATA or CAMEL_CASE.fullmatch(name):
            names.add(name)
    return sorted(names - BUILTINS)


def _parse(text: str) -> ast.Module:
    try:
        return ast.parse(text)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return ast.Module([], [])
