"""Any DuckDB reads the tables through views over Parquet files while the engine writes."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from kits.basics.client_packages import client_process, needs_clients
from kits.basics.duckdb_plans import join_conditions

from penstock.common.clock import ManualClock
from penstock.common.errors import StorageError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.vnode.dnode import Dnode
from penstock.vnode.read.views import ViewTable, open_duckdb, write_children, write_views
from penstock.vnode.store.vnode_options import VnodeOptions
from penstock.vnode.vnode import Vnode

METERS, LOG = 100, 200
METERS_SCHEMA = pa.schema([("c1", pa.timestamp("ms")), ("c2", pa.float64())])
LOG_SCHEMA = pa.schema([("c1", pa.timestamp("ns")), ("c2", pa.string()), ("c3", pa.int32())])
TABLES = (
    ViewTable("power", "meters", METERS, (("ts", "c1"), ("current", "c2")), ("c1",), (("group id", "t1"),)),
    ViewTable("power", "log", LOG, (("ts", "c1"), ("key", "c2"), ("n", "c3")), ("c1", "c2"), kind="normal"),
)


class Engine:
    """Two vnodes with a super table and a normal table, and their views."""

    def __init__(self, root: Path) -> None:
        self.clock = ManualClock()
        self.paths = DataPaths(root)
        self.dnode = Dnode(self.paths, fs=OsFs(), clock=self.clock)
        self.vnodes = [self.dnode.open_vnode(n, VnodeOptions(n, compact_min_parts=2)) for n in (1, 2)]
        for vnode in self.vnodes:
            vnode.tables.define(METERS, METERS_SCHEMA, 1)
        self.vnodes[0].tables.define(LOG, LOG_SCHEMA, 2)
        write_children(self.paths, METERS, pa.table({"uid": pa.array([1, 2], pa.uint64()), "name": ["d1", "d2"],
                                                     "t1": pa.array([10, 20], pa.int32())}))
        write_views(self.paths, TABLES)

    def query(self, sql: str) -> list[tuple[object, ...]]:
        """Runs a query on a fresh connection, as a stranger would."""
        with open_duckdb(self.paths) as connection:
            return connection.execute(sql).fetchall()


@pytest.fixture
def engine(tmp_path: Path) -> Engine:
    """An empty engine."""
    return Engine(tmp_path)


def meters(uid: int, *values: tuple[int, float | None]) -> pa.RecordBatch:
    """Returns rows (milliseconds, current) of one meter."""
    return pa.record_batch({"_tuid": pa.array([uid] * len(values), pa.uint64()),
                            "c1": pa.array([v[0] for v in values], pa.timestamp("ms")),
                            "c2": pa.array([v[1] for v in values], pa.float64())})


READ = 'SELECT tbname, "group id", epoch_ms(ts), current FROM power.meters ORDER BY ALL'


def test_views_of_empty_tables_are_empty(engine: Engine) -> None:
    """The views work before the first row."""
    assert engine.query(READ) == []
    assert engine.query("SELECT * FROM power.log") == []
    assert [row[0] for row in engine.query("DESCRIBE power.meters")] == ["ts", "current", "tbname", "group id"]
    engine.dnode.close()


@needs_clients
def test_an_older_duckdb_reads_the_views(engine: Engine) -> None:
    """DuckDB 1 attaches the file, and sees the newest versions of rows, with their tags, and a composite key."""
    engine.vnodes[0].write(METERS, meters(1, (1, 1.0), (2, 2.0)))
    engine.vnodes[0].write(METERS, meters(1, (2, 22.0)))
    engine.vnodes[1].write(METERS, meters(2, (1, 5.0)))
    for vnode in engine.vnodes:
        vnode.flush()
    with client_process("duckdb_client", str(engine.paths.views_duckdb)) as client:
        assert client.ask("version")[0].startswith("1.")
        assert client.ask(READ.replace("power.", "penstock.power.")) == [
            ["d1", 10, 1, 1.0], ["d1", 10, 2, 22.0], ["d2", 20, 1, 5.0]]
        assert client.ask("SELECT * FROM penstock.power.log") == []
    engine.dnode.close()


def test_views_show_the_newest_rows_of_all_vnodes(engine: Engine) -> None:
    """Updates replace, deletes hide, in whichever file the rows are; dropped children are gone."""
    one, two = engine.vnodes
    one.write(METERS, meters(1, (1, 1.0), (2, 2.0), (3, 3.0)))
    two.write(METERS, meters(2, (1, 5.0)))
    assert engine.query(READ) == []
    engine.dnode.flush_all()
    assert engine.query(READ) == [("d1", 10, 1, 1.0), ("d1", 10, 2, 2.0), ("d1", 10, 3, 3.0), ("d2", 20, 1, 5.0)]
    one.write(METERS, meters(1, (2, None)))
    one.delete(METERS, [1], 3, 3)
    two.delete(METERS, None, -2**63, 2**63 - 1)
    two.write(METERS, meters(2, (9, 9.0)))
    engine.dnode.flush_all()
    expected = [("d1", 10, 1, 1.0), ("d1", 10, 2, None), ("d2", 20, 9, 9.0)]
    assert engine.query(READ) == expected
    one.compact(full=True)
    assert engine.query(READ) == expected
    engine.clock.advance(100)
    engine.dnode.maintain()
    one.compact(full=True)
    assert engine.query(READ) == expected
    one.tables.drop_children(METERS, [1])
    assert engine.query(READ) == expected[2:]
    engine.dnode.close()


def test_views_find_deleted_rows_by_their_time(engine: Engine) -> None:
    """By child table alone each row would be compared with all deletes of its own; only those of longer times are."""
    one = engine.vnodes[0]
    one.write(METERS, meters(1, *((ts, 1.0) for ts in range(9))))
    one.delete(METERS, [1], 3, 3)
    one.delete(METERS, [1], 5, 6)
    one.flush()
    with open_duckdb(engine.paths) as connection:
        conditions = join_conditions(connection, "SELECT * FROM power.meters")
        assert len(connection.sql("SELECT * FROM power.meters").fetchall()) == 6
    of_deletes = [each for each in conditions if any("first_ts" in one for one in each)]
    assert sorted(any(" = " in one and "first_ts" in one for one in each) for each in of_deletes) == [False, True]
    engine.dnode.close()


def test_deletes_stay_visible_after_a_restart(engine: Engine) -> None:
    """The files with the deletes are there again after a restart, also once the old ones' grace is over."""
    one = engine.vnodes[0]
    one.write(METERS, meters(1, (1, 1.0), (2, 2.0)))
    one.flush()
    one.delete(METERS, [1], 1, 1)
    one.flush()
    engine.dnode.close()
    engine.dnode = Dnode(engine.paths, fs=OsFs(), clock=engine.clock)
    engine.dnode.open_vnode(1, VnodeOptions(1))
    engine.clock.advance(100)
    engine.dnode.maintain()
    assert engine.query(READ) == [("d1", 10, 2, 2.0)]
    engine.dnode.close()


def test_composite_keys_and_nanoseconds(engine: Engine) -> None:
    """A normal table has no tbname; rows with one time and different keys are different rows."""
    batch = pa.record_batch({"_tuid": pa.array([LOG] * 2, pa.uint64()), "c1": pa.array([5, 5], pa.timestamp("ns")),
                             "c2": ["a", "b"], "c3": pa.array([1, 2], pa.int32())})
    log = engine.vnodes[0]
    log.write(LOG, batch)
    log.flush()
    log.write(LOG, batch.slice(1).set_column(3, "c3", pa.array([7], pa.int32())))
    log.flush()
    assert engine.query("SELECT epoch_ns(ts), key, n FROM power.log ORDER BY ALL") == [(5, "a", 1), (5, "b", 7)]
    log.delete(LOG, None, 5, 5)
    log.flush()
    assert engine.query("SELECT * FROM power.log") == []
    engine.dnode.close()


def test_a_new_column_appears_with_new_views(engine: Engine) -> None:
    """Old views keep working after ALTER; rewritten ones show the column, NULL for old rows."""
    one = engine.vnodes[0]
    one.write(METERS, meters(1, (1, 1.0)))
    one.flush()
    for vnode in engine.vnodes:
        vnode.tables.define(METERS, METERS_SCHEMA.append(pa.field("c9", pa.string())), 1)
    assert engine.query(READ) == [("d1", 10, 1, 1.0)]
    table = ViewTable("power", "meters", METERS, (("ts", "c1"), ("current", "c2"), ("note", "c9")), ("c1",))
    write_views(engine.paths, [table])
    assert engine.query("SELECT current, note FROM power.meters") == [(1.0, None)]
    engine.dnode.close()


def test_views_sql_does_the_same_in_any_duckdb(engine: Engine) -> None:
    """views.sql can be run in a plain DuckDB, and another process may attach views.duckdb."""
    engine.vnodes[0].write(METERS, meters(1, (1, 1.0)))
    engine.dnode.flush_all()
    with duckdb.connect() as connection:
        connection.execute(engine.paths.views_sql.read_text())
        assert connection.execute(READ).fetchall() == [("d1", 10, 1, 1.0)]
    script = ("import duckdb, sys; c = duckdb.connect(); c.execute(f\"ATTACH '{sys.argv[1]}' AS p (READ_ONLY)\");"
              "print(c.execute('SELECT current FROM p.power.meters').fetchall())")
    command = [sys.executable, "-c", script, str(engine.paths.views_duckdb)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[(1.0,)]"
    engine.dnode.close()


def test_names_that_differ_in_case_have_numbers(engine: Engine) -> None:
    """DuckDB can't tell them apart: of columns, tables and databases that are one to it the first keeps its name."""
    engine.vnodes[0].write(METERS, meters(1, (1, 1.0)))
    engine.dnode.flush_all()
    columns = (("ts", "c1"), ("V", "c2"), ("v", "c2"), ("v_2", "c2"), ("TbName", "c2"))
    write_views(engine.paths, [
        ViewTable("power", "meters", METERS, columns, ("c1",), (("TBNAME", "t1"),)),
        ViewTable("power", "METERS", METERS, columns[:1], ("c1",)),
        ViewTable("Power", "m", METERS, columns[:1], ("c1",))])
    assert engine.query("SELECT * EXCLUDE (ts) FROM power.meters") == [(1.0, 1.0, 1.0, 1.0, "d1", 10)]
    assert engine.query("SELECT count(*) FROM power.meters WHERE tbname = 'd1'") == [(1,)]
    found = engine.query("DESCRIBE power.meters")
    assert [row[0] for row in found] == ["ts", "V", "v_3", "v_2", "TbName_2", "tbname", "TBNAME_3"]
    for view in ("Power_2.m", "power.METERS_2"):
        assert engine.query(f"SELECT count(*) FROM {view}") == [(1,)]
    engine.dnode.close()


def test_a_view_of_an_undefined_table_is_an_error(tmp_path: Path) -> None:
    """A table that no vnode knows has no files; that is said, and the old views stay."""
    engine = Engine(tmp_path)
    before = engine.paths.views_sql.read_text()
    with pytest.raises(StorageError, match="cannot create the views"):
        write_views(engine.paths, [ViewTable("power", "ghost", 999, (("ts", "c1"),), ("c1",), kind="normal")])
    assert engine.paths.views_sql.read_text() == before
    assert [name.name for name in tmp_path.iterdir() if ".tmp" in name.name] == []
    engine.dnode.close()


def test_readers_see_no_torn_state_while_the_engine_writes(engine: Engine) -> None:
    """During writes, updates, flushes and compactions a reader sees each key once, and counts never shrink."""
    one: Vnode = engine.vnodes[0]
    done = threading.Event()
    problems: list[BaseException] = []

    def read() -> None:
        least = 0
        try:
            while not done.is_set():
                ((count, keys, total),) = engine.query(
                    "SELECT count(*), count(DISTINCT ts), sum(current) FROM power.meters")
                assert count == keys
                assert isinstance(count, int)
                assert count >= least
                assert count == 0 or total == count
                least = count
        except BaseException as error:  # noqa: BLE001 - handed to the main thread
            problems.append(error)

    thread = threading.Thread(target=read)
    thread.start()
    for turn in range(40):
        one.write(METERS, meters(1, *((turn * 10 + i, 1.0) for i in range(10))))
        one.write(METERS, meters(1, (turn * 5, 1.0)))
        one.flush()
        one.compact()
        engine.clock.advance(0.5)
        one.maintain()
    done.set()
    thread.join()
    assert problems == []
    assert engine.query("SELECT count(*) FROM power.meters") == [(400,)]
    engine.dnode.close()
