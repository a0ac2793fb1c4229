"""Screens of `gui`: a desktop of windows, and the effects of actions on it.

A screen is plain JSON in its task: windows from back to front, each with its widgets and their pixel boxes. `Desktop`
is the state that actions change; what it shows depends on nothing else.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

WIDTH, HEIGHT = 640, 480
TITLE_HEIGHT, ROW_HEIGHT, ITEM_HEIGHT, ITEM_WIDTH = 24, 22, 24, 130
ROWS_SHOWN = 5
ROWS_PER_SCROLL = ROWS_SHOWN - 1
"""Number of rows that one scroll moves: one row stays visible."""
SCROLL_BAR, CAPTION = 12, 20
"""Pixels of the scroll bar at a list's right and of the caption above it."""
MAX_TEXT_CHARS = 60
NOTHING_THERE = "Nothing is there."

Box = tuple[int, int, int, int]
WidgetKey = tuple[str, str]
"""A window's title and a label in it."""


@dataclass(frozen=True, slots=True)
class Widget:
    """A widget on the screen in its current state.

    `on` means ticked, selected, open, focused or in front, by its kind; `value` is a field's text or the visible range
    of a list's rows.
    """

    kind: str
    label: str
    window: str
    box: Box
    value: str = ""
    on: bool = False

    @property
    def key(self) -> WidgetKey:
        return self.window, self.label

    @property
    def line(self) -> str:
        """The widget as text: kind, label, state, box."""
        states = {
            "window": "" if self.on else " behind",
            "field": f" {json.dumps(self.value, ensure_ascii=False)}{' focused' if self.on else ''}",
            "checkbox": " on" if self.on else " off",
            "list": f" {self.value}",
            "row": " selected" if self.on else "",
            "menu": " open" if self.on else "",
        }
        return f"{self.kind} '{self.label}'{states.get(self.kind, '')} {list(self.box)}"


def centre(box: Sequence[float]) -> tuple[float, float]:
    """Return the centre of a box; a point is returned unchanged."""
    if len(box) == 2:
        return box[0], box[1]
    return (box[0] + box[2]) / 2, (box[1] + box[3]) / 2


def _holds(box: Box, x: float, y: float) -> bool:
    return box[0] <= x < box[2] and box[1] <= y < box[3]


class Desktop:
    """Windows in their order and the state of their widgets."""

    def __init__(self, screen: Mapping[str, Any]) -> None:
        self.windows: dict[str, Mapping[str, Any]] = {window["title"]: window for window in screen["windows"]}
        self.order = list(self.windows)
        """Titles from back to front."""
        self.texts: dict[WidgetKey, str] = {}
        self.ticked: set[WidgetKey] = set()
        self.scrolled: dict[WidgetKey, int] = {}
        """Index of the first row that a list shows."""
        self.selected: dict[WidgetKey, str] = {}
        self.open: WidgetKey | None = None
        self.focus: WidgetKey | None = None
        self.marked = False
        """Whether the whole text of the focused field is selected: typing then replaces it."""
        self.pressed: WidgetKey | None = None
        """The button or menu item that was pressed; the episode is then over."""
        for title, window in self.windows.items():
            for widget in window["widgets"]:
                key = title, widget["label"]
                if widget["kind"] == "field":
                    self.texts[key] = widget["text"]
                elif widget["kind"] == "checkbox" and widget["on"]:
                    self.ticked.add(key)
                elif widget["kind"] == "list":
                    self.scrolled[key] = 0

    # -- state -----------------------------------------------------------------------------

    def layers(self) -> list[Widget]:
        """Yield all widgets in the order of painting, back to front. A `body` is a window's own area."""
        widgets: list[Widget] = []
        for title in self.order:
            window = self.windows[title]
            left, top, right, bottom = window["box"]
            front = title == self.order[-1]
            widgets.append(Widget("body", title, title, (left, top, right, bottom)))
            widgets.append(Widget("window", title, title, (left, top, right, top + TITLE_HEIGHT), on=front))
            for widget in window["widgets"]:
                widgets.extend(self._widgets(title, widget))
        if self.open is not None:
            widgets.extend(self._items(*self.open))
        return widgets

    def _widgets(self, title: str, widget: Mapping[str, Any]) -> Iterator[Widget]:
        kind, label, key = widget["kind"], widget["label"], (title, widget["label"])
        left, top, right, bottom = widget["box"]
        box = left, top, right, bottom
        if kind == "list":
            rows, first = widget["rows"], self.scrolled[key]
            visible_rows = rows[first : first + ROWS_SHOWN]
            yield Widget(kind, label, title, box, f"rows {first + 1}-{first + len(visible_rows)} of {len(rows)}")
            for index, row in enumerate(visible_rows):
                edge = top + index * ROW_HEIGHT
                line = left, edge, right - SCROLL_BAR, edge + ROW_HEIGHT
                yield Widget("row", row, title, line, label, self.selected.get(key) == row)
            return
        on = key in self.ticked or key == self.focus or key == self.open
        yield Widget(kind, label, title, box, self.texts.get(key, ""), on)

    def _items(self, title: str, menu: str) -> Iterator[Widget]:
        widget = self.widget((title, menu))
        left, top = widget["box"][0], widget["box"][3]
        for index, item in enumerate(widget["items"]):
            edge = top + index * ITEM_HEIGHT
            yield Widget("item", item, title, (left, edge, left + ITEM_WIDTH, edge + ITEM_HEIGHT))

    def widget(self, key: WidgetKey) -> Mapping[str, Any]:
        """Return a widget's record in the task."""
        widgets: Mapping[str, Any] = next(w for w in self.windows[key[0]]["widgets"] if w["label"] == key[1])
        return widgets

    def hit(self, x: float, y: float) -> Widget | None:
        """Return the topmost widget at a point."""
        return next((widget for widget in reversed(self.layers()) if _holds(widget.box, x, y)), None)

    def visible(self) -> list[Widget]:
        """Return the clickable widgets: the front window first, then the visible parts of the others."""
        layers = self.layers()
        seen = [widget for widget in layers if widget.kind != "body" and self._shows(widget, layers)]
        rank = {title: index for index, title in enumerate(reversed(self.order))}
        return sorted(seen, key=lambda widget: rank[widget.window])

    @staticmethod
    def _shows(widget: Widget, layers: Sequence[Widget]) -> bool:
        x, y = centre(widget.box)
        top = next(other for other in reversed(layers) if _holds(other.box, x, y))
        # The centre of a list is one of its own rows.
        own_row = widget.kind == "list" and top.kind == "row" and (top.window, top.value) == widget.key
        return top == widget or own_row

    def describe(self) -> str:
        return "\n".join(widget.line for widget in self.visible())

    # -- actions ---------------------------------------------------------------------------

    def act(self, name: str, arguments: Mapping[str, Any]) -> str:
        """Execute an action of the format `gui` and return a text about its effect."""
        if self.pressed is not None:
            return "It is done already."
        if name in ("click", "double_click"):
            return self._click(*centre(arguments["box"]), twice=name == "double_click")
        if name == "type":
            return self._type(arguments["text"])
        if name == "scroll":
            return self._scroll(arguments["direction"], arguments.get("box"))
        if name == "press":
            return self._press(arguments["key"])
        return "Nothing changed."

    def _click(self, x: float, y: float, twice: bool) -> str:
        widget = self.hit(x, y)
        if self.open is not None and (widget is None or widget.kind not in ("menu", "item")):
            self.open = None  # a click outside closes the menu and has its own effect too
        if widget is None:
            return NOTHING_THERE
        if widget.window != self.order[-1]:
            self.order.remove(widget.window)
            self.order.append(widget.window)
            self.focus = None
            if widget.kind in ("window", "body"):
                return f"Window '{widget.window}' is in front."
        if widget.kind in ("button", "item"):
            self.pressed = widget.key
            return f"Used {widget.kind} '{widget.label}'."
        if widget.kind == "field":
            self.focus, self.marked = widget.key, twice
            return f"Field '{widget.label}' has the focus{', its text is marked' if twice else ''}."
        if widget.kind == "checkbox":
            self.ticked ^= set() if twice else {widget.key}
            return f"Checkbox '{widget.label}' is {'on' if widget.key in self.ticked else 'off'}."
        if widget.kind == "menu":
            # A double click opens it and closes it again.
            self.open = None if twice or self.open == widget.key else widget.key
            return f"Menu '{widget.label}' is {'closed' if self.open is None else 'open'}."
        if widget.kind == "row":
            self.selected[widget.window, widget.value] = widget.label
            return f"Row '{widget.label}' is selected."
        return NOTHING_THERE

    def _type(self, text: str) -> str:
        if self.focus is None:
            return "No field has the focus; click one first."
        if not text.isprintable():
            return "A field takes one line of plain text."
        changed = text if self.marked else self.texts[self.focus] + text
        if len(changed) > MAX_TEXT_CHARS:
            return f"A field takes at most {MAX_TEXT_CHARS} characters."
        self.texts[self.focus], self.marked = changed, False
        return f"Typed into field '{self.focus[1]}'."

    def _press(self, key: str) -> str:
        if key == "escape" and self.open is not None:
            self.open = None
            return "The menu is closed."
        if self.focus is not None and key == "backspace":
            self.texts[self.focus] = "" if self.marked else self.texts[self.focus][:-1]
            self.marked = False
            return f"Deleted from field '{self.focus[1]}'."
        widgets = self.windows[self.order[-1]]["widgets"]
        if key == "tab" and (fields := [w["label"] for w in widgets if w["kind"] == "field"]):
            title, label = self.focus or (self.order[-1], fields[-1])
            self.focus, self.marked = (title, fields[(fields.index(label) + 1) % len(fields)]), False
            return f"Field '{self.focus[1]}' has the focus."
        if key == "enter" and self.focus is not None:
            button = next((w["label"] for w in widgets if w["kind"] == "button"), None)
            if button is not None:
                self.pressed = self.order[-1], button
                return f"Used button '{button}'."
        return "The key does nothing here."

    def _scroll(self, direction: str, box: Sequence[float] | None) -> str:
        widgets = [w for w in self.visible() if w.kind == "list"]
        if box is not None:
            widgets = [w for w in widgets if _holds(w.box, *centre(box))]
        if not widgets:
            return "Nothing there scrolls."
        if direction in ("left", "right"):
            return "It does not scroll that way."
        key = widgets[0].key
        last = max(0, len(self.widget(key)["rows"]) - ROWS_SHOWN)
        before = self.scrolled[key]
        self.scrolled[key] = min(last, max(0, before + (ROWS_PER_SCROLL if direction == "down" else -ROWS_PER_SCROLL)))
        return "The list is at its end." if self.scrolled[key] == before else f"Scrolled {direction}."

    # -- goals -----------------------------------------------------------------------------

    def holds(self, condition: Mapping[str, Any]) -> bool:
        """Return whether one condition of a goal is true now."""
        kind, title = condition["is"], condition["window"]
        if kind == "front":
            return bool(self.order[-1] == title)
        if kind == "fields":
            return all(self.texts[title, label] == text for label, text in condition["texts"].items())
        if kind == "ticked":
            return {label for window, label in self.ticked if window == title} == set(condition["labels"])
        if kind == "shown":
            rows, first = self.widget((title, condition["list"]))["rows"], self.scrolled[title, condition["list"]]
            return condition["label"] in rows[first : first + ROWS_SHOWN]
        if kind == "selected":
            return bool(self.selected.get((title, condition["list"])) == condition["label"])
        return bool((self.open if kind == "open" else self.pressed) == (title, condition["label"]))
