"""What of the host a Python program needs to run: the interpreter, its standard library, shared libraries.

Found by asking: an interpreter is started once that imports every extension module of the standard
library and lists the shared libraries it then holds. These files, and nothing beside them, are shown
to the sandbox, read-only. Installed packages (site-packages) are not part of it.
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
    """Host paths that a Python program needs, under the names it knows them by."""

    executable: str
    paths: tuple[str, ...]
    """Files and folders to show, read-only."""
    hidden: tuple[str, ...]
    """Folders inside them to cover with an empty one."""
    devices: tuple[str, ...] = DEVICES


@functools.cache
def find_runtime(executable: str | None = None) -> Runtime:
    """Ask an interpreter (this one's own base, not the virtual environment's) what it needs."""
    # The real file, not a link to it: an interpreter finds its library from where it lies.
    asked = os.path.realpath(executable or str(getattr(sys, "_base_executable", "") or sys.executable))
    command = [asked, "-I", "-S", "-B", "-c", PROBE]
    try:
        done = subprocess.run(command, env={}, capture_output=True, text=True, timeout=60, check=True)
        found, folders, libraries = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        raise SandboxError(f"the interpreter '{asked}' does not say what it needs: {error}") from error
    roots = [folder for folder in folders if os.path.exists(folder)]
    wanted = dict.fromkeys([found, *roots, *(name for name in libraries if name.startswith("/")), LOADER_CACHE])
    # A path below one that is shown already needs no mount of its own.
    shown = [path for path in wanted if os.path.exists(path) and not _below(path, roots)]
    hidden = [os.path.join(root, name) for root in roots for name in HIDDEN]
    return Runtime(
        found,
        tuple(shown),
        tuple(path for path in hidden if os.path.isdir(path)),
        tuple(filter(os.path.exists, DEVICES)),
    )


def _below(path: str, folders: list[str]) -> bool:
    return any(path.startswith(f"{folder.rstrip('/')}/") for folder in folders)
