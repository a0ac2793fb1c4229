"""Homes without an engine: rows come, go on, diverge and end at random, and whatever lies where is looked at."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from practicum.engines.base import Request, Sampling
from practicum.engines.local.kv_cache import KVSlots
from practicum.engines.local.prefix_cache import BLOCK, PrefixCache, block_hashes
from practicum.engines.local.request import RunningRequest
from practicum.environment import Observation
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


class World:
    """An engine's rows and buffer on a GPU, without a model."""

    def __init__(self, max_bytes: int) -> None:
        self.store = PrefixCache(max_bytes)
        self.homes = KVSlots(SLOTS, self.store)
        self.kv = torch.zeros(1, 2, self.homes.count, 1, KEYS, 1)
        self.rows: list[RunningRequest] = []

    def row(self, ids: Sequence[int], session: str = "") -> RunningRequest:
        asked = Request(tuple(ids), Sampling(), Task("t", "x", "train"), Observation(), (), session=session)
        made = RunningRequest(asked, None, None, list(ids), 1)  # type: ignore[arg-type]
        made.hashes = block_hashes(asked.ids[:-1])
        made.found = self.store.match(asked.ids[:-1], session, "", made.hashes)
        return made

    def let_in(self, *wave: RunningRequest) -> None:
        self.homes.let_in(wave, len(self.rows), self.kv)
        for row in wave:
            home = self.home(row)
            known = keys_of(row.ids[:-1])
            assert torch.equal(self.kv[0, 1, home, 0, : row.cached, 0], known[: row.cached])
            self.kv[:, :, home, :, row.cached : len(known)] = known[row.cached :, None]
        self.rows += wave
        self.check()

    def home(self, row: RunningRequest) -> int:
        return self.homes.of[row.slot]

    def say(self, row: RunningRequest, ids: Sequence[int]) -> None:
        row.ids += ids
        self.kv[:, :, self.home(row), :, : len(row.ids) - 1] = keys_of(row.ids[:-1])[:, None]

    def end(self, row: RunningRequest, keep: bool = True) -> None:
        """It runs on unheard for a while."""
        known, home, last = len(row.ids) - 1, self.home(row), len(self.rows) - 1
        self.kv[:, :, home, :, known : known + 4] = -1
        if keep:
            self.store.put(tuple(row.ids[:known]), home, row.request.session, "", row.hashes)
        self.rows[row.slot], self.rows[last].slot = self.rows[last], row.slot
        self.homes.swap(row.slot, last)
        self.rows.pop()
        self.check()

    def grow(self) -> None:
        larger = torch.zeros(*self.kv.shape[:4], self.kv.shape[4] + 16, 1)
        self.homes.carry(len(self.rows), self.kv, larger)
        self.kv = larger
        self.check()

    def check(self) -> None:
        assert sorted(self.homes.of) == list(range(SLOTS))
        assert set(self.store.resident) <= set(self.homes.of[len(self.rows) :])
        for row in self.rows:
            known = keys_of(row.ids[:-1])
            assert torch.equal(self.kv[0, 0, self.home(row), 0, : len(known), 0], known)
        entries = list(self.store._entries.values())
        assert {entry.home: entry for entry in entries if entry.home is not None} == self.store.resident
        for entry in entries:
            lies = self.kv[:, :, entry.home, :, : len(entry.ids)] if entry.kv is None else entry.kv
            assert torch.equal(lies[0, 1, 0, :, 0], keys_of(entry.ids))
        assert self.store.bytes == sum(entry.bytes for entry in entries) <= self.store.max_bytes


STEM = list(range(2 * BLOCK))


@pytest.fixture
def world() -> World:
    return World(1 << 20)


def test_the_next_turn_takes_the_very_home(world: World) -> None:
    first = world.row([*STEM, 7], "s")
    world.let_in(world.row([5, 6]), first)
    home = world.home(first)
    world.say(first, [8, 9])
    world.end(first)
    assert world.store.resident.keys() == {home}
    assert world.store.bytes == 0
    second = world.row([*first.ids, 1, 2], "s")
    world.let_in(world.row([3, 3]), second, world.row([4, 4]))
    assert world.home(second) == home
    assert (second.cached, second.continues) == (len(first.ids) - 1, True)
    assert len(world.store) == 0


def test_a_prompt_that_leaves_what_was_kept_takes_the_home_too(world: World) -> None:
    first = world.row([*STEM, 7, 8, 9], "s")
    world.let_in(first)
    home = world.home(first)
    world.end(first)
    second = world.row([*STEM[:20], 1, 2, 3], "s")
    world.let_in(second)
    assert (world.home(second), second.cached) == (home, 20)


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (3, 2, 1, 0), (1, 0, 3, 2)])
def test_others_copy_while_it_is_taken_over(world: World, order: Sequence[int]) -> None:
    """Less than the taker keeps, as much and more; a second row of the session copies as well."""
    first = world.row([*STEM, 7, 8, 9, 1], "s")
    world.let_in(first)
    home = world.home(first)
    world.end(first)
    wave = [
        world.row([*STEM[:24], 5, 5, 5, 5, 5, 5], "s"),
        world.row([*STEM, 7, 8, 9, 4], "t"),
        world.row([*STEM[:17], 6, 6, 6, 6, 6, 6]),
        world.row([*STEM, 7, 8, 9, 3], "s"),
    ]
    wave = [wave[number] for number in order]
    world.let_in(*wave)
    assert [world.home(row) == home for row in wave].count(True) == 1
    taker = next(row for row in wave if world.home(row) == home)
    assert taker.request.session == "s"


def test_homes_that_keep_something_are_given_away_last_and_the_oldest_first(world: World) -> None:
    turns = [world.row([*STEM, number, 1], f"s{number}") for number in range(4)]
    world.let_in(*turns)
    homes = [world.home(row) for row in turns]
    for row in turns:
        world.end(row)
    world.row([*STEM, 0, 2], "s0")  # looked for: now the second is the oldest
    world.let_in(world.row([90, 91]), world.row([92, 93]))
    assert world.store.resident.keys() == set(homes)
    stranger = world.row([94, 95])
    world.let_in(stranger)
    assert world.home(stranger) == homes[1]
    assert world.store.resident.keys() == set(homes) - {homes[1]}
    assert world.store.bytes > 0
    again = world.row([*turns[1].ids, 5], "s1")
    assert again.cached == 0
    assert again.found[1] == len(turns[1].ids) - 1
    world.let_in(again)
    assert again.cached == len(turns[1].ids) - 1


def test_what_is_moved_out_may_still_be_copied_from_though_there_is_no_room_for_it() -> None:
    world = World(1)
    turns = [world.row([number, *STEM, 1], f"s{number}") for number in range(SLOTS)]
    world.let_in(*turns)
    for row in turns:
        world.end(row)
    wave = [world.row([SLOTS - 1 - number, *STEM, 7], f"new{number}") for number in range(SLOTS)]
    world.let_in(*wave)
    assert {row.cached for row in wave} == {len(STEM) + 1}
    assert len(world.store) == 0


def test_homes_are_released(world: World) -> None:
    def fill() -> None:
        turns = [world.row([*STEM, number, 1], f"s{number}") for number in range(3)]
        world.let_in(*turns)
        for row in turns:
            world.end(row)
        assert len(world.store.resident) == 3

    fill()
    world.store.end_session("s1")
    assert len(world.store.resident) == 2
    world.check()
    world.store.disown("")
    assert not world.store.resident
    fill()
    world.store.set_version(1)
    assert not world.store.resident
    world.check()
    fill()


def test_nothing_is_kept_where_nothing_may_be() -> None:
    world = World(0)
    row = world.row([*STEM, 1], "s")
    world.let_in(row)
    world.end(row)
    assert not world.store.resident
    assert len(world.store) == 0


@pytest.mark.parametrize("seed", range(20))
def test_at_random(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng.choice([1, 1500, 1 << 20]))
    histories = {f"s{number}": [*STEM[: rng.choice([4, 16, 30])], number] for number in range(rng.choice([4, 9]))}
    homes: dict[str, int] = {}
    stayed = 0
    for _ in range(120):
        what = rng.random()
        free = SLOTS - len(world.rows)
        if what < 0.5 and free:
            wave = []
            for _ in range(rng.randint(1, free)):
                session = rng.choice([*histories])
                ids = histories[session]
                if rng.random() < 0.2:
                    ids = ids[: rng.randint(1, len(ids))]
                wave.append(world.row([*ids, rng.randrange(3), rng.randrange(3)], rng.choice([session, session, ""])))
            world.let_in(*wave)
            stayed += sum(homes.get(row.request.session) == world.home(row) and row.continues for row in wave)
        elif what < 0.9 and world.rows:
            row = rng.choice(world.rows)
            world.say(row, [rng.randrange(3) for _ in range(rng.randint(1, 4))])
            session = row.request.session
            if session:
                homes[session] = world.home(row)
                histories[session] = row.ids[:100] if rng.random() < 0.8 else row.ids[:20]
            world.end(row, keep=bool(session) and rng.random() < 0.9)
        elif what < 0.94:
            world.store.end_session(rng.choice([*histories]))
            world.check()
        elif what < 0.95 and not world.rows:
            world.store.set_version(world.store.version + 1)
        elif what < 0.97 and world.kv.shape[4] < 200:
            world.grow()
    assert stayed
