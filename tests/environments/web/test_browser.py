"""Actions, ids and tabs in a real Chromium."""

from __future__ import annotations

import pytest

from practicum.chat.formats.web_actions import parse_action
from practicum.environments.web.observation import Node, PageView, tree_text
from practicum.environments.web.page_actions import perform
from practicum.environments.web.session import MAX_TABS, ActionFailed, BrowserSession
from tests.environments.web.conftest import RunningBrowser, open_page

FORM = """<title>Form</title><h1>Order</h1>
<form method=post action=/send>
<label>Name <input name=name value=Ann></label> <label>Date <input type=date name=date></label>
<label>Note <textarea name=note></textarea></label> <label>Fixed <input name=fixed value=x readonly></label>
<label>Colour <select name=colour><option value=r>red<option value=b>blue<option disabled>grey</select></label>
<label>Sizes <select name=size multiple><option>S<option>M<option>L</select></label>
<label><input type=checkbox name=gift value=1> Gift</label> <button>Send</button> <button disabled>Never</button>
</form>
<div contenteditable role=textbox aria-label=Free>old</div>
<button style="display:none">Hidden</button>
<div style="position:relative"><button>Covered</button><div style="position:absolute;inset:0">over</div></div>
<p onmouseover="document.title='hovered'" role=button tabindex=0 ondblclick="document.title='twice'">Watch</p>
<iframe srcdoc="<button onclick='parent.document.title=this.textContent'>Inner</button>"></iframe>"""


async def act(session: BrowserSession, *actions: str) -> PageView:
    """Carry out actions in which names stand for ids, such as `click("Send")`, and return the page."""
    view = await session.view()
    for action in actions:
        call = parse_action(with_ids(action, view))
        await perform(session, call)
        await session.wait_until_idle()
        view = await session.view()
    return view


def with_ids(action: str, view: PageView) -> str:
    """The action with the id of the element whose name stands between angle brackets."""
    if "<" not in action:
        return action
    before, _, rest = action.partition("<")
    name, _, after = rest.partition(">")
    return with_ids(f"{before}{element(view, name).bid}{after}", view)


def element(view: PageView, name: str) -> Node:
    return next(node for node in view.nodes if node.bid and node.name == name)


async def failure(session: BrowserSession, action: str) -> str:
    with pytest.raises(ActionFailed) as failed:
        await act(session, action)
    return str(failed.value)


def test_a_form_is_filled_in_and_sent(chromium: RunningBrowser) -> None:
    async def run() -> None:
        session = await open_page(chromium.browser, {"/": FORM})
        try:
            view = await act(
                session,
                'fill("<Name>", "Eve (the \\"first\\")")',
                'fill("<Date>", "2026-11-16")',
                'fill("<Note>", "two\\nlines")',
                'select_option("<Colour>", "blue")',
                'select_option("<Sizes>", ["S", "L"])',
                'check("<Gift>")',
                'check("<Gift>")',
            )
            assert element(view, "Name").value == 'Eve (the "first")'
            assert element(view, "Colour").value == "blue"
            assert "checked=true" in element(view, "Gift").properties
            view = await act(session, 'uncheck("<Gift>")', 'check("<Gift>")', 'clear("<Note>")', 'click("<Send>")')
            status_text = next(node.name for node in view.nodes if node.role == "StaticText")
            assert status_text == (
                "name=Eve+%28the+%22first%22%29&date=2026-11-16&note=&fixed=x&colour=b&size=S&size=L&gift=1"
            )
            assert (view.url, view.title) == ("http://a.test/send", "Sent")
            view = await act(session, "go_back()")
            assert view.title == "Form"
            assert (await act(session, "go_forward()")).title == "Sent"
        finally:
            await session.close()

    chromium.run(run())


def test_mouse_keyboard_and_frames(chromium: RunningBrowser) -> None:
    async def run() -> None:
        session = await open_page(chromium.browser, {"/": FORM})
        try:
            assert (await act(session, 'hover("<Watch>")')).title == "hovered"
            assert (await act(session, 'dblclick("<Watch>")')).title == "twice"
            view = await act(session, 'fill("<Free>", "new")', 'press("<Free>", "!")', 'keyboard_type("?")')
            assert element(view, "Free").value == "new!?"
            assert (await act(session, 'click("<Inner>")')).title == "Inner"
            view = await act(session, 'click("<blue>")')
            assert element(view, "Colour").value == "blue", "a click on an option of a list selects it"
            view = await act(session, 'focus("<Name>")', 'keyboard_press("ControlOrMeta+a")', 'keyboard_type("Bo")')
            assert element(view, "Name").value == "Bo"
        finally:
            await session.close()

    chromium.run(run())


def test_actions_that_cannot_be_done_say_why(chromium: RunningBrowser) -> None:
    async def run() -> None:
        session = await open_page(chromium.browser, {"/": FORM})
        try:
            assert await failure(session, 'click("99")') == "There is no element [99] on this page."
            assert "is disabled" in await failure(session, 'click("<Never>")')
            assert "is covered" in await failure(session, 'click("<Covered>")')
            assert "can only be read" in await failure(session, 'fill("<Fixed>", "x")')
            assert "is not a text field" in await failure(session, 'fill("<Send>", "x")')
            assert "does not take the value" in await failure(session, 'fill("<Date>", "soon")')
            assert "has no option 'green'" in await failure(session, 'select_option("<Colour>", "green")')
            assert "one option only" in await failure(session, 'select_option("<Colour>", ["red", "blue"])')
            assert "disabled" in await failure(session, 'select_option("<Colour>", "grey")')
            assert "cannot be checked" in await failure(session, 'check("<Send>")')
            assert "no earlier page" in await failure(session, "go_back()")
            assert "The only tab" in await failure(session, "tab_close()")
            assert "no tab 3" in await failure(session, "tab_focus(3)")
            assert "keyboard_press failed" in await failure(session, 'keyboard_press("NoKey")')
            view = await session.view()
            assert "Hidden" not in tree_text(view.nodes)
        finally:
            await session.close()

    chromium.run(run())


def test_ids_stay_within_a_document_and_begin_anew_in_the_next(chromium: RunningBrowser) -> None:
    page = """<button onclick="document.body.insertAdjacentHTML('afterbegin', '<button>New</button>')">Add</button>
    <a href=/>Again</a>"""

    async def run() -> None:
        session = await open_page(chromium.browser, {"/": page})
        try:
            view = await session.view()
            assert {node.name: node.bid for node in view.nodes if node.bid} == {"Add": "1", "Again": "2"}
            view = await act(session, 'click("1")')
            assert {node.name: node.bid for node in view.nodes if node.bid} == {"Add": "1", "Again": "2", "New": "3"}
            view = await act(session, 'click("<Again>")')
            assert {node.name: node.bid for node in view.nodes if node.bid} == {"Add": "1", "Again": "2"}
            assert "no element [3]" in await failure(session, 'click("3")')
        finally:
            await session.close()

    chromium.run(run())


def test_a_link_to_a_new_window_opens_a_tab(chromium: RunningBrowser) -> None:
    site = {"/": "<title>One</title><a href=/two target=_blank>More</a>", "/two": "<title>Two</title><h1>2</h1>"}

    async def run() -> None:
        session = await open_page(chromium.browser, site)
        try:
            view = await act(session, 'click("<More>")')
            assert (view.title, view.tabs, view.active_tab) == ("Two", ("http://a.test/", "http://a.test/two"), 1)
            assert (await act(session, "tab_focus(0)")).title == "One"
            assert (await act(session, "tab_focus(1)", "tab_close()")).title == "One"
            await act(session, *["new_tab()"] * (MAX_TABS - 1))
            assert f"{MAX_TABS} tabs already" in await failure(session, "new_tab()")
        finally:
            await session.close()

    chromium.run(run())


def test_elements_without_a_role_and_shapes_are_shown_where_they_are_asked_for(chromium: RunningBrowser) -> None:
    page = """<div onclick="document.title='clicked'">Plain</div>
    <svg width=60 height=60><circle cx=30 cy=30 r=20 fill=red /><text x=5 y=10>t</text></svg>"""

    async def run() -> None:
        session = await open_page(chromium.browser, {"/": page})
        try:
            assert "circle" not in tree_text((await session.view()).nodes)
            view = await session.view(with_dom=True)
            div = next(node for node in view.nodes if node.clickable)
            circle = next(node for node in view.nodes if node.role == "circle")
            assert "fill='red'" in circle.properties
            assert any(text.startswith("box=(") for text in circle.properties)
            assert next(node.name for node in view.nodes if node.role == "text") == "t"
            await perform(session, parse_action(f'click("{div.bid}")'))
            assert (await session.view()).title == "clicked"
        finally:
            await session.close()

    chromium.run(run())
