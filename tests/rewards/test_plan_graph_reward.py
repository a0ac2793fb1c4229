"""Plans against gold graphs: node matching by token overlap, chains, graphs, orders and makespans."""

from __future__ import annotations

import pytest

from practicum import registry
from practicum.errors import JudgeError
from practicum.rewards.base import Score
from practicum.rewards.plan_graph_reward import f1_chain, f1_graph, makespan, match_nodes, parse_workflow
from practicum.task import Task

GOLD = """Node:
1: Boil the water.
2: Cut the bread
3: Pour water over the tea
4: Serve tea and bread.
Edge: (START,1) (START, 2) (1,3) (2,4) (3,4) (4,END)"""


def worfbench(answer: str | None) -> Score:
    task = Task("t", "tools", "test", {"workflow": GOLD})
    return registry.reward("worfbench_reward").score(task, answer, ())


def asynchow(answer: str | None) -> Score:
    """Steps of 60, 30, 10 and 5 s; 1 before 3, both 2 and 3 before 4: 75 s."""
    fields = {"seconds": [60, 30, 10, 5], "orders": [[1, 3], [2, 4], [3, 4]]}
    return registry.reward("asynchow_reward").score(Task("t", "tools", "test", fields), answer, ())


def test_the_gold_workflow_itself_is_solved_also_in_other_words_and_another_order() -> None:
    assert worfbench(GOLD).success
    other = """Edges follow. Nodes:
    1. cut bread
    2. boil water
    3. pour the water over tea
    4. serve bread and tea
    (START,1) (START,2) (2,3) (1,4) (3,4) (4,END)"""
    assert worfbench(other).success
    assert worfbench(other).components == {"f1_chain": 1.0, "f1_graph": 1.0}


def test_a_workflow_on_one_line_is_read_too() -> None:
    assert parse_workflow(" ".join(GOLD.split())).edges == parse_workflow(GOLD).edges
    assert worfbench(" ".join(GOLD.split())).success


def test_a_chain_has_the_nodes_but_not_the_graph() -> None:
    text = GOLD.partition("Edge")[0] + "Edge: (START,1) (1,2) (2,3) (3,4) (4,END)"
    score = worfbench(text)
    assert not score.success
    assert score.components["f1_chain"] == 1.0
    # START-1 and 3-4-END are common: of six nodes each the largest connected part has three.
    assert score.reward == score.components["f1_graph"] == pytest.approx(3 / 6)


def test_missing_and_superfluous_nodes_cost_both_ways() -> None:
    value = parse_workflow("Node:\n1: Boil the water\n2: Sing a song\nEdge: (START,1) (1,2) (2,END)")
    gold = parse_workflow(GOLD)
    assert f1_chain(value, gold) == pytest.approx(2 * 1 / (2 + 4))
    assert f1_graph(value, gold) == pytest.approx(2 * 2 / (4 + 6))


@pytest.mark.parametrize(
    "answer", [None, "", "I cannot", "Node:\n1: Sing a song\nEdge: (START,1) (1,END)", "(1,2) (2,1)"]
)
def test_plans_without_a_matching_node_score_nothing(answer: str | None) -> None:
    score = worfbench(answer)
    assert score.reward == 0.0
    assert score.components == {"f1_chain": 0.0, "f1_graph": 0.0}


def test_a_wrong_order_shortens_the_chain() -> None:
    text = "Node:\n1: Serve tea and bread\n2: Pour water over tea\n3: Boil the water\n4: Cut the bread\nEdge: (START,1)"
    assert f1_chain(parse_workflow(text), parse_workflow(GOLD)) == pytest.approx(2 * 2 / 8)


def test_nodes_are_matched_once_and_by_the_greatest_overlap_in_all() -> None:
    assert match_nodes(["cut the red bread", "cut bread"], ["cut bread", "cut the red bread now"]) == {0: 1, 1: 0}
    assert match_nodes(["cut bread", "cut bread"], ["cut bread"]) == {0: 0}
    assert match_nodes([], ["a"]) == {}


def test_an_optimal_order_is_solved_and_a_sequence_is_valid_but_slow() -> None:
    best = asynchow("Edge: (START,1) (1,3) (3,4) (2,4) (4,END)")
    assert best.success
    assert best.reward == 1.0
    slow = asynchow("(1,2) (2,3) (3,4)")
    assert not slow.success
    assert slow.components == {"valid_order": 1.0, "makespan_ratio": pytest.approx(105 / 75)}
    assert slow.reward == pytest.approx(75 / 105)


@pytest.mark.parametrize("answer", [None, "no idea", "(1,3) (2,4)", "(1,3) (3,4) (4,2) (2,4)", "(1,9) (3,4)"])
def test_orders_that_miss_something_or_are_cyclic_are_not_valid(answer: str | None) -> None:
    score = asynchow(answer)
    assert score.reward == 0.0
    assert score.components["valid_order"] == 0.0
    has_plan = answer is not None and "(4,2)" not in answer and "(" in answer
    assert ("makespan_ratio" in score.components) == has_plan, "the mean is over plans"


def test_tasks_that_are_wrong_themselves_are_judge_errors() -> None:
    with pytest.raises(JudgeError, match="has no nodes"):
        registry.reward("worfbench_reward").score(Task("t", "tools", "test", {"workflow": "?"}), GOLD, ())
    fields = {"seconds": [1, 1], "orders": [[1, 2], [2, 1]]}
    with pytest.raises(JudgeError, match="cyclic"):
        registry.reward("asynchow_reward").score(Task("t", "tools", "test", fields), "(1,2)", ())
    assert makespan([("1", "2")], {"1": 2.0, "2": 3.0}) == 5.0
