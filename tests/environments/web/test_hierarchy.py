"""The hierarchy on the sites' pages without a browser: who acts when, what is recorded, and what is trained."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from practicum.agent import Agent
from practicum.chat.formats.web_actions import parse_action
from practicum.chat.renderer import Renderer
from practicum.data.export import bc_rows
from practicum.data.store import decode_episode, encode_episode, wrong_field
from practicum.engines.scripted import ScriptedEngine
from practicum.environment import Action, Observation
from practicum.environments.web import action_cache
from practicum.environments.web.action_cache import CACHE, ActionCache
from practicum.environments.web.base import WebObservation
from practicum.environments.web.environment import WebEnvironment
from practicum.environments.web.manager import FINISH, MANAGER, WORKER, goal_parts
from practicum.errors import UserError
from practicum.models import loader
from practicum.policy import Policy
from practicum.registry import make_format
from practicum.resources import RunResources
from practicum.rollout import run_episodes
from practicum.task import Task
from practicum.trajectory import ActionSource, Origin, Outcome, Trajectory, plan_attempts
from tests.environments.web.html_environment import HtmlWebEnvironment
from tests.environments.web.playing import make_task

Act = Callable[[Observation], Action]


@pytest.fixture(scope="module", autouse=True)
def runner() -> Iterator[asyncio.Runner]:
    """One event loop for all runs: resources belong to the loop in which they were opened."""
    global _runner
    with asyncio.Runner() as _runner:
        yield _runner


_runner: asyncio.Runner


@pytest.fixture(scope="module")
def renderer() -> Renderer:
    loaded = loader.load("tiny")
    return Renderer(loaded.tokenizer, None, loaded.end_ids)


def expert(observation: Observation) -> Action:
    assert isinstance(observation, WebObservation)
    assert observation.next_expert_action is not None
    return observation.next_expert_action()


def engine(renderer: Renderer, act: Act) -> ScriptedEngine:
    return ScriptedEngine(lambda task, seed: act, ActionSource.POLICY, make_format("web"), renderer)


def collect_episodes(
    renderer: Renderer,
    tasks: Sequence[Task],
    act: Act = expert,
    *,
    chains: int = 1,
    manager_act: Act | None = None,
    resources: RunResources | None = None,
    max_turns: int = 30,
    **options: Any,
) -> list[Trajectory]:
    """Episodes of a scripted worker; `manager_act` is the manager's policy."""
    policies = (
        {} if manager_act is None else {MANAGER: Policy(engine(renderer, manager_act), renderer, "web", role=MANAGER)}
    )
    agent = Agent(format="web", max_turns=max_turns)
    make = partial(HtmlWebEnvironment, **options)
    planned = plan_attempts(tasks, chains, 0)
    return _runner.run(
        run_episodes(planned, make, agent, engine(renderer, act), renderer, policies=policies, resources=resources)
    )


def sources(episode: Trajectory) -> list[str]:
    return [str(turn.info.get("action_source")) for turn in episode.turns]


def counts(episode: Trajectory) -> dict[str, int]:
    return {key: value for key, value in episode.turns[-1].info.items() if isinstance(value, int)}


def test_without_parts_the_environment_is_that_of_a_worker_alone(renderer: Renderer) -> None:
    (episode,) = collect_episodes(renderer, [make_task("shop/add-options")])
    assert episode.outcome is Outcome.SUCCESS
    assert {turn.role for turn in episode.turns} == {"policy"}
    assert not any({"action_source", "manager_calls"} & set(turn.info) for turn in episode.turns)


def test_a_scripted_manager_guides_the_worker(renderer: Renderer) -> None:
    (episode,) = collect_episodes(renderer, [make_task("mail/reply-archive")], manager="scripted")
    assert episode.outcome is Outcome.SUCCESS
    first, second = episode.turns[:2]
    assert (first.role, first.source, first.spans) == (MANAGER, "scripted_manager", ())
    guidance = json.loads(first.reply)
    assert set(guidance) == {"subgoal", "skill", "stop_condition", "risk", "reasoning"}
    assert second.role == WORKER
    assert f"# Guidance\nSubgoal: {guidance['subgoal']}\n" in second.messages[-1].content
    assert guidance["subgoal"] in str(episode.task.fields["question"])
    assert guidance["subgoal"] != str(episode.task.fields["question"]), "the part that is to be done first"
    assert sources(episode)[:4] == ["manager", "worker_guided", "manager", "worker_guided"], "the first two steps"
    assert counts(episode)["manager_calls"] == sources(episode).count("manager")


def test_under_sub_goals_the_worker_sees_one_part_and_comes_back_to_the_manager(renderer: Renderer) -> None:
    task = make_task("mail/reply-archive")
    (episode,) = collect_episodes(
        renderer, [task], manager="model", manager_calls="return", observe="brief", manager_act=expert
    )
    assert episode.outcome is Outcome.SUCCESS
    managers = [turn for turn in episode.turns if turn.role == MANAGER]
    goal = str(task.fields["question"])
    first, second = goal_parts(goal)
    assert [turn.reply for turn in managers] == [first, second, FINISH]
    assert all(goal in turn.messages[-1].content for turn in managers)
    assert managers[2].messages[-1].content.endswith(f"# Given\n{first}\n{second}")
    workers = [turn for turn in episode.turns if turn.role == WORKER]
    assert not any(goal in turn.messages[-1].content for turn in workers)
    archive = workers[[turn.messages[-1].content.startswith(second) for turn in workers].index(True)]
    assert "- click Send" not in archive.messages[-1].content, "what was done for the sub-goal before"
    assert archive.reply.startswith("click(")
    says_done = [turn for turn in workers if not turn.action.calls]
    assert [turn.num_sampled > 0 for turn in says_done] == [True, True, False]
    assert (says_done[-1].source, says_done[-1].info["action_source"]) == (MANAGER, MANAGER)


def test_a_question_is_answered_by_the_workers_message_when_the_manager_ends_the_episode(renderer: Renderer) -> None:
    (episode,) = collect_episodes(renderer, [make_task("shop/price")], manager="scripted", manager_calls="return")
    assert episode.outcome is Outcome.SUCCESS
    assert episode.turns[-1].action.content == episode.turns[-3].action.content != "Done."


def test_a_manager_that_goes_on_for_ever_ends_at_the_limit_of_turns(renderer: Renderer) -> None:
    say_first = lambda observation: Action(content=(observation.legal or ("",))[0])  # noqa: E731
    done = lambda observation: Action(content="Done.")  # noqa: E731
    (episode,) = collect_episodes(
        renderer, [make_task("mail/reply-two")], done, manager="model", manager_calls="return", manager_act=say_first,
        max_turns=5,
    )  # fmt: skip
    assert episode.outcome is Outcome.TRUNCATED
    assert sum(turn.role == WORKER for turn in episode.turns) == 5


def test_a_scripted_manager_goes_on_when_the_worker_removed_what_the_task_is_about(renderer: Renderer) -> None:
    task = make_task("calendar/move")
    event = str(task.fields["question"]).partition("event ")[2].partition(". ")[0]

    def delete(observation: Observation) -> Action:
        page = observation.messages[-1].content
        match = re.search(rf"{re.escape(event)} \[(\d+)\]", page) or re.search(r"Delete \[(\d+)\]", page)
        return Action(calls=(parse_action(f'click("{match[1]}")'),)) if match else Action(content="Done.")

    (episode,) = collect_episodes(
        renderer, [task], delete, manager="scripted", manager_calls="always", observe="brief", max_turns=4
    )  # fmt: skip
    assert episode.outcome is Outcome.FAILURE
    assert any("unrequested" in turn.info for turn in episode.turns), "the event is gone"


@pytest.mark.parametrize(
    ("goal", "parts"),
    [
        ("Reply to A: B. Quick reply: Yes. Then archive it.", ("Reply to A: B. Quick reply: Yes.", "Archive it.")),
        ("Cart: use coupon X, then checkout. Address: Home.", ("Cart: use coupon X.", "Checkout. Address: Home.")),
        ("Cart: remove Green mug, white.", ("Cart: remove Green mug, white.",)),
    ],
)
def test_the_parts_of_a_goal(goal: str, parts: tuple[str, ...]) -> None:
    assert goal_parts(goal) == parts


def test_macros_start_bind_and_are_never_trained(renderer: Renderer) -> None:
    observations: list[Observation] = []

    def worker(observation: Observation) -> Action:
        observations.append(observation)
        return expert(observation)

    tasks = [
        make_task("shop/search-add"),
        make_task("shop/add-options"),
        make_task("calendar/create"),
        make_task("shop/buy"),
    ]
    episodes = collect_episodes(renderer, tasks, worker, manager="scripted", manager_calls="always", macros=True)
    for episode in episodes:
        assert episode.outcome is Outcome.SUCCESS
        macro = [turn for turn in episode.turns if turn.info["action_source"] == "macro"]
        assert macro
        assert all((turn.source, turn.spans) == ("macro", ()) for turn in macro)
        assert counts(episode)["macro_actions"] == len(macro)
        assert wrong_field(episode) is None
        assert decode_episode(encode_episode(episode)) == episode
        rows = list(bc_rows([episode], lambda trajectory, index: "", None))
        assert {row["action_source"] for row in rows} == {"worker_guided"}, "no demonstration was made by a macro"
        origins = [span for sequence in episode.sequences() for span in sequence.origins]
        assert origins.count(Origin.SAMPLED) == sum(turn.num_sampled for turn in episode.turns)
    num_by_model = sum(turn.num_sampled > 0 for episode in episodes for turn in episode.turns)
    assert num_by_model == len(observations), "no model was asked for what a macro did"
    assert sum(counts(episode)["macro_successes"] for episode in episodes) >= 3


def test_a_managers_own_words_are_a_turn_of_its_role_and_an_unreadable_answer_asks_to_try_again(
    renderer: Renderer,
) -> None:
    answers = iter(['```json\n{"subgoal": "Open it", "skill": "fly()", "risk": "medium"}\n```', "no idea"])
    (episode,) = collect_episodes(
        renderer, [make_task("shop/wish-add")], manager="model", macros=True,
        manager_act=lambda observation: Action(content=next(answers)),
    )  # fmt: skip
    assert episode.outcome is Outcome.SUCCESS
    managers = [turn for turn in episode.turns if turn.role == MANAGER]
    assert [turn.num_sampled > 0 for turn in managers] == [True, True]
    assert managers[0].info["guidance"] == {
        "subgoal": "Open it", "skill": "fly()", "stop_condition": "", "risk": "med", "reasoning": "",
    }  # fmt: skip
    assert (managers[0].info["is_readable"], managers[1].info["is_readable"]) == (True, False)
    assert "Look at the page again" in managers[1].info["guidance"]["subgoal"]
    assert counts(episode)["macro_attempts"] == 1
    assert counts(episode)["macro_actions"] == 0, "there is no such macro: the worker goes on"
    assert "fill_form(" in managers[0].messages[0].content
    worker = next(turn for turn in episode.turns if turn.role == WORKER)
    assert "# Guidance\nSubgoal: Open it\nRisk: med" in worker.messages[-1].content


def test_the_manager_is_called_at_errors_and_at_pages_of_high_risk(renderer: Renderer) -> None:
    failures = iter([True, True])

    def worker(observation: Observation) -> Action:
        return Action(calls=(parse_action('click("999")'),)) if next(failures, False) else expert(observation)

    (episode,) = collect_episodes(
        renderer, [make_task("shop/checkout")], worker, manager="scripted", manager_calls="gate"
    )  # fmt: skip
    assert episode.outcome is Outcome.SUCCESS
    reasons = [
        turn.messages[-1].content.rpartition("# Asked Because Of\n")[2]
        for turn in episode.turns
        if turn.role == MANAGER
    ]
    assert reasons[:2] == ["an error", "repeated errors"]
    assert "a checkout page" in reasons
    assert episode.turns[0].role == WORKER, "no warm start"


def test_the_cache_saves_model_calls_and_ends_at_a_page_that_is_another(renderer: Renderer) -> None:
    tasks = [make_task("shop/buy"), make_task("shop/buy", 5), make_task("mail/move")]
    run = RunResources(HtmlWebEnvironment(cache=True).make_resources())
    first = collect_episodes(renderer, tasks, resources=run, cache=True)
    assert all("cache" not in sources(episode) for episode in first)
    run.commit()
    second = collect_episodes(renderer, tasks, resources=run, cache=True)
    for before, after in zip(first, second, strict=True):
        assert before.outcome is after.outcome is Outcome.SUCCESS
        assert [turn.action.calls for turn in before.turns] == [turn.action.calls for turn in after.turns]
        assert sources(after) == ["cache"] * (len(after.turns) - 1) + ["worker"], "the message is the worker's"
        assert counts(after)["cache_hits"] == len(after.turns) - 1
        assert sum(turn.num_sampled for turn in after.turns) < sum(turn.num_sampled for turn in before.turns)
    cache: ActionCache = run["cache"].resource  # type: ignore[assignment]
    assert {entry.success_count for entry in cache.entries.values()} == {1}
    run.commit()
    assert {entry.success_count for entry in cache.entries.values()} == {2}
    others = collect_episodes(renderer, [make_task("shop/buy", 9)], resources=run, cache=True)
    assert counts(others[0])["cache_hits"] == 0, "another goal reads nothing"


def test_a_cached_action_that_fails_is_tried_once_per_episode_and_removed_at_the_second_failure(
    renderer: Renderer,
) -> None:
    task = make_task("shop/add-options")
    run = RunResources(HtmlWebEnvironment(cache=True).make_resources())
    collect_episodes(renderer, [task], resources=run, cache=True)
    run.commit()
    cache: ActionCache = run["cache"].resource  # type: ignore[assignment]
    key = next(iter(cache.entries))
    states = cache.state_dict()
    states["entries"][key]["postcondition"] = "another page"
    cache.load_state_dict(states)
    for failures in (1, 2):
        (episode,) = collect_episodes(renderer, [task], resources=run, cache=True)
        assert episode.outcome is Outcome.SUCCESS
        assert sum({"key": key} == value for name, value in episode.provenance["writes"] if name == CACHE) == 1
        run.commit()
        assert (key in cache.entries) == (failures == 1)


def test_a_page_that_repeats_is_left_to_the_worker(renderer: Renderer) -> None:
    """In `shop/buy-two` the first page comes twice with different things to do, and looks the same."""
    task = make_task("shop/buy-two", 1)
    run = RunResources(HtmlWebEnvironment(cache=True).make_resources())
    (first,) = collect_episodes(renderer, [task], resources=run, cache=True)
    states = [turn.info["state_key"] for turn in first.turns]
    assert first.outcome is Outcome.SUCCESS
    assert len(set(states)) < len(states)
    run.commit()
    for _ in range(3):
        (repeated,) = collect_episodes(renderer, [task], resources=run, cache=True)
        assert repeated.outcome is Outcome.SUCCESS
        assert len(repeated.turns) == len(first.turns)
        home = [turn for turn in repeated.turns if turn.info["url"].endswith("/shop/")]
        assert [turn.info["action_source"] for turn in home] == ["worker", "worker"]
        assert counts(repeated)["cache_hits"] >= len(repeated.turns) // 2
        run.commit()


def test_a_managers_turns_do_not_count_towards_the_limit(renderer: Renderer) -> None:
    task = make_task("shop/buy")
    (alone,) = collect_episodes(renderer, [task])
    limit = len(alone.turns)
    (managed,) = collect_episodes(renderer, [task], manager="scripted", manager_calls="always", max_turns=limit)
    assert managed.outcome is Outcome.SUCCESS
    assert len(managed.turns) == 2 * limit
    (short,) = collect_episodes(renderer, [task], manager="scripted", manager_calls="always", max_turns=limit - 1)
    assert short.outcome is Outcome.TRUNCATED
    assert sum(turn.role == WORKER for turn in short.turns) == limit - 1


def test_attempts_of_a_group_do_not_share_a_cache_and_a_restored_cache_gives_the_same_episodes(
    renderer: Renderer,
) -> None:
    task = make_task("mail/reply-archive")
    run = RunResources(HtmlWebEnvironment(cache=True).make_resources())
    group = collect_episodes(renderer, [task], chains=4, resources=run, cache=True)
    assert all(counts(episode)["cache_hits"] == 0 for episode in group)
    run.commit()
    saved = json.loads(json.dumps(run.state_dict(), sort_keys=True))  # a checkpoint
    with run.evaluation():
        evaluated = collect_episodes(renderer, [task], resources=run, cache=True)
    assert counts(evaluated[0])["cache_hits"] == 0, "an evaluation begins with an empty cache"
    assert run.state_dict() == saved
    resumed = RunResources(HtmlWebEnvironment(cache=True).make_resources())
    resumed.load_state_dict(saved)
    for chains in (run, resumed):
        chains.queue([])
    continued, restored = (
        collect_episodes(renderer, [task], chains=4, resources=chains, cache=True) for chains in (run, resumed)
    )
    assert [encode_episode(episode) for episode in continued] == [encode_episode(episode) for episode in restored]
    assert all(counts(episode)["cache_hits"] > 0 for episode in restored)
    run.commit()
    resumed.commit()
    assert json.dumps(run.state_dict()) == json.dumps(resumed.state_dict())


def test_a_file_of_the_cache_is_made_of_recorded_episodes_and_read_back(
    renderer: Renderer, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from practicum.data.store import write_episode

    task = make_task("shop/add-options")
    (episode,) = collect_episodes(renderer, [task], cache=True)
    write_episode(tmp_path / "episodes", episode)
    path = tmp_path / "data" / "cache" / "vac.json"
    action_cache.main([str(tmp_path / "episodes"), str(path)])
    assert f"{len(episode.turns) - 1} actions" in capsys.readouterr().out
    (repeated,) = collect_episodes(renderer, [task], cache=str(path))
    assert sources(repeated)[:-1] == ["cache"] * (len(repeated.turns) - 1)
    path.write_text("[]")
    with pytest.raises(UserError, match="is not an action cache"):
        ActionCache(str(path))


def test_recovery_leaves_a_stuck_worker_and_never_acts_on_progress(renderer: Renderer) -> None:
    """A worker that fills in forms makes progress though the address stays; one that repeats itself is stuck."""
    (episode,) = collect_episodes(renderer, [make_task("shop/buy")], recovery=True)
    assert episode.outcome is Outcome.SUCCESS
    assert set(sources(episode)) == {"worker"}

    def stuck_policy(observation: Observation) -> Action:
        return Action(calls=(parse_action('click("999")'),))

    (stuck,) = collect_episodes(renderer, [make_task("shop/buy")], stuck_policy, recovery=True, max_turns=12)
    assert [source for source in sources(stuck) if source != "worker"][:2] == [
        "recovery_error_reload", "recovery_error_click",
    ]  # fmt: skip
    assert all(turn.spans == () for turn in stuck.turns if turn.source != "policy")
    assert counts(stuck)["recoveries"] == sum(source.startswith("recovery") for source in sources(stuck))

    def idle(observation: Observation) -> Action:
        return Action(calls=(parse_action("noop(1)"),))

    (waiting,) = collect_episodes(renderer, [make_task("shop/buy")], idle, recovery=True, max_turns=6)
    assert sources(waiting)[:4] == ["worker", "worker", "worker", "recovery_no_progress_click"]


def test_recovery_helps_a_worker_that_knows_no_faults_and_costs_nothing_without_them(renderer: Renderer) -> None:
    tasks = [
        make_task(name, seed) for name in ("shop/add-options", "mail/move", "calendar/create") for seed in range(4)
    ]

    def solved(**options: Any) -> list[bool]:
        make = partial(HtmlWebEnvironment, **options)
        engine = ScriptedEngine.of("careless", make(), make_format("web"), renderer)
        agent = Agent(format="web", max_turns=25)
        episodes = _runner.run(run_episodes(plan_attempts(tasks, 1, 0), make, agent, engine, renderer))
        return [episode.outcome is Outcome.SUCCESS for episode in episodes]

    faults = {"error": 0.1, "vanish": 0.1, "popup": 0.1}
    alone, helped = solved(faults=faults), solved(faults=faults, recovery=True)
    assert sum(alone) <= 8
    assert sum(helped) >= 11
    assert all(solved(recovery=True))


def test_an_error_page_is_left_without_a_model(renderer: Renderer) -> None:
    (episode,) = collect_episodes(renderer, [make_task("shop/buy")], recovery=True, faults={"error": 0.3}, max_turns=60)
    assert episode.outcome is Outcome.SUCCESS
    assert "recovery_error_page" in sources(episode)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"manager": "scriptd"}, "Did you mean 'scripted'?"),
        ({"manager": "model", "manager_calls": "often"}, "manager_calls is warm, gate, always, return"),
        ({"macros": True}, "Macros are started by a manager"),
        ({"recovery": "yes"}, "recovery is true or false"),
        ({"cache": True, "fresh": False}, "need fresh=true"),
        ({"cache": 3}, "data/cache/vac.json"),
        ({"wander": -1}, "wander is a number of links"),
    ],
)
def test_wrong_options_are_refused_in_one_sentence(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError) as error:
        WebEnvironment(**options)
    assert message in str(error.value)


def test_the_parts_are_options_of_the_agent_so_that_panels_stay_comparable() -> None:
    options = {"manager": "scripted", "manager_calls": "gate", "cache": True, "macros": True, "recovery": True}
    assert WebEnvironment.split_options({**options, "levels": [1]}) == ({"levels": [1]}, options)
