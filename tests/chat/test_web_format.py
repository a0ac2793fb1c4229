"""The grammar of web actions: what is written reads back, what is not an action is refused in one sentence."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.chat.formats.web import web_tool
from practicum.chat.formats.web_actions import (
    BUTTONS,
    HALO_ACTIONS,
    MODIFIERS,
    WEB_ACTIONS,
    WebActionError,
    checked_call,
    parse_action,
    write_action,
)
from practicum.environment import Action, ToolCall
from practicum.errors import UserError
from practicum.registry import make_format

TEXTS = st.text(st.characters(exclude_categories=["Cs"]), max_size=40)
OF_KIND: dict[str, st.SearchStrategy[Any]] = {
    "id": st.from_regex(r"[a-z]{0,2}[0-9]{1,4}", fullmatch=True),
    "text": TEXTS,
    "nonempty": TEXTS.filter(lambda text: bool(text.strip())),
    "key": st.sampled_from(("Enter", "ControlOrMeta+a", "#", '"', "'")),
    "texts": TEXTS | st.lists(TEXTS, min_size=1, max_size=4),
    "number": st.integers(-9999, 9999) | st.floats(-9999, 9999),
    "index": st.integers(0, 99),
    "milliseconds": st.integers(0, 10_000),
    "flag": st.booleans(),
    "button": st.sampled_from(BUTTONS),
    "modifiers": st.lists(st.sampled_from(MODIFIERS), max_size=2),
}


@st.composite
def actions(draw: st.DrawFn) -> ToolCall:
    name = draw(st.sampled_from(sorted(WEB_ACTIONS)))
    arguments = {
        parameter.name: draw(OF_KIND[parameter.kind])
        for parameter in WEB_ACTIONS[name].parameters
        if parameter.required or draw(st.booleans())
    }
    return checked_call(name, arguments)


@settings(max_examples=500, deadline=None)
@given(actions())
def test_what_is_written_reads_back(call: ToolCall) -> None:
    assert parse_action(write_action(call)) == call


@settings(max_examples=500, deadline=None)
@given(st.text(max_size=60) | st.builds("{}({}".format, st.sampled_from(sorted(WEB_ACTIONS)), st.text(max_size=40)))
def test_garbage_raises_nothing_but_the_error_of_the_parser(text: str) -> None:
    output = make_format("web").parse(text, True)
    try:
        call = parse_action(text)
    except WebActionError:
        assert output.error is None or re.fullmatch(r"[^\n]+[.?]", output.error)
    else:
        assert parse_action(write_action(call)) == call


@settings(max_examples=200, deadline=None)
@given(actions(), st.sampled_from(("web", "web_json")), st.sampled_from(("", "Two (brackets).\nclick(1)")))
def test_a_reply_in_either_format_reads_back(call: ToolCall, name: str, thought: str) -> None:
    form = make_format(name)
    message = call.name == "send_msg_to_user"
    action = (
        Action(content=call.arguments["text"], thought=thought) if message else Action(calls=(call,), thought=thought)
    )
    read = form.parse(form.write(action, True), True)
    assert (read.calls, read.content, read.thought, read.error) == (action.calls, action.content, thought, None)


@pytest.mark.parametrize(
    ("text", "name", "arguments"),
    [
        ('click("123")', "click", {"bid": "123"}),
        ("click('a51', 'right')", "click", {"bid": "a51", "button": "right"}),
        ('click("48", button="left", modifiers=[])', "click", {"bid": "48"}),
        (r"""fill('237', "multi-line\nexample with \"quotes\"")""", "fill",
         {"bid": "237", "value": 'multi-line\nexample with "quotes"'}),
        ("""fill('3', 'f(x) = "y", [z]')""", "fill", {"bid": "3", "value": 'f(x) = "y", [z]'}),
        ("""fill("3", value="it's")""", "fill", {"bid": "3", "value": "it's"}),
        (r"""fill("3", "it\'s \u00e9 \ud83d\ude00 a\/b")""", "fill", {"bid": "3", "value": "it's é 😀 a/b"}),
        ("select_option('c48', ['red', 'green',])", None, {}),
        ("select_option('c48', ['red', 'green'])", "select_option", {"bid": "c48", "options": ["red", "green"]}),
        ("scroll(-50.2, -100.5)", "scroll", {"delta_x": -50.2, "delta_y": -100.5}),
        ("noop(1000)", "noop", {}),
        (" noop ( 500 ) ", "noop", {"wait_ms": 500}),
    ],
)  # fmt: skip
def test_examples_of_browsergym(text: str, name: str | None, arguments: dict[str, Any]) -> None:
    if name is None:
        with pytest.raises(WebActionError):
            parse_action(text)
    else:
        assert parse_action(text) == ToolCall(name, arguments)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "empty"),
        ("I click the button", "one call"),
        ("click(12)", "in quotes"),
        ('click("1 2")', "element id"),
        ("click()", "lacks its argument 'bid'"),
        ('clik("1")', "click"),
        ('click("1") click("2")', "nothing follows"),
        ('click("1"); import os', "nothing follows"),
        ('click("1", "2", "3", "4")', "too many"),
        ('click("1", bid="2")', "twice"),
        ('click(button="left", "1")', "come last"),
        ('click("1", colour="red")', "no argument 'colour'"),
        ('fill("1", "a)', "not closed"),
        ('fill("1", "\\x41")', "escape"),
        ('fill("1", "\\ud800")', "half a character"),
        ('fill("1", f"{x}")', "text in quotes"),
        ('fill("1", open("/etc/passwd"))', "text in quotes"),
        ("scroll(1e999, 0)", "too large"),
        ("scroll(NaN, 0)", "number"),
        ("noop(60000)", "0 to 10,000"),
        ('upload_file("1", "/etc/passwd")', "no action 'upload_file'"),
        ('fill("1", "' + "a" * 20_000 + '")', "longer than"),
    ],
)
def test_what_is_no_action_says_why(text: str, message: str) -> None:
    with pytest.raises(WebActionError, match=re.escape(message)):
        parse_action(text)


def test_halo_has_the_first_nine_actions() -> None:
    assert HALO_ACTIONS == (
        "click", "fill", "select_option", "scroll", "go_back", "go_forward", "goto", "send_msg_to_user", "noop",
    )  # fmt: skip


def test_every_example_is_an_action_and_has_a_schema() -> None:
    for name, verb in WEB_ACTIONS.items():
        call = parse_action(verb.example)
        schema = web_tool(name)["function"]["parameters"]
        assert set(schema["required"]) <= set(call.arguments) <= set(schema["properties"])
        assert write_action(call) == verb.example


def test_an_action_that_cannot_be_written_is_refused() -> None:
    with pytest.raises(UserError, match="cannot write"):
        make_format("web").write(Action(calls=(ToolCall("click", {"bid": 'no"'}),)), True)
    with pytest.raises(UserError, match="one action"):
        make_format("web").write(Action(calls=(ToolCall("go_back", {}), ToolCall("go_back", {}))), True)


def test_json_replies_may_have_nothing_else() -> None:
    form = make_format("web_json")
    good = {"action": 'click("1")', "rationale": "why", "confidence": 1}
    assert form.parse(json.dumps(good), True).calls == (ToolCall("click", {"bid": "1"}),)
    for broken in ({**good, "other": 1}, {"rationale": "x"}, [good], {**good, "rationale": 3}, {"action": 5}):
        assert form.parse(json.dumps(broken), True).error is not None


def test_the_instructions_list_the_tools_and_the_last_message() -> None:
    text = make_format("web").instructions([web_tool("click"), web_tool("go_back")])
    assert 'click("12")' in text
    assert "go_back()" in text
    assert "send_msg_to_user" in text
    assert "fill(" not in text
