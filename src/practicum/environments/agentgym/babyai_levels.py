"""Farama minigrid's BabyAI levels without rendering: AgentGym's list of forty, and a world by its seed."""

from __future__ import annotations

import contextlib
import functools
import io
from typing import TYPE_CHECKING, Any

from practicum.errors import UserError, did_you_mean
from practicum.task import content_hash

if TYPE_CHECKING:
    from minigrid.envs.babyai.core.roomgrid_level import RoomGridLevel

# In AgentGym's order, which `data_idx` follows.
LEVELS = (
    "GoToRedBallGrey", "GoToRedBall", "GoToRedBallNoDists", "GoToObjS6", "GoToLocalS8N7",
    "GoToObjMazeS7", "GoToImpUnlock", "GoToSeqS5R2", "GoToRedBlueBall", "GoToDoor",
    "GoToObjDoor", "Open", "OpenRedDoor", "OpenDoorLoc", "OpenRedBlueDoorsDebug",
    "OpenDoorsOrderN4Debug", "Pickup", "UnblockPickup", "PickupLoc", "PickupDistDebug",
    "PickupAbove", "PutNextLocalS6N4", "PutNextS7N4Carrying", "Unlock", "UnlockLocalDist",
    "KeyInBox", "UnlockPickupDist", "BlockedUnlockPickup", "UnlockToUnlock", "ActionObjDoor",
    "FindObjS7", "KeyCorridorS6R3", "OneRoomS20", "MoveTwoAcrossS8N9", "SynthS5R2",
    "SynthLoc", "SynthSeq", "MiniBossLevel", "BossLevel", "BossLevelNoUnlock",
)  # fmt: skip
UNWINNABLE = "OpenDoorsOrderN4Debug"
"""A level whose missions of two doors are lost when the first one opens: minigrid applies one toggle to both parts."""


def _no_picture() -> dict[str, Any]:
    return {}


@functools.cache
def known_levels() -> dict[str, str]:
    """Return every BabyAI level of minigrid by its short name, in its newest version."""
    try:
        import gymnasium
        import minigrid  # noqa: F401  (registers its levels)
    except ImportError:
        raise UserError("BabyAI needs minigrid; run: pip install 'practicum[babyai]'") from None
    levels: dict[str, str] = {}
    for identifier in sorted(name for name in gymnasium.registry if name.startswith("BabyAI-")):
        levels[identifier.removeprefix("BabyAI-").rpartition("-v")[0]] = identifier
    return levels


def check_level(level: str) -> None:
    if level not in known_levels():
        raise UserError(f"minigrid has no BabyAI level '{level}'.{did_you_mean(level, known_levels())}")


def make_world(level: str, seed: int) -> RoomGridLevel:
    """Return a level's world of a seed, before its first step."""
    import gymnasium

    check_level(level)
    world: RoomGridLevel = gymnasium.make(known_levels()[level], disable_env_checker=True).unwrapped
    # The engine renders its 7x7 view after every step, which is nine tenths of its time. The text needs
    # the view once per command (`babyai_view`), so it is never rendered.
    world.gen_obs = _no_picture
    with contextlib.redirect_stdout(io.StringIO()):  # levels print the worlds that they reject
        world.reset(seed=seed)
    return world


@functools.lru_cache(maxsize=65536)
def fingerprint(level: str, seed: int) -> str:
    """Return a hash of a world's content: two seeds of a small level may give the same world."""
    world = make_world(level, seed)
    carried = world.carrying.encode() if world.carrying else None
    cells = [[cell.encode(), _within(cell)] if cell else 0 for cell in world.grid.grid]
    position = [int(world.agent_pos[0]), int(world.agent_pos[1]), int(world.agent_dir)]
    return content_hash([level, world.mission, position, carried, cells])


def _within(cell: Any) -> Any:
    contained = getattr(cell, "contains", None)
    return contained.encode() if contained else None
