"""Carries out an agent's action in a browser session, as a user would with mouse and keyboard."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from practicum.environment import ToolCall
from practicum.environments.web.session import MAX_TABS, ActionFailed, BrowserSession

MAX_WAIT_SECONDS = 1.0
"""Seconds that `noop` waits at most."""

LOCATE = """function() {
  const view = this.ownerDocument.defaultView;
  if (!this.isConnected || !view) return {error: 'is not on the page any more'};
  if (this.disabled || this.closest?.('fieldset:disabled')) return {error: 'is disabled'};
  if (this.tagName === 'OPTION') return {option: true};
  if (this.scrollIntoViewIfNeeded) this.scrollIntoViewIfNeeded(); else this.scrollIntoView({block: 'center'});
  const rect = [...this.getClientRects()].find(one => one.width > 0 && one.height > 0);
  if (!rect || view.getComputedStyle(this).visibility !== 'visible') return {error: 'is not visible'};
  let x = rect.left + rect.width / 2, y = rect.top + rect.height / 2;
  let top = this.getRootNode().elementFromPoint(x, y);
  const label = top?.closest?.('label');
  let covered = !(label && label.control === this);
  for (; top; top = top.parentNode || top.host) if (top === this) covered = false;
  for (let frame = view; frame !== frame.parent; frame = frame.parent) {
    const outer = frame.frameElement.getBoundingClientRect();
    x += outer.left + frame.frameElement.clientLeft; y += outer.top + frame.frameElement.clientTop;
  }
  return {x, y, covered};
}"""
PREPARE_TEXT = """function() {
  if (this.disabled) return 'is disabled';
  if (this.readOnly) return 'can only be read';
  const tag = this.tagName, type = (this.type || '').toLowerCase();
  const direct = ['date', 'time', 'datetime-local', 'month', 'week', 'color', 'range'];
  const others = ['button', 'submit', 'reset', 'image', 'file', 'checkbox', 'radio', 'hidden'];
  if (tag === 'INPUT' && direct.includes(type)) return 'direct';
  if ((tag === 'INPUT' && !others.includes(type)) || tag === 'TEXTAREA') { this.focus(); this.select(); return ''; }
  if (!this.isContentEditable) return 'is not a text field';
  this.focus();
  this.ownerDocument.getSelection().selectAllChildren(this);
  return '';
}"""
SET_VALUE = """function(value) {
  this.focus();
  Object.getOwnPropertyDescriptor(HTMLInputElement.prototype, 'value').set.call(this, value);
  this.dispatchEvent(new Event('input', {bubbles: true}));
  this.dispatchEvent(new Event('change', {bubbles: true}));
  return this.value === value;
}"""
SELECT = """function(wanted) {
  const list = this.tagName === 'OPTION' ? this.closest('select') : this;
  if (!list || list.tagName !== 'SELECT') return 'is not a list to select from';
  if (list.disabled) return 'is disabled';
  const options = [...list.options];
  const chosen = this.tagName === 'OPTION' ? [this] : wanted.map(text =>
    options.find(one => one.label === text || one.value === text || one.label.trim() === text.trim()));
  const missing = chosen.indexOf(undefined);
  if (missing >= 0) return `has no option '${wanted[missing].slice(0, 50)}'`;
  if (chosen.some(one => one.disabled)) return 'has that option disabled';
  if (chosen.length > 1 && !list.multiple) return 'takes one option only';
  list.focus();
  for (const one of options) one.selected = chosen.includes(one);
  list.dispatchEvent(new Event('input', {bubbles: true}));
  list.dispatchEvent(new Event('change', {bubbles: true}));
  return '';
}"""
CHECKED = """function() {
  const role = this.getAttribute('role');
  if (this.tagName === 'INPUT' && ['checkbox', 'radio'].includes(this.type)) return this.checked;
  if (['checkbox', 'radio', 'switch', 'menuitemcheckbox', 'menuitemradio'].includes(role))
    return this.getAttribute('aria-checked') === 'true';
  return null;
}"""
FOCUS = "function() { this.focus(); }"

Arguments = Mapping[str, Any]


async def perform(session: BrowserSession, call: ToolCall, force: bool = False) -> None:
    """Carry out an action; ActionFailed says why it could not be. With `force` a covered element is clicked at its
    place all the same, as BrowserGym does."""
    from playwright.async_api import Error

    page = _Page(session, force)
    method: Callable[[Arguments], Awaitable[None]] = getattr(page, call.name)
    try:
        await method(call.arguments)
    except Error as error:
        if session.tab.crashed or not session.context.browser.is_connected():
            raise
        raise ActionFailed(f"{call.name} failed: {_sentence(error)}") from error


def _sentence(error: Exception) -> str:
    """The first line of an error of Playwright."""
    line = str(error).split("\n")[0].split(": ", 1)[-1].strip().rstrip(".")
    return f"{line[:150] or 'the browser refused it'}."


class _Page:
    """One method per action."""

    def __init__(self, session: BrowserSession, force: bool) -> None:
        self.session, self.force = session, force

    @property
    def page(self) -> Any:
        return self.session.tab.page

    async def _locate(self, bid: str) -> tuple[float, float] | None:
        """The middle of an element in the window; None for an option of a list."""
        location = await self.session.tab.call_on(bid, LOCATE)
        if location.get("option"):
            return None
        if "error" in location:
            raise ActionFailed(f"The element [{bid}] {location['error']}.")
        if location["covered"] and not self.force:
            raise ActionFailed(f"The element [{bid}] is covered by another element.")
        return location["x"], location["y"]

    async def _point(self, bid: str) -> tuple[float, float]:
        point = await self._locate(bid)
        if point is None:
            raise ActionFailed(f"The element [{bid}] is an option; select it with click or select_option.")
        return point

    async def click(self, arguments: Arguments, count: int = 1) -> None:
        point = await self._locate(arguments["bid"])
        if point is None:
            await self._select(arguments["bid"], [])
            return
        modifiers = arguments.get("modifiers", ())
        for key in modifiers:
            await self.page.keyboard.down(key)
        try:
            await self.page.mouse.click(*point, button=arguments.get("button", "left"), click_count=count)
        finally:
            for key in modifiers:
                await self.page.keyboard.up(key)

    async def dblclick(self, arguments: Arguments) -> None:
        await self.click(arguments, 2)

    async def hover(self, arguments: Arguments) -> None:
        await self.page.mouse.move(*await self._point(arguments["bid"]))

    async def focus(self, arguments: Arguments) -> None:
        await self.session.tab.call_on(arguments["bid"], FOCUS)

    async def press(self, arguments: Arguments) -> None:
        await self.focus(arguments)
        await self.page.keyboard.press(arguments["key_comb"])

    async def clear(self, arguments: Arguments) -> None:
        await self.fill({"bid": arguments["bid"], "value": ""})

    async def fill(self, arguments: Arguments) -> None:
        bid, value = arguments["bid"], arguments["value"]
        problem = await self.session.tab.call_on(bid, PREPARE_TEXT)
        if problem == "direct":
            if not await self.session.tab.call_on(bid, SET_VALUE, value):
                raise ActionFailed(f"The element [{bid}] does not take the value {value[:50]!r}.")
        elif problem:
            raise ActionFailed(f"The element [{bid}] {problem}.")
        elif not value:
            await self.page.keyboard.press("Delete")
        elif arguments.get("enable_autocomplete_menu"):
            await self.page.keyboard.insert_text(value[:-1])
            await self.page.keyboard.type(value[-1])
        else:
            await self.page.keyboard.insert_text(value)

    async def select_option(self, arguments: Arguments) -> None:
        options = arguments["options"]
        await self._select(arguments["bid"], [options] if isinstance(options, str) else list(options))

    async def _select(self, bid: str, options: list[str]) -> None:
        problem = await self.session.tab.call_on(bid, SELECT, options)
        if problem:
            raise ActionFailed(f"The element [{bid}] {problem}.")

    async def check(self, arguments: Arguments, is_checked: bool = True) -> None:
        bid = arguments["bid"]
        checked = await self.session.tab.call_on(bid, CHECKED)
        if checked is None:
            raise ActionFailed(f"The element [{bid}] cannot be checked.")
        if checked != is_checked:
            await self.click({"bid": bid})
            if await self.session.tab.call_on(bid, CHECKED) != is_checked:
                raise ActionFailed(f"The element [{bid}] did not change when it was clicked.")

    async def uncheck(self, arguments: Arguments) -> None:
        await self.check(arguments, False)

    async def drag_and_drop(self, arguments: Arguments) -> None:
        start = await self._point(arguments["from_bid"])
        await self.page.mouse.move(*start)
        await self.page.mouse.down()
        try:
            end = await _Page(self.session, True)._point(arguments["to_bid"])
            await self.page.mouse.move(*end, steps=4)
        finally:
            await self.page.mouse.up()

    async def scroll(self, arguments: Arguments) -> None:
        await self.page.mouse.wheel(arguments["delta_x"], arguments["delta_y"])

    async def scroll_at(self, arguments: Arguments) -> None:
        await self.page.mouse.move(arguments["x"], arguments["y"])
        await self.page.mouse.wheel(arguments["dx"], arguments["dy"])

    async def mouse_move(self, arguments: Arguments) -> None:
        await self.page.mouse.move(arguments["x"], arguments["y"])

    async def mouse_down(self, arguments: Arguments) -> None:
        await self.mouse_move(arguments)
        await self.page.mouse.down(button=arguments.get("button", "left"))

    async def mouse_up(self, arguments: Arguments) -> None:
        await self.mouse_move(arguments)
        await self.page.mouse.up(button=arguments.get("button", "left"))

    async def mouse_click(self, arguments: Arguments) -> None:
        await self.page.mouse.click(arguments["x"], arguments["y"], button=arguments.get("button", "left"))

    async def mouse_dblclick(self, arguments: Arguments) -> None:
        await self.page.mouse.dblclick(arguments["x"], arguments["y"], button=arguments.get("button", "left"))

    async def mouse_drag_and_drop(self, arguments: Arguments) -> None:
        await self.page.mouse.move(arguments["from_x"], arguments["from_y"])
        await self.page.mouse.down()
        await self.page.mouse.move(arguments["to_x"], arguments["to_y"], steps=4)
        await self.page.mouse.up()

    async def keyboard_press(self, arguments: Arguments) -> None:
        await self.page.keyboard.press(arguments["key"])

    async def keyboard_down(self, arguments: Arguments) -> None:
        await self.page.keyboard.down(arguments["key"])

    async def keyboard_up(self, arguments: Arguments) -> None:
        await self.page.keyboard.up(arguments["key"])

    async def keyboard_type(self, arguments: Arguments) -> None:
        await self.page.keyboard.type(arguments["text"])

    async def keyboard_insert_text(self, arguments: Arguments) -> None:
        await self.page.keyboard.insert_text(arguments["text"])

    async def goto(self, arguments: Arguments) -> None:
        self.session.check_url(arguments["url"])
        await self.page.goto(arguments["url"], wait_until="commit")

    async def go_back(self, arguments: Arguments) -> None:
        await self._go(-1, "There is no earlier page.")

    async def go_forward(self, arguments: Arguments) -> None:
        await self._go(1, "There is no later page.")

    async def _go(self, offset: int, problem: str) -> None:
        history = await self.session.tab.send("Page.getNavigationHistory")
        index = history["currentIndex"] + offset
        # The first entry is the empty page of a new tab.
        if not 0 <= index < len(history["entries"]) or history["entries"][index]["url"] == "about:blank":
            raise ActionFailed(problem)
        await (self.page.go_back if offset < 0 else self.page.go_forward)(wait_until="commit")

    async def new_tab(self, arguments: Arguments) -> None:
        if len(self.session.tabs) >= MAX_TABS:
            raise ActionFailed(f"There are {MAX_TABS} tabs already.")
        await self.session.context.new_page()

    async def tab_close(self, arguments: Arguments) -> None:
        if len(self.session.tabs) == 1:
            raise ActionFailed("The only tab cannot be closed.")
        await self.page.close()

    async def tab_focus(self, arguments: Arguments) -> None:
        index = arguments["index"]
        if index >= len(self.session.tabs):
            raise ActionFailed(f"There is no tab {index}; there are {len(self.session.tabs)}, counted from 0.")
        self.session.active_index = index
        await self.page.bring_to_front()

    async def noop(self, arguments: Arguments) -> None:
        await asyncio.sleep(min(arguments.get("wait_ms", 1000) / 1000, MAX_WAIT_SECONDS))
