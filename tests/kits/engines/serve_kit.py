"""`penstock serve` as a process, and ways to call it; for the tests of the server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kits.basics.places import ROOT, TESTS

ENDED_S = 60.0
#: Nothing of what makes a server slow or what other tests may need: any free port, a zone that is the same everywhere.
SETTINGS: dict[str, Any] = {
    "timezone": "UTC", "flightPort": 0, "taosAdapterPort": 0, "postgresPort": 0, "trustLoopback": "true",
    "walSegmentSize": "1MiB", "memtableSize": "1MiB"}
SLOW_FUNCTION = '''
"""A function that takes its time with each block of rows."""

import threading


def slow(values):
    threading.Event().wait(0.05)
    return values
'''
CREATE_SLOW_FUNCTION = "CREATE FUNCTION slow(DOUBLE) RETURNS DOUBLE LANGUAGE PYTHON AS 'slowly:slow'"


def add_slow_function(data: Path) -> None:
    """Puts the module of CREATE_SLOW_FUNCTION into a data directory."""
    (data / "udf").mkdir(exist_ok=True)
    (data / "udf" / "slowly.py").write_text(SLOW_FUNCTION)


def arguments(data: Path, settings: Mapping[str, Any], *words: str) -> list[str]:
    """Returns the arguments of `penstock` for a data directory."""
    given = [word for key, value in {**SETTINGS, **settings}.items() for word in ("--set", f"{key}={value}")]
    return ["--data", str(data), *given, *words]


def command(data: Path, settings: Mapping[str, Any], *words: str) -> list[str]:
    """Returns the command line of a process of `penstock` for a data directory."""
    return [sys.executable, "-m", "penstock", *arguments(data, settings, *words)]


def clean_environment(**more: str) -> dict[str, str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PENSTOCK_")}
    return {**environment, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src"), str(TESTS)]), **more}


class Served:
    """A server that says on which port it listens, and can be ended."""

    def __init__(self, data: Path, settings: Mapping[str, Any], *words: str, **environment: str) -> None:
        self.process = subprocess.Popen(
            command(data, settings, "serve", *words), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env=clean_environment(**environment))
        assert self.process.stdout is not None
        try:
            self.greeting = self.process.stdout.readline()
        except BaseException:  # nobody else could end it
            self.process.kill()
            raise
        found = re.search(r"Flight SQL on [\w.:]+:(\d+),.* process (\d+)", self.greeting)
        if found is None:
            self.process.kill()
            raise AssertionError(self.greeting + self.process.communicate()[1])
        self.port = int(found[1])

    @property
    def uri(self) -> str:
        return f"grpc://127.0.0.1:{self.port}"

    def end(self, number: int = signal.SIGTERM) -> tuple[int, str, str]:
        """Sends a signal, waits for the end, and returns exit code, output and errors."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        try:
            output, errors = self.process.communicate(timeout=ENDED_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        return self.process.returncode, output, errors


@contextmanager
def served(data: Path, settings: Mapping[str, Any] | None = None, *words: str, **environment: str) -> Iterator[Served]:
    """Gives a server of a data directory, and ends it."""
    server = Served(data, settings or {}, *words, **environment)
    try:
        yield server
    finally:
        server.end()
