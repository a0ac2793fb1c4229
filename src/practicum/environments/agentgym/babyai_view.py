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

VIEW_CELLS = 7
HALF_VIEW_CELLS = VIEW_CELLS // 2
LEFT, RIGHT, FORWARD, PICKUP, DROP, TOGGLE, DONE = range(7)
DIRECTION_OFFSETS = ((1, 0), (0, 1), (-1, 0), (0, -1))
"""The offset of the cell ahead, by direction."""
Position = tuple[int, int]


@dataclass(frozen=True, slots=True)
class VisibleObject:
    """A visible object. `right` is negative to the left."""

    name: str
    position: Position
    ahead: int
    right: int
    thing: Any


@dataclass(frozen=True, slots=True)
class View:
    """Everything that is visible."""

    things: dict[str, VisibleObject]
    """By name and number, such as `red ball 1`, nearest first."""
    floor: frozenset[Position]
    """Visible cells that can be entered, with the agent's own."""
    barrier: tuple[str, int] | None
    """The obstacle straight ahead and its distance in steps."""
    carrying: str


def look(world: RoomGridLevel) -> View:
    """Return the current view."""
    cells, width, height = world.grid.grid, world.grid.width, world.grid.height
    x, y, direction = int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir)
    (ax, ay), (rx, ry) = DIRECTION_OFFSETS[direction], DIRECTION_OFFSETS[(direction + 1) % 4]
    visible: list[tuple[int, str, Position, int, int, Any]] = []
    floor = [(x, y)]
    barrier: tuple[str, int] | None = None
    # Visibility spreads from the agent's cell: row by row ahead, in a row first to the right, then to the left.
    lit = [False] * VIEW_CELLS
    lit[HALF_VIEW_CELLS] = True
    for ahead in range(VIEW_CELLS):
        row: list[Any] = [None] * VIEW_CELLS
        clear = [False] * VIEW_CELLS
        x0, y0 = x + ax * ahead - rx * HALF_VIEW_CELLS, y + ay * ahead - ry * HALF_VIEW_CELLS
        for side in range(VIEW_CELLS):
            cx, cy = x0 + rx * side, y0 + ry * side
            if 0 <= cx < width and 0 <= cy < height:
                cell = row[side] = cells[cy * width + cx]
                clear[side] = cell is None or cell.see_behind()
        beyond = [False] * VIEW_CELLS
        for side in range(VIEW_CELLS - 1):
            if lit[side] and clear[side]:
                lit[side + 1] = beyond[side + 1] = beyond[side] = True
        for side in range(VIEW_CELLS - 1, 0, -1):
            if lit[side] and clear[side]:
                lit[side - 1] = beyond[side - 1] = beyond[side] = True
        for side in range(VIEW_CELLS):
            if not lit[side] or (ahead == 0 and side == HALF_VIEW_CELLS):
                continue
            cell, position = row[side], (x0 + rx * side, y0 + ry * side)
            if cell is None:
                if clear[side]:  # else it is outside the grid
                    floor.append(position)
                continue
            if cell.can_overlap():
                floor.append(position)
            elif side == HALF_VIEW_CELLS and barrier is None:
                barrier = (_name(cell), ahead)
            if cell.type != "wall":
                visible.append(
                    (ahead + abs(side - HALF_VIEW_CELLS), _name(cell), position, ahead, side - HALF_VIEW_CELLS, cell)
                )
        lit = beyond
    visible.sort(key=lambda seen: seen[0])
    counts: dict[str, int] = {}
    things: dict[str, VisibleObject] = {}
    for _, name, position, ahead, right, cell in visible:
        counts[name] = counts.get(name, 0) + 1
        numbered = f"{name} {counts[name]}"
        things[numbered] = VisibleObject(numbered, position, ahead, right, cell)
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


def _where(seen: VisibleObject) -> str:
    side = f"{_steps(abs(seen.right))} to your {'right' if seen.right > 0 else 'left'}"
    if not seen.right:
        return f"straight ahead, {_steps(seen.ahead)} away"
    return f"{_steps(seen.ahead)} ahead and {side}" if seen.ahead else side


def _steps(count: int) -> str:
    return "1 step" if count == 1 else f"{count} steps"


def within_reach(view: View, start: Position) -> set[Position]:
    """Return the visible cells that the agent can walk to."""
    reached, open_cells = {start}, [start]
    while open_cells:
        x, y = open_cells.pop()
        for dx, dy in DIRECTION_OFFSETS:
            position = (x + dx, y + dy)
            if position in view.floor and position not in reached:
                reached.add(position)
                open_cells.append(position)
    return reached


def beside(reached: set[Position], target: Position) -> bool:
    """Return whether a cell next to a target is among those reached."""
    x, y = target
    return any((x + dx, y + dy) in reached for dx, dy in DIRECTION_OFFSETS)


def path_to(floor: frozenset[Position], start: Position, direction: int, target: Position) -> list[int] | None:
    """Return the shortest turns and moves after which the agent is next to a target and faces it."""
    came: dict[tuple[Position, int], tuple[tuple[Position, int], int] | None] = {(start, direction): None}
    waiting = deque([(start, direction)])
    while waiting:
        state = (x, y), facing = waiting.popleft()
        dx, dy = DIRECTION_OFFSETS[facing]
        front = (x + dx, y + dy)
        if front == target:
            path: list[int] = []
            step = came[state]
            while step is not None:
                path.append(step[1])
                step = came[step[0]]
            return path[::-1]
        following: list[tuple[tuple[Position, int], int]] = [
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
