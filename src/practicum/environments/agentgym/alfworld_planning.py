"""Removes irrelevant objects from a household problem: with them a planner may search for minutes.

A plan carries objects of the goal's types to furniture of the goal's types, by way of a sink, microwave or fridge if
the goal needs it. Other objects, and furniture that holds none of these, are irrelevant; a plan for the reduced problem
is a plan for the full one, because nothing in the domain blocks an action.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

Tree = str | list["Tree"]

TOKEN = re.compile(r"[()]|[^\s()]+")
COMMENT = re.compile(r";[^\n]*")
MEANS = {
    "isClean": ("SinkBasinType",),
    "isHot": ("MicrowaveType",),
    "isCool": ("FridgeType",),
    "isSliced": ("KnifeType", "ButterKnifeType"),
}
"""Types that a goal needs without naming them."""


def relevant(problem: str) -> str:
    """Return the problem with only the objects that a plan can need."""
    tree = _read(iter(TOKEN.findall(COMMENT.sub("", problem))))
    assert isinstance(tree, list)
    parts = {part[0]: part for part in tree if isinstance(part, list)}
    init = [fact for fact in parts[":init"][1:] if isinstance(fact, list)]
    words = set(_words(parts[":goal"]))
    kinds = {word for word in words if word.endswith("Type")} | {kind for w in words for kind in MEANS.get(w, ())}
    pairs = [tuple(fact) for fact in init if len(fact) == 3 and all(isinstance(word, str) for word in fact)]
    objects = {name for predicate, name, kind in pairs if predicate == "objectType" and kind in kinds}
    # An object inside another one is moved with it.
    objects |= {outer for predicate, inner, outer in pairs if predicate == "inReceptacleObject" and inner in objects}
    furniture = {name for predicate, name, kind in pairs if predicate == "receptacleType" and kind in kinds}
    furniture |= {location for predicate, item, location in pairs if predicate == "inReceptacle" and item in objects}
    locations = {
        location for predicate, name, location in pairs if predicate == "receptacleAtLocation" and name in furniture
    }
    locations |= {location for predicate, _, location in pairs if predicate == "atLocation"}
    named = [(str(kind), str(name)) for name, kind in _typed(parts[":objects"][1:])]
    relevant = {"object": objects, "receptacle": furniture, "location": locations}
    irrelevant = {name for kind, name in named if kind in relevant and name not in relevant[kind]}
    holders = {kind for predicate, name, kind in pairs if predicate == "receptacleType" and name in furniture}
    facts = [
        fact
        for fact in init
        if not irrelevant.intersection(_words(fact))
        and not (fact[0] == "canContain" and not (fact[1] in holders and fact[2] in kinds))
    ]
    parts[":init"][1:] = facts
    parts[":objects"][1:] = [word for kind, name in named if name not in irrelevant for word in (name, "-", kind)]
    return _write(tree)


def _read(tokens: Iterator[str]) -> Tree:
    token = next(tokens)
    if token != "(":
        return token
    items: list[Tree] = []
    while True:
        part = _read(tokens)
        if part == ")":
            return items
        items.append(part)


def _write(tree: Tree) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(_write, tree))})"


def _words(tree: Tree) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    else:
        for part in tree:
            yield from _words(part)


def _typed(words: list[Tree]) -> Iterator[tuple[Tree, Tree]]:
    """Return `a b - kind` as pairs of a name and its type."""
    waiting: list[Tree] = []
    rest = iter(words)
    for word in rest:
        if word == "-":
            kind = next(rest)
            yield from ((name, kind) for name in waiting)
            waiting = []
        else:
            waiting.append(word)
