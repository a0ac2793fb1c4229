"""Plans of recorded episodes: the decisions of a trajectory, carried out again."""

from __future__ import annotations

from collections.abc import Sequence

from practicum.environment import Action
from practicum.environments.htdag.planning import MAX_STEPS_PER_EPISODE, PlanningEpisode
from practicum.environments.htdag.task_dag import TaskDAG
from practicum.task import Task
from practicum.trajectory import Trajectory


def plan_of(trajectory: Trajectory) -> TaskDAG:
    """Return the DAG at the end of an episode of `htdag`. Replies that did not parse did not reach the environment."""
    return plan_of_actions(trajectory.task, [turn.action for turn in trajectory.turns if turn.action.error is None])


def plan_of_actions(task: Task, actions: Sequence[Action]) -> TaskDAG:
    """Return the DAG that a sequence of decisions makes of a request."""
    episode = PlanningEpisode(max_steps=max(MAX_STEPS_PER_EPISODE, len(actions)))
    episode.reset(str(task.fields.get("request", "")))
    for action in actions:
        episode.step(action.content if not action.calls else action.text)
    return episode.dag
