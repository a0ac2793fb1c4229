"""The sandbox of an external agent's program: bubblewrap, without a network but the gateway, with few files.

The program sees the system's folders, its interpreter and the folders of the files that its command names, all
read-only, and one folder to write to, which is its working folder and is removed with the episode. The Python that runs
this process is there too: it passes connections on to the gateway (`sandbox_relay.py`).
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

SYSTEM_FOLDERS = (
    "/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/etc/alternatives", "/etc/ld.so.cache", "/etc/ssl",
)  # fmt: skip
KEPT_VARIABLES = ("PATH", "LANG", "LC_ALL", "TZ", "PYTHONPATH")
"""Variables that a program in the sandbox gets from this process."""
NOBODY = "65534"
RELAY = Path(__file__).with_name("sandbox_relay.py")


def sandbox_command(words: Sequence[str], folder: Path, socket_path: Path, port: int) -> list[str]:
    """The command that runs a program in a sandbox whose only writable folder is `folder`."""
    program, *arguments = words
    program = os.path.abspath(shutil.which(program) or program)
    arguments = [os.path.abspath(word) if _names_file(word) else word for word in arguments]
    options = ["--die-with-parent", "--new-session", "--unshare-all", "--uid", NOBODY, "--gid", NOBODY]
    options += ["--cap-drop", "ALL", "--hostname", "sandbox", "--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"]
    for path in _visible_paths(program, arguments):
        options += ["--ro-bind", path, path]
    options += ["--ro-bind", str(socket_path), str(socket_path), "--bind", str(folder), str(folder)]
    options += ["--chdir", str(folder), "--remount-ro", "/"]
    interpreter = os.path.realpath(sys.executable)
    relay = [interpreter, "-I", "-S", "-c", RELAY.read_text(), str(port), str(socket_path)]
    return ["bwrap", *options, "--", *relay, program, *arguments]


def kept_variables(environment: Mapping[str, str], folder: Path) -> dict[str, str]:
    """What a program in the sandbox gets of this process's variables; its home is the folder that it may write to."""
    kept = {name: environment[name] for name in KEPT_VARIABLES if name in environment}
    return {**kept, "HOME": str(folder), "TMPDIR": str(folder)}


def _names_file(word: str) -> bool:
    """Whether an argument is a path: it exists, and has a slash or a suffix; any other word may mean anything."""
    return ("/" in word or os.path.splitext(word)[1] != "") and os.path.exists(word)


def _visible_paths(program: str, arguments: Sequence[str]) -> list[str]:
    """Existing paths that are mounted: outer folders first, and none below another."""
    files = [Path(word) for word in arguments if os.path.isabs(word) and os.path.exists(word)]
    paths = [
        *map(Path, SYSTEM_FOLDERS),
        Path(sys.base_prefix),
        Path(sys.prefix),
        Path(os.path.realpath(sys.executable)),
    ]
    paths += [path if path.is_dir() else path.parent for path in files]
    paths += [path for path in map(Path, os.environ.get("PYTHONPATH", "").split(os.pathsep)) if path.is_absolute()]
    for path in (Path(program), Path(os.path.realpath(program))):
        prefix = path.parent.parent  # of an interpreter or script of a virtual environment
        paths.append(prefix if (prefix / "pyvenv.cfg").is_file() or (prefix / "lib").is_dir() else path)
    mounted: list[str] = []
    for name in sorted({str(path) for path in paths if path.exists() and str(path) != "/"}):
        if not any(name.startswith(f"{folder}/") for folder in mounted):
            mounted.append(name)
    return mounted
