"""Operations and task templates of the shop."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field

from practicum.environments.web.sites.shop_data import (
    ADDRESSES,
    SHIPPING,
    ShopProduct,
    ShopState,
    draw_options,
    spare_products,
)
from practicum.environments.web.tasks import Reading, TaskInstance, TaskTemplate

COUPONS = ("SAVE10", "TEA5", "SPRING", "WELCOME", "GIFT20")
NOTES = ("Happy birthday", "With love", "Thank you", "Get well soon", "Good luck")
REVIEWS = ("Very good", "Not for me", "Works well", "Too small", "I like it")


@dataclass(frozen=True)
class AddToCart:
    """Put a product in the cart."""

    product: str
    options: Mapping[str, str] = field(default_factory=dict)
    quantity: int = 1
    sort: str = ""
    """How to sort the category before choosing, where the goal does not name the product."""

    def apply(self, state: ShopState) -> None:
        state.add_to_cart(self.product, dict(self.options), self.quantity)


@dataclass(frozen=True)
class RemoveFromCart:
    """Take a line out of the cart."""

    line: str

    def apply(self, state: ShopState) -> None:
        del state.cart[self.line]


@dataclass(frozen=True)
class SetQuantity:
    """Change the quantity of a line in the cart."""

    line: str
    quantity: int

    def apply(self, state: ShopState) -> None:
        state.cart[self.line].quantity = self.quantity


@dataclass(frozen=True)
class EmptyCart:
    """Empty the cart."""

    def apply(self, state: ShopState) -> None:
        state.cart = {}


@dataclass(frozen=True)
class AddWish:
    """Put a product on the wish list."""

    product: str

    def apply(self, state: ShopState) -> None:
        state.add_wish(self.product)


@dataclass(frozen=True)
class RemoveWish:
    """Take a product off the wish list."""

    product: str

    def apply(self, state: ShopState) -> None:
        state.remove_wish(self.product)


@dataclass(frozen=True)
class ReviewProduct:
    """Review a product."""

    product: str
    stars: int
    text: str = ""

    def apply(self, state: ShopState) -> None:
        state.review(self.product, self.stars, self.text)


@dataclass(frozen=True)
class UseCoupon:
    """Enter a coupon in the cart."""

    code: str

    def apply(self, state: ShopState) -> None:
        state.customer.coupon = self.code


@dataclass(frozen=True)
class PlaceOrder:
    """Order what is in the cart."""

    address: str
    shipping: str
    gift: bool = False
    note: str = ""

    def apply(self, state: ShopState) -> None:
        state.place_order(self.address, self.shipping, self.gift, self.note)

    @property
    def words(self) -> str:
        """The choices as the goal states them."""
        gift = " Tick Gift wrap." if self.gift else ""
        note = f" Note: {self.note}." if self.note else ""
        return f"Address: {self.address}. Shipping: {self.shipping}.{gift}{note}"


@dataclass(frozen=True)
class SetOrderStatus:
    """Cancel or return an order."""

    order: str
    status: str

    def apply(self, state: ShopState) -> None:
        state.orders[self.order].status = self.status


@dataclass(frozen=True)
class BuyAgain:
    """Put the content of an order into the cart."""

    order: str

    def apply(self, state: ShopState) -> None:
        state.buy_again(self.order)


@dataclass(frozen=True)
class EditAccount:
    """Change one field of the account: address, newsletter or phone."""

    field: str
    value: str | bool

    def apply(self, state: ShopState) -> None:
        setattr(state.customer, self.field, self.value)


@dataclass(frozen=True)
class LookAtProduct(Reading):
    """Open a product's page, to read it."""

    product: str

    @property
    def path(self) -> str:
        return f"product/{self.product}"


# -- what to draw -------------------------------------------------------------------------


def spare(rng: random.Random, state: ShopState, listed: bool = True, plain: bool | None = None) -> ShopProduct:
    """Return a product that the customer has nothing to do with; `plain`: without or with options."""
    products = [item for item in spare_products(state) if item.listed == listed]
    matching = [item for item in products if plain is None or plain != bool(item.options)]
    return rng.choice(matching or products)


def in_words(product: ShopProduct, options: Mapping[str, str], quantity: int = 1) -> str:
    """Return the choices of a product as a goal states them."""
    parts = [f" {name}: {value}." for name, value in options.items()]
    return "".join(parts) + (f" Quantity: {quantity}." if quantity > 1 else "")


def order_of(rng: random.Random, state: ShopState, status: str) -> tuple[str, str]:
    """Return the id of an order of a status, and the name of its product."""
    key = rng.choice([key for key, order in state.orders.items() if order.status == status])
    return key, state.products[state.orders[key].lines[0]["product"]].name


def place_order(rng: random.Random, state: ShopState, gift: bool = False, note: str = "") -> PlaceOrder:
    """Return an order with a way of shipping, and an address that is not the default one."""
    address = rng.choice([name for name in ADDRESSES if name != state.customer.address])
    return PlaceOrder(address, rng.choice(SHIPPING), gift, note)


# -- level 1 ------------------------------------------------------------------------------


def _wish_add(rng: random.Random, state: ShopState) -> TaskInstance:
    product = spare(rng, state)
    return TaskInstance(f"Add to wish list: {product.name}.", (AddWish(product.id),), start=f"product/{product.id}")


def _wish_remove(rng: random.Random, state: ShopState) -> TaskInstance:
    wish = rng.choice(list(state.wishes.values()))
    return TaskInstance(f"Wish list: remove {state.products[wish.product].name}.", (RemoveWish(wish.product),))


def _cart_remove(rng: random.Random, state: ShopState) -> TaskInstance:
    key = rng.choice(list(state.cart))
    return TaskInstance(f"Cart: remove {state.name_of(state.cart[key])}.", (RemoveFromCart(key),))


def _cart_empty(rng: random.Random, state: ShopState) -> TaskInstance:
    return TaskInstance("Empty cart.", (EmptyCart(),))


def _order_again(rng: random.Random, state: ShopState) -> TaskInstance:
    key = rng.choice(list(state.orders))
    name = state.products[state.orders[key].lines[0]["product"]].name
    return TaskInstance(f"Buy again: {name} ({key}).", (BuyAgain(key),), start="orders")


def _order_return(rng: random.Random, state: ShopState) -> TaskInstance:
    key, name = order_of(rng, state, "delivered")
    return TaskInstance(f"Return order: {name} ({key}).", (SetOrderStatus(key, "returned"),), start="orders")


# -- level 2 ------------------------------------------------------------------------------


def _add(rng: random.Random, state: ShopState) -> TaskInstance:
    product = spare(rng, state, plain=True)
    options = draw_options(rng, product)
    goal = f"{product.category}: add to cart {product.name}.{in_words(product, options)}"
    return TaskInstance(goal, (AddToCart(product.id, options),))


def _add_options(rng: random.Random, state: ShopState) -> TaskInstance:
    product, quantity = spare(rng, state, plain=False), rng.randint(1, 3)
    options = draw_options(rng, product)
    goal = f"{product.category}: add to cart {product.name}.{in_words(product, options, quantity)}"
    return TaskInstance(goal, (AddToCart(product.id, options, quantity),))


def _quantity(rng: random.Random, state: ShopState) -> TaskInstance:
    key = rng.choice(list(state.cart))
    quantity = rng.choice([n for n in range(1, 5) if n != state.cart[key].quantity])
    return TaskInstance(
        f"Cart: edit {state.name_of(state.cart[key])}. Quantity: {quantity}.", (SetQuantity(key, quantity),)
    )


def _order_cancel(rng: random.Random, state: ShopState) -> TaskInstance:
    key, name = order_of(rng, state, "open")
    return TaskInstance(f"Orders: cancel order {name} ({key}).", (SetOrderStatus(key, "cancelled"),))


def _address(rng: random.Random, state: ShopState) -> TaskInstance:
    address = rng.choice([name for name in ADDRESSES if name != state.customer.address])
    return TaskInstance(f"Account: default address: {address}.", (EditAccount("address", address),))


def _newsletter(rng: random.Random, state: ShopState) -> TaskInstance:
    is_ticked = not state.customer.newsletter
    words = "Tick" if is_ticked else "Untick"
    return TaskInstance(f"Account: {words} Newsletter and save.", (EditAccount("newsletter", is_ticked),))


def _cheapest(rng: random.Random, state: ShopState) -> TaskInstance:
    product = spare(rng, state, plain=True)
    best = min((item for item in state.products.values() if item.category == product.category), key=lambda i: i.price)
    state.cart = {key: line for key, line in state.cart.items() if line.product != best.id}
    options = draw_options(rng, best)
    goal = f"Add to cart the product of {best.category} with the lowest price.{in_words(best, options)}"
    return TaskInstance(goal, (AddToCart(best.id, options, sort="Lowest price"),))


def _stars(rng: random.Random, state: ShopState) -> TaskInstance:
    product, stars = spare(rng, state), rng.randint(1, 5)
    goal = f"{product.category}: review {product.name}. Stars: {stars}."
    return TaskInstance(goal, (ReviewProduct(product.id, stars),))


def _search_add(rng: random.Random, state: ShopState) -> TaskInstance:
    product = spare(rng, state, listed=False)
    options = draw_options(rng, product)
    return TaskInstance(
        f"Search {product.name} and add to cart.{in_words(product, options)}", (AddToCart(product.id, options),)
    )


def _phone(rng: random.Random, state: ShopState) -> TaskInstance:
    phone = f"555-{rng.randint(1000, 9999)}"
    state.customer.phone = f"556-{rng.randint(1000, 9999)}"
    return TaskInstance(f"Account: phone: {phone}.", (EditAccount("phone", phone),))


def _price(rng: random.Random, state: ShopState) -> TaskInstance:
    product = spare(rng, state)
    goal = f"What does the {product.name} in {product.category} cost?"
    return TaskInstance(goal, (LookAtProduct(product.id),), answer=f"${product.price}")


def _review_text(rng: random.Random, state: ShopState) -> TaskInstance:
    product, stars, text = spare(rng, state), rng.randint(1, 5), rng.choice(REVIEWS)
    goal = f"{product.category}: review {product.name}. Stars: {stars}. Text: {text}."
    return TaskInstance(goal, (ReviewProduct(product.id, stars, text),))


# -- level 3 ------------------------------------------------------------------------------


def _checkout(rng: random.Random, state: ShopState) -> TaskInstance:
    order = place_order(rng, state)
    return TaskInstance(f"Cart: checkout. {order.words}", (order,))


def _buy(rng: random.Random, state: ShopState) -> TaskInstance:
    state.cart = {}
    product, quantity, order = spare(rng, state), rng.randint(1, 3), place_order(rng, state)
    options = draw_options(rng, product)
    goal = f"{product.category}: buy {product.name}.{in_words(product, options, quantity)} {order.words}"
    return TaskInstance(goal, (AddToCart(product.id, options, quantity), order))


def _replace(rng: random.Random, state: ShopState) -> TaskInstance:
    key, product = rng.choice(list(state.cart)), spare(rng, state, plain=True)
    options = draw_options(rng, product)
    goal = f"Cart: remove {state.name_of(state.cart[key])}. Then {product.category}: add to cart {product.name}."
    return TaskInstance(goal + in_words(product, options), (RemoveFromCart(key), AddToCart(product.id, options)))


def _wish_buy(rng: random.Random, state: ShopState) -> TaskInstance:
    state.cart = {}
    product = state.products[rng.choice(list(state.wishes.values())).product]
    options, order = draw_options(rng, product), place_order(rng, state)
    goal = (
        f"Wish list: buy {product.name}.{in_words(product, options)} {order.words} Then remove it from the wish list."
    )
    return TaskInstance(goal, (AddToCart(product.id, options), order, RemoveWish(product.id)))


def _buy_two(rng: random.Random, state: ShopState) -> TaskInstance:
    state.cart = {}
    first = spare(rng, state, plain=True)
    second = rng.choice([item for item in spare_products(state) if item.listed and item.category != first.category])
    order = place_order(rng, state, gift=True)
    chosen = [(item, draw_options(rng, item)) for item in (first, second)]
    parts = [f"{item.category}: {item.name}.{in_words(item, options)}" for item, options in chosen]
    adds = [AddToCart(item.id, options) for item, options in chosen]
    return TaskInstance(f"Buy two products in one order. {' '.join(parts)} {order.words}", (*adds, order))


def _coupon(rng: random.Random, state: ShopState) -> TaskInstance:
    code, order = rng.choice(COUPONS), place_order(rng, state)
    return TaskInstance(f"Cart: use coupon {code}, then checkout. {order.words}", (UseCoupon(code), order))


def _gift_note(rng: random.Random, state: ShopState) -> TaskInstance:
    state.cart = {}
    product, order = spare(rng, state, plain=True), place_order(rng, state, gift=True, note=rng.choice(NOTES))
    options = draw_options(rng, product)
    goal = f"{product.category}: buy {product.name} as a gift.{in_words(product, options)} {order.words}"
    return TaskInstance(goal, (AddToCart(product.id, options), order))


TEMPLATES = (
    TaskTemplate("shop/wish-add", 1, "train", _wish_add),
    TaskTemplate("shop/cart-remove", 1, "train", _cart_remove),
    TaskTemplate("shop/cart-empty", 1, "train", _cart_empty),
    TaskTemplate("shop/order-again", 1, "train", _order_again),
    TaskTemplate("shop/wish-remove", 1, "val", _wish_remove),
    TaskTemplate("shop/order-return", 1, "test", _order_return),
    TaskTemplate("shop/add", 2, "train", _add),
    TaskTemplate("shop/add-options", 2, "train", _add_options),
    TaskTemplate("shop/quantity", 2, "train", _quantity),
    TaskTemplate("shop/order-cancel", 2, "train", _order_cancel),
    TaskTemplate("shop/address", 2, "train", _address),
    TaskTemplate("shop/search-add", 2, "train", _search_add, needs_text=True),
    TaskTemplate("shop/phone", 2, "train", _phone, needs_text=True),
    TaskTemplate("shop/price", 2, "val", _price, needs_text=True),
    TaskTemplate("shop/newsletter", 2, "val", _newsletter),
    TaskTemplate("shop/cheapest", 2, "test", _cheapest),
    TaskTemplate("shop/stars", 2, "test", _stars),
    TaskTemplate("shop/review-text", 2, "test", _review_text, needs_text=True),
    TaskTemplate("shop/checkout", 3, "train", _checkout),
    TaskTemplate("shop/buy", 3, "train", _buy),
    TaskTemplate("shop/coupon", 3, "train", _coupon, needs_text=True),
    TaskTemplate("shop/replace", 3, "val", _replace),
    TaskTemplate("shop/wish-buy", 3, "test", _wish_buy),
    TaskTemplate("shop/buy-two", 3, "test", _buy_two),
    TaskTemplate("shop/gift-note", 3, "test", _gift_note, needs_text=True),
)
