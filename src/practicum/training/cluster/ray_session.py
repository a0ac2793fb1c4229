"""Ray started or joined: `RAY_ADDRESS`, a cluster that `ray start` has started on this machine, or a local Ray."""

from __future__ import annotations

import asyncio
import contextlib
import math
import os
import signal
import socket
import threading
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from practicum.errors import UserError

START_SECONDS = 120.0
"""Seconds in which actors have to be placed."""
START_ATTEMPTS = 3
"""Ray gives up where its own processes need more than some seconds to start, as on a machine that is very busy."""
CONNECT_SECONDS = 10.0
"""Seconds for an address of a cluster to answer. Ray itself would go on trying for ten minutes without a word."""

DEFAULTS = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # otherwise Ray hides the GPUs from a process that asked for none
    "RAY_free_objects_period_milliseconds": "50",  # the last weights are gone before the next ones are written
    "RAY_enable_worker_prestart": "0",  # processes that nobody asked for, each of which wakes up 100 times a second
    "RAY_prestart_worker_first_driver": "0",
    "RAY_worker_niceness": "0",  # Ray would give the ranks and workers of a local Ray the least priority
    "RAY_worker_register_timeout_seconds": "300",  # a machine whose cores are all busy is slow, not broken
}
"""Variables that Ray reads, where nobody has set them."""


@contextlib.contextmanager
def connected(num_cpus: int) -> Iterator[Any]:
    """Yield the module `ray`, connected; what was started here ends with the block.

    A local Ray has at least `num_cpus` CPUs, however many cores there are: processes on a CPU share its cores.
    """
    for name, value in DEFAULTS.items():
        os.environ.setdefault(name, value)
    import ray

    if ray.is_initialized():
        yield ray
        return
    address = os.environ.get("RAY_ADDRESS", "")
    check_address(address)
    for attempts_left in reversed(range(1 if address else START_ATTEMPTS)):
        try:
            with sigterm_handler_kept():
                _initialise(ray, num_cpus)
            break
        except Exception as error:  # Ray raises many kinds
            ray.shutdown()
            if not attempts_left:
                reason = f"Ray cannot be reached or started ({_first_line(error)})"
                raise UserError(f"{reason}; see RAY_ADDRESS, or try again.") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_address(address: str) -> None:
    """Raise UserError where nothing answers at the host and port of a cluster's address; others are left to Ray."""
    try:
        parts = urlsplit(address if "://" in address else f"//{address}")
        host, port = parts.hostname, parts.port
    except ValueError:
        return
    if host is None or port is None:
        return
    try:
        socket.create_connection((host, port), CONNECT_SECONDS).close()
    except OSError as error:
        raise UserError(
            f"No Ray cluster answers at RAY_ADDRESS={address} ({error.strerror or error}): start one there with "
            "`ray start --head`, or unset RAY_ADDRESS for a local one."
        ) from None


@contextlib.contextmanager
def sigterm_handler_kept() -> Iterator[None]:
    """Put back the handler of SIGTERM after the block: Ray's own ends the process at once, without a checkpoint."""
    before = signal.getsignal(signal.SIGTERM)
    try:
        yield
    finally:
        if threading.current_thread() is threading.main_thread() and before not in (None, signal.SIG_DFL):
            signal.signal(signal.SIGTERM, before)


def _initialise(ray: Any, num_cpus: int) -> None:
    """Join the cluster that Ray finds, or start a local one."""
    try:
        ray.init(
            num_cpus=max(num_cpus, os.cpu_count() or 1),
            log_to_driver=False,
            logging_level="ERROR",
            include_dashboard=False,
        )
    except ValueError:  # a cluster that runs already has a number of CPUs of its own
        ray.init(log_to_driver=False, logging_level="ERROR")


def check_resources(
    ray: Any, num_processes: int, on_gpu: bool, what: str, cpu_key: str = "trainer.device", share: float = 1
) -> None:
    """Raise UserError where the cluster is too small for ever; `cpu_key` is the key that asks for CPUs, `share` what a
    process takes of a GPU, all of it from one, or how many it takes."""
    kind = "GPU" if on_gpu else "CPU"
    total = int(ray.cluster_resources().get(kind, 0))
    needed = math.ceil(num_processes * share if share >= 1 else num_processes / int(1 / share + 1e-9))
    if total < needed:
        remedy = f"; {cpu_key}=cpu trains on CPUs" if on_gpu and not total else ""
        raise UserError(f"{what} need {needed} {kind}s, and the Ray cluster has {total}{remedy}.")


def as_future(call: Any) -> asyncio.Future[Any]:
    """Return a call of a Ray actor as a future of the running event loop."""
    return asyncio.wrap_future(call.future())


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
