"""Reader of WebShop's original item files in a folder.

`items_shuffle*.json` (products) and `items_ins*.json` (their attributes) are required, `items_human_ins.json`
(instructions written by people) and `reviews*.json` are optional. Goals are in WebShop's own order, so that a session's
number gives the same product as there.
"""

from __future__ import annotations

import functools
import itertools
import json
import random
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from practicum.environments.agentgym.webshop_catalogue import Catalogue, Product
from practicum.environments.agentgym.webshop_goals import options_text, price_limit, price_text
from practicum.environments.agentgym.webshop_reward import ShoppingGoal
from practicum.errors import UserError
from practicum.utils.seeded_random import SeededRandom

SHUFFLE_SEED = 233
"""The seed with which WebShop shuffles its goals."""


@functools.lru_cache(maxsize=4)
def read_shop(folder: str, limit: int | None) -> tuple[Catalogue, tuple[ShoppingGoal, ...]]:
    """Return a folder's catalogue and goals, read once per process; `limit` keeps the first products only."""
    path = Path(folder).expanduser()
    if not path.is_dir():
        raise UserError(f"The catalogue '{folder}' is not a folder; give one that holds WebShop's item files.")
    rows = _read(path, "items_shuffle*.json", list, needed=True)[:limit]
    details = _read(path, "items_ins*.json", dict, needed=True)
    human = _read(path, "items_human_ins*.json", dict, needed=False)
    reviews = {row["asin"]: row for row in _read(path, "reviews*.json", list, needed=False)}
    products: dict[str, Product] = {}
    for index, row in enumerate(rows):
        try:
            product = _product(row, details.get(row["asin"], {}), reviews.get(row["asin"], {}))
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise UserError(f"Product {index} of '{folder}' cannot be read: {error!r}.") from None
        if product.asin != "nan" and len(product.asin) <= 10:
            products.setdefault(product.asin, product)
    catalogue = Catalogue(path.name, tuple(products.values()))
    goals = list(_human_goals(catalogue, human) if human else _synthetic_goals(catalogue, details))
    if not goals:
        raise UserError(
            f"The products of '{folder}' have no instructions; add items_human_ins.json or items_ins*.json."
        )
    random.Random(SHUFFLE_SEED).shuffle(goals)
    return catalogue, tuple(goals)


def _read(folder: Path, pattern: str, kind: type, needed: bool) -> Any:
    paths = sorted(folder.glob(pattern))
    if not paths:
        if needed:
            raise UserError(f"The catalogue '{folder}' lacks a file {pattern}; put WebShop's item files into it.")
        return kind()
    try:
        content = json.loads(paths[0].read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"'{paths[0]}' is not JSON: {error}.") from None
    if not isinstance(content, kind):
        raise UserError(f"'{paths[0]}' must hold a JSON {'list' if kind is list else 'object'}.")
    return content


def _product(row: Mapping[str, Any], details: Mapping[str, Any], reviewed: Mapping[str, Any]) -> Product:
    bullets = row["small_description"]
    prices = [float(re.sub(r"[^\d.]", "", part)) for part in (row.get("pricing") or "").split("$")[1:]]
    pricing = tuple(prices[:2]) or (100.0,)
    return Product(
        asin=str(row["asin"]),
        name=row["name"],
        category=row["category"],
        query=row["query"].lower().strip(),
        product_category=row["product_category"],
        attributes=tuple(details.get("attributes") or ()),
        bullets=tuple(bullets) if isinstance(bullets, list) else (str(bullets),),
        description=row["full_description"] or "",
        options=MappingProxyType(dict(_options(row.get("customization_options") or {}))),
        pricing=pricing,
        price=sum(pricing) / len(pricing),
        rating=str(reviewed.get("average_rating", "N.A.")),
        reviews=tuple(str(item.get("review", "")) for item in reviewed.get("reviews", ())),
    )


def _options(options_record: Mapping[str, Any]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for name, contents in options_record.items():
        if contents:
            yield name.lower(), tuple(item["value"].strip().replace("/", " | ").lower() for item in contents)


def _human_goals(catalogue: Catalogue, human: Mapping[str, Any]) -> Iterator[ShoppingGoal]:
    """Return goals written by people; an instruction without attributes is left out, as in WebShop."""
    for product in catalogue.products:
        for index, written in enumerate(human.get(product.asin, ())):
            if written["instruction_attributes"]:
                upper = price_limit(product.price, SeededRandom(f"webshop-human/{product.asin}/{index}"))
                text = written["instruction"].strip(".") + price_text(upper)
                options = written["instruction_options"]
                names, values = ((), options) if isinstance(options, list) else (options.keys(), options.values())
                attributes = written["instruction_attributes"]
                yield _goal(product, text, attributes, tuple(values), upper, tuple(names))


def _synthetic_goals(catalogue: Catalogue, details: Mapping[str, Any]) -> Iterator[ShoppingGoal]:
    """Return one goal for each combination of a product's options."""
    for product in catalogue.products:
        paths = details.get(product.asin, {})
        if not paths.get("instruction") or not paths.get("instruction_attributes"):
            continue
        upper = price_limit(product.price, SeededRandom(f"webshop-synthetic/{product.asin}"))
        names = sorted(product.options)
        for values in itertools.product(*(product.options[name] for name in names)):
            text = f"{paths['instruction']}{options_text(dict(zip(names, values, strict=True)))}{price_text(upper)}"
            yield _goal(product, text, paths["instruction_attributes"], values, upper, tuple(names))


def _goal(
    product: Product,
    text: str,
    attributes: list[str],
    options: tuple[str, ...],
    upper: float,
    option_names: tuple[str, ...] = (),
) -> ShoppingGoal:
    return ShoppingGoal(
        text,
        product.asin,
        product.name,
        product.query,
        product.product_category,
        tuple(attributes),
        tuple(options),
        upper,
        option_names,
    )
