"""Pairs by ids: one state, the better outcome chosen, each pair once and in one order."""

from __future__ import annotations

import asyncio
import math
import random
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from transformers import PreTrainedTokenizerBase

from practicum.chat.renderer import Renderer
from practicum.environment import Action, Message
from practicum.errors import UserError
from practicum.models import loader
from practicum.task import Task
from practicum.training.dpo import train_dpo
from practicum.training.preference_pairs import MinedPair, fitting_pairs, mine_pairs, pairs_from_rows
from practicum.training.trainable_policy import TrainablePolicy
from practicum.trajectory import ActionSource, Origin, Outcome, Seeds, Span, StopReason, Trajectory, Turn
from tests.training.settings import dpo_settings

Ids = tuple[int, ...]


def make(
    steps: Sequence[tuple[Ids, Ids]], reward: float, attempt: int = 0, task: str = "t", **options: object
) -> Trajectory:
    """An episode of shown and sampled ids."""
    turns = tuple(
        Turn(
            spans=(Span(Origin.TEMPLATE, shown), Span(Origin.SAMPLED, message, tuple(-0.5 for _ in message))),
            restart=index == 0 or bool(options.get("restart")),
            messages=(Message("user", str(shown)),),
            reply=str(message),
            action=Action(str(message)),
            source=ActionSource.POLICY,
            policy_version=0,
            stop_reason=StopReason.END,
            seed=0,
            reward=reward if index + 1 == len(steps) else 0.0,
        )
        for index, (shown, message) in enumerate(steps)
    )
    outcome = Outcome(options.get("outcome", "success" if reward > 0 else "failure"))
    return Trajectory(
        Task(task, "w", "train", {"q": task}), attempt, task, outcome, turns, reward, {}, Seeds(0, attempt)
    )


def judged(pair: MinedPair) -> tuple[Ids, Ids]:
    """The ids that each side is judged by."""
    sides = [tuple(i for i, on in zip(s.ids, s.mask, strict=True) if on) for s in (pair.chosen, pair.rejected)]
    return sides[0], sides[1]


A, B, C = (11, 2), (12, 2), (13, 14, 2)


def test_replies_to_the_same_ids() -> None:
    good = make([((5, 6), A), ((7,), B)], 1.0)
    bad = make([((5, 6), A), ((7,), C)], 0.25, 1)
    (pair,) = mine_pairs([bad, good])
    assert (pair.task, pair.turn, pair.margin) == ("t", 1, 0.75)
    assert pair.chosen.ids == (5, 6, *A, 7, *B)
    assert pair.rejected.ids == (5, 6, *A, 7, *C)
    assert judged(pair) == (B, C)  # the first reply is the same in both, and is not judged
    assert pair.chosen.sampling_logprobs.tolist() == [0, 0, 0, 0, 0, -0.5, -0.5]
    assert pair.pair.chosen is pair.chosen


def test_other_prompts_other_tasks_ties_and_unscored_make_none() -> None:
    good = make([((5, 6), A)], 1.0)
    assert mine_pairs([good, make([((5, 7), B)], 0.0, 1)]) == []
    assert mine_pairs([good, make([((5, 6), B)], 0.0, 1, task="u")]) == []
    assert mine_pairs([good, make([((5, 6), B)], 1.0, 1)]) == []
    assert mine_pairs([good, make([((5, 6), B)], 0.0, 1, outcome="env_error")]) == []
    assert mine_pairs([]) == []


def test_the_same_reply_is_worth_its_mean_and_pairs_come_once() -> None:
    episodes = [
        make([((5,), A)], 1.0, 0),
        make([((5,), A)], 0.0, 1),
        make([((5,), B)], 0.25, 2),
        make([((5,), B)], 0.25, 3),
        make([((5,), C)], 0.0, 4),
    ]
    result = mine_pairs(episodes)
    assert [(judged(p), p.margin) for p in result] == [((A, C), 0.5), ((A, B), 0.25), ((B, C), 0.25)]
    assert [p.margin for p in mine_pairs(episodes, limit_per_task=2)] == [0.5, 0.25]
    for seed in range(3):
        shuffled = random.Random(seed).sample(episodes, len(episodes))
        assert [judged(p) for p in mine_pairs(shuffled)] == [judged(p) for p in result]


def test_whole_trajectories() -> None:
    good = make([((5, 6), A), ((7,), B)], 1.0)
    bad = make([((5, 6), C)], 0.0, 1)
    (pair,) = mine_pairs([bad, good, bad], "trajectory")
    assert judged(pair) == ((*A, *B), C)
    assert pair.chosen.ids == (5, 6, *A, 7, *B)
    rewritten = make([((5, 6), A), ((8,), B)], 1.0, restart=True)
    assert mine_pairs([rewritten, bad], "trajectory") == []


def test_wrong_settings() -> None:
    with pytest.raises(UserError, match="Unknown pairing strategy 'best'. Known: same_state, trajectory"):
        mine_pairs([], "best")
    with pytest.raises(UserError, match="at least 1"):
        mine_pairs([], limit_per_task=0)


def test_mined_pairs_are_learnt() -> None:
    episodes = [make([((5, 6, n), (20 + n, 2))], 1.0, task=f"t{n}") for n in range(4)]
    episodes += [make([((5, 6, n), (40 + n, 2))], 0.0, 1, task=f"t{n}") for n in range(4)]
    pairs = [mined.pair for mined in mine_pairs(episodes)]
    metrics: list[dict[str, float]] = []
    settings = dpo_settings(num_epochs=10, batch_size=4, learning_rate=1e-3, warmup_ratio=0.0)
    policy = TrainablePolicy(loader.load_tiny(0))
    asyncio.run(train_dpo(policy, pairs, settings, on_step=lambda n, values: metrics.append(values)))
    assert metrics[0]["dpo/loss"] == pytest.approx(math.log(2), abs=1e-6)
    assert metrics[-1]["dpo/accuracy"] == 1.0
    assert metrics[-1]["dpo/loss"] < 0.6


def test_a_pair_with_a_side_longer_than_the_window_is_left_out_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    good, bad, long = (
        make([((5,), message)], worth, n) for n, (message, worth) in enumerate(((A, 1.0), (B, 0.5), (C, 0.0)))
    )
    pairs = [mined.pair for mined in mine_pairs([good, bad, long])]
    assert len(pairs) == 3
    (pair,) = fitting_pairs(pairs, 3)
    assert (pair.chosen.ids, pair.rejected.ids) == ((5, *A), (5, *B))
    assert capsys.readouterr().out == ("2 of 3 pairs are longer than the model's window (3 tokens) and are left out.\n")
    assert fitting_pairs(pairs, 4) == pairs
    assert fitting_pairs([], 4) == []
    assert capsys.readouterr().out == ""
    with pytest.raises(UserError, match="nothing is left to learn from"):
        fitting_pairs(pairs, 2)


ROW = {"prompt": "Where?", "chosen": "here", "rejected": "there"}


def test_rows_are_rendered_once(renderer: Renderer) -> None:
    (plain,) = pairs_from_rows([ROW], renderer)
    shown = tuple(i for span in renderer.start((Message("user", "Where?"),)) for i in span.ids)
    assert plain.chosen.ids == (*shown, *renderer.encode_reply("here"))
    assert plain.chosen.mask.tolist() == [False] * len(shown) + [True] * len(renderer.encode_reply("here"))
    assert plain.rejected.ids == (*shown, *renderer.encode_reply("there"))
    text = str(renderer.tokenizer.decode(list(shown), skip_special_tokens=False))
    (rendered,) = pairs_from_rows([{**ROW, "prompt": text}], renderer)
    assert rendered.chosen.ids == plain.chosen.ids
    assert np.array_equal(rendered.chosen.mask, plain.chosen.mask)


def test_a_prompt_of_another_template_is_refused(llama_tokenizer: PreTrainedTokenizerBase, renderer: Renderer) -> None:
    llama = Renderer(llama_tokenizer, "llama-3")
    shown = [i for span in llama.start((Message("user", "Where?"),)) for i in span.ids]
    text = str(llama_tokenizer.decode(shown, skip_special_tokens=False))
    assert len(pairs_from_rows([{**ROW, "prompt": text}], llama)) == 1
    with pytest.raises(UserError, match="'dpo.jsonl', row 1: 'prompt' was rendered under the template 'llama-3'"):
        pairs_from_rows([{**ROW, "prompt": text}], renderer)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chosen": ""}, "'x', row 2: 'chosen' must be a text that is not empty"),
        ({"prompt": None}, "'x', row 2: 'prompt' must be a text"),
        ({"rejected": "here"}, "'x', row 2: 'chosen' and 'rejected' are the same"),
    ],
)
def test_bad_rows_are_named(change: dict[str, object], message: str, renderer: Renderer) -> None:
    with pytest.raises(UserError) as exc_info:
        pairs_from_rows([ROW, {**ROW, **change}], renderer, "x")
    assert message in str(exc_info.value)
    with pytest.raises(UserError, match="row 1 lacks 'rejected'"):
        pairs_from_rows([{"prompt": "p", "chosen": "c"}], renderer)


def test_vocabularies_are_not_mixed() -> None:
    good, bad = make([((5,), A)], 1.0), make([((5,), B)], 0.0, 1)
    foreign = replace(bad, provenance={"tokenizer": "other"})
    for strategy in ("same_state", "trajectory"):
        assert len(mine_pairs([good, bad], strategy)) == 1
        assert mine_pairs([good, foreign], strategy) == []
