"""One episode of the rubric manager outside of `practicum train`: dialogue, work, dual evaluation, reward."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.environments.rubric.families.catalogue import FAMILIES
from practicum.environments.rubric.instances import Instance, canonical_instance, workers_for
from practicum.environments.rubric.rewards import REWARDS, RubricComparison, coverage_of
from practicum.environments.rubric.rubric_case import rubric_of_field
from practicum.environments.rubric.schema import Rubric
from practicum.environments.rubric.stakeholder import Stakeholder
from practicum.environments.rubric.validation import ValidationEngine
from practicum.environments.rubric.workflow import Workflow, WorkflowResource, WorkflowTask
from practicum.environments.rubric.workflow_engine import WorkflowEngine, WorkflowWorker
from practicum.errors import UserError, did_you_mean
from practicum.rubric_manager.phase import InitialRubricGenerationPhase, Manager, PreExecutionLog

FAILED_GENERATION_REWARD = -10.0
TYPICAL_QUALITY = 0.7


@dataclass(frozen=True)
class EpisodeResult:
    """An episode: both scores, the reward, and the dialogue. Without a rubric the synthetic score is None."""

    synthetic: float | None
    ground_truth: float
    reward: float
    log: PreExecutionLog

    @property
    def line(self) -> str:
        synthetic = "none" if self.synthetic is None else f"{self.synthetic:.3f}"
        return f"Synthetic: {synthetic}, GT: {self.ground_truth:.3f}, Reward: {self.reward:.3f}"


def canonical_instances() -> list[Instance]:
    """Return the instances of all hand-written rubrics, simple work first."""
    return [canonical_instance(family, name) for family in FAMILIES.values() for name in family.rubrics]


def load_training_workflows(path: Path | None = None, split: str | None = "train") -> list[Workflow]:
    """Return workflows: those that the hand-written rubrics are for (of one split, or all), or those of a JSON file."""
    if path is not None:
        return [workflow_of(row) for row in _rows(path)]
    return [instance.workflow for instance in canonical_instances() if split is None or instance.family.split == split]


def load_ground_truth_rubrics(path: Path | None = None) -> dict[str, Rubric]:
    """Return ground-truth rubrics by the name of their workflow: the hand-written ones, or those of a JSON file.

    The file is a list of {"name": ..., "rubric": ...} or a mapping from names to rubrics.
    """
    if path is None:
        return {instance.workflow.name: instance.preferences for instance in canonical_instances()}
    value = _json(path)
    rows = value.items() if isinstance(value, Mapping) else [(row.get("name"), row.get("rubric")) for row in value]
    return {str(name): rubric_of_field(rubric, str(name)) for name, rubric in rows}


def ground_truth_for(workflow: Workflow, rubrics: Mapping[str, Rubric]) -> Rubric:
    """Return the ground truth of a workflow, by its name."""
    rubric = rubrics.get(workflow.name)
    if rubric is None:
        raise UserError(f"There is no ground-truth rubric for '{workflow.name}'.{did_you_mean(workflow.name, rubrics)}")
    return rubric


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"'{path}' cannot be read as JSON: {error}.") from None


def _rows(path: Path) -> list[Mapping[str, Any]]:
    value = _json(path)
    rows = value.get("workflows") if isinstance(value, Mapping) else value
    if not isinstance(rows, list) or not all(isinstance(row, Mapping) and "name" in row for row in rows):
        raise UserError(f"'{path}' must be a list of workflows, each with a 'name'.")
    return rows


def workflow_of(row: Mapping[str, Any]) -> Workflow:
    """Return a workflow from JSON: `name`, `goal`, `tasks`, `resources` (name, form, text), `deliverable`."""
    known = {"name", "description", "dependencies", "inputs", "output", "form", "hours", "cost"}
    tasks = {}
    for task in row.get("tasks", ()):
        unknown = set(task) - known
        if unknown or "name" not in task:
            raise UserError(f"Workflow '{row['name']}': a task has a 'name' and none of {sorted(unknown)}.")
        values: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in task.items()
        }
        tasks[str(task["name"])] = WorkflowTask(**values)
    resources = {
        str(entry["name"]): WorkflowResource(str(entry["name"]), str(entry.get("form", "document")), str(entry["text"]))
        for entry in row.get("resources", ())
    }
    return Workflow(
        str(row["name"]),
        str(row.get("goal", row["name"])),
        tasks,
        resources,
        str(row.get("deliverable", "")),
        metadata=dict(row.get("metadata", {})),
        seed=int(row.get("seed", 0)),
    )


def default_stakeholder(workflow: Workflow, gt_rubric: Rubric) -> Stakeholder:
    """Return the stakeholder who holds the ground truth."""
    return Stakeholder(f"{workflow.name} stakeholder", gt_rubric, seed=workflow.seed)


def default_workers(workflow: Workflow) -> Sequence[WorkflowWorker]:
    """Return a scripted worker of a generated or hand-written workflow."""
    for instance in canonical_instances():
        if instance.workflow.name == workflow.name:
            return workers_for(instance, [TYPICAL_QUALITY])
    raise UserError(f"Workflow '{workflow.name}' is none of the families' own; pass the workers that do its tasks.")


async def train_one_episode(
    workflow: Workflow,
    gt_rubric: Rubric,
    manager: Manager,
    stakeholder: Stakeholder | None = None,
    workers: Sequence[WorkflowWorker] | None = None,
    engine: ValidationEngine | None = None,
    reward: str = "l1",
    max_turns: int = 3,
) -> float:
    """Run one episode and return its reward; a line with both scores is printed. `collect_rollout` returns more."""
    result = await collect_rollout(workflow, gt_rubric, manager, stakeholder, workers, engine, reward, max_turns)
    print(result.line)
    return result.reward


async def collect_rollout(
    workflow: Workflow,
    gt_rubric: Rubric,
    manager: Manager,
    stakeholder: Stakeholder | None = None,
    workers: Sequence[WorkflowWorker] | None = None,
    engine: ValidationEngine | None = None,
    reward: str = "l1",
    max_turns: int = 3,
) -> EpisodeResult:
    """Run the dialogue, the work, both evaluations of the same output, and compute the reward."""
    person = stakeholder or default_stakeholder(workflow, gt_rubric)
    scoring = engine or ValidationEngine(seed=42)
    log = await InitialRubricGenerationPhase(manager, person, max_turns=max_turns).run(workflow)
    done = await WorkflowEngine(workers or default_workers(workflow)).run(workflow)
    # An engine of its own: code rules of the ground truth never share a sandbox with those of a model.
    own = ValidationEngine(scoring.seed, scoring.judge)
    truth = (await own.evaluate_timestep(done, [gt_rubric])).weighted_preference_total
    if not log.generated_rubrics:
        return EpisodeResult(None, truth, FAILED_GENERATION_REWARD, log)
    rubric = log.generated_rubrics[-1]
    synthetic = (await scoring.evaluate_timestep(done, [rubric])).weighted_preference_total
    compared = RubricComparison(
        [synthetic], [truth], rubric.num_rules, len(log.clarification_turns), coverage_of(rubric, gt_rubric)
    )
    return EpisodeResult(synthetic, truth, REWARDS[reward](compared).total, log)


async def best_of_n(
    workflow: Workflow,
    gt_rubric: Rubric,
    make_manager: Callable[[int], Manager],
    n: int = 10,
    seed: int = 42,
    reward: str = "l1",
) -> EpisodeResult:
    """Return the best of n episodes by their reward; `make_manager` gets a seed of its own for each.

    Every episode has a copy of the workflow, so that none sees what the manager of another one did.
    """
    results = [
        await collect_rollout(workflow.copy(), gt_rubric, make_manager(seed + i), reward=reward) for i in range(n)
    ]
    return max(results, key=lambda result: result.reward)
