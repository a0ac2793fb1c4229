"""Pickling of what a decorator has put instead of a function.

`@tool` and `@reward` replace a function by an object that holds it. Pickle finds functions by module and name, where it
would find the object. So the object is pickled by reference, with the fields in which it differs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
import sys
from collections.abc import Callable
from typing import Any


class PickledByReference:
    """A frozen dataclass with a field `function`, found again under the name of that function. Copies are itself."""

    function: Callable[..., Any]

    def __reduce_ex__(self, protocol: Any) -> Any:
        module, name = getattr(self.function, "__module__", None), getattr(self.function, "__qualname__", "")
        original = _lookup(sys.modules.get(module or ""), name)
        if type(original) is not type(self) or getattr(original, "function", None) is not self.function:
            return super().__reduce_ex__(protocol)
        return _from_reference, (module, name, _differences(original, self))

    def __deepcopy__(self, memo: dict[int, Any]) -> PickledByReference:
        return self


def _lookup(module: Any, name: str) -> Any:
    return functools.reduce(lambda value, part: getattr(value, part, None), name.split("."), module)


def _differences(original: Any, other: Any) -> dict[str, Any]:
    names = [field.name for field in dataclasses.fields(original) if field.init and field.name != "function"]
    pairs = {name: (getattr(original, name), getattr(other, name)) for name in names}
    return {name: new for name, (old, new) in pairs.items() if new is not old and new != old}


def _from_reference(module: str, name: str, changes: dict[str, Any]) -> Any:
    original = _lookup(importlib.import_module(module), name)
    return dataclasses.replace(original, **changes) if changes else original
