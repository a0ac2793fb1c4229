"""`agentgym:babyai`: walk through a grid of rooms and do what the mission says, by text commands.

The levels are Farama minigrid's, the commands and the numbering of tasks AgentGym's. A command may take many steps of
the engine ("go to red ball 1"). The engine is deterministic once a world is generated.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence
from typing import TYPE_CHECKING

from practicum.environment import Action, Observation, ScriptedPolicy
from practicum.environments.agentgym.babyai_commands import CHECK, USAGE, actions_of, legal_commands
from practicum.environments.agentgym.babyai_expert import plan
from practicum.environments.agentgym.babyai_levels import (
    LEVELS,
    UNWINNABLE,
    check_level,
    fingerprint,
    known_levels,
    make_world,
)
from practicum.environments.agentgym.babyai_view import View, describe, describe_shortly, look
from practicum.environments.agentgym.base import AgentGymEnvironment, CommandResponse
from practicum.environments.agentgym.grammar.bracket import Brackets, Call
from practicum.environments.agentgym.shaping import Shaping
from practicum.errors import UserError
from practicum.task import Task, split_of_content

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

OBSERVATIONS = ("full", "short")
NUMBERED = ("go to ", "pick up ", "go through ", "toggle and go through ")
SEED_BLOCK = 1_000_000
"""Distance of the first world seeds of two task lists with consecutive seeds."""


class BabyAI(AgentGymEnvironment):
    """Missions in a grid of rooms: go to, open, pick up, put next to; 40 levels."""

    name = "agentgym:babyai"
    instruction = (
        "You are in a world of rooms and must do what the goal says. Commands: {usage}\n"
        "A locked door opens when you carry a key of its colour. You see only what is in front of you."
    )
    usage = USAGE
    brackets = Brackets(
        {
            "turn left": ("turn left",),
            "turn right": ("turn right",),
            "move forward": ("move forward",),
            "goto": ("go to {}",),
            "pick up": ("pick up", "pick up {}"),
            "go through": ("go through {}",),
            "toggle and go through": ("toggle and go through {}",),
            "toggle": ("toggle",),
            "drop": ("drop",),
            "check": (CHECK,),
        }
    )
    # Affine's guide rewards only BabyAI's goal.
    shaping = Shaping(step=0.0, completion=1.0)

    def __init__(
        self,
        format: str = "react",
        grammar: str = "both",
        reward: str = "native",
        levels: str | int | Sequence[str | int] = (),
        observation: str = "full",
        actions: bool = True,
        protocol: str = "system",
        instruction: str | None = None,
    ) -> None:
        super().__init__(format, grammar, reward, protocol, instruction)
        self.check("observation", observation, OBSERVATIONS)
        known_levels()
        self.levels = tuple(map(_level, [levels] if isinstance(levels, str | int) else levels))
        self.observation, self.actions = observation, actions
        self._world: RoomGridLevel | None = None
        self._view: View | None = None
        self._success = False

    async def begin(self, task: Task, seed: int) -> CommandResponse:
        """Start a world of the task's level and seed; the episode's seed has no effect."""
        level, world_seed = task.fields.get("level"), task.fields.get("seed")
        if not isinstance(level, str) or not isinstance(world_seed, int):
            raise UserError(f"Task '{task.id}' needs a 'level' (a name) and a 'seed' (a number).")
        self._world = make_world(level, world_seed)
        self._success = False
        return self._see(f"Your goal: {self._world.mission}\n")

    async def act(self, command: str) -> CommandResponse:
        assert self._world is not None
        assert self._view is not None
        if command == CHECK:
            commands = ", ".join(legal_commands(self._world, self._view))
            return CommandResponse(f"You can: {commands}", legal=None)
        for action in actions_of(command, self._world, self._view):
            _, reward, terminated, truncated, _ = self._world.step(action)
            if terminated or truncated:
                self._success = float(reward) > 0
                text = "The goal is reached." if self._success else "The goal is missed." if terminated else "Too late."
                cut = bool(truncated) and not terminated
                return CommandResponse(text, float(reward), command, done=True, success=self._success, cut=cut)
        return self._see("", command)

    def _see(self, before: str, kind: str = "") -> CommandResponse:
        assert self._world is not None
        self._view = look(self._world)
        legal = legal_commands(self._world, self._view)
        text = describe(self._view) if self.observation == "full" else describe_shortly(self._view)
        commands = f"\nAvailable actions: [{', '.join(map(self.write, legal))}]" if self.actions else ""
        return CommandResponse(f"{before}{text}{commands}", kind=kind, legal=legal)

    def from_brackets(self, call: Call) -> str | None:
        """Translate a bracket command; without a number the nearest object is meant."""
        sentence = super().from_brackets(call)
        if sentence and sentence.startswith(NUMBERED) and not sentence[-1].isdigit():
            return f"{sentence} 1"
        return sentence

    def progress(self) -> float:
        return float(self._success)

    def task_at(self, data_idx: int) -> Task:
        """Return the task of AgentGym's index: the level varies fastest, then the seed."""
        self.check_index(data_idx)
        return make_task(LEVELS[data_idx % len(LEVELS)], data_idx // len(LEVELS))

    def tasks(self, split: str, count: int, seed: int = 0) -> Sequence[Task]:
        """Return tasks of all levels in turn, each with the next seed whose world is in the split and new."""
        self.check_split(split)
        # Levels that cannot be won are left out unless named.
        levels = self.levels or tuple(level for level in LEVELS if level != UNWINNABLE)
        tasks: list[Task] = []
        seen: set[str] = set()
        for index in itertools.count():
            if len(tasks) >= count:
                return tasks
            level, world_seed = levels[index % len(levels)], seed * SEED_BLOCK + index // len(levels)
            world = fingerprint(level, world_seed)
            if split_of(world) == split and world not in seen:
                seen.add(world)
                tasks.append(make_task(level, world_seed))
            if index > 1000 * (count + len(levels)):
                raise UserError(f"babyai's levels {', '.join(levels)} have only {len(tasks)} '{split}' worlds.")
        raise AssertionError("counting ends only above")

    def expert(self, task: Task) -> ScriptedPolicy:
        """Return the policy of minigrid's bot, as commands. Without a plan of the bot it looks around."""
        commands = plan(str(task.fields["level"]), int(task.fields["seed"])) or ()
        has_thoughts = self.format.name == "react"
        actions = iter([Action(content=self.write(c), thought=f"I {c}." if has_thoughts else "") for c in commands])
        idle = Action(content=self.write(CHECK))
        return lambda observation: next(actions, idle)

    def random(self, task: Task, seed: int) -> ScriptedPolicy:
        """Return a policy that gives a random command that works."""
        generator = random.Random(f"babyai-random/{task.id}/{seed}")

        def act(observation: Observation) -> Action:
            return Action(content=self.write(generator.choice(observation.legal or ("turn left",))))

        return act


def _level(level: str | int) -> str:
    """Return a level by name, or by AgentGym's number from 1 to 40."""
    if isinstance(level, int) and not isinstance(level, bool):
        if not 1 <= level <= len(LEVELS):
            raise UserError(f"babyai's levels are numbered from 1 to {len(LEVELS)}; got {level}.")
        return LEVELS[level - 1]
    check_level(str(level))
    return str(level)


def split_of(world: str) -> str:
    """Return the split of a world."""
    return split_of_content(["babyai", world])


def make_task(level: str, seed: int) -> Task:
    """Return the task of a level and a seed."""
    fields: dict[str, object] = {"level": level, "seed": seed}
    if level in LEVELS:
        fields["data_idx"] = seed * len(LEVELS) + LEVELS.index(level)
    return Task(f"babyai-{level}-{seed}", BabyAI.name, split_of(fingerprint(level, seed)), fields)
