"""Scripted workers of graded quality."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from practicum.environments.rubric.deliverables import (
    Aspect,
    WorkSpec,
    aspect_label,
    aspects_of_task,
    draft,
    figures_note,
    finish,
)
from practicum.environments.rubric.workflow_engine import Work
from practicum.utils.seeded_random import SeededRandom

TASK_NOTE, TASK_DRAFT, TASK_FINISH = 0, 1, 2


@dataclass
class ScriptedWorker:
    """Gets each aspect of its work right with probability `quality`; the name and the work's seed decide which.

    `specs` has the plan of each task's deliverable and which of the three steps the task is.
    """

    name: str
    quality: float
    specs: Mapping[str, tuple[WorkSpec, int]]
    defects: set[Aspect] = field(default_factory=set)
    """What it got wrong so far."""

    async def perform(self, work: Work) -> str:
        spec, step = self.specs[work.task.name]
        random = SeededRandom(f"worker/{self.name}/{work.seed}/{work.task.name}")
        wrong = {a for a in aspects_of_task(spec, step) if not self._succeeds(aspect_label(a), work.seed)}
        self.defects |= wrong
        inputs = list(work.inputs.values())
        if step == TASK_NOTE:
            return figures_note(spec, wrong, random)
        if step == TASK_DRAFT:
            return draft(spec, inputs[-1].text, wrong, random)
        return finish(spec, inputs[-1].text, wrong, random)

    def _succeeds(self, label: str, seed: int) -> bool:
        return SeededRandom(f"aspect/{self.name}/{seed}/{label}").below(1000) < 1000 * self.quality
