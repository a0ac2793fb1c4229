"""Loading of a model by name: `tiny`, `tiny-pretrained`, `smollm2`, a Hugging Face folder, a GGUF file, or a hub id;
and its device and dtype, by their names."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from huggingface_hub import try_to_load_from_cache
from safetensors import SafetensorError
from transformers import AutoModelForCausalLM, AutoTokenizer, GenerationConfig, PreTrainedModel, PreTrainedTokenizerBase

from practicum import __version__
from practicum.errors import UserError, did_you_mean
from practicum.models import smollm2, tiny
from practicum.models.quantisation import QUANTISED_DTYPES, config_of_dtype, use_weight_only_int8
from practicum.task import content_hash

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
    quantised: str | None = None
    """`int8` or `nf4` where the weights are quantised; `dtype` is then that of activations."""

    @property
    def on_gpu(self) -> bool:
        return self.device != "cpu"

    @property
    def dtype_name(self) -> str:
        return self.quantised or str(self.dtype).removeprefix("torch.")

    @property
    def quantisation_config(self) -> Any:
        """What `load` takes as `quantised`."""
        return config_of_dtype(self.quantised)

    @property
    def batch_size(self) -> int:
        """Requests decoded at once where the caller does not choose."""
        return GPU_BATCH_SIZE if self.on_gpu else CPU_BATCH_SIZE

    def describe(self) -> str:
        name = f" ({torch.cuda.get_device_name(self.device)})" if self.on_gpu else ""
        return f"{self.device}{name}, {self.dtype_name}"


def resolve_device(
    device: str = "auto", dtype: str = "auto", key: str = "--device", dtype_key: str = "--dtype",
    may_quantise: bool = False,
) -> Device:  # fmt: skip
    """The device and dtype of two names; `auto` is a CUDA GPU in bfloat16 where there is one, else the CPU in float32.

    `key` and `dtype_key` are the caller's names of the two settings, for error messages.
    `may_quantise`: `int8` and `nf4` are dtypes too, for a model that is not trained.
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
    if may_quantise and dtype_name in QUANTISED_DTYPES:
        if chosen == "cpu":
            raise UserError(f"{dtype_key}={dtype} needs a CUDA GPU; leave it out, or choose float32 or bfloat16.")
        return Device(chosen, torch.bfloat16, dtype_name)
    if dtype_name not in DTYPES:
        names = (*DTYPES, *(QUANTISED_DTYPES if may_quantise else ()))
        raise UserError(
            f"{dtype_key}={dtype} is not a dtype of weights.{did_you_mean(dtype, names)} Choose auto, "
            f"{', '.join(names[:-1])} or {names[-1]}."
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


def strict_mkl_branch(cpuinfo: str) -> str | None:
    """The value of MKL_CBWR with which a row of a matrix product is the same however many rows there are; None where
    nothing has to be set.

    On an Intel Xeon with AVX-512 MKL adds up some shapes in another order when there are few rows, which STRICT
    prevents at no cost that was measurable; on an AMD EPYC no shape depended on its rows. `cpuinfo` is /proc/cpuinfo.
    """
    if "GenuineIntel" not in cpuinfo:
        return None
    flags = cpuinfo.split()
    return "AVX512,STRICT" if "avx512f" in flags else "AVX2,STRICT" if "avx2" in flags else None


def set_strict_mkl() -> None:
    """Set MKL_CBWR where the user has not; MKL reads it at its first product."""
    with contextlib.suppress(OSError):  # no Linux
        if (branch := strict_mkl_branch(Path("/proc/cpuinfo").read_text())) is not None:
            os.environ.setdefault("MKL_CBWR", branch)


set_strict_mkl()

ADAPTER_CONFIG = "adapter_config.json"
ADAPTER_SETS = ("target_modules", "exclude_modules", "modules_to_save")
"""Fields of an adapter's configuration that are sets of names."""
BUILDERS = {"tiny": tiny.build, "tiny-pretrained": tiny.build_pretrained, "smollm2": smollm2.build}


@dataclass(frozen=True)
class LoadedModel:
    """A model with its tokenizer and the folder they came from; `adapter` is PEFT's wrapper, where there is one."""

    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    source: str
    adapter: Any = None

    @property
    def end_ids(self) -> tuple[int, ...]:
        """Tokens that the model's own generation settings end a reply with."""
        return _end_ids(self.model.generation_config)


def cache_folder() -> Path:
    """Where built models are kept: $PRACTICUM_CACHE or ~/.cache/practicum."""
    return Path(os.environ.get("PRACTICUM_CACHE") or Path.home() / ".cache" / "practicum").expanduser()


def model_folder(name: str) -> str:
    """The folder (or hub id) of a model name; the built-in ones and those of GGUF files are made on first use."""
    file = Path(name).expanduser() if name.endswith(".gguf") else None
    if file is None and name not in BUILDERS:
        return name
    if file is not None and not file.is_file():
        raise UserError(f"There is no file '{name}'; give a GGUF file, a Hugging Face folder, or OWNER/NAME.")
    folder = cache_folder() / (f"{name}-{__version__}" if file is None else f"{file.stem}-{_content_hash(file)}")
    if not (folder / "config.json").exists():
        try:
            _build(name, file, folder)
        except OSError as error:
            raise UserError(
                f"Model '{name}' cannot be written to the cache '{folder.parent}' ({error.strerror or error}); "
                "name a folder that can be written to in PRACTICUM_CACHE."
            ) from error
    return str(folder)


def _build(name: str, file: Path | None, folder: Path) -> None:
    """Build a model beside `folder` and move it into place: a half-built model is never found."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
        built = Path(scratch) / "model"
        if file is None:
            BUILDERS[name](built)
        else:
            smollm2.convert(file, built)
        try:
            built.replace(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                raise
            if not (folder / "config.json").exists():  # else another process was faster, and may use it already
                folder.replace(Path(scratch) / "incomplete")
                built.replace(folder)


def _content_hash(file: Path) -> str:
    """A name for a file by its content: another file under the same path is another model."""
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()[:16]


def load(name: str, dtype: torch.dtype = torch.float32, device: str = "cpu", quantised: Any = None) -> LoadedModel:
    """Load a model and its tokenizer; dropout off, eager weights, nothing executed from the folder."""
    tokenizer = load_tokenizer(name)
    with _load_errors(name, "its weights do not fit its config.json."):
        model, info = AutoModelForCausalLM.from_pretrained(
            _source(name),
            dtype=dtype,
            use_safetensors=True,
            quantization_config=quantised,
            device_map=None if quantised is None else {"": device},
            output_loading_info=True,
            trust_remote_code=False,  # unset, transformers asks on the terminal whether to run the folder's code
        )
    if missing := sorted(info["missing_keys"]):  # they would be random
        raise UserError(
            f"Model '{name}' cannot be loaded: its files lack {len(missing)} of the weights that its config.json asks "
            f"for ({missing[0]}, ...); copy or save them again."
        )
    if quantised is None:
        model.to(device)
    elif quantised.load_in_8bit:
        use_weight_only_int8(model)
    model.eval()
    return LoadedModel(model, tokenizer, name)


def save(loaded: LoadedModel, folder: Path) -> None:
    """Write a Hugging Face folder (with an adapter, a PEFT folder) that is complete or not there at all."""
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent, prefix=".writing-") as scratch:
            written = Path(scratch) / "model"
            save_weights(loaded, written)
            loaded.tokenizer.save_pretrained(written)
            shutil.rmtree(folder, ignore_errors=True)
            written.replace(folder)
    except (OSError, SafetensorError) as error:
        raise UserError(f"Cannot save the model to '{folder}' ({error}); free some space.") from error


def save_weights(loaded: LoadedModel, folder: Path) -> None:
    """Write the weights as Hugging Face does, or only the adapter as PEFT does; the same files for the same weights."""
    model = loaded.adapter or loaded.model
    if loaded.adapter is None:  # transformers writes on the first rank only; every rank may have a server that reads
        model.should_save_on_this_rank = lambda is_main_process: is_main_process
    model.save_pretrained(folder)
    config = folder / ADAPTER_CONFIG
    if loaded.adapter is None or not config.is_file():
        return
    # PEFT keeps module names in sets, whose order differs from process to process.
    values = json.loads(config.read_text(encoding="utf-8"))
    for name in ADAPTER_SETS:
        if isinstance(values.get(name), list):
            values[name] = sorted(values[name])
    config.write_text(json.dumps(values, indent=2, sort_keys=True), encoding="utf-8")


def load_tiny(seed: int) -> LoadedModel:
    """The tiny model with weights drawn from the given seed."""
    tokenizer = load_tokenizer("tiny")
    return LoadedModel(tiny.build_model(len(tokenizer), seed).eval(), tokenizer, "tiny")


def load_tokenizer(name: str) -> PreTrainedTokenizerBase:
    with _load_errors(name, "the files of its tokenizer are missing or damaged."):
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(_source(name), trust_remote_code=False)
    # The engine checks the window and reports it; not every text that is tokenized goes through the model.
    tokenizer.deprecation_warnings["sequence-length-is-longer-than-the-specified-maximum"] = True
    return tokenizer


def load_end_ids(name: str) -> tuple[int, ...]:
    """Tokens that a model's generation settings end a reply with; the model itself is not loaded."""
    try:
        return _end_ids(GenerationConfig.from_pretrained(_source(name)))
    except OSError:
        return ()  # a model without such settings


def _end_ids(settings: GenerationConfig | None) -> tuple[int, ...]:
    ends = settings.eos_token_id if settings else None
    return () if ends is None else (ends,) if isinstance(ends, int) else tuple(ends)


def tokenizer_hash(tokenizer: PreTrainedTokenizerBase) -> str:
    """A name for a vocabulary by its content: ids of one mean nothing in another."""
    return content_hash(tokenizer.get_vocab())


def _is_path(source: str) -> bool:
    return source.startswith((".", "/", "~")) or Path(source).expanduser().exists()


def _source(name: str) -> str:
    source = model_folder(name)
    if not _is_path(source):
        if "/" not in source:
            raise UserError(
                f"Unknown model '{name}'.{did_you_mean(name, BUILDERS)} "
                "Besides these: a Hugging Face folder, or OWNER/NAME."
            )
        return source
    folder = Path(source).expanduser()
    if not folder.exists():
        raise UserError(f"There is no folder '{name}'; give a model's folder, or a hub id as OWNER/NAME.")
    if not (folder / "config.json").is_file():
        raise UserError(f"'{name}' is not a model folder (no config.json in it); give a Hugging Face folder.")
    return str(folder)


def is_cached(name: str) -> bool:
    """Whether the files of a hub id are on this machine; a name that is no hub id is an error."""
    source = _source(name)
    return _is_path(source) or isinstance(try_to_load_from_cache(source, "config.json"), str)


def first_line(error: Exception, otherwise: str) -> str:
    """The first line of a library's message; `otherwise` where that line only announces the next ones."""
    line = next(iter(str(error).splitlines()), "").rstrip()
    return otherwise if not line or line.endswith(":") else line


@contextlib.contextmanager
def _load_errors(name: str, otherwise: str) -> Iterator[None]:
    """Raise transformers' errors on loading a model as one-sentence errors; `otherwise` where they have no sentence."""
    transformers.utils.logging.disable_progress_bar()
    try:
        yield
    except SafetensorError as error:
        raise UserError(f"The weights of model '{name}' are damaged ({error}); copy or save them again.") from error
    except RuntimeError as error:
        # For weights of other shapes transformers suggests an option of its own, which users here cannot set.
        message = otherwise if "ignore_mismatched_sizes" in str(error) else first_line(error, otherwise)
        raise UserError(f"Model '{name}' cannot be loaded: {message}") from error
    except (OSError, ValueError) as error:
        if "trust_remote_code" in str(error):
            raise UserError(
                f"Model '{name}' needs Python code that comes with its files, and such code is never run; use a model "
                "whose architecture the installed transformers has."
            ) from None
        if _is_path(model_folder(name)):
            raise UserError(f"Model folder '{name}' cannot be loaded: {first_line(error, otherwise)}") from error
        raise UserError(f"Model '{name}' is no folder here, and no hub answered for that id.") from error
