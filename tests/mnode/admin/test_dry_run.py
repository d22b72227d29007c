"""DRY RUN CREATE STREAM and `penstock test`: what a stream would do, without creating it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from kits.basics.places import ROOT
from kits.engines.embedded import NOW_MS, Embedded
from kits.streams.product_function import PRODUCT

from penstock.common.errors import (
    InvalidStreamError,
    NotFoundError,
    NotSupportedError,
    StorageError,
    UnavailableError,
)
from penstock.mnode.checkpoints.commit_records import CommitRecords
from penstock.shell.commands.stream_test import run_file
from penstock.shell.main import main

FUNCTIONS = """
import math

import pyarrow.compute as pc


def twice(x):
    return pc.multiply(x, 2)

""" + PRODUCT
T0 = NOW_MS // 60_000 * 60_000
EXAMPLES = ROOT / "examples" / "stream_tests"


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path / "data")
    embedded.all("CREATE DATABASE d VGROUPS 1", "USE d", "CREATE STABLE meters (ts timestamp, v int) TAGS (g int)",
                 "CREATE TABLE d0 USING meters TAGS (7)", "CREATE TABLE d1 USING meters TAGS (8)")
    yield embedded
    embedded.close()


STREAM = ("DRY RUN CREATE STREAM s TRIGGER {trigger} IGNORE EXPIRED 1 INTO o {into}AS SELECT _wstart ts, count(*) n, "
          "sum(v) total FROM meters {partition}INTERVAL(10s) ON SAMPLE ({sample})")


def lines(db: Embedded, sample: str, trigger: str = "AT_ONCE", into: str = "", partition: str = "") -> list[Any]:
    return db.run(STREAM.format(sample=sample, trigger=trigger, into=into, partition=partition))


def test_a_range_is_played_in_its_order_of_arrival(db: Embedded) -> None:
    """Result rows, late rows and the size of the state are listed; nothing is created."""
    db.all(f"INSERT INTO d0 VALUES ({T0}, 1)", f"INSERT INTO d0 VALUES ({T0 + 25_000}, 2)",
           f"INSERT INTO d0 VALUES ({T0 + 5_000}, 4)", f"INSERT INTO d1 VALUES ({T0 + 12_000}, 8)",
           f"INSERT INTO d1 VALUES ({T0 + 600_000}, 16)")
    found = lines(db, f"FROM {T0} TO {T0 + 60_000}")
    assert [(kind, round(ts.timestamp() * 1000) - T0 if ts else None) for kind, _, ts, _ in found] == [
        ("row", 0), ("row", 10_000), ("row", 20_000), ("late", 5_000), ("summary", None)]
    assert [row[3].split(", group_id")[0] for row in found[:3]] == ["n=1, total=1", "n=1, total=8", "n=1, total=2"]
    assert found[3][1] == "d0"
    assert found[4][3].startswith("4 rows read, 3 result rows, 1 late rows, 3 windows in ")
    assert db.run("SHOW STREAMS") == []
    with pytest.raises(NotFoundError):
        db.run("SELECT * FROM o")


def test_a_stream_that_cannot_begin_is_an_error(db: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would seem to write nothing."""
    def refuse(*_: Any) -> None:
        raise StorageError("the disk is full")

    monkeypatch.setattr(CommitRecords, "newest", refuse)
    db.run(f"INSERT INTO d0 VALUES ({T0}, 1)")
    with pytest.raises(UnavailableError, match="could not be run: the disk is full"):
        lines(db, f"FROM {T0} TO {T0 + 60_000}")


def test_a_file_is_played_line_by_line(db: Embedded, tmp_path: Path) -> None:
    """A CSV file names the child tables; those that exist have their tags, others none."""
    file = tmp_path / "rows.csv"
    file.write_text(f"'d0',{T0},1\n'd0',{T0 + 30_000},2\n'new',{T0},NULL\n")
    found = lines(db, f"FILE '{file}'", "WINDOW_CLOSE", "TAGS (g int) ", "PARTITION BY tbname, g ")
    assert sorted(row[3] for row in found[:-1]) == ["n=1, total=1, g=7", "n=1, total=NULL, g=NULL"]
    assert db.run("SELECT TAGS tbname FROM meters ORDER BY tbname") == [("d0",), ("d1",)]


def test_an_existing_target_and_other_kinds_of_source(db: Embedded) -> None:
    """Rules about an existing target hold; child and normal tables are sources too."""
    db.all("CREATE STABLE t (ts timestamp, a bigint, b int) TAGS (x bigint unsigned)",
           "CREATE TABLE plain (ts timestamp, v int)", f"INSERT INTO plain VALUES ({T0}, 5)",
           f"INSERT INTO d0 VALUES ({T0}, 1)", f"INSERT INTO d1 VALUES ({T0}, 2)")
    for table, total in (("plain", 5), ("d1", 2)):
        found = db.run(f"DRY RUN CREATE STREAM s TRIGGER AT_ONCE INTO t (ts, a) AS SELECT _wstart, sum(v) FROM {table} "
                       f"INTERVAL(10s) ON SAMPLE (FROM {T0} TO {T0})")
        assert found[0][3].startswith(f"a={total}, b=NULL")
    with pytest.raises(InvalidStreamError):
        db.run(f"DRY RUN CREATE STREAM s INTO plain AS SELECT _wstart, sum(v) FROM d0 INTERVAL(10s) "
               f"ON SAMPLE (FROM {T0} TO {T0})")


def test_streams_of_any_query_are_played_over_one_table(db: Embedded) -> None:
    """What they read besides isn't there, which is said."""
    db.all("CREATE TABLE plain (ts timestamp, v int)", "CREATE VIEW w AS SELECT v FROM plain",
           f"INSERT INTO plain VALUES ({T0}, 5)")
    sample = f"ON SAMPLE (FROM {T0} TO {T0})"
    assert db.run(f"DRY RUN CREATE STREAM s INTO o AS SELECT v, count(*) n FROM plain GROUP BY v {sample}")[0][3] == (
        "v=5, n=1")
    for source in ("w", "(SELECT v FROM plain WHERE v IN (SELECT v FROM w))", "plain JOIN d0 USING (v)"):
        with pytest.raises(NotSupportedError, match="is for streams over one table, and without views"):
            db.run(f"DRY RUN CREATE STREAM s INTO o AS SELECT v, count(*) n FROM {source} GROUP BY v {sample}")


def test_users_functions_are_called(db: Embedded) -> None:
    """Those that the stream calls, scalar and aggregate, are known in a dry run as they are in the engine."""
    (db.engine.paths.root / "udf").mkdir()
    (db.engine.paths.root / "udf" / "mine.py").write_text(FUNCTIONS)
    db.all("CREATE FUNCTION twice (BIGINT) RETURNS BIGINT LANGUAGE PYTHON AS 'mine:twice'",
           "CREATE AGGREGATE FUNCTION product (INT) RETURNS BIGINT LANGUAGE PYTHON AS 'mine:Product'",
           f"INSERT INTO d0 VALUES ({T0}, 3) ({T0 + 1}, 5)")
    found = db.run("DRY RUN CREATE STREAM s TRIGGER AT_ONCE INTO o AS SELECT _wstart, product(twice(v)) p FROM meters "
                   f"INTERVAL(10s) ON SAMPLE (FROM {T0} TO {T0 + 1})")
    assert [row[3].split(", group_id")[0] for row in found[:-1]] == ["p=60"]
    assert sorted(row[0] for row in db.run("SHOW FUNCTIONS")) == ["product", "twice"]


def test_the_examples_pass(capsys: pytest.CaptureFixture[str]) -> None:
    """`penstock test` plays the examples, and says so."""
    assert main(["test", *map(str, sorted(EXAMPLES.glob("*.yaml")))]) == 0
    assert "3 passed, 0 failed" in capsys.readouterr().out


def test_a_failing_test_says_where(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The step, the query, and both sets of rows are shown; the exit code is 1."""
    file = tmp_path / "t.yaml"
    file.write_text("""
name: wrong
setup: [CREATE DATABASE d, USE d, "CREATE TABLE t (ts timestamp, v int)"]
steps:
  - insert: t
    rows: [['2024-01-01 00:00:00', 1]]
  - {expect: "SELECT ts, v FROM t", rows: [['2024-01-01 00:00:00', 2]]}
---
name: typo
steps: [{expcet: SELECT 1}]
---
name: accepted
steps: [{fails: CREATE DATABASE x}]
""")
    wrong, typo, accepted = run_file(file)
    assert "steps 2: SELECT ts, v FROM t" in wrong.problem
    assert "expected (2024-01-01 00:00:00, 2)" in wrong.problem
    assert "a step is one of" in typo.problem
    assert "was not refused" in accepted.problem
    assert main(["test", str(file)]) == 1
    assert "0 passed, 3 failed" in capsys.readouterr().out
