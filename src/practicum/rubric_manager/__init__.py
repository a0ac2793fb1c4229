"""The rubric manager as a library: structured generation, the dialogue before the work, scoring, one episode."""

from practicum.environments.rubric.rewards import compute_reward
from practicum.environments.rubric.schema import CodeRule, GeneratedRubric, JudgeRule, MenuRule, Rubric, Stage
from practicum.environments.rubric.stakeholder import Stakeholder
from practicum.environments.rubric.validation import Preference, ValidationEngine, create_rubric_based_scorer
from practicum.environments.rubric.workflow import CommunicationService, Workflow, WorkflowResource, WorkflowTask
from practicum.environments.rubric.workflow_engine import PolicyWorker, WorkflowEngine
from practicum.rubric_manager.decomposition import decompose_preference_to_evaluator
from practicum.rubric_manager.episode import (
    best_of_n,
    collect_rollout,
    default_workers,
    ground_truth_for,
    load_ground_truth_rubrics,
    load_training_workflows,
    train_one_episode,
)
from practicum.rubric_manager.manager import RubricDecompositionManagerAgent
from practicum.rubric_manager.phase import InitialRubricGenerationPhase
from practicum.rubric_manager.structured import (
    StructuredOutputError,
    generate_structured,
    make_model,
    with_temperature,
)
from practicum.rubric_manager.task_rows import add_outputs, make_task_rows

__all__ = [
    "CodeRule",
    "CommunicationService",
    "GeneratedRubric",
    "InitialRubricGenerationPhase",
    "JudgeRule",
    "MenuRule",
    "PolicyWorker",
    "Preference",
    "Rubric",
    "RubricDecompositionManagerAgent",
    "Stage",
    "Stakeholder",
    "StructuredOutputError",
    "ValidationEngine",
    "Workflow",
    "WorkflowEngine",
    "WorkflowResource",
    "WorkflowTask",
    "add_outputs",
    "best_of_n",
    "collect_rollout",
    "compute_reward",
    "create_rubric_based_scorer",
    "decompose_preference_to_evaluator",
    "default_workers",
    "generate_structured",
    "ground_truth_for",
    "load_ground_truth_rubrics",
    "load_training_workflows",
    "make_model",
    "make_task_rows",
    "train_one_episode",
    "with_temperature",
]
