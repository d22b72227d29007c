"""Log files: where they are, what a line looks like, and that a closed engine leaves no handler behind."""

from __future__ import annotations

import json
import logging
import re
import threading
from pathlib import Path

from penstock.common.config import load_config
from penstock.common.logging import about, configure_file_logging, logger, speak_about, stop_logging


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


def written(tmp_path: Path, format: str) -> list[str]:
    """Returns the lines of calls in a thread that works for a stream."""
    handler = configure_file_logging(load_config({"logFormat": format}, environment={}), tmp_path)
    log = logger("penstock.test")

    def work() -> None:
        speak_about(stream="my stream", attempt=3)
        log.warning("one")
        log.warning("two", extra=about(task="7-agg-0", attempt=4))
        try:
            raise ValueError("three")
        except ValueError:
            log.exception("failed")

    thread = threading.Thread(target=work)
    try:
        log.warning("zero")
        thread.start()
        thread.join()
    finally:
        stop_logging(handler)
    return (tmp_path / "log" / "penstock.log").read_text().splitlines()


def test_text_lines_end_with_what_they_are_about(tmp_path: Path) -> None:
    """Stream, task and attempt are key=value, quoted where needed; a call's own say wins over its thread's."""
    zero, one, two, failed, *trace = written(tmp_path, "text")
    assert zero.endswith("penstock.test: zero")
    assert one.endswith('penstock.test: one stream="my stream" attempt=3')
    assert two.endswith('penstock.test: two stream="my stream" attempt=4 task=7-agg-0')
    assert failed.endswith('failed stream="my stream" attempt=3')
    assert trace[-1] == "ValueError: three"


def test_json_lines_are_objects(tmp_path: Path) -> None:
    """One object per line, a trace included; time is UTC as in text."""
    zero, one, two, failed = (json.loads(line) for line in written(tmp_path, "json"))
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT[\d:]{8}\.\d{3}Z", zero.pop("time"))
    assert zero.pop("process") > 0
    assert zero == {"level": "warning", "logger": "penstock.test", "message": "zero"}
    assert (one["message"], one["stream"], one["attempt"]) == ("one", "my stream", "3")
    assert (two["task"], two["attempt"]) == ("7-agg-0", "4")
    assert failed["trace"].endswith("ValueError: three")


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
