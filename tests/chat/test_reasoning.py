"""Reasoning that is kept in the history, or stripped from it, by ids."""

from __future__ import annotations

import asyncio

import pytest

from practicum.agent import Agent
from practicum.chat.renderer import Renderer, strip_reasoning
from practicum.environments.math import MathEnvironment
from practicum.errors import UserError
from practicum.rollout import run_episode
from practicum.trajectory import Origin, Trajectory, plan_attempts
from tests.test_rollout import CALL, TASK, Says


def play(renderer: Renderer, policy: str, *replies: str) -> tuple[Trajectory, Says]:
    engine = Says(renderer, *replies)
    agent = Agent(max_turns=len(replies), thoughts=policy)
    (attempt,) = plan_attempts([TASK], 1, 0)
    return asyncio.run(run_episode(attempt, MathEnvironment, agent, engine, renderer)), engine


THINK = "<think>\n40 less 6, I should\ncalculate.\n</think>\n\n"


def test_the_format_reads_what_follows_the_reasoning(renderer: Renderer) -> None:
    episode, _ = play(renderer, "keep", THINK + CALL, THINK + "34")
    first, second = episode.turns
    assert first.action.calls[0].name == "calculator"
    assert first.action.thought == "40 less 6, I should\ncalculate."
    assert second.action.content == "34"
    assert [turn.restart for turn in episode.turns] == [True, False]


def test_stripped_reasoning_is_trained_once_and_not_shown_again(renderer: Renderer) -> None:
    episode, engine = play(renderer, "strip", THINK + CALL, THINK + CALL, "34")
    assert [turn.restart for turn in episode.turns] == [True, True, True]
    assert "less 6" not in renderer.tokenizer.decode(engine.requests[2].ids)
    assert renderer.tokenizer.decode(engine.requests[2].ids).count("40-6") == 2  # the calls stay
    runs = episode.sequences()
    assert len(runs) == 3
    for run, turn in zip(runs, episode.turns, strict=True):
        sampled = tuple(i for i, on in zip(run.ids, run.sampled, strict=True) if on)
        assert sampled == turn.spans[-1].ids  # only the turn's own reply is trained in its sequence
        assert run.ids == tuple(engine.requests[turn.restart and episode.turns.index(turn)].ids) + sampled


def test_a_history_without_reasoning_goes_on_without_restart(renderer: Renderer) -> None:
    episode, _ = play(renderer, "strip", CALL, THINK + CALL, CALL, "34")
    assert [turn.restart for turn in episode.turns] == [True, False, True, False]


def test_what_stays_are_the_sampled_ids_themselves(renderer: Renderer) -> None:
    ids = renderer.encode_reply(THINK + CALL)
    kept = strip_reasoning(renderer, ids)
    assert ids[-len(kept) :] == kept
    assert renderer.decode(kept).strip() == CALL
    assert strip_reasoning(renderer, renderer.encode_reply(CALL)) == renderer.encode_reply(CALL)


def test_the_prompt_shown_is_the_one_of_a_history_that_never_thought(renderer: Renderer) -> None:
    _, thinking = play(renderer, "strip", THINK + CALL, "34")
    _, plain = play(renderer, "keep", CALL, "34")
    assert renderer.tokenizer.decode(thinking.requests[1].ids) == renderer.tokenizer.decode(plain.requests[1].ids)


def test_unclosed_reasoning_is_no_action(renderer: Renderer) -> None:
    episode, _ = play(renderer, "keep", "<think> so " + CALL, "34")
    assert "needs its </think>" in (episode.turns[0].action.error or "")
    assert not episode.turns[0].action.calls


def test_earlier_replies_are_context(renderer: Renderer) -> None:
    episode, _ = play(renderer, "strip", THINK + CALL, "34")
    origins = {span.origin for span in episode.turns[1].spans[:-1]}
    assert origins == {Origin.TEMPLATE, Origin.OBSERVATION}


def test_an_unknown_policy(renderer: Renderer) -> None:
    with pytest.raises(UserError, match="agent.thoughts 'forget'"):
        play(renderer, "forget", "34")
