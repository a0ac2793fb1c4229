"""HALO's macros on pages: what each step does, and when a macro is given up."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from practicum.environment import ToolCall
from practicum.environments.web.macros import MACROS, start_macro
from practicum.environments.web.observation import Node


def page(*elements: tuple[str, str], **values: str) -> tuple[Node, ...]:
    """A page of elements (role, name); `values` by name, with underscores for spaces."""
    return tuple(
        Node(role, name, str(index), 0, values.get(name.replace(" ", "_"), ""))
        for index, (role, name) in enumerate(elements, 1)
    )


def run_macro(skill: str, pages: Sequence[tuple[Node, ...]]) -> tuple[list[tuple[str, str, str]], bool]:
    """The actions of a macro, one per page (verb, name of the element, text), and whether it came to its end."""
    macro = start_macro(skill, pages[0])
    assert macro is not None
    calls: list[tuple[str, str, str]] = []
    for nodes in pages:
        call = macro.next_call(nodes)
        if call is None:
            break
        calls.append(described(call, nodes))
    return calls, not macro.steps


def described(call: ToolCall, nodes: tuple[Node, ...]) -> tuple[str, str, str]:
    name = next(node.name for node in nodes if node.bid == call.arguments["bid"])
    return call.name, name, str(call.arguments.get("value", call.arguments.get("options", "")))


HOME = [("link", "Home"), ("link", "Cart"), ("searchbox", "Search products"), ("button", "Search")]


def test_search_and_open_first_result() -> None:
    results = page(*HOME, ("link", "Red mug $9"), ("link", "Red mug, large $12"))
    calls, is_done = run_macro(
        'search_and_open_first_result(query="red mug")',
        [page(*HOME), page(*HOME, Search_products="red mug"), results],
    )
    assert calls == [
        ("fill", "Search products", "red mug"),
        ("click", "Search", ""),
        ("click", "Red mug $9", ""),  # the first link that the first page did not have
    ]
    assert is_done


def test_a_search_without_results_is_given_up() -> None:
    calls, is_done = run_macro('search_and_open_first_result(query="x")', [page(*HOME)] * 3)
    assert len(calls) == 2
    assert not is_done, "no link is new"


FORM = [("textbox", "Full name"), ("textbox", "E-mail (email)"), ("textbox", "Phone number"), ("button", "Back"),
        ("button", "Submit")]  # fmt: skip


def test_fill_contact_form() -> None:
    skill = 'fill_contact_form(email="a@b.org", name="Ann", phone="555")'
    calls, is_done = run_macro(skill, [page(*FORM)] * 4)
    assert calls == [
        ("fill", "E-mail (email)", "a@b.org"),
        ("fill", "Full name", "Ann"),
        ("fill", "Phone number", "555"),
        ("click", "Submit", ""),
    ]
    assert is_done
    filled = page(*FORM, **{"Full_name": "Ann", "Phone_number": "555"})
    assert run_macro(skill, [filled] * 2)[0] == [("fill", "E-mail (email)", "a@b.org"), ("click", "Submit", "")]


def test_a_contact_form_without_a_phone_is_given_up_before_it_is_sent() -> None:
    nodes = page(*FORM[:2], *FORM[3:])
    calls, is_done = run_macro('fill_contact_form(email="a@b.org", name="Ann", phone="555")', [nodes] * 4)
    assert [name for _, name, _ in calls] == ["E-mail (email)", "Full name"]
    assert not is_done


def test_select_date_range() -> None:
    fields = [("button", "Check in"), ("button", "Check out")]
    days = [("gridcell", "1"), ("gridcell", "12"), ("gridcell", "15"), ("gridcell", "2")]
    closed, opened = page(*fields), page(*fields, *days)
    calls, is_done = run_macro('select_date_range(start="12", end="15")', [closed, opened, closed, opened])
    assert [name for _, name, _ in calls] == ["Check in", "12", "Check out", "15"]
    assert {verb for verb, _, _ in calls} == {"click"}
    assert is_done
    calls, is_done = run_macro('select_date_range(start="1", end="2")', [opened] * 4)
    assert [name for _, name, _ in calls] == ["Check in", "1", "Check out", "2"], "a day's whole name comes first"
    assert is_done


@pytest.mark.parametrize("name", list(MACROS))
def test_an_example_starts_and_one_without_its_parameters_does_not(name: str) -> None:
    assert start_macro(MACROS[name].example, ()) is not None
    assert start_macro(name, ()) is None
    assert start_macro(f"{name}()", ()) is None
