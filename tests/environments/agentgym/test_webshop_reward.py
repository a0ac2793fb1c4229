"""The reward of WebShop: golden values by hand, and WebShop's own cases."""

from __future__ import annotations

from dataclasses import replace
from types import MappingProxyType

import pytest

from practicum.environments.agentgym.webshop import WebShop
from practicum.environments.agentgym.webshop_catalogue import Product
from practicum.environments.agentgym.webshop_reward import (
    ShoppingGoal,
    has_same_category,
    judge,
    matches,
    option_matches,
    plain_colour,
    title_score,
    token_set_ratio,
    type_reward,
)
from practicum.errors import UserError

SHIRT = Product(
    asin="B000000001",
    name="Acme Men's Dress Shirt, Slim Fit",
    category="fashion",
    query="men's dress shirts",
    product_category="Clothing › Men › Shirts",
    attributes=("slim fit", "machine wash", "long sleeve"),
    bullets=("100% cotton",),
    description="A shirt for the office.",
    options=MappingProxyType({"color": ("navy blue", "red"), "size": ("small", "large")}),
    pricing=(25.0,),
    price=25.0,
)
WANTED = ShoppingGoal(
    instruction="Find me slim fit, machine wash men's dress shirts with color: navy blue, and size: large",
    asin=SHIRT.asin,
    name=SHIRT.name,
    query=SHIRT.query,
    product_category=SHIRT.product_category,
    attributes=("slim fit", "machine wash"),
    options=("navy blue", "large"),
    price_upper=30.0,
)
RIGHT = {"color": "navy blue", "size": "large"}


@pytest.mark.parametrize(
    ("product", "chosen", "goal", "reward"),
    [
        (SHIRT, RIGHT, WANTED, 1.0),
        (SHIRT, {}, WANTED, 3 / 5),
        (SHIRT, {"color": "navy blue"}, WANTED, 4 / 5),
        (SHIRT, {"color": "red", "size": "large"}, WANTED, 4 / 5),
        (SHIRT, {"color": "navy blue", "size": "small"}, WANTED, 4 / 5),
        (SHIRT, {"color": "dark blue", "size": "large"}, WANTED, 1.0),  # both are blue
        (replace(SHIRT, price=30.5), RIGHT, WANTED, 4 / 5),
        (replace(SHIRT, price=30.0), RIGHT, WANTED, 1.0),
        (replace(SHIRT, attributes=("machine wash",)), RIGHT, WANTED, 1.0),  # the title says "slim fit"
        (replace(SHIRT, attributes=()), RIGHT, WANTED, 4 / 5),
        (replace(SHIRT, attributes=("machine washable", "slim fit")), RIGHT, WANTED, 1.0),  # alike enough
        (SHIRT, RIGHT, replace(WANTED, attributes=("cotton",)), 1.0),  # told among the features
        (SHIRT, RIGHT, replace(WANTED, attributes=("waterproof",)), 3 / 4),
        (SHIRT, {}, replace(WANTED, options=()), 1.0),
        (SHIRT, {"color": "slim fit", "size": "shirt"}, replace(WANTED, options=("red",)), 3 / 4),  # words of the title
    ],
)
def test_the_reward_by_hand(product: Product, chosen: dict[str, str], goal: ShoppingGoal, reward: float) -> None:
    assert judge(product, chosen, goal).reward == pytest.approx(reward)


def test_the_type_of_a_product() -> None:
    lamp = replace(SHIRT, name="Bright Desk Lamp", query="lamps", product_category="Home › Lighting › Lamps")
    assert type_reward(lamp, WANTED) == 0.0
    assert judge(lamp, RIGHT, WANTED).reward == 0.0
    long = replace(WANTED, name=" ".join(f"word{'abcdefghijk'[n]}" for n in range(11)) + " lamp")
    assert type_reward(lamp, long) == 0.1  # one word in twelve
    five = replace(WANTED, name="one two three four lamp")
    assert type_reward(lamp, five) == 0.5  # one in five is not more than a fifth
    assert type_reward(lamp, replace(five, query="lamps")) == 1.0
    assert type_reward(lamp, replace(five, product_category="Lamps › Home › Old")) == 1.0
    assert type_reward(lamp, replace(WANTED, name="desk lamp shade three")) == 1.0


@pytest.mark.parametrize(
    ("first", "second", "ratio"),
    # What thefuzz's token_set_ratio says, rounded.
    [
        ("fuzzy was a bear", "fuzzy fuzzy was a bear", 100),
        ("machine wash", "machine washable", 86),
        ("long sleeve", "short sleeve", 71),
        ("Slim-Fit", "slim fit", 100),
        ("usb a", "usb c", 80),
        ("gluten free", "free", 100),
        ("black", "white", 0),
        ("", "white", 0),
    ],
)
def test_how_alike_two_texts_are(first: str, second: str, ratio: int) -> None:
    assert round(token_set_ratio(first, second)) == round(token_set_ratio(second, first)) == ratio


def test_colours_have_plain_names() -> None:
    # The cases of WebShop's own test of its colours.
    cases = {"": "", "black forest": "black", "violet lavender": "lavender", "steelivy fuchsia": "fuchsia",
             "123alabaster": "alabaster", "webshop": "webshop"}  # fmt: skip
    assert {value: plain_colour(value) for value in cases} == cases
    assert plain_colour("navy blue") == "blue"
    assert plain_colour("dark green") == "dark"


POWER_CORD = "Saireed UL Listed 2 Prong Power Cord for JBL Bar 3.1 Bar 2.1 Channel 4K Ultra HD Soundbar"
OTHER_CORD = (
    "BRST AC Power Cord Outlet Socket Cable Plug Lead for Panasonic SC-HT830V DVD/VCR Combo Home Theater System"
)


@pytest.mark.parametrize(
    ("goal_title", "bought", "score"),
    # The titles and scores of WebShop's own test, which spaCy's tagger gave.
    [
        ("Name 1", "Name 1", 1.0),
        (
            "adidas Unisex-Adult D.o.n. Issue 2 Basketball Shoe",
            "adidas Unisex-Adult D.o.n. Issue 2 Indoor Court Shoe",
            0.85,
        ),
        (f"{POWER_CORD} Home Theater System Subwoofer", OTHER_CORD, 0.31),
        (POWER_CORD, OTHER_CORD, 0.17),
        (
            "Rusticware 921ORB Kitchen and Bath Cabinet Knob",
            "Minkissy 2pcs Stainless Steel Eyebrow Tweezers Blackhead Acne Remover Portable Makeup Tweezers (Silver)",
            0.0,
        ),
    ],
)
def test_webshops_own_cases_of_titles(goal_title: str, bought: str, score: float) -> None:
    assert title_score(bought, goal_title) == pytest.approx(score, abs=1e-2)


def test_a_title_without_nouns_is_neither_alike_nor_different() -> None:
    assert title_score("Desk Lamp", "for the 2 of you") == 0.2


@pytest.mark.parametrize(
    ("categories", "same"),
    [("a › b › c", True), ("b › c › a", True), ("d › e › f", False), ("a › d › b", True), ("a › a › b", True),
     ("a › a › d", False)],
)  # fmt: skip
def test_webshops_own_cases_of_categories(categories: str, same: bool) -> None:
    assert has_same_category(categories, "a › b › c") is same


OILS = ("tea tree", "essential oils", "natural ingredients")
SHAMPOO = replace(SHIRT, name="", attributes=("tea tree", "essential oil", "natural ingredients"), bullets=(),
                  description="")  # fmt: skip


@pytest.mark.parametrize(
    ("product", "matched"),
    [
        (SHAMPOO, 3),
        (replace(SHAMPOO, attributes=("essential oil", "natural ingredients")), 2),
        (
            replace(
                SHAMPOO,
                attributes=(),
                bullets=("This shampoo has essential oils and smells like lemons",),
                description="Best shampoo on the market, made with natural ingredients",
            ),
            2,
        ),
        (
            replace(
                SHAMPOO,
                name="English tea for breakfast",
                attributes=("tea bag", "earl gray", "lipton"),
                bullets=("Soothing aroma", "Calming, great feeling"),
                description="Best tea made by Lipton, great to pair with breakfast",
            ),
            0,
        ),
    ],
)
def test_webshops_own_cases_of_attributes(product: Product, matched: int) -> None:
    assert judge(product, {}, replace(WANTED, attributes=OILS)).attributes == matched


@pytest.mark.parametrize(
    ("required", "chosen", "matched"),
    [
        (("grey", "XL", "pack of 12"), ("pack of 12", "grey", "XL"), 3),
        (("grey", "XL", "pack of 12"), ("pack of 12", "blue", "XL"), 2),
        (("cool powder snow", "XL", "pack of 12"), ("pack of 12", "powder snow", "XL"), 3),
        ((), ("goal 1", "goal 2"), 0),
        (("goal 1", "goal 2"), (), 0),
    ],
)
def test_webshops_own_cases_of_options(required: tuple[str, ...], chosen: tuple[str, ...], matched: int) -> None:
    assert option_matches(chosen, required) == matched


def test_webshops_own_case_of_a_whole_reward() -> None:
    shoe = "Mens D.O.N. Issue 2 Gca Basketball Sneakers Shoes Casual - Off White"
    bought = replace(SHAMPOO, name=shoe, query="Query 1", product_category="a › b › c", price=35.0)
    goal = ShoppingGoal("", "", shoe, "Query 1", "a › b › c", OILS, ("grey", "XL"), 40.0, ("color", "size"))
    chosen = {"color": "grey", "size": "XL"}
    assert judge(bought, chosen, goal).reward == 1.0
    # The original's case gives the features as one text, which its rule takes letter by letter.
    described = replace(
        bought,
        attributes=(),
        bullets=tuple("This shampoo has essential oils and smells like lemons"),
        description="Best shampoo on the market, made with natural ingredients",
    )
    assert judge(described, chosen, goal).reward == pytest.approx(2 / 3, abs=1e-2)
    more = replace(goal, options=("grey", "XL", "pack of 12"), option_names=("color", "size", "amount"))
    assert judge(described, chosen, more).reward == pytest.approx(0.5714, abs=1e-2)
    cord = replace(described, name=OTHER_CORD, query="Query 2", product_category="a › d › e")
    assert judge(cord, chosen, replace(more, name=POWER_CORD)).reward == pytest.approx(0.2857, abs=1e-2)


@pytest.mark.parametrize(
    ("goal_option", "bought", "paid"),
    [("in ear", "over ear", False), ("7.5", "9", False), ("7.5", "7", True), ("large", "x-large", True),
     ("x-large", "large", True), ("pack of 12", "pack of 24", True), ("navy blue", "dark blue", True)],
)  # fmt: skip
def test_an_option_is_paid_by_its_own_value_only(goal_option: str, bought: str, paid: bool) -> None:
    # "9" is in the title and "over ear" in the features: only attributes may be read there.
    product = replace(SHIRT, name="Dunmere Meadow 90 Headphones", bullets=("over ear", "x-large"))
    goal = replace(WANTED, name=product.name, attributes=("long sleeve",), options=(goal_option,))
    assert judge(product, {"style": bought}, goal).reward == (1.0 if paid else pytest.approx(2 / 3))


def test_a_named_option_is_compared_with_its_name() -> None:
    # WebShop's generated goals keep the options as a mapping, and its rule then compares "size large".
    goal = replace(WANTED, options=("large",), option_names=("size",))
    assert judge(SHIRT, {"size": "large"}, goal).options == 1
    assert judge(SHIRT, {"size": "x-large"}, goal).options == 0
    colour = replace(WANTED, options=("blue",), option_names=("color",))
    assert judge(SHIRT, {"color": "navy blue"}, colour).options == 1


def test_similarity_is_rounded_before_it_is_compared() -> None:
    close = "a" * 20 + "bcd", "a" * 20 + "efgh"
    assert token_set_ratio(*close) == pytest.approx(85.106, abs=1e-3)
    assert not matches(*close)
    assert token_set_ratio("machine wash", "machine washable") == pytest.approx(85.714, abs=1e-3)
    assert matches("machine wash", "machine washable")


def test_nouns_may_come_from_a_tagger() -> None:
    def nouns(title: str) -> tuple[str, ...]:
        return tuple(word for word in title.lower().split() if word not in ("portable", "mini"))

    lamp = replace(SHIRT, name="Portable Mini Lamp", query="lamps", product_category="Home")
    goal = replace(WANTED, name="Portable Mini Fan")
    assert type_reward(lamp, goal) == 1.0  # two of three words
    assert type_reward(lamp, goal, nouns) == 0.0  # no noun
    with pytest.raises(UserError, match="spaCy"):
        WebShop(nouns="no_such_pipeline")
