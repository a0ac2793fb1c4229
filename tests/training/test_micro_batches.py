"""Packing: shared beginnings, the causal alignment, and what each token attends to."""

from __future__ import annotations

import itertools
import operator
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from practicum.training.micro_batches import (
    MicroBatch,
    MicroBatchLimits,
    PaddedAttentionPlan,
    Sample,
    build_tree,
    micro_batches,
    pack,
    sort_samples,
)


def sample(ids: list[int], mask: list[int]) -> Sample:
    on = np.array(mask, dtype=np.bool_)
    numbers = np.arange(len(ids), dtype=np.float32)
    return Sample(tuple(ids), on, on.astype(np.float32), numbers, -numbers)


def test_logprob_j_belongs_to_token_j_plus_one() -> None:
    (micro,) = micro_batches([sample([7, 8, 9, 5], [0, 0, 1, 1])], MicroBatchLimits(64))
    assert micro.ids.tolist() == [7, 8, 9]  # the last target is never an input
    assert micro.token_index.tolist() == [1, 2]  # predictions are made at the tokens before
    assert micro.targets.tolist() == [9, 5]
    assert micro.advantages.tolist() == [2.0, 3.0]  # fields are those of the target token
    assert micro.sampling_logprobs.tolist() == [-2.0, -3.0]


def test_a_shared_prefix_is_stored_once() -> None:
    (micro,) = micro_batches(
        [sample([1, 2, 3, 4], [0, 0, 1, 1]), sample([1, 2, 5, 6], [0, 0, 1, 1])], MicroBatchLimits(64)
    )
    assert micro.ids.tolist() == [1, 2, 3, 5]
    assert micro.positions.tolist() == [0, 1, 2, 2]
    assert micro.token_index.tolist() == [1, 2, 1, 3]
    assert seen_by(micro) == [[0], [0, 1], [0, 1, 2], [0, 1, 3]]


def test_the_first_token_cannot_be_trained() -> None:
    with pytest.raises(ValueError, match="first token"):
        sample([1, 2], [1, 0])


def test_samples_without_a_trained_token_are_left_out() -> None:
    assert list(micro_batches([sample([1, 2, 3], [0, 0, 0])], MicroBatchLimits(64))) == []


@st.composite
def sample_lists(draw: st.DrawFn) -> list[Sample]:
    stem = draw(st.lists(st.integers(1, 4), max_size=6))
    results = []
    for _ in range(draw(st.integers(1, 7))):
        length = draw(st.integers(0, len(stem)))
        ids = stem[:length] + draw(st.lists(st.integers(1, 4), min_size=2, max_size=9))
        mask = [0, *draw(st.lists(st.integers(0, 1), min_size=len(ids) - 1, max_size=len(ids) - 1))]
        results.append(sample(ids, mask))
    return results


@given(
    st.lists(st.lists(st.sampled_from([0, 1, 255, 256, 65_535, 65_536, 151_642]), min_size=2, max_size=5), max_size=9)
)
def test_samples_are_sorted_by_their_ids(many: list[list[int]]) -> None:
    batch = sort_samples([sample(ids, [0] * (len(ids) - 1) + [1]) for ids in many])
    assert batch.sample_indices == [
        number for _, number in sorted((ids[:-1], number) for number, ids in enumerate(many))
    ]
    for before, after, shared in zip(batch.inputs, batch.inputs[1:], batch.shared[1:], strict=False):
        common = itertools.takewhile(bool, map(operator.eq, before.tolist(), after.tolist()))
        assert shared == len(list(common))


def test_a_piece_holds_each_sample_s_own_numbers() -> None:
    """Where some bring old log-probs and corrections and others do not, and lengths differ."""
    plain, own = sample([1, 2, 3, 4], [0, 1, 0, 1]), sample([1, 5, 6, 7, 8], [0, 0, 1, 1, 0])
    own = replace(own, old_logprobs=np.full(5, -9, np.float32), corrections=np.full(5, 0.5, np.float32), temperature=2)
    (micro,) = micro_batches([own, plain], MicroBatchLimits(64))
    assert micro.sample_index.tolist() == [1, 1, 0, 0]
    assert micro.targets.tolist() == [2, 4, 6, 7]
    assert micro.advantages.tolist() == [1, 3, 2, 3]
    assert micro.old_logprobs.tolist() == [-1, -3, -9, -9]
    assert micro.corrections.tolist() == [1, 1, 0.5, 0.5]
    assert micro.temperatures.tolist() == [1, 1, 2, 2]


def seen_by(micro: MicroBatch) -> list[list[int]]:
    """The tokens that each token attends to, in order, read as the learner reads the plan."""
    outputs: list[list[int]] = []
    assert isinstance(micro.attention_plan, PaddedAttentionPlan)
    for batch in micro.attention_plan.batches:
        for keys, rows in zip(batch.keys, batch.visible[:, 0], strict=True):
            outputs += [keys[row].tolist() for row in rows]
    return [outputs[index] for index in micro.attention_plan.output_index.tolist()]


@settings(max_examples=300, deadline=None)
@given(sample_lists(), st.integers(8, 60), st.none() | st.integers(1, 4))
def test_every_prediction_appears_once_with_its_own_history(
    samples: list[Sample], budget: int, most: int | None
) -> None:
    results: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for micro in micro_batches(samples, MicroBatchLimits(budget, most)):
        members = set(micro.sample_index.tolist())
        assert len(members) == 1 or len(micro.ids) <= budget
        assert most is None or len(members) <= most
        seen = seen_by(micro)
        for k, node in enumerate(micro.token_index.tolist()):
            assert seen[node][-1] == node
            assert micro.positions[seen[node]].tolist() == list(range(len(seen[node])))
            history = tuple(micro.ids[seen[node]].tolist())
            results.setdefault(int(micro.sample_index[k]), []).append((history, int(micro.targets[k])))
    for index, sample in enumerate(samples):
        expected = [(sample.ids[:t], sample.ids[t]) for t in np.flatnonzero(sample.mask)]
        assert results.get(index, []) == expected


@settings(max_examples=50, deadline=None)
@given(sample_lists(), st.integers(8, 60))
def test_packing_never_needs_more_tokens_than_single_sequences(samples: list[Sample], budget: int) -> None:
    used = sum(len(micro.ids) for micro in micro_batches(samples, MicroBatchLimits(budget)))
    assert used <= sum(int(np.flatnonzero(s.mask)[-1]) for s in samples if s.mask.any())


def test_a_full_piece_is_cut_between_groups() -> None:
    group = [[sample([g, *range(10, 20), n, 1], [0] * 12 + [1]) for n in range(4)] for g in range(3)]
    pieces = pack(
        sort_samples([chain for chains in group for chain in chains]), MicroBatchLimits(35)
    )  # two groups of 11 + 4, and 5 to spare
    assert pieces == [range(8), range(8, 12)]


@settings(max_examples=200, deadline=None)
@given(sample_lists())
def test_a_token_is_seen_by_those_before_its_end(samples: list[Sample]) -> None:
    batch = sort_samples(samples)
    if not batch.sample_indices:
        return
    tree = build_tree(batch.inputs, batch.shared)
    for path in tree.paths:
        own = set(path.tolist())
        for query in path.tolist():
            seen = {key for key in range(query + 1) if query < tree.subtree_ends[key]}
            assert seen == {key for key in own if key <= query}


def test_blocks_attend_to_blocks_that_hold_an_ancestor() -> None:
    begin, first, second = np.arange(70), np.arange(100, 230), np.arange(300, 400)
    plan = build_tree([np.append(begin, first), np.append(begin, second)], [0, 70]).block_plan()
    assert plan.subtree_ends.tolist() == [300] * 70 + [200] * 130 + [300] * 100
    lists = [
        plan.key_blocks[a:b].tolist() for a, b in zip(plan.key_block_offsets, plan.key_block_offsets[1:], strict=False)
    ]
    assert lists == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 3, 4]]
    lists = [
        plan.query_blocks[a:b].tolist()
        for a, b in zip(plan.query_block_offsets, plan.query_block_offsets[1:], strict=False)
    ]
    assert lists == [[0, 1, 2, 3, 4], [1, 2, 3, 4], [2, 3], [3, 4], [4]]


def test_padding_attends_to_itself_only() -> None:
    samples = [sample([1, 2, 3, 4], [0, 0, 1, 1]), sample([1, 2, 5, 6], [0, 0, 1, 1])]
    (micro,) = micro_batches(samples, MicroBatchLimits(64), bucket=8)
    assert micro.ids.tolist() == [1, 2, 3, 5, 0, 0, 0, 0]
    assert seen_by(micro) == [[0], [0, 1], [0, 1, 2], [0, 1, 3], [4], [5], [6], [7]]
    assert micro.token_index.tolist() == [1, 2, 1, 3]
