"""ALFWorld's engine in a worker process: many episodes, each with its own copy of the planner's library."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from practicum.environments.agentgym.alfworld_engine import PLACEHOLDER, Game, Library, alfred, tables
from practicum.environments.agentgym.alfworld_games import make_game


class AlfWorldHost:
    """Games by session. A game is a number (generated) or a file (ALFWorld's own)."""

    def __init__(self) -> None:
        alfred()  # imports take seconds: import before the first call is timed
        self._by_session: dict[int, tuple[Game, Library]] = {}
        self._spare: list[Library] = []

    def calls(self) -> Mapping[str, Callable[..., Any]]:
        return {call.__name__: call for call in (self.begin, self.step, self.plan, self.holds, self.close_session)}

    def alive(self) -> bool:
        return True

    def begin(self, session: int, game: int | str, expert: str) -> dict[str, Any]:
        """Start a game; return the first text and commands, and with an `expert` its commands up to the goal."""
        self.close_session(session)
        data = load(game)
        library = self._library()
        world = Game(library, data)
        self._by_session[session] = (world, library)
        return {**_visible_state(world), "plan": self._plan_of(world, data, expert) if expert else None}

    def step(self, session: int, command: str) -> dict[str, Any]:
        world = self._by_session[session][0]
        legal = world.legal
        if command not in legal:
            command = next((other for other in alternative_spellings(command) if other in legal), command)
        valid = command in legal
        world.step(command)
        return {**_visible_state(world), "valid": valid}

    def plan(self, game: int | str, expert: str) -> list[str]:
        """Return an expert's commands for a game without playing it."""
        library = self._library()
        try:
            data = load(game)
            return self._plan_of(Game(library, data), data, expert)
        finally:
            self._spare.append(library)

    def holds(self) -> dict[str, list[str]]:
        """Return the types of objects that each type of furniture can hold, as the texts name them."""
        return {piece.lower(): sorted(map(str.lower, items)) for piece, items in tables().holds.items()}

    def close_session(self, session: int) -> None:
        episode = self._by_session.pop(session, None)
        if episode is not None:
            self._spare.append(episode[1])

    def _library(self) -> Library:
        return self._spare.pop() if self._spare else Library()

    def _plan_of(self, world: Game, data: Mapping[str, Any], expert: str) -> list[str]:
        """Return the commands of `walkthrough` or `searching` (part of the game), or of `planner` (Fast Downward)."""
        if expert == "searching":
            return world.worded(data["search"])
        if expert == "walkthrough" and "plan" in data:
            return world.worded(data["plan"])
        if expert == "walkthrough" and data.get("walkthrough"):
            return list(data["walkthrough"])
        library = self._library()
        try:
            return world.plan(library, data)
        finally:
            self._spare.append(library)


def load(game: int | str) -> dict[str, Any]:
    """Return a game's PDDL, grammar and solution."""
    if isinstance(game, str):
        with open(game) as file:
            data: dict[str, Any] = json.load(file)
        return data
    domain, grammar = alfred()
    game_data = make_game(game, tables())
    return {
        "pddl_domain": domain,
        "grammar": grammar.replace(PLACEHOLDER, game_data["goal"]),
        "pddl_problem": game_data["pddl_problem"],
        "plan": game_data["plan"],
        "search": game_data["search"],
    }


def alternative_spellings(command: str) -> tuple[str, ...]:
    """Replace `put X in/on Y` of ALFWorld's older games by `move X to Y` of its newer ones if only that is possible."""
    verb, _, rest = command.partition(" ")
    if verb == "toggle":
        return (f"use {rest}",)
    for old in (" in/on ", " in ", " on ", " to "):
        item, separator, receptacle = rest.partition(old)
        if verb in ("put", "move") and separator:
            return f"move {item} to {receptacle}", f"put {item} in/on {receptacle}"
    return ()


def _visible_state(world: Game) -> dict[str, Any]:
    return {"text": world.text, "legal": world.legal, "won": world.won}
