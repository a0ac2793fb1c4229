"""The promoted planner: the current version of `htdag` in a registry, followed while a process runs."""

from __future__ import annotations

import asyncio
import logging
import os
from pathlib import Path

from practicum.data.model_registry import ModelRegistry, ModelVersion
from practicum.environments.htdag.requests import ENVIRONMENT

logger = logging.getLogger(__name__)

REGISTRY_VARIABLE, DEFAULT_REGISTRY = "HTDAG_REGISTRY", "registry"


class PromotedModel:
    """The version of `htdag` in use; UserError where none is promoted."""

    def __init__(self, root: Path | None = None) -> None:
        """`root` is the registry's folder; None: HTDAG_REGISTRY, or `registry`."""
        self.registry = ModelRegistry(root or Path(os.environ.get(REGISTRY_VARIABLE) or DEFAULT_REGISTRY))
        self.version = self.registry.current(ENVIRONMENT)
        self._refused: int | None = None

    async def switched(self) -> ModelVersion | None:
        """Return the version that `current` was switched to since the last call; None where it is the same.

        The check reads one link; only after a switch are the files of the new version compared with their hashes, in a
        thread. A damaged version, or a link that leads nowhere, is logged once, and the version in use stays.
        """
        linked = self.registry.linked(ENVIRONMENT)
        if linked is None or linked.number in (self.version.number, self._refused):
            return None
        damage = await asyncio.to_thread(lambda: linked.damage)
        if linked.number == self.version.number:  # another plan was faster
            return None
        if damage is not None:
            self._refused = linked.number
            logger.error(
                "version %d of '%s' is damaged (%s); version %d stays in use", linked.number, ENVIRONMENT, damage,
                self.version.number,
            )  # fmt: skip
            return None
        self.version, self._refused = linked, None
        return linked
