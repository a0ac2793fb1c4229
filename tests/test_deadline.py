"""Deadlines: they say what was late, and stand still in a queue."""

from __future__ import annotations

import asyncio

import pytest

from practicum.deadline import Deadline, queued


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
