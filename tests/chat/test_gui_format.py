from __future__ import annotations

import warnings
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.chat.formats.gui import DIRECTIONS, GUI_ACTIONS, MAX_COORDINATE
from practicum.environment import Action, ToolCall
from practicum.errors import UserError
from practicum.registry import make_format

GUI = make_format("gui")
BOX = [10, 20, 60, 40]


def call(name: str, **arguments: Any) -> Action:
    return Action(calls=(ToolCall(name, arguments),))


@pytest.mark.parametrize(
    ("action", "line"),
    [
        (call("click", box=BOX), "click(box=[10, 20, 60, 40])"),
        (call("click", box=[10.5, -3]), "click(box=[10.5, -3])"),
        (call("double_click", box=BOX), "double_click(box=[10, 20, 60, 40])"),
        (call("type", text='say "hi"\n\\'), 'type(text="say \\"hi\\"\\n\\\\")'),
        (call("type", text=""), 'type(text="")'),
        (call("type", text="naïve ✓ 😀"), 'type(text="naïve ✓ 😀")'),
        (call("scroll", direction="down"), 'scroll(direction="down")'),
        (call("scroll", direction="up", box=BOX), 'scroll(direction="up", box=[10, 20, 60, 40])'),
        (call("press", key="enter"), 'press(key="enter")'),
        (call("wait"), "wait()"),
        (Action(content="42"), 'finished(answer="42")'),
    ],
)
def test_what_is_written_reads_back(action: Action, line: str) -> None:
    assert GUI.write(action, True) == f"Action: {line}"
    read = GUI.parse(f"Action: {line}", True)
    assert (read.calls, read.content, read.thought, read.error) == (action.calls, action.content, "", None)


@pytest.mark.parametrize(
    ("reply", "arguments"),
    [
        ("Action:click( box = [ 1,2 ,3, 4 ] )", {"box": [1, 2, 3, 4]}),
        ("Action: click(box=[1, 2, 3, 4,],)", {"box": [1, 2, 3, 4]}),
        ("Action: click(box=[1.5, 2e1, 3E+1, 40.0])\n", {"box": [1.5, 20.0, 30.0, 40.0]}),
        ("Action: click(box=[5, 5, 5, 5])\r\n", {"box": [5, 5, 5, 5]}),
        ("Action: type(text='it\\'s \"so\"')", {"text": 'it\'s "so"'}),
        ("Action: type(text='Action: wait()')", {"text": "Action: wait()"}),
        ('Action: type(text="# \\u00e9")', {"text": "# é"}),
        ('Action: scroll(box=[1, 2], direction="left")', {"box": [1, 2], "direction": "left"}),
    ],
)
def test_other_ways_to_write_the_same(reply: str, arguments: dict[str, Any]) -> None:
    action = GUI.parse(reply, True)
    assert action.error is None
    assert dict(action.calls[0].arguments) == arguments


@pytest.mark.parametrize(
    ("reply", "thought"),
    [
        ("Thought: It is there.\nAction: wait()", "It is there."),
        ("Thought: One.\n\nTwo.\nAction: wait()", "One.\n\nTwo."),
        ("It is there.\nAction: wait()", "It is there."),
        ("Thought:\nAction: wait()", ""),
        ("  Action: not at the beginning\nAction: wait()", "Action: not at the beginning"),
    ],
)  # fmt: skip
def test_thoughts_are_kept_apart(reply: str, thought: str) -> None:
    action = GUI.parse(reply, True)
    assert (action.thought, action.error) == (thought, None)


LIKE_CLICK = "cannot be read"


@pytest.mark.parametrize(
    ("reply", "message"),
    [
        ("", "exactly one line"),
        ("click(box=[1, 2, 3, 4])", "exactly one line"),
        ("action: wait()", "exactly one line"),
        ("Action: wait()\nAction: wait()", "exactly one line"),
        ("Action: wait()\nI waited.", "the last one"),
        ("Action:\nwait()\nwait()", "the last one"),
        ("Action: wait() wait()", LIKE_CLICK),
        ("Action: wait(); wait()", LIKE_CLICK),
        ("Action: wait()  # a while", LIKE_CLICK),
        ("Action: wait", LIKE_CLICK),
        ("Action: ", LIKE_CLICK),
        ("Action: click(box=[1, 2, 3, 4]", LIKE_CLICK),
        ("Action: click[box](1)", LIKE_CLICK),
        ("Action: os.system(text=\"ls\")", LIKE_CLICK),
        ("Action: __import__(text=\"os\").system(text=\"ls\")", LIKE_CLICK),
        ("Action: ｃlick(box=[1, 2, 3, 4])", LIKE_CLICK),  # Python itself would read this as 'click'
        ("Action: click(**{})", LIKE_CLICK),
        ("Action: click(box=(1, 2, 3, 4))", LIKE_CLICK),
        ("Action: click(box=[1, 2, 3, 4 * 5])", LIKE_CLICK),
        ("Action: click(box=[" + "[" * 5000 + "]" * 5000 + "])", LIKE_CLICK),
        ("Action: click(box=[" + "-" * 5000 + "1, 2])", LIKE_CLICK),
        ("Action: click(box=[1" + "0" * 5000 + ", 2])", LIKE_CLICK),
        ("Action: click([1, 2, 3, 4])", "by its name"),
        ("Action: click(box=[1, 2], box=[3, 4])", "given twice"),
        ("Action: click(box=[1, 2, 3 + 1, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, - 3, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, x, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, True, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, None, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, 1e999, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, nan, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, 3j, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, 1_0, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, 0x10, 4])", "finite numbers"),
        ("Action: click(box=[1, 2, .5, 4])", "finite numbers"),
        ("Action: click(box=[[1, 2], [3, 4]])", "finite numbers"),
        ("Action: click(box=box)", "finite numbers"),
        ("Action: type(text=f\"hi\")", "text in quotes"),
        ("Action: type(text=b\"hi\")", "text in quotes"),
        ("Action: type(text=r\"hi\")", "text in quotes"),
        ("Action: type(text=\"a\" \"b\")", "text in quotes"),
        ("Action: type(text=\"a\" + \"b\")", "text in quotes"),
        ("Action: type(text=\"\"\"hi\"\"\")", "text in quotes"),
        ("Action: type(text=\"\\ud83d\")", "text in quotes"),
        ("Action: type(text=5)", "text in quotes"),
        ("Action: type(text=[\"a\"])", "text in quotes"),
        ("Action: type(text=\"hi)", "not closed"),
        ("Action: type(text=\"a\tb\")", "not closed"),
        ("Action: type(text=\"C:\\dir\")", "escape"),
        ("Action: type(text=\"\\x41\")", "escape"),
        ("Action: type(text=\"\\N{BULLET}\")", "escape"),
        ("Action: clik(box=[1, 2, 3, 4])", "Did you mean 'click'"),
        ("Action: calculator(text=\"1+1\")", "no action 'calculator'"),
        ("Action: click()", "like click(box="),
        ("Action: click(box=[1, 2, 3, 4], text=\"a\")", "like click(box="),
        ("Action: wait(text=\"a\")", "like wait()"),
        ("Action: scroll(box=[1, 2, 3, 4])", "like scroll(direction="),
        ("Action: scroll(direction=\"sideways\")", "up, down, left, right"),
        ("Action: click(box=\"10, 20\")", "list of numbers"),
        ("Action: click(box=[\"1\", \"2\"])", "list of numbers"),
        ("Action: click(box=[1e7, 2])", "none beyond"),
        ("Action: click(box=[])", "point [x, y]"),
        ("Action: click(box=[1, 2, 3])", "point [x, y]"),
        ("Action: click(box=[3, 2, 1, 4])", "x1 <= x2"),
        ("Action: click(box=[1, 4, 3, 2])", "y1 <= y2"),
        ("Action: press(key=\" \")", "key is empty"),
        ("Action: finished(answer=\"\")", "answer is empty"),
        ("Action: finished()", "like finished(answer="),
    ],
)  # fmt: skip
def test_broken_replies_say_what_is_wrong(reply: str, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        action = GUI.parse(reply, True)
    assert action.error is not None
    assert message in action.error
    assert (action.calls, action.content, action.text) == ((), "", reply)


def test_without_a_screen_only_the_end_is_left() -> None:
    assert GUI.parse('Action: finished(answer="42")', False).content == "42"
    action = GUI.parse("Action: click(box=[1, 2, 3, 4])", False)
    assert (action.calls, action.error) == ((), "There is no screen here; reply with finished(answer=...).")


def test_instructions_list_what_there_is() -> None:
    tools = [{"function": {"name": name}} for name in ("click", "wait")]
    assert GUI.instructions(tools).splitlines()[1:] == [
        "click(box=[x1, y1, x2, y2])", "wait()", 'finished(answer="...")'
    ]  # fmt: skip


@pytest.mark.parametrize("name", list(GUI_ACTIONS))
def test_the_instructions_themselves_are_actions(name: str) -> None:
    line = GUI_ACTIONS[name][2].replace("x1, y1, x2, y2", "1, 2, 3, 4")
    action = GUI.parse(f"Action: {line}", True)
    assert action.error is None
    assert [c.name for c in action.calls] == ([] if name == "finished" else [name])


@pytest.mark.parametrize(
    "action",
    [
        Action(calls=(ToolCall("calculator", {"expression": "1"}),)),
        call("click", box=[1, 2, 3]),
        call("click", box=[float("nan"), 2]),
        call("click", box=[True, 2]),
        call("type", text=5),
        Action(content=" "),
        Action(calls=(ToolCall("wait", {}), ToolCall("wait", {}))),
    ],
)
def test_only_actions_that_read_back_can_be_written(action: Action) -> None:
    with pytest.raises(UserError, match="'gui' cannot write"):
        GUI.write(action, True)


NUMBERS = st.integers(-MAX_COORDINATE, MAX_COORDINATE) | st.floats(-MAX_COORDINATE, MAX_COORDINATE)
POINTS = st.lists(NUMBERS, min_size=2, max_size=2)
BOXES = POINTS | st.tuples(POINTS, POINTS).map(
    lambda ends: [min(x) for x in zip(*ends, strict=True)] + [max(x) for x in zip(*ends, strict=True)]
)
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=40)
SAID = TEXTS.filter(lambda text: bool(text.strip()))
CALLS = st.one_of(
    st.builds(lambda name, box: call(name, box=box), st.sampled_from(("click", "double_click")), BOXES),
    st.builds(lambda text: call("type", text=text), TEXTS),
    st.builds(lambda way: call("scroll", direction=way), st.sampled_from(DIRECTIONS)),
    st.builds(lambda way, box: call("scroll", direction=way, box=box), st.sampled_from(DIRECTIONS), BOXES),
    st.builds(lambda key: call("press", key=key), SAID),
    st.just(call("wait")),
    st.builds(lambda answer: Action(content=answer), SAID),
)
THOUGHTS = TEXTS.map(str.strip).filter(lambda text: not text.startswith("Thought:") and "\nAction:" not in text)


@settings(max_examples=500, deadline=None)
@given(CALLS, THOUGHTS)
def test_write_and_parse_are_inverse(action: Action, thought: str) -> None:
    written = GUI.write(Action(calls=action.calls, content=action.content, thought=thought), True)
    read = GUI.parse(written, True)
    assert read.error is None, written
    assert (read.calls, read.content, read.thought) == (action.calls, action.content, thought)
    assert GUI.write(read, True) == written
    assert [type(n) for c in read.calls for n in c.arguments.get("box", ())] == [
        type(n) for c in action.calls for n in c.arguments.get("box", ())
    ]
