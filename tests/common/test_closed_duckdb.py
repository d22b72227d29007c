"""What computes opens no file, loads nothing, changes no setting and stays within its memory and its disk."""

from __future__ import annotations

import subprocess
import sys
from contextlib import closing
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from kits.engines.embedded import Embedded
from psutil import Process

from penstock.common.closed_duckdb import DuckdbBounds, closed_duckdb
from penstock.common.errors import PenstockError
from penstock.common.quantities import MIB
from penstock.planner.duckdb_sql import folding
from penstock.tasks.compute.duckdb_computer import Computer

ESCAPES = [
    "SELECT * FROM read_csv('{file}')", "SELECT * FROM read_text('{file}')", "SELECT * FROM '{file}'",
    "COPY (SELECT 1) TO '{file}.out'", "ATTACH '{file}.db' AS other", "INSTALL httpfs", "LOAD httpfs",
    "SET memory_limit = '1TB'", "SET threads = 64", "SET enable_external_access = true", "RESET temp_directory",
    "SELECT * FROM a_variable",
]
BIG = "SELECT count(*) FROM (SELECT DISTINCT md5(r::VARCHAR) FROM range({rows}) t(r))"


def test_no_way_leads_out(tmp_path: Path) -> None:
    """Tried on the very connections that compute, with DuckDB's own SQL, which no user can give them."""
    file = tmp_path / "secret.csv"
    file.write_text("password\n")
    a_variable = pa.table({"x": [1]})
    with closing(Embedded(tmp_path / "data")) as db:
        queries = db.engine.parts.queries._engine.shared.cursor()
        for connection in (queries, folding._connection(), Computer()._connection):
            for escape in ESCAPES:
                with pytest.raises(duckdb.Error):
                    connection.cursor().execute(escape.format(file=file))
    assert a_variable.num_rows == 1
    assert [path.name for path in tmp_path.glob("secret*")] == ["secret.csv"]


def test_statements_name_no_files(tmp_path: Path) -> None:
    """DuckDB's table functions, files as tables and its statements are no part of the dialect."""
    with closing(Embedded(tmp_path)) as db:
        db.run("CREATE DATABASE d")
        db.run("USE d")
        for text in (*ESCAPES, "SELECT read_text('/etc/passwd')", "SELECT getenv('HOME')", "PRAGMA database_list"):
            with pytest.raises(PenstockError):
                db.run(text.format(file="/etc/passwd"))


def test_a_task_s_duckdb_has_no_threads() -> None:
    """A worker has one or two for each of its streams."""
    with closed_duckdb(DuckdbBounds()) as first:
        before = Process().num_threads()
        with closed_duckdb(DuckdbBounds()) as second:
            assert [each.execute(BIG.format(rows=1000)).fetchone() for each in (first, second)] == [(1000,)] * 2
            assert Process().num_threads() == before


def test_what_does_not_fit_goes_to_disk_up_to_a_bound(tmp_path: Path) -> None:
    """Only below the given directory; beyond the bound the query fails, and nothing is left when all is closed."""
    spill = tmp_path / "data" / "spill"
    with closed_duckdb(DuckdbBounds(48 * MIB, 1, spill, 1024 * MIB)) as connection:
        assert connection.execute(BIG.format(rows=800_000)).fetchone() == (800_000,)
        assert list(spill.iterdir())
    with closed_duckdb(DuckdbBounds(48 * MIB, 1, spill, 8 * MIB)) as connection, \
            pytest.raises(duckdb.OutOfMemoryException):
        connection.execute(BIG.format(rows=3_000_000)).fetchone()
    assert not spill.exists() or not list(spill.iterdir())


def test_what_a_killed_engine_has_spilled_is_gone_when_the_next_one_starts(tmp_path: Path) -> None:
    """The directory is ours alone."""
    with closing(Embedded(tmp_path)) as db:
        left = db.engine.paths.spill / "duckdb_temp_1_0" / "block"
    left.parent.mkdir(parents=True)
    left.write_bytes(bytes(100))
    with closing(Embedded(tmp_path)) as db:
        assert not left.exists()
        connection = db.engine.parts.queries._engine.shared.cursor()
        assert connection.execute("SELECT current_setting('threads')").fetchone() is not None


FORKS = """
import os
from penstock.common.closed_duckdb import _small, open_before_forks, small_duckdb
open_before_forks()
assert len(os.listdir("/proc/self/task")) == 1, "what has threads can't be forked"
opened = _small._connection
for _ in range(3):
    child = os.fork()
    if not child:
        with small_duckdb() as connection:
            print(*connection.execute("SELECT sum(range), random() FROM range(1000)").fetchone(), flush=True)
        os._exit(_small._connection is not opened)
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads can't be counted")
def test_forked_processes_share_one_and_draw_other_random_numbers() -> None:
    """A forked process opens none, ends well, and its UUIDs are its own."""
    ran = subprocess.run([sys.executable, "-c", FORKS], capture_output=True, text=True, check=False,
                         timeout=120)
    assert ran.returncode == 0, ran.stderr
    sums, drawn = zip(*map(str.split, ran.stdout.splitlines()), strict=True)
    assert sums == ("499500",) * 3
    assert len(set(drawn)) == 3
