"""The pages of the shop as text, and their clickable elements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from practicum.environments.agentgym.webshop_catalogue import Product

BACK, PREVIOUS, NEXT, BUY = "back to search", "< prev", "next >", "buy now"
TABS = ("description", "features", "reviews", "attributes")
SEPARATOR = " [SEP] "
RESULTS_PER_PAGE = 10
"""Number of results per page."""
MAX_RESULTS = 50


@dataclass(frozen=True, slots=True)
class Page:
    """The current page. Without a product: the results, or without results the search bar."""

    results: tuple[Product, ...] | None = None
    keywords: str = ""
    number: int = 1
    product: Product | None = None
    tab: str = ""
    chosen: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_search_bar(self) -> bool:
        return self.results is None

    @property
    def visible_results(self) -> tuple[Product, ...]:
        """The results of this page."""
        return (self.results or ())[(self.number - 1) * RESULTS_PER_PAGE : self.number * RESULTS_PER_PAGE]


def plain(text: str) -> str:
    """Normalise the name of a clickable element: lower case, single spaces."""
    return " ".join(text.lower().split())


def clickables(page: Page) -> tuple[str, ...]:
    """Return the clickable elements, in the order of the page."""
    if page.results is None:
        return ()
    if page.product is None:
        turns = [PREVIOUS] * (page.number > 1) + [NEXT] * (page.number * RESULTS_PER_PAGE < len(page.results))
        return (BACK, *turns, *(plain(product.asin) for product in page.visible_results))
    if page.tab:
        return (BACK, PREVIOUS)
    options = tuple(plain(value) for values in page.product.options.values() for value in values)
    return (BACK, PREVIOUS, *options, *TABS, BUY)


def show(page: Page, instruction: str) -> str:
    """Return the page as WebShop's text observation: its elements between separators."""
    head = ["Instruction:", instruction]
    if page.results is None:
        return SEPARATOR.join(["WebShop", *head, "Search"])
    return SEPARATOR.join([*head, "Back to Search", *_body(page)])


def show_shortly(page: Page) -> str:
    """Return the page in few tokens; the instruction is in the first observation and is not repeated."""
    if page.results is None:
        return "Search page."
    if page.product is None:
        lines = [f"{product.asin}: {product.name} {product.price_tag}" for product in page.visible_results]
        return "\n".join([f"Results, page {page.number} of {_pages(page)}:", *lines])
    if page.tab:
        return "\n".join(_tab(page.product, page.tab))
    lines = [f"{page.product.asin}: {page.product.name} {page.product.price_tag}"]
    for name, values in page.product.options.items():
        values_text = [f"({value})" if page.chosen.get(name) == value else value for value in values]
        lines.append(f"{name}: {', '.join(values_text)}")
    return "\n".join(lines)


def _pages(page: Page) -> int:
    return max(1, -(-len(page.results or ()) // RESULTS_PER_PAGE))


def _body(page: Page) -> list[str]:
    if page.product is None:
        turns = ["< Prev"] * (PREVIOUS in clickables(page)) + ["Next >"] * (NEXT in clickables(page))
        visible_results = [
            piece for product in page.visible_results for piece in (product.asin, product.name, product.price_tag)
        ]
        return [f"Page {page.number} (Total results: {len(page.results or ())})", *turns, *visible_results]
    if page.tab:
        return ["< Prev", *_tab(page.product, page.tab)]
    options: list[str] = []
    for name, values in page.product.options.items():
        options.append(name)
        options += [f"[{value}]" if page.chosen.get(name) == value else value for value in values]
    buttons = [*(tab.title() for tab in TABS), "Buy Now"]
    product = page.product
    return ["< Prev", *options, product.name, f"Price: {product.price_tag}", f"Rating: {product.rating}", *buttons]


def _tab(product: Product, tab: str) -> list[str]:
    texts = {
        "description": (product.description,),
        "features": product.bullets,
        "reviews": product.reviews,
        "attributes": (*product.attributes, product.product_category),
    }[tab]
    return [text for text in texts if text] or ["Nothing here."]
