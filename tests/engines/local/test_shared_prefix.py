"""Which rows stand together, and what a GPU is told of it."""

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
from practicum.engines.local.prefix_cache import block_hashes
from practicum.engines.local.request import RunningRequest
from practicum.engines.local.shared_prefix import SharedPrefixGroups, shared_prefix_groups
from practicum.environment import Observation
from practicum.task import Task

LOOP = asyncio.new_event_loop()


def row(ids: Sequence[int], adapter: str = "") -> RunningRequest:
    asked = Request(tuple(ids), Sampling(), Task("t", "x", "train"), Observation(), (), adapter=adapter)
    return RunningRequest(asked, LOOP.create_future(), LOOP, list(ids), 5, block_hashes(ids[:-1], adapter))


def numbers(seed: int, count: int) -> list[int]:
    rng = random.Random(seed)
    return [rng.randrange(1000) for _ in range(count)]


def test_chains_of_a_prompt_stand_together_and_a_stranger_alone() -> None:
    first, second = numbers(1, 200), numbers(2, 130)
    rows = [row(first), row(second), row(first), row(numbers(3, 300)), row(second), row(first)]
    assert sorted(shared_prefix_groups(rows, 8, 64)) == [(128, [1, 4]), (192, [0, 2, 5])]


def test_a_row_stands_with_those_it_shares_most_with() -> None:
    stem, branch = numbers(1, 128), numbers(2, 70)
    rows = [row([*stem, *numbers(9, 50)]), row([*stem, *branch, 1]), row([*stem, *branch, 2]), row([*stem, 7])]
    assert sorted(shared_prefix_groups(rows, 8, 64)) == [(128, [0, 3]), (192, [1, 2])]


def test_the_last_id_of_a_prompt_is_not_cached_yet() -> None:
    assert shared_prefix_groups([row(numbers(1, 64)), row(numbers(1, 64))], 8, 64) == []
    assert shared_prefix_groups([row(numbers(1, 65)), row(numbers(1, 65))], 8, 64) == [(64, [0, 1])]


def test_an_adapter_stands_with_its_own() -> None:
    ids = numbers(1, 100)
    rows = [row(ids), row(ids, "a"), row(ids), row(ids, "a"), row(ids, "b")]
    assert sorted(shared_prefix_groups(rows, 8, 64)) == [(64, [0, 2]), (64, [1, 3])]


def test_many_are_cut_up_and_nobody_is_a_crew_alone() -> None:
    rows = [row(numbers(1, 100)) for _ in range(9)]
    assert shared_prefix_groups(rows, 4, 64) == [(64, [0, 1, 2, 3]), (64, [4, 5, 6, 7])]


def test_hashes_that_lie_bring_nobody_together() -> None:
    rows = [row(numbers(1, 100)), row(numbers(2, 100)), row(numbers(1, 100))]
    rows[1].hashes = list(rows[0].hashes)
    assert shared_prefix_groups(rows, 8, 64) == [(64, [0, 2])]


@given(st.lists(st.lists(st.integers(0, 1), max_size=4), min_size=1, max_size=12), st.integers(2, 5))
def test_a_crew_has_in_common_what_it_says(paths: list[list[int]], most: int) -> None:
    """Prompts as paths in a tree of blocks of 64 ids."""
    rows = [row([*(i for at, b in enumerate(path) for i in numbers(10 * at + b, 64)), 5]) for path in paths]
    found = shared_prefix_groups(rows, most, 64)
    everybody = [number for _, crew in found for number in crew]
    assert len(everybody) == len(set(everybody))
    for common, crew in found:
        assert 2 <= len(crew) <= most
        assert common % 64 == 0
        assert len({rows[number].request.ids[:common] for number in crew}) == 1
        assert all(len(rows[number].request.ids) > common for number in crew)


def test_what_the_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    standing = SharedPrefixGroups(8, 2, 64, 10, torch.device("cpu"))
    ids, homes = numbers(1, 200), [5, 3, 1, 0, 7, 2, 4, 6]
    rows = [row(ids), row(numbers(2, 200)), row(ids), row(ids), row(ids)]
    monkeypatch.setattr(shared_prefix, "PAYS", 2 * 192 * 10 + 1)
    assert not standing.gather(rows, homes)
    assert standing.of(6).of_rows.tolist() == [0] * 6  # it is not even worth one place to read from
    rows = list(rows)
    rows.pop()
    rows.append(row(ids))
    monkeypatch.setattr(shared_prefix, "PAYS", 2 * 192 * 10)
    assert standing.gather(rows, homes)
    told = standing.of(6)
    assert told.members.tolist() == [[0, 2], [3, 4], [-1, -1]]
    assert told.leads.tolist() == [5, 0, 0]
    assert told.commons.tolist() == [192, 192, 0]
    assert told.of_rows.tolist() == [192, 0, 192, 192, 192, 0]
    assert told.leads_of_rows.tolist() == [5, 0, 5, 0, 0, 0]
    before = told.members.data_ptr()
    assert standing.gather([rows[4], rows[0]], homes) is False  # one is left: that does not pay
    assert told.of_rows.tolist() == [0] * 6
    monkeypatch.setattr(shared_prefix, "LEADS", 192 * 10)
    assert standing.gather([rows[0], rows[4]], homes) is False
    assert told.of_rows.tolist() == [192, 192, 0, 0, 0, 0]
    assert told.leads_of_rows.tolist() == [5, 5, 0, 0, 0, 0]
    monkeypatch.setattr(shared_prefix, "PAYS", 0)
    assert standing.gather([rows[4], rows[0], rows[1]], homes)
    assert told.members.tolist() == [[0, 1], [-1, -1], [-1, -1]]
    assert told.of_rows.tolist() == [192, 192, 0, 0, 0, 0]
    assert standing.of(6).members.data_ptr() == before
