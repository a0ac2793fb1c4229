"""Tasks of `gui`: a screen, an instruction, and the conditions of the goal.

Level 1 is one click. Level 2 is a form: type or tick, then press a button. Level 3 needs a preparation: a list to
scroll, a menu to open, a window to bring to the front, a text to replace.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from practicum.environments.gui_screens import CAPTION, HEIGHT, ROW_HEIGHT, ROWS_SHOWN, TITLE_HEIGHT, WIDTH, Desktop

# fmt: off
TITLES = ("Settings", "Notes", "Mail", "Account", "Profile", "Calendar", "Editor", "Music", "Photos", "Travel")
BUTTONS = ("Save", "Print", "Close", "Send", "Share", "Delete", "Search", "Help", "Stop", "Start", "Reset", "Reply",
           "Archive", "Rename", "Upload", "Install")
FINAL = ("OK", "Next", "Apply", "Submit", "Continue", "Confirm")
OTHER = ("Cancel", "Back", "Later", "Skip")
FIELDS = ("Name", "City", "Street", "Email", "Phone", "Subject", "Company", "Country", "Topic", "Room")
CHECKS = ("Accept", "Remember", "Updates", "Backup", "Sounds", "Dark mode", "Autosave", "Spelling", "Newsletter",
          "Full names")
MENUS = {
    "File": ("New", "Open", "Export", "Import", "Quit"),
    "Edit": ("Undo", "Cut", "Copy", "Paste", "Find"),
    "View": ("Zoom in", "Zoom out", "Toolbar", "Grid"),
    "Tools": ("Options", "Macros", "Check", "Sort"),
}
LISTS = ("People", "Places", "Songs", "Files")
NAMES = ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kim", "Leo", "Mia", "Nils")
ONSETS = ("b", "d", "f", "g", "k", "l", "m", "n", "p", "r", "s", "t", "v", "z", "br", "tr", "st", "sh")
VOWELS = ("a", "e", "i", "o", "u")
CODAS = ("", "", "n", "r", "l", "s", "k")
# fmt: on
LEVELS = (1, 2, 3)
MARGIN, GAP, LABEL_WIDTH = 14, 10, 80
BUTTON_HEIGHT, FIELD_HEIGHT, CHECK_HEIGHT, MENU_HEIGHT = 26, 24, 22, 22
LETTER_PIXELS = 8
"""Upper bound of the mean width of a letter, in pixels."""

Fields = dict[str, Any]


def word(rng: random.Random) -> str:
    """Return an invented name such as Mivar."""
    syllables = (rng.choice(ONSETS) + rng.choice(VOWELS) + rng.choice(CODAS) for _ in range(2))
    return "".join(syllables).capitalize()


class WindowPlan:
    """A window that is filled from top to bottom; boxes are relative to its corner."""

    def __init__(self, rng: random.Random, title: str, width: int = 320) -> None:
        self.rng, self.title, self.width = rng, title, width
        self.widgets: list[dict[str, Any]] = []
        self.bottom = TITLE_HEIGHT

    def menus(self, labels: Sequence[str]) -> None:
        left = 0
        for label in labels:
            right = left + 20 + LETTER_PIXELS * len(label)
            box = [left, self.bottom, right, self.bottom + MENU_HEIGHT]
            self.widgets.append({"kind": "menu", "label": label, "box": box, "items": list(MENUS[label])})
            left = right
        self.bottom += MENU_HEIGHT

    def field(self, label: str, text: str = "") -> None:
        top = self.bottom + GAP
        box = [MARGIN + LABEL_WIDTH, top, self.width - MARGIN, top + FIELD_HEIGHT]
        self.widgets.append({"kind": "field", "label": label, "box": box, "text": text})
        self.bottom = top + FIELD_HEIGHT

    def checkbox(self, label: str, on: bool = False) -> None:
        top = self.bottom + GAP
        box = [MARGIN, top, MARGIN + 30 + LETTER_PIXELS * len(label), top + CHECK_HEIGHT]
        self.widgets.append({"kind": "checkbox", "label": label, "box": box, "on": on})
        self.bottom = top + CHECK_HEIGHT

    def list(self, label: str, rows: Sequence[str]) -> None:
        top = self.bottom + GAP + CAPTION
        box = [MARGIN, top, self.width - MARGIN, top + ROWS_SHOWN * ROW_HEIGHT]
        self.widgets.append({"kind": "list", "label": label, "box": box, "rows": [*rows]})
        self.bottom = box[3]

    def buttons(self, labels: Sequence[str]) -> None:
        """Add one row of buttons, indented from the left."""
        widths = [28 + LETTER_PIXELS * len(label) for label in labels]
        free_width = self.width - 2 * MARGIN - sum(widths) - GAP * (len(widths) - 1)
        left, top = MARGIN + self.rng.randint(0, max(0, free_width)), self.bottom + GAP
        for label, width in zip(labels, widths, strict=True):
            self.widgets.append(
                {"kind": "button", "label": label, "box": [left, top, left + width, top + BUTTON_HEIGHT]}
            )
            left += width + GAP
        self.bottom = top + BUTTON_HEIGHT

    @property
    def height(self) -> int:
        return self.bottom + MARGIN

    def at(self, left: int, top: int) -> dict[str, Any]:
        """Return the window with boxes relative to the screen's corner."""

        def moved(box: Sequence[int]) -> list[int]:
            return [box[0] + left, box[1] + top, box[2] + left, box[3] + top]

        widgets = [{**widget, "box": moved(widget["box"])} for widget in self.widgets]
        return {"title": self.title, "box": moved([0, 0, self.width, self.height]), "widgets": widgets}

    def anywhere(self) -> dict[str, Any]:
        return self.at(self.rng.randint(4, WIDTH - self.width - 4), self.rng.randint(4, HEIGHT - self.height - 4))


def make_task(rng: random.Random, level: int) -> Fields:
    """Return the fields of a task: instruction, screen, and the conditions of its goal in the order to meet them."""
    question, windows, goal = rng.choice(MAKERS[level])(rng)
    return {"question": question, "level": level, "screen": {"windows": windows}, "goal": goal}


Made = tuple[str, list[dict[str, Any]], list[dict[str, Any]]]


def _button(rng: random.Random) -> Made:
    plan = WindowPlan(rng, rng.choice(TITLES))
    labels = rng.sample(BUTTONS, rng.randint(3, 6))
    if rng.random() < 0.3:
        plan.field(rng.choice(FIELDS))
    for first in range(0, len(labels), 2):
        plan.buttons(labels[first : first + 2])
    target = rng.choice(labels)
    return f"Click the button '{target}'.", [plan.anywhere()], [_pressed(plan, target)]


def _tick(rng: random.Random) -> Made:
    plan = WindowPlan(rng, rng.choice(TITLES))
    labels = rng.sample(CHECKS, rng.randint(2, 4))
    for label in labels:
        plan.checkbox(label)
    plan.buttons([rng.choice(FINAL)])
    target = rng.choice(labels)
    return f"Tick '{target}'.", [plan.anywhere()], [_ticked(plan, target)]


def _fill(rng: random.Random) -> Made:
    plan, labels, final = _form(rng, "")
    target, text = rng.choice(labels), rng.choice(NAMES) if rng.random() < 0.3 else word(rng)
    texts = {label: text if label == target else "" for label in labels}
    goal = [{"is": "fields", "window": plan.title, "texts": texts}, _pressed(plan, final)]
    return f"Type '{text}' into the field '{target}' and click '{final}'.", [plan.anywhere()], goal


def _agree(rng: random.Random) -> Made:
    plan = WindowPlan(rng, rng.choice(TITLES))
    labels = rng.sample(CHECKS, rng.randint(2, 4))
    for label in labels:
        plan.checkbox(label)
    target, final = rng.choice(labels), rng.choice(FINAL)
    plan.buttons(rng.sample((final, rng.choice(OTHER)), 2))
    return f"Tick '{target}' and click '{final}'.", [plan.anywhere()], [_ticked(plan, target), _pressed(plan, final)]


def _find(rng: random.Random) -> Made:
    plan = WindowPlan(rng, rng.choice(TITLES))
    names: list[str] = []
    count = rng.randint(10, 17)
    while len(names) < count:
        name = word(rng)
        if name not in names:
            names.append(name)
    label = rng.choice(LISTS)
    plan.list(label, names)
    plan.buttons([rng.choice(OTHER)])
    target = names[rng.randint(ROWS_SHOWN, count - 1)]
    goal = [{"is": kind, "window": plan.title, "list": label, "label": target} for kind in ("shown", "selected")]
    return f"Find '{target}' in the list and click it.", [plan.anywhere()], goal


def _choose(rng: random.Random) -> Made:
    plan = WindowPlan(rng, rng.choice(TITLES))
    menus = rng.sample(tuple(MENUS), rng.randint(2, 4))
    plan.menus(menus)
    for label in rng.sample(FIELDS, 2):
        plan.field(label)
    plan.buttons(rng.sample(BUTTONS, 2))
    menu = rng.choice(menus)
    target = rng.choice(MENUS[menu])
    goal = [{"is": "open", "window": plan.title, "label": menu}, _pressed(plan, target)]
    return f"Choose '{target}' in the menu '{menu}'.", [plan.anywhere()], goal


def _behind(rng: random.Random) -> Made:
    """Two windows with a button of the same name; the wanted one is covered, its title is visible."""
    titles = rng.sample(TITLES, 2)
    while True:
        plans = [WindowPlan(rng, title, 280) for title in titles]
        target = rng.choice(BUTTONS)
        for plan in plans:
            for label in rng.sample(FIELDS, 2):
                plan.field(label)
            others = [label for label in BUTTONS if label != target]
            plan.buttons(rng.sample((target, rng.choice(others)), 2))
        back, front = plans
        left, top = rng.randint(60, WIDTH - 400), rng.randint(4, HEIGHT - 280)
        windows = [back.at(left, top), front.at(left + rng.randint(-50, 50), top + rng.randint(40, 80))]
        seen = [widget.key for widget in Desktop({"windows": windows}).visible()]
        if (back.title, back.title) in seen and (back.title, target) not in seen:
            break
    goal = [{"is": "front", "window": back.title}, _pressed(back, target)]
    return f"Click '{target}' in the window '{back.title}'.", windows, goal


def _replace(rng: random.Random) -> Made:
    plan, labels, final = _form(rng, None)
    before = {widget["label"]: widget["text"] for widget in plan.widgets if widget["kind"] == "field"}
    target, text = rng.choice(labels), word(rng)
    while text == before[target]:
        text = word(rng)
    goal = [{"is": "fields", "window": plan.title, "texts": {**before, target: text}}, _pressed(plan, final)]
    return f"Replace the text of '{target}' with '{text}' and click '{final}'.", [plan.anywhere()], goal


def _form(rng: random.Random, text: str | None) -> tuple[WindowPlan, list[str], str]:
    """Add fields and two buttons. The fields contain `text`, or random words."""
    plan = WindowPlan(rng, rng.choice(TITLES))
    labels = rng.sample(FIELDS, rng.randint(2, 3))
    for label in labels:
        plan.field(label, word(rng) if text is None else text)
    final = rng.choice(FINAL)
    plan.buttons(rng.sample((final, rng.choice(OTHER)), 2))
    return plan, labels, final


def _pressed(plan: WindowPlan, label: str) -> dict[str, Any]:
    return {"is": "pressed", "window": plan.title, "label": label}


def _ticked(plan: WindowPlan, label: str) -> dict[str, Any]:
    return {"is": "ticked", "window": plan.title, "labels": [label]}


MAKERS: dict[int, tuple[Callable[[random.Random], Made], ...]] = {
    1: (_button, _button, _button, _tick),
    2: (_fill, _fill, _agree),
    3: (_find, _choose, _behind, _replace),
}
