"""Memory and processor time of this process and of the processes that it started, in megabytes (1e6 bytes) and seconds.

psutil reads the numbers. Two things it does not offer are read here: the peak of resident memory since a given moment,
and returning freed memory to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import resource
import sys
from pathlib import Path

import psutil


def descendants(pid: int | None = None) -> list[psutil.Process]:
    """Return the running processes that `pid` (default: this process) started, and those that they started."""
    try:
        return [child for child in psutil.Process(pid).children(recursive=True) if _is_running(child)]
    except psutil.NoSuchProcess:
        return []


def tree_resident_megabytes(pid: int | None = None) -> float:
    """Return the resident memory of a process and its descendants; memory that they share is counted in each."""
    return sum(map(_resident_bytes, _process_tree(pid))) / 1e6


def reset_peak_resident() -> None:
    """Let `peak_resident_megabytes` count from now on, where the kernel supports it."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_resident_megabytes() -> float:
    """Return the highest resident memory of this process since `reset_peak_resident`, or since its start elsewhere."""
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration, ValueError):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception means that there was not enough memory, of the machine or of a GPU."""
    text = str(error).lower()
    return (
        isinstance(error, MemoryError)
        or type(error).__name__ == "OutOfMemoryError"  # torch's, which is not imported for this
        or (isinstance(error, RuntimeError) and ("out of memory" in text or "can't allocate memory" in text))
    )


def out_of_memory_in(error: BaseException) -> BaseException | None:
    """The exception that says so, which may be in a group of exceptions; None where there is none."""
    if isinstance(error, BaseExceptionGroup):
        return next((found for inner in error.exceptions if (found := out_of_memory_in(inner)) is not None), None)
    return error if is_out_of_memory(error) else None


def release_free_memory() -> None:
    """Free what nothing refers to any more, reference cycles included, and return freed memory to the system.

    Objects that `freeze_gc` has excluded from garbage collection are included, and what torch keeps of a GPU for later
    tensors is given back.
    """
    gc.unfreeze()
    gc.collect()
    torch = sys.modules.get("torch")  # nothing is on a GPU where it has not been imported
    if torch is not None and torch.cuda.is_initialized():
        torch.cuda.empty_cache()
    with contextlib.suppress(OSError, AttributeError):  # only glibc has malloc_trim
        ctypes.CDLL(None).malloc_trim(0)


def cpu_seconds() -> float:
    """Return the processor time of this process and of the finished processes that it waited for."""
    times = psutil.Process().cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def tree_cpu_seconds(pid: int) -> float:
    """Return the processor time of a process and its running descendants."""
    return sum(map(_cpu_seconds, _process_tree(pid)))


def _process_tree(pid: int | None) -> list[psutil.Process]:
    try:
        return [psutil.Process(pid), *descendants(pid)]
    except psutil.NoSuchProcess:
        return []


def _is_running(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def _resident_bytes(process: psutil.Process) -> int:
    try:
        return int(process.memory_info().rss)
    except psutil.Error:  # it has ended
        return 0


def _cpu_seconds(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
        return float(times.user + times.system)
    except psutil.Error:  # it has ended
        return 0.0
