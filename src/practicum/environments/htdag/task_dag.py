"""`TaskDAG`: tasks that are decomposed into subtasks, with an order of execution; it cannot become cyclic.

There are two relations. A task that was decomposed is the *parent* of its subtasks: this is a forest. A task may also
come *after* others: this is the precedence. Only leaves are executed; an edge between tasks that were decomposed orders
all of their leaves. An edge that would make the order impossible is refused.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

PENDING, IN_PROGRESS, COMPLETED, FAILED = "pending", "in_progress", "completed", "failed"
STATUSES = (PENDING, IN_PROGRESS, COMPLETED, FAILED)
DEFAULT_TYPE = "generic"
DEFAULT_DURATION_SECONDS = 5.0
"""Simulated seconds of a task that states no duration."""


class GraphError(ValueError):
    """A change of a DAG that is refused; the DAG is as it was."""


class CycleError(GraphError):
    """A precedence that would make the order impossible."""


@dataclass(frozen=True, slots=True)
class TaskNode:
    """One task of a DAG."""

    task_id: str
    task_type: str = DEFAULT_TYPE
    description: str = ""
    status: str = PENDING
    duration: float | None = None
    """Simulated or estimated seconds; None: `DEFAULT_DURATION_SECONDS`."""
    metadata: Mapping[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> str:
        return self.description or self.task_type


Duration = Callable[[TaskNode], float]


def stated_duration(node: TaskNode) -> float:
    """Return the duration that a task states, in seconds, or the default."""
    return DEFAULT_DURATION_SECONDS if node.duration is None else node.duration


class TaskDAG:
    """A forest of decomposed tasks with precedences; `len` is the number of tasks. An empty DAG is true."""

    def __init__(self) -> None:
        self._nodes: dict[str, TaskNode] = {}
        self._parent: dict[str, str | None] = {}
        self._children: dict[str, list[str]] = {}
        self._dependencies: dict[str, list[str]] = {}

    def __len__(self) -> int:
        return len(self._nodes)

    def __bool__(self) -> bool:
        return True  # a DAG without tasks is still a DAG: `if dag` must not mean `if len(dag)`

    def __contains__(self, task_id: object) -> bool:
        return task_id in self._nodes

    def __getitem__(self, task_id: str) -> TaskNode:
        return self._nodes[task_id]

    @property
    def task_ids(self) -> tuple[str, ...]:
        """All ids in the order in which they were added."""
        return tuple(self._nodes)

    def add_task(self, node: TaskNode, parent: str | None = None) -> None:
        """Add a task, as a subtask of `parent` if one is named."""
        if not node.task_id:
            raise GraphError("a task needs an id")
        if node.task_id in self._nodes:
            raise GraphError(f"there is a task '{node.task_id}' already")
        if parent is not None and parent not in self._nodes:
            raise GraphError(f"there is no task '{parent}'")
        self._nodes[node.task_id] = node
        self._parent[node.task_id] = parent
        self._children[node.task_id] = []
        self._dependencies[node.task_id] = []
        if parent is not None:
            self._children[parent].append(node.task_id)

    def add_dependency(self, before: str, after: str) -> None:
        """Let all leaves of `before` end before any leaf of `after` begins; an edge that is there is left as it is."""
        for task_id in (before, after):
            if task_id not in self._nodes:
                raise GraphError(f"there is no task '{task_id}'")
        if before in self._dependencies[after]:
            return
        # The end of `before` comes before the begin of `after`: impossible if the begin of `after` already leads there,
        # as it does for the same task, for a task and its parts, and for parts that wait for each other.
        if self._reaches(self._event(after, end=False), self._event(before, end=True)):
            raise CycleError(f"'{before}' cannot come before '{after}': it is the same task, a part of it, or after it")
        self._dependencies[after].append(before)

    def set_status(self, task_id: str, status: str) -> None:
        if task_id not in self._nodes:
            raise GraphError(f"there is no task '{task_id}'")
        if status not in STATUSES:
            raise GraphError(f"'{status}' is not one of {', '.join(STATUSES)}")
        self._nodes[task_id] = replace(self._nodes[task_id], status=status)

    def mark_complete(self, task_id: str) -> None:
        self.set_status(task_id, COMPLETED)

    def parent(self, task_id: str) -> str | None:
        return self._parent[task_id]

    def ancestors(self, task_id: str) -> tuple[str, ...]:
        """The parent, its parent, and so on."""
        result = []
        current = self._parent[task_id]
        while current is not None:
            result.append(current)
            current = self._parent[current]
        return tuple(result)

    def children(self, task_id: str) -> tuple[str, ...]:
        return tuple(self._children[task_id])

    def dependencies(self, task_id: str) -> tuple[str, ...]:
        """Tasks that this one was said to come after."""
        return tuple(self._dependencies[task_id])

    @property
    def roots(self) -> tuple[str, ...]:
        """Tasks that are part of no other."""
        return tuple(task_id for task_id, parent in self._parent.items() if parent is None)

    @property
    def leaves(self) -> tuple[str, ...]:
        """Tasks that were not decomposed: what is executed."""
        return tuple(task_id for task_id, children in self._children.items() if not children)

    def level(self, task_id: str) -> int:
        """Number of decompositions above a task."""
        return len(self.ancestors(task_id))

    @property
    def depth(self) -> int:
        """Edges of the longest chain of decompositions; 0 for an empty DAG and for tasks that were not decomposed."""
        return max(map(self.level, self._nodes), default=0)

    def precedes(self, before: str, after: str) -> bool:
        """Whether every leaf of `before` ends before any leaf of `after` begins."""
        return before != after and self._reaches(self._event(before, end=True), self._event(after, end=False))

    def topological_order(self) -> list[str]:
        """Leaves in an order of execution; where two may begin, the one added first comes first."""
        ids = list(self._nodes)
        leaves = set(self.leaves)
        return [ids[event // 2] for event in self._event_order() if event % 2 == 0 and ids[event // 2] in leaves]

    def start_times(self, duration: Duration = stated_duration) -> dict[str, float]:
        """Seconds at which each leaf begins if everything begins as early as it can."""
        ids, leaves = list(self._nodes), set(self.leaves)
        times = self._longest(duration)
        return {task_id: times[2 * index] for index, task_id in enumerate(ids) if task_id in leaves}

    def makespan(self, duration: Duration = stated_duration) -> float:
        """Seconds until all leaves have ended, with as many workers as can be used: the length of the critical path."""
        return max(self._longest(duration), default=0.0)

    def critical_path(self, duration: Duration = stated_duration) -> list[str]:
        """The leaves of a longest chain, first to last."""
        starts = self.start_times(duration)
        ends = {task_id: start + duration(self._nodes[task_id]) for task_id, start in starts.items()}
        path: list[str] = []
        candidates = list(ends)
        while candidates:
            last = max(candidates, key=lambda task_id: ends[task_id])
            path.append(last)
            candidates = [
                task_id
                for task_id in self.topological_order()
                if abs(ends[task_id] - starts[last]) < 1e-9 and task_id not in path and self.precedes(task_id, last)
            ]
        return path[::-1]

    @property
    def parallelism(self) -> float:
        """1 - (leaves of the longest chain) / leaves: 0 for a sequence, (n - 1) / n for n independent leaves."""
        leaves = len(self.leaves)
        return 1 - self.makespan(lambda node: 1.0) / leaves if leaves else 0.0

    def leaf_edges(self) -> list[tuple[str, str]]:
        """Precedences between leaves without those that follow from others."""
        after = self.leaf_successors()
        return [
            (leaf, other)
            for leaf, others in after.items()
            for other in others
            if not any(other in after[between] for between in others)
        ]

    def leaf_successors(self) -> dict[str, set[str]]:
        """For each leaf, in an order of execution, the leaves that can begin only after it has ended."""
        ids, graph = list(self._nodes), self._event_graph()
        leaves = [2 * index for index, task_id in enumerate(ids) if not self._children[task_id]]
        mask = sum(1 << event for event in leaves)
        reached = [0] * len(graph)  # sets of events as bits
        for event in reversed(self._event_order()):
            for successor in graph[event]:
                reached[event] |= reached[successor] | 1 << successor
        return {
            task_id: {ids[event // 2] for event in leaves if (reached[2 * ids.index(task_id) + 1] & mask) >> event & 1}
            for task_id in self.topological_order()
        }

    def copy(self) -> TaskDAG:
        """Return a DAG that shares nothing with this one that could change."""
        graph = TaskDAG()
        graph._nodes, graph._parent = dict(self._nodes), dict(self._parent)
        graph._children = {task_id: list(ids) for task_id, ids in self._children.items()}
        graph._dependencies = {task_id: list(ids) for task_id, ids in self._dependencies.items()}
        return graph

    def to_dict(self) -> dict[str, Any]:
        """The DAG as JSON."""
        return {
            "tasks": [
                {**asdict(node), "parent": self._parent[task_id], "dependencies": list(self._dependencies[task_id])}
                for task_id, node in self._nodes.items()
            ]
        }

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> TaskDAG:
        """Read `to_dict`'s form; GraphError for one that is not a DAG."""
        graph = cls()
        for task in value["tasks"]:
            fields = {key: task[key] for key in TaskNode.__dataclass_fields__ if key in task}
            graph.add_task(TaskNode(**fields), task.get("parent"))
        for task in value["tasks"]:
            for before in task.get("dependencies", ()):
                graph.add_dependency(before, task["task_id"])
        return graph

    # Begin and end of each task are events: a parent begins before its parts and ends after them. The order is possible
    # if the graph of events has no cycle.
    def _event(self, task_id: str, end: bool) -> int:
        return 2 * list(self._nodes).index(task_id) + end

    def _event_graph(self) -> list[list[int]]:
        """Successors of each event; event 2 i is the begin of task i, 2 i + 1 its end."""
        index = {task_id: i for i, task_id in enumerate(self._nodes)}
        after: list[list[int]] = [[] for _ in range(2 * len(index))]
        for task_id, i in index.items():
            after[2 * i].append(2 * i + 1)
            for child in self._children[task_id]:
                after[2 * i].append(2 * index[child])
                after[2 * index[child] + 1].append(2 * i + 1)
            for before in self._dependencies[task_id]:
                after[2 * index[before] + 1].append(2 * i)
        return after

    def _reaches(self, source: int, target: int) -> bool:
        graph = self._event_graph()
        stack, seen = [source], {source}
        while stack:
            event = stack.pop()
            if event == target:
                return True
            for successor in graph[event]:
                if successor not in seen:
                    seen.add(successor)
                    stack.append(successor)
        return False

    def _event_order(self) -> Sequence[int]:
        graph = self._event_graph()
        waits = [0] * len(graph)
        for successors in graph:
            for event in successors:
                waits[event] += 1
        ready = [event for event, count in enumerate(waits) if count == 0]
        order: list[int] = []
        while ready:
            event = heapq.heappop(ready)
            order.append(event)
            for successor in graph[event]:
                waits[successor] -= 1
                if waits[successor] == 0:
                    heapq.heappush(ready, successor)
        return order

    def _longest(self, duration: Duration) -> list[float]:
        """The earliest time of each event."""
        graph, times = self._event_graph(), [0.0] * (2 * len(self._nodes))
        seconds = [
            0.0 if self._children[task_id] else max(0.0, duration(node)) for task_id, node in self._nodes.items()
        ]
        for event in self._event_order():
            for successor in graph[event]:
                spent = seconds[event // 2] if successor == event + 1 and event % 2 == 0 else 0.0
                times[successor] = max(times[successor], times[event] + spent)
        return times
