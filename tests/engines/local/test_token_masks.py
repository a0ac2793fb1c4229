"""The thread that computes the masks of a batch's next tokens."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from practicum.engines.local.token_masks import JobThread


def threads_named(name: str) -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == name]


def test_a_job_that_has_begun_lets_its_caller_go_on() -> None:
    thread, order, may_end = JobThread("masks-begun"), list[str](), threading.Event()

    def job(begun: Callable[[], object]) -> None:
        begun()
        assert may_end.wait(10)
        order.append("job")

    thread.start(job).get(timeout=10)
    order.append("caller")
    may_end.set()
    thread.wait()
    assert order == ["caller", "job"]


def test_what_a_job_raises_reaches_who_waits_for_it_once_and_nobody_hangs() -> None:
    thread = JobThread("masks-failing")

    def job(_: Callable[[], object]) -> None:
        raise ValueError("no mask")

    thread.start(job).get(timeout=10)
    with pytest.raises(ValueError, match="no mask"):
        thread.wait()
    thread.wait()
    ran: list[int] = []
    thread.start(lambda begun: ran.append(1))
    thread.wait()
    assert ran == [1]


def test_the_thread_ends_with_its_owner() -> None:
    owner = JobThread("masks-ending")
    assert len(threads_named("masks-ending")) == 1
    del owner
    gc.collect()
    deadline = time.monotonic() + 10
    while threads_named("masks-ending") and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not threads_named("masks-ending")
