"""The folder of a run on disk: its lock, files that are written whole or not at all, its checkpoints, its models.

`FolderLock` lets one process write to a folder. The lock is on the folder itself (`flock`), so no file of it is left
behind, and the kernel releases it however the process ends. File systems without such locks, some network ones among
them, are used without.

The folders `global_step_N` are checkpoints. `manifest.json` holds the SHA-256 of every file of one; a checkpoint that
was torn or edited no longer fits its manifest, and the one before it is used.

`resolve_model` finds a model by name, the same for every command: a built-in or hub name, a model folder, an adapter, a
checkpoint, or the last stage in a run's folder.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from practicum.errors import UserError

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedTokenizerBase

    from practicum.models.loader import LoadedModel


METRICS, TIMING = "metrics.jsonl", "timing.jsonl"
MODEL, LAST = "model", "last"
"""Folders of a run: the best model by validation (the last where nothing was validated), and the last model."""
TOP, GROUPS = "top_episodes", "groups"
ADVANTAGES = "practicum advantages 1"
"""Format of the files of advantages."""


def advantages_path(episode: Path) -> Path:
    """The path of the advantages of an episode's file."""
    return episode.with_name(episode.name.removesuffix(".jsonl") + ".advantages.json")


def write_atomic(path: Path, data: bytes) -> None:
    """Write a file under a temporary name and rename it: all bytes are there, or none and a UserError says why."""
    temporary: str | None = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = create_temporary(path.parent)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        if temporary is not None:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        raise UserError(f"Cannot write '{path}': {_remedy(path, error)}.") from error


def _remedy(path: Path, error: OSError) -> str:
    """Say why a path cannot be written to, and what to do."""
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return f"{error.strerror}; free some space or write elsewhere"
    if isinstance(error, NotADirectoryError | FileExistsError):
        files = [str(above) for above in path.parents if os.path.exists(above) and not above.is_dir()]
        if files:
            return f"'{files[0]}' is a file, not a folder; write elsewhere"
    return f"{error.strerror}; write elsewhere"


UNFINISHED = ".writing-"
"""Beginning of the names of temporary files and folders: what a killed process has left has such a name."""


def create_temporary(folder: Path) -> tuple[int, str]:
    """Create a temporary file; return its descriptor, for writing, and its path. Its permissions are the umask's."""
    while True:
        path = str(folder / f"{UNFINISHED}{secrets.token_hex(4)}")
        with contextlib.suppress(FileExistsError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o666), path


MANIFEST = "manifest.json"
CHECKPOINT_NAME = re.compile(r"global_step_(\d+)")


def checkpoint_steps(folder: Path) -> list[int]:
    """Steps that have a checkpoint folder, valid or not, oldest first."""
    matches = (CHECKPOINT_NAME.fullmatch(path.name) for path in folder.glob("global_step_*"))
    return sorted(int(match[1]) for match in matches if match)


def checkpoint_path(folder: Path, step: int) -> Path:
    return folder / f"global_step_{step}"


def newest_checkpoint(folder: Path) -> tuple[Path | None, list[str]]:
    """The newest valid checkpoint of a run, and a sentence for each damaged one that was skipped."""
    warnings: list[str] = []
    for step in reversed(checkpoint_steps(folder)):
        path = checkpoint_path(folder, step)
        damage = damage_of(path)
        if damage is None:
            return path, warnings
        warnings.append(f"Checkpoint '{path}' is damaged ({damage}); the one before it is used.")
    return None, warnings


def damage_of(path: Path) -> str | None:
    """What is wrong with a checkpoint folder; None when every file is what the manifest says."""
    try:
        manifest = json.loads((path / MANIFEST).read_text())
        files: dict[str, str] = manifest["files"]
    except (OSError, ValueError, KeyError, TypeError):
        return "its manifest is missing or unreadable"
    for name, digest in files.items():
        file = path / name
        if not file.is_file():
            return f"{name} is missing"
        if _digest(file) != digest:
            return f"{name} is not what was written"
    return None


def seal(folder: Path) -> None:
    """Flush every file to the disk and write its hash into the manifest, which comes last."""
    digests = {}
    for file in sorted(file for file in folder.rglob("*") if file.is_file()):
        sync(file)
        digests[str(file.relative_to(folder))] = _digest(file)
    (folder / MANIFEST).write_text(json.dumps({"files": digests}, indent=1))
    sync(folder / MANIFEST)


def sync(path: Path) -> None:
    """Flush a file or a folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def _digest(file: Path) -> str:
    with file.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest()


class FolderLock:
    """A lock on a folder, held from here until `release`; the folder is made where there is none.

    A folder that was made for the lock and is empty at the end is removed again.
    """

    def __init__(self, folder: Path, remedy: str = "choose another folder") -> None:
        """`remedy` is the end of the sentence for a folder that cannot be used."""
        self.folder, self.remedy = folder, remedy
        self._new_folders = [path for path in (folder, *folder.parents) if not os.path.exists(path)]
        self._descriptor: int | None = self._acquire()

    def _acquire(self) -> int:
        while True:
            try:
                self.folder.mkdir(parents=True, exist_ok=True)
                descriptor = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            except OSError as error:
                if isinstance(error, FileExistsError | NotADirectoryError):
                    raise UserError(f"'{self.folder}' is not a folder; {self.remedy}.") from None
                raise UserError(f"'{self.folder}' cannot be used ({error.strerror}); {self.remedy}.") from None
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                raise UserError(
                    f"Another process is writing to '{self.folder}'; wait for it to end, or {self.remedy}."
                ) from None
            except OSError:
                return descriptor  # this file system has no locks
            if os.fstat(descriptor).st_nlink:
                return descriptor
            os.close(descriptor)  # whoever held it has removed the empty folder meanwhile

    def delete_unfinished(self, *subfolders: str) -> None:
        """Delete the temporary files and folders of processes that were killed while they wrote something here.

        Looks into the folder itself, and into the named subfolders with everything below them.
        """
        paths = list(self.folder.glob(f"{UNFINISHED}*"))
        for name in subfolders:
            paths += (self.folder / name).rglob(f"{UNFINISHED}*")
        for path in paths:
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()

    def release(self) -> None:
        if self._descriptor is None:
            return
        for path in self._new_folders:
            with contextlib.suppress(OSError):
                path.rmdir()
        os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        if getattr(self, "_descriptor", None) is not None:
            self.release()


@contextlib.contextmanager
def locked(folder: Path, remedy: str = "choose another folder") -> Iterator[FolderLock]:
    """Hold the lock of a folder inside this block."""
    lock = FolderLock(folder, remedy)
    try:
        yield lock
    finally:
        lock.release()


@contextlib.contextmanager
def lock_for_run(folder: Path) -> Iterator[FolderLock]:
    """Take the lock of a folder for a run that is built inside this block and releases it; an error releases it too."""
    lock = FolderLock(folder)
    try:
        yield lock
    except BaseException:
        lock.release()
        raise


STAGE_FOLDERS: Mapping[str, tuple[str, ...]] = {
    "rl": ("rl/model", "rl_final", "rl"),
    "dpo": ("dpo/model", "dpo_final", "dpo"),
    "sft": ("sft/model", "sft_final", "sft"),
    "base": ("base/model", "base"),
}
"""Where a run's folder may hold the model of each stage, the last stage first: the most trained one is taken."""


@dataclass(frozen=True)
class ModelRef:
    """A resolved model. With an `adapter`, `model` is its base model."""

    model: str
    stage: str = "model"
    """`model`, a stage of STAGE_FOLDERS, or the name of a checkpoint."""
    adapter: str | None = None
    run: str | None = None
    """Folder of the training run that holds its metrics.jsonl."""

    @property
    def name(self) -> str:
        return self.adapter or self.model

    def load(
        self, dtype: torch.dtype, device: str = "cpu", *, trainable: bool = False, quantised: Any = None
    ) -> LoadedModel:
        """The model, with its adapter where it is one (`trainable`: to be trained further)."""
        from practicum.models import loader, lora  # slow to import: not for names alone

        loaded = loader.load(self.model, dtype, device, quantised)
        if self.adapter is None:
            return loaded
        loaded = lora.load_adapter(loaded, self.adapter, trainable=trainable)
        self._set_template(loaded.tokenizer)
        return loaded

    def load_tokenizer(self) -> PreTrainedTokenizerBase:
        from practicum.models import loader

        tokenizer = loader.load_tokenizer(self.model)
        self._set_template(tokenizer)
        return tokenizer

    def _set_template(self, tokenizer: PreTrainedTokenizerBase) -> None:
        """Give the tokenizer the chat template that the adapter was trained under."""
        trained_template = Path(self.adapter or "") / "chat_template.jinja"
        if self.adapter is not None and trained_template.is_file():
            tokenizer.chat_template = trained_template.read_text(encoding="utf-8")


def resolve_model(name: str, base: str | None = None) -> ModelRef:
    """Resolve the name of a model; `base` is the base model of an adapter that does not name it.

    In a folder that is no model itself, the stages RL, DPO, SFT and base are searched, then model/ and the newest
    checkpoint. A name that is no folder is returned as it is: loading it says what is wrong with it.
    """
    folder = Path(name).expanduser()
    if not folder.is_dir():
        return ModelRef(name)
    if is_model(folder):
        return _model_in(folder, "model", base)
    if CHECKPOINT_NAME.fullmatch(folder.name) and is_model(folder / "actor"):
        return _model_in(folder / "actor", folder.name, base, folder.parent)
    for stage, subfolders in STAGE_FOLDERS.items():
        for subfolder in subfolders:
            if is_model(folder / subfolder):
                return _model_in(folder / subfolder, stage, base)
    if is_model(folder / "model"):  # what `train`, `sft` and `dpo` write into their folder
        return _model_in(folder / "model", "model", base)
    checkpoint = newest_checkpoint(folder)[0]
    if checkpoint is not None and is_model(checkpoint / "actor"):
        return _model_in(checkpoint / "actor", checkpoint.name, base, folder)
    raise UserError(
        f"'{name}' holds no model: neither it nor its rl/, dpo/, sft/, base/, model/ or newest checkpoint has a "
        "config.json or adapter_config.json."
    )


def is_model(folder: Path) -> bool:
    """Whether a folder is a model or an adapter."""
    return (folder / "config.json").is_file() or (folder / "adapter_config.json").is_file()


def _model_in(folder: Path, stage: str, base: str | None, run: Path | None = None) -> ModelRef:
    """The model or adapter in a folder; its run's metrics are beside or above it."""
    run_folders = [run] if run is not None else [folder, folder.parent]
    metrics = next((str(path) for path in run_folders if (path / "metrics.jsonl").is_file()), None)
    if (folder / "config.json").is_file():
        return ModelRef(str(folder), stage, None, metrics)
    path = folder / "adapter_config.json"
    try:
        base_model = base or json.loads(path.read_bytes())["base_model_name_or_path"]
    except (OSError, ValueError, KeyError, TypeError):
        base_model = None
    if not isinstance(base_model, str) or not base_model:
        raise UserError(f"'{path}' does not say which model the adapter belongs to; name it with --base.")
    return ModelRef(base_model, stage, str(folder), metrics)
