"""WebShop's reward of a purchase: r_type · (attributes + options + price) matched / number of requirements.

These are the rules of `web_agent_site/engine/goal.py` and `normalize.py` of princeton-nlp/WebShop, and of AgentGym's
copy of them. One part cannot be the same without a download: WebShop takes a title's nouns from spaCy's tagger. With
`nouns=PIPELINE`, an installed spaCy pipeline, that is done here too; by default `title_words` stands in for it. Nouns
decide `r_type` only, and a purchase of the goal's own product has 1 with either.
"""

from __future__ import annotations

import functools
import importlib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from practicum.environments.agentgym.webshop_catalogue import Product
from practicum.errors import UserError

FUNCTION_WORDS = frozenset((
    "a", "about", "above", "after", "all", "an", "and", "any", "are", "as", "at", "be", "below", "between", "both",
    "by", "can", "each", "every", "for", "from", "has", "have", "he", "her", "his", "if", "in", "into", "is", "it",
    "its", "more", "most", "my", "no", "not", "of", "off", "on", "or", "our", "out", "over", "per", "she", "so", "some",
    "than", "that", "the", "their", "them", "these", "they", "this", "those", "through", "to", "under", "up", "very",
    "was", "we", "were", "when", "which", "while", "with", "without", "you", "your",
))  # fmt: skip
"""Determiners, pronouns, prepositions, conjunctions, auxiliaries: words that no tagger calls nouns."""
COLOURS = (
    "alabaster", "apricot", "aqua", "ash", "asphalt", "azure", "banana", "beige", "black", "blue", "blush", "bordeaux",
    "bronze", "brown", "burgundy", "camel", "camo", "caramel", "champagne", "charcoal", "cheetah", "chestnut",
    "chocolate", "christmas", "coffee", "cognac", "copper", "coral", "cranberry", "cream", "crystal", "dark", "denim",
    "eggplant", "elephant", "espresso", "fuchsia", "gold", "granite", "grape", "graphite", "grass", "gray", "green",
    "grey", "heather", "indigo", "ivory", "ivy", "khaki", "lavender", "lemon", "leopard", "light", "lilac", "lime",
    "magenta", "maroon", "mauve", "merlot", "midnight", "mint", "mocha", "multicolor", "mushroom", "mustard", "natural",
    "navy", "nude", "olive", "orange", "peach", "pewter", "pink", "plum", "purple", "rainbow", "red", "rose", "royal",
    "rust", "sand", "sapphire", "seashell", "silver", "skull", "slate", "steel", "stone", "stonewash", "sunflower",
    "tan", "taupe", "teal", "tiger", "turquoise", "violet", "walnut", "wheat", "white", "wine", "yellow",
)  # fmt: skip
"""WebShop's names of colours, in its order: the first that is part of a text replaces the text."""
MIN_SIMILARITY = 85
"""Two texts match if their similarity, rounded to a whole number, is above this."""
UNKNOWN_TITLE_SCORE = 0.2
"""Title score where the goal's title has no noun."""
WORD = re.compile(r"[^\W_]+(?:[.&+][^\W_]+)*")


@dataclass(frozen=True, slots=True)
class ShoppingGoal:
    """Requirements of a customer."""

    instruction: str
    asin: str
    name: str
    query: str
    product_category: str
    attributes: tuple[str, ...]
    options: tuple[str, ...]
    price_upper: float
    option_names: tuple[str, ...] = ()
    """Names of the options where WebShop keeps the options as a mapping: in its generated goals, not in those written
    by people. Its rule compares such a name and its value as one text."""

    @property
    def option_texts(self) -> tuple[str, ...]:
        """The texts that chosen options are compared with."""
        if not self.option_names:
            return tuple(map(plain_colour, self.options))
        pairs = zip(self.option_names, self.options, strict=True)
        # A pair is a colour only if one of its two texts is exactly a colour's name.
        return tuple(next((c for c in COLOURS if c in pair), " ".join(pair)) for pair in pairs)


@dataclass(frozen=True, slots=True)
class PurchaseScore:
    """Reward of a purchase and its components."""

    reward: float
    type: float
    attributes: int
    options: int
    price: bool


Nouns = Callable[[str], Sequence[str]]
"""Returns the nouns of a title in lower case, in order, with repetitions."""


def judge(product: Product, chosen: Mapping[str, str], goal: ShoppingGoal, nouns: Nouns | None = None) -> PurchaseScore:
    """Return the reward of buying a product with the chosen options."""
    kind = type_reward(product, goal, nouns)
    attributes = sum(_has_attribute(product, required) for required in goal.attributes)
    options = option_matches(chosen.values(), goal.option_texts)
    price = product.price <= goal.price_upper
    reward = kind * (attributes + options + price) / (len(goal.attributes) + len(goal.options) + 1)
    return PurchaseScore(reward, kind, attributes, options, price)


def type_reward(product: Product, goal: ShoppingGoal, nouns: Nouns | None = None) -> float:
    """Return the type factor: 1 for the same kind of product; 0.5, 0.1 or 0 the less similar the titles are."""
    score = title_score(product.name, goal.name, nouns)
    if score == 0.0:
        return 0.0
    if score < 0.1:
        return 0.1
    same_kind = product.query == goal.query or has_same_category(product.product_category, goal.product_category)
    return 1.0 if same_kind or score > 0.2 else 0.5


def title_score(title: str, wanted: str, nouns: Nouns | None = None) -> float:
    """Return the number of different nouns in both titles over the number of nouns, repeated ones too, in `wanted`."""
    nouns = nouns or title_words
    required = nouns(wanted)
    return len(set(nouns(title)) & set(required)) / len(required) if required else UNKNOWN_TITLE_SCORE


@functools.lru_cache(maxsize=65536)
def title_words(title: str) -> tuple[str, ...]:
    """Return the words of a title that may be nouns: all but function words, numbers and participles in -ed.

    A tagger would also leave out some adjectives and verbs, which cannot be told from nouns by their form.
    """
    words = WORD.findall(re.sub(r"['’]s?\b", " ", title.lower()))
    return tuple(
        word for word in words if word not in FUNCTION_WORDS and not word[0].isdigit() and not _is_participle(word)
    )


def _is_participle(word: str) -> bool:
    return len(word) > 4 and word.endswith("ed") and not word.endswith(("eed", "bed"))


@functools.cache
def spacy_nouns(pipeline: str) -> Nouns:
    """Return the nouns of an installed spaCy pipeline, such as `en_core_web_sm`: WebShop's own way."""
    try:
        spacy = importlib.import_module("spacy")
    except ImportError:
        raise UserError(
            f"nouns='{pipeline}' needs spaCy: pip install spacy, then python -m spacy download {pipeline}."
        ) from None
    try:
        tagged = spacy.load(pipeline)
    except OSError:
        raise UserError(
            f"spaCy has no pipeline '{pipeline}' here; install it with: python -m spacy download {pipeline}."
        ) from None

    @functools.lru_cache(maxsize=65536)
    def nouns(title: str) -> tuple[str, ...]:
        return tuple(token.text.lower() for token in tagged(title) if token.pos_ in ("NOUN", "PROPN"))

    return nouns


def has_same_category(first: str, second: str) -> bool:
    """Return whether two paths of categories share two categories, in any order."""
    return len({step.strip() for step in first.split("›")} & {step.strip() for step in second.split("›")}) >= 2


def _has_attribute(product: Product, required: str) -> bool:
    """Return whether a product has an attribute: in its list, or written in its title, features or description."""
    if any(matches(attribute, required) for attribute in product.attributes):
        return True
    texts = (product.name, " ".join(product.bullets), product.description)
    return any(required in text.lower() for text in texts)


def option_matches(chosen: Iterable[str], required: Sequence[str]) -> int:
    """Return how many required options one of the chosen ones matches. Other texts of the product do not count."""
    colours = [plain_colour(value) for value in chosen]
    return sum(any(matches(value, text) for value in colours) for text in required)


def plain_colour(value: str) -> str:
    """Return the first of WebShop's colours that is part of a text, else the text: `dark green` is dark."""
    return next((colour for colour in COLOURS if colour in value), value)


def matches(first: str, second: str) -> bool:
    return round(token_set_ratio(first, second)) > MIN_SIMILARITY


@functools.lru_cache(maxsize=65536)
def token_set_ratio(first_text: str, second_text: str) -> float:
    """Return thefuzz's similarity of two texts from 0 to 100, regardless of the order and repetition of words."""
    first, second = set(_tokens(first_text)), set(_tokens(second_text))
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
    """Return the words as thefuzz reads them: letters outside ASCII are dropped, other signs divide words."""
    ascii_text = "".join(letter for letter in text if ord(letter) < 128)
    return re.sub(r"[\W_]", " ", ascii_text.lower()).split()


def _ratio(first: str, second: str) -> float:
    """Return twice the longest common subsequence over both lengths, in percent."""
    before = [0] * (len(second) + 1)
    for letter in first:
        row = [0]
        for index, against in enumerate(second):
            row.append(before[index] + 1 if letter == against else max(before[index + 1], row[index]))
        before = row
    return 200.0 * before[-1] / (len(first) + len(second))
