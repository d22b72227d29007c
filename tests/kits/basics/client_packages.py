"""Clients that are installed apart from Penstock's packages, and run as processes of their own (tests/clients.lock)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from kits.basics.external_servers import IN_CI
from kits.basics.places import ROOT, TESTS

_PACKAGES = ROOT / ".venv" / "clients"
TOOLS = ROOT / ".venv" / "tools"

needs_clients = pytest.mark.skipif(not (_PACKAGES / "duckdb").exists() and not IN_CI,
                                   reason="the clients aren't installed; `make` does that")
needs_tools = pytest.mark.skipif(not (TOOLS / "dbt").exists() and not IN_CI,
                                 reason="the tools aren't installed; `make` does that")


def run_tool(*words: str, cwd: Path, packages: str = str(TOOLS)) -> str:
    """Runs a command that the tools have, without a word to their makers; returns its output, and fails where it does.

    `packages` come before Penstock's.
    """
    environment = {**os.environ, "PYTHONPATH": packages, "DO_NOT_TRACK": "1", "DBT_SEND_ANONYMOUS_USAGE_STATS": "false",
                   "PLOOMBER_STATS_ENABLED": "false", "HOME": str(cwd), "NO_COLOR": "1"}
    answer = subprocess.run([sys.executable, *words], cwd=cwd, env=environment, capture_output=True, text=True,
                            check=False, timeout=300)
    assert answer.returncode == 0, answer.stdout + answer.stderr
    return answer.stdout


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
