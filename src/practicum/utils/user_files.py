"""Python files of users as modules: a file is imported under a name that is made of its path.

An environment, tool, reward or reply format of a user's own file can so be pickled: another process, which has never
seen the file, imports the name, and the path in it says where the file is. The modules are below this one, so that the
import of one begins with the import of the other.
"""

from __future__ import annotations

import base64
import importlib
import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from pathlib import Path
from types import ModuleType

__path__: list[str] = []  # to Python, what has a path is a package and may have modules below it
SEPARATOR = "~"
"""Between the file's name and its path, encoded; base64 does not have it."""


def load(path: Path) -> ModuleType:
    """Return the module of a file, which is run on first use."""
    return importlib.import_module(module_name(path))


def module_name(path: Path) -> str:
    """Return the name of a file's module."""
    path = path.expanduser().resolve()
    encoded = base64.urlsafe_b64encode(str(path).encode()).decode().rstrip("=")
    return f"{__name__}.{path.stem.replace('.', '_')}{SEPARATOR}{encoded}"


def path_of(name: str) -> Path:
    """Return the path of the file that has a module's name."""
    encoded = name.rpartition(SEPARATOR)[2]
    return Path(base64.urlsafe_b64decode(encoded + "=" * (-len(encoded) % 4)).decode())


class UserFileLoader(SourceFileLoader):
    """Runs a file; modules beside it can be imported from it."""

    def exec_module(self, module: ModuleType) -> None:
        folder = str(Path(self.path).parent)
        if folder not in sys.path:
            sys.path.append(folder)  # last, so that a neighbour of the file hides no installed package
        super().exec_module(module)


class UserFileFinder(MetaPathFinder):
    """Finds the files of modules below this one."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if not fullname.startswith(f"{__name__}.") or SEPARATOR not in fullname:
            return None
        file = path_of(fullname)
        if not file.is_file():
            raise ModuleNotFoundError(f"there is no file '{file}'", name=fullname)
        return importlib.util.spec_from_file_location(fullname, file, loader=UserFileLoader(fullname, str(file)))


if not any(type(finder).__name__ == UserFileFinder.__name__ for finder in sys.meta_path):
    sys.meta_path.append(UserFileFinder())
