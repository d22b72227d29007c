"""Penstock's tables in plain Spark programs: what conditions become, batches, and streams that go on after a kill."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from conftest import by_night
from kits.basics.waiting import wait_until
from kits.engines.engine_process import ROOT, EngineProcess
from kits.engines.statement_engine import StatementEngine
from kits.pages.examples import shown_in
from pyspark.sql.datasource import EqualTo, Filter, GreaterThan, In, LessThanOrEqual, Not, StringStartsWith

from penstock.shell.api.spark_source import RowFilter, spark_type, wanted_by
from penstock.sql.schema import ChildTable, Column, Table
from penstock.sql.types import DataType, Kind, Precision, timestamp

T0 = 1_700_000_000_000
CONFIG = {"timezone": "UTC", "viewRefreshInterval": "50ms"}
ROWS = 400
#: What Spark says where a busy machine starts a Python process more slowly than it waits for; asked again, it's there.
NOT_STARTED = "Python worker failed to connect back"
STARTS = 5
INSTANT = datetime(2023, 11, 14, 22, 13, 20, 1_500, tzinfo=UTC)  # T0 and 1.5 ms


# --- without Spark ---------------------------------------------------------------------------------------------------


def table_of(precision: Precision = "ms") -> Table:
    tags = tuple(Column(name, kind, name) for name, kind in (
        ("g", DataType(Kind.INT)), ("place", DataType(Kind.NCHAR, 10)), ("level", DataType(Kind.DOUBLE))))
    return Table(7, "d", "m", "super", (Column("ts", timestamp(precision), "ts"),), tags)


@pytest.mark.parametrize(("filters", "wanted"), [
    ([], RowFilter()),
    ([GreaterThan(("ts",), INSTANT)], RowFilter(first_ts=T0 + 1)),
    ([LessThanOrEqual(("ts",), INSTANT), LessThanOrEqual(("ts",), INSTANT.replace(year=2024))],
     RowFilter(last_ts=T0 + 1)),
    ([EqualTo(("ts",), INSTANT)], RowFilter(T0 + 1, T0 + 1)),
    ([EqualTo(("tbname",), "a"), In(("g",), (1, 2))],
     RowFilter(labels=(("tbname", frozenset("a")), ("g", frozenset([1, 2]))))),
    ([Not(EqualTo(("g",), 1)), StringStartsWith(("place",), "a"), EqualTo(("level",), 0.1), EqualTo(("v",), 1)],
     RowFilter()),
])
def test_conditions_that_are_understood_narrow_what_is_read(filters: list[Filter], wanted: RowFilter) -> None:
    """Times become bounds, names and tags sets of values; the others leave all."""
    assert wanted_by(filters, table_of()) == wanted


def test_finer_times_than_sparks_are_not_lost() -> None:
    """All nanoseconds that Spark shows as one microsecond are within the bounds of that one."""
    base = (T0 * 1_000 + 1_500) * 1_000
    wanted = wanted_by([EqualTo(("ts",), INSTANT)], table_of("ns"))
    assert wanted.first_ts is not None
    assert wanted.last_ts is not None
    assert wanted.first_ts <= base < base + 999 <= wanted.last_ts


def test_children_are_chosen_by_name_and_tags() -> None:
    """All sets must have the child's value."""
    child = ChildTable(1, "a", 2, (1, "x", 0.5))
    for labels, has in (((("tbname", frozenset("ab")), ("g", frozenset([1]))), True),
                        ((("tbname", frozenset("a")), ("g", frozenset([2]))), False), ((), True)):
        assert RowFilter(labels=labels).has(child, table_of()) is has


def test_every_type_has_one_in_spark() -> None:
    """All kinds but NULL and OTHER, which no column has."""
    for kind in Kind:
        if kind not in (Kind.NULL, Kind.OTHER):
            assert spark_type(DataType(kind))


# --- with Spark ------------------------------------------------------------------------------------------------------


class SparkProgram(EngineProcess):
    """spark_source_child.py in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__("spark_source_child.py", folder)
        assert self.next() == "ready"

    def ask(self, *command: Any) -> Any:
        said = self.attempt(*command)
        for _ in range(STARTS):
            if NOT_STARTED not in said.get("error", ""):
                break
            said = self.attempt(*command)
        assert "error" not in said, said["error"]
        return said["answer"]

    def attempt(self, *command: Any) -> dict[str, Any]:
        self.tell(json.dumps(command))
        said: dict[str, Any] = json.loads(self.next())
        return said


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StatementEngine]:
    running = StatementEngine(tmp_path / "data", CONFIG)
    for statement in ("CREATE DATABASE d VGROUPS 2 KEEP 36500",
                      "CREATE STABLE d.m (ts TIMESTAMP, v INT, u BIGINT UNSIGNED) TAGS (g INT)",
                      *(f"CREATE TABLE d.c{n} USING d.m TAGS ({n})" for n in range(5))):
        running.run(statement)
    insert(running, 0)
    yield running
    running.end()


def insert(engine: StatementEngine, start: int) -> None:
    """Inserts ROWS rows in small statements, so that there are many versions."""
    for first in range(start, start + ROWS, 10):
        values = " ".join(
            f"d.c{n % 5} VALUES ({T0 + n * 1000}, {n}, {2**64 - 1 - n})" for n in range(first, first + 10))
        engine.run(f"INSERT INTO {values}")


@pytest.mark.slow
def test_the_example_prints_what_the_page_says(tmp_path: Path) -> None:
    """docs/spark.md shows what examples/in_spark.py prints."""
    answer = subprocess.run([sys.executable, str(ROOT / "examples" / "in_spark.py")], cwd=tmp_path, capture_output=True,
                            text=True, check=False, timeout=300)
    assert [f"{answer.stdout.strip()}\n"] == shown_in(ROOT / "docs" / "spark.md", "text"), answer.stderr[-2000:]


@pytest.mark.slow
@by_night
def test_a_plain_spark_program_reads_follows_and_resumes(
    tmp_path: Path, engine: StatementEngine, request: pytest.FixtureRequest
) -> None:
    """Batches are the table; a query over the stream gives the batch's answer, also after Spark was killed in it."""
    data = str(tmp_path / "data")
    options = {"path": data, "table": "d.m"}
    spark = SparkProgram(tmp_path)
    request.addfinalizer(spark.end)

    # Batch: types, rows, conditions, columns, cuts.
    assert spark.ask("schema", options) == [
        ["ts", "timestamp"], ["v", "int"], ["u", "decimal(20,0)"], ["tbname", "string"], ["g", "int"]]
    assert spark.ask("read", options, ["ts", "v", "u", "tbname", "g"]) == [
        [T0 + n * 1000, n, str(2**64 - 1 - n), f"c{n % 5}", n % 5] for n in range(ROWS)]
    assert spark.ask("partitions", options, "true") == 2
    assert spark.ask("partitions", options, "tbname = 'c1'") == 1
    assert spark.ask("read", options, ["v"], "g IN (1, 2) AND ts >= timestamp_millis(1700000390000)") == [
        [n] for n in range(390, ROWS) if n % 5 in (1, 2)]
    assert spark.ask("read", {**options, "schema": "g INT, v BIGINT"}, ["v", "g"])[:2] == [[0, 0], [1, 1]]
    ((_, cut),) = engine.run("SHOW CUT FROM d")
    for wrong, text in (({"path": data, "table": "d.mm"}, "d.mm does not exist"), ({"path": data}, "must be named"),
                        ({**options, "cut": "9:1"}, "no cut of this database")):
        assert text in spark.attempt("read", wrong, ["v"])["error"]

    # Stream: killed in the middle of many small batches, while rows keep coming.
    spark.ask("stream", {**options, "maxRowsPerTrigger": "10"})
    wait_until(lambda: spark.ask("batches") >= 2, 300)
    spark.kill()
    insert(engine, ROWS)
    again = SparkProgram(tmp_path)
    request.addfinalizer(again.end)
    before = again.ask("batches")
    assert 2 <= before < ROWS // 10
    again.ask("stream", {**options, "maxRowsPerTrigger": "400"})
    found = again.ask("done")
    assert found == again.ask("windows", options)
    assert sum(row[2] for row in found) == 2 * ROWS
    assert sum(row[3] for row in found) == sum(range(2 * ROWS))

    # As of the cut from before, and only what came behind it.
    assert len(again.ask("read", {**options, "cut": cut}, ["v"])) == ROWS
    sizes = again.ask("available", {**options, "startingCut": cut, "maxRowsPerTrigger": "100"})
    assert sum(sizes) == ROWS
    assert max(sizes) <= 100
    assert again.ask("available", {**options, "startingCut": cut}) in ([], [0])
