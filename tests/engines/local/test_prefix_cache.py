from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from practicum.engines.local.kv_cache import BLOCK_TOKENS, PrefixCache, block_hashes


def kv(length: int) -> tuple[torch.Tensor]:
    return (torch.zeros(1, 2, 1, length, 4),)


STEM = tuple(range(2 * BLOCK_TOKENS))


def test_the_longest_prefix_is_matched_and_may_end_inside_a_block() -> None:
    store = PrefixCache(1 << 20)
    store.put(STEM, kv(len(STEM)))
    longer = (*STEM, *range(500, 500 + BLOCK_TOKENS + 5))
    store.put(longer, kv(len(longer)), "s")
    entry, length = store.match((*longer[:-2], 9, 9))
    assert entry is not None
    assert (entry.session, length) == ("s", len(longer) - 2)
    assert store.match((1, 2, 3))[1] == 0


def test_ending_a_session_keeps_the_prompt_it_shared() -> None:
    store = PrefixCache(1 << 20)
    store.put(STEM, kv(len(STEM)))
    store.put((*STEM, *range(900, 900 + BLOCK_TOKENS)), kv(3 * BLOCK_TOKENS), "s")
    store.end_session("s")
    assert store.match((*STEM, 7))[1] == len(STEM)


def test_a_session_keeps_only_its_newest_entry() -> None:
    store = PrefixCache(1 << 20)
    store.put(STEM, kv(len(STEM)), "s")
    store.put((*STEM, *STEM), kv(2 * len(STEM)), "s")
    assert len(store) == 1


def test_the_budget_holds_and_the_oldest_goes_first() -> None:
    size = kv(len(STEM))[0].nbytes
    store = PrefixCache(2 * size)
    runs = [tuple(range(k, k + len(STEM))) for k in (0, 1000, 2000)]
    store.put(runs[0], kv(len(STEM)))
    store.put(runs[1], kv(len(STEM)))
    store.match(runs[0])  # used again, so the other one is the oldest
    store.put(runs[2], kv(len(STEM)))
    assert store.bytes <= 2 * size
    assert [store.match(run)[1] for run in runs] == [len(STEM), 0, len(STEM)]


def test_a_session_prefers_its_own_prefix() -> None:
    """Another session that shares all complete blocks and ended later must not be preferred."""
    store = PrefixCache(1 << 20)
    first_ids, other = (*STEM, 7, 8, 9), (*STEM, 7, 8, 4)
    store.put(first_ids, kv(len(first_ids)), "mine")
    store.put(other, kv(len(other)), "other")
    entry, length = store.match((*first_ids, 1, 2), "mine")
    assert entry is not None
    assert (entry.session, length) == ("mine", len(first_ids))


def test_a_new_version_empties_the_cache() -> None:
    store = PrefixCache(1 << 20)
    store.put(STEM, kv(len(STEM)))
    store.set_version(1)
    assert store.match(STEM) == (None, 0)
    assert store.bytes == 0


@given(st.lists(st.integers(0, 1), min_size=BLOCK_TOKENS, max_size=40), st.lists(st.integers(0, 1), max_size=40))
def test_a_match_is_as_long_as_what_two_runs_share(ids: list[int], other: list[int]) -> None:
    store = PrefixCache(1 << 20)
    store.put(tuple(ids), kv(len(ids)), "s")
    for query in (other, ids[: len(other)] + other):
        shared = next(
            (n for n, (a, b) in enumerate(zip(ids, query, strict=False)) if a != b), min(len(ids), len(query))
        )
        assert store.match(tuple(query), "s")[1] == shared


@given(st.lists(st.integers(0, 3), max_size=200), st.integers(0, 200), st.sampled_from(["", "a"]))
def test_hashes_continue_from_known_ones(ids: list[int], num_known: int, adapter: str) -> None:
    assert block_hashes(ids, adapter, block_hashes(ids[:num_known], adapter)) == block_hashes(ids, adapter)
