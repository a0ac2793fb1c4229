"""The closed vocabulary of plans: executable steps, tasks with a recipe, modifiers, slots; free text matched to it.

A node of a plan is a type and a slot: `buy lamp`. Types are steps, which can be executed, or recipes, which consist of
other types. A modifier in the request ("a cheap lamp") changes the recipe of the task whose noun it stands before.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from string import ascii_uppercase

STEP_SECONDS: Mapping[str, float] = {
    "find": 3.0, "pick": 2.0, "pay": 1.0, "book": 1.0, "send": 2.0, "tell": 1.0, "ask": 2.0, "call": 2.0, "read": 4.0,
    "write": 5.0, "check": 2.0, "test": 3.0, "fix": 5.0, "cut": 2.0, "cook": 6.0, "wash": 2.0, "pack": 3.0, "load": 2.0,
    "sort": 3.0, "count": 3.0, "draw": 4.0, "print": 1.0, "sign": 1.0, "build": 6.0, "plan": 3.0, "clean": 3.0,
    "post": 2.0, "save": 1.0, "meet": 4.0, "dig": 5.0, "sow": 3.0,
}  # fmt: skip
"""The steps that can be executed, with their simulated durations."""

RECIPES: Mapping[str, str] = {
    "seat": "find, pay<1",
    "room": "pick, book<1",
    "trip": "seat, room, pack<1 2",
    "buy": "find, pay<1",
    "return": "pack, send<1",
    "gift": "buy, pack<1",
    "soup": "wash, cut<1, cook<2",
    "cake": "count, cook<1",
    "dinner": "buy, soup<1",
    "repair": "check, fix<1, test<2",
    "tidy": "sort, clean",
    "renew": "tidy, repair<1",
    "ship": "build, test<1, post<2",
    "mend": "test, read, fix<1 2",
    "launch": "mend, post<1",
    "report": "load, count<1, write<2",
    "chart": "load, sort<1, draw<2",
    "study": "ask, report<1",
    "party": "plan, ask<1, cook<1",
    "talk": "write, print<1, book",
    "feast": "party, room",
    "hire": "post, read<1, meet<2, sign<3",
    "coach": "plan, call<1",
    "staff": "hire, coach<1",
    "note": "write, print<1, send<2",
    "review": "read, write<1",
    "refund": "check, pay<1, tell<2",
    "claim": "refund, note<1",
    "bill": "check, pay<1, save<2",
    "audit": "load, count<1, check<1, sign<2 3",
    "close": "audit, save<1",
    "bed": "dig, sow<1",
    "crop": "cut, wash<1, pack<2",
    "yard": "bed, crop<1",
}
"""What a task consists of: `pay<1` comes after the first part."""

PHRASES: Mapping[str, tuple[str, ...]] = {
    "seat": ("get a {m}seat to {x}", "get a {m}ticket to {x}"),
    "room": ("get a {m}room in {x}", "reserve a {m}room in {x}"),
    "trip": ("plan a {m}trip to {x}", "arrange a {m}trip to {x}"),
    "buy": ("buy a {m}{x}", "get me a {m}{x}"),
    "return": ("return the {m}{x}", "take the {m}{x} back"),
    "gift": ("get a {m}{x} as a gift", "buy a {m}{x} as a gift"),
    "soup": ("make {m}soup of {x}", "cook a {m}soup of {x}"),
    "cake": ("bake a {m}cake of {x}", "make a {m}cake of {x}"),
    "dinner": ("make {m}dinner of {x}", "do a {m}dinner of {x}"),
    "repair": ("repair the {m}{x}", "get the {m}{x} going"),
    "tidy": ("tidy the {m}{x}", "tidy up the {m}{x}"),
    "renew": ("renew the {m}{x}", "do up the {m}{x}"),
    "ship": ("ship the {m}{x}", "release the {m}{x}"),
    "mend": ("mend the {m}{x}", "find the bug in the {m}{x}"),
    "launch": ("launch the {m}{x}", "bring out the {m}{x}"),
    "report": ("make a {m}report on {x}", "get me a {m}report on {x}"),
    "chart": ("make a {m}chart of {x}", "get me a {m}chart of {x}"),
    "study": ("do a {m}study of {x}", "make a {m}study of {x}"),
    "party": ("hold a {m}party for {x}", "do a {m}party for {x}"),
    "talk": ("give a {m}talk on {x}", "hold a {m}talk on {x}"),
    "feast": ("hold a {m}feast for {x}", "do a {m}feast for {x}"),
    "hire": ("hire a {m}{x}", "take on a {m}{x}"),
    "coach": ("coach the {m}{x}", "get the {m}{x} started"),
    "staff": ("staff a {m}{x}", "fill the post of {m}{x}"),
    "note": ("do a {m}note to {x}", "get a {m}note to {x}"),
    "review": ("review the {m}{x}", "do a review of the {m}{x}"),
    "refund": ("refund {m}{x}", "give {m}{x} a refund"),
    "claim": ("settle the {m}claim of {x}", "do the {m}claim of {x}"),
    "bill": ("settle the {m}{x} bill", "do the {m}{x} bill"),
    "audit": ("audit the {m}{x}", "do an audit of the {m}{x}"),
    "close": ("close the {m}{x}", "close out the {m}{x}"),
    "bed": ("make a {m}bed of {x}", "start a {m}bed of {x}"),
    "crop": ("bring in the {m}{x}", "see to the crop of {m}{x}"),
    "yard": ("do the {m}yard of {x}", "keep a {m}yard of {x}"),
    "tell": ("tell {m}{x}", "let {m}{x} know"),
    "call": ("call {m}{x}", "give {m}{x} a call"),
    "ask": ("ask {m}{x}",),
    "meet": ("meet {m}{x}",),
    "pay": ("pay {m}{x}",),
    "wash": ("wash the {m}{x}",),
    "sign": ("sign the {m}{x}",),
    "clean": ("clean the {m}{x}",),
}
"""How requests ask for a task: {m} is the place of a modifier, {x} of the slot."""

MODIFIERS: Mapping[str, str] = {"cheap": "pick", "old": "clean", "checked": "check", "shared": "tell"}
"""What a modifier adds: `pick` after `find`; `clean` before everything; `check` or `tell` after everything."""

SLOTS: Mapping[str, tuple[str, ...]] = {
    "city": ("Oslo", "Bern", "Bonn", "Cork", "Bari", "Lund", "Lima", "Turin"),
    "person": ("Ada", "Ben", "Cleo", "Dan", "Eve", "Finn", "Gus", "Hana", "Ivo", "June", "Kim", "Leo", "Mia", "Nils"),
    "thing": ("car", "boat", "cart", "coat", "hat", "pan", "pot", "ring", "key", "bag", "box", "lamp"),
    "food": ("nuts", "apples", "ham", "oats", "beans", "peas", "dates", "rice"),
    "place": ("den", "bar", "inn", "loft", "barn", "shed", "hall", "attic"),
    "app": ("app", "bot", "site", "game", "tool", "wiki"),
    "table": ("coins", "cards", "stamps", "users", "sales", "costs", "loans", "trees"),
    "topic": ("bees", "stars", "birds", "shells", "stones", "caves"),
    "role": ("nurse", "baker", "tutor", "poet", "actor", "guard"),
    "book": ("poem", "play", "song", "story", "film", "saga"),
    "due": ("gas", "tax", "rent", "heat", "water", "power"),
    "plant": ("corn", "mint", "sage", "figs", "roses", "limes"),
}  # fmt: skip
"""Slot values by kind; no value is of two kinds."""

SLOT_VALUES = frozenset(value for values in SLOTS.values() for value in values)
TYPES = frozenset(STEP_SECONDS) | frozenset(RECIPES)

SYNONYMS: Mapping[str, tuple[str, ...]] = {
    "find": ("search", "locate", "research", "look", "discover"),
    "pick": ("choose", "compare", "select", "decide"),
    "pay": ("purchase", "payment", "transfer", "checkout"),
    "book": ("reserve", "reservation", "schedule"),
    "send": ("mail", "deliver", "dispatch"),
    "tell": ("inform", "notify", "share", "announce"),
    "ask": ("invite", "survey", "interview", "question"),
    "call": ("phone", "ring", "contact"),
    "read": ("study", "skim", "inspect"),
    "write": ("draft", "compose", "author"),
    "check": ("verify", "validate", "examine", "confirm"),
    "test": ("try", "tests", "testing"),
    "fix": ("mend", "patch", "correct", "resolve"),
    "cut": ("chop", "slice", "trim"),
    "cook": ("bake", "boil", "simmer", "fry"),
    "wash": ("rinse",),
    "pack": ("wrap", "box"),
    "load": ("import", "fetch", "download", "collect"),
    "sort": ("order", "arrange", "rank"),
    "count": ("sum", "total", "measure", "tally", "weigh"),
    "draw": ("plot", "sketch", "visualise", "visualize"),
    "print": ("printout",),
    "sign": ("approve", "signature"),
    "build": ("compile", "assemble", "construct"),
    "plan": ("outline", "organise", "organize"),
    "clean": ("scrub", "wipe", "dust"),
    "post": ("publish", "upload", "advertise"),
    "save": ("file", "archive", "store", "record"),
    "meet": ("meeting", "greet"),
    "dig": ("till", "shovel"),
    "sow": ("plant", "seed"),
}
"""Other words for the steps, in free text."""

TYPE_OF_SYNONYM: Mapping[str, str] = {word: type for type, words in SYNONYMS.items() for word in words}
WORD = re.compile(r"[A-Za-z]+")
ITEM = re.compile(r"^(?P<words>[^<]*?)\s*(?:<\s*(?P<after>[\d\s]*))?$")


@dataclass(frozen=True, slots=True)
class Item:
    """One part of a decomposition: type, slot ("" is the parent's), and the positions (from 1) it comes after."""

    type: str
    slot: str = ""
    after: tuple[int, ...] = ()

    @property
    def text(self) -> str:
        order = f"<{' '.join(map(str, self.after))}" if self.after else ""
        return f"{self.label}{order}"

    @property
    def label(self) -> str:
        return f"{self.type} {self.slot}" if self.slot else self.type


def is_step(type: str) -> bool:
    """Whether a type can be executed."""
    return type in STEP_SECONDS


def parse_items(text: str) -> tuple[Item, ...]:
    """Return the parts of `find lamp, pay lamp<1`; ValueError where a part has no readable form."""
    items = []
    for part in text.split(","):
        match = ITEM.match(part.strip())
        words = match["words"].split() if match else []
        if match is None or not 1 <= len(words) <= 2:
            raise ValueError(f"'{part.strip()[:40]}' is not `type slot<positions`")
        after = tuple(dict.fromkeys(int(position) for position in (match["after"] or "").split()))
        items.append(Item(words[0], words[1] if len(words) == 2 else "", after))
    return tuple(items)


def recipe(type: str, modifiers: Iterable[str] = ()) -> tuple[Item, ...]:
    """Return the parts of a task, changed by its modifiers; ValueError where a modifier does not go with it."""
    items = parse_items(RECIPES[type])
    for modifier in modifiers:
        items = _modified(items, modifier)
    return items


def allowed_modifiers(type: str) -> tuple[str, ...]:
    """Return the modifiers that change a task: those whose step it does not have already, at any depth."""
    if type not in RECIPES:
        return ()
    steps = set(all_steps(type))
    return tuple(
        modifier
        for modifier, step in MODIFIERS.items()
        if step not in steps and (modifier != "cheap" or "find" in RECIPES[type])
    )


def all_steps(type: str) -> tuple[str, ...]:
    """Return the steps of a type at any depth."""
    if is_step(type):
        return (type,)
    return tuple(step for item in recipe(type) for step in all_steps(item.type))


def _modified(items: Sequence[Item], modifier: str) -> tuple[Item, ...]:
    step = MODIFIERS[modifier]
    match modifier:
        case "cheap":
            position = next((index for index, item in enumerate(items, 1) if item.type == "find"), None)
            if position is None:
                raise ValueError("'cheap' needs a step `find`")
            moved = [_shifted(item, position) for item in items]
            before, rest = moved[:position], moved[position:]
            # What came after `find` comes after `pick`.
            rest = [Item(i.type, i.slot, tuple(position + 1 if a == position else a for a in i.after)) for i in rest]
            return (*before, Item(step, after=(position,)), *rest)
        case "old":
            moved = [Item(i.type, i.slot, tuple(a + 1 for a in i.after) or (1,)) for i in items]
            return (Item(step), *moved)
        case _:
            followed = {position for item in items for position in item.after}
            last = tuple(position for position in range(1, len(items) + 1) if position not in followed)
            return (*items, Item(step, after=last))


def _shifted(item: Item, inserted_after: int) -> Item:
    """An item whose positions allow for one inserted after a position."""
    return Item(item.type, item.slot, tuple(a + 1 if a > inserted_after else a for a in item.after))


def match_type(text: str, stated: str = "") -> str:
    """Return the type that free text means: a stated type, a type's name, or a synonym; "" if there is none.

    The first word that is a type or a synonym decides: descriptions begin with their verb.
    """
    if stated in TYPES:
        return stated
    for word in WORD.findall(text.lower()):
        forms: tuple[str, ...] = (word, word.removesuffix("s"), word.removesuffix("ing"), word.removesuffix("ed"))
        for form in forms:
            if form in TYPES:
                return form
            if form in TYPE_OF_SYNONYM:
                return TYPE_OF_SYNONYM[form]
    return ""


def match_slot(text: str, slots: Iterable[str]) -> str:
    """Return the slot value that a text mentions: one of the request's before any other; "" if there is none."""
    words = {word.lower() for word in WORD.findall(text)}
    candidates = (*slots, *sorted(SLOT_VALUES))
    return next((slot for slot in candidates if slot.lower() in words), "")


def mentioned_slots(request: str) -> tuple[str, ...]:
    """Return the slot values that a request mentions, in order."""
    return tuple(dict.fromkeys(word for word in WORD.findall(request) if word in SLOT_VALUES))


def slot_letters(request: str) -> dict[str, str]:
    """Return the letters that stand for the slots of a request in the short prompt: `A` is the first one mentioned."""
    return dict(zip(mentioned_slots(request), ascii_uppercase, strict=False))
