"""The HTDAG planner as a library: `HTDAGPlanner` makes a `TaskDAG` of a request, with or without a model."""

from practicum.environments.htdag.task_dag import TaskDAG, TaskNode
from practicum.planner.htdag_planner import HTDAGPlanner
from practicum.planner.llm_planner import Planner

__all__ = ["HTDAGPlanner", "Planner", "TaskDAG", "TaskNode"]
