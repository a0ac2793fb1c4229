from __future__ import annotations

import asyncio
import decimal
import subprocess
import sys
import threading
import time

import pytest

from practicum.utils.concurrency import in_thread


def test_many_slow_calls_run_side_by_side() -> None:
    async def run() -> float:
        started = time.monotonic()
        await asyncio.gather(*(in_thread(time.sleep, 0.3) for _ in range(60)))
        return time.monotonic() - started

    assert asyncio.run(run()) < 12  # one after another they take 18


def test_values_and_exceptions_come_back() -> None:
    def fail() -> None:
        raise KeyError("gone")

    with pytest.raises(RuntimeError, match="SystemExit"):
        asyncio.run(in_thread(sys.exit, 3))
    assert asyncio.run(in_thread(lambda a, b: a + b, 1, b=2)) == 3
    with pytest.raises(KeyError, match="gone"):
        asyncio.run(in_thread(fail))


def test_a_call_that_hangs_does_not_keep_the_process_alive() -> None:
    code = (
        "import asyncio, time\nfrom practicum.utils.concurrency import in_thread\n"
        "async def main():\n"
        "    try:\n        await asyncio.wait_for(in_thread(time.sleep, 600), 0.1)\n"
        "    except TimeoutError:\n        print('gave up')\n"
        "asyncio.run(main())\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout == "gave up\n"


def test_a_call_finds_nothing_of_what_another_set() -> None:
    def coarse() -> None:
        decimal.getcontext().prec = 3

    async def run() -> decimal.Decimal:
        await in_thread(coarse)
        return await in_thread(lambda: decimal.Decimal(1) / 3)

    assert len(str(asyncio.run(run()))) > 20


def test_a_thread_that_is_done_takes_a_further_call() -> None:
    async def run() -> set[int]:
        return {await in_thread(threading.get_ident) for _ in range(20)}

    assert len(asyncio.run(run())) < 20


def test_threads_that_nobody_wants_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("practicum.utils.concurrency.IDLE_SECONDS", 0.01)

    before = set(threading.enumerate())  # other tests' calls may still be under way

    def workers() -> int:
        return sum(thread.name == "practicum-worker" for thread in set(threading.enumerate()) - before)

    async def run() -> int:
        results = [
            await in_thread(lambda number=number: number) for number in range(300)
        ]  # they end and begin meanwhile
        assert results == list(range(300))
        many = asyncio.gather(*(in_thread(time.sleep, 0.3) for _ in range(200)))
        await asyncio.sleep(0.1)
        started = workers()
        await many
        return started

    assert asyncio.run(run()) > 0
    limit = time.monotonic() + 30
    while workers() and time.monotonic() < limit:
        time.sleep(0.05)
    assert not workers()
