"""Ray started or joined: `RAY_ADDRESS`, a cluster that `ray start` has started on this machine, or a local Ray."""

from __future__ import annotations

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from typing import Any

from practicum.errors import UserError

START_SECONDS = 120.0
"""Seconds in which actors have to be placed."""


def is_installed() -> bool:
    return importlib.util.find_spec("ray") is not None


def check_installed(key: str) -> None:
    """Raise UserError where Ray is not installed; `key` is the setting that needs it."""
    if not is_installed():
        raise UserError(f"{key} needs Ray: pip install 'practicum[ray]'.")


@contextlib.contextmanager
def connected(num_cpus: int) -> Iterator[Any]:
    """Yield the module `ray`, connected; what was started here ends with the block.

    A local Ray has at least `num_cpus` CPUs, however many cores there are: processes on a CPU share its cores.
    """
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    # Otherwise Ray hides the GPUs from a process that asked for none.
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    import ray

    if ray.is_initialized():
        yield ray
        return
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR", "include_dashboard": False}
    try:
        try:
            ray.init(num_cpus=max(num_cpus, os.cpu_count() or 1), **quiet)
        except ValueError:  # a cluster that runs already has a number of its own
            ray.init(log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UserError(f"Ray cannot be reached or started ({_first_line(error)}); see RAY_ADDRESS.") from error
    try:
        yield ray
    finally:
        ray.shutdown()


def check_resources(ray: Any, num_processes: int, on_gpu: bool, what: str) -> None:
    """Raise UserError where the cluster is too small for ever."""
    kind = "GPU" if on_gpu else "CPU"
    total = int(ray.cluster_resources().get(kind, 0))
    if total < num_processes:
        remedy = "; trainer.device=cpu trains on CPUs" if on_gpu and not total else ""
        raise UserError(f"{what} need {num_processes} {kind}s, and the Ray cluster has {total}{remedy}.")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
