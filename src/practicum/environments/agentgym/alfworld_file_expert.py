"""An expert for the games in ALFWorld's files: it uses only the goal, what it has seen, and what fits where.

It visits the furniture that can hold the wanted object, opens what is closed, takes the object, treats it if the goal
says so, and brings it to the goal. What is possible at a place it reads from the list of possible commands.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from practicum.environment import Observation

TREATMENTS = {
    "clean": ("clean", "sinkbasin"),
    "hot": ("heat", "microwave"),
    "heat": ("heat", "microwave"),
    "cool": ("cool", "fridge"),
}
"""Words of a goal that ask for a treatment: its verb and the furniture for it."""
GOAL = re.compile(r"Your task is to: (.*)")
FILLER = frozenset((
    "a", "all", "and", "at", "clean", "cool", "examine", "find", "heat", "hot", "in", "it", "look", "on", "put", "some",
    "the", "them", "to", "two", "under", "with",
))  # fmt: skip
LAMPS = ("desklamp", "floorlamp")
GO, TAKE = re.compile(r"go to (.+)"), re.compile(r"take (.+) from (.+)")


@dataclass(frozen=True, slots=True)
class HouseholdGoal:
    """A goal: the type of the object, of the furniture it belongs to, how many, and what to do with them first."""

    thing: str
    furniture: str = ""
    count: int = 1
    verb: str = ""
    tool: str = ""
    lamp: str = ""


def type_of(name: str) -> str:
    """Return the type of a numbered name: `mug 2` is a mug."""
    return name.rpartition(" ")[0]


def read_goal(text: str, furniture: Sequence[str]) -> HouseholdGoal:
    """Parse the goal of a first observation; `furniture` are the names of all furniture in the room."""
    match = GOAL.search(text)
    words = re.findall(r"[a-z]+", (match[1] if match else text).lower())
    kinds = {type_of(name) for name in furniture}
    receptacles = [word for word in words if word in kinds]
    items = [word for word in words if word not in FILLER and word not in LAMPS]
    # The object is the first noun that is no furniture of the room.
    item = next((word for word in items if word not in kinds), items[0] if items else "")
    verb, tool = next((TREATMENTS[word] for word in words if word in TREATMENTS), ("", ""))
    lamp = next((word for word in words if word in LAMPS), "")
    return HouseholdGoal(item, receptacles[-1] if receptacles else "", 2 if "two" in words else 1, verb, tool, lamp)


class SearchingExpert:
    """A policy for one episode: from an observation to the next command."""

    def __init__(self, holds: Mapping[str, Sequence[str]]) -> None:
        """`holds` lists, for each type of furniture, the types of objects that it can hold."""
        self._holds = holds
        self._goal: HouseholdGoal | None = None
        self._rooms: list[str] = []
        """All furniture, in the order of the first observation."""
        self._searched: set[str] = set()
        self._at = ""
        self._held = ""
        self._treated = False
        self._seen: dict[str, str] = {}
        """Objects of the wanted type and where they are."""
        self._placed: dict[str, set[str]] = {}
        """Objects that are where the goal wants them, by piece of furniture."""
        self._lamp_at = ""

    def next_command(self, observation: Observation) -> str:
        """Return the next command."""
        legal = observation.legal or ()
        if self._goal is None:
            self._rooms = [match[1] for command in legal if (match := GO.fullmatch(command))]
            text = observation.messages[-1].content if observation.messages else ""
            self._goal = read_goal(text, self._rooms)
        self._look(legal, self._goal)
        command = self._carry(legal, self._goal) if self._held else self._search(legal, self._goal)
        self._remember(command)
        return command

    def _look(self, legal: Sequence[str], goal: HouseholdGoal) -> None:
        """Remember which wanted objects can be taken here, and the lamp."""
        for command in legal:
            match = TAKE.fullmatch(command)
            if match and type_of(match[1]) == goal.thing:
                self._seen[match[1]] = match[2]
                if type_of(match[2]) == goal.furniture and not goal.verb:
                    self._placed.setdefault(match[2], set()).add(match[1])
            if goal.lamp and command.startswith(f"use {goal.lamp} "):
                self._lamp_at = self._at

    def _is_placed(self, name: str) -> bool:
        return any(name in names for names in self._placed.values())

    def _search(self, legal: Sequence[str], goal: HouseholdGoal) -> str:
        for name, receptacle in self._seen.items():
            if self._is_placed(name):
                continue
            if f"take {name} from {receptacle}" in legal:
                return f"take {name} from {receptacle}"
            if receptacle != self._at and f"go to {receptacle}" in legal:
                return f"go to {receptacle}"
        return self._explore(legal, goal.thing, goal.furniture)

    def _explore(self, legal: Sequence[str], item: str, last: str = "") -> str:
        """Open what is here, else go to the next place: first those that can hold the object, and of these the type
        `last` after the others: what is there already need not be brought there."""
        if f"open {self._at}" in legal:
            return f"open {self._at}"
        remaining = [
            receptacle for receptacle in self._rooms if receptacle not in self._searched and receptacle != self._at
        ]
        if not remaining:  # everything was searched: begin again
            self._searched.clear()
            remaining = [receptacle for receptacle in self._rooms if receptacle != self._at]
        fitting = [receptacle for receptacle in remaining if item in self._holds.get(type_of(receptacle), ())]
        fitting.sort(key=lambda receptacle: type_of(receptacle) == last)
        receptacle = next((receptacle for receptacle in (*fitting, *remaining) if f"go to {receptacle}" in legal), None)
        return f"go to {receptacle}" if receptacle else "look"

    def _carry(self, legal: Sequence[str], goal: HouseholdGoal) -> str:
        if goal.lamp:
            use = next((command for command in legal if command.startswith(f"use {goal.lamp} ")), None)
            if use is not None:
                return use
            if self._lamp_at and f"go to {self._lamp_at}" in legal:
                return f"go to {self._lamp_at}"
            return self._explore(legal, goal.lamp)
        if goal.verb and not self._treated:
            command = next((c for c in legal if c.startswith(f"{goal.verb} {self._held} with {goal.tool} ")), None)
            return command or self._go_to_type(legal, goal.tool)
        target = self._target(goal)
        commands = (
            f"move {self._held} to {target}",
            f"put {self._held} in/on {target}",
            f"open {target}",
            f"go to {target}",
        )
        return next((command for command in commands if command in legal), "look")

    def _target(self, goal: HouseholdGoal) -> str:
        """Return the piece of furniture to bring the object to: the one that has most of the wanted objects."""
        receptacles = [receptacle for receptacle in self._rooms if type_of(receptacle) == goal.furniture]
        return max(receptacles, key=lambda receptacle: len(self._placed.get(receptacle, ())), default="")

    def _go_to_type(self, legal: Sequence[str], kind: str) -> str:
        receptacles = (receptacle for receptacle in self._rooms if type_of(receptacle) == kind)
        return next((f"go to {receptacle}" for receptacle in receptacles if f"go to {receptacle}" in legal), "look")

    def _remember(self, command: str) -> None:
        """Update what is known by the command that is given now; the list of commands made sure that it works."""
        if match := GO.fullmatch(command):
            self._at = match[1]
            self._searched.add(match[1])
        elif match := TAKE.fullmatch(command):
            self._held, self._treated = match[1], False
            self._seen.pop(match[1], None)
            for names in self._placed.values():
                names.discard(match[1])
        elif command.startswith(("clean ", "heat ", "cool ")):
            self._treated = True
        elif command.startswith(("move ", "put ")):
            self._placed.setdefault(self._at, set()).add(self._held)
            self._held = ""
