"""The engine when a disk refuses: the statement says so, the next try works, and nothing half-done stays."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import times
from kits.basics.faulty_fs import FaultyFs
from kits.engines.embedded import Embedded

from penstock.common.errors import StorageError

T0 = 1_700_000_000_000

SCRIPT = (
    "CREATE DATABASE d VGROUPS 2",
    "CREATE STABLE d.m (ts timestamp, v int) TAGS (a int)",
    "CREATE TABLE d.m1 USING d.m TAGS (1)",
    f"INSERT INTO d.m1 VALUES ({T0}, 1) d.m2 USING d.m TAGS (2) VALUES ({T0}, 2)",
    "ALTER STABLE d.m ADD COLUMN w int",
    f"INSERT INTO d.m (tbname, ts, w, a) VALUES ('m1', {T0}, 10, 1) ('m3', {T0}, 30, 3)",
    "ALTER STABLE d.m DROP COLUMN v",
    "ALTER TABLE d.m1 SET TAG a = 7",
    "DELETE FROM d.m WHERE a = 2",
    "FLUSH DATABASE d",
    "CREATE TABLE d.gone (ts timestamp, v int)",
    "DROP TABLE d.gone",
)
EXPECTED = [("m1", 10, 7), ("m3", 30, 3)]


def run_with_retry(db: Embedded) -> None:
    """Executes the script; a statement that the disk refused is tried once more and must then work.

    Only a log that could not be synced wants the engine to be started again before.
    """
    for statement in SCRIPT:
        try:
            db.execute(statement)
        except StorageError as error:
            if statement.startswith("DROP TABLE"):
                # The name is gone with the first try; only its files may be left to the next start.
                assert db.engine.catalog.table("d", "gone") is None
                continue
            if db.fs.failed and db.fs.failed[-1].startswith("sync") and "restart the engine" in str(error):
                db.reopen()
            db.execute(statement)


def contents(db: Embedded) -> list[tuple[Any, ...]]:
    return db.run("SELECT tbname, w, a FROM d.m ORDER BY tbname")


@pytest.mark.parametrize("fault", ["error", "short"])
@pytest.mark.parametrize("fail_at", range(3, 60, times(8, 1)))
def test_a_refused_call_costs_one_try(tmp_path: Path, fault: str, fail_at: int) -> None:
    """Whichever call to the file system fails, the script comes to the same end, also after opening again."""
    fs = FaultyFs(fault=fault)
    db = Embedded(tmp_path, fs=fs)
    fs.calls, fs.fail_at = 0, fail_at
    run_with_retry(db)
    assert contents(db) == EXPECTED
    fs.fail_at = 0
    db.reopen()
    assert contents(db) == EXPECTED
    assert [row[0] for row in db.run("SHOW d.TABLES")] == ["m1", "m2", "m3"]
    db.close()


@pytest.mark.parametrize("fail_at", range(1, 16))
def test_a_stream_is_created_as_a_whole_or_not(tmp_path: Path, fail_at: int) -> None:
    """If a call fails while a stream is created, neither the stream nor its result table stays behind."""
    fs = FaultyFs()
    db = Embedded(tmp_path, fs=fs)
    db.all("CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE m (ts timestamp, v int) TAGS (a int)")
    fs.calls, fs.fail_at = 0, fail_at
    statement = "CREATE STREAM s INTO out_s AS SELECT _wstart, sum(v) FROM m PARTITION BY tbname INTERVAL(1s)"
    try:
        db.execute(statement)
    except StorageError:
        assert db.run("SHOW STREAMS") == []
        assert [row[0] for row in db.run("SHOW STABLES")] == ["m"]
        db.execute(statement)
    assert [row[0] for row in db.run("SHOW STREAMS")] == ["s"]
    fs.fail_at = 0
    db.close()


@pytest.mark.parametrize("refused", [("append", "write"), ("",)], ids=["full", "read-only"])
def test_a_disk_that_refuses_for_long_is_told_every_time(tmp_path: Path, refused: tuple[str, ...]) -> None:
    """While nothing can be written, writes fail with a StorageError, and what is there can be read; then all goes on.

    A full disk still opens and cuts files; a read-only one doesn't even let a refused write be taken back.
    """

    class FullFs(FaultyFs):
        full = False

        def trip(self, what: str, *, sync: bool = False) -> bool:
            return self.full and what.startswith(refused)

    fs = FullFs()
    db = Embedded(tmp_path, fs=fs)
    db.all("CREATE DATABASE d VGROUPS 1", "USE d", "CREATE TABLE t (ts timestamp, v int)",
           f"INSERT INTO t VALUES ({T0}, 1)")
    fs.full = True
    for _ in range(3):
        with pytest.raises(StorageError):
            db.execute(f"INSERT INTO t VALUES ({T0 + 1}, 2)")
        assert db.run("SELECT v FROM t") == [(1,)]
    fs.full = False
    db.execute(f"INSERT INTO t VALUES ({T0 + 1}, 2)")
    assert db.run("SELECT v FROM t ORDER BY ts") == [(1,), (2,)]
    db.reopen()
    assert db.run("SELECT v FROM d.t ORDER BY ts") == [(1,), (2,)]
    db.close()
