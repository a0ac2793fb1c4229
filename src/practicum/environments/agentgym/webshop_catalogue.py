"""Products of a shop, and a generated catalogue of any size.

The same number of products gives the same catalogue on every machine, and a larger one begins with the smaller. Some
attributes of a product are in its title, the others only among its features, so that its page must be opened.
"""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TypeVar

from practicum.data.retrieval import BM25Index, Document
from practicum.environments.agentgym.webshop_words import BRANDS, COLOURS, KINDS, SERIES, Kind
from practicum.utils.seeded_random import SeededRandom

Item = TypeVar("Item")


@dataclass(frozen=True, slots=True)
class Product:
    """One product. `product_category` is a path, as `Clothing › Men › Shirts`."""

    asin: str
    name: str
    category: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    bullets: tuple[str, ...]
    description: str
    options: Mapping[str, tuple[str, ...]]
    pricing: tuple[float, ...]
    price: float
    rating: str = "N.A."
    reviews: tuple[str, ...] = ()

    @property
    def price_tag(self) -> str:
        return " to ".join(f"${price:.2f}" for price in self.pricing)


@dataclass(frozen=True)
class Catalogue:
    """Products and their search index. Immutable: all episodes share one."""

    name: str
    products: tuple[Product, ...]
    by_asin: Mapping[str, Product] = field(init=False)
    index: BM25Index = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "by_asin", MappingProxyType({product.asin: product for product in self.products}))
        # The constants of WebShop's Lucene index.
        object.__setattr__(self, "index", BM25Index(map(_document, self.products), k1=0.9, b=0.4))

    def search(self, keywords: str, count: int) -> list[Product]:
        """Return the best matching products, best first."""
        return [self.by_asin[hit.document.id] for hit in self.index.search(keywords, count)]


def _document(product: Product) -> Document:
    chosen = " ".join(f"{name} {' '.join(values)}" for name, values in product.options.items())
    return Document(product.asin, product.name, " ".join((product.description, *product.bullets, chosen)))


@functools.lru_cache(maxsize=4)
def generated(count: int) -> Catalogue:
    """Return the catalogue of that many products, generated once per process."""
    return Catalogue(f"generated-{count}", tuple(make_product(index) for index in range(count)))


def make_product(index: int) -> Product:
    rng = SeededRandom(f"webshop-product/{index}")
    kind = KINDS[index % len(KINDS)]
    values = rng.sample(kind.attributes, 3 + rng.below(3))
    title_attributes = values[: 1 + rng.below(2)]
    brand, series = rng.choice(BRANDS), f"{rng.choice(SERIES)} {rng.below(90) + 10}"
    name = f"{brand} {series} {rng.choice(kind.titles)}, {', '.join(word.title() for word in title_attributes)}"
    low = round(kind.low + (kind.high - kind.low) * rng.below(1000) / 1000, 2)
    ranged = rng.below(5) == 0
    pricing = (low, round(low * 1.4, 2)) if ranged else (low,)
    return Product(
        asin=_asin(index),
        name=name,
        category=kind.category,
        query=kind.query,
        product_category=kind.path,
        attributes=tuple(values),
        bullets=_bullets(kind, values, rng),
        description=f"A {kind.query} by {brand} from the {series} line. {rng.choice(kind.blurbs)}",
        options=MappingProxyType(_options(kind, rng)),
        pricing=pricing,
        # Of a price range WebShop charges a price between its bounds.
        price=round(sum(pricing) / len(pricing), 2),
        rating=f"{3 + rng.below(20) / 10:.1f}",
        reviews=tuple(rng.sample(kind.reviews, rng.below(3))),
    )


def _asin(number: int) -> str:
    """Return an id of ten characters beginning with B; the last five encode the number."""
    alphabet = "0123456789ABCDEFGHJKLMNPQRSTUVWXYZ"
    digest = hashlib.sha256(f"webshop-asin/{number}".encode()).digest()
    spelt = ""
    for _ in range(5):
        number, index = divmod(number, len(alphabet))
        spelt = alphabet[index] + spelt
    return "B" + "".join(alphabet[byte % len(alphabet)] for byte in digest[:4]) + spelt


def _bullets(kind: Kind, attributes: Sequence[str], rng: SeededRandom) -> tuple[str, ...]:
    shapes = ("{} for every day", "made to be {}", "{}, as tested by our customers", "you will like that it is {}")
    sentences = [rng.choice(shapes).format(attribute) for attribute in attributes]
    return (*sentences, rng.choice(kind.blurbs))


def _options(kind: Kind, rng: SeededRandom) -> dict[str, tuple[str, ...]]:
    chosen: dict[str, tuple[str, ...]] = {}
    for option, values in kind.options:
        pool = COLOURS if option == "color" else values
        drawn_values = rng.sample(pool, 2 + rng.below(5))
        if drawn_values and rng.below(6):  # a sixth of the products do not have this option
            chosen[option] = tuple(drawn_values)
    return chosen
