from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environments.agentgym.grammar.bracket import Brackets, Call, read_bracket
from practicum.environments.agentgym.grammar.line import Refused, one_line

HOUSE = Brackets(
    {
        "goto": ("go to {}",),
        "take": ("take {}", "take {} from {}"),
        "look": ("look",),
        "look at": ("look at {}",),
    }
)


def test_a_command_is_one_line() -> None:
    assert one_line("  Go  TO\tdesk 1. \n\n") == "go to desk 1"
    with pytest.raises(Refused, match="one line"):
        one_line("look\nlook")


@pytest.mark.parametrize(
    ("line", "call"),
    [
        ("goto[desk 1]", Call("goto", "desk 1")),
        ("goto [ desk 1 ]", Call("goto", "desk 1")),
        ("pick up[red ball]", Call("pick up", "red ball")),
        ("look[]", Call("look", "")),
        ("click[size [m]]", Call("click", "size [m]")),
        ("go to desk 1", None),
        ("goto[desk 1", None),
        ("goto[desk] now", None),
        ("[desk]", None),
        ("", None),
    ],
)
def test_what_a_bracket_command_is(line: str, call: Call | None) -> None:
    assert read_bracket(line) == call


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (Call("goto", "desk 1"), "go to desk 1"),
        (Call("take", "mug 1"), "take mug 1"),
        (Call("take", "mug 1, desk 2"), "take mug 1 from desk 2"),
        (Call("goto", "desk 1, desk 2"), "go to desk 1, desk 2"),  # one argument that has a comma in it
        (Call("look", ""), "look"),
        (Call("look", "desk"), None),
        (Call("take", ""), None),
        (Call("take", "mug 1,"), None),
        (Call("fly", "home"), None),
    ],
)
def test_brackets_as_sentences(call: Call, sentence: str | None) -> None:
    assert HOUSE.sentence(call) == sentence


def test_sentences_as_brackets() -> None:
    assert HOUSE.write("take mug 1 from desk 2") == "take[mug 1, desk 2]"
    assert HOUSE.write("take mug 1") == "take[mug 1]"
    assert HOUSE.write("look at mug") == "look at[mug]"
    assert HOUSE.write("look") == "look[]"
    assert HOUSE.write("dance") == "dance"
    assert HOUSE.bare("look") == "look"
    assert HOUSE.bare("goto") is None
    assert HOUSE.usage == "goto[X] | take[X, Y] | look[] | look at[X]"


NAMES = st.from_regex(r"[a-z]{1,8} [0-9]", fullmatch=True)


@given(st.sampled_from(["go to {}", "take {}", "look at {}"]), NAMES)
def test_writing_and_reading_are_one_way_and_back(template: str, name: str) -> None:
    sentence = template.format(name)
    call = read_bracket(HOUSE.write(sentence))
    assert call is not None
    assert HOUSE.sentence(call) == sentence
