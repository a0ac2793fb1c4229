"""Group rewards of `htdag`: rewards that depend on the other plans of the same request."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.environments.htdag.replay import plan_of
from practicum.environments.htdag.task_dag import TaskDAG
from practicum.trajectory import Outcome, Trajectory

MAX_DIVERSITY_BONUS = 0.2
"""Bonus of a solved plan that has nothing in common with the other solved plans of its group."""


def plan_diversity(group: Sequence[Trajectory], rewards: Sequence[float]) -> list[float]:
    """Add a bonus to every solved plan: `MAX_DIVERSITY_BONUS` · (1 - mean similarity to the other solved plans).

    A plan that is not solved gets none: plans differ most where they are wrong, and that is not to be paid for. The
    only solved plan of a group has no other to be compared with and gets none either.
    """
    solved = [index for index, episode in enumerate(group) if episode.outcome is Outcome.SUCCESS]
    features = {index: plan_features(plan_of(group[index])) for index in solved}
    adjusted = list(rewards)
    for index in solved:
        others = [similarity(features[index], features[other]) for other in solved if other != index]
        if others:
            adjusted[index] += MAX_DIVERSITY_BONUS * (1 - sum(others) / len(others))
    return adjusted


def plan_features(dag: TaskDAG) -> frozenset[tuple[str, ...]]:
    """Return what a plan consists of: its steps, which task each is a part of, and which step comes before which."""
    labels = {task_id: dag[task_id].label for task_id in dag.task_ids}
    steps = {("step", labels[leaf]) for leaf in dag.leaves}
    parts = {("part", labels[task], labels[child]) for task in dag.task_ids for child in dag.children(task)}
    orders = {("order", labels[before], labels[after]) for before, after in dag.leaf_edges()}
    return frozenset(steps | parts | orders)


def similarity(first: frozenset[tuple[str, ...]], second: frozenset[tuple[str, ...]]) -> float:
    """Return the Jaccard similarity of two plans: the share of all features that both have."""
    union = first | second
    return len(first & second) / len(union) if union else 1.0
