"""HALO's offline bandit: the table, what a reply is paid, and the warning that is due."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from practicum.agent import Agent, RoleSettings
from practicum.chat.renderer import Renderer
from practicum.engines.base import Generation, Request, Sampling
from practicum.environment import Action, Message, ToolCall
from practicum.errors import EngineError, UserError
from practicum.models import loader
from practicum.task import Task
from practicum.training.bandit_source import BanditSource, action_key, single_action_warning, tabulate_actions
from practicum.training.estimators import EstimatorSettings
from practicum.training.logged_source import TrajectoryLog
from practicum.training.rl_trainer import RLTrainer
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn
from tests.training.settings import rl_settings

CALL = '<tool_call>{"name": "calculator", "arguments": {"expression": "%s"}}</tool_call>'


def call(expression: str) -> tuple[str, Action]:
    return CALL % expression, Action(calls=(ToolCall("calculator", {"expression": expression}),))


def text_reply(text: str) -> tuple[str, Action]:
    return text, Action(text, content=text)


def played(
    attempt: int, reward: float, *steps: tuple[str, Action], answers: Sequence[str] = (), progress: float | None = None
) -> Trajectory:
    """An episode of task 'a': the first prompt is the same for all, later ones hold what was said and answered."""
    turns = []
    for number, (text, action) in enumerate(steps):
        shown = (Message("user", "How many?"),) if number == 0 else (Message("tool", answers[number - 1]),)
        prompt = (7, 8, 9) if number == 0 else tuple(map(ord, answers[number - 1]))
        spans = (Span(Origin.OBSERVATION, prompt), Span(Origin.SAMPLED, tuple(map(ord, text))))
        turns.append(
            Turn(spans, number == 0, shown, text, action, ActionSource.POLICY, 0, StopReason.END, 0, progress=progress)
        )
    outcome = Outcome.SUCCESS if reward > 0 else Outcome.FAILURE
    about = {"tools": [{"type": "function"}]}
    return Trajectory(
        Task("a", "math", "train"), attempt, "a", outcome, tuple(turns), reward, {}, Seeds(0, 0), provenance=about
    )


def log_of(*episodes: Trajectory) -> TrajectoryLog:
    return TrajectoryLog(Path("somewhere"), episodes, 0)


GOOD = played(0, 1.0, call("2+3"), text_reply("5"), answers=["5"])
HALF = played(1, 0.5, call("3+2"), text_reply("6"), answers=["5"])
WRONG = played(2, 0.0, call("2*"), text_reply("4"), answers=["Error: cannot read '2*'"])


def test_action_values_equal_a_computation_by_hand() -> None:
    """Every clean action of the best episodes, each worth the furthest that an episode came that took it."""
    states = {state.prompt: state for state in tabulate_actions(log_of(GOOD, HALF, WRONG), 1.0)}
    first = states[7, 8, 9]
    assert first.action_values == {action_key(call("2+3")[1]): 1.0, action_key(call("3+2")[1]): 0.5}  # 2* failed
    assert first.has_tools
    assert len(states) == 3  # after either call another prompt; after the failed one nothing was worth anything
    assert sorted(max(state.action_values.values()) for state in states.values()) == [0.5, 1.0, 1.0]
    best_only = tabulate_actions(log_of(GOOD, HALF, WRONG), 0.2)
    assert [set(state.action_values.values()) for state in best_only] == [{1.0}, {1.0}]


def test_an_action_has_the_largest_progress_of_its_episodes() -> None:
    more, less = (
        played(n, 0.0, call("2+3"), text_reply("5"), answers=["5"], progress=p) for n, p in enumerate((0.7, 0.2))
    )
    states = tabulate_actions(log_of(less, more), 1.0)
    assert {value for state in states for value in state.action_values.values()} == {0.7}


def test_an_empty_table_is_an_error() -> None:
    with pytest.raises(UserError, match="No action below 'somewhere' worked in an episode that came anywhere"):
        tabulate_actions(log_of(WRONG), 0.2)
    with pytest.raises(UserError, match="top_percent"):
        tabulate_actions(log_of(GOOD), 0.0)


def test_the_warning_where_a_state_has_one_action() -> None:
    states = tabulate_actions(log_of(GOOD, HALF), 1.0)
    assert single_action_warning(states) is not None
    assert str(single_action_warning(states)).startswith("2 of 3 logged states have a single action")
    assert single_action_warning([state for state in states if len(state.action_values) > 1]) is None


class Answering:
    """An engine that says what the test wants, one reply a request of a prompt, in turn."""

    name = "answering"

    def __init__(self, renderer: Renderer, replies: Sequence[str], stop: StopReason = StopReason.END) -> None:
        self.renderer, self.rest, self.stop = renderer, iter(replies), stop
        self.prompts: list[tuple[int, ...]] = []
        self.samplings: list[Sampling] = []

    async def generate(self, request: Request) -> Generation:
        self.prompts.append(request.ids)
        self.samplings.append(request.sampling)
        text = next(self.rest)
        if text == "broken":
            raise EngineError("out of order")
        ids = tuple(self.renderer.encode_reply(text))
        return Generation(ids, (-1.0,) * len(ids), self.stop, 0, ActionSource.POLICY)

    def end_session(self, session: str) -> None: ...
    async def update_weights(self, version: int, weights: Any) -> None: ...
    async def close(self) -> None: ...


def rewards(replies: Sequence[str], stop: StopReason = StopReason.END, say: Callable[[str], None] = print) -> Any:
    """What the table pays these replies in the first state of the log, and what they were asked."""
    results: list[Answering] = []

    def engine(renderer: Renderer) -> Answering:
        results.append(Answering(renderer, replies, stop))
        return results[0]

    policy = TrainablePolicy(loader.load_tiny(0), make_engine=engine)
    states = [state for state in tabulate_actions(log_of(GOOD, HALF), 1.0) if state.prompt == (7, 8, 9)]
    settings = rl_settings(total_training_steps=1, train_batch_size=1, num_chains=len(replies), mismatch_limit=99.0)
    agent = Agent(max_turns=2, sampling=Sampling(max_tokens=64))
    trainer = RLTrainer(policy, BanditSource(policy, states, agent, settings, say), settings)
    metrics, episodes = asyncio.run(trainer.step(0))
    return metrics, episodes, results[0]


def test_rewards_of_replies() -> None:
    spaced = CALL.replace(": {", ":{") % "2+3"
    replies = [CALL % "2+3", spaced, CALL % "3+2", CALL % "9*9", "5", "<tool_call>{", "broken"]
    metrics, episodes, engine = rewards(replies)
    # The table's worth however the call is spelt; what the table lacks is 0; what cannot be read is -1.
    assert [e.reward for e in episodes if e.scored] == [1.0, 1.0, 0.5, 0.0, 0.0, -1.0]
    assert [e.outcome.value for e in episodes] == ["success"] * 2 + ["failure"] * 4 + ["engine_error"]
    assert set(engine.prompts) == {(7, 8, 9)}  # the very ids of the log
    assert metrics["bandit/matched"] == pytest.approx(3 / 7)
    assert metrics["actor/grad_norm"] > 0
    assert metrics["rollout/dead_groups"] == 0.0


def test_a_reply_cut_off_by_the_token_limit_is_not_an_answer() -> None:
    _, episodes, _ = rewards(["5", CALL % "2+3"], StopReason.LENGTH)
    assert [e.reward for e in episodes] == [-1.0, 1.0]


def test_greedy_baselines_are_refused() -> None:
    states = tabulate_actions(log_of(GOOD), 1.0)
    settings = rl_settings(adv_estimator="remax", train_batch_size=1)
    with pytest.raises(UserError, match="remax needs whole greedy episodes"):
        BanditSource(TrainablePolicy(loader.load_tiny(0)), states, Agent(), settings)


def test_a_role_replies_with_its_own_engine_format_and_sampling_and_is_paid_by_itself() -> None:
    def of_worker(episode: Trajectory) -> Trajectory:
        return replace(episode, turns=tuple(replace(turn, role="worker") for turn in episode.turns))

    engines: list[Answering] = []

    def engine(renderer: Renderer) -> Answering:
        replies = [] if not engines else ["Thought: add\nAction: calculator\nInput: {}", CALL % "2+3"]
        engines.append(Answering(renderer, replies))
        return engines[-1]

    policy = TrainablePolicy(loader.load_tiny(0), make_engine=engine)
    policy.role_policies["worker"] = TrainablePolicy(loader.load_tiny(1), make_engine=engine)
    log = log_of(of_worker(GOOD), of_worker(HALF))
    states = [state for state in tabulate_actions(log, 1.0, roles=["worker"]) if state.prompt == (7, 8, 9)]
    estimation = EstimatorSettings(train_roles=("worker",), role_credit="own")
    settings = rl_settings(
        total_training_steps=1, train_batch_size=1, num_chains=2, mismatch_limit=99.0, estimation=estimation
    )
    agent = Agent(sampling=Sampling(max_tokens=64), roles={"worker": RoleSettings(temperature=0.7, max_tokens=32)})
    source = BanditSource(policy, states, agent, settings)
    metrics, episodes = asyncio.run(RLTrainer(policy, source, settings).step(0))
    assert engines[0].prompts == []
    assert [(request.temperature, request.max_tokens) for request in engines[1].samplings] == [(0.7, 32)] * 2
    assert [(e.reward, e.turns[0].reward, e.turns[0].temperature) for e in episodes] == [(0, 0, 0.7), (1, 1, 0.7)]
    assert metrics["role/worker/actor/grad_norm"] > 0


def test_a_reply_ends_at_the_stop_strings_of_its_format() -> None:
    results: list[Answering] = []

    def engine(renderer: Renderer) -> Answering:
        results.append(Answering(renderer, ["5", "6"]))
        return results[0]

    policy = TrainablePolicy(loader.load_tiny(0), make_engine=engine)
    settings = rl_settings(total_training_steps=1, train_batch_size=1, num_chains=2, mismatch_limit=99.0)
    states = tabulate_actions(log_of(GOOD), 1.0)[:1]
    asyncio.run(BanditSource(policy, states, Agent(format="react"), settings).collect(0))
    assert [sampling.stop for sampling in results[0].samplings] == [("\nObservation:",)] * 2
