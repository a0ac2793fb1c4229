"""The texts that a web agent reads and the keys of states, without a browser."""

from __future__ import annotations

import hashlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from practicum.environments.web.brief import brief_text
from practicum.environments.web.observation import (
    Element,
    Node,
    StateKey,
    actionable_elements,
    normalised_url,
    obs_hash,
    page_type,
    state_key,
    summary_text,
    tree_text,
)


def buttons(count: int, start: int = 0) -> list[Node]:
    return [Node("button", f"Button {n}", f"b{n}") for n in range(start, start + count)]


def test_the_summary_has_halos_sections() -> None:
    elements = (Element("12", "button", "Add to cart"), Element("7", "textbox", ""))
    text = summary_text("Buy tea", "http://shop.test/p", elements, 'click("3")', "There is no element [3].")
    assert text == (
        "# Goal\nBuy tea\n\n# Current URL\nhttp://shop.test/p\n\n# Last Action\nclick(\"3\")\n\n"
        "# Last Action Error\nThere is no element [3].\n\n"
        '# Actionable Elements (bid, role, name)\n[12] button "Add to cart"\n[7] textbox'
    )  # fmt: skip


def test_empty_sections_are_left_out() -> None:
    assert summary_text("Buy tea", "", ()) == "# Goal\nBuy tea"


def test_an_element_with_a_recall_word_evicts_the_last_one_without() -> None:
    nodes = [*buttons(20), Node("button", "Checkout", "pay"), *buttons(20, 20)]
    assert [element.bid for element in actionable_elements(nodes, 5)] == ["b0", "b1", "b2", "b3", "pay"]


def test_a_recall_word_keeps_its_first_element_and_names_are_cut() -> None:
    nodes = [Node("link", "x" * 49 + " search", "1"), Node("link", "Search", "2"), *buttons(3)]
    chosen = actionable_elements(nodes, 2)
    assert [(element.bid, element.name) for element in chosen] == [("1", "x" * 49 + " "), ("2", "Search")]
    nodes = [*buttons(3), Node("link", "Search", "7"), Node("link", "Search again", "8")]
    assert [element.bid for element in actionable_elements(nodes, 2)] == ["b0", "7"]


def test_only_actionable_roles_with_an_id_count_and_the_scan_is_limited() -> None:
    nodes = [Node("StaticText", "cart"), Node("heading", "Cart", "1"), Node("button", "Go"), Node("Button", "Go", "2")]
    assert actionable_elements(nodes) == (Element("2", "button", "Go"),)
    distant = [*buttons(5), *(Node("StaticText", "t") for _ in range(400)), Node("button", "Checkout", "pay")]
    assert "pay" not in {element.bid for element in actionable_elements(distant, 5)}
    assert "pay" in {element.bid for element in actionable_elements(distant, 6)}, (
        "fewer than top_k found: the scan goes on"
    )
    assert actionable_elements(nodes, 0) == ()


def test_the_tree_is_written_line_by_line_and_cut() -> None:
    nodes = [
        Node("RootWebArea", "Shop"),
        Node("button", "Add\n to  cart", "12", 1, properties=("focused",)),
        Node("textbox", "It's", "13", 1, value='a "b"'),
        Node("generic", "", "14", 1, clickable=True),
        Node("StaticText", "5 EUR", "", 2),
    ]
    text = tree_text(nodes)
    assert text.split("\n") == [
        "RootWebArea 'Shop'",
        "\t[12] button 'Add to cart', focused",
        '\t[13] textbox "It\'s" value=\'a "b"\'',
        "\t[14] generic, clickable",
        "\t\tStaticText '5 EUR'",
    ]
    assert tree_text(nodes, 60) == "RootWebArea 'Shop'\n\t[12] button 'Add to cart', focused\n... and 3 more lines"


def test_the_hash_is_halos() -> None:
    nodes = [Node("button", "A", "1"), Node("StaticText", "x"), Node("link", "B", "2")]
    content = 'http://a.test/|click("1")|oops|1:button|2:link'
    assert obs_hash("http://a.test/", 'click("1")', "oops", nodes) == hashlib.sha256(content.encode()).hexdigest()[:16]
    assert obs_hash("u", "", "", []) == hashlib.sha256(b"u|||").hexdigest()[:16]


def test_a_state_key_has_names_and_no_ids() -> None:
    key = state_key(
        "http://shop.test/cart/?b=2&a=1&utm_source=x#top", [Node("button", "Pay", "9"), Node("link", "", "3")]
    )
    digest = hashlib.md5(b"Pay").hexdigest()[:4]
    assert str(key) == f"shop|cart|http://shop.test/cart?a=1&b=2|button:{digest}|link:|False"
    same_page = state_key("http://shop.test/cart?a=1&b=2", [Node("button", "Pay", "4"), Node("link", "", "77")])
    assert same_page == key
    assert same_page.hash == key.hash
    other = state_key("http://shop.test/cart?a=1&b=2", [Node("button", "Pay", "4")], has_error=True)
    assert other != key


@given(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    st.lists(st.tuples(st.sampled_from(("button", "link")), st.text(max_size=5)), max_size=4),
    st.booleans(),
)
def test_a_state_key_reads_back(tail: str, elements: list[tuple[str, str]], has_error: bool) -> None:
    nodes = [Node(role, name, str(index)) for index, (role, name) in enumerate(elements)]
    key = state_key(f"http://a.test/{tail.replace('[', '').replace(']', '')}", nodes, has_error=has_error)
    assert StateKey.parse(str(key)) == key


def test_invalid_state_keys_are_refused() -> None:
    for text in ("", "a|b|c", "a|b|c|d", "a|b|c|d|maybe"):
        with pytest.raises(ValueError, match="not a state key"):
            StateKey.parse(text)


@pytest.mark.parametrize(
    ("url", "normal"),
    [
        ("", ""),
        ("http://a.test/", "http://a.test"),
        ("http://a.test/x/?SID=1&q=b%20c&q=d", "http://a.test/x?q=b c"),
        ("http://a.test/x?ref=1", "http://a.test/x"),
        ("http://a.test/x?a=1|2", "http://a.test/x?a=1%7C2"),
    ],
)
def test_urls_are_normalised(url: str, normal: str) -> None:
    assert normalised_url(url) == normal


@pytest.mark.parametrize(
    ("url", "title", "kind"),
    [
        ("http://a.test/login", "", "login"), ("http://a.test/x", "Log in", "login"),
        ("http://a.test/order/3", "", "checkout"), ("http://a.test/basket", "", "cart"),
        ("http://a.test/item/2", "", "product"), ("http://a.test/list?q=tea", "", "search"),
        ("http://a.test/browse", "", "results"), ("http://mail.test/", "", "email_list"),
        ("http://a.test/mail/compose", "", "email_compose"), ("http://a.test/mail/read/1", "", "email_view"),
        ("http://a.test/calendar", "", "calendar"), ("http://a.test/contact", "", "form"),
        ("http://a.test/account", "", "profile"), ("http://a.test/settings", "", "settings"),
        ("http://a.test", "", "home"), ("http://a.test/about", "", "unknown"),
    ],
)  # fmt: skip
def test_kinds_of_pages(url: str, title: str, kind: str) -> None:
    assert page_type(url, title) == kind


def test_a_brief_text_of_a_page_without_names_has_its_texts() -> None:
    nodes = [
        Node("RootWebArea", "Inbox"), Node("generic", "", "1", 1, clickable=True),
        Node("StaticText", "2 new", "", 2), Node("StaticText", "messages", "", 2),
        Node("generic", "", "2", 2, properties=("class='thread'", "box=(1, 2, 3, 4)"), clickable=True),
        Node("StaticText", "Evie", "", 3), Node("StaticText", "Lunch?", "", 3),
        Node("image", "", "3", 3, properties=("class='trash'",)), Node("rect", "", "4", 2, properties=("fill='red'",)),
        Node("combobox", "Size", "5", 2, "large"), Node("option", "small", "6", 3), Node("StaticText", "end", "", 2),
    ]  # fmt: skip
    text = brief_text("Do it.", "Inbox", nodes, with_dom=True)
    assert text.split("\n") == [
        "Do it.", "# Inbox", "2 new messages", "Evie Lunch? [2]", "trash [3]", "rect red [4]", "Size = large [5]",
        "small [6]", "end",
    ]  # fmt: skip
    assert "small" not in brief_text("Do it.", "Inbox", nodes), "an option is chosen by its text, not by an id"
