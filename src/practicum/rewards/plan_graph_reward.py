"""Rewards of plans against gold graphs: WorFBench's f1_chain and f1_graph, and order and makespan on AsyncHow's plans.

WorFBench matches nodes by sentence embeddings above 0.6; here they are matched by token overlap (F1 of their words) of
at least 0.5, so scores are not those of its paper. Two faults of its script are not repeated: a plan without any
matching node scores 0 on the chain, and common edges are compared through the matching, not by equal numbers.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import islice

from practicum.data.plan_graph import EDGE, END, START, Edge, PlanGraph, parse_workflow
from practicum.rewards.base import reward
from practicum.rewards.qa_f1_reward import compare_answers

MIN_OVERLAP = 0.5
"""Token F1 of two nodes from which on they may be matched."""
MAX_ORDERS, MAX_ORDERED_NODES = 20, 10
"""WorFBench compares with the first 20 orders of the gold graph, or with its list of nodes if that has 10 or more."""
NO_EDGES = re.compile(r"\bEdges?:\s*(none\b|\Z)", re.IGNORECASE)
"""A plan whose steps may all be done at the same time."""


def match_nodes(predicted: Sequence[str], gold: Sequence[str]) -> dict[int, int]:
    """Return the assignment of predicted to gold nodes with the greatest token overlap in all."""
    from scipy.optimize import linear_sum_assignment  # slow to import

    if not predicted or not gold:
        return {}
    overlap = [[compare_answers(a, b)["f1"] for b in gold] for a in predicted]
    weights = [[value if value >= MIN_OVERLAP else 0.0 for value in row] for row in overlap]
    rows, columns = linear_sum_assignment(weights, maximize=True)
    return {int(row): int(column) for row, column in zip(rows, columns, strict=True) if weights[row][column] > 0}


def f1_chain(predicted: PlanGraph, gold: PlanGraph) -> float:
    """Return the F1 of the longest part of the predicted node list that is in the order of the gold graph."""
    predicted_ids, best = list(predicted.nodes), 0
    for order in islice(_orders(gold), MAX_ORDERS):
        matched = match_nodes([predicted.nodes[i] for i in predicted_ids], [gold.nodes[i] for i in order])
        best = max(best, _longest_increasing([matched[i] for i in sorted(matched)]))
    return _f1(best, len(predicted.nodes), len(gold.nodes))


def f1_graph(predicted: PlanGraph, gold: PlanGraph) -> float:
    """Return the F1 of the largest connected part of the common edges; START and END count as nodes, as published."""
    predicted_ids, gold_ids = list(predicted.nodes), list(gold.nodes)
    matched = match_nodes(list(predicted.nodes.values()), list(gold.nodes.values()))
    to_gold = {predicted_ids[i]: gold_ids[j] for i, j in matched.items()} | {START: START, END: END}
    gold_edges = set(gold.edges)
    common = [(to_gold[a], to_gold[b]) for a, b in predicted.edges if a in to_gold and b in to_gold]
    size = _largest_component([edge for edge in common if edge in gold_edges])
    return _f1(size, len(predicted_ids) + 2, len(gold_ids) + 2)


@reward()
def worfbench_reward(answer_given: str | None, workflow: str) -> Mapping[str, float]:
    """Return f1_graph with the gold workflow, f1_chain beside it; solved if both are 1."""
    predicted, gold = parse_workflow(answer_given or ""), parse_workflow(workflow)
    if not gold.nodes:
        raise ValueError("the task's 'workflow' has no nodes in WorFBench's form")
    chain, graph = f1_chain(predicted, gold), f1_graph(predicted, gold)
    return {"reward": graph, "success": float(chain == graph == 1.0), "f1_chain": chain, "f1_graph": graph}


@reward()
def asynchow_reward(
    answer_given: str | None, seconds: Sequence[float], orders: Sequence[Sequence[int]]
) -> Mapping[str, float]:
    """Return the optimal makespan divided by the plan's if every required order holds, else 0; solved at the optimum.

    `seconds` are the durations of steps 1, 2, …; `orders` the required pairs (before, after). A reply that cannot be
    read or is cyclic has no `makespan_ratio`, so that the mean is over plans.
    """
    steps = [str(step) for step in range(1, len(seconds) + 1)]
    durations = dict(zip(steps, map(float, seconds), strict=True))
    predicted = [edge for edge in EDGE.findall(answer_given or "") if edge[0] in durations and edge[1] in durations]
    required = [(str(before), str(after)) for before, after in orders]
    optimum = makespan(required, durations)
    if optimum is None:
        raise ValueError("the task's 'orders' are cyclic")
    is_read = answer_given is not None and (EDGE.search(answer_given) or NO_EDGES.search(answer_given))
    planned = makespan(predicted, durations) if is_read else None
    valid = planned is not None and all(after in _reached(predicted, before) for before, after in required)
    ratio = 1.0 if planned is None or optimum == 0 else planned / optimum
    figures = {
        "reward": 1 / ratio if valid and ratio > 0 else float(valid),
        "success": float(valid and ratio <= 1 + 1e-9),
        "valid_order": float(valid),
    }
    return figures if planned is None else figures | {"makespan_ratio": ratio}


def makespan(edges: Sequence[Edge], durations: Mapping[str, float]) -> float | None:
    """Return the length of the critical path; None if the edges are cyclic."""
    before: dict[str, set[str]] = {step: set() for step in durations}
    for a, b in edges:
        before[b].add(a)
    ends: dict[str, float] = {}
    try:
        for step in TopologicalSorter(before).static_order():
            ends[step] = max((ends[other] for other in before[step]), default=0.0) + durations[step]
    except CycleError:
        return None
    return max(ends.values(), default=0.0)


def _reached(edges: Sequence[Edge], source: str) -> set[str]:
    visited: set[str] = set()
    stack = [source]
    while stack:
        step = stack.pop()
        for a, b in edges:
            if a == step and b not in visited:
                visited.add(b)
                stack.append(b)
    return visited


def _orders(gold: PlanGraph) -> Iterator[list[str]]:
    """Orders of the gold nodes, first numbers first; the list of nodes where they are many or cyclic."""
    ids = list(gold.nodes)
    edges = [(a, b) for a, b in gold.edges if a in gold.nodes and b in gold.nodes]
    if len(ids) >= MAX_ORDERED_NODES or makespan(edges, dict.fromkeys(ids, 1.0)) is None:
        yield ids
        return

    def extend(order: list[str]) -> Iterator[list[str]]:
        if len(order) == len(ids):
            yield order
        for node in ids:
            if node not in order and all(a in order for a, b in edges if b == node):
                yield from extend([*order, node])

    yield from extend([])


def _longest_increasing(values: Sequence[int]) -> int:
    best: list[int] = []
    for index, value in enumerate(values):
        best.append(1 + max((best[i] for i in range(index) if values[i] < value), default=0))
    return max(best, default=0)


def _largest_component(edges: Sequence[Edge]) -> int:
    neighbours: dict[str, set[str]] = {}
    for a, b in edges:
        neighbours.setdefault(a, set()).add(b)
        neighbours.setdefault(b, set()).add(a)
    largest = 0
    while neighbours:
        stack, visited = [next(iter(neighbours))], set()
        while stack:
            node = stack.pop()
            if node not in visited:
                visited.add(node)
                stack.extend(neighbours.pop(node))
        largest = max(largest, len(visited))
    return largest


def _f1(common: int, predicted: int, gold: int) -> float:
    return 2 * common / (predicted + gold) if common else 0.0
