from __future__ import annotations

import asyncio
import time
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum import registry
from practicum.environment import Action, Step, ToolCall
from practicum.environments.tool_agent import ToolEnvironment
from practicum.errors import UserError
from practicum.task import Task
from practicum.tools.base import ToolResult, tool
from practicum.tools.calculator import calculator, evaluate
from practicum.tools.errors import ToolFailure


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


@tool()
def book(
    room: Literal["small", "large"],
    days: list[int],
    guest: str | None = None,
    budget: float | str = 0,
    function: dict[str, int] | None = None,
    extra=None,
) -> str:
    """Book a room
    for some days.

    More about it.

    Args:
        room: which
    """
    return f"{room} {days} {guest} {budget} {function} {extra}"


def test_schemas_of_richer_signatures() -> None:
    function = book.schema["function"]
    assert function["description"] == "Book a room for some days."
    assert function["parameters"]["required"] == ["room", "days"]
    assert function["parameters"]["properties"] == {
        "room": {"type": "string", "enum": ["small", "large"], "description": "which"},
        "days": {"type": "array", "items": {"type": "integer"}},
        "guest": {"type": ["string", "null"]},
        "budget": {"type": ["number", "string"]},
        "function": {"type": ["object", "null"]},
        "extra": {},
    }


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"room": "small", "days": [1]}, "small [1] None 0 None None"),
        ({"room": "small", "days": [], "guest": None, "function": {"a": 1}}, "small [] None 0 {'a': 1} None"),
        ({"room": "small", "days": [1], "extra": [None, 2.5]}, "small [1] None 0 None [None, 2.5]"),
        ({"room": "huge", "days": [1]}, "Error: book: argument 'room' must be one of 'small', 'large'."),
        ({"room": 1, "days": [1]}, "Error: book: argument 'room' must be of type string, got int."),
        ({"room": "small", "days": 1}, "Error: book: argument 'days' must be of type array, got int."),
        ({"room": "small", "days": [1, "2"]}, "Error: book: argument 'days' [1] must be of type integer, got str."),
        ({"room": "small", "days": [True]}, "Error: book: argument 'days' [0] must be of type integer, got bool."),
        ({"room": "small", "days": [1], "budget": None},
         "Error: book: argument 'budget' must be of type number or string, got NoneType."),
    ],
)  # fmt: skip
def test_arguments_are_held_to_the_signature(arguments: dict[str, Any], message: str) -> None:
    result = asyncio.run(book.call(arguments))
    assert (result.text, result.failed) == (message, message.startswith("Error"))


def test_signatures_that_cannot_be_described_are_refused() -> None:
    with pytest.raises(TypeError, match="cannot be described"):
        tool()(lambda *names: "")
    with pytest.raises(TypeError, match="cannot be described"):
        tool()(lambda **names: "")


def giving(value: Any, **options: Any) -> ToolResult:
    @tool(**options)
    def give() -> Any:
        """Give."""
        if isinstance(value, Exception):
            raise value
        return value

    return asyncio.run(give.call({}))


@pytest.mark.parametrize(
    ("value", "result"),
    [
        ("text", ToolResult("text")),
        (3.5, ToolResult("3.5")),
        (None, ToolResult("None")),
        ({"a": ["é"]}, ToolResult('{"a": ["é"]}')),
        ([1, None], ToolResult("[1, null]")),
        ({"observation": "seen", "score": 2}, ToolResult("seen", info={"score": 2})),
        ({"observation": {"a": 1}}, ToolResult('{"a": 1}')),
        (ValueError("no such thing"), ToolResult("Error: no such thing", failed=True)),
        (ValueError(), ToolResult("Error: ValueError", failed=True)),
        (KeyError("name"), ToolResult("Error: KeyError: 'name'", failed=True)),
        (StopIteration("over"), ToolResult("Error: StopIteration: over", failed=True)),
        (TimeoutError("the site was slow"), ToolResult("Error: the site was slow", failed=True)),
    ],
)
def test_what_a_call_gives(value: Any, result: ToolResult) -> None:
    gave = giving(value)
    assert (gave.text, gave.failed) == (result.text, result.failed)
    if isinstance(value, Exception) and not isinstance(value, StopIteration):  # a thread cannot hand that one over
        assert f"({Path(__file__).relative_to(Path.cwd())}:" in gave.info["exception"]  # where it was raised
        assert gave.info["exception"].endswith(" in give)")
    else:
        assert gave.info == result.info


def test_a_wrong_argument_of_a_builtin_tool_is_no_exception_to_record() -> None:
    assert asyncio.run(calculator.call({"expression": "1/0"})) == ToolResult("Error: division by zero", failed=True)


def test_a_successful_call_may_finish_and_a_failed_one_does_not() -> None:
    assert giving("done", finish=True).finish
    assert not giving(ValueError("no"), finish=True).finish


@pytest.mark.parametrize("value", ["a" * 50, {"observation": "a" * 50}, ValueError("a" * 50)])
def test_long_observations_are_cut(value: Any) -> None:
    text = giving(value, max_length=10).text
    assert text.endswith(" …(cut)")
    assert len(text) == 10 + len(" …(cut)")


def test_what_ends_the_episode_is_not_cut() -> None:
    assert giving("a" * 50, max_length=10, finish=True) == ToolResult("a" * 50, finish=True)


def test_a_broken_world_and_a_wrong_setting_are_not_observations() -> None:
    with pytest.raises(ToolFailure, match="the simulator is gone"):
        giving(ToolFailure("the simulator is gone"))
    with pytest.raises(UserError, match="set it right"):
        giving(UserError("set it right"))


@pytest.mark.parametrize("blocking", [True, False])
def test_a_tool_that_hangs_meets_its_deadline(blocking: bool) -> None:
    @tool("sleep", timeout=0.05)
    def block() -> str:
        """Sleep."""
        time.sleep(0.4)
        return "woke"

    @tool("sleep", timeout=0.05)
    async def wait() -> str:
        """Sleep."""
        await asyncio.sleep(0.4)
        return "woke"

    with pytest.raises(TimeoutError, match="'sleep' did not answer within 0.05 s"):
        asyncio.run((block if blocking else wait).call({}))


# -- in an environment ------------------------------------------------------------------------


def steps(world: ToolEnvironment, *actions: Action) -> list[Step]:
    async def play() -> list[Step]:
        await world.reset(Task("t", "tools", "train", {"question": "?", "answer": "4"}), 0)
        return [await world.step(action) for action in actions]

    return asyncio.run(play())


def calls(name: str, **arguments: Any) -> Action:
    return Action(calls=(ToolCall(name, arguments),))


def test_calls_that_cannot_be_made_are_answered() -> None:
    world = ToolEnvironment(["calculator", "answer"], "math_reward")
    both = Action(calls=(ToolCall("calculator", {"expression": "1+1"}), ToolCall("nothing", {})))
    first, second, third, last = steps(
        world, calls("calculatr"), calls("calculator", x=1), both, calls("answer", answer="4")
    )
    assert first.observation.messages[0].content == "Error: there is no tool 'calculatr'. Did you mean 'calculator'?"
    assert "has no argument 'x'" in second.observation.messages[0].content
    assert third.observation.messages[0].content == "2"
    assert "there is no tool 'nothing'" in third.observation.messages[1].content
    assert (last.terminated, last.reward) == (True, 1.0)


def test_a_long_answer_is_judged_whole() -> None:
    long = "so " * 1000 + "4"
    (step,) = steps(ToolEnvironment(["answer"], "math_reward"), calls("answer", answer=long))
    assert (step.terminated, step.reward) == (True, 1.0)


def test_what_a_tool_tells_besides_is_recorded(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from practicum.tools.base import tool\n@tool()\n"
        "def look() -> dict:\n    '''Look.'''\n    return {'observation': 'a door', 'room': 3}\n"
    )
    (step,) = steps(ToolEnvironment([f"{file}:look"], "math_reward"), calls("look"))
    assert step.observation.messages[0].content == "a door"
    assert step.info == {"tools": [{"name": "look", "room": 3}]}


def test_two_tools_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="Two of the tools are named 'calculator'"):
        ToolEnvironment(["calculator", "answer", "calculator"], "math_reward")


@pytest.mark.parametrize("has", ["python_executor", "code_interpreter"])
def test_both_names_of_the_executor_reach_it(has: str) -> None:
    world = ToolEnvironment([has], "math_reward")
    assert list(world.tools) == [has]
    results = steps(world, calls("python_executor", code="print(6*7)"), calls("code_interpreter", code="print(6*7)"))
    assert [step.observation.messages[0].content for step in results] == ["42", "42"]


def test_other_names_are_of_tools_that_are_the_same() -> None:
    for names in registry.SAME_TOOL:
        first, *others = map(registry.tool, names)
        assert all(other.function is first.function for other in others)
    assert registry.other_names("calculator") == ()


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
