"""Log files: one line per event below the data directory, rotated by size. The console is the shell's."""

from __future__ import annotations

import logging
import logging.handlers
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from penstock.common.config import Config

ROOT_NAME = "penstock"
FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)-7s %(process)d %(name)s: %(message)s"
DATE_FORMAT = "%Y-%m-%dT%H:%M:%S"


def logger(name: str) -> logging.Logger:
    """Returns the logger of a module: call it with `__name__`."""
    return logging.getLogger(name)


def configure_file_logging(
    config: Config, data_directory: Path, file_name: str = "penstock.log"
) -> logging.Handler:
    """Sends Penstock's log lines to `<logDir>/<file_name>`; returns the handler for `stop_logging`.

    Raises `OSError` if the folder cannot be made.
    """
    directory = data_directory / config.log_dir
    directory.mkdir(parents=True, exist_ok=True)
    handler = logging.handlers.RotatingFileHandler(
        directory / file_name,
        maxBytes=config.log_file_size,
        backupCount=config.log_files_kept,
        encoding="utf-8",
        delay=True,
    )
    return _attach(handler, config.log_level)


def configure_stderr_logging(level: str) -> logging.Handler:
    """Sends Penstock's log lines to standard error, where Spark collects a worker's output."""
    return _attach(logging.StreamHandler(sys.stderr), level)


def stop_logging(handler: logging.Handler) -> None:
    """Takes back a handler that one of the configure functions returned, and closes its file."""
    logging.getLogger(ROOT_NAME).removeHandler(handler)
    handler.close()


def _attach(handler: logging.Handler, level: str) -> logging.Handler:
    formatter = logging.Formatter(FORMAT, DATE_FORMAT)
    formatter.converter = time.gmtime
    handler.setFormatter(formatter)
    root = logging.getLogger(ROOT_NAME)
    root.setLevel(level.upper())
    root.propagate = False
    root.addHandler(handler)
    return handler
