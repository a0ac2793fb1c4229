"""Python's garbage collector while many episodes run."""

from __future__ import annotations

import gc
import weakref

FREEZE_GC_MIN_EPISODES = 32
"""With fewer episodes at once, freezing the garbage collector costs more than it saves."""
MIN_NEW_OBJECTS = 5_000
"""New objects that trigger a collection while many episodes run. With Python's own 700, the lists and tuples of a
training step of 256 episodes, hundreds of numbers each, are traversed 25 times."""
_gc_frozen_for: weakref.WeakSet[object] = weakref.WeakSet()


def freeze_gc(engine: object) -> None:
    """Exclude the objects that exist now from garbage collection, once per engine.

    When an engine's first episodes begin, about a million objects (modules, a model) exist that stay as long as the
    engine does. Episodes trigger the collector several times per training step; it need not traverse these each time,
    nor be triggered as often as Python would: an episode that has ended is freed without it.
    """
    try:
        if engine in _gc_frozen_for:
            return
        _gc_frozen_for.add(engine)
    except TypeError:  # an engine without weak references would be frozen for on every call
        return
    gc.unfreeze()
    gc.collect()
    gc.freeze()
    new_objects, *others = gc.get_threshold()
    if 0 < new_objects < MIN_NEW_OBJECTS:  # 0: collections are off
        gc.set_threshold(MIN_NEW_OBJECTS, *others)
