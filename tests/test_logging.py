"""Log files: where they are, what a line looks like, and that a closed engine leaves no handler behind."""

from __future__ import annotations

import logging
import re
from pathlib import Path

from penstock.common.config import load_config
from penstock.common.logging import configure_file_logging, logger, stop_logging


def test_lines_have_time_level_process_and_module(tmp_path: Path) -> None:
    """A line says when (UTC), how grave, which process and which module; lines below the level are left out."""
    handler = configure_file_logging(load_config({"logLevel": "warning"}, environment={}), tmp_path)
    try:
        logger("penstock.wal.writer").warning("disk is slow")
        logger("penstock.wal.writer").info("not this one")
    finally:
        stop_logging(handler)
    lines = (tmp_path / "log" / "penstock.log").read_text().splitlines()
    assert len(lines) == 1
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z WARNING \d+ penstock\.wal\.writer: disk is slow", lines[0])


def test_files_are_rotated_by_size(tmp_path: Path) -> None:
    """A full file is closed and kept, up to the configured number."""
    config = load_config({"logFileSize": "64KiB", "logFilesKept": 1}, environment={})
    handler = configure_file_logging(config, tmp_path)
    try:
        for _ in range(3000):
            logger("penstock.test").warning("x" * 50)
    finally:
        stop_logging(handler)
    assert sorted(path.name for path in (tmp_path / "log").iterdir()) == ["penstock.log", "penstock.log.1"]


def test_stopping_leaves_no_handler(tmp_path: Path) -> None:
    """Engines come and go without their handlers piling up."""
    before = list(logging.getLogger("penstock").handlers)
    handler = configure_file_logging(load_config(environment={}), tmp_path)
    stop_logging(handler)
    assert logging.getLogger("penstock").handlers == before
