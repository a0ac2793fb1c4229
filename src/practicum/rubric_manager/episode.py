"""One episode of the rubric manager outside of `practicum train`: dialogue, work, dual evaluation, reward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from practicum.environments.rubric.families.catalogue import FAMILIES
from practicum.environments.rubric.instances import Instance, canonical_instance, workers_for
from practicum.environments.rubric.rewards import RubricComparison, coverage_of, reward_named
from practicum.environments.rubric.schema import Rubric
from practicum.environments.rubric.stakeholder import Stakeholder, topic_of
from practicum.environments.rubric.validation import ValidationEngine
from practicum.environments.rubric.workflow import Workflow
from practicum.environments.rubric.workflow_engine import WorkflowEngine, WorkflowWorker
from practicum.errors import UserError, did_you_mean
from practicum.rubric_manager.manager import RubricDecompositionManagerAgent
from practicum.rubric_manager.phase import InitialRubricGenerationPhase, Manager, PreExecutionLog
from practicum.rubric_manager.workflow_files import read_rubrics, read_workflows

FAILED_GENERATION_REWARD = -10.0
TYPICAL_QUALITY = 0.7
MAX_HIDDEN_TOPICS = 2


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


def load_training_workflows(path: Path | str | None = None, split: str | None = "train") -> list[Workflow]:
    """Return workflows: those that the hand-written rubrics are for (of one split, or all), or those of a JSON file."""
    if path is not None:
        return read_workflows(Path(path))
    return [instance.workflow for instance in canonical_instances() if split is None or instance.family.split == split]


def load_ground_truth_rubrics(path: Path | str | None = None) -> dict[str, Rubric]:
    """Return ground-truth rubrics by the name of their workflow: the hand-written ones, or those of a JSON file.

    The file is a list of {"name": ..., "rubric": ...} or a mapping from names to rubrics.
    """
    if path is None:
        return {instance.workflow.name: instance.preferences for instance in canonical_instances()}
    return read_rubrics(Path(path))


def ground_truth_for(workflow: Workflow, rubrics: Mapping[str, Rubric]) -> Rubric:
    """Return the ground truth of a workflow, by its name."""
    rubric = rubrics.get(workflow.name)
    if rubric is None:
        raise UserError(f"There is no ground-truth rubric for '{workflow.name}'.{did_you_mean(workflow.name, rubrics)}")
    return rubric


def default_stakeholder(workflow: Workflow, gt_rubric: Rubric) -> Stakeholder:
    """Return the stakeholder who holds the ground truth and speaks about up to two of its topics only when asked."""
    topics = list(dict.fromkeys(filter(None, map(topic_of, gt_rubric.all_rules))))
    hidden = topics[1:][-MAX_HIDDEN_TOPICS:]
    return Stakeholder(f"{workflow.name} stakeholder", gt_rubric, hidden, seed=workflow.seed)


def default_workers(workflow: Workflow) -> Sequence[WorkflowWorker]:
    """Return a scripted worker of a generated or hand-written workflow."""
    for instance in canonical_instances():
        if instance.workflow.name == workflow.name:
            return workers_for(instance, [TYPICAL_QUALITY])
    raise UserError(f"Workflow '{workflow.name}' is none of the families' own; pass the workers that do its tasks.")


async def train_one_episode(
    workflow: Workflow,
    gt_rubric: Rubric,
    manager: Manager | None = None,
    stakeholder: Stakeholder | None = None,
    workers: Sequence[WorkflowWorker] | None = None,
    engine: ValidationEngine | None = None,
    reward: str = "l1",
    max_turns: int = 3,
) -> float:
    """Run one episode and return its reward; a line with both scores is printed. `collect_rollout` returns more.

    Without a manager it is `RubricDecompositionManagerAgent()`, whose model the environment's variables name; pass one
    for several episodes, so that a local model is loaded once. No weight is changed: that is `practicum train`.
    """
    result = await collect_rollout(workflow, gt_rubric, manager, stakeholder, workers, engine, reward, max_turns)
    print(result.line)
    return result.reward


async def collect_rollout(
    workflow: Workflow,
    gt_rubric: Rubric,
    manager: Manager | None = None,
    stakeholder: Stakeholder | None = None,
    workers: Sequence[WorkflowWorker] | None = None,
    engine: ValidationEngine | None = None,
    reward: str = "l1",
    max_turns: int = 3,
) -> EpisodeResult:
    """Run the dialogue, the work, both evaluations of the same output, and compute the reward.

    Without an engine, judge rules are scored by the manager's own model.
    """
    compute = reward_named(reward, num_outputs=1)
    manager = manager or RubricDecompositionManagerAgent()
    person = stakeholder or default_stakeholder(workflow, gt_rubric)
    judge = manager.chat_model if isinstance(manager, RubricDecompositionManagerAgent) else None
    scoring = engine or ValidationEngine(seed=42, judge=judge)
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
    return EpisodeResult(synthetic, truth, compute(compared).total, log)


async def best_of_n(
    workflow: Workflow,
    gt_rubric: Rubric,
    make_manager: Callable[[int], Manager],
    n: int = 10,
    seed: int = 42,
    reward: str = "l1",
    workers: Sequence[WorkflowWorker] | None = None,
    engine: ValidationEngine | None = None,
    max_turns: int = 3,
) -> EpisodeResult:
    """Return the best of n episodes by their reward; `make_manager` gets a seed of its own for each.

    Every episode has a copy of the workflow, so that none sees what the manager of another one did.
    """
    if n < 1:
        raise UserError(f"best_of_n needs n of at least 1, got {n}.")
    results = [
        await collect_rollout(
            workflow.copy(), gt_rubric, make_manager(seed + i), None, workers, engine, reward, max_turns
        )
        for i in range(n)
    ]
    return max(results, key=lambda result: result.reward)
