"""The expert's rules for the operations of the shop."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote_plus

from practicum.environments.web import tasks_shop as ops
from practicum.environments.web.experts import ExpertPage, Field, PageAction, Rule
from practicum.environments.web.sites.shop_data import ShopState


def _to_product(page: ExpertPage, state: ShopState, key: str, sort: str = "") -> PageAction:
    """Go one step nearer to a product's page, through its category, sorted where `sort` says how, or by searching."""
    product = state.products[key]
    if sort and page.path == f"category/{product.category}" and f"sort={quote_plus(sort)}" not in page.view.path:
        return page.submit([("combobox", page.word("Sort by"), sort)], "Sort")
    if page.has("link", product.label):
        return page.click("link", product.label)
    if not product.listed:
        return page.submit([("searchbox", page.word("Search"), product.name)], "Search")
    in_listing = page.path == f"category/{product.category}"
    if in_listing and page.has("link", "Next"):
        return page.click("link", "Next")
    if in_listing and page.has("link", "Previous"):
        return page.click("link", "Previous")
    return page.click("link", product.category if page.has("link", product.category) else "Home")


def _to_order(page: ExpertPage, state: ShopState, key: str) -> PageAction:
    names = ", ".join(state.products[line["product"]].name for line in state.orders[key].lines)
    label = f"{names} ({key})"
    return page.click("link", label if page.has("link", label) else "Orders")


def _add_to_cart(op: ops.AddToCart, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != f"product/{op.product}":
        return _to_product(page, state, op.product, op.sort)
    fields: list[Field] = [("combobox", name, value) for name, value in op.options.items()]
    return page.submit([*fields, ("combobox", page.word("Quantity"), str(op.quantity))], "Add to cart")


def _add_wish(op: ops.AddWish, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != f"product/{op.product}":
        return _to_product(page, state, op.product)
    return page.click("button", "Add to wish list")


def _remove_wish(op: ops.RemoveWish, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != "wishes":
        return page.click("link", "Wish list")
    return page.click("button", "Remove", state.products[op.product].name)


def _review(op: ops.ReviewProduct, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path == f"review/{op.product}":
        stars = ("combobox", page.word("Stars"), str(op.stars))
        return page.submit([stars, ("textbox", "Text", op.text)], "Send review")
    if page.path == f"product/{op.product}":
        return page.click("link", "Review")
    return _to_product(page, state, op.product)


def _remove_from_cart(op: ops.RemoveFromCart, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != "cart":
        return page.click("link", "Cart")
    return page.click("button", "Remove", state.name_of(state.cart[op.line]))


def _set_quantity(op: ops.SetQuantity, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path == f"line/{op.line}":
        return page.submit([("combobox", page.word("Quantity"), str(op.quantity))], "Save")
    if page.path == "cart":
        return page.click("link", "Edit", state.name_of(state.cart[op.line]))
    return page.click("link", "Cart")


def _empty_cart(op: ops.EmptyCart, page: ExpertPage, state: ShopState) -> PageAction:
    return page.click("link", "Cart") if page.path != "cart" else page.click("button", "Empty cart")


def _use_coupon(op: ops.UseCoupon, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != "cart":
        return page.click("link", "Cart")
    return page.submit([("textbox", page.word("Coupon"), op.code)], "Use coupon")


def _place_order(op: ops.PlaceOrder, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path == "cart":
        return page.click("link", "Checkout")
    if page.path != "checkout":
        return page.click("link", "Cart")
    fields: list[Field] = [
        ("combobox", page.word("Address"), op.address),
        ("radio", op.shipping, True),
        ("checkbox", page.word("Gift wrap"), op.gift),
        ("textbox", page.word("Note"), op.note),
    ]
    return page.submit(fields, "Place order")


def _set_order_status(op: ops.SetOrderStatus, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != f"order/{op.order}":
        return _to_order(page, state, op.order)
    return page.click("button", "Cancel order" if op.status == "cancelled" else "Return order")


def _buy_again(op: ops.BuyAgain, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != f"order/{op.order}":
        return _to_order(page, state, op.order)
    return page.click("button", "Buy again")


def _edit_account(op: ops.EditAccount, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != "account":
        return page.click("link", "Account")
    role, label = {
        "address": ("combobox", "Default address"),
        "newsletter": ("checkbox", "Newsletter"),
        "phone": ("textbox", "Phone"),
    }[op.field]
    return page.submit([(role, page.word(label), op.value)], "Save")


def _look_at_product(op: ops.LookAtProduct, page: ExpertPage, state: ShopState) -> PageAction:
    if page.path != f"product/{op.product}":
        return _to_product(page, state, op.product)
    return PageAction("send_msg_to_user", text=f"${state.products[op.product].price}")


RULES: Mapping[type, Rule] = {
    ops.AddToCart: _add_to_cart,
    ops.AddWish: _add_wish,
    ops.RemoveWish: _remove_wish,
    ops.ReviewProduct: _review,
    ops.RemoveFromCart: _remove_from_cart,
    ops.SetQuantity: _set_quantity,
    ops.EmptyCart: _empty_cart,
    ops.UseCoupon: _use_coupon,
    ops.PlaceOrder: _place_order,
    ops.SetOrderStatus: _set_order_status,
    ops.BuyAgain: _buy_again,
    ops.EditAccount: _edit_account,
    ops.LookAtProduct: _look_at_product,
}
