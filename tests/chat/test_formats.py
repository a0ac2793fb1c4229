from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environment import Action, ToolCall
from practicum.errors import UserError
from practicum.registry import make_format

GENERAL = ("hf", "react")
"""Formats that can write a call of any tool."""
CALL = Action(calls=(ToolCall("calculator", {"expression": "1+1"}),))


@pytest.mark.parametrize("name", GENERAL)
def test_what_is_written_reads_back(name: str) -> None:
    form = make_format(name)
    read = form.parse(form.write(CALL, True), True)
    assert read.error is None
    assert read.calls == CALL.calls
    answer = form.parse(form.write(Action(content="42"), True), True)
    assert (answer.content, answer.calls, answer.error) == ("42", (), None)
    command = form.parse(form.write(Action(content="get 1 stone"), False), False)
    assert (command.content, command.error) == ("get 1 stone", None)


def test_thoughts_are_kept_apart() -> None:
    thinking = Action(thought="add them", calls=CALL.calls)
    for name in GENERAL:
        form = make_format(name)
        assert form.parse(form.write(thinking, True), True).thought == "add them"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("hf", "<tool_call>{}", "</tool_call>"),
        ("hf", "<tool_call>{broken}</tool_call>", "not valid JSON"),
        ("hf", '<tool_call>{"name": "x"}</tool_call>', "arguments"),
        ("hf", '<tool_call>{"name": "x", "arguments": [1]}</tool_call>', "an object"),
        ("hf", '<tool_call>{"name": "x", "arguments": {"a": NaN}}</tool_call>', "not valid JSON"),
        ("hf", "   ", "empty"),
        ("react", "just talk", "Action"),
        ("react", "Action: calculator", "Input"),
        ("react", "Action: calculator\nInput: 5", "JSON object"),
        ("react", "Action: calculator\nInput: {", "not valid JSON"),
        ("react", "Action: a\nInput: {}\nAction: b\nInput: {}", "more than one"),
        ("react", "Action: a\nInput: {}\nAnswer: 5", "not both"),
        ("react", "Answer:", "empty"),
    ],
)
def test_broken_replies_say_what_is_wrong(name: str, text: str, message: str) -> None:
    action = make_format(name).parse(text, True)
    assert action.error is not None
    assert message in action.error
    assert action.calls == ()


def test_react_ignores_what_it_imagined_the_world_said() -> None:
    action = make_format("react").parse(
        'Action: calculator\nInput: {"expression": "1"}\nObservation: 7\nAnswer: 7', True
    )
    assert action.error is None
    assert action.calls[0].arguments == {"expression": "1"}


def test_unknown_format_names_the_nearest() -> None:
    with pytest.raises(UserError, match="react"):
        make_format("reakt")


PIECES = st.sampled_from(
    ["<tool_call>", "</tool_call>", '{"name": "calculator", "arguments": {"expression": "1"}}', "Thought:", "Action:",
     "Input:", "Answer:", "\n", "calculator", "{", "}", '"', "NaN", "[", "\\", "\u2028", "é", "Observation:"]
)  # fmt: skip


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES | st.text(max_size=6), max_size=14).map("".join), st.sampled_from(GENERAL), st.booleans())
def test_no_reply_raises_or_calls_with_invented_arguments(text: str, name: str, has_tools: bool) -> None:
    action = make_format(name).parse(text, has_tools)
    if action.error is not None:
        assert action.calls == ()
    for call in action.calls:
        assert has_tools
        assert call.name in text
        assert all(str(key) in text for key in call.arguments)
