"""The simulated executor: runs the leaves of a plan and checks them against what the request needs.

A leaf can be executed if its type is a step. It meets a requirement if type and slot are the required ones; a leaf that
meets none, or one that another leaf meets already, is wasted. A required order holds if the plan guarantees it. The
time is that of the critical path, with as many workers as can be used.
"""

from __future__ import annotations

from dataclasses import dataclass

from practicum.environments.htdag.task_dag import COMPLETED, FAILED, TaskDAG, TaskNode, stated_duration
from practicum.environments.htdag.vocabulary import is_step

MAX_WASTE = 0.2
"""Share of wasted leaves with which a plan still counts as a success."""


@dataclass(frozen=True, slots=True)
class Execution:
    """What came of executing a plan."""

    required: int
    covered: int
    required_orders: int
    kept_orders: int
    leaves: int
    wasted: int
    infeasible: int
    seconds: float
    optimal_seconds: float
    failed_leaves: tuple[str, ...]
    """Leaves that cannot be executed or ran before a step that they need, in the order of execution."""

    @property
    def coverage(self) -> float:
        return self.covered / self.required if self.required else 1.0

    @property
    def order(self) -> float:
        """Share of the required orders that the plan guarantees; an order of steps that are not there is not kept."""
        return self.kept_orders / self.required_orders if self.required_orders else 1.0

    @property
    def waste(self) -> float:
        return self.wasted / self.leaves if self.leaves else 0.0

    @property
    def feasibility(self) -> float:
        """Share of leaves that can be executed."""
        return 1 - self.infeasible / self.leaves if self.leaves else 0.0

    @property
    def speed(self) -> float:
        """The time of the best plan divided by this plan's, at most 1."""
        return min(1.0, self.optimal_seconds / self.seconds) if self.seconds > 0 else 1.0

    @property
    def success(self) -> bool:
        """Everything covered and in order, nothing infeasible, little wasted."""
        return (
            self.covered == self.required
            and self.kept_orders == self.required_orders
            and self.infeasible == 0
            and self.waste <= MAX_WASTE
        )


def execute(plan: TaskDAG, requirement: TaskDAG) -> Execution:
    """Execute a plan against a requirement graph. Each required step is met by the first leaf that can."""
    needed = {_key(requirement[leaf]): leaf for leaf in requirement.leaves}
    successors = plan.leaf_successors()
    met: dict[str, str] = {}
    wasted = infeasible = 0
    failed = set()
    for leaf in successors:
        node = plan[leaf]
        if not is_step(node.task_type):
            infeasible += 1
            failed.add(leaf)
            continue
        required = needed.get(_key(node))
        if required is None or required in met:
            wasted += 1
        else:
            met[required] = leaf
    orders = requirement.leaf_edges()
    kept = 0
    for before, after in orders:
        if before in met and after in met and met[after] in successors[met[before]]:
            kept += 1
        elif after in met:
            failed.add(met[after])
    return Execution(
        required=len(needed),
        covered=len(met),
        required_orders=len(orders),
        kept_orders=kept,
        leaves=len(successors),
        wasted=wasted,
        infeasible=infeasible,
        seconds=plan.makespan(stated_duration),
        optimal_seconds=requirement.makespan(stated_duration),
        failed_leaves=tuple(leaf for leaf in successors if leaf in failed),
    )


def mark(plan: TaskDAG, execution: Execution) -> TaskDAG:
    """Return a copy of a plan whose leaves are marked completed or failed."""
    marked = plan.copy()
    for leaf in plan.leaves:
        marked.set_status(leaf, FAILED if leaf in execution.failed_leaves else COMPLETED)
    return marked


def _key(node: TaskNode) -> tuple[str, str]:
    return node.task_type, str(node.metadata.get("slot", "")).lower()
