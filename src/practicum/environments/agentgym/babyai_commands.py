"""AgentGym's high-level commands in a BabyAI world: the possible ones, and the engine's actions of each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from practicum.environments.agentgym.babyai_view import (
    DIRECTION_OFFSETS,
    DONE,
    DROP,
    FORWARD,
    LEFT,
    PICKUP,
    RIGHT,
    TOGGLE,
    View,
    VisibleObject,
    beside,
    path_to,
    within_reach,
)
from practicum.environments.agentgym.grammar.line import Refused

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

CHECK = "check available actions"
USAGE = (
    "turn left | turn right | move forward | go to <thing> <n> | pick up <thing> <n> | go through <open door> <n> | "
    "toggle and go through <closed or locked door> <n> | toggle | drop | check available actions"
)


def legal_commands(world: RoomGridLevel, view: View) -> tuple[str, ...]:
    """Return the commands that would work now."""
    commands = ["turn left", "turn right"]
    front = world.grid.get(*front_of(world))
    if front is None or front.can_overlap():
        commands.append("move forward")
    reached = within_reach(view, (int(world.agent_pos[0]), int(world.agent_pos[1])))
    for name, seen in view.things.items():
        if not beside(reached, seen.position):
            continue
        commands.append(f"go to {name}")
        if seen.thing.type == "door":
            if seen.thing.is_open:
                commands.append(f"go through {name}")
            elif not seen.thing.is_locked or _has_key(world, seen.thing):
                commands.append(f"toggle and go through {name}")
        elif not view.carrying and seen.thing.can_pickup():
            commands.append(f"pick up {name}")
    if _can_toggle(world, front):
        commands.append("toggle")
    if world.carrying and front is None:
        commands.append("drop")
    return (*commands, CHECK)


def actions_of(command: str, world: RoomGridLevel, view: View) -> list[int]:
    """Return the engine's actions of a command; `Refused` says why it cannot be executed."""
    front = world.grid.get(*front_of(world))
    if command in ("turn left", "turn right"):
        return [LEFT if command.endswith("left") else RIGHT]
    if command == "move forward":
        if front is not None and not front.can_overlap():
            raise Refused(f"You cannot move forward: there is a {front.type} in front of you.")
        return [FORWARD]
    if command == "toggle":
        if not _can_toggle(world, front):
            raise Refused("There is nothing in front of you that you can toggle.")
        return [TOGGLE]
    if command == "drop":
        if not world.carrying:
            raise Refused("You cannot drop anything: you carry nothing.")
        if front is not None:
            raise Refused(f"You cannot drop it here: there is a {front.type} in front of you.")
        return [DROP]
    # AgentGym's prompt says "pick up", its server "pickup": both are accepted.
    if command == "pickup" or command.startswith("pickup "):
        command = f"pick up{command.removeprefix('pickup')}"
    if command == "pick up":
        if front is None or not front.can_pickup():
            raise Refused("There is nothing in front of you that you can pick up.")
        return _if_hands_free(view, [PICKUP])
    for verb in ("toggle and go through ", "go through ", "go to ", "pick up "):
        if command.startswith(verb):
            return _towards(verb.strip(), command.removeprefix(verb), world, view)
    raise Refused(f"Could not execute '{command[:80]}'. Commands: {USAGE}")


def _towards(verb: str, name: str, world: RoomGridLevel, view: View) -> list[int]:
    """Return the actions that walk up to an object and apply the verb."""
    seen = view.things.get(name)
    if seen is None:
        raise Refused(f"You see no {name[:60]}.")
    last = _at(verb, seen, world, view)
    start = (int(world.agent_pos[0]), int(world.agent_pos[1]))
    path = path_to(view.floor, start, int(world.agent_dir), seen.position)
    if path is None:
        raise Refused(f"You cannot {verb} {name}: you see no way to it.")
    # The engine checks the mission only after an action: an agent that is already there waits a step.
    return path + last or [DONE]


def _at(verb: str, seen: VisibleObject, world: RoomGridLevel, view: View) -> list[int]:
    """Return the actions that apply the verb to the object in front of the agent."""
    if verb == "go to":
        return []
    if verb == "pick up":
        if not seen.thing.can_pickup():
            raise Refused(f"You cannot pick up {seen.name}.")
        return _if_hands_free(view, [PICKUP])
    if seen.thing.type != "door":
        raise Refused(f"{seen.name} is not a door.")
    if verb == "go through":
        if not seen.thing.is_open:
            raise Refused(f"You cannot go through {seen.name}: toggle it first.")
        return [FORWARD]
    if seen.thing.is_open:
        raise Refused(f"You need not toggle {seen.name}: go through it.")
    if seen.thing.is_locked and not _has_key(world, seen.thing):
        raise Refused(f"You cannot open {seen.name}: you do not carry a {seen.thing.color} key.")
    return [TOGGLE, FORWARD]


def _if_hands_free(view: View, actions: list[int]) -> list[int]:
    if view.carrying:
        raise Refused(f"You cannot pick up anything: you already carry a {view.carrying}.")
    return actions


def _has_key(world: RoomGridLevel, door: Any) -> bool:
    carried = world.carrying
    return carried is not None and carried.type == "key" and carried.color == door.color


def _can_toggle(world: RoomGridLevel, front: Any) -> bool:
    if front is None or front.type not in ("door", "box"):
        return False
    return front.type == "box" or not front.is_locked or _has_key(world, front)


def front_of(world: RoomGridLevel) -> tuple[int, int]:
    """Return the cell in front of the agent."""
    dx, dy = DIRECTION_OFFSETS[int(world.agent_dir)]
    return int(world.agent_pos[0]) + dx, int(world.agent_pos[1]) + dy
