"""The device of a model and the dtype of its weights, by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from practicum.errors import UserError, did_you_mean

DEVICES = ("auto", "cpu", "cuda")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
DTYPE_ALIASES = {"fp32": "float32", "bf16": "bfloat16"}
CPU_BATCH_SIZE, GPU_BATCH_SIZE = 64, 256
"""Requests decoded at once where the caller does not choose."""


@dataclass(frozen=True)
class Device:
    """An available device, and the dtype of weights on it. With bfloat16 the learner keeps float32 master weights."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def batch_size(self) -> int:
        """Requests decoded at once where the caller does not choose."""
        return GPU_BATCH_SIZE if self.on_gpu else CPU_BATCH_SIZE

    def describe(self) -> str:
        name = f" ({torch.cuda.get_device_name(self.device)})" if self.on_gpu else ""
        return f"{self.device}{name}, {self.dtype_name}"


def resolve(device: str = "auto", dtype: str = "auto", key: str = "--device", dtype_key: str = "--dtype") -> Device:
    """The device and dtype of two names; `auto` is a CUDA GPU in bfloat16 where there is one, else the CPU in float32.

    `key` and `dtype_key` are the caller's names of the two settings, for error messages.
    """
    index = re.fullmatch(r"cuda:(\d+)", device)
    if index is None and device not in DEVICES:
        raise UserError(
            f"{key}={device} is no device.{did_you_mean(device, DEVICES)} Choose auto, cpu, cuda or cuda:N."
        )
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device not in ("auto", "cpu") and not count:
        raise UserError(f"{key}={device}, but no CUDA GPU is to be seen here; set it to cpu (or auto).")
    if index is not None and int(index[1]) >= count:
        raise UserError(f"{key}={device}, but the GPUs here are cuda:0 to cuda:{count - 1}; choose one of them.")
    chosen = ("cuda" if count else "cpu") if device == "auto" else device
    dtype_name = DTYPE_ALIASES.get(dtype, dtype)
    if dtype_name == "auto":
        dtype_name = "float32" if chosen == "cpu" else "bfloat16"
    if dtype_name not in DTYPES:
        raise UserError(
            f"{dtype_key}={dtype} is not a dtype of weights.{did_you_mean(dtype, DTYPES)} "
            "Choose auto, float32 or bfloat16."
        )
    return Device(chosen, DTYPES[dtype_name])


def set_batch_invariant_matmul(enabled: bool = True) -> None:
    """Make a row of a bfloat16 matrix product on a GPU the same however many rows there are; sets it for the process.

    With few rows cuBLAS splits a sum over several programs and adds up their parts, in another order than with many
    rows: engine and learner would round differently.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, False) if enabled else (True, True)
    torch.backends.cuda.preferred_blas_library("cublaslt" if enabled else "default")  # the other has no such setting
