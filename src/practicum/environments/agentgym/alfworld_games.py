"""Generated household games: a number identifies a game, and the game is the same on every machine.

A game is a PDDL problem for ALFRED's own domain. What fits into what, what can be heated, and how goals are defined and
worded come from the alfworld package's tables (`Tables`); the furniture of a room, its counts, and the locations of
objects are drawn here by a generator that depends on the number alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from practicum.environments.agentgym.alfworld_generated_expert import Search
from practicum.utils.seeded_random import SeededRandom

T = TypeVar("T")
GENERATOR_VERSION = 1
"""Increased when a number gives another game than before; part of every task."""
KINDS = (
    "pick_and_place_simple",
    "look_at_obj_in_light",
    "pick_clean_then_place_in_recep",
    "pick_heat_then_place_in_recep",
    "pick_cool_then_place_in_recep",
    "pick_two_obj_and_place",
)
ROOMS_OF_KIND = {
    "pick_and_place_simple": ("kitchen", "living room", "bedroom", "bathroom"),
    "look_at_obj_in_light": ("living room", "bedroom"),
    "pick_clean_then_place_in_recep": ("kitchen", "bathroom"),
    "pick_heat_then_place_in_recep": ("kitchen",),
    "pick_cool_then_place_in_recep": ("kitchen",),
    "pick_two_obj_and_place": ("kitchen", "living room", "bedroom", "bathroom"),
}
TOOLS = {
    "pick_clean_then_place_in_recep": ("clean", "SinkBasin"),
    "pick_heat_then_place_in_recep": ("heat", "Microwave"),
    "pick_cool_then_place_in_recep": ("cool", "Fridge"),
}
"""The command that treats an object, and where."""
ABILITY = {
    "pick_clean_then_place_in_recep": "Cleanable",
    "pick_heat_then_place_in_recep": "Heatable",
    "pick_cool_then_place_in_recep": "Coolable",
}
FURNITURE: Mapping[str, Mapping[str, tuple[int, int]]] = {
    "kitchen": {
        "Cabinet": (4, 9), "Drawer": (3, 7), "CounterTop": (1, 3), "DiningTable": (0, 1), "Shelf": (0, 3),
        "Fridge": (1, 1), "Microwave": (1, 1), "SinkBasin": (1, 1), "StoveBurner": (4, 4), "CoffeeMachine": (1, 1),
        "GarbageCan": (1, 1),
    },
    "living room": {
        "Sofa": (1, 1), "ArmChair": (1, 2), "CoffeeTable": (1, 1), "SideTable": (1, 3), "DiningTable": (0, 1),
        "Drawer": (2, 5), "Cabinet": (0, 4), "Shelf": (0, 4), "TVStand": (1, 1), "GarbageCan": (1, 1),
    },
    "bedroom": {
        "Bed": (1, 1), "Desk": (1, 2), "Dresser": (0, 1), "SideTable": (1, 2), "Drawer": (3, 8), "Shelf": (1, 5),
        "LaundryHamper": (0, 1), "Safe": (0, 1), "GarbageCan": (1, 1),
    },
    "bathroom": {
        "Cabinet": (2, 4), "CounterTop": (1, 1), "SinkBasin": (1, 2), "Toilet": (1, 1), "BathtubBasin": (0, 1),
        "Shelf": (0, 3), "Drawer": (0, 2), "GarbageCan": (1, 1), "TowelHolder": (1, 1), "ToiletPaperHanger": (1, 1),
        "HandTowelHolder": (0, 2),
    },
}  # fmt: skip
"""Least and greatest number of each piece of furniture in a room."""
THINGS: Mapping[str, Sequence[str]] = {
    "kitchen": (
        "Apple", "Bowl", "Bread", "ButterKnife", "Cup", "DishSponge", "Egg", "Fork", "Kettle", "Knife", "Ladle",
        "Lettuce", "Mug", "Pan", "PepperShaker", "Plate", "Pot", "Potato", "SaltShaker", "SoapBottle", "Spatula",
        "Spoon", "Tomato", "WineBottle",
    ),
    "living room": (
        "Book", "Box", "CreditCard", "KeyChain", "Laptop", "Newspaper", "Pillow", "Plate", "RemoteControl", "Statue",
        "TissueBox", "Vase", "Watch", "WateringCan",
    ),
    "bedroom": (
        "AlarmClock", "Book", "Bowl", "CD", "CellPhone", "CreditCard", "KeyChain", "Laptop", "Mug", "Pen", "Pencil",
        "Pillow", "TissueBox", "Vase",
    ),
    "bathroom": (
        "Candle", "Cloth", "HandTowel", "SoapBar", "SoapBottle", "SprayBottle", "ToiletPaper", "Towel", "TissueBox",
    ),
}  # fmt: skip
LIT_ROOMS = {"living room": "FloorLamp", "bedroom": "DeskLamp"}
LAMP_STANDS = ("SideTable", "Desk", "CoffeeTable", "Dresser", "TVStand", "Shelf")
DOMAIN_TYPES = ("KnifeType", "ButterKnifeType"), ("SinkBasinType", "MicrowaveType", "FridgeType")
"""Types of objects and receptacles that the domain itself names: a problem must declare them."""


@dataclass(frozen=True, slots=True)
class Tables:
    """ALFRED's tables, from the alfworld package."""

    holds: Mapping[str, frozenset[str]]
    """Receptacle to the objects that it can hold."""
    able: Mapping[str, frozenset[str]]
    """Ability (`Heatable`, ...) to the objects that have it."""
    openable: frozenset[str]
    goals: Mapping[str, Mapping[str, Any]]
    """Kind of goal to its PDDL and its wordings."""


@dataclass(frozen=True, slots=True)
class GameObject:
    """An object, its type, and the receptacle that contains it."""

    name: str
    kind: str
    receptacle: str


def kind_of(number: int) -> str:
    return KINDS[number % len(KINDS)]


def make_game(number: int, tables: Tables) -> dict[str, Any]:
    """Return the game of a number: PDDL problem, goal in words, and a shortest plan (`verb, names...` per step)."""
    kind = kind_of(number)
    rng = SeededRandom(f"alfworld/{GENERATOR_VERSION}/{number}")
    room = rng.choice(ROOMS_OF_KIND[kind])
    counts = {piece: rng.between(*limits) for piece, limits in FURNITURE[room].items()}
    furniture = {
        f"{_stem(piece)}_bar_{number:02d}{_tail(piece)}": piece
        for piece, count in counts.items()
        for number in range(1, count + 1)
    }
    target, goal_receptacle = _goal(kind, room, set(furniture.values()), tables, rng)
    items = _things(kind, room, furniture, target, goal_receptacle, tables, rng)
    lamp = next((item.kind for item in items if item.kind in LIT_ROOMS.values()), "")
    words = {"obj": target, "recep": goal_receptacle, "toggle": lamp, "mrecep": ""}
    goal = tables.goals[kind]["pddl"].replace("#", "-").format(**words)
    wording = rng.choice(tables.goals[kind]["templates"])
    return {
        "pddl_problem": _problem(number, furniture, items, goal, tables),
        "goal": wording.format(**{name: word.lower() for name, word in words.items()}),
        "plan": _plan(kind, furniture, items, target, goal_receptacle, tables.openable),
        "search": _search_plan(kind, furniture, items, target, goal_receptacle, tables),
    }


def _stem(piece: str) -> str:
    # The engine's own names: a basin is part of its sink or bathtub, and the package joins the words again.
    return piece.removesuffix("Basin")


def _tail(piece: str) -> str:
    return f"_bar_{piece}" if piece.endswith("Basin") else ""


def _goal(kind: str, room: str, pieces: set[str], tables: Tables, rng: SeededRandom) -> tuple[str, str]:
    """Draw an object and a receptacle that can hold it; for looking under a lamp only the object is used."""
    candidates = tables.able[ABILITY[kind]] if kind in ABILITY else frozenset(THINGS[room])
    # An object with only one possible receptacle would be there from the beginning.
    pairs = [
        (item, piece)
        for item in THINGS[room]
        for piece in sorted(pieces)
        if item in candidates
        and item in tables.holds.get(piece, ())
        and _other_receptacles(item, piece, pieces, tables)
    ]
    item, piece = rng.choice(pairs)
    return (item, "") if kind == "look_at_obj_in_light" else (item, piece)


def _other_receptacles(item: str, piece: str, pieces: set[str], tables: Tables) -> list[str]:
    return sorted(other for other in pieces if other != piece and item in tables.holds.get(other, ()))


def _things(
    kind: str,
    room: str,
    furniture: Mapping[str, str],
    target: str,
    goal_receptacle: str,
    tables: Tables,
    rng: SeededRandom,
) -> list[GameObject]:
    """Draw the objects of the room: those of the goal, not yet in place, a lamp if needed, and others."""
    count: dict[str, int] = {}

    def receptacle(item_kind: str, allowed: Sequence[str]) -> list[GameObject]:
        receptacles = [name for name, piece in furniture.items() if piece in allowed]
        if not receptacles:
            return []
        count[item_kind] = count.get(item_kind, 0) + 1
        return [GameObject(f"{item_kind}_bar_{count[item_kind]:02d}", item_kind, rng.choice(receptacles))]

    pieces = set(furniture.values())
    other_receptacles = _other_receptacles(target, goal_receptacle, pieces, tables)
    least = 2 if kind == "pick_two_obj_and_place" else 1
    objects_ = [item for _ in range(rng.between(least, least + 1)) for item in receptacle(target, other_receptacles)]
    if room in LIT_ROOMS and (kind == "look_at_obj_in_light" or rng.below(2)):
        objects_ += receptacle(LIT_ROOMS[room], [piece for piece in LAMP_STANDS if piece in pieces])
    for item_kind in THINGS[room]:
        if item_kind != target:
            allowed = [piece for piece in sorted(pieces) if item_kind in tables.holds.get(piece, ())]
            objects_ += [item for _ in range(rng.between(0, 2)) for item in receptacle(item_kind, allowed)]
    return objects_


def _plan(
    kind: str,
    furniture: Mapping[str, str],
    items: Sequence[GameObject],
    target: str,
    goal_receptacle: str,
    openable: frozenset[str],
) -> list[list[str]]:
    """Return the shortest plan that brings one (or two) objects of the wanted type to the goal."""  # fmt: skip
    sought = [item for item in items if item.kind == target]
    lamp = next((item for item in items if item.kind in LIT_ROOMS.values()), None)
    ends = [name for name, piece in furniture.items() if piece == goal_receptacle] or [""]
    plans = []
    for item in sought:
        others = [other for other in sought if other != item] if kind == "pick_two_obj_and_place" else [None]
        plans += [
            _carry(kind, furniture, [item, *([other] if other else [])], end, lamp, openable)
            for other in others
            for end in ends
        ]
    return min(plans, key=len)


def _carry(
    kind: str, furniture: Mapping[str, str], carried: Sequence[GameObject], end: str, lamp: GameObject | None,
    openable: frozenset[str],
) -> list[list[str]]:  # fmt: skip
    """Return the steps that fetch each object in turn, treat it as wanted, and bring it to the goal."""
    steps: list[list[str]] = []
    opened: set[str] = set()

    def go(receptacle: str, within: bool) -> None:
        if not any(step[0] == "goto" for step in steps) or _stands(steps) != receptacle:
            steps.append(["goto", receptacle])
        if within and furniture[receptacle] in openable and receptacle not in opened:
            steps.append(["open", receptacle])
            opened.add(receptacle)

    tool = TOOLS.get(kind)
    for item in carried:
        go(item.receptacle, within=True)
        steps.append(["take", item.name, item.receptacle])
        if tool is not None:
            verb, piece = tool
            receptacle = next(name for name, item_kind in furniture.items() if item_kind == piece)
            go(receptacle, within=False)
            steps.append([verb, item.name, receptacle])
        if kind == "look_at_obj_in_light":
            assert lamp is not None, "a room for looking has a lamp"
            go(lamp.receptacle, within=False)
            steps.append(["use", lamp.name])
        else:
            go(end, within=True)
            steps.append(["move", item.name, end])
    return steps


def _search_plan(
    kind: str,
    furniture: Mapping[str, str],
    items: Sequence[GameObject],
    target: str,
    goal_receptacle: str,
    tables: Tables,
) -> list[list[str]]:
    """Return the steps of an expert that has to look for the objects (`alfworld_generated_expert.py`)."""
    contents: dict[str, list[tuple[str, str]]] = {}
    for item in items:
        contents.setdefault(item.receptacle, []).append((item.name, item.kind))
    search = Search(furniture, contents, tables.openable)
    lamp = next((item.kind for item in items if item.kind in LIT_ROOMS.values()), "")
    for _ in range(2 if kind == "pick_two_obj_and_place" else 1):
        search.take(
            search.find(target, lambda piece: piece != goal_receptacle and target in tables.holds.get(piece, ()))
        )
        if kind in TOOLS:
            verb, tool = TOOLS[kind]
            receptacle = next(name for name, piece in furniture.items() if piece == tool)
            search.go(receptacle)
            search.steps.append([verb, search.carried, receptacle])
        if kind == "look_at_obj_in_light":
            search.steps.append(["use", search.find(lamp, lambda piece: piece in LAMP_STANDS)])
        else:
            end = next(name for name, piece in furniture.items() if piece == goal_receptacle)
            search.go(end)
            search.steps.append(["move", search.carried, end])
    return search.steps


def _stands(steps: Sequence[Sequence[str]]) -> str:
    return next(step[1] for step in reversed(steps) if step[0] == "goto")


def _problem(number: int, furniture: Mapping[str, str], items: Sequence[GameObject], goal: str, tables: Tables) -> str:
    """Write the PDDL problem: each piece of furniture at its own location, the agent in the middle of the room."""
    receptacles = {name: f"loc_bar_{index:02d}" for index, name in enumerate(furniture, 1)}
    kinds = sorted({f"{item.kind}Type" for item in items} | set(DOMAIN_TYPES[0]))
    pieces = sorted({f"{piece}Type" for piece in furniture.values()} | set(DOMAIN_TYPES[1]))
    objects = [
        "agent1 - agent",
        *(f"{name} - location" for name in ("loc_bar_00", *receptacles.values())),
        *(f"{item.name} - object" for item in items),
        *(f"{name} - receptacle" for name in furniture),
        *(f"{kind} - otype" for kind in kinds),
        *(f"{piece} - rtype" for piece in pieces),
    ]
    facts = ["(= (total-cost) 0)", "(atLocation agent1 loc_bar_00)"]
    for name, piece in furniture.items():
        facts += [f"(receptacleType {name} {piece}Type)", f"(receptacleAtLocation {name} {receptacles[name]})"]
        facts += [f"(openable {name})"] if piece in tables.openable else []
    for piece in sorted(set(furniture.values())):
        contained_kinds = sorted({item.kind for item in items} & tables.holds.get(piece, frozenset()))
        facts += [f"(canContain {piece}Type {kind}Type)" for kind in contained_kinds]
    for item in items:
        facts += [
            f"(objectType {item.name} {item.kind}Type)",
            f"(inReceptacle {item.name} {item.receptacle})",
            f"(objectAtLocation {item.name} {receptacles[item.receptacle]})",
            *(
                f"({ability.lower()} {item.name})"
                for ability in ("Cleanable", "Heatable", "Coolable", "Toggleable", "Sliceable")
                if item.kind in tables.able[ability]
            ),
        ]
        facts += [] if item.kind in tables.able["Toggleable"] else [f"(pickupable {item.name})"]
    objects_text, facts_text = "\n  ".join(objects), "\n  ".join(facts)
    return (
        f"(define (problem game_{number})\n (:domain alfred)\n"
        f" (:objects\n  {objects_text}\n )\n (:init\n  {facts_text}\n )\n{goal}"
    )
