"""The text of a reply while its tokens come: a character of several tokens is written with its last one."""

from __future__ import annotations

import codecs
from collections.abc import Sequence

from practicum.chat.renderer import Renderer

REPLACEMENT = "\ufffd"


class TextStream:
    """Turns ids into text piece by piece; all pieces together are what `Renderer.decode` gives for all ids."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer
        self._bytes = renderer.token_bytes
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._ids: list[int] = []
        """Ids whose text may still change, behind some that give them their context; unused where tokens are bytes."""
        self._num_written = 0
        """How many of `_ids` are written."""
        self._end_ids: list[int] = []
        """End tokens that came last: at the end of a reply they have no text."""

    def push(self, ids: Sequence[int]) -> str:
        """Return the text that these ids make certain."""
        text = []
        for token in ids:
            if token in self._renderer.end_ids:
                self._end_ids.append(token)
                continue
            for token_id in (*self._end_ids, token):
                text.append(self._push(token_id))
            self._end_ids.clear()
        return "".join(text)

    def _push(self, token: int) -> str:
        if self._bytes is not None:
            return self._decoder.decode(self._bytes[token])
        self._ids.append(token)
        before, after = self._texts()
        if after.endswith(REPLACEMENT):
            return ""
        del self._ids[: self._num_written]
        self._num_written = len(self._ids)
        return after[len(before) :]

    def _texts(self) -> tuple[str, str]:
        return self._renderer.decode(self._ids[: self._num_written]), self._renderer.decode(self._ids)

    def finish(self) -> str:
        """Return the rest, where the reply ended within a character."""
        if self._bytes is not None:
            return self._decoder.decode(b"", final=True)
        before, after = self._texts()
        self._ids, self._num_written = [], 0
        return after[len(before) :]
