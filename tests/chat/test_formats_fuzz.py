"""Hostile replies to every reply format: nothing raises, nothing is slow, and no call has anything in it that
does not stand in the reply."""

from __future__ import annotations

import ast
import asyncio
import json
import math
import re
import time
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from practicum.agent import Agent
from practicum.chat.formats.base import Format
from practicum.chat.formats.hermes import MAX_DEPTH
from practicum.chat.formats.web_actions import parse_action, write_action
from practicum.chat.renderer import Renderer
from practicum.data.store import decode_episode, encode_episode
from practicum.engines.base import Generation, Request
from practicum.environment import Action
from practicum.environments.math import MathEnvironment
from practicum.registry import FORMATS, make_format
from practicum.rollout import run_episodes
from practicum.trajectory import ActionSource, StopReason, plan_attempts

EXAMPLES, MANY_EXAMPLES = 300, 5000
"""Replies of one format: in every run, and in `make test-slow`, which has 5,000."""

# -- replies ----------------------------------------------------------------------------------

VALUES = (
    '"1+1"', "12", "-0.5", "1e3", "true", "null", '[1, [2, {"b": 3}]]', '{"b": "é"}', '""', '"\\u00e9\\n"',
    "NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e-999", "9" * 30, "9" * 5000, "01", "0x10", "+1", "1.", ".5",
    "1_000", "3j", "True", "None", "nan", "inf", '"\\ud800"', '"\\ud83d\\ude00"', '"\\udc00"', '"\\x41"', "'a'", '"a',
    '"a" "b"', 'f"a"', 'b"a"', 'r"\\d"', '"""a"""', '"\t"', '"\x00"', '"\\', "1 + 1", "-(1)", "[1, 2", "{1: 2}", "...",
    '{"a": 1, "a": 2}', "__import__('os')", "lambda: 0", "*a", "**a", "[10, 20, 60, 40]", "[10, 20]",
    "[60, 20, 10, 40]", "[1, 2, 3]", "[1e999, 2]", "[NaN, 2]", "[True, 2]", "(1, 2)", "[[1], 2]", '["1", "2"]',
    "[" * 70 + "]" * 70,
)  # fmt: skip
"""What may stand where an argument stands: some of it good in one format, most of it good in none."""

VALID = {
    "hf": (
        '<tool_call>{"name": "calculator", "arguments": {"expression": "1+1"}}</tool_call>',
        'Add.\n<tool_call>\n{"name": "f", "arguments": {"a": [1, 2.5], "b": {"c": null}}}\n</tool_call>',
        '<tool_call>{"name": "f", "arguments": {}}</tool_call><tool_call>{"name": "g", "arguments": {"x": "é"}}'
        "</tool_call>",
        "The answer is 42.",
    ),
    "react": (
        'Thought: add\nAction: calculator\nInput: {"expression": "1+1"}',
        'Action: f\nInput: {"a": [1, 2.5], "b": {"c": null}}\nObservation: 3\nAnswer: 3',
        "Thought: known\nAnswer: 42",
    ),
    "code": (
        "Try:\n```python\nx = 1\nprint(x)\n```",
        "<answer>42</answer>",
        "```\nnot python\n```\n```python\nprint('<answer>')\n```",
        "The answer is 42.",
    ),
    "gui": (
        "Thought: there\nAction: click(box=[10, 20, 60, 40])",
        'Action: type(text="Ada \\"x\\" \\u00e9")',
        'Action: scroll(direction="down", box=[10, 20])',
        "Action: press(key='enter')",
        "Thought: done\nAction: wait()",
        'Action: finished(answer="42")',
    ),
    "web": (
        'click("12")',
        "Fill it.\nfill('a45', \"multi-line\\nexample (with) 'quotes'\")",
        'select_option("c48", ["red", "green"])',
        'click("48", button="middle", modifiers=["Shift"])',
        "scroll(-50.5, 100)",
        'send_msg_to_user("It costs 5 (five).")',
    ),
    "web_json": (
        '{"action": "click(\\"12\\")", "rationale": "It is there.", "confidence": 0.8}',
        '{"action": "fill(\\"3\\", \\"a {b} (c)\\")"}',
        '{"action": "send_msg_to_user(\\"done\\")", "rationale": ""}',
        '{"action": "go_back()"}',
    ),
}  # fmt: skip
FILLED = {
    "hf": (
        '<tool_call>{"name": "f", "arguments": {"a": %s}}</tool_call>',
        '<tool_call>{"name": %s, "arguments": {"a": %s}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": %s}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": %s, "b": %s, "a": %s}}</tool_call>',
        '<tool_call>{"name": "f", "name": "g", "arguments": {"a": %s}}</tool_call>',
    ),
    "react": (
        'Action: f\nInput: {"a": %s}',
        'Action: %s\nInput: {"a": %s, "b": %s}',
        "Thought: %s\nAction: f\nInput: %s",
        'Action: f\nInput: {"a": %s, "a": %s}',
    ),
    "code": ("```python\n%s\n```", "```%s\n%s\n```", "<answer>%s</answer>", "```python\n%s\n```\n<answer>%s</answer>"),
    "gui": (
        "Action: click(box=%s)",
        "Action: click(box=[%s, %s])",
        "Action: click(box=[1, 2, %s, %s])",
        "Action: type(text=%s)",
        "Action: scroll(direction=%s, box=%s)",
        "Action: click(box=%s, box=%s)",
        "Action: click(%s)",
        "Action: press(key=%s, text=%s)",
        "Action: finished(answer=%s)",
    ),
    "web": (
        "click(%s)",
        "fill(%s, %s)",
        "select_option('1', [%s, %s])",
        "scroll(%s, %s)",
        "click('1', button=%s)",
        "click('1', button=%s, button=%s)",
        "send_msg_to_user(%s)",
        "%s\nnoop(%s)",
    ),
    "web_json": (
        '{"action": %s}',
        '{"action": "noop()", "rationale": %s, "confidence": %s}',
        '{"action": "go_back()", "action": %s}',
        '{"action": "go_back()", "thought": %s}',
        '{"action": "send_msg_to_user(\'%s\')"}',
    ),
}
NESTED = {
    "hf": (("<tool_call>", "</tool_call>"), ('<tool_call>{"name": "f", "arguments": {"a": ', "}}</tool_call>")),
    "react": (("Action: f\nInput: ", ""), ('Action: f\nInput: {"a": ', "}")),
    "code": (("```python\n", "\n```"), ("<answer>", "</answer>")),
    "gui": (("Action: ", ""), ("Action: click(box=", ")"), ("Action: type(text=", ")")),
    "web": (("", ""), ("click(", ")"), ("select_option('1', ", ")")),
    "web_json": (("", ""), ('{"action": ', "}"), ('{"action": "', '"}')),
}
BRACKETS = (("[", "]"), ("{", "}"), ('{"a": ', "}"), ("(", ")"), ("-", ""), ("<tool_call>", "</tool_call>"),
            ("```python\n", "\n```"), ("<answer>", "</answer>"), ("Action: ", "\n"), ("click(box=", ")"), ('"', '"'),
            ("'", "'"), ("not ", ""), ("\\", ""), ("1+", "1"), ("lambda:", ""), ("a.", "a"), ('f"{', '}"'))  # fmt: skip
PIECES = (
    "<tool_call>", "</tool_call>", "<tool_call", "</tool_call", "Thought:", "Action:", "Input:", "Answer:",
    "Observation:", "```python", "```", "``", "`", "<answer>", "</answer>", "<think>", "</think>", "click(",
    "double_click(", "type(", "scroll(", "press(", "wait()", "finished(", "box=", "text=", "key=", "direction=",
    "answer=", '"name"', '"arguments"', ":", ",", "{", "}", "[", "]", "(", ")", '"', "'", "\\", "calculator", "f",
    '"down"', '"f"', "#", ";", "=", "*", "**", "+", "-", ".", "1", "0", "1e999", "\n", "\n\n", "\r\n", "\r", "\t", " ",
    "\x00", "\x0b", "\x0c", "\x1b[2J", "\x7f", "\x85", "\u2028", "\u202e", "\ufeff", "\ufffd", "\ud800", "\udfff", "é",
    "ｃlick", "𝟏", "😀", '{"a": 1}', "[1, 2, 3, 4]",
)  # fmt: skip
ANY_PIECE, ANY_VALUE, PLACE, FEW = (
    st.sampled_from(PIECES),
    st.sampled_from(VALUES),
    st.integers(0, 9999),
    st.integers(1, 4),
)
CHANGE = st.sampled_from(("cut", "repeat", "swap", "insert", "replace", "end"))


@st.composite
def mutated(draw: st.DrawFn, name: str) -> str:
    """A good reply from which pieces were taken, said twice, swapped, or between which others were put."""
    text = draw(st.sampled_from(VALID[name]))
    for _ in range(draw(FEW)):
        first, second, third = sorted(draw(PLACE) % (len(text) + 1) for _ in range(3))
        change = draw(CHANGE)
        if change == "cut":
            text = text[:first] + text[second:]
        elif change == "repeat":
            text = text[:second] + text[first:]
        elif change == "swap":
            text = text[:first] + text[second:third] + text[first:second] + text[third:]
        elif change == "insert":
            text = text[:first] + draw(ANY_PIECE) + text[first:]
        elif change == "replace":
            text = text[:first] + draw(ANY_VALUE) + text[second:]
        else:
            text = text[:third]
    return text


@st.composite
def filled(draw: st.DrawFn, name: str) -> str:
    """The frame of a good reply around arguments that may be anything."""
    frame = draw(st.sampled_from(FILLED[name]))
    return frame % tuple(draw(ANY_VALUE) for _ in range(frame.count("%s")))


@st.composite
def nested(draw: st.DrawFn, name: str) -> str:
    """Brackets within brackets, some of them never closed."""
    (before, after), (opening, closing) = draw(st.sampled_from(NESTED[name])), draw(st.sampled_from(BRACKETS))
    depth = draw(st.sampled_from((1, 2, 3, MAX_DEPTH - 3, MAX_DEPTH, 150, 900, 3000)))
    missing = draw(st.sampled_from((0, 0, 1, depth)))
    return before + opening * depth + draw(st.sampled_from(("", "1", '"a"'))) + closing * (depth - missing) + after


def replies(name: str) -> st.SearchStrategy[str]:
    salad = st.lists(ANY_PIECE | st.text(max_size=4), max_size=12).map("".join)
    around = st.builds("{}{}{}".format, st.text(max_size=5), st.sampled_from(VALID[name]), st.text(max_size=5))
    intact = st.sampled_from(VALID[name])
    return st.one_of(salad, mutated(name), mutated(name), filled(name), filled(name), nested(name), around, intact)


# -- what must be true of them ----------------------------------------------------------------


def leaves(value: Any) -> Iterator[Any]:
    """Keys, texts, numbers and constants of a value."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from leaves(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from leaves(item)
    else:
        yield value


def literals(text: str, python: bool) -> set[tuple[type, Any]]:
    """Whatever a substring of the text means, read alone: as JSON or, if asked, as a Python literal."""
    results = {"true": True, "false": False, "null": None}
    values: set[tuple[type, Any]] = {(type(v), v) for word, v in results.items() if word in text and not python}
    quotes = r"""(?=("(?:[^"\\]|\\.)*"))""" + (r"""|(?=('(?:[^'\\]|\\.)*'))""" if python else "")
    for match in re.finditer(quotes, text, re.S):
        piece = match[1] or match[2]
        try:
            values.add((str, ast.literal_eval(piece) if python else json.loads(piece)))
        except (ValueError, SyntaxError):
            continue
    for match in re.finditer(r"-?\d+(?:\.\d+)?(?:[eE][-+]?\d+)?", text):
        try:
            number = json.loads(match[0])
        except ValueError:
            continue
        values.add((type(number), number))
    return values


def slashes(text: str) -> set[tuple[type, Any]]:
    """Texts in single quotes, with JSON's escapes: `\\/` means a slash in JSON and two characters in Python."""
    return literals(text.replace("\\/", "/"), python=True)


def objects(text: str) -> Iterator[Any]:
    """Every JSON object that begins somewhere in the text, if no key stands in it twice."""

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        if len({key for key, _ in pairs}) != len(pairs):
            raise ValueError("twice")
        return dict(pairs)

    decoder = json.JSONDecoder(object_pairs_hook=once)
    for match in re.finditer(r"\{", text):
        try:
            yield decoder.raw_decode(text, match.start())[0]
        except (ValueError, RecursionError):
            continue


def check(name: str, text: str, has_tools: bool) -> Action:
    action = make_format(name).parse(text, has_tools)
    assert action.text == text
    if action.error is not None:
        assert (action.calls, action.content) == ((), "")
        assert re.fullmatch(r"[^\n]+[.?]", action.error), "one sentence"
        return action
    assert bool(action.calls) != bool(action.content)
    if not action.calls:
        message = json.loads(text)["action"] if name == "web_json" and has_tools else text
        texts = literals(message, python=False) | literals(message, python=True) | slashes(message)
        assert action.content in message or (str, action.content) in texts
        return action
    assert has_tools
    for call in action.calls:
        assert call.name in text or name in ("code", "hf"), "a tool's name stands in the reply"
        arguments = dict(call.arguments)
        if name == "code":
            assert (call.name, list(arguments)) == ("python_executor", ["code"])
            assert f"\n{arguments['code']}\n" in text
            continue
        kept = [arguments, call.name if name == "hf" else ""]
        json.dumps(kept, allow_nan=False, ensure_ascii=False).encode()  # what is read can be kept and shown
        assert all(math.isfinite(leaf) for leaf in leaves(arguments) if isinstance(leaf, float))
        if name in ("web", "web_json"):
            written = text if name == "web" else json.loads(text)["action"]
            texts = {(type(leaf), leaf) for leaf in leaves(list(arguments.values())) if not isinstance(leaf, bool)}
            assert texts <= literals(written, python=False) | literals(written, python=True) | slashes(written)
            assert parse_action(write_action(call)) == call
            continue
        if name == "gui":
            line = re.split(r"^Action:", text, flags=re.M)[-1]
            bare = re.sub(r""""(?:[^"\\]|\\.)*"|'(?:[^'\\]|\\.)*'""", "", line)
            assert all(len(re.findall(rf"\b{key} *=", bare)) == 1 for key in arguments)
            assert {(type(leaf), leaf) for leaf in leaves(list(arguments.values()))} <= literals(line, python=True)
            continue
        assert {(type(leaf), leaf) for leaf in leaves(arguments)} <= literals(text, python=False)
        full = arguments if name == "react" else {"name": call.name, "arguments": arguments}
        assert any(result == full for result in objects(text))
    return action


@pytest.mark.parametrize("examples", [EXAMPLES, pytest.param(MANY_EXAMPLES, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", list(FORMATS))
def test_no_reply_raises_or_calls_with_what_it_does_not_say(name: str, examples: int) -> None:
    counts = {"error": 0, "call": 0, "content": 0}

    @settings(max_examples=examples, deadline=None, suppress_health_check=[HealthCheck.too_slow])
    @given(replies(name), st.sampled_from((True, True, True, False)))
    def fuzz(text: str, has_tools: bool) -> None:
        action = check(name, text, has_tools)
        counts["error" if action.error else "call" if action.calls else "content"] += 1

    fuzz()
    # The fuzz is worth something only if it comes to every end, and much of what it says is broken.
    assert min(counts.values()) > 0, counts
    assert counts["error"] > examples / 10, counts


@pytest.mark.parametrize("name", list(FORMATS))
def test_the_good_replies_are_good(name: str) -> None:
    assert [text for text in VALID[name] if check(name, text, True).error is not None] == []


# -- time -------------------------------------------------------------------------------------

SIZE = 100_000
LONG = (
    "<tool_call>", "</tool_call>", "<tool_call></tool_call>", '<tool_call>{"name"', "Action:", "\nAction:",
    "\nAction: f\nInput: {}", "\nThought:", "\nObservation:", "```", "```\n", "```python\n", "\n```x\n```", "<answer>",
    "</answer>", "<answer></answer>", "\n", " ", "\t", "\r\n", "\\", '"', "'", '\\"', "\\'", '"\'', '"\\', "\\\\", "[",
    "{", "(", "[]", '{"a":', "-", "1", "1.", "1e", ".", "a", "a ", "a=", "a,", "é", "\u2028", "\x00", "#", ",", "x=1,",
)  # fmt: skip


def best_time(form: Format, text: str) -> tuple[Action, float]:
    """What a reply says, and this thread's least time over it: a collection of garbage can fall into any one try."""
    spent = math.inf
    for _ in range(5):
        started = time.thread_time()
        action = form.parse(text, True)
        spent = min(spent, time.thread_time() - started)
        if spent < 0.5:
            break
    return action, spent


@pytest.mark.parametrize("name", list(FORMATS))
def test_a_long_hostile_reply_is_read_in_no_time(name: str) -> None:
    form = make_format(name)
    for piece in LONG:
        half = SIZE // len(piece) // 2
        for before, after in (("", ""), *NESTED[name]):
            for text in (
                before + piece * 2 * half + after,
                before + piece * half + "x" + after * (SIZE // 2 // len(after or "x")),
                " " * (SIZE // 2) + before + piece * half,
                after * (SIZE // 40) + before * (SIZE // 40) + piece,
            ):
                action, spent = best_time(form, text)
                assert spent < 0.5, (piece, before, len(text), spent)
                assert all(
                    math.isfinite(n) for c in action.calls for n in leaves(dict(c.arguments)) if type(n) is float
                )


# -- what the fuzz found once -----------------------------------------------------------------

LOST = {
    "1e999": "a number is too large",
    "[-1e999]": "a number is too large",
    '{"x": 1, "x": 2}': "a key stands twice",
    '"\\ud800"': "half a character",
    '{"\\udfff": 1}': "half a character",
    "NaN": "NaN is not JSON",
    "9" * 5000: "is not valid JSON",
    "[" * MAX_DEPTH + "]" * MAX_DEPTH: "nested too deeply",
    "[" * 900 + "]" * 900: "nested too deeply",
    "[" * 50_000 + "]" * 50_000: "is not valid JSON",
}


@pytest.mark.parametrize("value", list(LOST), ids=[key[:12] for key in LOST])
def test_json_that_would_be_guessed_at_or_lost_is_refused(value: str) -> None:
    for name, frame in (("hf", FILLED["hf"][0]), ("react", FILLED["react"][0])):
        action = make_format(name).parse(frame % value, True)
        assert action.calls == ()
        assert LOST[value] in (action.error or "")
    nest = "[" * (MAX_DEPTH - 2) + "]" * (MAX_DEPTH - 2)
    assert make_format("hf").parse(FILLED["hf"][0] % nest, True).calls


class Parrot:
    """An engine that says one text for ever."""

    name = "parrot"

    def __init__(self, text: str, renderer: Renderer) -> None:
        self.ids = renderer.encode_reply(text)

    async def generate(self, request: Request) -> Generation:
        return Generation(self.ids, None, StopReason.END, 0, ActionSource.POLICY)

    def end_session(self, session: str) -> None:
        return None

    async def close(self) -> None:
        return None


@pytest.mark.parametrize("value", ["1e999", '"\\ud800"', "[" * 930 + "]" * 930, '"\\u0000"'])
def test_no_reply_escapes_its_score_or_its_record(renderer: Renderer, value: str) -> None:
    """A number that no file can hold, half a character that no tokenizer reads: once the end of a whole run."""
    for reply in (FILLED["hf"][0] % value, FILLED["hf"][1] % (value, "1")):
        planned = plan_attempts(MathEnvironment().tasks("train", 1), 1, 0)
        (episode,) = asyncio.run(
            run_episodes(planned, MathEnvironment, Agent(max_turns=2), Parrot(reply, renderer), renderer)
        )
        assert episode.scored, episode.error
        assert decode_episode(encode_episode(episode)) == episode
