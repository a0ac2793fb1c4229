"""The graph of tasks: sizes, depth, precedence, critical path, refusal of cycles, drawings."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environments.htdag.drawing import svg, tree_text, write_drawing
from practicum.environments.htdag.task_dag import CycleError, GraphError, TaskDAG, TaskNode
from practicum.errors import UserError


def trip() -> TaskDAG:
    """root: seat (find 3 s, pay 1 s after it) and room (pick 2 s, book 1 s after it), then pack 4 s."""
    dag = TaskDAG()
    dag.add_task(TaskNode("root", description="Trip to Rome"))
    for task_id, parent, seconds in (
        ("seat", "root", None),
        ("room", "root", None),
        ("pack", "root", 4.0),
        ("find", "seat", 3.0),
        ("pay", "seat", 1.0),
        ("pick", "room", 2.0),
        ("book", "room", 1.0),
    ):
        dag.add_task(TaskNode(task_id, description=task_id, duration=seconds), parent)
    for before, after in (("find", "pay"), ("pick", "book"), ("seat", "pack"), ("room", "pack")):
        dag.add_dependency(before, after)
    return dag


def test_size_depth_leaves_and_precedence_through_decomposed_tasks() -> None:
    dag = trip()
    assert (len(dag), dag.depth, dag.roots) == (8, 2, ("root",))
    assert dag.leaves == ("pack", "find", "pay", "pick", "book")
    assert dag.topological_order() == ["find", "pay", "pick", "book", "pack"]
    assert dag.precedes("find", "pack")
    assert not dag.precedes("find", "pick")
    assert not dag.precedes("pack", "find")
    assert sorted(dag.leaf_edges()) == [("book", "pack"), ("find", "pay"), ("pay", "pack"), ("pick", "book")]


def test_times_follow_the_critical_path() -> None:
    dag = trip()
    assert dag.start_times() == {"find": 0.0, "pay": 3.0, "pick": 0.0, "book": 2.0, "pack": 4.0}
    assert dag.makespan() == 8.0
    assert dag.critical_path() == ["find", "pay", "pack"]
    assert dag.parallelism == pytest.approx(1 - 3 / 5)


def test_an_empty_dag_is_true_and_has_no_depth() -> None:
    dag = TaskDAG()
    assert dag
    assert (len(dag), dag.depth, dag.makespan(), dag.parallelism, dag.critical_path()) == (0, 0, 0.0, 0.0, [])


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("pay", "pay"),
        ("pay", "find"),
        ("pack", "seat"),
        ("pack", "find"),
        ("root", "pay"),
        ("pay", "root"),
        ("seat", "find"),
    ],
)
def test_an_order_that_cannot_be_is_refused_and_changes_nothing(before: str, after: str) -> None:
    dag = trip()
    state = dag.to_dict()
    with pytest.raises(CycleError):
        dag.add_dependency(before, after)
    assert dag.to_dict() == state


def test_unknown_and_repeated_ids_are_refused() -> None:
    dag = trip()
    for change in (
        lambda: dag.add_task(TaskNode("find")),
        lambda: dag.add_task(TaskNode("")),
        lambda: dag.add_task(TaskNode("new"), "nobody"),
        lambda: dag.add_dependency("find", "nobody"),
        lambda: dag.mark_complete("nobody"),
    ):
        with pytest.raises(GraphError):
            change()
    assert len(dag) == 8


def test_a_copy_shares_nothing_and_json_comes_back() -> None:
    dag = trip()
    other = dag.copy()
    other.mark_complete("find")
    other.add_task(TaskNode("more"), "find")
    assert dag["find"].status == "pending"
    assert dag.children("find") == ()
    assert TaskDAG.from_dict(other.to_dict()).to_dict() == other.to_dict()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=40), st.lists(st.integers(-1, 8), max_size=10)
)
def test_no_sequence_of_edges_makes_a_cycle(edges: list[tuple[int, int]], parents: list[int]) -> None:
    dag = TaskDAG()
    for index in range(10):
        parent = parents[index] if index < len(parents) else -1
        dag.add_task(TaskNode(str(index), duration=1.0), str(parent) if 0 <= parent < index else None)
    for before, after in edges:
        try:
            dag.add_dependency(str(before), str(after))
        except CycleError:
            assert not dag.precedes(str(before), str(after))
        else:
            leaves = [leaf for leaf in dag.leaves if str(before) in (leaf, *dag.ancestors(leaf))]
            assert all(dag.precedes(leaf, str(after)) for leaf in leaves)
    order = dag.topological_order()
    assert sorted(order) == sorted(dag.leaves)
    for leaf, others in dag.leaf_successors().items():
        assert all(order.index(leaf) < order.index(other) for other in others)
    assert dag.makespan() == len(dag.critical_path())


def test_drawings_hold_every_leaf_and_escape_what_a_model_wrote(tmp_path: Path) -> None:
    dag = trip()
    dag.add_task(TaskNode("x", description="<script>\x1b[31m & co"), "root")
    picture = svg(dag, "Trip <1>")
    texts = [element.text for element in ET.fromstring(picture).iter("{http://www.w3.org/2000/svg}text")]
    assert {"find", "pay", "pick", "book", "pack"} <= set(texts)
    assert "\x1b" not in picture + tree_text(dag)
    assert "   └─ book book  (after pick)" in tree_text(dag).replace("│  ", "   ")
    assert write_drawing(dag, tmp_path / "plan.txt").read_text().startswith("6 steps, depth 2, 8 s\nroot Trip to Rome")
    assert write_drawing(dag, tmp_path / "plan.svg", "Trip <1>").read_text() == svg(dag, "Trip <1>")
    with pytest.raises(UserError, match="svg, .png or .txt"):
        write_drawing(dag, tmp_path / "plan.gif")


def test_png_is_a_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert write_drawing(trip(), tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")
