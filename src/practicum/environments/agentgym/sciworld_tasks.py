"""ScienceWorld's tasks and variations, AgentGym's flat index over them, and the simulator's own splits.

The counts are those of scienceworld 1.2.3; a test compares them with the simulator's.
"""

from __future__ import annotations

from practicum.environments.agentgym.base import by_hash
from practicum.task import Task

VARIATIONS = {
    "boil": 30, "melt": 30, "freeze": 30, "change-the-state-of-matter-of": 30,
    "use-thermometer": 540, "measure-melting-point-known-substance": 436,
    "measure-melting-point-unknown-substance": 300,
    "power-component": 20, "power-component-renewable-vs-nonrenewable-energy": 20,
    "test-conductivity": 900, "test-conductivity-of-unknown-substances": 600,
    "find-living-thing": 300, "find-non-living-thing": 300, "find-plant": 300, "find-animal": 300,
    "grow-plant": 126, "grow-fruit": 126,
    "chemistry-mix": 32, "chemistry-mix-paint-secondary-color": 36, "chemistry-mix-paint-tertiary-color": 36,
    "lifespan-longest-lived": 125, "lifespan-shortest-lived": 125,
    "lifespan-longest-lived-then-shortest-lived": 125,
    "identify-life-stages-1": 14, "identify-life-stages-2": 10,
    "inclined-plane-determine-angle": 168, "inclined-plane-friction-named-surfaces": 1386,
    "inclined-plane-friction-unnamed-surfaces": 162,
    "mendelian-genetics-known-plant": 120, "mendelian-genetics-unknown-plant": 480,
}  # fmt: skip
"""Tasks in the package's order, each with its number of variations."""
LEFT_OUT = (
    "grow-plant",
    "grow-fruit",
    "inclined-plane-determine-angle",
    "inclined-plane-friction-named-surfaces",
    "inclined-plane-friction-unnamed-surfaces",
    "mendelian-genetics-known-plant",
    "mendelian-genetics-unknown-plant",
)
"""Tasks that AgentGym does not use (5-1, 5-2, 9-1 to 9-3, 10-1 and 10-2)."""
AGENTGYM = tuple(name for name in VARIATIONS if name not in LEFT_OUT)
SETS = {"agentgym": AGENTGYM, "all": tuple(VARIATIONS)}


def variations_of(name: str, split: str) -> range:
    """Return the variations of the simulator's own split: the first two quarters, the third, the rest."""
    count = VARIATIONS[name]
    quarter = count // 4
    return {
        "train": range(2 * quarter),
        "val": range(2 * quarter, 3 * quarter),
        "test": range(3 * quarter, count),
    }[split]


def split_of(name: str, variation: int) -> str:
    return next(split for split in ("train", "val", "test") if variation in variations_of(name, split))


def task_of(name: str, variation: int) -> Task:
    """Return the task of a name and a variation, with `data_idx` if AgentGym's index has it."""
    fields: dict[str, object] = {"task": name, "variation": variation}
    if name in AGENTGYM:
        fields["data_idx"] = sum(VARIATIONS[other] for other in AGENTGYM[: AGENTGYM.index(name)]) + variation
    return Task(f"sciworld-{name}-{variation}", "agentgym:sciworld", split_of(name, variation), fields)


NUM_INDICES = sum(VARIATIONS[name] for name in AGENTGYM)
"""Number of AgentGym's indices."""


def task_at(data_idx: int) -> Task:
    """Return the task of AgentGym's index: all variations of a task, then those of the next."""
    variation = data_idx
    for name in AGENTGYM:
        if variation < VARIATIONS[name]:
            break
        variation -= VARIATIONS[name]
    return task_of(name, variation)


def in_turn(names: tuple[str, ...], split: str, count: int, seed: int) -> list[Task]:
    """Return one variation of each task, then another of each: a sample of any size has all kinds.

    A task without further variations of the split starts again once all have.
    """
    order = by_hash(list(names), seed)
    lines = {name: by_hash([[name, number] for number in variations_of(name, split)], seed) for name in order}
    once = [
        lines[name][index]
        for index in range(max(map(len, lines.values())))
        for name in order
        if index < len(lines[name])
    ]
    return [task_of(*once[index % len(once)]) for index in range(count)]
