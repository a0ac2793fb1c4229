"""One process per run folder: a lock that the kernel releases however the process ends.

The lock is on the folder itself (`flock`), so no file of it is left behind. File systems without such locks, some
network ones among them, are used without.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from practicum.data.jsonl import UNFINISHED
from practicum.errors import UserError


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
