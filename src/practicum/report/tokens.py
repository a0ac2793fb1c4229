"""Token ids as text, with the tokenizers of this machine: nothing is downloaded, whatever an episode names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

from practicum import __version__
from practicum.task import content_hash
from practicum.utils.terminal import escape_invisible

BUILT_IN = ("tiny", "tiny-pretrained", "smollm2")
VOCABULARY_HASH = re.compile(r"[0-9a-f]{16}")
HUB_NAME = re.compile(r"[\w.-]{1,96}/[\w.-]{1,96}")
MAX_TOKENIZER_BYTES = 256 << 20
MAX_TOKENS_PER_CHARACTER = 4
"""A character has at most four bytes in UTF-8."""
MAX_CACHED_TEXTS = 200_000


class TokenTexts:
    """Splits ids into texts, one per token; tokens that together make one character become one text."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.size = tokenizer.get_vocab_size()
        self._hash: str | None = None
        self._texts: dict[int, str] = {}
        self._joined: dict[tuple[int, ...], str] = {}
        # Byte-level vocabularies say a token's text whatever stands before it; others drop a space at the start.
        self._alone = "ByteLevel" in type(tokenizer.decoder).__name__ or _is_byte_level(tokenizer)

    @property
    def vocabulary_hash(self) -> str:
        """The name of the vocabulary that episodes record (`provenance["tokenizer"]`)."""
        if self._hash is None:
            self._hash = content_hash(self.tokenizer.get_vocab())
        return self._hash

    def split(self, ids: Sequence[int]) -> list[tuple[str, int]]:
        """The text with invisible characters escaped, and its number of tokens, for each token in order."""
        texts: list[tuple[str, int]] = []
        index = 0
        while index < len(ids):
            text, used = self._text(ids, index), 1
            while "\ufffd" in text and used < MAX_TOKENS_PER_CHARACTER and index + used < len(ids):
                longer = self._join(tuple(ids[index : index + used + 1]))
                used += 1
                if "\ufffd" not in longer:
                    text = longer
                    break
            else:
                used = 1  # the bytes make no character
            texts.append((text, used))
            index += used
        return texts

    def _join(self, ids: tuple[int, ...]) -> str:
        text = self._joined.get(ids)
        if text is None:
            if len(self._joined) > MAX_CACHED_TEXTS:
                self._joined.clear()
            text = self._joined[ids] = self._decode([i for i in ids if 0 <= i < self.size])
        return text

    def _text(self, ids: Sequence[int], index: int) -> str:
        id = ids[index]
        if not 0 <= id < self.size:
            return f"⟨{id}⟩"
        if self._alone or index == 0 or not 0 <= ids[index - 1] < self.size:
            text = self._texts.get(id)
            if text is None:
                text = self._texts[id] = self._decode([id])
            return text
        before = ids[index - 1]
        alone, both = self._decode([before]), self._decode([before, id])
        return both[len(alone) :] if both.startswith(alone) else self._decode([id])

    def _decode(self, ids: list[int]) -> str:
        return escape_invisible(str(self.tokenizer.decode(ids, skip_special_tokens=False)))


def _is_byte_level(tokenizer: Tokenizer) -> bool:
    return '"ByteLevel"' in str(tokenizer.decoder.__getstate__()) if tokenizer.decoder is not None else False


class Tokenizers:
    """Tokenizers by the names of models in episodes; a missing one is None, and is searched for once."""

    def __init__(self) -> None:
        self._loaded: dict[str, TokenTexts | None] = {}

    def get(self, name: str) -> TokenTexts | None:
        if name not in self._loaded:
            path = tokenizer_file(name)
            self._loaded[name] = None if path is None else _load(path)
        return self._loaded[name]

    def of_episode(self, provenance: Mapping[str, Any]) -> TokenTexts | None:
        """The tokenizer that an episode's ids are from: its model's, or a built-in one where the model is not here.

        Episodes of `collect`, `eval` and trainings record the model, which may be a folder that is gone, and the hash
        of the vocabulary, which tells whether a built-in model has the same. Old episodes may name a tokenizer there.
        """
        vocabulary = provenance.get("tokenizer")
        model = self.get(str(provenance.get("model") or ""))
        if not isinstance(vocabulary, str) or not VOCABULARY_HASH.fullmatch(vocabulary):
            return model or (self.get(vocabulary) if isinstance(vocabulary, str) else None)
        if model is not None and model.vocabulary_hash == vocabulary:
            return model
        # Others than `tiny` are read only where they were unpacked before: that converts all their weights.
        names = [name for name in BUILT_IN if name == "tiny" or _cached_file(name).is_file()]
        built_in = [
            texts for texts in map(self.get, names) if texts is not None and texts.vocabulary_hash == vocabulary
        ]
        return built_in[0] if built_in else model


def tokenizer_file(name: str) -> Path | None:
    """The tokenizer file of a model: a built-in one, in a folder, or in the cache of an earlier download."""
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
    path = _cached_file(name)
    if not path.is_file():
        from practicum.errors import UserError
        from practicum.models import loader

        try:
            path = Path(loader.model_folder(name)) / "tokenizer.json"
        except (UserError, OSError, ImportError):
            return None
    return path if path.is_file() else None


def _cached_file(name: str) -> Path:
    # The loader knows this folder too, but importing it brings torch, ten times what a report needs.
    cache = Path(os.environ.get("PRACTICUM_CACHE") or Path.home() / ".cache" / "practicum").expanduser()
    return cache / f"{name}-{__version__}" / "tokenizer.json"


def _downloaded(name: str) -> Path | None:
    from huggingface_hub import try_to_load_from_cache

    path = try_to_load_from_cache(name, "tokenizer.json")
    return Path(path) if isinstance(path, str) else None


def _load(path: Path) -> TokenTexts | None:
    try:
        if path.stat().st_size > MAX_TOKENIZER_BYTES:
            return None
        return TokenTexts(Tokenizer.from_file(str(path)))
    except Exception:  # the library raises bare Exception on a file it cannot read
        return None
