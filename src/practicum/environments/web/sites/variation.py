"""Variations of a site's appearance and content, and injected faults. Neither changes what a task asks for."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, TypeVar

from practicum.errors import UserError, did_you_mean

T = TypeVar("T")

AXES = ("skin", "words", "popup", "order")
"""The axes of variation: colours and layout, labels in other words, a dialog to dismiss, lists in another order."""
NUM_SKINS = 4
NUM_WORDINGS = 3
MAX_POPUP_VIEW = 3
MAX_ORDER_SEED = 1000

WORDS: Mapping[str, tuple[str, str]] = {
    # all sites
    "Search": ("Find", "Look up"),
    "Save": ("Apply", "Keep changes"),
    "Next": ("More", "Next page"),
    "Previous": ("Back", "Previous page"),
    "No thanks": ("Close", "Not now"),
    "Delete": ("Bin", "Discard"),
    "Settings": ("Options", "Preferences"),
    "Folder": ("Place", "Label"),
    # mail
    "Inbox": ("Incoming", "Received"),
    "Starred": ("Important", "Flagged"),
    "Archived": ("Old mail", "Stored"),
    "Sent": ("Outgoing", "Sent mail"),
    "Trash": ("Deleted", "Waste"),
    "Compose": ("Write", "New message"),
    "Mark all as read": ("All read", "Set all to read"),
    "Empty trash": ("Clear deleted", "Clear waste"),
    "Reply": ("Answer", "Write back"),
    "Forward": ("Pass on", "Send on"),
    "Archive": ("Put away", "Store"),
    "Star": ("Flag", "Mark important"),
    "Unstar": ("Unflag", "Mark not important"),
    "Mark as unread": ("Set unread", "Unread again"),
    "Restore": ("Undelete", "Put back"),
    "Delete forever": ("Erase", "Destroy"),
    "Move": ("Shift", "File"),
    "Quick reply": ("Short answer", "Ready answer"),
    "Send": ("Send now", "Submit"),
    "Send to": ("Recipient", "Addressee"),
    "Copy to": ("Cc", "Also to"),
    "Vacation reply": ("Away notice", "Out of office"),
    "Signature": ("Closing line", "Sign off"),
    "Rules": ("Filters", "Sorting"),
    "Blocked senders": ("Block list", "Unwanted senders"),
    "From sender": ("Sender", "Sent by"),
    "Add rule": ("Create filter", "New rule"),
    "Remove rule": ("Remove filter", "Drop rule"),
    "Block": ("Refuse", "Ban"),
    "Unblock": ("Allow", "Unban"),
    # calendar
    "This week": ("Current week", "Today"),
    "Next week": ("Following week", "Week after"),
    "Previous week": ("Last week", "Week before"),
    "New event": ("Add event", "Plan event"),
    "Invitations": ("Requests", "Invites"),
    "Clear day": ("Free this day", "Remove all events"),
    "Accept": ("Join", "Say yes"),
    "Decline": ("Skip", "Say no"),
    "Room": ("Location", "Where"),
    "Invite": ("Add guest", "Ask someone"),
    "Reminder": ("Alert", "Notify before"),
    "Rename": ("Change title", "Edit name"),
    "Copy to next week": ("Repeat next week", "Duplicate to next week"),
    "Day": ("Weekday", "On"),
    "Time": ("Hour", "At"),
    "Guest": ("Person", "Participant"),
    "Guests": ("People", "Participants"),
    "Title": ("Name", "Heading"),
    "Kind": ("Type", "Category"),
    "Create": ("Add now", "Make event"),
    "Send invitation": ("Add person", "Ask now"),
    "Day starts at": ("Work begins at", "First hour"),
    "Show declined": ("Show skipped", "Include refused"),
    "Away message": ("Absence note", "Away text"),
    # shop
    "Cart": ("Basket", "Bag"),
    "Wish list": ("Favourites", "Saved items"),
    "Orders": ("Purchases", "Order history"),
    "Account": ("Profile", "My details"),
    "Add to cart": ("Put in basket", "Buy this"),
    "Add to wish list": ("Add to favourites", "Save item"),
    "Remove": ("Take out", "Drop"),
    "Edit": ("Change", "Modify"),
    "Empty cart": ("Clear basket", "Remove everything"),
    "Checkout": ("Proceed to pay", "Go to payment"),
    "Place order": ("Confirm order", "Pay now"),
    "Cancel order": ("Call off order", "Withdraw order"),
    "Return order": ("Send back", "Start a return"),
    "Buy again": ("Order again", "Repeat order"),
    "Review": ("Rate it", "Give feedback"),
    "Send review": ("Publish rating", "Submit feedback"),
    "Stars": ("Rating", "Points"),
    "Quantity": ("Number", "Amount"),
    "Shipping": ("Delivery", "Sending"),
    "Address": ("Deliver to", "Destination"),
    "Gift wrap": ("Wrap as a gift", "Gift paper"),
    "Note": ("Message", "Remark"),
    "Coupon": ("Voucher", "Promo code"),
    "Use coupon": ("Redeem", "Apply code"),
    "Newsletter": ("News by mail", "Send me news"),
    "Phone": ("Phone number", "Mobile"),
    "Default address": ("Usual address", "Main address"),
    "Sort by": ("Order by", "Arrange by"),
    "Sort": ("Reorder", "Arrange"),
}


def translate(label: str, wording: int) -> str:
    """Return a label in the words of a wording; 0 is the label itself."""
    return label if wording == 0 or label not in WORDS else WORDS[label][wording - 1]


@dataclass(frozen=True, slots=True)
class Variation:
    """How a session's pages differ from the plain ones; all zeros are the plain pages."""

    skin: int = 0
    """Colours and layout, from 0 to 3; in odd skins the navigation comes after the content."""
    words: int = 0
    """Wording of the labels, from 0 to 2."""
    popup: int = 0
    """The page view, counted from 1, with which a dialog appears that must be dismissed; 0: none."""
    order: int = 0
    """Seed of the order of lists; 0: the site's own order."""

    @classmethod
    def draw(cls, axes: Sequence[str], rng: random.Random) -> Variation:
        """Return a variation that differs from the plain pages on each of the axes."""
        for axis in axes:
            if axis not in AXES:
                raise UserError(f"The web sites have no variation '{axis}'.{did_you_mean(str(axis), AXES)}")
        limits = {"skin": NUM_SKINS - 1, "words": NUM_WORDINGS - 1, "popup": MAX_POPUP_VIEW, "order": MAX_ORDER_SEED}
        # A draw for every axis, wanted or not: one axis does not change what the others are.
        drawn = {axis: rng.randint(1, limits[axis]) for axis in AXES}
        return cls(**{axis: drawn[axis] for axis in AXES if axis in axes})

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Variation:
        """Return the variation that `to_json` wrote."""
        return cls(**value)

    def to_json(self) -> dict[str, int]:
        """Return the axes that differ from the plain pages."""
        return {axis: value for axis, value in asdict(self).items() if value}

    def word(self, label: str) -> str:
        """Return a label in this variation's words."""
        return translate(label, self.words)

    def reorder(self, key: str, items: Sequence[T]) -> list[T]:
        """Return a list in this variation's order. `key` names the list."""
        result = list(items)
        if self.order:
            random.Random(f"{self.order}:{key}").shuffle(result)
        return result


@dataclass(frozen=True, slots=True)
class Faults:
    """Shares of a session's requests that go wrong. Which ones is decided by the seed and the request's index."""

    slow: float = 0.0
    """Requests that are answered after `slow_seconds`."""
    error: float = 0.0
    """Requests answered with status 500; they have no effect, and a second try may succeed."""
    vanish: float = 0.0
    """Pages that lack one of their buttons or links; it is there again when the page is loaded again."""
    popup: float = 0.0
    """Pages on which a dialog appears."""
    slow_seconds: float = 1.0
    seed: int = 0

    def draw(self, index: int) -> FaultsOfRequest:
        """Return the faults of a request by its index in the session."""
        rng = random.Random(f"faults:{self.seed}:{index}")
        slow, error, vanish, popup = (rng.random() for _ in range(4))
        return FaultsOfRequest(
            delay_seconds=self.slow_seconds if slow < self.slow else 0.0,
            error=error < self.error,
            vanish=rng.random() if vanish < self.vanish else None,
            popup=popup < self.popup,
        )


@dataclass(frozen=True, slots=True)
class FaultsOfRequest:
    """What goes wrong with one request. `vanish` chooses the missing element by its relative position."""

    delay_seconds: float = 0.0
    error: bool = False
    vanish: float | None = None
    popup: bool = False
