"""The host files that a Python program needs: the interpreter, its standard library, shared libraries.

They are found by starting an interpreter once that imports every extension module of the standard library and lists the
shared libraries it has loaded. Only these files are visible in the sandbox, read-only. Installed packages
(site-packages) are not part of it.
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
from dataclasses import dataclass

from practicum.sandbox.limits import SandboxError

PROBE = """
import ctypes, importlib, json, os, sys
for folder in sys.path:
    for name in sorted(os.listdir(folder)) if folder.endswith("lib-dynload") else ():
        module = name.partition(".")[0]
        if not module.startswith(("_test", "_xx", "xx", "_ctypes_test", "_tkinter")):
            try:
                importlib.import_module(module)
            except ImportError:
                pass
try:
    ctypes.CDLL("libgcc_s.so.1")  # glibc loads it by itself when a thread ends
except OSError:
    pass
class Info(ctypes.Structure):
    _fields_ = [("address", ctypes.c_void_p), ("name", ctypes.c_char_p)]
libraries = []
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(Info), ctypes.c_size_t, ctypes.c_void_p)
def note(info, size, data):
    libraries.append((info.contents.name or b"").decode())
    return 0
ctypes.CDLL(None).dl_iterate_phdr(note, None)
print(json.dumps([sys.executable, sys.path, libraries]))
"""
HIDDEN = ("site-packages", "dist-packages")
LOADER_CACHE = "/etc/ld.so.cache"
DEVICES = ("/dev/null", "/dev/zero", "/dev/random", "/dev/urandom")


@dataclass(frozen=True)
class Runtime:
    """Host paths that a Python program needs; they have the same paths inside the sandbox."""

    executable: str
    paths: tuple[str, ...]
    """Files and folders to mount read-only."""
    hidden: tuple[str, ...]
    """Folders inside them to cover with an empty folder."""
    devices: tuple[str, ...] = DEVICES


@functools.cache
def find_runtime(executable: str | None = None) -> Runtime:
    """Return what an interpreter needs (default: the base interpreter of this one, not the virtual environment's)."""
    # The real file, not a link to it: an interpreter finds its library from its own path.
    interpreter = os.path.realpath(executable or str(getattr(sys, "_base_executable", "") or sys.executable))
    command = [interpreter, "-I", "-S", "-B", "-c", PROBE]
    try:
        completed = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=True)
        executable_path, folders, libraries = json.loads(completed.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"the interpreter '{interpreter}' does not say what it needs: {error}") from error
    roots = [folder for folder in folders if os.path.exists(folder)]
    candidates = dict.fromkeys(
        [executable_path, *roots, *(name for name in libraries if name.startswith("/")), LOADER_CACHE]
    )
    # A path below one that is mounted already needs no mount of its own.
    shown = [path for path in candidates if os.path.exists(path) and not _is_below(path, roots)]
    hidden = [os.path.join(root, name) for root in roots for name in HIDDEN]
    return Runtime(
        executable_path,
        tuple(shown),
        tuple(path for path in hidden if os.path.isdir(path)),
        tuple(filter(os.path.exists, DEVICES)),
    )


def _is_below(path: str, folders: list[str]) -> bool:
    return any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
