"""The expert of BabyAI: minigrid's own bot with a limit on its planning, its moves grouped into AgentGym's commands.

The bot plans on a copy of the world before the episode begins. It may plan without end (its stack of subgoals grows
inside one call), so its stack counts the pushes and stops it. It has no plan for two of AgentGym's levels; there a few
moves come first: a carried object is put down, and a box that hides a key is opened.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from practicum.environments.agentgym.babyai_commands import CHECK, actions_of, front_of, legal_commands
from practicum.environments.agentgym.babyai_levels import make_world
from practicum.environments.agentgym.babyai_view import (
    DIRECTION_OFFSETS,
    DONE,
    DROP,
    FORWARD,
    LEFT,
    PICKUP,
    TOGGLE,
    look,
    path_to,
)
from practicum.environments.agentgym.grammar.line import Refused

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

MAX_SUBGOALS = 200
"""More than the depth of any plan that was observed to end (under 40)."""
MAX_PUSHES = 2000
PRIMITIVES = ("turn left", "turn right", "move forward", "pick up", "drop", "toggle", CHECK)


class EndlessPlanning(Exception):
    """The bot keeps planning without acting."""


class BoundedStack(list[Any]):
    """The bot's stack of subgoals with a limit of pushes; `pushes` counts those since the last action."""

    pushes = 0

    def append(self, subgoal: Any) -> None:
        self.pushes += 1
        if len(self) >= MAX_SUBGOALS or self.pushes > MAX_PUSHES:
            raise EndlessPlanning
        super().append(subgoal)


@dataclass(frozen=True, slots=True)
class Move:
    """One action of the engine, the agent's position after it, and whether it completed a part of the mission."""

    action: int
    position: tuple[int, int, int]
    milestone: bool


@functools.lru_cache(maxsize=4096)
def plan(level: str, seed: int) -> tuple[str, ...] | None:
    """Return the commands that solve a world; None if the bot has no plan."""
    moves = bot_moves(level, seed)
    if moves is None:
        return None
    commands = _gather(level, seed, moves)
    if commands is not None and solves(level, seed, commands):
        return commands
    # Grouped moves may pass other cells than the bot's; its own moves always work.
    return tuple(PRIMITIVES[move.action] for move in moves)


def bot_moves(level: str, seed: int) -> list[Move] | None:
    from minigrid.utils.baby_ai_bot import BabyAIBot

    world = make_world(level, seed)
    moves: list[Move] = []

    def do(action: int) -> tuple[bool, bool]:
        """Return whether the episode ended and whether it was won."""
        before = _parts_done(world.instrs)
        _, reward, terminated, truncated, _ = world.step(action)
        moves.append(Move(action, _place(world), _parts_done(world.instrs) != before))
        return bool(terminated or truncated), float(reward) > 0

    _prepare(world, do)
    bot = BabyAIBot(world)
    bot.stack = stack = BoundedStack(bot.stack)
    action: Any = None
    while True:
        stack.pushes = 0
        try:
            action = bot.replan(action)
        except (EndlessPlanning, AssertionError):  # the bot raises an assertion when it has no plan
            return None
        done, won = do(int(action))
        if done:
            return moves if won else None


def _prepare(world: RoomGridLevel, do: Any) -> None:
    """Make the moves that the bot cannot plan: put down a carried object, open a box with a key."""
    if world.carrying:
        for _ in range(4):
            if world.grid.get(*front_of(world)) is None:
                do(DROP)
                break
            do(LEFT)
    width = world.grid.width
    hidden = [n for n, cell in enumerate(world.grid.grid) if cell and getattr(cell, "contains", None)]
    for index in hidden:
        free = frozenset((n % width, n // width) for n, cell in enumerate(world.grid.grid) if cell is None)
        path = path_to(free, (int(world.agent_pos[0]), int(world.agent_pos[1])), int(world.agent_dir),
                     (index % width, index // width))  # fmt: skip
        for action in [*path, TOGGLE] if path is not None else []:
            do(action)


def _place(world: RoomGridLevel) -> tuple[int, int, int]:
    return int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir)


def _parts_done(mission: Any) -> list[Any]:
    """Return which parts of the mission the verifier has accepted."""
    if not hasattr(mission, "instr_a"):
        return []
    ticked = [mission.a_done == "success", mission.b_done == "success"]
    return [ticked, _parts_done(mission.instr_a), _parts_done(mission.instr_b)]


def _gather(level: str, seed: int, moves: list[Move]) -> tuple[str, ...] | None:
    """Group the moves into fewer commands: at each position the command that covers most of them."""
    world, commands, at = make_world(level, seed), list[str](), 0
    while at < len(moves):
        view = look(world)
        best, covered = PRIMITIVES[moves[at].action], int(moves[at].action != DONE)
        if moves[at].action == PICKUP:
            front = front_of(world)
            best = next((f"pick up {name}" for name, seen in view.things.items() if seen.position == front), best)
        for command in legal_commands(world, view):
            if " to " not in command and " up " not in command and " through " not in command:
                continue
            length = _covers(actions_of(command, world, view), world, moves, at)
            if length > covered:
                best, covered = command, length
        try:
            actions = actions_of(best, world, view)
        except Refused:
            return None
        commands.append(best)
        covered = covered or 1
        for action in actions:
            _, _, terminated, truncated, _ = world.step(action)
            if terminated or truncated:
                return tuple(commands)
        at += covered
    return tuple(commands)


def _covers(actions: list[int], world: RoomGridLevel, moves: list[Move], at: int) -> int:
    """Return how many of the bot's next moves a command's actions cover; 0 if it leads elsewhere.

    A command may take another path than the bot, but must not skip a move that completed a part of the mission.
    """
    num_forward = next((n for n, action in enumerate(actions) if action > FORWARD), len(actions))
    walk, rest = actions[:num_forward], actions[num_forward:]
    end, position, best = _walked(_place(world), walk), _place(world), 0
    for index in range(at, len(moves) + 1):
        if position == end and [move.action for move in moves[index : index + len(rest)]] == rest:
            best = index - at + len(rest)
        if index == len(moves) or moves[index].action > FORWARD or (index > at and moves[index - 1].milestone):
            break
        position = moves[index].position
    return best


def _walked(position: tuple[int, int, int], walk: list[int]) -> tuple[int, int, int]:
    x, y, direction = position
    for action in walk:
        if action == FORWARD:
            dx, dy = DIRECTION_OFFSETS[direction]
            x, y = x + dx, y + dy
        else:
            direction = (direction + (1 if action else -1)) % 4
    return x, y, direction


def solves(level: str, seed: int, commands: tuple[str, ...]) -> bool:
    world = make_world(level, seed)
    for command in commands:
        try:
            actions = actions_of(command, world, look(world))
        except Refused:
            return False
        for action in actions:
            _, reward, terminated, truncated, _ = world.step(action)
            if terminated or truncated:
                return float(reward) > 0
    return False
