"""The shop: categories, search, products with options, a cart, a wish list, checkout, orders, reviews, an account."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar
from urllib.parse import urlencode

from practicum.environments.web.sites import html as h
from practicum.environments.web.sites.shop_data import (
    ADDRESSES,
    QUANTITIES,
    SHIPPING,
    STARS,
    ShopProduct,
    ShopState,
)
from practicum.environments.web.sites.site import CHOOSE, FormError, NotFound, Site, SitePage, page_number, require_room
from practicum.environments.web.sites.variation import Variation

PAGE_SIZE = 6
SORT_KEYS = ("Name", "Lowest price", "Highest rating")


class Shop(Site):
    """A shop over a `ShopState`."""

    name: ClassVar[str] = "shop"

    def __init__(self, state: ShopState, variation: Variation) -> None:
        super().__init__(variation)
        self.state = state

    def navigation(self) -> h.Html:
        pages = (("Home", ""), ("Cart", "cart"), ("Wish list", "wishes"), ("Orders", "orders"), ("Account", "account"))
        return h.join((*(self.nav_link(label, path) for label, path in pages), self.search_form()))

    # -- pages ----------------------------------------------------------------------------

    def get(self, path: Sequence[str], query: Mapping[str, str]) -> SitePage:
        match list(path):
            case []:
                return self._home()
            case ["category", name] if name in self.state.categories():
                products = [product for product in self.state.products.values() if product.category == name]
                return SitePage(name, self._listing(products, f"category/{name}", query))
            case ["search"]:
                return self._search(query)
            case ["product", key]:
                return self._product(self._find(key))
            case ["review", key]:
                return self._review(self._find(key))
            case ["cart"]:
                return self._cart()
            case ["line", key] if key in self.state.cart:
                return self._line(key)
            case ["wishes"]:
                return self._wishes()
            case ["checkout"]:
                return self._checkout()
            case ["orders"]:
                return self._orders()
            case ["order", key] if key in self.state.orders:
                return self._order(key)
            case ["account"]:
                return self._account()
        raise NotFound

    def _find(self, key: str) -> ShopProduct:
        if key not in self.state.products:
            raise NotFound
        return self.state.products[key]

    def _product_links(self, products: Sequence[ShopProduct]) -> h.Html:
        return h.bullets(h.link(product.label, self.url(f"product/{product.id}")) for product in products)

    def _home(self) -> SitePage:
        categories = self.variation.reorder("categories", self.state.categories())
        links = h.bullets(h.link(name, self.url(f"category/{name}")) for name in categories)
        return SitePage("Shop", links)

    def _search(self, query: Mapping[str, str]) -> SitePage:
        text = query.get("q", "")
        words = text.casefold().split()
        matches = [item for item in self.state.products.values() if all(word in item.name.casefold() for word in words)]
        if not words or not matches:
            return SitePage("Search", h.paragraph("Nothing found."))
        return SitePage("Search", self._listing(matches, "search", query))

    def _listing(self, products: Sequence[ShopProduct], path: str, query: Mapping[str, str]) -> h.Html:
        """Return links to products, sorted, in pages of six."""
        sort = query.get("sort", SORT_KEYS[0])
        if sort == "Lowest price":
            products = sorted(products, key=lambda product: product.price)
        elif sort == "Highest rating":
            products = sorted(products, key=lambda product: (-product.rating, product.price))
        else:
            products = self.variation.reorder(path, sorted(products, key=lambda product: product.name))
        page = page_number(query)
        shown = products[(page - 1) * PAGE_SIZE : page * PAGE_SIZE]
        parts: list[str] = [self._product_links(shown)]
        kept = {key: query[key] for key in ("q", "sort") if key in query}
        if page > 1:
            parts.append(h.link(self.word("Previous"), self.url(f"{path}?{urlencode({**kept, 'page': page - 1})}")))
        if len(products) > page * PAGE_SIZE:
            parts.append(h.link(self.word("Next"), self.url(f"{path}?{urlencode({**kept, 'page': page + 1})}")))
        if path != "search":
            choice = h.combobox(self.word("Sort by"), "sort", SORT_KEYS, sort)
            parts.append(h.form(self.url(path), choice, h.button(self.word("Sort")), method="get"))
        return h.join(parts)

    def _product(self, product: ShopProduct) -> SitePage:
        fields = [
            h.combobox(option, option, (CHOOSE, *self.variation.reorder(option, values)), CHOOSE)
            for option, values in product.options
        ]
        fields.append(h.combobox(self.word("Quantity"), "quantity", QUANTITIES, "1"))
        add_to_cart = h.button(self.word("Add to cart"))
        add_to_wishes = h.button(self.word("Add to wish list"), self.url(f"wish/{product.id}"))
        content = h.join(
            (
                h.paragraph(f"Price ${product.price}. Rating {product.rating} of 5."),
                h.form(self.url(f"add/{product.id}"), *fields, add_to_cart, add_to_wishes),
                h.link(self.word("Review"), self.url(f"review/{product.id}")),
            )
        )
        return SitePage(product.name, content)

    def _review(self, product: ShopProduct) -> SitePage:
        review = next((item for item in self.state.reviews.values() if item.product == product.id), None)
        stars = h.combobox(self.word("Stars"), "stars", (CHOOSE, *STARS), str(review.stars) if review else CHOOSE)
        text = h.text_area("Text", "text", review.text if review else "")
        fields = h.form(self.url(f"review/{product.id}"), stars, text, h.button(self.word("Send review")))
        return SitePage(f"Review {product.name}", fields)

    def _cart(self) -> SitePage:
        if not self.state.cart:
            return SitePage("Cart", h.paragraph("The cart is empty."))
        rows = []
        for key, line in self.variation.reorder("cart", list(self.state.cart.items())):
            name = self.state.name_of(line)
            edit = h.link(f"{self.word('Edit')} {name}", self.url(f"line/{key}"))
            rows.append(h.join((f"{line.quantity} ", edit, self.post_button("Remove", f"remove/{key}", name))))
        lines = h.join((h.bullets(rows), self.post_button("Empty cart", "empty")))
        coupon = h.form(
            self.url("coupon"),
            h.textbox(self.word("Coupon"), "coupon", self.state.customer.coupon),
            h.button(self.word("Use coupon")),
        )
        checkout = h.link(self.word("Checkout"), self.url("checkout"))
        total = sum(self.state.products[line.product].price * line.quantity for line in self.state.cart.values())
        return SitePage("Cart", h.join((lines, h.paragraph(f"Total ${total}"), coupon, checkout)))

    def _line(self, key: str) -> SitePage:
        line = self.state.cart[key]
        choices = QUANTITIES if str(line.quantity) in QUANTITIES else (*QUANTITIES, str(line.quantity))
        quantity = h.combobox(self.word("Quantity"), "quantity", choices, str(line.quantity))
        return SitePage(
            self.state.name_of(line), h.form(self.url(f"line/{key}"), quantity, h.button(self.word("Save")))
        )

    def _wishes(self) -> SitePage:
        if not self.state.wishes:
            return SitePage("Wish list", h.paragraph("The wish list is empty."))
        rows = []
        for wish in self.variation.reorder("wishes", list(self.state.wishes.values())):
            product = self.state.products[wish.product]
            label = h.link(product.label, self.url(f"product/{product.id}"))
            rows.append(h.join((label, self.post_button("Remove", f"unwish/{product.id}", product.name))))
        return SitePage("Wish list", h.bullets(rows))

    def _checkout(self) -> SitePage:
        if not self.state.cart:
            return SitePage("Checkout", h.paragraph("The cart is empty."))
        names = ", ".join(f"{line.quantity} {self.state.name_of(line)}" for line in self.state.cart.values())
        fields = h.form(
            self.url("checkout"),
            h.combobox(
                self.word("Address"),
                "address",
                self.variation.reorder("address", ADDRESSES),
                self.state.customer.address,
            ),
            h.radios(self.word("Shipping"), "shipping", self.variation.reorder("shipping", SHIPPING), SHIPPING[0]),
            h.checkbox(self.word("Gift wrap"), "gift", False),
            h.textbox(self.word("Note"), "note"),
            h.button(self.word("Place order")),
        )
        return SitePage("Checkout", h.join((h.paragraph(names), fields)))

    def _orders(self) -> SitePage:
        rows = []
        for key in self.variation.reorder("orders", list(reversed(self.state.orders))):
            names = ", ".join(self._line_names(key))
            status = self.state.orders[key].status
            rows.append(h.join((h.link(f"{names} ({key})", self.url(f"order/{key}")), f" {status}")))
        return SitePage("Orders", h.bullets(rows))

    def _line_names(self, key: str) -> list[str]:
        return [self.state.products[line["product"]].name for line in self.state.orders[key].lines]

    def _order(self, key: str) -> SitePage:
        order = self.state.orders[key]
        parts = [
            h.paragraph(f"{', '.join(self._line_names(key))}. {order.shipping} to {order.address}. {order.status}")
        ]
        if order.status == "open":
            parts.append(self.post_button("Cancel order", f"cancel/{key}"))
        if order.status == "delivered":
            parts.append(self.post_button("Return order", f"return/{key}"))
        parts.append(self.post_button("Buy again", f"again/{key}"))
        return SitePage(f"Order {key}", h.join(parts))

    def _account(self) -> SitePage:
        customer = self.state.customer
        fields = h.form(
            self.url("account"),
            h.combobox(self.word("Default address"), "address", ADDRESSES, customer.address),
            h.checkbox(self.word("Newsletter"), "newsletter", customer.newsletter),
            h.textbox(self.word("Phone"), "phone", customer.phone),
            h.button(self.word("Save")),
        )
        return SitePage("Account", h.join((h.heading("Your details", 2), fields)))

    # -- forms ----------------------------------------------------------------------------

    def post(self, path: Sequence[str], form: Mapping[str, str]) -> str:
        state = self.state
        match list(path):
            case ["add", key]:
                return self._post_add(self._find(key), form)
            case ["wish", key]:
                state.add_wish(self._find(key).id)
                return "wishes"
            case ["unwish", key]:
                state.remove_wish(self._find(key).id)
                return "wishes"
            case ["review", key]:
                return self._post_review(self._find(key), form)
            case ["remove", key]:
                if state.cart.pop(key, None) is None:
                    raise NotFound
                return "cart"
            case ["line", key] if key in state.cart:
                if form.get("quantity", "") not in QUANTITIES:
                    raise FormError("Choose a quantity from 1 to 4.", f"line/{key}")
                state.cart[key].quantity = int(form["quantity"])
                return "cart"
            case ["empty"]:
                state.cart = {}
                return "cart"
            case ["coupon"]:
                state.customer.coupon = form.get("coupon", "").strip()
                return "cart"
            case ["checkout"]:
                return self._post_checkout(form)
            case [("cancel" | "return" | "again") as verb, key] if key in state.orders:
                return self._post_order(verb, key)
            case ["account"]:
                return self._post_account(form)
        raise NotFound

    def _post_add(self, product: ShopProduct, form: Mapping[str, str]) -> str:
        page = f"product/{product.id}"
        options = {}
        for option, values in product.options:
            if form.get(option, CHOOSE) not in values:
                raise FormError(f"Choose: {option}.", page)
            options[option] = form[option]
        quantity = form.get("quantity", "1")
        if quantity not in QUANTITIES:
            raise FormError("Choose a quantity from 1 to 4.", page)
        require_room(self.state.cart, page)
        self.state.add_to_cart(product.id, options, int(quantity))
        self.message = f"{product.name} is in the cart."
        return "cart"

    def _post_review(self, product: ShopProduct, form: Mapping[str, str]) -> str:
        if form.get("stars", "") not in STARS:
            raise FormError("Choose a number of stars.", f"review/{product.id}")
        self.state.review(product.id, int(form["stars"]), form.get("text", "").strip())
        self.message = "Thank you."
        return f"product/{product.id}"

    def _post_checkout(self, form: Mapping[str, str]) -> str:
        if not self.state.cart:
            raise FormError("The cart is empty.", "cart")
        address, shipping = form.get("address", ""), form.get("shipping", "")
        if address not in ADDRESSES or shipping not in SHIPPING:
            raise FormError("Choose an address and a way of shipping.", "checkout")
        require_room(self.state.orders, "checkout")
        self.state.place_order(address, shipping, "gift" in form, form.get("note", "").strip())
        self.message = "Thank you for your order."
        return "orders"

    def _post_order(self, verb: str, key: str) -> str:
        order = self.state.orders[key]
        if verb == "again":
            self.state.buy_again(key)
            return "cart"
        needed, status = ("open", "cancelled") if verb == "cancel" else ("delivered", "returned")
        if order.status != needed:
            raise FormError(f"This order is {order.status}.", f"order/{key}")
        order.status = status
        return f"order/{key}"

    def _post_account(self, form: Mapping[str, str]) -> str:
        if form.get("address", "") not in ADDRESSES:
            raise FormError("Choose an address.", "account")
        customer = self.state.customer
        customer.address, customer.newsletter = form["address"], "newsletter" in form
        customer.phone = form.get("phone", "").strip()
        self.message = "Saved."
        return "account"
