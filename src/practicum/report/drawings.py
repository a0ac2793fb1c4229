"""Drawings of episodes, by the environments themselves (`Environment.draw_episode`).

An episode's file names its environment. Only environments that come with the package are looked up by that name: a file
must not be able to say which code is run. A user names further ones (`--env path/to/file.py:Class`).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

from practicum import registry
from practicum.environment import Drawing, Environment
from practicum.errors import UserError, describe_exception
from practicum.report.index import EpisodeRow
from practicum.trajectory import Trajectory
from practicum.utils.terminal import escape_invisible

MAX_DRAWING_CHARACTERS = 200_000


class Drawings:
    """Finds the environment of an episode and lets it draw; `environments` are further ones by name or file."""

    def __init__(self, environments: Iterable[str] = ()) -> None:
        self._named = tuple(environments)
        self._classes: dict[str, type[Environment] | None] = {}
        self.further  # noqa: B018 - a wrong name is an error now, not at the first episode

    @cached_property
    def further(self) -> dict[str, type[Environment]]:
        """The further environments by the name that their tasks have."""
        classes = {name: registry.environment_class(name) for name in self._named}
        return {cls.name or name: cls for name, cls in classes.items()}

    def draws(self, environment: str) -> bool:
        """Whether an environment draws its episodes."""
        return self._class(environment) is not None

    def draw(self, episode: Trajectory) -> Drawing | None:
        """Return the drawing of an episode; None where its environment draws none. Raises what the environment does."""
        cls = self._class(episode.task.environment)
        if cls is None:
            return None
        return cls.draw_episode(episode.task, [turn.action for turn in episode.turns if turn.action.error is None])

    def record(self, episode: Trajectory) -> dict[str, Any] | None:
        """The drawing for the page, or why there is none; a drawing that is too large is left out."""
        try:
            drawing = self.draw(episode)
        except Exception as error:  # of the environment, on a record that may be damaged
            return {"fault": escape_invisible(describe_exception(error)[:300])}
        if drawing is None or not drawing.svg:
            return None
        if len(drawing.svg) > MAX_DRAWING_CHARACTERS:
            return {"fault": f"it has more than {MAX_DRAWING_CHARACTERS} characters"}
        return {"svg": drawing.svg}

    def text(self, episode: Trajectory) -> str:
        """The drawing for a terminal, or why there is none; "" where the environment draws none."""
        try:
            drawing = self.draw(episode)
        except Exception as error:
            return f"no drawing: {describe_exception(error)[:300]}"
        return "" if drawing is None else drawing.text

    def _class(self, name: str) -> type[Environment] | None:
        if name not in self._classes:
            cls = self.further.get(name)
            if cls is None and name in registry.ENVIRONMENTS:
                try:
                    cls = registry.environment_class(name)
                except (UserError, ImportError):  # a package that is not installed
                    cls = None
            self._classes[name] = cls if cls is not None and _draws(cls) else None
        return self._classes[name]


def _draws(cls: type[Environment]) -> bool:
    """Whether a class, or one that it derives from, has a drawing of its own."""
    return any("draw_episode" in vars(base) for base in cls.__mro__ if base is not Environment)


def first_and_last(rows: Sequence[EpisodeRow], drawings: Drawings) -> list[int]:
    """Return the numbers of two rows of a training run: the best episode of its first and of its last saved step."""
    played = [row for row in rows if row.step is not None and row.counted and not row.selected]
    played = [row for row in played if drawings.draws(row.environment)]
    steps = sorted({row.step for row in played if row.step is not None})
    if not steps:
        return []
    chosen = []
    for step in dict.fromkeys((steps[0], steps[-1])):
        chosen.append(max((row for row in played if row.step == step), key=lambda row: row.result.reward).number)
    return chosen
