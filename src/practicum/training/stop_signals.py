"""Ctrl-C and SIGTERM during a run: once to stop after the step, twice to stop at once."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignals:
    """Notes the first signal as a request; the second one ends the step or the process."""

    def __init__(self, on_request: Callable[[], None], by_exception: bool) -> None:
        """The second signal raises KeyboardInterrupt where `by_exception` says so, and kills the process elsewhere."""
        self.requested = False
        self._on_request, self._by_exception = on_request, by_exception

    def _handle(self, *_: object) -> None:
        if self.requested:
            if self._by_exception:
                raise KeyboardInterrupt
            signal.raise_signal(signal.SIGKILL)
        self.requested = True
        with contextlib.suppress(RuntimeError):  # it may interrupt the printing of another line
            self._on_request()

    @contextlib.contextmanager
    def installed(self) -> Iterator[None]:
        """Handle the signals inside this block; the handlers from before are put back after it."""
        before = {}
        with contextlib.suppress(ValueError):  # not the main thread: signals are handled elsewhere
            before = {number: signal.signal(number, self._handle) for number in SIGNALS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
