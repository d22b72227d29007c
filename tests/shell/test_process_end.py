"""A process that ends without closing its connections: it ends, prints nothing, and loses nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

import penstock

_SCRIPT = """
import sys, threading, penstock
connection = penstock.connect(sys.argv[1], {"timezone": "UTC"})
for statement in ("CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.t (ts TIMESTAMP, v INT)",
                  "INSERT INTO d.t VALUES ('2024-01-01', 7)", "SELECT count(*) FROM d.t"):
    cursor = connection.execute(statement)
print(cursor.fetchall())
"""


@pytest.mark.parametrize(("end", "code"), [
    ("", 0), ("threading.Thread(target=lambda: cursor.fetchall()).start(); raise SystemExit(3)", 3),
], ids=["falls off the end", "exits with a thread"])
def test_engine_is_closed_when_the_process_ends(tmp_path: Path, end: str, code: int) -> None:
    """The exit code is the script's, nothing is written to stderr, and the rows are there as Parquet."""
    answer = subprocess.run([sys.executable, "-c", _SCRIPT + end, str(tmp_path)], capture_output=True, text=True,
                            check=False, timeout=60)
    assert (answer.returncode, answer.stdout, answer.stderr) == (code, "[(1,)]\n", "")
    with penstock.duckdb(str(tmp_path)) as reader:
        assert reader.execute("SELECT v FROM d.t").fetchall() == [(7,)]
