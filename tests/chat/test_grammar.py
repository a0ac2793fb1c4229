"""Compiled grammars: which are kept, and who waits for a compilation; response formats as users write them."""

from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from practicum.chat import grammar
from practicum.chat.grammar import Grammars
from practicum.chat.response_format import ResponseFormat, grammar_of, read_response_format, resolve_response_format
from practicum.errors import UserError
from practicum.models import loader
from practicum.registry import make_format


def choice(text: str) -> ResponseFormat:
    return {"type": "choice", "choice": [text]}


def make_grammars() -> Grammars:
    return Grammars(loader.load_tokenizer("tiny"), (0,))


def test_the_grammar_that_was_used_longest_ago_is_removed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(grammar, "MAX_CACHED_GRAMMARS", 2)
    grammars = make_grammars()
    for text in ("a", "b", "a", "c"):
        grammars.matcher(choice(text))
    assert [grammars.is_compiled(choice(text)) for text in "abc"] == [True, False, True]


def test_a_compiled_format_does_not_wait_for_the_compilation_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    grammars = make_grammars()
    grammars.matcher(choice("a"))
    original, compiling, go_on = grammar_of, threading.Event(), threading.Event()

    def slow(response_format: ResponseFormat) -> Any:
        compiling.set()
        assert go_on.wait(20)
        return original(response_format)

    monkeypatch.setattr(grammar, "grammar_of", slow)
    other = threading.Thread(target=grammars.matcher, args=(choice("b"),))
    expected = threading.Thread(target=grammars.matcher, args=(choice("a"),))
    other.start()
    assert compiling.wait(20)
    expected.start()
    expected.join(10)
    waits = expected.is_alive()
    go_on.set()
    other.join(20)
    expected.join(20)
    assert not waits
    assert grammars.is_compiled(choice("b"))


def test_a_response_format_may_be_the_name_of_its_type() -> None:
    assert read_response_format("json_object", "--response-format") == {"type": "json_object"}
    assert read_response_format("text", "--response-format") is None
    with pytest.raises(UserError, match='needs more than its name; write {"type": "regex"'):
        read_response_format("regex", "--response-format")
    with pytest.raises(
        UserError, match="'json' cannot be read .* write text, json_object, tool_calls, legal, a mapping"
    ):
        read_response_format("json", "--response-format")


def test_legal_actions_become_a_choice_in_the_reply_format() -> None:
    legal = ['click("2")', 'Cart [2]\nclick("2")']
    form = {"type": "legal"}
    assert resolve_response_format(form, make_format("web"), (), legal) == {"type": "choice", "choice": legal}
    in_json = resolve_response_format(form, make_format("web_json"), (), legal)
    assert in_json is not None
    assert [json.loads(text) for text in in_json["choice"]] == [
        {"action": 'click("2")'},
        {"action": 'click("2")', "rationale": "Cart [2]"},
    ]
    with pytest.raises(UserError, match="the observation lists none"):
        resolve_response_format(form, make_format("web"), (), None)
    with pytest.raises(UserError, match="'hf' does not say how legal actions are written"):
        resolve_response_format(form, make_format("hf"), (), legal)
