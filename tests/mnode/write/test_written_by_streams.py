"""What a stream has made, it alone writes: every other way in is refused, until the stream is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pyarrow as pa
import pytest
from kits.engines.sandboxes import T0, TestBed

from penstock.common.errors import InUseError

MINUTE = 60_000


@contextmanager
def made() -> Iterator[TestBed]:
    """Stream s makes o, w makes o2 and w_executions, and e writes into `mine`, which was there before."""
    with TestBed(now_ms=T0) as bed:
        bed.all(
            "CREATE DATABASE d VGROUPS 2", "USE d", "CREATE STABLE st (ts TIMESTAMP, v INT) TAGS (g INT)",
            "CREATE TABLE d0 USING st TAGS (0)",
            "CREATE STREAM s INTO o AS SELECT _wstart ts, count(*) n FROM st PARTITION BY tbname INTERVAL(1m)",
            "CREATE STREAM w INTERVAL(1m) SLIDING(1m) FROM st PARTITION BY tbname INTO o2 "
            "AS SELECT _twstart ts, count(*) n FROM %%trows",
            "CREATE STABLE mine (ts TIMESTAMP, n BIGINT) TAGS (g BIGINT UNSIGNED)",
            "CREATE STREAM e INTO mine AS SELECT _wstart ts, count(*) n FROM st PARTITION BY tbname INTERVAL(1m)",
            f"INSERT INTO d0 VALUES ({T0}, 1) ({T0 + 2 * MINUTE}, 1)")
        yield bed


@pytest.fixture
def bed() -> Iterator[TestBed]:
    with made() as bed:
        yield bed


@pytest.fixture(scope="module")
def unchanged() -> Iterator[TestBed]:
    """For tests that change nothing."""
    with made() as bed:
        yield bed


def child_of(bed: TestBed, table: str) -> str:
    return str(bed.rows(f"SELECT DISTINCT tbname FROM {table}")[0][0])


def arrow(bed: TestBed, table: str) -> None:
    bed.engine.insert_arrow(table, pa.table({
        "tbname": ["x"], "ts": pa.array([T0], pa.timestamp("ms")), "n": [1]}), bed.session)


WAYS: dict[str, Callable[[TestBed], object]] = {
    "rows": lambda bed: bed.execute(f"INSERT INTO o (tbname, ts, n) VALUES ('x', {T0}, 7)"),
    "rows, the whole way": lambda bed: bed.execute(f"INSERT INTO o (tbname, ts, n) VALUES ('x', {T0}, 3 + 4)"),
    "rows of a child": lambda bed: bed.execute(f"INSERT INTO `{child_of(bed, 'o')}` VALUES ({T0}, 7)"),
    "rows of a child that USING makes": lambda bed: bed.execute(f"INSERT INTO x USING o TAGS (1) VALUES ({T0}, 7)"),
    "rows of a child, with USING": lambda bed: bed.execute(
        f"INSERT INTO `{child_of(bed, 'o')}` USING o TAGS (1) VALUES ({T0}, 3 + 4)"),
    "rows of a query": lambda bed: bed.execute("INSERT INTO o (tbname, ts, n) SELECT 'x', ts, v FROM st"),
    "Arrow": lambda bed: arrow(bed, "d.o"),
    "a line": lambda bed: bed.engine.ingest_lines(b"o n=5i", "d", "ms", bed.session),
    "a line with a new column": lambda bed: bed.engine.ingest_lines(b"o m=5i", "d", "ms", bed.session),
    "a child table": lambda bed: bed.execute("CREATE TABLE x USING o TAGS (1)"),
    "child tables": lambda bed: bed.execute("CREATE TABLE x USING o TAGS (1) y USING o TAGS (2)"),
    "a tag": lambda bed: bed.execute(f"ALTER TABLE `{child_of(bed, 'o')}` SET TAG group_id = 1"),
    "a column": lambda bed: bed.execute("ALTER TABLE o ADD COLUMN m INT"),
    "DELETE": lambda bed: bed.execute("DELETE FROM o"),
    "DELETE of a child": lambda bed: bed.execute(f"DELETE FROM `{child_of(bed, 'o')}`"),
    "DROP of a child": lambda bed: bed.execute(f"DROP TABLE `{child_of(bed, 'o')}`"),
    "DROP of a child, CASCADE": lambda bed: bed.execute(f"DROP TABLE `{child_of(bed, 'o')}` CASCADE"),
    "DROP": lambda bed: bed.execute("DROP TABLE o"),
    "executions": lambda bed: bed.execute(f"INSERT INTO w_executions (ts, id) VALUES ({T0}, 1)"),
    "DELETE of executions": lambda bed: bed.execute("DELETE FROM w_executions"),
    "DROP of executions": lambda bed: bed.execute("DROP TABLE w_executions"),
    "a column of executions": lambda bed: bed.execute("ALTER TABLE w_executions ADD COLUMN m INT"),
    "results of a trigger": lambda bed: bed.execute("DELETE FROM o2"),
    "a stream into executions": lambda bed: bed.execute(
        "CREATE STREAM x INTO w_executions AS SELECT _wstart ts, count(*) n FROM st INTERVAL(1m)"),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_in_is_refused(unchanged: TestBed, way: str) -> None:
    """And nothing changes: no row, and no child table."""
    bed = unchanged
    before = [bed.rows(f"SELECT * FROM {table} ORDER BY ts") for table in ("o", "o2", "w_executions")]
    tables = bed.rows("SELECT table_name FROM information_schema.ins_tables ORDER BY table_name")
    with pytest.raises(InUseError) as refused:
        WAYS[way](bed)
    assert refused.value.hint
    assert [bed.rows(f"SELECT * FROM {table} ORDER BY ts") for table in ("o", "o2", "w_executions")] == before
    assert bed.rows("SELECT table_name FROM information_schema.ins_tables ORDER BY table_name") == tables


def test_the_refusal_says_whose_it_is_and_what_to_do(bed: TestBed) -> None:
    """Results stay with DROP STREAM, executions go with it."""
    with pytest.raises(InUseError, match="table o has the results of stream s, which alone writes it") as refused:
        bed.execute("DELETE FROM o")
    assert refused.value.hint == "write into a table of your own; DROP STREAM s leaves this one to you"
    with pytest.raises(InUseError, match="table w_executions has the executions of stream w") as refused:
        bed.execute("DELETE FROM w_executions")
    assert refused.value.hint == "write into a table of your own; DROP STREAM w drops this one, too"


def test_what_was_there_before_stays_writable(bed: TestBed) -> None:
    """Who made a table goes on to write it, beside the stream."""
    bed.all(f"INSERT INTO x USING mine TAGS (7) VALUES ({T0}, 7)", "DELETE FROM x")


def test_without_its_stream_a_table_is_the_users(bed: TestBed) -> None:
    """As soon as the stream is dropped, also for a statement that was refused a moment ago."""
    insert = f"INSERT INTO `{child_of(bed, 'o')}` VALUES ({T0}, 7)"
    with pytest.raises(InUseError):
        bed.execute(insert)
    bed.all("DROP STREAM s", insert)
    assert bed.rows(f"SELECT n FROM o WHERE ts = {T0}") == [(7,)]
    bed.execute("DELETE FROM o")


def test_a_table_that_a_stream_makes_is_its_own_at_once(bed: TestBed) -> None:
    """What a connection knows of a name doesn't outlive the stream that comes to write it."""
    bed.all("DROP STREAM s", "DROP TABLE o", "CREATE TABLE o (ts TIMESTAMP, n BIGINT)",
            f"INSERT INTO o VALUES ({T0}, 1)", f"INSERT INTO o VALUES ({T0}, 2)", "DROP TABLE o",
            "CREATE STREAM s INTO o (ts, n) AS SELECT g, count(*) n FROM st GROUP BY g")
    with pytest.raises(InUseError):
        bed.execute(f"INSERT INTO o VALUES ({T0}, 3)")
