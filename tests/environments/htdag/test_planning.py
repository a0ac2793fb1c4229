"""Planning episodes: the seven faults of the published environment, the rewards, and hostile replies."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.environments.htdag.planning import (
    MAX_RECURSION_DEPTH,
    MAX_SUBTASKS_PER_UPDATE,
    MAX_TOTAL_TASKS,
    PlanningEpisode,
    PlanningStep,
)
from practicum.environments.htdag.policies import POLICIES, parse_request
from practicum.environments.htdag.requests import PlanGoal, create_benchmark_tasks, goals_of
from practicum.environments.htdag.rewards import DecompositionResult, clipped, published_components
from practicum.errors import UserError
from practicum.models.tiny import build_tokenizer

REQUEST = "buy a cheap lamp and tidy the attic, then tell Ada"
GOALS = (PlanGoal("buy", "lamp", ("cheap",)), PlanGoal("tidy", "attic"), PlanGoal("tell", "Ada", (), (0, 1)))
PERFECT = ("0: buy lamp, tidy attic, tell Ada<1 2", "1: find, pick<1, pay<2", "2: sort, clean", "go")


def play(*texts: str, reward: str = "default", max_steps: int = 50) -> tuple[PlanningEpisode, list[PlanningStep]]:
    episode = PlanningEpisode(reward, max_steps=max_steps)
    episode.reset(REQUEST, GOALS)
    return episode, [episode.step(text) for text in texts]


def test_a_perfect_plan_has_the_full_reward_and_every_part_is_named() -> None:
    episode, steps = play(*PERFECT)
    end = steps[-1]
    assert end.success
    assert end.done
    assert not end.truncated
    assert episode.total == pytest.approx(sum(step.reward for step in steps)) == pytest.approx(2.0 - 4 * 0.01)
    assert end.components == pytest.approx({
        "step": -0.01, "refused": 0.0, "completion": 1.0, "coverage": 0.4, "order": 0.2, "speed": 0.3, "calls": 0.1,
        "waste": 0.0, "infeasible": 0.0,
    })  # fmt: skip
    assert all(step.reward == pytest.approx(sum(step.components.values())) for step in steps)
    assert end.info["execution_time"] == end.info["optimal_time"] == 7.0
    assert end.info["parallelism"] == pytest.approx(1 - 4 / 6)


def test_the_prompt_is_fresh_and_short() -> None:
    _episode, steps = play(*PERFECT[:2])
    request = REQUEST.replace("lamp", "A").replace("attic", "B").replace("Ada", "C")
    assert steps[0].prompt == f"{request}\n1 buy A; 2 tidy B; 3 tell C+<1 2\n1"
    assert steps[1].prompt.splitlines()[1] == "1 buy A+; 2 tidy B; 3 tell C+<1 2"
    nested = PlanningEpisode()
    nested.reset("do a study of bees")
    assert nested.step("0: study A").prompt == "do a study of A\n1 study A\n1"
    assert nested.step("1: ask, report<1").prompt == "do a study of A\n1 study A(1.2 report)\n2"
    assert nested.step("1.2: load bees, count stars<1").prompt == "do a study of A\n1 study A+\n3"
    assert [nested.dag[leaf].description for leaf in nested.dag.leaves] == ["ask bees", "load bees", "count stars"]
    json_episode = PlanningEpisode(prompt="json")
    assert "Current DAG size: 1" in json_episode.reset(REQUEST, GOALS)


def test_letters_name_the_slots_of_the_request_and_names_are_read_too() -> None:
    episode = PlanningEpisode()
    assert episode.reset("tell Ada, then tell Ben").startswith("tell A, then tell B\n")
    episode.step("0: tell A, tell Ben<1, tell C")
    assert [episode.dag[leaf].description for leaf in episode.dag.leaves] == ["tell Ada", "tell Ben", "tell C"]


def test_prompts_of_the_panel_fit_the_tiny_model() -> None:
    tokenizer = build_tokenizer()
    lengths = []
    for task in create_benchmark_tasks():
        episode, policy = PlanningEpisode(), POLICIES["expert"](0)
        prompt = episode.reset(task.fields["request"], goals_of(task.fields))
        while not episode.done:
            lengths.append(len(tokenizer(prompt).input_ids))
            prompt = episode.step(policy(episode)).prompt
    assert sorted(lengths)[int(0.95 * len(lengths))] < 80
    assert max(lengths) < 110


def test_the_paper_s_json_does_the_same_as_the_short_form() -> None:
    root = {
        "decompose_further": True,
        "task_id": "root",
        "subtasks": [
            {"task_id": "a", "task_type": "generic", "description": "Search for a cheap lamp", "after": []},
            {"task_id": "b", "task_type": "generic", "description": "Choose the cheapest lamp", "after": ["a"]},
            {"task_id": "c", "task_type": "pay", "description": "the lamp", "depends_on": ["b"]},
            {"task_id": "d", "task_type": "sort", "description": "things in the attic"},
            {"task_id": "e", "task_type": "generic", "description": "Scrub the attic"},
            {"task_id": "f", "task_type": "api_call", "description": "Inform Ada", "after": ["c", 4, "e"]},
        ],
    }
    episode, steps = play(f"Here it is: {json.dumps(root)}", '{"decompose_further": false}')
    assert steps[-1].success
    assert episode.refused.total() == 0
    assert episode.dag.depth == 1


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("7: find, pay", "unknown_task"),
        ("hello", "unreadable"),
        ("1: find a lamp", "unreadable"),
        ("{not json}", "unreadable"),
        ("1: find<2, pay<1", "cycle"),
        ("1: find<1", "cycle"),
        ("1: find, pay<9", "unknown_order"),
        ("0: find, pay", "decomposed_already"),
        ('{"decompose_further": true, "task_id": "1", "subtasks": []}', "no_subtasks"),
        ('{"decompose_further": true, "task_id": "1", "subtasks": [3, {"task_id": "2"}]}', "repeated_id"),
        (f"1: {', '.join(['find'] * 25)}", "too_many"),
    ],
)
def test_bad_ids_orders_and_replies_are_refused_and_penalised(text: str, kind: str) -> None:
    episode, steps = play(PERFECT[0], text)
    assert episode.refused[kind] > 0
    assert not steps[-1].done
    assert steps[-1].components["refused"] < 0
    assert steps[-1].info["refused"][kind] > 0


def test_executing_ends_the_episode_and_leaves_decide() -> None:
    _, steps = play("0: buy lamp, tidy attic, tell Ada<1 2", "go")
    assert steps[-1].done
    assert not steps[-1].success
    assert steps[-1].info["feasibility"] == pytest.approx(1 / 3)
    episode, steps = play("go", "go")
    assert steps[0].done
    assert steps[0].success is False
    assert steps[1].reward == 0.0
    assert episode.state.step_count == 1


@pytest.mark.parametrize(
    ("plan", "component"),
    [
        (("0: buy lamp, tidy attic, tell Ada", *PERFECT[1:]), "order"),
        (("0: buy lamp, tell Ada<1", PERFECT[1], "go"), "coverage"),
        (("0: buy lamp, tidy attic, tell Ada<1 2", "1: find, pay<1", *PERFECT[2:]), "coverage"),
        (("0: buy lamp, tidy attic, tell Ada<1 2, sign lamp, print lamp, book lamp", *PERFECT[1:]), "waste"),
    ],
)
def test_missing_steps_orders_and_waste_are_no_success(plan: tuple[str, ...], component: str) -> None:
    perfect = play(*PERFECT)[1][-1]
    episode, steps = play(*plan)
    assert steps[-1].success is False
    assert steps[-1].components[component] < perfect.components[component]
    assert episode.total < 0.5


def test_a_sequence_solves_but_is_paid_less_than_a_parallel_plan() -> None:
    _episode, steps = play("0: buy lamp, tidy attic<1, tell Ada<2", PERFECT[1], "2: sort, clean<1", "go")
    assert steps[-1].success
    assert steps[-1].info["execution_time"] == 13.0
    assert steps[-1].components["speed"] == pytest.approx(0.3 * 7 / 13)


def test_too_many_decisions_end_the_episode() -> None:
    for reward, least in (("default", -2.0), ("published", -1.1)):
        episode, steps = play(*["hello"] * 5, reward=reward, max_steps=5)
        assert steps[-1].truncated
        assert steps[-1].done
        assert steps[-1].components["timeout"] < 0
        assert episode.total >= least
    with pytest.raises(UserError, match="no reward 'mine'"):
        PlanningEpisode("mine")


@pytest.mark.parametrize(
    ("result", "total"),
    [
        (DecompositionResult(True, True, False, 3, 0.33, 5.0, 8), 2.2),
        (DecompositionResult(True, True, False, 1, 0.1, 15.0, 12), 1.0),
        (DecompositionResult(False, False, True, 6, 0.0, 30.0, 20, 5), -3.8),
        (DecompositionResult(True, True, False, 0, 0.2, 20.0, 15, 1), 1.1),
        (DecompositionResult(True, True, False, 5, 0.3, 10.0, 10, 2), 1.1),
    ],
)
def test_golden_vectors_of_the_published_reward(result: DecompositionResult, total: float) -> None:
    components = published_components(result)
    assert sum(components.values()) == pytest.approx(total)
    assert clipped(components) == pytest.approx(max(-2.0, min(2.0, total)))


def test_a_policy_that_maximises_the_published_reward_does_not_score() -> None:
    totals: dict[str, list[float]] = {"published": [], "default": []}
    for reward, values in totals.items():
        for task in create_benchmark_tasks()[::4]:
            episode, policy = PlanningEpisode(reward), POLICIES["published-reward"](0)
            episode.reset(task.fields["request"], goals_of(task.fields))
            while not episode.done:
                step = episode.step(policy(episode))
            assert step.success is False
            values.append(episode.total)
    assert min(totals["published"]) > 1.9
    assert max(totals["default"]) < -0.5


def test_the_heuristic_reads_orders_and_pairs_but_not_modifiers() -> None:
    def texts(request: str) -> list[str]:
        return [item.text for item in parse_request(request)]

    assert texts(REQUEST) == ["buy lamp", "tidy attic", "tell Ada<1 2"]
    assert texts("before you call Ben, repair the old box") == ["repair box", "call Ben<1"]
    assert texts("tidy the hall after you hold a feast for Kim") == ["feast Kim", "tidy hall<1"]
    assert texts("do a note to Ada and Ben") == ["note Ada", "note Ben"]


def test_as_needed_decomposition_is_sequential_and_counts_its_tries() -> None:
    episode, policy = PlanningEpisode(), POLICIES["adapt"](0)
    episode.reset("tidy the attic and tell Ada", (PlanGoal("tidy", "attic"), PlanGoal("tell", "Ada")))
    while not episode.done:
        step = episode.step(policy(episode))
    assert step.success
    assert episode.dag.parallelism == 0.0
    assert episode.state.llm_call_count == episode.state.step_count + len(episode.dag)


IDS = st.sampled_from(["0", "1", "2", "1.1", "root", "a", "b", "", "9"])
WORDS = st.sampled_from(["find", "buy", "lamp", "tell", "Ada", "zz", "go", "attic", "A", "B", "Z"])
SHORT = st.builds(
    lambda task, parts: f"{task}: {', '.join(parts)}",
    IDS,
    st.lists(
        st.builds(lambda a, b, c: f"{a} {b}<{c}", WORDS, WORDS, st.sampled_from(["1", "2", "1 2", "x", ""])),
        max_size=30,
    ),
)
SUBTASK = st.one_of(
    st.fixed_dictionaries({
        "task_id": st.one_of(IDS, st.integers(), st.none()),
        "task_type": st.one_of(WORDS, st.none()),
        "description": st.one_of(WORDS, st.text(max_size=8), st.integers()),
        "after": st.one_of(st.lists(st.one_of(IDS, st.integers(-1, 5)), max_size=4), st.text(max_size=3)),
    }),
    st.integers(),
)  # fmt: skip
JSON = st.fixed_dictionaries({
    "decompose_further": st.one_of(st.booleans(), st.text(max_size=3)),
    "task_id": st.one_of(IDS, st.integers(), st.none()),
    "subtasks": st.one_of(st.lists(SUBTASK, max_size=25), st.text(max_size=3)),
}).map(json.dumps)  # fmt: skip
REPLIES = st.lists(st.one_of(SHORT, JSON, st.text(max_size=30), st.just("go")), min_size=1, max_size=25)


@settings(max_examples=50, deadline=None)
@given(REPLIES, st.sampled_from(["default", "published"]), st.sampled_from(["short", "json"]))
def test_no_sequence_of_replies_raises_makes_a_cycle_or_exceeds_a_limit(
    replies: list[str], reward: str, prompt: str
) -> None:
    episode = PlanningEpisode(reward, prompt, max_steps=20)
    episode.reset(REQUEST, GOALS)
    total = 0.0
    for text in replies:
        step = episode.step(text)
        total += step.reward
        dag = episode.dag
        assert sorted(dag.topological_order()) == sorted(dag.leaves)
        assert dag.depth <= MAX_RECURSION_DEPTH
        assert len(dag) <= MAX_TOTAL_TASKS
        assert all(len(dag.children(task_id)) <= MAX_SUBTASKS_PER_UPDATE for task_id in dag.task_ids)
        assert episode.state.step_count <= 20
        assert -2.0 - 1e-9 <= total <= 2.0 + 1e-9
        json.dumps([step.info, episode.state.to_dict()])
        assert step.reward == pytest.approx(sum(step.components.values()))


def test_limits_hold_for_a_reply_that_only_wants_more() -> None:
    episode = PlanningEpisode(max_steps=2000)
    episode.reset(REQUEST, GOALS)
    queue = ["0"]
    while queue and len(episode.dag) < MAX_TOTAL_TASKS:
        task_id = queue.pop(0)
        episode.step(f"{task_id}: {', '.join(['trip'] * 30)}")
        queue.extend(episode.dag.children(task_id))
    assert len(episode.dag) == MAX_TOTAL_TASKS
    episode.step(f"{queue[-1]}: find, pay<1")
    assert len(episode.dag) == MAX_TOTAL_TASKS
    assert episode.refused["too_many"] > 0
