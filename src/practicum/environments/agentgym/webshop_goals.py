"""Goals of customers, generated from a catalogue's products.

A goal names a kind of product, some of its attributes, a value for each of its options and an upper price. The product
from which it was generated fulfils it; others may too.
"""

from __future__ import annotations

import functools

from practicum.environments.agentgym.webshop_catalogue import Catalogue, Product, generated
from practicum.environments.agentgym.webshop_reward import ShoppingGoal
from practicum.task import content_hash
from practicum.utils.seeded_random import SeededRandom

GOALS_PER_PRODUCT = 3
NO_LIMIT = 1_000_000.0
PRICES = tuple(10.0 * step for step in range(1, 100))


@functools.lru_cache(maxsize=4)
def generated_goals(count: int) -> tuple[ShoppingGoal, ...]:
    """Return the goals of a generated catalogue, in the order of session numbers."""
    return make_goals(generated(count))


def make_goals(catalogue: Catalogue) -> tuple[ShoppingGoal, ...]:
    """Return some goals for each product, in random order: neighbours are about different products."""
    goals = [make_goal(product, index) for product in catalogue.products for index in range(GOALS_PER_PRODUCT)]
    distinct = {(goal.asin, goal.instruction): goal for goal in goals}
    return tuple(sorted(distinct.values(), key=lambda goal: content_hash([goal.asin, goal.instruction])))


def make_goal(product: Product, index: int) -> ShoppingGoal:
    rng = SeededRandom(f"webshop-goal/{product.asin}/{index}")
    attributes = tuple(rng.sample(product.attributes, 1 + rng.below(len(product.attributes))))
    options = {name: rng.choice(values) for name, values in sorted(product.options.items())}
    upper = price_limit(product.price, rng)
    request = f"Find me {', '.join(attributes)} {product.query}"
    return ShoppingGoal(
        instruction=f"{request}{options_text(options)}{price_text(upper)}",
        asin=product.asin,
        name=product.name,
        query=product.query,
        product_category=product.product_category,
        attributes=attributes,
        options=tuple(options.values()),
        price_upper=upper,
    )


def options_text(options: dict[str, str]) -> str:
    text = ", and ".join(f"{name}: {value}" for name, value in options.items())
    return f" with {text}" if text else ""


def price_text(upper: float) -> str:
    return f", and price lower than {upper:.2f} dollars" if upper < NO_LIMIT else ""


def price_limit(price: float, rng: SeededRandom) -> float:
    """Return an upper price by WebShop's rule: the higher of two draws from the next four multiples of ten."""
    above = [limit for limit in PRICES if limit > price][:4]
    return max(rng.sample(above, 2)) if len(above) >= 2 else NO_LIMIT
