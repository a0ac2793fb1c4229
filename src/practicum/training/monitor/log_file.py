"""The log file of a run (`trainer.log_file`): a line per step and every message, with their times, rotated by size."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from logging.handlers import RotatingFileHandler
from pathlib import Path

from practicum.config.train import TrainerConfig
from practicum.errors import UserError, describe_exception
from practicum.training.monitor.loggers import console_line, warn


class LogFile:
    """A file that `tail -F` can follow; it is reopened where something is written after `close`.

    A failure to write prints one warning and ends the logging, not the training.
    """

    def __init__(self, path: Path, max_bytes: int, num_backups: int) -> None:
        """`path` grows up to `max_bytes` and then becomes path.1, the one before path.2, up to `num_backups`."""
        self.path = path
        self._works = True
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._handler = _Handler(path, maxBytes=max_bytes, backupCount=num_backups, encoding="utf-8")
        except OSError as error:
            raise UserError(f"Cannot write '{path}': {error.strerror}; choose another trainer.log_file.") from error
        self._handler.setFormatter(logging.Formatter("%(asctime)s %(message)s"))

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the main metrics of a step in one line."""
        self.message(console_line(step, values))

    def message(self, text: str) -> None:
        if not self._works:
            return
        record = logging.LogRecord("practicum", logging.INFO, "", 0, text, None, None)
        try:
            self._handler.emit(record)
        except OSError as error:
            self._works = False
            warn(f"'{self.path}' cannot be written ({error.strerror}); the run goes on without it.")

    def failed(self, error: BaseException) -> None:
        """Write why a run ended before its end."""
        self.message("stopped by Ctrl-C or SIGTERM" if isinstance(error, KeyboardInterrupt) else _reason(error))

    def with_copy(self, say: Callable[[str], None]) -> Callable[[str], None]:
        """Return a function that passes a message on to `say` and writes it here."""

        def both(text: str) -> None:
            say(text)
            self.message(text)

        return both

    def close(self) -> None:
        self._handler.close()


class _Handler(RotatingFileHandler):
    """Raises what goes wrong, where the standard handler prints a traceback."""

    def handleError(self, record: logging.LogRecord) -> None:
        raise


def _reason(error: BaseException) -> str:
    return f"stopped: {error}" if isinstance(error, UserError) else f"stopped: {describe_exception(error)}"


def open_log_file(config: TrainerConfig, folder: Path) -> LogFile | None:
    """Return the log file of a run in `folder`, with the time of now for %Y, %m, ...; None where no key names one."""
    if config.log_file is None:
        return None
    path = Path(time.strftime(config.log_file)).expanduser()
    log = LogFile(path, config.log_file_max_bytes, config.log_file_backups)
    log.message(f"run in '{folder}'")
    return log
