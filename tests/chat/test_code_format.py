from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environment import Action, ToolCall
from practicum.errors import UserError
from practicum.registry import make_format

CODE = make_format("code")
RUN = Action(calls=(ToolCall("python_executor", {"code": "x = 2\nprint(x)"}),))


def test_what_is_written_reads_back() -> None:
    text = CODE.write(RUN, True)
    assert text == "```python\nx = 2\nprint(x)\n```"
    assert CODE.parse(text, True).calls == RUN.calls
    answer = CODE.parse(CODE.write(Action(content="def f(x):\n    return x"), True), True)
    assert (answer.content, answer.calls, answer.error) == ("def f(x):\n    return x", (), None)
    command = CODE.parse(CODE.write(Action(content="get 1 stone"), False), False)
    assert (command.content, command.error) == ("get 1 stone", None)


def test_thoughts_are_kept_apart() -> None:
    read = CODE.parse(CODE.write(Action(thought="Try it.", calls=RUN.calls), True), True)
    assert (read.thought, read.calls) == ("Try it.", RUN.calls)
    read = CODE.parse(CODE.write(Action(thought="It works.", content="f"), True), True)
    assert (read.thought, read.content) == ("It works.", "f")


@pytest.mark.parametrize(
    ("text", "content"),
    [
        ("The answer is 5.", "The answer is 5."),
        ("<answer>5</answer>", "5"),
        ("So:\n<answer>\ndef f(x):\n    return x\n</answer>", "def f(x):\n    return x"),
        ("<answer>\n```python\nprint(1)\n```\n</answer>", "```python\nprint(1)\n```"),
        ("```\nnot python\n```", "```\nnot python\n```"),
        ("```json\n{}\n```", "```json\n{}\n```"),
        ("a ``` b", "a ``` b"),
    ],
)
def test_replies_that_end_the_episode(text: str, content: str) -> None:
    action = CODE.parse(text, True)
    assert (action.content, action.calls, action.error) == (content, (), None)


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("```python\nprint('<answer>5</answer>')\n```", "print('<answer>5</answer>')"),
        ("Try:\n```python\n1 + 1\n```\nOutput: 2", "1 + 1"),
        ("```python\n1 + 1\n```\n```\n2\n```", "1 + 1"),
        ("  ```python  \n  x = 1\n  ```", "  x = 1"),
        ("```python\n\n\nx\n\n```", "\n\nx\n"),
    ],
)
def test_replies_that_run(text: str, code: str) -> None:
    action = CODE.parse(text, True)
    assert action.error is None
    assert action.calls == (ToolCall("python_executor", {"code": code}),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("```python\nprint(1)", "``` at its end"),
        ("```python", "``` at its end"),
        ("```\nprint(1)", "``` at its end"),
        ("```python\na\n```\n```python\nb\n```", "exactly one block"),
        ("```python\na\n```\n<answer>5</answer>", "not both"),
        ("<answer>5</answer>\n```python\na\n```", "not both"),
        ("<answer>5", "</answer>"),
        ("5</answer>", "needs an <answer>"),
        ("<answer>1</answer><answer>2</answer>", "exactly one <answer>"),
        ("<answer>  </answer>", "answer is empty"),
        ("```python\n \n```", "block is empty"),
        ("```python\n```", "block is empty"),
        (" \n", "reply is empty"),
        ("```python print(1)```", "begins with a line"),
        ("Run ```python\nprint(1)\n```", "``` at its end"),
    ],
)
def test_broken_replies_say_what_is_wrong(text: str, message: str) -> None:
    action = CODE.parse(text, True)
    assert action.error is not None
    assert message in action.error
    assert action.calls == ()
    assert action.content == ""


def test_nothing_runs_where_there_are_no_tools() -> None:
    action = CODE.parse("```python\nprint(1)\n```", False)
    assert action.error is not None
    assert action.calls == ()


def test_only_python_can_be_written() -> None:
    with pytest.raises(UserError, match="'calculator'"):
        CODE.write(Action(calls=(ToolCall("calculator", {"expression": "1"}),)), True)


def test_instructions_are_short() -> None:
    assert "```python" in CODE.instructions([{"function": {}}])
    assert "```" not in CODE.instructions([])


PIECES = st.sampled_from(
    ["```python\n", "\n```", "```", "\n", "```py\n", "```python", "<answer>", "</answer>", "print(1)", "x = '''", " ",
     "\t", "````\n", "`", "\r\n", "python", "import os", "<answer", "/answer>", "\u2028", "\x00", "é", "Output:\n"]
)  # fmt: skip


@settings(max_examples=1000, deadline=None)
@given(st.lists(PIECES | st.text(max_size=5), max_size=16).map("".join), st.booleans())
def test_no_reply_raises_or_runs_invented_code(text: str, has_tools: bool) -> None:
    action = CODE.parse(text, has_tools)
    assert action.text == text
    if action.error is not None:
        assert action.calls == ()
        assert action.content == ""
        return
    assert bool(action.calls) != bool(action.content)
    if not action.calls:
        assert action.content in text
        return
    assert has_tools
    (call,) = action.calls
    assert call.name == "python_executor"
    assert list(call.arguments) == ["code"]
    code = call.arguments["code"]
    # Exactly what stands in the reply between an opening and a closing line, to the letter.
    lines = text.split("\n")
    opened = [n for n, line in enumerate(lines) if re.fullmatch(r"[ \t]*```\s*python\s*", line)]
    closed = [n for n, line in enumerate(lines) if re.fullmatch(r"[ \t]*```[ \t]*", line)]
    assert any(
        "\n".join(lines[opening + 1 : closing]) == code for opening in opened for closing in closed if closing > opening
    )
    assert not any(re.fullmatch(r"[ \t]*```[ \t]*", line) for line in code.split("\n"))


@settings(max_examples=300, deadline=None)
@given(st.text(st.characters(blacklist_characters="`\r", blacklist_categories=("Cs",)), min_size=1, max_size=80))
def test_any_code_without_fences_reads_back_to_the_letter(code: str) -> None:
    action = CODE.parse(CODE.write(Action(calls=(ToolCall("python_executor", {"code": code}),)), True), True)
    if code.strip():
        assert action.calls[0].arguments["code"] == code
    else:
        assert action.error == "The block is empty."
