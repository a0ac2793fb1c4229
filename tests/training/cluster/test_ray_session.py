"""Ray is joined or started: what is checked before, and what a process keeps."""

from __future__ import annotations

import signal
import socket
import threading
import time
from types import FrameType

import pytest

from practicum.errors import UserError
from practicum.training.cluster import ray_session


@pytest.fixture
def closed_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


@pytest.mark.parametrize("scheme", ["", "ray://"])
def test_an_address_where_nothing_answers_is_one_sentence_at_once(scheme: str, closed_port: int) -> None:
    started = time.monotonic()
    with pytest.raises(UserError, match=rf"No Ray cluster answers at RAY_ADDRESS={scheme}127.0.0.1:{closed_port} \("):
        ray_session.check_address(f"{scheme}127.0.0.1:{closed_port}")
    assert time.monotonic() - started < ray_session.CONNECT_SECONDS


@pytest.mark.parametrize("address", ["", "auto", "local", "foo", "ray://host", "host:abc"])
def test_addresses_without_a_port_are_left_to_ray(address: str) -> None:
    ray_session.check_address(address)


def test_an_address_that_answers() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        ray_session.check_address(f"127.0.0.1:{server.getsockname()[1]}")


def own_handler(number: int, frame: FrameType | None) -> None:
    """Stands for the handler with which a run ends after the step."""


def rays_handler(number: int, frame: FrameType | None) -> None:
    raise SystemExit(15)


def test_ray_does_not_replace_the_handler_of_sigterm() -> None:
    before = signal.signal(signal.SIGTERM, own_handler)
    try:
        with ray_session.sigterm_handler_kept():
            signal.signal(signal.SIGTERM, rays_handler)
        assert signal.getsignal(signal.SIGTERM) is own_handler
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        with ray_session.sigterm_handler_kept():
            signal.signal(signal.SIGTERM, rays_handler)
        assert signal.getsignal(signal.SIGTERM) is rays_handler, "a process without a handler ends as Ray wants it to"
    finally:
        signal.signal(signal.SIGTERM, before)


def test_in_another_thread_no_handler_is_set() -> None:
    errors: list[BaseException] = []

    def run() -> None:
        try:
            with ray_session.sigterm_handler_kept():
                pass
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert not errors
