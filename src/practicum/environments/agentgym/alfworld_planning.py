"""What of a household problem a plan can need: a planner that is given the rest too may search for minutes.

A plan carries things of the goal's kinds to furniture of the goal's kinds, by way of a sink, microwave or fridge where
the goal asks for it. Other things, and furniture that holds none of them, take no part; a plan for what is left
is a plan for the whole, because nothing in the domain gets in the way.
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
"""Kinds that a goal needs without naming them."""


def relevant(problem: str) -> str:
    """The problem with what its plan can need, and nothing else."""
    tree = _read(iter(TOKEN.findall(COMMENT.sub("", problem))))
    assert isinstance(tree, list)
    parts = {part[0]: part for part in tree if isinstance(part, list)}
    init = [fact for fact in parts[":init"][1:] if isinstance(fact, list)]
    words = set(_words(parts[":goal"]))
    kinds = {word for word in words if word.endswith("Type")} | {kind for w in words for kind in MEANS.get(w, ())}
    pairs = [tuple(fact) for fact in init if len(fact) == 3 and all(isinstance(word, str) for word in fact)]
    things = {name for what, name, kind in pairs if what == "objectType" and kind in kinds}
    # What lies within another thing comes with it.
    things |= {outer for what, inner, outer in pairs if what == "inReceptacleObject" and inner in things}
    furniture = {name for what, name, kind in pairs if what == "receptacleType" and kind in kinds}
    furniture |= {place for what, thing, place in pairs if what == "inReceptacle" and thing in things}
    places = {place for what, name, place in pairs if what == "receptacleAtLocation" and name in furniture}
    places |= {place for what, _, place in pairs if what == "atLocation"}
    named = [(str(kind), str(name)) for name, kind in _typed(parts[":objects"][1:])]
    kept = {"object": things, "receptacle": furniture, "location": places}
    gone = {name for kind, name in named if kind in kept and name not in kept[kind]}
    holders = {kind for what, name, kind in pairs if what == "receptacleType" and name in furniture}
    facts = [
        fact
        for fact in init
        if not gone.intersection(_words(fact))
        and not (fact[0] == "canContain" and not (fact[1] in holders and fact[2] in kinds))
    ]
    parts[":init"][1:] = facts
    parts[":objects"][1:] = [word for kind, name in named if name not in gone for word in (name, "-", kind)]
    return _write(tree)


def _read(tokens: Iterator[str]) -> Tree:
    token = next(tokens)
    if token != "(":
        return token
    held: list[Tree] = []
    while True:
        part = _read(tokens)
        if part == ")":
            return held
        held.append(part)


def _write(tree: Tree) -> str:
    return tree if isinstance(tree, str) else f"({' '.join(map(_write, tree))})"


def _words(tree: Tree) -> Iterator[str]:
    if isinstance(tree, str):
        yield tree
    else:
        for part in tree:
            yield from _words(part)


def _typed(words: list[Tree]) -> Iterator[tuple[Tree, Tree]]:
    """`a b - kind` as pairs of a name and its kind."""
    waiting: list[Tree] = []
    rest = iter(words)
    for word in rest:
        if word == "-":
            kind = next(rest)
            yield from ((name, kind) for name in waiting)
            waiting = []
        else:
            waiting.append(word)
