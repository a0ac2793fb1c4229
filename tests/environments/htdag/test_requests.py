"""Generated requests: templates, splits, hidden requirement graphs, the panel."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from practicum.environments.htdag.planning import PlanningEpisode
from practicum.environments.htdag.policies import POLICIES
from practicum.environments.htdag.requests import (
    create_benchmark_tasks,
    draw_requests,
    goals_of,
    requirement_graph,
)
from practicum.environments.htdag.task_dag import TaskDAG
from practicum.environments.htdag.templates import PATTERNS, TEMPLATES, RequestTemplate, combination, drawn_templates
from practicum.environments.htdag.vocabulary import (
    MODIFIERS,
    RECIPES,
    SLOTS,
    TYPES,
    all_steps,
    allowed_modifiers,
    match_slot,
    match_type,
    mentioned_slots,
    parse_items,
    recipe,
)
from practicum.errors import UserError


def substance(template: RequestTemplate) -> tuple[str, tuple[tuple[str, str], ...]]:
    """Pattern, tasks and modifiers of a template: what it is besides names."""
    return template.pattern, tuple((goal.type, goal.modifier) for goal in template.goals)


def tasks_by_id(dag: TaskDAG) -> dict[str, Any]:
    return {task["task_id"]: task for task in dag.to_dict()["tasks"]}


def test_there_are_enough_templates_domains_and_requests() -> None:
    assert len(TEMPLATES) >= 60
    assert len({template.domain for template in TEMPLATES}) >= 10
    for level in ("simple", "medium", "complex", "edge"):
        assert {t.split for t in TEMPLATES if t.level == level} == {"train", "val", "test"}
    assert len({task.fields["request"] for task in draw_requests("train", 3000)}) == 3000


def test_held_out_templates_differ_in_substance_and_use_only_what_training_covers() -> None:
    train = [template for template in TEMPLATES if template.split == "train"]
    held_out = [template for template in TEMPLATES if template.split != "train"]
    substances = [substance(template) for template in TEMPLATES]
    assert len(set(substances)) == len(substances)
    assert {(goal.type, goal.kind) for t in held_out for goal in t.goals} <= {
        (goal.type, goal.kind) for t in train for goal in t.goals
    }
    assert {t.pattern for t in held_out} <= {t.pattern for t in train} == set(PATTERNS)
    assert {goal.type for t in train for goal in t.goals} >= set(RECIPES)
    assert {goal.modifier for t in train for goal in t.goals} >= set(MODIFIERS)


def test_drawn_training_templates_leave_out_every_held_out_combination() -> None:
    drawn = drawn_templates()
    assert len(drawn) == 3000
    held_out = {combination(template) for template in TEMPLATES if template.split != "train"}
    assert not held_out & {combination(template) for template in drawn}
    assert {template.pattern for template in drawn} == set(PATTERNS)
    assert {goal.type for template in drawn for goal in template.goals} >= set(RECIPES)
    for template in drawn:
        for goal in template.goals:
            assert goal.modifier in ("", "not", *allowed_modifiers(goal.type))
    written = [template for template in TEMPLATES if template.split == "train"]
    used = {task.fields["template"] for task in draw_requests("train", len(drawn) + len(written))}
    assert len(used) > 0.99 * (len(drawn) + len(written))


def test_splits_are_disjoint_and_lists_grow_without_changing() -> None:
    splits = {split: draw_requests(split, 200) for split in ("train", "val", "test")}
    requests = [{task.fields["request"] for task in tasks} for tasks in splits.values()]
    assert not requests[0] & requests[1]
    assert not requests[0] & requests[2]
    assert not requests[1] & requests[2]
    assert draw_requests("train", 50) == splits["train"][:50]
    assert draw_requests("train", 50, seed=1) != splits["train"][:50]
    with pytest.raises(UserError, match="no requests in 'other'"):
        draw_requests("other", 1)


def test_every_template_has_slots_and_modifiers_that_go_together() -> None:
    for template in TEMPLATES:
        assert len(template.goals) == len(PATTERNS[template.pattern].after)
        for goal in template.goals:
            assert goal.type in TYPES
            assert goal.kind in SLOTS
            assert goal.modifier in ("", "not", *allowed_modifiers(goal.type))


def test_no_request_needs_the_same_step_twice_and_the_expert_solves_all() -> None:
    for split in ("train", "val", "test"):
        for task in draw_requests(split, 60):
            goals = goals_of(task.fields)
            required = requirement_graph(task.fields["request"], goals)
            keys = [(required[leaf].task_type, required[leaf].metadata["slot"]) for leaf in required.leaves]
            assert len(set(keys)) == len(keys)
            assert set(mentioned_slots(task.fields["request"])) >= {goal.slot for goal in goals}
            episode = PlanningEpisode()
            episode.reset(task.fields["request"], goals)
            policy = POLICIES["expert"](0)
            step = episode.step(policy(episode))
            while not step.done:
                step = episode.step(policy(episode))
            assert step.success, task.fields["request"]
            assert tasks_by_id(episode.dag) == tasks_by_id(required)
            assert episode.state.step_count == episode.needed_calls


def test_the_panel_is_split_as_published_all_distinct_and_held_out() -> None:
    panel = create_benchmark_tasks()
    assert Counter(task.fields["level"] for task in panel) == {"simple": 25, "medium": 35, "complex": 30, "edge": 10}
    assert len({task.fields["request"] for task in panel}) == len({task.id for task in panel}) == 100
    held_out = {template.id for template in TEMPLATES if template.split == "test"}
    assert {task.fields["template"] for task in panel} == held_out
    assert create_benchmark_tasks() == panel


def test_modifiers_change_recipes() -> None:
    text = {m: ", ".join(item.text for item in recipe("buy", (m,))) for m in allowed_modifiers("buy")}
    assert text == {
        "cheap": "find, pick<1, pay<2",
        "old": "clean, find<1, pay<2",
        "checked": "find, pay<1, check<2",
        "shared": "find, pay<1, tell<2",
    }
    assert ", ".join(item.text for item in recipe("tidy", ("checked",))) == "sort, clean, check<1 2"
    assert allowed_modifiers("tell") == ()
    for type in RECIPES:
        assert len(set(all_steps(type))) == len(all_steps(type))


def test_free_text_is_matched_to_the_vocabulary() -> None:
    assert match_type("Compare the offers", "generic") == "pick"
    assert match_type("Publishing the page") == "post"
    assert match_type("Anything", "repair") == "repair"
    assert match_type("Hm") == ""
    assert match_slot("Look for a seat to oslo", ("Lima", "Oslo")) == "Oslo"
    assert match_slot("Buy a boat", ("Lima",)) == "boat"
    with pytest.raises(ValueError, match="is not"):
        parse_items("find a lamp")


def test_tasks_without_goals_are_refused_in_a_sentence() -> None:
    for goals in (None, [{"type": "nonsense", "slot": "lamp"}], [{"type": "buy", "slot": "lamp", "after": [0]}]):
        with pytest.raises(UserError, match="needs 'request' and 'goals'"):
            goals_of({"request": "x", "goals": goals})
