"""What a web agent sees: the accessibility tree as text, HALO's summary of it, and keys that name a state.

Element ids (`bid`) are valid on one page load only. A state key has roles and names instead, so that the same page has
the same key in every load and episode; `obs_hash` is HALO's, with ids and the last action in it.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import parse_qs, quote, urlsplit

ACTIONABLE_ROLES = frozenset((
    "button", "link", "textbox", "combobox", "menuitem", "checkbox", "radio", "searchbox", "tab", "menuitemcheckbox",
    "menuitemradio", "option", "spinbutton", "slider", "switch",
))  # fmt: skip
VALUE_ROLES = frozenset(("textbox", "searchbox", "combobox", "spinbutton", "slider"))
RECALL_WORDS = (
    "search", "checkout", "cart", "add to cart", "add to basket", "buy", "purchase", "place order", "order", "pay",
    "payment", "sign in", "log in", "login", "submit", "continue", "next", "send", "compose", "reply",
)  # fmt: skip
"""The first element whose name has one of these words is always in the summary."""
TOP_K = 30
"""Elements of a summary."""
MAX_NAME_CHARS = 50
"""Characters of a name in a summary."""
MIN_SCANNED_NODES = 300
KEY_ELEMENTS = 10
"""Elements that are part of a state key and of an observation's hash."""
MAX_TREE_CHARS = 20_000
TRACKING_PARAMETERS = frozenset(
    ("sid", "session", "token", "utm_source", "utm_medium", "utm_campaign", "ref", "fbclid", "gclid", "_ga")
)


@dataclass(frozen=True, slots=True)
class Node:
    """One node of the accessibility tree; `bid` is "" where no action can name it. `clickable` is set for elements that
    have no role and react to clicks."""

    role: str
    name: str = ""
    bid: str = ""
    depth: int = 0
    value: str = ""
    properties: tuple[str, ...] = ()
    clickable: bool = False


@dataclass(frozen=True, slots=True)
class Element:
    """An element that an agent can act on."""

    bid: str
    role: str
    name: str


@dataclass(frozen=True, slots=True)
class PageView:
    """A page as the agent finds it: nodes in the order of the page, and the urls of all tabs."""

    url: str
    title: str = ""
    nodes: tuple[Node, ...] = ()
    tabs: tuple[str, ...] = ()
    active_tab: int = 0
    notes: tuple[str, ...] = ()
    """What happened beside the page: a dialog that was dismissed, a request that was refused."""


def actionable_elements(nodes: Iterable[Node], top_k: int = TOP_K) -> tuple[Element, ...]:
    """Return at most `top_k` elements: the first ones, and for each recall word the first whose name has it.

    Where that is too many, the last elements without a recall word are left out.
    """
    if top_k <= 0:
        return ()
    first: list[Element] = []
    recalled: dict[str, Element] = {}
    max_scanned = max(top_k * 10, MIN_SCANNED_NODES)
    for num_scanned, node in enumerate(nodes, 1):
        if num_scanned >= max_scanned and len(first) >= top_k:
            break
        role = node.role.lower()
        if role not in ACTIONABLE_ROLES or not node.bid:
            continue
        element = Element(node.bid, role, one_line(node.name)[:MAX_NAME_CHARS])
        if len(first) < top_k:
            first.append(element)
        lowered = node.name.lower()
        for word in RECALL_WORDS:
            if word in lowered:
                recalled.setdefault(word, element)
    kept = {element.bid for element in recalled.values()}
    chosen = list(first)
    for word in RECALL_WORDS:
        if word in recalled and recalled[word] not in chosen:
            chosen.append(recalled[word])
    for index in range(len(chosen) - 1, -1, -1):
        if len(chosen) > top_k and chosen[index].bid not in kept:
            del chosen[index]
    return tuple(chosen[:top_k])


def sections(goal: str, url: str, last_action: str = "", last_error: str = "", notes: Sequence[str] = ()) -> list[str]:
    """Return the sections that come before the page; empty ones are left out."""
    parts = [
        ("Goal", goal),
        ("Current URL", url),
        ("Last Action", last_action),
        ("Last Action Error", last_error),
        ("Notes", "\n".join(notes)),
    ]
    return [f"# {title}\n{text}" for title, text in parts if text]


def summary_text(
    goal: str, url: str, elements: Sequence[Element], last_action: str = "", last_error: str = "",
    notes: Sequence[str] = (),
) -> str:  # fmt: skip
    """Return HALO's summary of an observation; `notes` are a section of ours and absent where there are none."""
    parts = sections(goal, url, last_action, last_error, notes)
    if elements:
        lines = [
            f"[{element.bid}] {element.role}" + (f' "{element.name}"' if element.name else "") for element in elements
        ]
        parts.append("# Actionable Elements (bid, role, name)\n" + "\n".join(lines))
    return "\n\n".join(parts)


def tree_text(nodes: Sequence[Node], max_chars: int = MAX_TREE_CHARS) -> str:
    """Return the tree as lines such as `[12] button 'Add to cart', focused`; the last line says what was left out."""
    lines: list[str] = []
    length = 0
    for index, node in enumerate(nodes):
        line = "\t" * node.depth + _node_text(node)
        length += len(line) + 1
        if length > max_chars:
            lines.append(f"... and {len(nodes) - index} more lines")
            break
        lines.append(line)
    return "\n".join(lines)


def _node_text(node: Node) -> str:
    text = f"[{node.bid}] " if node.bid else ""
    text += f"{node.role} {one_line(node.name)!r}" if node.name or node.role != "generic" else node.role
    if node.value:
        text += f" value={one_line(node.value)!r}"
    flags = (*node.properties, *(("clickable",) if node.clickable else ()))
    return ", ".join((text, *flags))


def one_line(text: str) -> str:
    """Return a text with every run of spaces and line breaks as one space."""
    return re.sub(r"\s+", " ", text).strip()


def obs_hash(url: str, last_action: str, last_error: str, nodes: Iterable[Node]) -> str:
    """Return HALO's hash of an observation: sixteen hex digits of SHA-256."""
    elements = actionable_elements(nodes, KEY_ELEMENTS)
    signature = "|".join(f"{element.bid}:{element.role}" for element in elements)
    return hashlib.sha256(f"{url}|{last_action}|{last_error}|{signature}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class StateKey:
    """The name of a state: site, kind of page, address, its first elements by role and name, and whether the last
    action failed."""

    site_id: str
    page_type: str
    url: str
    elements: str
    has_error: bool

    def __str__(self) -> str:
        fields = (self.site_id, self.page_type, self.url, self.elements, str(self.has_error))
        return "|".join(fields)

    @classmethod
    def parse(cls, text: str) -> StateKey:
        """Return the key of a text. The signature of the elements has bars of its own, so it is what is left when the
        three fields before it and the one behind it are taken off."""
        parts = text.split("|", 3)
        elements, bar, has_error = parts[-1].rpartition("|")
        if len(parts) != 4 or not bar or has_error not in ("True", "False"):
            raise ValueError(f"'{text[:80]}' is not a state key")
        return cls(parts[0], parts[1], parts[2], elements, has_error == "True")

    @property
    def hash(self) -> str:
        """Sixteen hex digits of SHA-256 over the key's text."""
        return hashlib.sha256(str(self).encode()).hexdigest()[:16]


def state_key(
    url: str, nodes: Iterable[Node], *, title: str = "", has_error: bool = False, site_id: str | None = None
) -> StateKey:
    """Return the key of a page's state. Ids are no part of it: a page has the same key in every load."""
    elements = "|".join(
        f"{element.role}:{hashlib.md5(element.name.encode()).hexdigest()[:4] if element.name else ''}"
        for element in actionable_elements(nodes, KEY_ELEMENTS)
    )
    site = (site_id if site_id is not None else site_of(url)).replace("|", "%7C")
    return StateKey(site, page_type(url, title), normalised_url(url), elements, has_error)


def site_of(url: str) -> str:
    """Return the first part of a url's host, "unknown" where it has none."""
    return urlsplit(url).netloc.lower().split(".")[0] or "unknown"


def normalised_url(url: str) -> str:
    """Return a url without tracking parameters, fragment and trailing slash, its query sorted, each key once."""
    if not url:
        return ""
    parts = urlsplit(url)
    query = {key: values[0] for key, values in parse_qs(parts.query).items() if key.lower() not in TRACKING_PARAMETERS}
    joined = "&".join(f"{key}={value}" for key, value in sorted(query.items()))
    text = f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/')}?{joined}".rstrip("?")
    return text.replace("|", quote("|"))


_PATHS: tuple[tuple[str, tuple[str, ...], tuple[str, ...]], ...] = (
    ("login", ("/login", "/signin", "/sign-in", "/auth"), ("login", "sign in", "log in")),
    ("checkout", ("/checkout", "/payment", "/order", "/purchase"), ("checkout", "payment", "order confirmation")),
    ("cart", ("/cart", "/basket", "/bag"), ("cart", "basket", "shopping bag")),
    ("product", ("/product", "/item", "/dp/", "/p/"), ("product details", "buy now")),
)
_LATER_PATHS = (
    ("form", ("/contact", "/form", "/submit", "/register", "/signup")),
    ("profile", ("/profile", "/account", "/user")),
    ("settings", ("/settings", "/preferences", "/config")),
)


def page_type(url: str, title: str = "") -> str:
    """Return the kind of a page by words in its url and title: login, checkout, cart, product, search, results,
    email_list, email_compose, email_view, calendar, form, profile, settings, home or unknown."""
    url, title = url.lower(), title.lower()
    path, query = urlsplit(url).path, urlsplit(url).query
    for kind, in_path, in_title in _PATHS:
        if _has(path, in_path) or _has(title, in_title):
            return kind
    if _has(query, ("search", "q=", "s=")):
        return "search"
    if _has(path, ("/search", "/results", "/browse")):
        return "results"
    if _has(url, ("mail", "inbox")):
        if _has(path, ("compose", "new", "write")):
            return "email_compose"
        return "email_view" if _has(path, ("/view", "/read", "/message/")) else "email_list"
    if _has(url, ("calendar", "schedule", "event")):
        return "calendar"
    for kind, words in _LATER_PATHS:
        if _has(path, words):
            return kind
    return "home" if path in ("", "/", "/home", "/index") else "unknown"


def _has(text: str, words: Sequence[str]) -> bool:
    return any(word in text for word in words)
