"""Workers: processes that answer, fail alone, and never stay behind."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from practicum.environments.worker import (
    STARTS,
    WorkerDied,
    WorkerFault,
    WorkerPool,
    WorkerSession,
    close_pools,
    shared_pool,
)
from practicum.errors import UserError
from practicum.utils.deadline import Deadline

HOST = "tests.environments.worker_hosts:Counter"


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    made = WorkerPool(HOST, {"start": 10}, size=2, limit=30.0)
    yield made
    made.close()


def gone(pids: list[int], seconds: float = 60.0) -> bool:
    """Whether the processes end in time; one that ended and waits to be collected by its parent counts as not gone."""
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        if not any(os.path.exists(f"/proc/{pid}") for pid in pids):
            return True
        time.sleep(0.02)
    return False


def test_episodes_share_a_process_and_not_their_state(pool: WorkerPool) -> None:
    async def play() -> list[int]:
        seats = [pool.seat() for _ in range(6)]
        answers = await asyncio.gather(*(seat.call("count", by=n) for n, seat in enumerate(seats)))
        assert [len(worker.seats) for worker in pool.workers] == [3, 3]
        again = await asyncio.gather(*(seat.call("count") for seat in seats))
        for seat in seats:
            seat.leave()
        assert again == [answer + 1 for answer in answers]
        return answers

    assert asyncio.run(play()) == [10, 11, 12, 13, 14, 15]
    assert pool.ask("seats") == 0  # what an episode held is dropped when it leaves
    assert len(pool.workers) == 2


def test_an_engines_exception_ends_the_call_and_not_the_process(pool: WorkerPool) -> None:
    async def play() -> None:
        seat = pool.seat()
        await seat.call("count")
        with pytest.raises(WorkerFault, match="ValueError: no such thing"):
            await seat.call("fail")
        with pytest.raises(UserError, match="Do otherwise."):
            await seat.call("refuse")
        with pytest.raises(WorkerFault, match="KeyError: 'unheard'"):
            await seat.call("unheard")
        assert await seat.call("count") == 12

    asyncio.run(play())


@pytest.mark.parametrize("end", ["kill", "exit", "break", "sicken"])
def test_a_dead_process_costs_only_its_own_episodes(pool: WorkerPool, end: str) -> None:
    async def play() -> None:
        hit, other = pool.seat(), pool.seat()
        await hit.call("count")
        await other.call("count")
        if end == "kill":
            os.kill(hit.worker.process.pid, signal.SIGKILL)
        elif end == "sicken":  # the engine's own process ended while nobody asked
            await hit.call("sicken")
            deadline = time.monotonic() + 60
            while hit.alive and time.monotonic() < deadline:
                await asyncio.sleep(0.05)
        else:
            with pytest.raises(WorkerDied, match="exit status"):
                await hit.call(end)
        with pytest.raises(WorkerDied, match="the process of Counter is gone"):
            await hit.call("count")
        assert await other.call("count") == 12
        new = pool.seat()
        assert new.worker is not hit.worker
        assert await new.call("count") == 11

    asyncio.run(play())


def test_those_who_wait_hear_of_the_end_and_its_last_words(pool: WorkerPool) -> None:
    async def play() -> list[BaseException | int]:
        seat = pool.seat()
        return await asyncio.gather(seat.call("exit"), *(seat.call("count") for _ in range(3)), return_exceptions=True)

    answers = asyncio.run(play())
    assert all(isinstance(answer, WorkerDied) for answer in answers)
    assert "exit status 7" in str(answers[0])
    assert "last words" in str(answers[3])


def test_a_hung_engine_is_killed(pool: WorkerPool) -> None:
    pool.limit = 1.0

    async def play() -> None:
        seat = pool.seat()
        await seat.call("count")
        with pytest.raises(WorkerDied, match="'sleep' took longer than 1 s"):
            await asyncio.wrap_future(seat.worker.submit("sleep", {"seconds": 60}))
        assert gone([seat.worker.process.pid])

    asyncio.run(play())


def test_an_engine_that_computes_for_ever_is_killed_too(pool: WorkerPool) -> None:
    pool.limit = 1.0

    async def play() -> None:
        seat = pool.seat()
        await seat.call("count")
        with pytest.raises(WorkerDied, match="'spin' took longer than 1 s"):
            await seat.worker.call("spin", {"seconds": 60})
        assert gone([seat.worker.process.pid])

    asyncio.run(play())


def test_an_engine_that_the_machine_has_no_time_for_is_not(pool: WorkerPool) -> None:
    worker = pool.seat().worker
    worker.limit = 120.0
    assert worker._starved([10.0, 15.0])  # five seconds of work in two minutes: it is being kept waiting
    assert not worker._starved([10.0, 75.0])  # a minute of work: it has had its time
    assert not worker._starved([10.0, 10.5])  # it waits for something else
    assert worker._starved([10.0, 15.0, 20.0])
    assert not worker._starved([10.0, *(10.0 + 3 * turn for turn in range(1, 12))])  # there is an end to patience


def test_an_engine_that_cannot_be_made_says_why() -> None:
    pool = WorkerPool(HOST, {"start": -1})

    async def play() -> None:
        with pytest.raises(UserError, match="starts at 0"):
            await pool.seat().call("count")

    asyncio.run(play())
    pool.close()


def test_closing_leaves_no_process_behind(pool: WorkerPool) -> None:
    pids = pool.ask("pids")
    assert not gone(pids, 0.1)
    pool.close()
    assert gone(pids)


def test_workers_end_with_a_parent_that_is_killed() -> None:
    program = (
        "import sys\n"
        "from practicum.environments.worker import WorkerPool\n"
        f"pool = WorkerPool({HOST!r}, {{}})\n"
        "print(*pool.ask('pids'), flush=True)\n"
        "pool.workers[0].submit('sleep', {'seconds': 60})\n"
        "sys.stdin.read()\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    worker, child = map(int, parent.stdout.readline().split())
    parent.kill()
    parent.communicate()
    try:
        assert gone([worker])
    finally:
        os.kill(child, signal.SIGKILL)  # the test engine's own child has nothing that tells it of the end


def test_pools_of_one_kind_are_shared() -> None:
    one, same, other = shared_pool(HOST, {"start": 1}, 1), shared_pool(HOST, {"start": 1}, 1), shared_pool(HOST, {}, 1)
    assert one is same
    assert one is not other
    pids = one.ask("pids")
    close_pools()
    assert gone(pids)


def test_waiting_for_a_turn_does_not_count_against_a_deadline(pool: WorkerPool) -> None:
    pool.size = 1

    async def in_time(seat: WorkerSession) -> int:
        async with Deadline(0.6, "the counter"):
            return int(await seat.call("count"))

    async def play() -> list[int]:
        seats = [pool.seat() for _ in range(3)]
        await seats[0].call("count")  # the process is up
        busy = seats[0].worker.submit("sleep", {"seconds": 1.5})
        answers = await asyncio.gather(*map(in_time, seats))
        assert busy.done()
        return answers

    assert asyncio.run(play()) == [12, 11, 11]


def test_the_work_itself_does(pool: WorkerPool) -> None:
    async def play() -> None:
        seat = pool.seat()
        await seat.call("count")
        with pytest.raises(TimeoutError, match="the sleeper did not answer within 0.2 s"):
            async with Deadline(0.2, "the sleeper"):
                await seat.worker.call("sleep", {"seconds": 1.0})
        assert await seat.call("count") == 12

    asyncio.run(play())


def test_what_is_given_up_before_its_turn_is_never_done(pool: WorkerPool) -> None:
    pool.size = 1

    async def play() -> int:
        seat = pool.seat()
        await seat.call("count")
        busy = seat.worker.submit("sleep", {"seconds": 1.5})
        given_up = asyncio.create_task(seat.call("count", by=100))
        await asyncio.sleep(0.1)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert not busy.done()
        return int(await seat.call("count"))

    assert asyncio.run(play()) == 12


def test_engines_are_made_a_few_at_a_time() -> None:
    many = WorkerPool("tests.environments.worker_hosts:Slow", {"seconds": 0.5}, size=STARTS + 2)

    async def play() -> list[list[float]]:
        return list(await asyncio.gather(*(many.seat().call("made") for _ in range(STARTS + 2))))

    try:
        spans = asyncio.run(play())
    finally:
        many.close()
    for begun, _ in spans:
        assert sum(other <= begun < end for other, end in spans) <= STARTS


def test_a_question_to_the_pool_leaves_the_event_loop_free(pool: WorkerPool) -> None:
    async def play() -> int:
        ticks = 0
        asked = asyncio.create_task(pool.call("sleep", seconds=0.5))
        while not asked.done():
            await asyncio.sleep(0.05)
            ticks += 1
        return ticks

    assert asyncio.run(play()) > 5
    assert not any(worker.seats for worker in pool.workers)
