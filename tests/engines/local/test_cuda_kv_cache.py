"""The KV cache of a GPU, without one: requests start, continue, diverge and end at random; all pages are checked."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
import torch
from torch import Tensor

from practicum.engines.base import Request, Sampling
from practicum.engines.local import cuda_kv_cache
from practicum.engines.local.cuda_kv_cache import CudaKVCache, num_pages
from practicum.engines.local.kv_cache import NO_MATCH, KVCacheFull, PrefixCache, block_hashes
from practicum.engines.local.runner import RunningRequest
from practicum.environment import Observation
from practicum.kernels.paged_kv import PAGE_TOKENS
from practicum.models.decoder import Shape
from practicum.task import Task

SLOTS = 6
CONTEXT = 7 * PAGE_TOKENS
STEM = list(range(PAGE_TOKENS + 32))


def keys_of(ids: Sequence[int]) -> Tensor:
    """What stands for the keys of a run: each depends on all that came before it."""
    values, running = [], 1
    for token_id in ids:
        running = (running * 31 + token_id) % 65521
        values.append(float(running))
    return torch.tensor(values)


class Simulation:
    """The requests and the KV cache of an engine on a GPU, without a model."""

    def __init__(self, cache_bytes: int, max_pages: int | None = None) -> None:
        self.prefixes = PrefixCache(cache_bytes)
        shape = Shape(layers=1, heads=1, kv_heads=1, head_size=1, hidden=1, vocabulary=1, context=CONTEXT)
        self.kv_cache = CudaKVCache(shape, SLOTS, torch.float32, torch.device("cpu"), self.prefixes)
        self.kv_cache.max_bytes = None if max_pages is None else max_pages * self.kv_cache.pool.page_bytes
        self.kv_cache.grow(CONTEXT)
        self.running: list[RunningRequest] = []

    def request(self, ids: Sequence[int], session: str = "", max_new_tokens: int = 60) -> RunningRequest:
        sent = Request(tuple(ids), Sampling(), Task("t", "x", "train"), Observation(), (), session=session)
        made = RunningRequest(sent, None, None, list(ids), max_new_tokens)  # type: ignore[arg-type]
        made.hashes = block_hashes(sent.ids[:-1])
        made.prefix_match = self.prefixes.match(sent.ids[:-1], session, "", made.hashes)
        return made

    def pages(self, slot: int) -> list[Tensor]:
        """The pages of a slot as the table has them [2, PAGE_TOKENS]."""
        pool = self.kv_cache.pool
        self.kv_cache.send_table()
        pages = {
            pool.offset((number, index)): chunk[0, index, :, 0, :, 0]
            for number, chunk in enumerate(pool.chunks)
            for index in range(chunk.shape[1])
        }
        return [pages[offset] for offset in self.kv_cache.table[slot].tolist()]

    def keys(self, slot: int, num_tokens: int) -> Tensor:
        keys, values = torch.cat(self.pages(slot), 1)[:, :num_tokens]
        assert torch.equal(keys, values)
        return keys

    def write(self, slot: int, start: int, values: Tensor) -> None:
        pages = self.pages(slot)
        for position, value in enumerate(values.tolist(), start):
            if position < CONTEXT:
                pages[position // PAGE_TOKENS][:, position % PAGE_TOKENS] = value

    def start(self, *wave: RunningRequest) -> None:
        self.kv_cache.allocate(wave)
        for req in wave:
            expected = keys_of(req.ids[:-1])
            assert torch.equal(self.keys(req.slot, req.num_cached), expected[: req.num_cached])
            self.write(req.slot, req.num_cached, expected[req.num_cached :])
        self.running += wave
        self.check()

    def decode(self, req: RunningRequest, ids: Sequence[int]) -> bool:
        """Whether there was room for this many tokens of one request."""
        if not self.kv_cache.reserve_steps(self.running, 4):
            return False
        for other in self.running:
            other.num_scheduled += 4 if other is req else 0
        start = len(req.ids) - 1
        req.ids += ids
        self.write(req.slot, start, keys_of(req.ids[:-1])[start:])
        return True

    def end(self, req: RunningRequest, keep: bool = True) -> None:
        """End a request, which has run on beyond its last token."""
        length = len(req.ids) - 1
        self.write(req.slot, length, torch.full((12,), -1.0))
        if keep:
            ids, session = tuple(req.ids[:length]), req.request.session
            self.prefixes.put(ids, self.kv_cache.extract(req.slot, length), session, "", req.hashes)
        self.kv_cache.release(req.slot)
        self.kv_cache.free(req.slot)
        self.running.remove(req)
        self.check()

    def num_live(self) -> int:
        """Pages that somebody refers to, without that of the padding."""
        return self.kv_cache.pool.size - len(self.kv_cache.pool.free) - 1

    def check(self) -> None:
        used = [req.slot for req in self.running]
        assert len(set(used)) == len(used)
        pool = self.kv_cache.pool
        for req in self.running:
            expected = keys_of(req.ids[:-1])
            assert torch.equal(self.keys(req.slot, len(expected)), expected)
        live_pages = {id(page) for req in self.running for page in self.kv_cache.extract(req.slot, CONTEXT)}
        for entry in self.prefixes:
            values = torch.cat([pool.chunks[page.location[0]][0, page.location[1], 0, 0, :, 0] for page in entry.kv])
            assert torch.equal(values[: len(entry.ids)], keys_of(entry.ids))
            assert len(entry.kv) == num_pages(len(entry.ids))
            live_pages |= {id(page) for page in entry.kv}
        assert self.num_live() == len(live_pages)
        assert self.prefixes.bytes == len({id(page) for entry in self.prefixes for page in entry.kv}) * pool.page_bytes
        assert self.prefixes.bytes <= self.prefixes.max_bytes
        self.kv_cache.send_table()
        for slot in {*range(SLOTS + 1)} - {*used}:  # nothing refers to a page that others may have
            assert not self.kv_cache.table[slot].any()


@pytest.fixture
def sim(monkeypatch: pytest.MonkeyPatch) -> Simulation:
    monkeypatch.setattr(cuda_kv_cache, "CHUNK_BYTES", 1)  # many chunks
    return Simulation(1 << 20)


def test_the_next_turn_of_a_session_has_the_pages_of_the_last(sim: Simulation) -> None:
    first = sim.request([*STEM, 7], "s")
    sim.start(sim.request([5, 6]), first)
    assert sim.decode(first, [8, 9])
    sim.end(first)
    (entry,) = sim.prefixes
    second = sim.request([*first.ids, 1, 2], "s")
    sim.start(sim.request([3, 3]), second, sim.request([4, 4]))
    assert (second.num_cached, second.continues_session) == (len(first.ids) - 1, True)
    pages = sim.kv_cache.extract(second.slot, len(second.ids))
    assert pages[0] is entry.kv[0], "a full page is shared"
    assert pages[1] is not entry.kv[1], "one that is not full is copied"


def test_samples_of_a_prompt_hold_its_full_pages_once(sim: Simulation) -> None:
    prompt = [number % 50 for number in range(5 * PAGE_TOKENS + 10)]
    first = sim.request(prompt)
    sim.start(first)
    sim.prefixes.put(tuple(prompt[:-1]), sim.kv_cache.extract(first.slot, len(prompt) - 1), hashes=first.hashes)
    sim.start(*(sim.request(prompt) for _ in range(SLOTS - 1)))
    assert sim.num_live() == 5 + SLOTS
    for number in range(30):  # each writes behind the prompt in a page of its own
        for req in list(sim.running):
            assert sim.decode(req, [number, req.slot])
        sim.check()


def test_memory_grows_with_tokens_and_chunks_stay_where_they_are(sim: Simulation) -> None:
    sim.start(sim.request([1, 2, 3]))
    first = sim.kv_cache.pool.chunks[0].data_ptr()
    assert sim.kv_cache.num_bytes <= 2 * sim.kv_cache.bytes_of(1)
    sim.start(sim.request(range(6 * PAGE_TOKENS)))
    assert len(sim.kv_cache.pool.chunks) > 1
    assert sim.kv_cache.pool.chunks[0].data_ptr() == first
    for req in list(sim.running):
        sim.end(req, keep=False)
    assert sim.num_live() == 0


def test_cached_prefixes_give_way_to_requests_and_requests_to_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_kv_cache, "CHUNK_BYTES", 1)
    sim = Simulation(1 << 20, max_pages=8)
    turns = [sim.request([number, *STEM], f"s{number}") for number in range(3)]
    sim.start(*turns)
    for req in turns:
        sim.end(req)
    assert (len(sim.prefixes), sim.num_live()) == (3, 6)
    sim.start(sim.request([9] * 150))
    assert len(sim.prefixes) == 2, "the oldest was dropped"
    second = sim.request([8] * 150)
    assert sim.kv_cache.can_admit(sim.running, [], second, 4)
    sim.start(second)
    assert len(sim.prefixes) == 1
    assert not sim.kv_cache.can_admit(sim.running, [], sim.request([7] * 150), 4)
    with pytest.raises(KVCacheFull):
        sim.kv_cache.allocate([sim.request([7] * 200)])
    sim.kv_cache.free_all_but([req.slot for req in sim.running])
    for req in list(sim.running):  # both grow until the last page is taken
        req.max_new_tokens = 250
    while sim.decode(sim.running[0], [1, 2, 3, 4]):
        sim.check()
    assert len(sim.prefixes) == 0
    assert sim.kv_cache.pool.size == 9
    sim.end(sim.running[1], keep=False)
    for _ in range(5):
        assert sim.decode(sim.running[0], [5, 6, 7, 8])
    sim.check()


def test_one_request_alone_may_exceed_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_kv_cache, "CHUNK_BYTES", 1)
    sim = Simulation(1 << 20, max_pages=1)
    req = sim.request(range(3 * PAGE_TOKENS), max_new_tokens=200)
    assert sim.kv_cache.can_admit([], [], req, 4)
    sim.start(req)
    for _ in range(40):
        assert sim.decode(req, [1, 2, 3, 4])
    assert sim.num_live() > 4


def test_a_device_without_memory_is_a_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda_kv_cache, "CHUNK_BYTES", 1)
    sim = Simulation(1 << 20)
    allocate_chunk = cuda_kv_cache.PagePool.allocate_chunk

    def limited(pool: cuda_kv_cache.PagePool) -> Tensor:
        if pool.size + pool.pages_per_chunk > 6:
            raise torch.OutOfMemoryError
        return allocate_chunk(pool)

    monkeypatch.setattr(cuda_kv_cache.PagePool, "allocate_chunk", limited)
    sim.start(sim.request(range(2 * PAGE_TOKENS)), sim.request(range(9, 9 + 2 * PAGE_TOKENS)))
    while sim.decode(sim.running[0], [1, 2, 3, 4]):
        pass
    assert sim.kv_cache.pool.out_of_memory
    assert sim.kv_cache.pool.size <= 6
    sim.check()


@pytest.mark.parametrize(("chunk_pages", "bound"), [(1, 9), (4, 9), (4, 21), (100, 9), (100, 2)])
def test_chunks_fill_a_bound_and_do_not_exceed_it(
    chunk_pages: int, bound: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for a request alone; and the parts of a page in two layers are equally far apart in every chunk."""
    shape = Shape(layers=3, heads=1, kv_heads=2, head_size=8, hidden=8, vocabulary=1, context=CONTEXT)
    pool = cuda_kv_cache.PagePool(shape, torch.float32, torch.device("cpu"))
    monkeypatch.setattr(cuda_kv_cache, "CHUNK_BYTES", chunk_pages * pool.page_bytes)
    while pool.grow(1, bound - pool.size):
        assert pool.size <= bound
    assert pool.size > bound - len(pool.chunks) - (bound % max(1, len(pool.chunks)))
    assert len(pool.free) == len(set(pool.free)) == pool.size
    assert sum(chunk.nbytes for chunk in pool.chunks) == pool.size * pool.page_bytes
    assert pool.grow(1, None)
    for number, chunk in enumerate(pool.chunks):
        for index in range(pool.pages_per_chunk):
            distance = pool.offset((number, index)) * 16 * 4
            for layer in range(3):
                address = pool.chunks[0][layer, 0].data_ptr() + distance
                assert address == chunk[layer, index].data_ptr()


def test_a_device_that_has_little_memory_gets_a_small_first_chunk(monkeypatch: pytest.MonkeyPatch) -> None:
    allocate_chunk = cuda_kv_cache.PagePool.allocate_chunk

    def limited(pool: cuda_kv_cache.PagePool) -> Tensor:
        if pool.pages_per_chunk > 5:
            raise torch.OutOfMemoryError
        return allocate_chunk(pool)

    monkeypatch.setattr(cuda_kv_cache.PagePool, "allocate_chunk", limited)
    shape = Shape(layers=1, heads=1, kv_heads=1, head_size=1, hidden=1, vocabulary=1, context=CONTEXT)
    pool = cuda_kv_cache.PagePool(shape, torch.float32, torch.device("cpu"))
    assert pool.grow(1, 31)
    assert 2 < pool.size <= 5
    assert not pool.out_of_memory


def test_pages_are_free_again_after_a_session_an_adapter_or_a_version_ends(sim: Simulation) -> None:
    def fill() -> None:
        turns = [sim.request([*STEM, number, 1], f"s{number}") for number in range(3)]
        sim.start(*turns)
        for req in turns:
            sim.end(req)
        assert len(sim.prefixes) == 3

    fill()
    before = sim.num_live()
    sim.prefixes.end_session("s1")
    assert sim.num_live() < before
    sim.check()
    sim.prefixes.remove_adapter("")
    assert sim.num_live() == 0
    fill()
    sim.prefixes.set_version(1)
    assert sim.num_live() == 0
    sim.check()
    fill()


def test_a_dropped_prefix_stays_readable_for_a_request_that_has_matched_it(sim: Simulation) -> None:
    first = sim.request([*STEM, 1], "s")
    sim.start(first)
    sim.end(first)
    second = sim.request([*STEM, 1, 2], "s")
    sim.prefixes.end_session("s")
    sim.start(sim.request([4] * 300), second)
    assert second.num_cached == len(STEM)


def test_a_cache_of_zero_bytes_keeps_nothing() -> None:
    sim = Simulation(0)
    req = sim.request([*STEM, 1], "s")
    sim.start(req)
    sim.end(req)
    assert (len(sim.prefixes), sim.num_live()) == (0, 0)


@pytest.mark.parametrize("seed", range(12))
def test_random_operations(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(seed)
    monkeypatch.setattr(cuda_kv_cache, "CHUNK_BYTES", rng.choice([1, 2048]))
    sim = Simulation(rng.choice([1, 6000, 1 << 20]), rng.choice([None, 12, 20]))
    histories = {f"s{number}": [*STEM[: rng.choice([4, 60, 90])], number] for number in range(rng.choice([4, 9]))}
    reused = 0
    for _ in range(100):
        operation = rng.random()
        free = SLOTS - len(sim.running)
        if operation < 0.45 and free:
            wave: list[RunningRequest] = []
            for _ in range(rng.randint(1, free)):
                session = rng.choice([*histories])
                ids = histories[session]
                if rng.random() < 0.2:
                    ids = ids[: rng.randint(1, len(ids))]
                ids = [*ids, rng.randrange(3), rng.randrange(3)]
                req = sim.request(ids, rng.choice([session, session, ""]))
                if sim.kv_cache.can_admit(sim.running, wave, req, 4):
                    wave.append(req)
                else:
                    req.prefix_match = NO_MATCH
            sim.start(*wave)
            reused += sum(req.num_cached for req in wave)
        elif operation < 0.9 and sim.running:
            req = rng.choice(sim.running)
            for _ in range(rng.randint(1, 12)):
                if req.num_scheduled + 4 > req.max_new_tokens:
                    break
                while not sim.decode(req, [rng.randrange(3) for _ in range(rng.randint(1, 4))]):
                    sim.end(next(other for other in sim.running if other is not req), keep=False)
            if session := req.request.session:
                histories[session] = req.ids[:330] if rng.random() < 0.8 else req.ids[:20]
            if rng.random() < 0.7:
                sim.end(req, keep=bool(session) and rng.random() < 0.9)
        elif operation < 0.95:
            sim.prefixes.end_session(rng.choice([*histories]))
            sim.check()
        elif not sim.running:
            sim.prefixes.set_version(sim.prefixes.version + 1)
    assert reused or sim.prefixes.max_bytes == 1
    for req in list(sim.running):
        sim.end(req, keep=False)
    sim.prefixes.set_version(9)
    assert sim.num_live() == 0
