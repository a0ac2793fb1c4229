"""Reading files of folders that others made: regular files only, no links, bounded in bytes, never blocking."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO


def open_regular(path: Path) -> BinaryIO:
    """Open a file for reading; OSError where it is a link, a device, a pipe or anything else but a regular file.

    A link may lead to a private file, a device never ends, and opening a pipe waits for a writer.
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise OSError(errno.ELOOP, "it is a link, and links are not followed") from None
        raise
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "it is not a regular file")
    return os.fdopen(descriptor, "rb")


def is_regular(path: Path) -> bool:
    """Whether there is a regular file at a path, not a link to one."""
    try:
        return stat.S_ISREG(path.lstat().st_mode)
    except OSError:
        return False


def read_regular(path: Path, max_bytes: int) -> bytes:
    """Return the content of a regular file; ValueError where it has more than `max_bytes`."""
    with open_regular(path) as file:
        data = file.read(max_bytes + 1)
    if len(data) > max_bytes:
        raise ValueError(f"the file has more than {max_bytes >> 20} MiB")
    return data
