"""A registry of promoted models: numbered versions with cards, one of them current, and the way back.

    REGISTRY/NAME/versions/0001/model/…      the model or adapter, with a manifest of its files' hashes
    REGISTRY/NAME/versions/0001/card.json    where it comes from and why it was promoted
    REGISTRY/NAME/current                    a link to the version in use, replaced in one step
    REGISTRY/NAME/history.jsonl              every switch

A reader of `current` sees the old version or the new one and never a part of either. Versions are never changed or
removed.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import re
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from practicum.data.jsonl import iter_readable_objects
from practicum.data.run_folder import MANIFEST, UNFINISHED, damage_of, is_model, locked, seal, write_atomic
from practicum.errors import UserError, did_you_mean

CARD_FORMAT = "practicum model card 1"
CARD, CURRENT, HISTORY, MODEL, VERSIONS = "card.json", "current", "history.jsonl", "model", "versions"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
VERSION = re.compile(r"\d{4,}")


@dataclass(frozen=True)
class ModelVersion:
    """One promoted model."""

    name: str
    number: int
    folder: Path

    @property
    def model(self) -> Path:
        """The folder of the model or adapter."""
        return self.folder / MODEL

    @property
    def card(self) -> dict[str, Any]:
        try:
            value = json.loads((self.folder / CARD).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            value = None
        if not isinstance(value, dict) or value.get("format") != CARD_FORMAT:
            raise UserError(f"'{self.folder / CARD}' is not a model card; promote the model again.")
        return value

    @property
    def damage(self) -> str | None:
        """What is wrong with the model's files; None if they are those that were promoted."""
        return damage_of(self.model)


class ModelRegistry:
    """The models of a folder, by name."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def names(self) -> list[str]:
        """Names that have a version."""
        return sorted(path.parent.name for path in self.root.glob(f"*/{VERSIONS}") if path.is_dir())

    def versions(self, name: str) -> list[ModelVersion]:
        """All versions of a name, oldest first."""
        folder = self._folder(name) / VERSIONS
        paths = sorted(path for path in folder.glob("*") if VERSION.fullmatch(path.name) and path.is_dir())
        return sorted((ModelVersion(name, int(path.name), path) for path in paths), key=lambda version: version.number)

    def current(self, name: str) -> ModelVersion:
        """The version in use; UserError if there is none, or if its files are not those that were promoted."""
        version = self.linked(name)
        if version is None:
            hint = did_you_mean(name, self.names()) if name not in self.names() else ""
            raise UserError(f"No model '{name}' is promoted in '{self.root}'; see `practicum promote`.{hint}")
        if version.damage is not None:
            raise UserError(
                f"Version {version.number} of '{name}' is damaged ({version.damage}); go back with "
                f"`practicum promote --rollback --name {name} --registry {self.root}`."
            )
        return version

    def promote(self, name: str, model: Path, card: Mapping[str, Any], reason: str) -> ModelVersion:
        """Copy a model or adapter into a new version, and make it the current one when all of it is on the disk."""
        if not is_model(model):
            raise UserError(f"'{model}' is no model: it has no config.json or adapter_config.json.")
        folder = self._folder(name)
        with locked(folder, "choose another --registry") as lock:
            lock.delete_unfinished(VERSIONS)
            versions = self.versions(name)
            number = versions[-1].number + 1 if versions else 1
            target = folder / VERSIONS / f"{number:04d}"
            temporary = target.with_name(f"{UNFINISHED}{secrets.token_hex(4)}")
            try:
                shutil.copytree(model, temporary / MODEL, ignore=shutil.ignore_patterns(MANIFEST, f"{UNFINISHED}*"))
                seal(temporary / MODEL)
                files = json.loads((temporary / MODEL / MANIFEST).read_text())["files"]
                content = {"format": CARD_FORMAT, "name": name, "version": number, "promoted_at": _now(), **card}
                text = json.dumps({**content, "files": files}, indent=1, ensure_ascii=False, allow_nan=False)
                write_atomic(temporary / CARD, f"{text}\n".encode())
                os.replace(temporary, target)
            except OSError as error:
                raise UserError(f"Cannot write '{target}': {error.strerror}; choose another --registry.") from None
            finally:
                if temporary.exists():
                    shutil.rmtree(temporary, ignore_errors=True)
            version = ModelVersion(name, number, target)
            self._switch(version, "promote", reason)
        return version

    def rollback(self, name: str, reason: str, number: int | None = None) -> ModelVersion:
        """Make an earlier version current: the one with `number`, or the newest undamaged one before the current."""
        with locked(self._folder(name), "choose another --registry"):
            linked, versions = self.linked(name), self.versions(name)
            if linked is None:
                raise UserError(f"No model '{name}' is promoted in '{self.root}'; there is nothing to go back from.")
            candidates = [v for v in versions if v.number == number or (number is None and v.number < linked.number)]
            previous = next((version for version in reversed(candidates) if version.damage is None), None)
            if previous is None:
                which = "earlier version" if number is None else f"version {number}"
                raise UserError(f"'{name}' has no undamaged {which}; it has {[v.number for v in versions]}.")
            self._switch(previous, "rollback", reason)
        return previous

    def history(self, name: str) -> list[dict[str, Any]]:
        """All switches, oldest first; a torn last line is left out."""
        return list(iter_readable_objects(self._folder(name) / HISTORY))

    def _switch(self, version: ModelVersion, action: str, reason: str) -> None:
        """Point `current` at a version. The link is made under another name and renamed: there always is one."""
        folder = self._folder(version.name)
        before = self.linked(version.name)
        temporary = folder / f"{UNFINISHED}{secrets.token_hex(4)}"
        os.symlink(Path(VERSIONS) / version.folder.name, temporary)
        os.replace(temporary, folder / CURRENT)
        row = {
            "time": _now(),
            "action": action,
            "from": before.number if before else None,
            "to": version.number,
            "reason": reason,
        }
        with (folder / HISTORY).open("a", encoding="utf-8") as file:
            file.write(json.dumps(row, ensure_ascii=False) + "\n")

    def linked(self, name: str) -> ModelVersion | None:
        """The version that `current` points at, damaged or not; None if there is none."""
        link = self._folder(name) / CURRENT
        with contextlib.suppress(OSError):
            target = Path(os.readlink(link)).name
            if VERSION.fullmatch(target) and (link.parent / VERSIONS / target).is_dir():
                return ModelVersion(name, int(target), link.parent / VERSIONS / target)
        return None

    def _folder(self, name: str) -> Path:
        if not NAME.fullmatch(name):
            raise UserError(f"'{name}' is no name of a model: use letters, digits, '.', '_' and '-'.")
        return self.root / name


def _now() -> str:
    return datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds")
