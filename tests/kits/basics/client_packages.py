"""Clients that are installed apart from Penstock's packages, and run as processes of their own (tests/clients.lock)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from kits.basics.external_servers import IN_CI
from kits.basics.places import ROOT, TESTS

_PACKAGES = ROOT / ".venv" / "clients"

needs_clients = pytest.mark.skipif(not (_PACKAGES / "duckdb").exists() and not IN_CI,
                                   reason="the clients aren't installed; `make` does that")


class ClientProcess:
    """A program of tests/programs that answers each line of JSON with one."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def ask(self, question: Any) -> Any:
        """Returns what it says. Raises AssertionError if it ends instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(question) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise AssertionError(f"the client has ended: {self._process.communicate()[1]}")
        return json.loads(line)


@contextmanager
def client_process(program: str, *words: str) -> Iterator[ClientProcess]:
    """Runs a program of tests/programs with the clients' packages before Penstock's."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(_PACKAGES), str(TESTS)])}
    process = subprocess.Popen(
        [sys.executable, "-m", f"programs.{program}", *words], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, env=environment, cwd=TESTS)
    try:
        yield ClientProcess(process)
    finally:
        process.kill()
        process.communicate()
