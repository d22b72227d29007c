"""Log files: one line per event below the data directory, rotated by size. The console is the shell's.

A line says which stream, task and attempt it is about: `extra=about(...)` of a call, else `speak_about` of its thread.
"""

from __future__ import annotations

import json
import logging
import logging.handlers
import sys
import time
from collections.abc import Mapping
from contextvars import ContextVar
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any

from penstock.common.private import make_private, open_private

if TYPE_CHECKING:
    from penstock.common.config import Config

ROOT_NAME = "penstock"
MAX_TRACE = 8_000
FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(process)d %(name)s: %(message)s"
DATE_FORMAT = "%Y-%m-%dT%H:%M:%S"
_NOTHING: Mapping[str, str] = {}
_subject: ContextVar[Mapping[str, str]] = ContextVar("subject", default=_NOTHING)


def logger(name: str) -> logging.Logger:
    """Returns the logger of a module: call it with `__name__`."""
    return logging.getLogger(name)


def about(*, stream: str | None = None, task: object = None, attempt: int | None = None) -> dict[str, object]:
    """Returns what a log call takes as `extra`, to say what its line is about."""
    return {"about": _fields(stream, task, attempt)}


def speak_about(*, stream: str, attempt: int) -> None:
    """Says what the lines of this thread are about from now on, where a call doesn't say it."""
    _subject.set(_fields(stream, None, attempt))


def _fields(stream: str | None, task: object, attempt: int | None) -> dict[str, str]:
    given = {"stream": stream, "task": task, "attempt": attempt}
    return {name: str(value) for name, value in given.items() if value is not None}


def _subject_of(record: logging.LogRecord) -> Mapping[str, str]:
    return {**_subject.get(), **getattr(record, "about", _NOTHING)}


class _BoundedFormatter(logging.Formatter):
    """Shortens traces: those of deep calls, or of causes of causes, would fill the files."""

    def formatException(self, ei: Any) -> str:
        trace = super().formatException(ei)
        if len(trace) <= MAX_TRACE:
            return trace
        head, tail = trace[:MAX_TRACE // 4], trace[-MAX_TRACE * 3 // 4:]
        return f"{head}\n[{len(trace) - len(head) - len(tail)} characters are left out]\n{tail}"


class TextFormatter(_BoundedFormatter):
    """A readable line, with `key=value` for what it is about at its end."""

    def __init__(self) -> None:
        super().__init__(FORMAT, DATE_FORMAT)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        pairs = "".join(f" {name}={_quoted(value)}" for name, value in _subject_of(record).items())
        return super().formatMessage(record) + pairs


class JsonFormatter(_BoundedFormatter):
    """One JSON object per line."""

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        fields: dict[str, object] = {
            "time": f"{self.formatTime(record, DATE_FORMAT)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(), "process": record.process, "logger": record.name,
            "message": record.getMessage(), **_subject_of(record)}
        if record.exc_info:
            fields["trace"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


_FORMATTERS = {"text": TextFormatter, "json": JsonFormatter}


def _quoted(value: str) -> str:
    return value if value and not any(each.isspace() or each in "\"=" for each in value) else json.dumps(value)


class PrivateLog(logging.handlers.RotatingFileHandler):
    """Log files that only their owner may read: they tell of statements."""

    def _open(self) -> TextIOWrapper:
        file = open_private(Path(self.baseFilename), self.mode, encoding=self.encoding, errors=self.errors)
        assert isinstance(file, TextIOWrapper)
        return file


def configure_file_logging(
    config: Config, data_directory: Path, file_name: str = "penstock.log"
) -> logging.Handler:
    """Sends Penstock's log lines to `<logDir>/<file_name>`; returns the handler for `stop_logging`.

    Raises `OSError` if the folder cannot be made.
    """
    directory = data_directory / config.log_dir
    make_private(directory)
    handler = PrivateLog(
        directory / file_name,
        maxBytes=config.log_file_size,
        backupCount=config.log_files_kept,
        encoding="utf-8",
        delay=True,
    )
    return _attach(handler, config.log_level, config.log_format)


def configure_stderr_logging(level: str, format: str) -> logging.Handler:
    """Sends Penstock's log lines to standard error, where Spark collects a worker's output."""
    return _attach(logging.StreamHandler(sys.stderr), level, format)


def stop_logging(handler: logging.Handler) -> None:
    """Takes back a handler that one of the configure functions returned, and closes its file."""
    logging.getLogger(ROOT_NAME).removeHandler(handler)
    handler.close()


def _attach(handler: logging.Handler, level: str, format: str) -> logging.Handler:
    handler.setFormatter(_FORMATTERS[format]())
    root = logging.getLogger(ROOT_NAME)
    root.setLevel(level.upper())
    root.propagate = False
    root.addHandler(handler)
    return handler
