"""Groups of requests that share a prefix, and the tensors that a GPU reads of them."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from practicum.engines.base import Request, Sampling
from practicum.engines.local import shared_prefix
from practicum.engines.local.kv_cache import block_hashes
from practicum.engines.local.runner import RunningRequest
from practicum.engines.local.shared_prefix import SharedPrefixGroups, shared_prefix_groups
from practicum.environment import Observation
from practicum.task import Task

LOOP = asyncio.new_event_loop()


def row(ids: Sequence[int], adapter: str = "", slot: int = -1) -> RunningRequest:
    request = Request(tuple(ids), Sampling(), Task("t", "x", "train"), Observation(), (), adapter=adapter)
    hashes = block_hashes(ids[:-1], adapter)
    return RunningRequest(request, LOOP.create_future(), LOOP, list(ids), 5, hashes, slot=slot)


def numbers(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(count)]


def test_samples_of_a_prompt_form_a_group_and_other_prompts_do_not() -> None:
    first, second = numbers(1, 200), numbers(2, 130)
    rows = [row(first), row(second), row(first), row(numbers(3, 300)), row(second), row(first)]
    assert sorted(shared_prefix_groups(rows, 8, 64)) == [(128, [1, 4]), (192, [0, 2, 5])]


def test_a_request_is_grouped_with_those_it_shares_most_with() -> None:
    stem, branch = numbers(1, 128), numbers(2, 70)
    rows = [row([*stem, *numbers(9, 50)]), row([*stem, *branch, 1]), row([*stem, *branch, 2]), row([*stem, 7])]
    assert sorted(shared_prefix_groups(rows, 8, 64)) == [(128, [0, 3]), (192, [1, 2])]


def test_the_last_id_of_a_prompt_is_not_cached_yet() -> None:
    assert shared_prefix_groups([row(numbers(1, 64)), row(numbers(1, 64))], 8, 64) == []
    assert shared_prefix_groups([row(numbers(1, 65)), row(numbers(1, 65))], 8, 64) == [(64, [0, 1])]


def test_requests_of_different_adapters_are_not_grouped() -> None:
    ids = numbers(1, 100)
    rows = [row(ids), row(ids, "a"), row(ids), row(ids, "a"), row(ids, "b")]
    assert sorted(shared_prefix_groups(rows, 8, 64)) == [(64, [0, 2]), (64, [1, 3])]


def test_large_groups_are_split_and_no_group_has_one_member() -> None:
    rows = [row(numbers(1, 100)) for _ in range(9)]
    assert shared_prefix_groups(rows, 4, 64) == [(64, [0, 1, 2, 3]), (64, [4, 5, 6, 7])]


def test_colliding_hashes_group_nobody() -> None:
    rows = [row(numbers(1, 100)), row(numbers(2, 100)), row(numbers(1, 100))]
    rows[1].hashes = list(rows[0].hashes)
    assert shared_prefix_groups(rows, 8, 64) == [(64, [0, 2])]


@given(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=12), st.integers(2, 5))
def test_members_share_the_prefix_of_their_group(paths: list[list[int]], most: int) -> None:
    """Prompts as paths in a tree of blocks of 64 ids."""
    rows = [row([*(i for at, b in enumerate(path) for i in numbers(10 * at + b, 64)), 5]) for path in paths]
    groups = shared_prefix_groups(rows, most, 64)
    grouped = [index for _, members in groups for index in members]
    assert len(grouped) == len(set(grouped))
    for length, members in groups:
        assert 2 <= len(members) <= most
        assert length % 64 == 0
        assert len({rows[index].request.ids[:length] for index in members}) == 1
        assert all(len(rows[index].request.ids) > length for index in members)


def test_the_tensors_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    groups = SharedPrefixGroups(8, 2, 64, 10, torch.device("cpu"))
    ids = numbers(1, 200)
    running = [row(ids, slot=5), row(numbers(2, 200), slot=3), row(ids, slot=1), row(ids, slot=0), row(ids, slot=7)]
    monkeypatch.setattr(shared_prefix, "MIN_JOINT_READ_BYTES", 2 * 192 * 10 + 1)
    assert not groups.update(running)
    assert groups.batch(6).row_lengths.tolist() == [0] * 6
    running = [*running[:4], row(ids, slot=7)]
    monkeypatch.setattr(shared_prefix, "MIN_JOINT_READ_BYTES", 2 * 192 * 10)
    assert groups.update(running)
    batch = groups.batch(6)
    assert batch.members.tolist() == [[0, 2], [3, 4], [-1, -1]]
    assert batch.leaders.tolist() == [5, 0, 0]
    assert batch.lengths.tolist() == [192, 192, 0]
    assert batch.row_lengths.tolist() == [192, 0, 192, 192, 192, 0]
    address = batch.members.data_ptr()
    assert groups.update([running[4], running[0]]) is False  # one pair is left: that does not pay
    monkeypatch.setattr(shared_prefix, "MIN_JOINT_READ_BYTES", 0)
    assert groups.update([running[4], running[0], running[1]])
    assert batch.members.tolist() == [[0, 1], [-1, -1], [-1, -1]]
    assert batch.row_lengths.tolist() == [192, 192, 0, 0, 0, 0]
    assert groups.batch(6).members.data_ptr() == address
