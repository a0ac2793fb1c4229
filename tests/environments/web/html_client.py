"""A browser without a browser: reads the HTML of the sites, clicks links, fills forms, follows redirects.

Names and roles of elements are computed as Chromium does for the HTML that the sites use: text of links and buttons,
`aria-label` of form controls, nothing inside an inert part.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from html.parser import HTMLParser
from urllib.parse import parse_qsl, urlencode, urlsplit

from practicum.environments.web.experts import ExpertElement, ExpertView, PageAction
from practicum.environments.web.sites.site import Response, SiteSession

MAX_REDIRECTS = 5
INPUT_ROLES = {"text": "textbox", "search": "searchbox", "checkbox": "checkbox", "radio": "radio"}
Fetch = Callable[[str, str, dict[str, str]], Response]
"""Takes a method, a path with its query, and a form."""


@dataclass
class Control:
    tag: str
    attributes: dict[str, str]
    role: str
    form: int | None
    name: str = ""
    value: str = ""
    checked: bool = False
    options: list[str] = field(default_factory=list)

    @property
    def group(self) -> str:
        """The name under which the form sends the control."""
        return self.attributes.get("name", "")


@dataclass
class FormTag:
    action: str
    method: str


class PageParser(HTMLParser):
    """Collects the controls, forms, text and headings of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.controls: list[Control] = []
        self.forms: list[FormTag] = []
        self.texts: list[str] = []
        self.tags: list[str] = []
        self._labels: dict[str, str] = {}
        self._open: list[str] = []
        self._inert_depth: int | None = None
        self._form: int | None = None
        self._current: Control | None = None
        self._label: str | None = None
        self._option: list[str] | None = None
        self.feed(html)
        self.close()
        assert not self._open, f"unclosed tags: {self._open}"
        for control in self.controls:
            if control.tag in ("input", "select", "textarea"):
                control.name = control.attributes["aria-label"]
                assert control.name == self._labels[control.attributes["id"]], "what is read is what is seen"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = {key: value or "" for key, value in attrs}
        self.tags.append(tag)
        if tag not in ("input", "meta", "br"):
            self._open.append(tag)
            if "inert" in attributes and self._inert_depth is None:
                self._inert_depth = len(self._open)
        if tag == "form":
            self.forms.append(FormTag(attributes["action"], attributes["method"]))
            self._form = len(self.forms) - 1
        elif tag == "label":
            self._label = attributes["for"]
            self._labels[self._label] = ""
        elif tag == "option":
            self._option = ["", "selected" if "selected" in attributes else ""]
        elif tag in ("a", "button", "input", "select", "textarea"):
            self._start_control(tag, attributes)

    def _start_control(self, tag: str, attributes: dict[str, str]) -> None:
        roles = {"a": "link", "button": "button", "select": "combobox", "textarea": "textbox"}
        role = INPUT_ROLES[attributes["type"]] if tag == "input" else roles[tag]
        value = attributes.get("value", "")
        control = Control(tag, attributes, role, self._form, value=value, checked="checked" in attributes)
        if self._inert_depth is None:
            self.controls.append(control)
        self._current = control if tag != "input" else None

    def handle_endtag(self, tag: str) -> None:
        assert self._open, f"unmatched </{tag}>"
        assert self._open[-1] == tag, f"</{tag}> closes <{self._open[-1]}>"
        if self._inert_depth == len(self._open):
            self._inert_depth = None
        self._open.pop()
        if tag == "form":
            self._form = None
        elif tag == "label":
            self._label = None
        elif tag == "option" and self._option is not None and self._current is not None:
            text, selected = self._option
            self._current.options.append(text)
            if selected or len(self._current.options) == 1:
                self._current.value = text
            self._option = None
        elif tag in ("a", "button", "select", "textarea"):
            self._current = None

    def handle_data(self, data: str) -> None:
        if self._label is not None:
            self._labels[self._label] += data
        if self._option is not None:
            self._option[0] += data
        elif self._current is not None:
            if self._current.tag == "textarea":
                self._current.value += data
            else:
                self._current.name += data
        elif self._open and self._open[-1] not in ("style", "title", "label"):
            self.texts.append(data)


class HtmlClient:
    """Visits pages through `fetch`."""

    def __init__(self, fetch: Fetch, start: str) -> None:
        self._fetch = fetch
        self.status = 0
        self.body = ""
        self.path = ""
        self.bodies: list[str] = []
        self.goto(start)

    @classmethod
    def of_session(cls, session: SiteSession) -> HtmlClient:
        """Return a client that calls the session without a server."""

        def fetch(method: str, url: str, form: dict[str, str]) -> Response:
            parts = urlsplit(url)
            return session.handle(method, parts.path, dict(parse_qsl(parts.query, keep_blank_values=True)), form)

        return cls(fetch, session.start_path)

    def goto(self, url: str, method: str = "GET", form: dict[str, str] | None = None) -> None:
        for _ in range(MAX_REDIRECTS):
            response = self._fetch(method, url, form or {})
            if not response.location:
                break
            method, url, form = "GET", response.location, {}
        else:
            raise AssertionError("endless redirects")
        self.status, self.body, self.path = response.status, response.body, url
        self.bodies.append(self.body)
        self.page = PageParser(self.body)

    @property
    def view(self) -> ExpertView:
        elements = (ExpertElement(c.role, c.name, c.value, c.checked) for c in self.page.controls)
        return ExpertView(self.path, tuple(elements))

    @property
    def text(self) -> str:
        return " ".join(self.page.texts)

    def control(self, role: str, name: str) -> Control:
        matches = [item for item in self.page.controls if item.role == role and item.name == name]
        assert len(matches) == 1, f"{len(matches)} elements {role} '{name}' on {self.path}"
        return matches[0]

    def act(self, action: PageAction) -> None:
        if action.verb == "goto":
            self.goto(action.text)
            return
        control = self.control(action.role, action.name)
        if action.verb == "click":
            self.click(control)
        elif action.verb == "select_option":
            assert action.text in control.options, f"{control.name} has no option {action.text}: {control.options}"
            control.value = action.text
        elif action.verb == "fill":
            assert control.role in ("textbox", "searchbox")
            control.value = action.text
        else:
            raise AssertionError(action.verb)

    def click(self, control: Control) -> None:
        if control.role == "link":
            self.goto(control.attributes["href"])
        elif control.role == "checkbox":
            control.checked = not control.checked
        elif control.role == "radio":
            for item in self.page.controls:
                if item.role == "radio" and item.form == control.form and item.group == control.group:
                    item.checked = item is control
        elif control.role == "button":
            self.submit(control)

    def submit(self, control: Control) -> None:
        assert control.form is not None
        form = self.page.forms[control.form]
        fields = {
            item.attributes["name"]: item.value
            for item in self.page.controls
            if item.form == control.form
            and "name" in item.attributes
            and (item.role not in ("checkbox", "radio") or item.checked)
        }
        url = control.attributes.get("formaction", form.action)
        if form.method == "get":
            self.goto(f"{url}?{urlencode(fields)}")
        else:
            self.goto(url, "POST", fields)
