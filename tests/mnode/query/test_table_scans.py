"""Rows as queries see them: gathered as Arrow or read in place by DuckDB, and by another DuckDB through the views."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from conftest import times
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from kits.engines.embedded import Embedded

import penstock
from penstock.mnode.query.table_scans import Scans
from penstock.planner.logical.operators import Scan

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("scan"))
    yield embedded
    embedded.close()


def fresh(db: Embedded) -> None:
    db.all("DROP DATABASE IF EXISTS d", "CREATE DATABASE d VGROUPS 2 PRECISION 'us'", "USE d",
           "CREATE STABLE m (ts timestamp, v int, at timestamp, s varchar(9)) TAGS (a int, since timestamp)")


def read(db: Embedded, table: str, columns: tuple[str, ...], small_rows: int, **bounds: Any) -> list[tuple[Any, ...]]:
    """Returns the rows of a scan in order; `small_rows` 0 makes DuckDB read them in place."""
    import duckdb

    found = db.engine.catalog.table("d", table)
    assert found is not None
    scans = Scans(db.engine.catalog, db.engine.storage, db.engine.system_tables, db.engine.parts.external_tables,
                  small_rows)
    relation = scans.relation(Scan("scan", found, columns, **bounds))
    with duckdb.connect() as connection:
        for name, rows in relation.tables.items():
            connection.register(name, rows)
        names = ", ".join(f'"{column}"' for column in ("_tuid", *columns))
        return connection.execute(f"SELECT {names} FROM ({relation.sql}) ORDER BY ALL").fetchall()


COLUMNS = ("ts", "v", "at", "s", "a", "since", "tbname")
STEPS = st.lists(st.one_of(
    st.tuples(st.just("insert"), st.integers(0, 3), st.integers(0, 9), st.integers(-5, 5)),
    st.tuples(st.just("partial"), st.integers(0, 3), st.integers(0, 9), st.integers(-5, 5)),
    st.tuples(st.just("delete"), st.integers(0, 3), st.integers(0, 9), st.integers(0, 5)),
    st.tuples(st.just("flush"), st.just(0), st.just(0), st.just(0)),
), max_size=12)


@settings(max_examples=times(3, 200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(steps=STEPS)
def test_rows_are_the_same_however_they_are_read(db: Embedded, steps: list[tuple[str, int, int, int]]) -> None:
    """After any inserts, upserts, deletes and flushes both ways of reading agree with a plain model."""
    fresh(db)
    model: dict[tuple[int, int], list[Any]] = {}
    for action, child, at, value in steps:
        ts = T0 * 1000 + at
        if action == "insert":
            db.execute(f"INSERT INTO m{child} USING m TAGS ({child}, {ts}) "
                       f"VALUES ({ts}, {value}, {ts + value}, 'x{value}')")
            model[child, ts] = [value, ts + value, f"x{value}"]
        elif action == "partial":
            db.execute(f"INSERT INTO m (tbname, ts, v, a) VALUES ('m{child}', {ts}, {value}, {child})")
            model[child, ts] = [value, *model.get((child, ts), [None, None, None])[1:]]
        elif action == "delete":
            db.execute(f"DELETE FROM m WHERE ts BETWEEN {ts} AND {ts + value} AND a = {child}")
            model = {key: row for key, row in model.items() if key[0] != child or not ts <= key[1] <= ts + value}
        else:
            db.execute("FLUSH DATABASE d")
    expected = sorted((f"m{child}", ts, *row) for (child, ts), row in model.items())
    for small_rows in (1000, 0):
        rows = read(db, "m", COLUMNS, small_rows)
        assert sorted((row[7], row[1], row[2], row[3], row[4]) for row in rows) == expected
        assert all(row[5] == int(row[7][1:]) for row in rows)
    assert read(db, "m", COLUMNS, 1000) == read(db, "m", COLUMNS, 0)


def test_bounds_leave_out_what_lies_outside(db: Embedded) -> None:
    """A scan with bounds on time reads only what they allow, both ways."""
    fresh(db)
    rows = " ".join(f"({T0 * 1000 + i}, {i}, NULL, NULL)" for i in range(20))
    db.execute(f"INSERT INTO m1 USING m TAGS (1, NULL) VALUES {rows} m2 USING m TAGS (2, NULL) VALUES {rows}")
    db.execute("FLUSH DATABASE d")
    for small_rows in (1000, 0):
        found = read(db, "m", ("v",), small_rows, first_ts=T0 * 1000 + 5, last_ts=T0 * 1000 + 7)
        assert sorted(row[1] for row in found) == [5, 5, 6, 6, 7, 7]


def test_ranges_leave_out_what_lies_outside(db: Embedded) -> None:
    """A scan with a range of another timestamp has what that allows, both ways, and no replaced row."""
    fresh(db)
    ts = T0 * 1000
    db.execute("INSERT INTO m1 USING m TAGS (1, NULL) VALUES "
               + " ".join(f"({ts + i}, {i}, {'NULL' if i == 4 else ts + i}, NULL)" for i in range(10)))
    db.execute("FLUSH DATABASE d")
    wanted = (("at", ts + 3, ts + 6),)
    for small_rows in (1000, 0):
        assert [row[1] for row in read(db, "m", ("v", "at"), small_rows, ranges=wanted)] == [3, 5, 6]
        assert [row[1] for row in read(db, "m", ("v", "at"), small_rows, ranges=(("at", None, ts + 1),))] == [0, 1]
    db.execute(f"INSERT INTO m1 VALUES ({ts + 5}, 50, {ts + 9}, NULL) ({ts + 20}, 20, {ts + 6}, NULL)")
    for small_rows in (1000, 0):
        found = [row[1:] for row in read(db, "m", ("v", "at"), small_rows, ranges=wanted)]
        assert found == [(3, ts + 3), (6, ts + 6), (20, ts + 6)]


def test_ranges_of_columns_that_parts_are_older_than(db: Embedded) -> None:
    """There is no value of theirs that lies in any range."""
    fresh(db)
    db.execute(f"INSERT INTO m1 USING m TAGS (1, NULL) VALUES ({T0 * 1000}, 0, NULL, NULL)")
    db.execute("FLUSH DATABASE d")
    db.execute("ALTER STABLE m ADD COLUMN later timestamp")
    db.execute(f"INSERT INTO m1 (ts, v, later) VALUES ({T0 * 1000 + 1}, 1, {T0 * 1000})")
    for small_rows in (1000, 0):
        found = read(db, "m", ("v", "later"), small_rows, ranges=(("later", 0, None),))
        assert [row[1:] for row in found] == [(1, T0 * 1000)]


def test_a_child_is_read_alone(db: Embedded) -> None:
    """A child table's scan has its rows only, with its own name and tags."""
    fresh(db)
    db.execute(f"INSERT INTO m1 USING m TAGS (1, {T0 * 1000}) VALUES ({T0 * 1000}, 1, NULL, 'a') "
               f"m2 USING m TAGS (2, NULL) VALUES ({T0 * 1000}, 2, NULL, 'b')")
    child = db.engine.catalog.table("d", "m1")
    assert child is not None
    for small_rows in (1000, 0):
        assert read(db, "m1", ("v", "s", "a", "since", "tbname"), small_rows) == [
            (child.uid, 1, "a", 1, T0 * 1000, "m1")]


def test_another_duckdb_reads_the_same(tmp_path: Path) -> None:
    """The views show columns under their current names, tags and child names, and follow every change."""
    db = Embedded(tmp_path)
    try:
        db.all("CREATE DATABASE d VGROUPS 2", "USE d",
               "CREATE STABLE m (ts timestamp, v int, `Group` varchar(4)) TAGS (site varchar(9), since timestamp)",
               "CREATE TABLE n (ts timestamp, a int)",
               f"INSERT INTO m1 USING m TAGS ('x', {T0}) VALUES ({T0}, 1, 'g') ({T0 + 1}, 2, NULL) n VALUES ({T0}, 5)",
               f"INSERT INTO m2 USING m TAGS (NULL, NULL) VALUES ({T0}, 3, 'h')",
               f"INSERT INTO m1 VALUES ({T0}, 9, 'k')", f"DELETE FROM m1 WHERE ts = {T0 + 1}")
        db.engine.flush()
        with penstock.duckdb(str(tmp_path)) as reader:
            query = 'SELECT tbname, v, "Group", site, epoch_ms(since) FROM d.m ORDER BY tbname'
            assert reader.execute(query).fetchall() == [("m1", 9, "k", "x", T0), ("m2", 3, "h", None, None)]
            assert reader.execute("SELECT a FROM d.n").fetchall() == [(5,)]
        db.all("ALTER TABLE n RENAME COLUMN a TO b", "ALTER TABLE m1 SET TAG site = 'y'", "DROP TABLE m2",
               "FLUSH DATABASE d")
        with penstock.duckdb(str(tmp_path)) as reader:
            assert reader.execute("SELECT b FROM d.n").fetchall() == [(5,)]
            assert reader.execute("SELECT tbname, site FROM d.m").fetchall() == [("m1", "y")]
    finally:
        db.close()


def test_views_are_complete_after_closing(tmp_path: Path) -> None:
    """What was written just before the engine closed is there for DuckDB afterwards."""
    db = Embedded(tmp_path)
    db.all("CREATE DATABASE d VGROUPS 1", "CREATE STABLE d.m (ts timestamp, v int) TAGS (a int)")
    rows = pa.table({"tbname": ["c1", "c2"], "ts": [T0, T0], "v": [1, 2], "a": [1, 2]})
    db.engine.insert_arrow("d.m", rows, db.session)
    db.close()
    with penstock.duckdb(str(tmp_path)) as reader:
        assert reader.execute("SELECT tbname, v, a FROM d.m ORDER BY v").fetchall() == [("c1", 1, 1), ("c2", 2, 2)]


def test_only_the_tables_that_conditions_leave_are_read(db: Embedded, monkeypatch: pytest.MonkeyPatch) -> None:
    """A scan of some children has their rows alone, both ways, and looks into no vnode that has none of them."""
    fresh(db)
    for number in range(6):
        db.execute(f"INSERT INTO m{number} USING m TAGS ({number}, NULL) VALUES ({T0 * 1000}, {number}, NULL, NULL)")
    children = {name: db.engine.catalog.table("d", name) for name in ("m0", "m1", "m2", "m3", "m4", "m5")}
    homes = {name: child.vgroup_id for name, child in children.items() if child is not None}
    assert len(set(homes.values())) == 2
    looked_into: list[int] = []
    snapshot = db.engine.storage.snapshot

    def watched(vgroup: int, table: int, *, as_of: int) -> object:
        looked_into.append(vgroup)
        return snapshot(vgroup, table, as_of=as_of)

    monkeypatch.setattr(db.engine.storage, "snapshot", watched)
    neighbours = [name for name in homes if homes[name] == homes["m0"]]
    for wanted in (["m0"], neighbours, []):
        tuids = tuple(child.uid for name, child in children.items() if child is not None and name in wanted)
        for small_rows in (1000, 0):
            looked_into.clear()
            rows = read(db, "m", ("v", "a", "tbname"), small_rows, tuids=tuids)
            assert sorted(row[3] for row in rows) == wanted
            assert all(row[1] == row[2] == int(row[3][1:]) for row in rows)
            assert not wanted or set(looked_into) == {homes["m0"]}
    assert db.run("SELECT v FROM m WHERE tbname = 'm3' AND v > 0") == [(3,)]
    assert db.run("SELECT count(*), sum(a) FROM m WHERE a > 3") == [(2, 9)]
    assert db.run("SELECT count(*) FROM m WHERE tbname = 'nosuch'") == [(0,)]
