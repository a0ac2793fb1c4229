"""Where a model lies and in which precision: a device and a dtype, by their names."""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from practicum.errors import UserError, did_you_mean

DEVICES = ("auto", "cpu", "cuda")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
SHORT = {"fp32": "float32", "bf16": "bfloat16"}
SEQUENCES, SEQUENCES_ON_GPU = 64, 256
"""Replies decoded at once, where nobody says how many."""


@dataclass(frozen=True)
class Device:
    """A device that is there, and the dtype of weights on it. In bfloat16 the learner keeps float32 masters."""

    device: str = "cpu"
    dtype: torch.dtype = torch.float32

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def dtype_name(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def sequences(self) -> int:
        return SEQUENCES_ON_GPU if self.on_gpu else SEQUENCES

    def describe(self) -> str:
        name = f" ({torch.cuda.get_device_name(self.device)})" if self.on_gpu else ""
        return f"{self.device}{name}, {self.dtype_name}"


def find(device: str = "auto", dtype: str = "auto", key: str = "--device", dtype_key: str = "--dtype") -> Device:
    """`auto` is a CUDA GPU where there is one, and bfloat16 on it; else the CPU, and float32.

    `key` and `dtype_key` are what the caller calls the two, for the sentence that says what is wrong.
    """
    number = re.fullmatch(r"cuda:(\d+)", device)
    if number is None and device not in DEVICES:
        raise UserError(
            f"{key}={device} is no device.{did_you_mean(device, DEVICES)} Choose auto, cpu, cuda or cuda:N."
        )
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if device not in ("auto", "cpu") and not there:
        raise UserError(f"{key}={device}, but no CUDA GPU is to be seen here; set it to cpu (or auto).")
    if number is not None and int(number[1]) >= there:
        raise UserError(f"{key}={device}, but the GPUs here are cuda:0 to cuda:{there - 1}; choose one of them.")
    chosen = ("cuda" if there else "cpu") if device == "auto" else device
    wanted = SHORT.get(dtype, dtype)
    if wanted == "auto":
        wanted = "float32" if chosen == "cpu" else "bfloat16"
    if wanted not in DTYPES:
        raise UserError(
            f"{dtype_key}={dtype} is not a dtype of weights.{did_you_mean(dtype, DTYPES)} "
            "Choose auto, float32 or bfloat16."
        )
    return Device(chosen, DTYPES[wanted])


def steady_products(wanted: bool = True) -> None:
    """Whether a row of a bfloat16 product on a GPU comes out the same however many rows there are.

    Where rows are few, cuBLAS likes to split a sum over several programs and to add their parts up, in another order
    than where they are many: engine and learner would round differently. The setting is the whole process's.
    """
    matmul = torch.backends.cuda.matmul
    matmul.allow_bf16_reduced_precision_reduction = (False, False) if wanted else (True, True)
    torch.backends.cuda.preferred_blas_library("cublaslt" if wanted else "default")  # the other cannot be told
