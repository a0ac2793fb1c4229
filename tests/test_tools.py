from __future__ import annotations

import asyncio
import time
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.tools.base import tool
from practicum.tools.calculator import calculator, evaluate


@tool()
def greet(name: str, times: int = 1, loud: bool = False) -> str:
    """Say hello.

    Args:
        name: who to greet
        times: how often
    """
    if times < 0:
        raise ValueError("times must not be negative")
    return " ".join([f"hello {name}"] * times)


def test_schema_from_signature_and_docstring() -> None:
    function = greet.schema["function"]
    assert function["name"] == "greet"
    assert function["description"] == "Say hello."
    assert function["parameters"]["properties"]["name"] == {"type": "string", "description": "who to greet"}
    assert function["parameters"]["properties"]["times"]["type"] == "integer"
    assert function["parameters"]["required"] == ["name"]


def call(arguments: dict[str, object]) -> tuple[str, bool]:
    result = asyncio.run(greet.call(arguments))
    return result.text, result.failed


def test_calls_and_what_can_go_wrong() -> None:
    assert call({"name": "Ada", "times": 2}) == ("hello Ada hello Ada", False)
    assert call({}) == ("Error: greet needs the argument 'name'.", True)
    assert call({"nam": "Ada"}) == ("Error: greet has no argument 'nam'. Did you mean 'name'?", True)
    assert call({"name": 5}) == ("Error: greet: argument 'name' must be of type string, got int.", True)
    assert call({"name": "Ada", "times": True})[1]
    assert call({"name": "Ada", "times": -1}) == ("Error: times must not be negative", True)


def test_long_observations_are_cut() -> None:
    @tool(max_length=10)
    def shout() -> str:
        """Shout."""
        return "a" * 50

    assert asyncio.run(shout.call({})).text == "a" * 10 + " …(cut)"


def test_a_tool_that_hangs_meets_its_deadline() -> None:
    @tool(timeout=0.05)
    def sleep() -> str:
        """Sleep."""
        time.sleep(0.4)
        return "woke"

    with pytest.raises(TimeoutError, match="'sleep' did not answer within 0.05 s"):
        asyncio.run(sleep.call({}))


def test_calculator_golden() -> None:
    for expression, expected in [("(12+7)*3", "57"), ("7/2", "3.5"), ("2**10", "1024"), ("-3 + 1", "-2"), ("7//2", "3"),
                                 ("6 × 7", "42"), ("1/3", "0.3333333333")]:  # fmt: skip
        assert asyncio.run(calculator.call({"expression": expression})).text == expected


@pytest.mark.parametrize(
    "expression", ["__import__('os')", "1/0", "9**9**9", "a+1", "1 if 1 else 2", "", "(((", "10**60", "1e400", "True+1"]
)
def test_calculator_refuses(expression: str) -> None:
    result = asyncio.run(calculator.call({"expression": expression}))
    assert result.failed
    assert result.text.startswith("Error:")


@settings(max_examples=200, deadline=None)
@given(st.integers(-999, 999), st.integers(-999, 999), st.sampled_from("+-*"))
def test_calculator_agrees_with_python(a: int, b: int, operator: str) -> None:
    expected = {"+": a + b, "-": a - b, "*": a * b}[operator]
    assert evaluate(f"({a}){operator}({b})") == Fraction(expected)


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=60))
def test_calculator_never_raises_anything_else(text: str) -> None:
    asyncio.run(calculator.call({"expression": text}))
