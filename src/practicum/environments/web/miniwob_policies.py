"""Scripted policies for some tasks of MiniWoB++: rules over the goal and the page that is shown.

They are demonstrations to learn from and a check that the tasks can be solved here; they know the tasks' wording.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from practicum.environment import Action, ToolCall
from practicum.environments.web.observation import Node

ORDINAL = re.compile(r"(\d+)(?:st|nd|rd|th)")
QUOTED = re.compile(r'"([^"]*)"')
MONTHS_DAYS_YEARS = re.compile(r"(\d\d)/(\d\d)/(\d{4})")


@dataclass(frozen=True)
class Screen:
    """The goal, the nodes of the page and the actions so far, with what the rules ask about them."""

    goal: str
    nodes: Sequence[Node]
    done: Sequence[str]

    def all(self, *roles: str) -> list[Node]:
        return [node for node in self.nodes if node.role in roles and node.bid]

    def named(self, name: str, *roles: str) -> Node | None:
        return next((node for node in self.all(*roles) if node.name == name), None)

    @property
    def quoted(self) -> list[str]:
        return QUOTED.findall(self.goal)

    @property
    def ordinal(self) -> int:
        """The first ordinal number of the goal, counted from 0."""
        match = ORDINAL.search(self.goal)
        return int(match[1]) - 1 if match else 0

    @property
    def texts(self) -> list[str]:
        return [node.name for node in self.nodes if node.role == "StaticText"]

    def clickable_text(self, text: str) -> Node | None:
        """The element around a text that stands alone in it."""
        for index, node in enumerate(self.nodes):
            if node.role == "StaticText" and node.name.strip() == text and self.nodes[index - 1].bid:
                return self.nodes[index - 1]
        return self.named(text, "link", "text")


Policy = Callable[[str, Sequence[Node], Sequence[str]], Action]
"""Returns an action from the goal, the nodes of the page and the actions so far."""
Rule = Callable[[Screen], Action]
POLICIES: dict[str, Policy] = {}
"""The policies by the names of their tasks."""


def rule_of(*names: str) -> Callable[[Rule], Rule]:
    def register(rule: Rule) -> Rule:
        for name in names:
            POLICIES[name] = lambda goal, nodes, done: rule(Screen(goal, nodes, done))
        return rule

    return register


def first(nodes: Sequence[Node]) -> Node | None:
    return nodes[0] if nodes else None


def click(node: Node | None) -> Action:
    if node is None:
        return Action(content="The element is not there.")
    return Action(calls=(ToolCall("click", {"bid": node.bid}),))


def fill(node: Node, value: str) -> Action:
    return Action(calls=(ToolCall("fill", {"bid": node.bid, "value": value}),))


def submit(screen: Screen) -> Action:
    buttons = screen.all("button")
    named = [node for node in buttons if node.name.lower() in ("submit", "login", "search", "ok")]
    return click(first(named or buttons))


def fill_then_submit(screen: Screen, *texts: str) -> Action:
    """Fill the first fields one after the other, then submit."""
    for node, text in zip(screen.all("textbox", "spinbutton"), texts, strict=False):
        if node.value != text:
            return fill(node, text)
    return submit(screen)


@rule_of("click-test", "click-test-2", "click-test-transfer")
def _first_button(screen: Screen) -> Action:
    return click(screen.named("ONE", "button") or first(screen.all("button")))


@rule_of("click-button", "unicode-test", "click-dialog", "click-dialog-2")
def _named_button(screen: Screen) -> Action:
    name = screen.quoted[0]
    return click(screen.named("Close" if name == "x" else name, "button"))


@rule_of("click-button-sequence")
def _button_sequence(screen: Screen) -> Action:
    return click(screen.named("TWO" if screen.done else "ONE", "button"))


@rule_of("click-link")
def _link(screen: Screen) -> Action:
    return click(screen.clickable_text(screen.quoted[0]))


@rule_of("click-tab")
def _tab(screen: Screen) -> Action:
    name = screen.goal.removeprefix("Click on ").rstrip(".")
    return click(screen.named(name, "link", "tab"))


@rule_of("click-tab-2", "click-tab-2-easy", "click-tab-2-medium", "click-tab-2-hard")
def _find_in_tabs(screen: Screen) -> Action:
    target = screen.clickable_text(screen.quoted[0])
    return click(target or _next_of(screen, screen.all("link")))


@rule_of("click-collapsible-2", "click-collapsible-2-nodelay")
def _find_in_sections(screen: Screen) -> Action:
    return click(screen.clickable_text(screen.quoted[0]) or _next_of(screen, screen.all("tab")))


def _next_of(screen: Screen, nodes: Sequence[Node]) -> Node | None:
    """The first node that was not clicked yet."""
    return next((node for node in nodes if f'click("{node.bid}")' not in screen.done), None)


@rule_of("click-collapsible", "click-collapsible-nodelay")
def _open_and_submit(screen: Screen) -> Action:
    return click(screen.all("tab")[0]) if not screen.done else submit(screen)


@rule_of("click-checkboxes", "click-checkboxes-large", "click-checkboxes-transfer", "click-option")
def _tick(screen: Screen) -> Action:
    wanted = screen.goal.removeprefix("Select ").removesuffix(".").removesuffix(" and click Submit").split(", ")
    for node in screen.all("checkbox", "radio"):
        if ("checked=true" in node.properties) != (node.name in wanted):
            return click(node)
    return submit(screen)


@rule_of("click-widget")
def _widget(screen: Screen) -> Action:
    kind = screen.quoted[0]
    role = {"text": "textbox", "textarea": "textbox"}.get(kind, kind)
    boxes = screen.all(role)
    if kind in ("text", "textarea"):  # a text area is the higher of the two
        boxes.sort(key=lambda node: _height(node), reverse=kind == "textarea")
    return click(first(boxes))


def _box(node: Node) -> tuple[int, ...]:
    """Left, top, width and height of a node."""
    text = next((item for item in node.properties if item.startswith("box=(")), "box=(0, 0, 0, 0)")
    return tuple(map(int, re.findall(r"-?\d+", text)))


def _height(node: Node) -> int:
    return _box(node)[3]


@rule_of("choose-list")
def _choose(screen: Screen) -> Action:
    name = screen.goal.removeprefix("Select ").removesuffix(".").removesuffix(" from the list and click Submit")
    return _choose_option(screen, name) or submit(screen)


def _choose_option(screen: Screen, name: str) -> Action | None:
    """Click on an option; None where it is selected already."""
    option = screen.named(name, "option")
    return None if option is not None and "selected=true" in option.properties else click(option)


@rule_of("form-sequence-3")
def _choose_and_press(screen: Screen) -> Action:
    name = screen.goal.removeprefix("Choose ").partition(" from the dropdown")[0]
    return _choose_option(screen, name) or click(screen.named(screen.quoted[0], "button"))


@rule_of("form-sequence-2")
def _radio_and_text(screen: Screen) -> Action:
    radio, box = (int(ordinal) - 1 for ordinal in ORDINAL.findall(screen.goal)[:2])
    radios, boxes = screen.all("radio"), screen.all("textbox", "spinbutton")
    if "checked=true" not in radios[radio].properties:
        return click(radios[radio])
    if boxes[box].value != screen.quoted[0]:
        return fill(boxes[box], screen.quoted[0])
    return submit(screen)


@rule_of("enter-text", "enter-text-dynamic")
def _text(screen: Screen) -> Action:
    return fill_then_submit(screen, screen.quoted[0])


@rule_of("enter-text-2")
def _cased_text(screen: Screen) -> Action:
    text = screen.quoted[0]
    return fill_then_submit(screen, text.upper() if "upper case" in screen.goal else text.lower())


@rule_of("enter-password")
def _password(screen: Screen) -> Action:
    first, second = screen.all("textbox")[:2]
    return _fill_hidden(screen, [(first, screen.quoted[0]), (second, screen.quoted[0])])


@rule_of("login-user")
def _login(screen: Screen) -> Action:
    return _fill_hidden(screen, list(zip(screen.all("textbox"), screen.quoted, strict=False)))


def _fill_hidden(screen: Screen, fields: Sequence[tuple[Node, str]]) -> Action:
    """Fill fields whose value cannot be seen: each one once."""
    for node, text in fields:
        if not any(action.startswith(f'fill("{node.bid}"') for action in screen.done):
            return fill(node, text)
    return submit(screen)


@rule_of("focus-text", "focus-text-2")
def _focus(screen: Screen) -> Action:
    return click(screen.all("textbox")[screen.ordinal])


@rule_of("enter-date", "enter-time")
def _date_or_time(screen: Screen) -> Action:
    field = screen.all("Date", "InputTime", "DateTime", "textbox")[0]
    date = MONTHS_DAYS_YEARS.search(screen.goal)
    time = re.search(r"(\d+):(\d\d) ([AP])M", screen.goal)
    if date is not None:
        text = f"{date[3]}-{date[1]}-{date[2]}"
    else:
        assert time is not None
        text = f"{int(time[1]) % 12 + 12 * (time[3] == 'P'):02d}:{time[2]}"
    return submit(screen) if screen.done else fill(field, text)


@rule_of("copy-paste")
def _copy(screen: Screen) -> Action:
    boxes = screen.all("textbox")
    source = max(boxes, key=_height)
    target = min(boxes, key=_height)
    return submit(screen) if target.value == source.value else fill(target, source.value)


@rule_of("copy-paste-2")
def _copy_one(screen: Screen) -> Action:
    *sources, target = screen.all("textbox")
    text = sources[screen.ordinal].value
    return submit(screen) if target.value == text else fill(target, text)


@rule_of("scroll-text")
def _last_word(screen: Screen) -> Action:
    boxes = screen.all("textbox")
    source, target = max(boxes, key=_height), min(boxes, key=_height)
    word = re.findall(r"\w+", source.value)[-1]
    return submit(screen) if target.value == word else fill(target, word)


@rule_of("find-word")
def _word(screen: Screen) -> Action:
    words = re.findall(r"\w+", max(screen.texts, key=len))
    return fill_then_submit(screen, words[screen.ordinal])


@rule_of("simple-arithmetic")
def _arithmetic(screen: Screen) -> Action:
    text = " ".join(screen.texts)
    match = re.search(r"(-?\d+)\s*([-+x*])\s*(-?\d+)", text)
    assert match is not None
    first, sign, second = int(match[1]), match[2], int(match[3])
    value = first + second if sign == "+" else first - second if sign == "-" else first * second
    return fill_then_submit(screen, str(value))


@rule_of("simple-algebra")
def _algebra(screen: Screen) -> Action:
    """Solve `x ± a = b` or `a ± x = b`."""
    text = " ".join(screen.texts)
    match = re.search(r"(x|-?\d+)\s*([-+])\s*(x|-?\d+)\s*=\s*(-?\d+)", text)
    assert match is not None
    left, sign, right, result = match[1], match[2], match[3], int(match[4])
    if left == "x":
        value = result - int(right) if sign == "+" else result + int(right)
    else:
        value = result - int(left) if sign == "+" else int(left) - result
    return fill_then_submit(screen, str(value))


@rule_of("text-transform")
def _letters(screen: Screen) -> Action:
    return fill_then_submit(screen, "".join(text.strip() for text in screen.texts))


@rule_of("read-table")
def _table(screen: Screen) -> Action:
    label = screen.goal.removeprefix("Enter the value of ").partition(" into the text field")[0]
    return fill_then_submit(screen, _cell_after(screen, label))


def _cell_after(screen: Screen, label: str) -> str:
    cells = [node.name for node in screen.nodes if node.role in ("cell", "gridcell", "LayoutTableCell")]
    return cells[cells.index(label.strip().rstrip(":")) + 1]


@rule_of("find-greatest")
def _greatest(screen: Screen) -> Action:
    if screen.done:
        return submit(screen)
    cards = [(int(node.name), screen.nodes[index - 1]) for index, node in enumerate(screen.nodes)
             if node.role == "StaticText" and node.name.strip().isdigit()]  # fmt: skip
    return click(max(cards, key=lambda card: card[0])[1])


@rule_of("odd-or-even")
def _odd_or_even(screen: Screen) -> Action:
    for index, node in enumerate(screen.nodes):
        if node.role == "StaticText" and re.fullmatch(r"-?\d+", node.name.strip()):
            is_odd = int(node.name) % 2 == 1
            button = screen.nodes[index - 1 if is_odd else index + 1]
            if f'click("{button.bid}")' not in screen.done:
                return click(button)
    return submit(screen)


@rule_of("use-spinner")
def _spinner(screen: Screen) -> Action:
    match = re.search(r"-?\d+", screen.goal)
    assert match is not None
    return submit(screen) if screen.done else fill(screen.all("spinbutton")[0], match[0])


@rule_of("identify-shape")
def _shape(screen: Screen) -> Action:
    shape = next(node for node in screen.nodes if node.role in ("circle", "rect", "polygon", "text"))
    names = {"circle": "Circle", "rect": "Rectangle", "polygon": "Triangle"}
    name = names.get(shape.role) or ("Number" if shape.name.isdigit() else "Letter")
    return click(screen.named(name, "button"))


@rule_of("search-engine")
def _search(screen: Screen) -> Action:
    """Results come three to a page, with links to the pages below them."""
    boxes = screen.all("textbox")
    if not screen.done:
        return fill(boxes[0], screen.quoted[0])
    if len(screen.done) == 1:
        return click(screen.named("Search", "button"))
    page, position = divmod(screen.ordinal, 3)
    links = screen.all("link")
    if page and len(screen.done) == 2:
        return click(screen.named(str(page + 1), "link"))
    results = [node for node in links if not re.fullmatch(r"[\d<>]+", node.name)]
    return click(results[position] if position < len(results) else None)
