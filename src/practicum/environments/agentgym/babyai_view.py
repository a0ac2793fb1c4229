"""The view of the agent in a BabyAI world as text, and paths from its position.

The agent sees seven cells ahead and three to either side, up to walls and closed doors: minigrid's own rule, computed
here without rendering. Positions are (x, y) of the world; objects are numbered by name, nearest first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

VIEW = 7
HALF = VIEW // 2
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""The offset of the cell ahead, by direction."""
Place = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Seen:
    """A visible object. `right` is negative to the left."""

    name: str
    place: Place
    ahead: int
    right: int
    thing: Any


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is visible."""

    things: dict[str, Seen]
    """By name and number, such as `red ball 1`, nearest first."""
    floor: frozenset[Place]
    """Visible cells that can be entered, with the agent's own."""
    barrier: tuple[str, int] | None
    """The obstacle straight ahead and its distance in steps."""
    carrying: str


def look(world: RoomGridLevel) -> View:
    """Return the current view."""
    cells, width, height = world.grid.grid, world.grid.width, world.grid.height
    x, y, direction = int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir)
    (ax, ay), (rx, ry) = STEPS[direction], STEPS[(direction + 1) % 4]
    found: list[tuple[int, str, Place, int, int, Any]] = []
    floor = [(x, y)]
    barrier: tuple[str, int] | None = None
    # Visibility spreads from the agent's cell: row by row ahead, in a row first to the right, then to the left.
    lit = [False] * VIEW
    lit[HALF] = True
    for ahead in range(VIEW):
        row: list[Any] = [None] * VIEW
        clear = [False] * VIEW
        x0, y0 = x + ax * ahead - rx * HALF, y + ay * ahead - ry * HALF
        for side in range(VIEW):
            cx, cy = x0 + rx * side, y0 + ry * side
            if 0 <= cx < width and 0 <= cy < height:
                cell = row[side] = cells[cy * width + cx]
                clear[side] = cell is None or cell.see_behind()
        beyond = [False] * VIEW
        for side in range(VIEW - 1):
            if lit[side] and clear[side]:
                lit[side + 1] = beyond[side + 1] = beyond[side] = True
        for side in range(VIEW - 1, 0, -1):
            if lit[side] and clear[side]:
                lit[side - 1] = beyond[side - 1] = beyond[side] = True
        for side in range(VIEW):
            if not lit[side] or (ahead == 0 and side == HALF):
                continue
            cell, place = row[side], (x0 + rx * side, y0 + ry * side)
            if cell is None:
                if clear[side]:  # else it is outside the grid
                    floor.append(place)
                continue
            if cell.can_overlap():
                floor.append(place)
            elif side == HALF and barrier is None:
                barrier = (_name(cell), ahead)
            if cell.type != "wall":
                found.append((ahead + abs(side - HALF), _name(cell), place, ahead, side - HALF, cell))
        lit = beyond
    found.sort(key=lambda seen: seen[0])
    counts: dict[str, int] = {}
    things: dict[str, Seen] = {}
    for _, name, place, ahead, right, cell in found:
        counts[name] = counts.get(name, 0) + 1
        numbered = f"{name} {counts[name]}"
        things[numbered] = Seen(numbered, place, ahead, right, cell)
    carried = world.carrying
    return View(things, frozenset(floor), barrier, f"{carried.color} {carried.type}" if carried else "")


def _name(cell: Any) -> str:
    if cell.type == "wall":
        return "wall"
    if cell.type == "door":
        state = "open" if cell.is_open else "locked" if cell.is_locked else "closed"
        return f"{cell.color} {state} door"
    return f"{cell.color} {cell.type}"


def describe(view: View) -> str:
    """Return the view in sentences."""
    parts = [f"There is a {seen.name} {_where(seen)}." for seen in view.things.values()]
    seen = " ".join(parts) or "There is nothing to be seen but walls and floor."
    ahead = ""
    if view.barrier is not None:
        name, steps = view.barrier
        ahead = f" You face a {name} {_steps(steps)} away."
    return f"{seen}{ahead} You carry {f'a {view.carrying}' if view.carrying else 'nothing'}."


def describe_shortly(view: View) -> str:
    """Return the view in few tokens."""
    parts = []
    for seen in view.things.values():
        side = f" {'right' if seen.right > 0 else 'left'} {abs(seen.right)}" if seen.right else ""
        parts.append(f"{seen.name}: ahead {seen.ahead}{side}")
    if view.barrier is not None:
        parts.append(f"facing {view.barrier[0]}: {view.barrier[1]}")
    if view.carrying:
        parts.append(f"carrying {view.carrying}")
    return "\n".join(parts) or "nothing in sight"


def _where(seen: Seen) -> str:
    side = f"{_steps(abs(seen.right))} to your {'right' if seen.right > 0 else 'left'}"
    if not seen.right:
        return f"straight ahead, {_steps(seen.ahead)} away"
    return f"{_steps(seen.ahead)} ahead and {side}" if seen.ahead else side


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def within_reach(view: View, start: Place) -> set[Place]:
    """Return the visible cells that the agent can walk to."""
    reached, open_cells = {start}, [start]
    while open_cells:
        x, y = open_cells.pop()
        for dx, dy in STEPS:
            place = (x + dx, y + dy)
            if place in view.floor and place not in reached:
                reached.add(place)
                open_cells.append(place)
    return reached


def beside(reached: set[Place], target: Place) -> bool:
    """Return whether a cell next to a target is among those reached."""
    x, y = target
    return any((x + dx, y + dy) in reached for dx, dy in STEPS)


def way_to(floor: frozenset[Place], start: Place, direction: int, target: Place) -> list[int] | None:
    """Return the shortest turns and moves after which the agent is next to a target and faces it."""
    came: dict[tuple[Place, int], tuple[tuple[Place, int], int] | None] = {(start, direction): None}
    waiting = deque([(start, direction)])
    while waiting:
        state = (x, y), facing = waiting.popleft()
        dx, dy = STEPS[facing]
        front = (x + dx, y + dy)
        if front == target:
            way: list[int] = []
            step = came[state]
            while step is not None:
                way.append(step[1])
                step = came[step[0]]
            return way[::-1]
        following: list[tuple[tuple[Place, int], int]] = [
            (((x, y), (facing - 1) % 4), LEFT),
            (((x, y), (facing + 1) % 4), RIGHT),
        ]
        if front in floor:
            following.insert(0, ((front, facing), FORWARD))
        for reached, action in following:
            if reached not in came:
                came[reached] = (state, action)
                waiting.append(reached)
    return None
