"""Deadlines: they say what was late, and stand still in a queue."""

from __future__ import annotations

import asyncio
import gc
import time
import types
import weakref
from collections.abc import Generator, Iterator
from unittest.mock import patch

import pytest

from practicum.utils.concurrency import Deadline, queued, with_timer


def test_what_is_late_is_named() -> None:
    async def wait() -> None:
        async with Deadline(0.05, "the oracle"):
            await asyncio.sleep(5)

    with pytest.raises(TimeoutError, match="the oracle did not answer within 0.05 s"):
        asyncio.run(wait())


def test_time_in_a_queue_does_not_count_and_time_after_it_does() -> None:
    async def wait(work: float) -> None:
        async with Deadline(0.6, "the oracle"):
            await asyncio.sleep(0.05)
            with queued():
                await asyncio.sleep(0.9)
            await asyncio.sleep(work)

    asyncio.run(wait(0.01))
    with pytest.raises(TimeoutError, match="the oracle"):
        asyncio.run(wait(5.0))


def test_the_clock_goes_on_when_the_last_of_several_is_out_of_the_queue() -> None:
    async def queue(seconds: float) -> None:
        with queued():
            await asyncio.sleep(seconds)

    async def wait() -> None:
        async with Deadline(0.6, "the oracle"):
            await asyncio.gather(queue(0.1), queue(0.9))

    asyncio.run(wait())


def test_without_a_deadline_a_queue_is_just_a_wait() -> None:
    async def wait() -> int:
        with queued():
            await asyncio.sleep(0)
        return 1

    assert asyncio.run(wait()) == 1


def test_what_is_there_at_once_needs_no_timer() -> None:
    async def answer() -> int:
        return 7

    async def ask() -> list[int]:
        with patch.object(asyncio.get_running_loop(), "call_at", side_effect=AssertionError("a timer")):
            return [await Deadline(5, "the oracle").of(answer()), await with_timer(answer(), asyncio.timeout(5))]

    assert asyncio.run(ask()) == [7, 7]


def test_what_has_to_be_waited_for_comes_or_is_late() -> None:
    async def answer(seconds: float) -> int:
        for _ in range(3):
            await asyncio.sleep(seconds)
        return 7

    async def ask(seconds: float) -> int:
        return await Deadline(0.3, "the oracle").of(answer(seconds))

    assert asyncio.run(ask(0.0)) == asyncio.run(ask(0.01)) == 7
    with pytest.raises(TimeoutError, match=r"the oracle did not answer within 0\.3 s"):
        asyncio.run(ask(0.2))


def test_a_future_can_be_waited_for_too() -> None:
    async def ask() -> int:
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        asyncio.get_running_loop().call_later(0.01, future.set_result, 7)
        return await Deadline(5, "the oracle").of(future)

    assert asyncio.run(ask()) == 7


def test_time_before_the_first_wait_counts() -> None:
    async def answer() -> None:
        time.sleep(0.2)
        await asyncio.sleep(0.2)

    async def ask() -> None:
        await Deadline(0.3, "the oracle").of(answer())

    with pytest.raises(TimeoutError, match="the oracle"):
        asyncio.run(ask())


def test_a_queue_that_is_joined_before_the_first_wait_stops_the_clock() -> None:
    async def answer(work: float) -> None:
        with queued():
            await asyncio.sleep(0.5)
        await asyncio.sleep(work)

    async def ask(work: float) -> None:
        await Deadline(0.3, "the oracle").of(answer(work))

    asyncio.run(ask(0.01))
    with pytest.raises(TimeoutError, match="the oracle"):
        asyncio.run(ask(5.0))


def test_a_cancelled_wait_is_cancelled_and_nothing_else() -> None:
    messages = []

    async def answer() -> None:
        try:
            await asyncio.sleep(5)
        except asyncio.CancelledError:
            messages.append("cancelled")
            await asyncio.sleep(0)  # tidying up may wait
            messages.append("tidied")
            raise

    async def ask() -> None:
        waiting = asyncio.create_task(Deadline(3, "the oracle").of(answer()))
        await asyncio.sleep(0.01)
        waiting.cancel()
        await waiting

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(ask())
    assert messages == ["cancelled", "tidied"]


def test_a_fault_is_passed_on_before_and_after_the_first_wait() -> None:
    async def answer(waits: int) -> None:
        for _ in range(waits):
            await asyncio.sleep(0)
        raise TimeoutError("its own")

    async def ask(waits: int) -> None:
        try:
            await Deadline(5, "the oracle").of(answer(waits))
        finally:
            with queued():  # no deadline is in force any more
                await asyncio.sleep(0)

    for waits in range(3):
        with pytest.raises(TimeoutError, match="its own"):
            asyncio.run(ask(waits))


def test_whatever_can_be_awaited_can_be_clocked_and_nothing_else() -> None:
    class Listed:
        def __await__(self) -> Iterator[None]:
            return iter([None, None])

    @types.coroutine
    def old() -> Generator[None, None, int]:
        yield
        return 3

    async def run() -> tuple[object, int]:
        done: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        done.set_result(4)
        assert await with_timer(done, asyncio.timeout(5)) == 4
        return await with_timer(Listed(), asyncio.timeout(5)), await with_timer(old(), asyncio.timeout(5))  # type: ignore[arg-type]

    assert asyncio.run(run()) == (None, 3)

    async def forgotten() -> None:
        await with_timer(3, asyncio.timeout(5))  # type: ignore[arg-type]

    with pytest.raises(TypeError, match="await"):
        asyncio.run(forgotten())


def test_a_deadline_that_has_waited_is_freed_without_the_garbage_collector() -> None:
    async def run() -> weakref.ref[Deadline]:
        deadline = Deadline(1.0, "it")
        await deadline.of(asyncio.sleep(0))
        return weakref.ref(deadline)

    gc.disable()
    try:
        assert asyncio.run(run())() is None
    finally:
        gc.enable()
