"""The KV cache without an engine: requests start, continue, diverge and end at random, and all slots are checked."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from practicum.engines.base import Request, Sampling
from practicum.engines.local.kv_cache import BLOCK_TOKENS, KVCache, PrefixCache, block_hashes
from practicum.engines.local.runner import RunningRequest
from practicum.environment import Observation
from practicum.models.decoder import Shape
from practicum.task import Task

SLOTS = 6
KEYS = 128


def keys_of(ids: Sequence[int]) -> Tensor:
    """What stands for the keys of a run: each depends on all that came before it."""
    found, running = [], 1
    for one in ids:
        running = (running * 31 + one) % 65521
        found.append(float(running))
    return torch.tensor(found)


class Simulation:
    """The requests and the KV cache of an engine on a GPU, without a model."""

    def __init__(self, max_bytes: int) -> None:
        self.prefixes = PrefixCache(max_bytes)
        shape = Shape(layers=1, heads=1, kv_heads=1, head_size=1, hidden=1, vocabulary=1, context=16)
        self.kv_cache = KVCache(shape, SLOTS, torch.float32, torch.device("cpu"), self.prefixes)
        self.kv_cache.grow(KEYS)
        self.running: list[RunningRequest] = []

    def request(self, ids: Sequence[int], session: str = "") -> RunningRequest:
        asked = Request(tuple(ids), Sampling(), Task("t", "x", "train"), Observation(), (), session=session)
        made = RunningRequest(asked, None, None, list(ids), 1)  # type: ignore[arg-type]
        made.hashes = block_hashes(asked.ids[:-1])
        made.prefix_match = self.prefixes.match(asked.ids[:-1], session, "", made.hashes)
        return made

    def keys(self, slot: int, num_tokens: int) -> Tensor:
        keys, values = self.kv_cache.layer(0)[:, slot, 0, :num_tokens, 0]
        assert torch.equal(keys, values)
        return keys

    def write(self, slot: int, start: int, values: Tensor) -> None:
        self.kv_cache.layer(0)[:, slot, 0, start : start + len(values), 0] = values

    def start(self, *wave: RunningRequest) -> None:
        self.kv_cache.allocate(wave)
        for one in wave:
            expected = keys_of(one.ids[:-1])
            assert torch.equal(self.keys(one.slot, one.num_cached), expected[: one.num_cached])
            self.write(one.slot, one.num_cached, expected[one.num_cached :])
        self.running += wave
        self.check()

    def decode(self, one: RunningRequest, ids: Sequence[int]) -> None:
        one.ids += ids
        self.write(one.slot, 0, keys_of(one.ids[:-1]))

    def end(self, one: RunningRequest, keep: bool = True) -> None:
        """End a request, which has run on beyond its last token."""
        length = len(one.ids) - 1
        self.write(one.slot, length, torch.full((4,), -1.0))
        if keep:
            self.prefixes.put(tuple(one.ids[:length]), one.slot, one.request.session, "", one.hashes)
        self.kv_cache.free(one.slot)
        self.running.remove(one)
        self.check()

    def grow(self) -> None:
        assert self.kv_cache.grow(self.kv_cache.capacity + 16)
        self.check()

    def check(self) -> None:
        used = [one.slot for one in self.running]
        assert len(set(used)) == len(used)
        assert not set(self.prefixes.resident) & set(used)
        assert {*used, *self.prefixes.resident} <= set(range(SLOTS))
        for one in self.running:
            expected = keys_of(one.ids[:-1])
            assert torch.equal(self.keys(one.slot, len(expected)), expected)
        for slot, entry in self.prefixes.resident.items():
            assert entry.slot == slot
            assert torch.equal(self.keys(slot, len(entry.ids)), keys_of(entry.ids))
        for entry in self.prefixes:
            if entry.kv is not None:
                assert entry.slot is None
                assert torch.equal(entry.kv[0][0, 1, 0, :, 0], keys_of(entry.ids))
        assert self.prefixes.bytes == sum(entry.bytes for entry in self.prefixes) <= self.prefixes.max_bytes


STEM = list(range(2 * BLOCK_TOKENS))


@pytest.fixture
def sim() -> Simulation:
    return Simulation(1 << 20)


def test_the_next_turn_of_a_session_gets_the_same_slot(sim: Simulation) -> None:
    first = sim.request([*STEM, 7], "s")
    sim.start(sim.request([5, 6]), first)
    slot = first.slot
    sim.decode(first, [8, 9])
    sim.end(first)
    assert sim.prefixes.resident.keys() == {slot}
    assert sim.prefixes.bytes == 0
    second = sim.request([*first.ids, 1, 2], "s")
    sim.start(sim.request([3, 3]), second, sim.request([4, 4]))
    assert second.slot == slot
    assert (second.num_cached, second.continues_session) == (len(first.ids) - 1, True)
    assert len(sim.prefixes) == 0


def test_a_prompt_that_diverges_from_the_kept_prefix_gets_the_slot_too(sim: Simulation) -> None:
    first = sim.request([*STEM, 7, 8, 9], "s")
    sim.start(first)
    slot = first.slot
    sim.end(first)
    second = sim.request([*STEM[:20], 1, 2, 3], "s")
    sim.start(second)
    assert (second.slot, second.num_cached) == (slot, 20)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_others_copy_from_a_slot_that_is_taken_over_in_the_same_wave(sim: Simulation, order: Sequence[int]) -> None:
    """Less than the taker keeps, as much and more; a second row of the session copies as well."""
    first = sim.request([*STEM, 7, 8, 9, 1], "s")
    sim.start(first)
    slot = first.slot
    sim.end(first)
    wave = [
        sim.request([*STEM[:24], 5, 5, 5, 5, 5, 5], "s"),
        sim.request([*STEM, 7, 8, 9, 4], "t"),
        sim.request([*STEM[:17], 6, 6, 6, 6, 6, 6]),
        sim.request([*STEM, 7, 8, 9, 3], "s"),
    ]
    wave = [wave[number] for number in order]
    sim.start(*wave)
    assert [row.slot == slot for row in wave].count(True) == 1
    taker = next(row for row in wave if row.slot == slot)
    assert taker.request.session == "s"


def test_slots_with_a_prefix_are_allocated_last_and_the_oldest_first(sim: Simulation) -> None:
    turns = [sim.request([*STEM, number, 1], f"s{number}") for number in range(4)]
    sim.start(*turns)
    slots = [row.slot for row in turns]
    for row in turns:
        sim.end(row)
    sim.request([*STEM, 0, 2], "s0")  # looked for: now the second is the oldest
    sim.start(sim.request([90, 91]), sim.request([92, 93]))
    assert sim.prefixes.resident.keys() == set(slots)
    stranger = sim.request([94, 95])
    sim.start(stranger)
    assert stranger.slot == slots[1]
    assert sim.prefixes.resident.keys() == set(slots) - {slots[1]}
    assert sim.prefixes.bytes > 0
    again = sim.request([*turns[1].ids, 5], "s1")
    assert again.num_cached == 0
    assert again.prefix_match.length == len(turns[1].ids) - 1
    sim.start(again)
    assert again.num_cached == len(turns[1].ids) - 1


def test_an_evicted_prefix_can_be_copied_from_even_if_the_cache_has_no_room_for_it() -> None:
    sim = Simulation(1)
    turns = [sim.request([number, *STEM, 1], f"s{number}") for number in range(SLOTS)]
    sim.start(*turns)
    for row in turns:
        sim.end(row)
    wave = [sim.request([SLOTS - 1 - number, *STEM, 7], f"new{number}") for number in range(SLOTS)]
    sim.start(*wave)
    assert {row.num_cached for row in wave} == {len(STEM) + 1}
    assert len(sim.prefixes) == 0


def test_slots_are_free_again_after_a_session_an_adapter_or_a_version_ends(sim: Simulation) -> None:
    def fill() -> None:
        turns = [sim.request([*STEM, number, 1], f"s{number}") for number in range(3)]
        sim.start(*turns)
        for row in turns:
            sim.end(row)
        assert len(sim.prefixes.resident) == 3

    fill()
    sim.prefixes.end_session("s1")
    assert len(sim.prefixes.resident) == 2
    sim.check()
    sim.prefixes.remove_adapter("")
    assert not sim.prefixes.resident
    fill()
    sim.prefixes.set_version(1)
    assert not sim.prefixes.resident
    sim.check()
    fill()


def test_a_cache_of_zero_bytes_keeps_nothing() -> None:
    sim = Simulation(0)
    row = sim.request([*STEM, 1], "s")
    sim.start(row)
    sim.end(row)
    assert not sim.prefixes.resident
    assert len(sim.prefixes) == 0


@pytest.mark.parametrize("seed", range(20))
def test_random_operations(seed: int) -> None:
    rng = random.Random(seed)
    sim = Simulation(rng.choice([1, 1500, 1 << 20]))
    histories = {f"s{number}": [*STEM[: rng.choice([4, 16, 30])], number] for number in range(rng.choice([4, 9]))}
    slots: dict[str, int] = {}
    stayed = 0
    for _ in range(120):
        operation = rng.random()
        free = SLOTS - len(sim.running)
        if operation < 0.5 and free:
            wave = []
            for _ in range(rng.randint(1, free)):
                session = rng.choice([*histories])
                ids = histories[session]
                if rng.random() < 0.2:
                    ids = ids[: rng.randint(1, len(ids))]
                wave.append(sim.request([*ids, rng.randrange(3), rng.randrange(3)], rng.choice([session, session, ""])))
            sim.start(*wave)
            stayed += sum(slots.get(row.request.session) == row.slot and row.continues_session for row in wave)
        elif operation < 0.9 and sim.running:
            row = rng.choice(sim.running)
            sim.decode(row, [rng.randrange(3) for _ in range(rng.randint(1, 4))])
            session = row.request.session
            if session:
                slots[session] = row.slot
                histories[session] = row.ids[:100] if rng.random() < 0.8 else row.ids[:20]
            sim.end(row, keep=bool(session) and rng.random() < 0.9)
        elif operation < 0.94:
            sim.prefixes.end_session(rng.choice([*histories]))
            sim.check()
        elif operation < 0.95 and not sim.running:
            sim.prefixes.set_version(sim.prefixes.version + 1)
        elif operation < 0.97 and sim.kv_cache.capacity < 200:
            sim.grow()
    assert stayed
