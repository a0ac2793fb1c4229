"""Workers: processes that answer, fail alone, and always end."""

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
    MAX_CONCURRENT_STARTS,
    WorkerDied,
    WorkerFault,
    WorkerPool,
    WorkerSession,
    close_pools,
    is_starved,
    shared_pool,
)
from practicum.errors import UserError
from practicum.utils.concurrency import Deadline

HOST = "tests.environments.worker_hosts:Counter"


@pytest.fixture
def pool() -> Iterator[WorkerPool]:
    result = WorkerPool(HOST, {"start": 10}, size=2, limit=30.0)
    yield result
    result.close()


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
        sessions = [pool.open_session() for _ in range(6)]
        answers = await asyncio.gather(*(session.call("count", by=n) for n, session in enumerate(sessions)))
        assert [len(worker.sessions) for worker in pool.workers] == [3, 3]
        again = await asyncio.gather(*(session.call("count") for session in sessions))
        for session in sessions:
            session.close()
        assert again == [answer + 1 for answer in answers]
        return answers

    assert asyncio.run(play()) == [10, 11, 12, 13, 14, 15]
    assert pool.ask("sessions") == 0  # closing a session drops its state
    assert len(pool.workers) == 2


def test_an_engines_exception_ends_the_call_and_not_the_process(pool: WorkerPool) -> None:
    async def play() -> None:
        session = pool.open_session()
        await session.call("count")
        with pytest.raises(WorkerFault, match="ValueError: no such thing"):
            await session.call("fail")
        with pytest.raises(UserError, match="Do otherwise."):
            await session.call("refuse")
        with pytest.raises(WorkerFault, match="KeyError: 'unheard'"):
            await session.call("unheard")
        assert await session.call("count") == 12

    asyncio.run(play())


@pytest.mark.parametrize("end", ["kill", "exit", "break", "sicken"])
def test_a_dead_process_ends_only_its_own_episodes(pool: WorkerPool, end: str) -> None:
    async def play() -> None:
        hit, other = pool.open_session(), pool.open_session()
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
        new = pool.open_session()
        assert new.worker is not hit.worker
        assert await new.call("count") == 11

    asyncio.run(play())


def test_pending_calls_get_the_exit_status_and_the_end_of_stderr(pool: WorkerPool) -> None:
    async def play() -> list[BaseException | int]:
        session = pool.open_session()
        return await asyncio.gather(
            session.call("exit"), *(session.call("count") for _ in range(3)), return_exceptions=True
        )

    answers = asyncio.run(play())
    assert all(isinstance(answer, WorkerDied) for answer in answers)
    assert "exit status 7" in str(answers[0])
    assert "last words" in str(answers[3])


def test_a_hung_engine_is_killed(pool: WorkerPool) -> None:
    pool.limit = 1.0

    async def play() -> None:
        session = pool.open_session()
        await session.call("count")
        with pytest.raises(WorkerDied, match="'sleep' took longer than 1 s"):
            await asyncio.wrap_future(session.worker.submit("sleep", {"seconds": 60}))
        assert gone([session.worker.process.pid])

    asyncio.run(play())


def test_an_engine_in_an_endless_loop_is_killed(pool: WorkerPool) -> None:
    pool.limit = 1.0

    async def play() -> None:
        session = pool.open_session()
        await session.call("count")
        with pytest.raises(WorkerDied, match="'spin' took longer than 1 s"):
            await session.worker.call("spin", {"seconds": 60})
        assert gone([session.worker.process.pid])

    asyncio.run(play())


def test_an_engine_short_of_processor_time_is_not_killed() -> None:
    assert is_starved([10.0, 15.0], 120.0)  # five seconds of work in two minutes
    assert not is_starved([10.0, 75.0], 120.0)  # a minute of work: it has had its time
    assert not is_starved([10.0, 10.5], 120.0)  # it waits for something else
    assert is_starved([10.0, 15.0, 20.0], 120.0)
    assert not is_starved([10.0, *(10.0 + 3 * count for count in range(1, 12))], 120.0)  # at most ten times the limit


def test_an_engine_that_cannot_be_made_says_why() -> None:
    pool = WorkerPool(HOST, {"start": -1})

    async def play() -> None:
        with pytest.raises(UserError, match="starts at 0"):
            await pool.open_session().call("count")

    asyncio.run(play())
    pool.close()


def test_close_ends_all_processes(pool: WorkerPool) -> None:
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
    pool, same, other = shared_pool(HOST, {"start": 1}, 1), shared_pool(HOST, {"start": 1}, 1), shared_pool(HOST, {}, 1)
    assert pool is same
    assert pool is not other
    pids = pool.ask("pids")
    close_pools()
    assert gone(pids)


def test_time_in_the_queue_does_not_count_against_a_deadline(pool: WorkerPool) -> None:
    pool.size = 1

    async def in_time(session: WorkerSession) -> int:
        async with Deadline(0.6, "the counter"):
            return int(await session.call("count"))

    async def play() -> list[int]:
        sessions = [pool.open_session() for _ in range(3)]
        await sessions[0].call("count")  # the process is up
        busy = sessions[0].worker.submit("sleep", {"seconds": 1.5})
        answers = await asyncio.gather(*map(in_time, sessions))
        assert busy.done()
        return answers

    assert asyncio.run(play()) == [12, 11, 11]


def test_time_in_the_engine_counts_against_a_deadline(pool: WorkerPool) -> None:
    async def play() -> None:
        session = pool.open_session()
        await session.call("count")
        with pytest.raises(TimeoutError, match="the sleeper did not answer within 0.2 s"):
            async with Deadline(0.2, "the sleeper"):
                await session.worker.call("sleep", {"seconds": 1.0})
        assert await session.call("count") == 12

    asyncio.run(play())


def test_a_call_cancelled_in_the_queue_is_never_executed(pool: WorkerPool) -> None:
    pool.size = 1

    async def play() -> int:
        session = pool.open_session()
        await session.call("count")
        busy = session.worker.submit("sleep", {"seconds": 1.5})
        given_up = asyncio.create_task(session.call("count", by=100))
        await asyncio.sleep(0.1)
        given_up.cancel()
        with pytest.raises(asyncio.CancelledError):
            await given_up
        assert not busy.done()
        return int(await session.call("count"))

    assert asyncio.run(play()) == 12


def test_few_engines_start_at_the_same_time() -> None:
    many = WorkerPool("tests.environments.worker_hosts:Slow", {"seconds": 0.5}, size=MAX_CONCURRENT_STARTS + 2)

    async def play() -> list[list[float]]:
        return list(await asyncio.gather(*(many.open_session().call("made") for _ in range(MAX_CONCURRENT_STARTS + 2))))

    try:
        spans = asyncio.run(play())
    finally:
        many.close()
    for started, _ in spans:
        assert sum(other <= started < end for other, end in spans) <= MAX_CONCURRENT_STARTS


def test_a_call_to_the_pool_does_not_block_the_event_loop(pool: WorkerPool) -> None:
    async def play() -> int:
        ticks = 0
        request = asyncio.create_task(pool.call("sleep", seconds=0.5))
        while not request.done():
            await asyncio.sleep(0.05)
            ticks += 1
        return ticks

    assert asyncio.run(play()) > 5
    assert not any(worker.sessions for worker in pool.workers)
