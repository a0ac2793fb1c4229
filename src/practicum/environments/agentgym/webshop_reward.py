"""WebShop's reward of a purchase: r_type · (attributes + options + price) matched / number of requirements.

Two of its parts differ. WebShop takes a title's nouns from spaCy's tagger; here every word of it counts that is neither
a stop word nor a number. And at most as many options count as were required, so that no purchase has a reward above 1.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.environments.agentgym.webshop_catalogue import Product

STOP_WORDS = frozenset((
    "a", "an", "and", "as", "at", "by", "for", "from", "in", "into", "is", "it", "its", "of", "on", "or", "our",
    "out", "over", "that", "the", "this", "to", "up", "with", "you", "your",
))  # fmt: skip
BASE_COLOURS = (
    "beige", "black", "blue", "bronze", "brown", "burgundy", "copper", "coral", "cream", "gold", "gray", "green",
    "grey", "ivory", "khaki", "lavender", "maroon", "mint", "navy", "olive", "orange", "peach", "pink", "plum",
    "purple", "red", "rose", "silver", "tan", "taupe", "teal", "turquoise", "violet", "white", "wine", "yellow",
)  # fmt: skip
MIN_SIMILARITY = 85.0
EXACT_OPTIONS = ("size",)


@dataclass(frozen=True, slots=True)
class Goal:
    """Requirements of a customer."""

    instruction: str
    asin: str
    name: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float


@dataclass(frozen=True, slots=True)
class Verdict:
    """Reward of a purchase and its components."""

    reward: float
    type: float
    attributes: int
    options: int
    price: bool


def judge(product: Product, chosen: Mapping[str, str], goal: Goal) -> Verdict:
    """Return the reward of buying a product with the chosen options."""
    kind = type_reward(product, goal)
    attributes = sum(_has_attribute(product, required) for required in goal.attributes)
    options = min(option_matches(product, chosen, goal.options), len(goal.options))
    price = product.price <= goal.price_upper
    reward = kind * (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)
    return Verdict(reward, kind, attributes, options, price)


def type_reward(product: Product, goal: Goal) -> float:
    """Return the type factor: 1 for the same kind of product; 0.5, 0.1 or 0 the less similar the titles are."""
    required = title_words(goal.name)
    score = len(title_words(product.name) & required) / len(required) if required else 0.2
    if score == 0.0:
        return 0.0
    if score < 0.1:
        return 0.1
    alike = product.query == goal.query or _common(product.product_category, goal.product_category) >= 2
    return 1.0 if alike or score > 0.2 else 0.5


def title_words(title: str) -> set[str]:
    """Return the words of a title that may be nouns."""
    words = re.findall(r"[^\W\d_]+(?:['-][^\W\d_]+)*", title.lower())
    return {word for word in words if word not in STOP_WORDS and len(word) > 1}


def _common(one: str, other: str) -> int:
    """Return the number of categories that two paths share, in any order."""
    return len({step.strip() for step in one.split("›")} & {step.strip() for step in other.split("›")})


def _has_attribute(product: Product, required: str) -> bool:
    similar = any(token_set_ratio(attribute, required) > MIN_SIMILARITY for attribute in product.attributes)
    return similar or _is_mentioned(product, required)


def _is_mentioned(product: Product, words: str) -> bool:
    """Return whether the words are in the product's title, features or description."""
    bullets = " ".join(product.bullets).lower()
    return words in product.name.lower() or words in bullets or words in product.description.lower()


def option_matches(product: Product, chosen: Mapping[str, str], required: Sequence[str]) -> int:
    """Return how many chosen options match the required ones. A size must be equal."""
    required_values = [plain_colour(value) for value in required]
    num_matches = 0
    for option, value in chosen.items():
        picked = plain_colour(value)
        if option.lower() in EXACT_OPTIONS:
            matched = picked in required_values
        else:
            matched = any(token_set_ratio(value, picked) > MIN_SIMILARITY for value in required_values)
        num_matches += matched or _is_mentioned(product, picked)
    return num_matches


def plain_colour(value: str) -> str:
    """Return the basic colour in a text: `dark green` is green."""
    return next((colour for colour in BASE_COLOURS if re.search(rf"\b{colour}\b", value)), value)


def token_set_ratio(one: str, other: str) -> float:
    """Return the similarity of two texts from 0 to 100, regardless of the order and repetition of words."""
    first, second = set(_tokens(one)), set(_tokens(other))
    if not first or not second:
        return 0.0
    common = " ".join(sorted(first & second))
    if common and (first <= second or second <= first):
        return 100.0
    left = " ".join(filter(None, (common, " ".join(sorted(first - second)))))
    right = " ".join(filter(None, (common, " ".join(sorted(second - first)))))
    pairs = [(left, right)] + ([(common, left), (common, right)] if common else [])
    return max(_ratio(a, b) for a, b in pairs)


def _tokens(text: str) -> list[str]:
    return re.sub(r"[\W_]", " ", text.lower()).split()


def _ratio(one: str, other: str) -> float:
    """Return twice the longest common subsequence over both lengths, in percent."""
    before = [0] * (len(other) + 1)
    for letter in one:
        row = [0]
        for index, against in enumerate(other):
            row.append(before[index] + 1 if letter == against else max(before[index + 1], row[index]))
        before = row
    return 200.0 * before[-1] / (len(one) + len(other))
