"""Token ids as pieces of text, with what lies on this machine: nothing is fetched, whatever an episode names."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from pathlib import Path

from tokenizers import Tokenizer

from practicum import __version__
from practicum.utils.escape import shown

BUILT_IN = ("tiny", "smollm2")
HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
LARGEST = 256 << 20
LONGEST = 4
"""Tokens that may share one character: it has so many bytes at most."""
REMEMBERED = 200_000


class Pieces:
    """Cuts a run of ids into texts, one a token; the tokens of a character that several share come as one piece."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        self._texts: dict[int, str] = {}
        self._joined: dict[tuple[int, ...], str] = {}
        # Byte-level vocabularies say a token's text whatever stands before it; others drop a space at the start.
        self._alone = "ByteLevel" in type(tokenizer.decoder).__name__ or _is_byte_level(tokenizer)

    def of(self, ids: Sequence[int]) -> list[tuple[str, int]]:
        """(text with what cannot be seen as escapes, how many tokens) for one token after the other."""
        found: list[tuple[str, int]] = []
        place = 0
        while place < len(ids):
            text, used = self._text(ids, place), 1
            while "\ufffd" in text and used < LONGEST and place + used < len(ids):
                longer = self._join(tuple(ids[place : place + used + 1]))
                used += 1
                if "\ufffd" not in longer:
                    text = longer
                    break
            else:
                used = 1  # no character comes of it: bytes that are none
            found.append((text, used))
            place += used
        return found

    def _join(self, ids: tuple[int, ...]) -> str:
        found = self._joined.get(ids)
        if found is None:
            if len(self._joined) > REMEMBERED:
                self._joined.clear()
            found = self._joined[ids] = self._decode([i for i in ids if 0 <= i < self.size])
        return found

    def _text(self, ids: Sequence[int], place: int) -> str:
        id = ids[place]
        if not 0 <= id < self.size:
            return f"⟨{id}⟩"
        if self._alone or place == 0 or not 0 <= ids[place - 1] < self.size:
            found = self._texts.get(id)
            if found is None:
                found = self._texts[id] = self._decode([id])
            return found
        before = ids[place - 1]
        alone, both = self._decode([before]), self._decode([before, id])
        return both[len(alone) :] if both.startswith(alone) else self._decode([id])

    def _decode(self, ids: list[int]) -> str:
        return shown(str(self.tokenizer.decode(ids, skip_special_tokens=False)))


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return '"ByteLevel"' in str(tokenizer.decoder.__getstate__()) if tokenizer.decoder is not None else False


class Tokenizers:
    """Tokenizers by the names that episodes give; one that is not here is None, and is looked for once."""

    def __init__(self) -> None:
        self._known: dict[str, Pieces | None] = {}

    def get(self, name: str) -> Pieces | None:
        if name not in self._known:
            path = tokenizer_file(name)
            self._known[name] = None if path is None else _load(path)
        return self._known[name]


def tokenizer_file(name: str) -> Path | None:
    """Where the vocabulary of a model lies: a built-in one, a folder, or what an earlier download left here."""
    if name in BUILT_IN:
        return _built_in(name)
    if not name or "\x00" in name or len(name) > 1000:
        return None
    try:
        path = Path(name).expanduser() / "tokenizer.json"
        if path.is_file():
            return path
    except (OSError, ValueError, RuntimeError):
        return None
    return _downloaded(name) if HUB_NAME.fullmatch(name) else None


def _built_in(name: str) -> Path | None:
    # The loader knows this folder too, but importing it brings torch, ten times what a report needs.
    cache = Path(os.environ.get("PRACTICUM_CACHE") or Path.home() / ".cache" / "practicum").expanduser()
    path = cache / f"{name}-{__version__}" / "tokenizer.json"
    if not path.is_file():
        from practicum.errors import UserError
        from practicum.models import loader

        try:
            path = Path(loader.model_folder(name)) / "tokenizer.json"
        except (UserError, OSError, ImportError):
            return None
    return path if path.is_file() else None


def _downloaded(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    found = try_to_load_from_cache(name, "tokenizer.json")
    return Path(found) if isinstance(found, str) else None


def _load(path: Path) -> Pieces | None:
    try:
        if path.stat().st_size > LARGEST:
            return None
        return Pieces(Tokenizer.from_file(str(path)))
    except Exception:  # the library raises bare Exception on a file it cannot read
        return None
