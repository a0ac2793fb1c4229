"""HTML elements as functions. Text is escaped, every form control has a label, and names are short.

`Html` is a string that is already escaped; any other string given as a child is escaped.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

VOID_TAGS = frozenset({"input", "meta", "br"})
Attribute = str | bool | None


class Html(str):
    """Escaped HTML."""

    __slots__ = ()


def escape(child: str) -> Html:
    """Return a child as HTML."""
    return child if isinstance(child, Html) else Html(html.escape(child))


def tag(name: str, /, *children: str, **attributes: Attribute) -> Html:
    """Return an element. `for_` and `class_` lose their underscore, `aria_label` becomes `aria-label`; True is an
    attribute without a value, False and None are left out."""
    parts = [name]
    for key, value in attributes.items():
        if value is None or value is False:
            continue
        key = key.rstrip("_").replace("_", "-")
        parts.append(key if value is True else f'{key}="{html.escape(value)}"')
    opening = f"<{' '.join(parts)}>"
    return Html(opening if name in VOID_TAGS else f"{opening}{join(children)}</{name}>")


def join(children: Iterable[str]) -> Html:
    """Return children one after the other."""
    return Html("".join(map(escape, children)))


def link(name: str, href: str) -> Html:
    """Return a link."""
    return tag("a", name, href=href)


def heading(text: str, level: int = 1) -> Html:
    """Return a heading."""
    return tag(f"h{level}", text)


def paragraph(*children: str) -> Html:
    """Return a paragraph."""
    return tag("p", *children)


def bullets(items: Iterable[str]) -> Html:
    """Return items one below the other. The accessibility tree has the items only, so that it is short."""
    return tag("ul", *(tag("li", item) for item in items), role="none")


def form(action: str, *children: str, method: str = "post") -> Html:
    """Return a form."""
    return tag("form", *children, action=action, method=method)


def button(label: str, action: str | None = None) -> Html:
    """Return a button that submits its form, to `action` where one is given."""
    return tag("button", label, type="submit", formaction=action)


def action_button(label: str, action: str) -> Html:
    """Return a form of one button."""
    return form(action, button(label))


def labelled(label: str, control: Html, key: str) -> Html:
    """Return a control with its visible label. The control has the same name by `aria-label`, and the label's text is
    not a second time in the accessibility tree."""
    return join((tag("label", label, for_=key, aria_hidden="true"), control))


def combobox(label: str, name: str, options: Sequence[str], selected: str = "") -> Html:
    """Return a labelled select element. An option's value is its text."""
    chosen = [tag("option", option, selected=option == selected) for option in options]
    return labelled(label, tag("select", *chosen, name=name, id=f"f-{name}", aria_label=label), f"f-{name}")


def textbox(label: str, name: str, value: str = "", kind: str = "text") -> Html:
    """Return a labelled text field; of kind `search` it is a search box."""
    attributes = {"value": value, "maxlength": "200", "autocomplete": "off", "aria_label": label}
    return labelled(label, tag("input", type=kind, name=name, id=f"f-{name}", **attributes), f"f-{name}")


def text_area(label: str, name: str, value: str = "") -> Html:
    """Return a labelled text field of several lines."""
    field = tag("textarea", value, name=name, id=f"f-{name}", rows="3", maxlength="1000", aria_label=label)
    return labelled(label, field, f"f-{name}")


def checkbox(label: str, name: str, checked: bool) -> Html:
    """Return a labelled check box."""
    field = tag("input", type="checkbox", name=name, id=f"f-{name}", value="yes", checked=checked, aria_label=label)
    return labelled(label, field, f"f-{name}")


def radios(legend: str, name: str, options: Sequence[str], selected: str = "") -> Html:
    """Return a named group of labelled radio buttons. An option's value is its text."""
    rows = []
    for index, option in enumerate(options):
        key, checked = f"f-{name}-{index}", option == selected
        field = tag("input", type="radio", name=name, id=key, value=option, checked=checked, aria_label=option)
        rows.append(tag("div", labelled(option, field, key)))
    return tag("div", tag("span", legend, aria_hidden="true"), *rows, role="radiogroup", aria_label=legend)
