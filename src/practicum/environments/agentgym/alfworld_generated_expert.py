"""An expert for generated ALFWorld games that has to find the objects, as an agent must.

The walkthrough goes straight to where the object is, which nobody can know before having looked there, so its episodes
teach guessing. This one goes from one receptacle that may hold the object to the next, opens what is closed, and takes
the first object of the wanted type that it sees; what it has seen on the way it remembers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

Step = list[str]
"""A verb and the names it takes, as in `make_game`'s plan."""


class Search:
    """One search through a room: the steps so far, and what has been seen."""

    def __init__(
        self, furniture: Mapping[str, str], contents: Mapping[str, Sequence[tuple[str, str]]], openable: frozenset[str]
    ) -> None:
        """`furniture`: kinds by name. `contents`: (name, kind) of the objects in each receptacle."""
        self.furniture, self.contents, self.openable = furniture, contents, openable
        self.steps: list[Step] = []
        self.taken: set[str] = set()
        self.carried = ""
        """The object that was taken last."""
        self._visited: list[str] = []
        self._at = ""

    def go(self, receptacle: str) -> None:
        """Go to a receptacle and open it, unless both were done before."""
        if self._at != receptacle:
            self.steps.append(["goto", receptacle])
            self._at = receptacle
        if receptacle not in self._visited:
            self._visited.append(receptacle)
            if self.furniture[receptacle] in self.openable:
                self.steps.append(["open", receptacle])

    def find(self, kind: str, may_hold: Callable[[str], bool]) -> str:
        """Go where an object of this kind is: where one was seen, else through the receptacles that may hold it."""
        seen = [name for name in self._visited if self._first(name, kind)]
        unseen = [name for name, piece in self.furniture.items() if may_hold(piece) and name not in self._visited]
        for receptacle in [*seen[:1], *unseen]:
            self.go(receptacle)
            target = self._first(receptacle, kind)
            if target:
                return target
        raise ValueError(f"there is no {kind} in this room")

    def take(self, name: str) -> None:
        self.taken.add(name)
        self.carried = name
        self.steps.append(["take", name, self._at])

    def _first(self, receptacle: str, kind: str) -> str:
        names = [
            name
            for name, item_kind in self.contents.get(receptacle, ())
            if item_kind == kind and name not in self.taken
        ]
        return names[0] if names else ""
