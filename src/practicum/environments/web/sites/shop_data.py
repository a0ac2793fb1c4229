"""Seeded data of the shop: a catalogue, and a customer with a cart, a wish list and orders."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypedDict

from practicum.environments.web.sites.state import SiteState

ADJECTIVES = (
    *("Amber", "Blue", "Calm", "Clever", "Coral", "Forest", "Golden", "Green", "Happy", "Ivory", "Lunar", "Misty"),
    *("Noble", "Ocean", "Olive", "Pearl", "Quiet", "Royal", "Ruby", "Silver", "Snowy", "Solar", "Velvet", "Wild"),
)
CATEGORIES: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "Tea": ("tea", {"Size": ("small", "large")}),
    "Lamps": ("lamp", {"Colour": ("white", "black", "red")}),
    "Bags": ("bag", {"Colour": ("brown", "black", "grey"), "Size": ("small", "large")}),
    "Toys": ("toy", {}),
    "Books": ("book", {"Cover": ("paper", "hard")}),
    "Mugs": ("mug", {"Colour": ("white", "blue", "red")}),
    "Pens": ("pen", {}),
    "Games": ("game", {}),
}
"""Categories: the noun of their products, and the options to choose for each product."""
ADDRESSES = ("Home", "Work", "Parents")
SHIPPING = ("Standard", "Express", "Pickup")
QUANTITIES = ("1", "2", "3", "4")
STARS = ("1", "2", "3", "4", "5")
MAX_QUANTITY = 20


@dataclass(frozen=True, slots=True)
class ShopProduct:
    """A product of the catalogue. Prices are whole dollars."""

    id: str
    name: str
    category: str
    price: int
    rating: int
    listed: bool
    options: tuple[tuple[str, tuple[str, ...]], ...] = ()

    @property
    def label(self) -> str:
        """The text of a link to the product."""
        return f"{self.name} ${self.price}"


@dataclass
class CartLine:
    """A product with its options in the cart."""

    product: str
    options: dict[str, str]
    quantity: int


class OrderLine(TypedDict):
    """A product with its options in an order."""

    product: str
    options: dict[str, str]
    quantity: int


@dataclass
class Wish:
    """A product on the wish list."""

    product: str


@dataclass
class Order:
    """An order; `status` is open, delivered, cancelled or returned."""

    lines: list[OrderLine]
    address: str
    shipping: str
    gift: bool = False
    note: str = ""
    coupon: str = ""
    status: str = "open"


@dataclass
class Review:
    """The customer's review of a product."""

    product: str
    stars: int
    text: str = ""


@dataclass
class Customer:
    """The customer's account."""

    address: str = "Home"
    newsletter: bool = False
    phone: str = ""
    coupon: str = ""


@dataclass
class ShopState(SiteState):
    """The state of a shop."""

    STATIC: ClassVar[frozenset[str]] = frozenset({"products", "counter"})

    products: dict[str, ShopProduct]
    cart: dict[str, CartLine] = field(default_factory=dict)
    wishes: dict[str, Wish] = field(default_factory=dict)
    orders: dict[str, Order] = field(default_factory=dict)
    reviews: dict[str, Review] = field(default_factory=dict)
    customer: Customer = field(default_factory=Customer)
    counter: int = 0

    def categories(self) -> list[str]:
        """Return the categories that the shop lists; products of the others are found by searching."""
        return list(dict.fromkeys(product.category for product in self.products.values() if product.listed))

    def name_of(self, line: CartLine) -> str:
        """Return a cart line's text: the product's name and its options."""
        return ", ".join((self.products[line.product].name, *line.options.values()))

    def add_to_cart(self, product: str, options: dict[str, str], quantity: int) -> None:
        """Add a product; equal products with equal options are one line."""
        for line in self.cart.values():
            if line.product == product and line.options == options:
                line.quantity = min(line.quantity + quantity, MAX_QUANTITY)
                return
        self.cart[self._new_id("c")] = CartLine(product, dict(options), quantity)

    def add_wish(self, product: str) -> None:
        """Put a product on the wish list, once."""
        if all(wish.product != product for wish in self.wishes.values()):
            self.wishes[self._new_id("w")] = Wish(product)

    def remove_wish(self, product: str) -> None:
        """Take a product off the wish list."""
        self.wishes = {key: wish for key, wish in self.wishes.items() if wish.product != product}

    def review(self, product: str, stars: int, text: str = "") -> None:
        """Write the review of a product, in place of an earlier one."""
        for review in self.reviews.values():
            if review.product == product:
                review.stars, review.text = stars, text
                return
        self.reviews[self._new_id("r")] = Review(product, stars, text)

    def place_order(self, address: str, shipping: str, gift: bool = False, note: str = "") -> None:
        """Make an order of the cart and of the coupon, and empty both."""
        lines: list[OrderLine] = [
            {"product": line.product, "options": dict(line.options), "quantity": line.quantity}
            for line in sorted(self.cart.values(), key=lambda line: (line.product, sorted(line.options.items())))
        ]
        key = str(max([1000, *map(int, self.orders)]) + 1)
        self.orders[key] = Order(lines, address, shipping, gift, note, self.customer.coupon)
        self.cart, self.customer.coupon = {}, ""

    def buy_again(self, order: str) -> None:
        """Put what an order contains into the cart."""
        for line in self.orders[order].lines:
            self.add_to_cart(line["product"], line["options"], line["quantity"])

    def _new_id(self, prefix: str) -> str:
        # Ids are never used twice: a new record must not look like a changed old one.
        self.counter += 1
        return f"{prefix}{self.counter}"


def make_catalogue(rng: random.Random) -> dict[str, ShopProduct]:
    """Return the products of four categories that are listed, five to eight each, and of one that is not."""
    products: dict[str, ShopProduct] = {}
    for index, category in enumerate(rng.sample(sorted(CATEGORIES), 5)):
        noun, options = CATEGORIES[category]
        adjectives = rng.sample(ADJECTIVES, rng.randint(5, 8))
        prices = rng.sample(range(3, 40), len(adjectives))
        for adjective, price in zip(adjectives, prices, strict=True):
            key = f"p{len(products) + 1}"
            name = f"{adjective} {noun}"
            products[key] = ShopProduct(
                key, name, category, price, rng.randint(1, 5), index < 4, tuple(options.items())
            )
    return products


def draw_options(rng: random.Random, product: ShopProduct) -> dict[str, str]:
    """Return a choice of a product's options."""
    return {name: rng.choice(values) for name, values in product.options}


def make_shop(rng: random.Random) -> ShopState:
    """Return a shop with a customer who has two lines in the cart, wishes and orders."""
    products = make_catalogue(rng)
    state = ShopState(products)
    drawn = iter(rng.sample(sorted(products), 11))
    state.customer = Customer(rng.choice(ADDRESSES), rng.random() < 0.5, f"555-{rng.randint(1000, 9999)}")
    for index in range(3):
        lines = [_line(rng, products[next(drawn)])]
        status = ("open", "delivered", rng.choice(("open", "delivered")))[index]
        state.orders[str(1001 + index)] = Order(lines, rng.choice(ADDRESSES), rng.choice(SHIPPING), status=status)
    for _ in range(2):
        product = products[next(drawn)]
        state.add_to_cart(product.id, draw_options(rng, product), rng.randint(1, 3))
    for _ in range(rng.randint(2, 3)):
        state.add_wish(next(drawn))
    return state


def _line(rng: random.Random, product: ShopProduct) -> OrderLine:
    return {"product": product.id, "options": draw_options(rng, product), "quantity": rng.randint(1, 2)}


def spare_products(state: ShopState) -> Sequence[ShopProduct]:
    """Return the products that are in no cart, wish list, order or review."""
    used = {line.product for line in state.cart.values()}
    used |= {wish.product for wish in state.wishes.values()} | {review.product for review in state.reviews.values()}
    used |= {line["product"] for order in state.orders.values() for line in order.lines}
    return [product for product in state.products.values() if product.id not in used]
