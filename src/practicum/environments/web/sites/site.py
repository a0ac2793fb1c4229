"""A site and a session of it: requests in, pages out, state in between.

A session has the site's state and what belongs to one visitor's browser (a message to show once, a dialog). Sessions
share nothing that changes. Pages are a function of the task, the variation and the requests before, byte for byte.
"""

from __future__ import annotations

import abc
import re
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar
from urllib.parse import urlencode

from practicum.environments.web.sites.html import (
    Html,
    action_button,
    button,
    form,
    heading,
    join,
    link,
    paragraph,
    tag,
    textbox,
)
from practicum.environments.web.sites.state import Facts, SiteState
from practicum.environments.web.sites.variation import Faults, FaultsOfRequest, Variation

CHOOSE = "Choose"
"""The option of a combobox in which nothing is chosen yet."""
MAX_FIELD_CHARS = 1000
MAX_PAGES = 50
MAX_STORED_RECORDS = 200
"""A collection does not grow beyond this: an agent that repeats a form for ever must not fill the memory."""
REMOVABLE = re.compile(r"<(a|button)\b[^>]*>.*?</\1>", re.S)
POPUPS = (
    ("News", "Read our news every week."),
    ("Survey", "Tell us what you think."),
    ("Tip", "Try our new app."),
    ("Cookies", "This site uses cookies."),
)
FONTS = ("sans-serif", "serif", "monospace", "system-ui")
COLOURS = (("#fff", "#124"), ("#fdf6e3", "#532"), ("#10242b", "#dee"), ("#eef7ee", "#131"))


class NotFound(Exception):
    """There is no such page or record; the answer has status 404."""


class FormError(Exception):
    """A form cannot be accepted. The visitor is sent back to `path` and sees the message."""

    def __init__(self, message: str, path: str) -> None:
        super().__init__(message)
        self.path = path


@dataclass(frozen=True, slots=True)
class Response:
    """An answer: a page, or a redirect to `location`, after `delay_seconds`."""

    status: int
    body: str = ""
    location: str = ""
    delay_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class SitePage:
    """The content of a page."""

    title: str
    content: Html


class Site(abc.ABC):
    """A web application over one state. Paths are lists of segments below the site's own prefix."""

    name: ClassVar[str]

    def __init__(self, variation: Variation) -> None:
        self.variation = variation
        self.message = ""

    @abc.abstractmethod
    def get(self, path: Sequence[str], query: Mapping[str, str]) -> SitePage:
        """Return a page."""

    @abc.abstractmethod
    def post(self, path: Sequence[str], form: Mapping[str, str]) -> str:
        """Carry out a form and return the path to show next."""

    @abc.abstractmethod
    def navigation(self) -> Html:
        """Return the links that every page has."""

    def word(self, label: str) -> str:
        """Return a label in the variation's words."""
        return self.variation.word(label)

    def url(self, path: str = "") -> str:
        """Return the path of a page of this site."""
        return f"/{self.name}/{path}"

    def search_form(self) -> Html:
        """Return the search field and its button."""
        field = textbox(self.word("Search"), "q", kind="search")
        return form(self.url("search"), field, button(self.word("Search")), method="get")

    def nav_link(self, label: str, path: str = "") -> Html:
        """Return a link of the navigation."""
        return link(self.word(label), self.url(path))

    def post_button(self, label: str, path: str, suffix: str = "") -> Html:
        """Return a button that posts an empty form; `suffix` is added to its label and is not put in other words."""
        return action_button(f"{self.word(label)} {suffix}".strip(), self.url(path))


def page_number(query: Mapping[str, str]) -> int:
    """Return the number of a page of a list, from 1."""
    number = query.get("page", "")
    return int(number) if number in map(str, range(1, MAX_PAGES + 1)) else 1


def require_room(collection: Mapping[str, object], path: str) -> None:
    """Refuse another record in a full collection."""
    if len(collection) >= MAX_STORED_RECORDS:
        raise FormError("There is no room for more.", path)


class SiteSession:
    """One visitor's site. Requests of one session are handled one after the other."""

    def __init__(self, site: Site, state: SiteState, start: str = "", faults: Faults | None = None) -> None:
        self.site, self.state, self.start = site, state, start
        self.faults = faults
        self.num_requests = 0
        self.num_views = 0
        self.visited: set[str] = set()
        """Paths of the pages that were shown, below the site's prefix. The expert reads it; no evaluator does."""
        self._popup: tuple[str, str] | None = None
        self._last_url = self.start_path
        self._lock = threading.Lock()

    @property
    def start_path(self) -> str:
        """The path of the page on which the task starts."""
        return self.site.url(self.start)

    def facts(self) -> Facts:
        """Return a snapshot of the state, taken between two requests."""
        with self._lock:
            return self.state.facts()

    def handle(
        self, method: str, path: str, query: Mapping[str, str] | None = None, form: Mapping[str, str] | None = None
    ) -> Response:
        """Answer a request. `path` begins with the site's name."""
        parts = [part for part in path.split("/") if part]
        with self._lock:
            self.num_requests += 1
            faults = self.faults.draw(self.num_requests) if self.faults else FaultsOfRequest()
            if faults.error:
                body = self._problem("Server error", path if method == "GET" else self._last_url)
                return Response(500, body, delay_seconds=faults.delay_seconds)
            try:
                response = self._answer(method, parts, query or {}, form or {}, faults)
            except NotFound:
                response = Response(404, self._problem("Not found", self.site.url()))
        if faults.delay_seconds:
            return Response(response.status, response.body, response.location, faults.delay_seconds)
        return response

    def _answer(
        self,
        method: str,
        parts: Sequence[str],
        query: Mapping[str, str],
        form: Mapping[str, str],
        faults: FaultsOfRequest,
    ) -> Response:
        if not parts:
            return Response(303, location=self.start_path)
        if parts[0] != self.site.name:
            raise NotFound
        if method == "POST":
            return Response(303, location=self._post(parts[1:], form))
        view = self.site.get(parts[1:], query)
        self.visited.add("/".join(parts[1:]))
        self._last_url = self.site.url("/".join(parts[1:])) + (f"?{urlencode(query)}" if query else "")
        return Response(200, self._page(view, faults))

    def _post(self, path: Sequence[str], form: Mapping[str, str]) -> str:
        if list(path) == ["close-popup"]:
            self._popup = None
            return self._last_url
        if any(len(value) > MAX_FIELD_CHARS for value in form.values()):
            raise NotFound
        try:
            return self.site.url(self.site.post(path, form))
        except FormError as refusal:
            self.site.message = str(refusal)
            return self.site.url(refusal.path)

    def _page(self, view: SitePage, faults: FaultsOfRequest) -> str:
        site, variation = self.site, self.site.variation
        self.num_views += 1
        if faults.popup or self.num_views == variation.popup:
            self._popup = POPUPS[(self.num_views + variation.popup + variation.skin) % len(POPUPS)]
        message = tag("div", site.message, role="alert") if site.message else Html("")
        site.message = ""
        main = tag("main", heading(view.title), message, view.content)
        if faults.vanish is not None:
            main = _without_one(main, faults.vanish)
        navigation = tag("nav", site.navigation(), aria_label="Site")
        parts = (main, navigation) if variation.skin % 2 else (navigation, main)
        if self._popup is None:
            return document(view.title, join(parts), variation.skin)
        title, text = self._popup
        close = action_button(site.word("No thanks"), site.url("close-popup"))
        dialog = tag(
            "div", heading(title, 2), paragraph(text), close, role="dialog", aria_modal="true", aria_label=title
        )
        return document(view.title, join((dialog, tag("div", *parts, inert=True))), variation.skin)

    def _problem(self, title: str, path: str) -> str:
        """Return the page of an error, with one link."""
        main = tag("main", heading(title), link("Try again", path))
        return document(title, main, self.site.variation.skin)


def _without_one(main: Html, position: float) -> Html:
    """Return a page's content without one of its links and buttons."""
    matches = list(REMOVABLE.finditer(main))
    if not matches:
        return main
    match = matches[int(position * len(matches))]
    return Html(main[: match.start()] + main[match.end() :])


def document(title: str, body: Html, skin: int = 0) -> str:
    """Return an HTML document."""
    background, colour = COLOURS[skin % len(COLOURS)]
    style = f"body{{font-family:{FONTS[skin % len(FONTS)]};background:{background};color:{colour};max-width:50em}}"
    style += "nav>*{margin-right:1em;display:inline-block}[role=dialog]{border:2px solid;padding:1em}"
    head = tag("head", tag("meta", charset="utf-8"), tag("title", title), tag("style", Html(style)))
    return f"<!DOCTYPE html>{tag('html', head, tag('body', body), lang='en')}"
