"""Tables read from outside of the engine's process, while it runs and after it was killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from kits.engines.statement_engine import StatementEngine

from penstock.common.errors import InvalidStatementError, NotFoundError, UnavailableError
from penstock.mnode.query.detached_table import DetachedTable, RowBounds
from penstock.wal.reader import WalGapError

CONFIG = {"timezone": "UTC", "viewRefreshInterval": "1h", "walSegmentSize": "64KiB"}  # nothing is flushed by itself
T0 = 1_700_000_000_000


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[StatementEngine]:
    running = StatementEngine(tmp_path / "data", CONFIG)
    for statement in (
        "CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d",
        "CREATE STABLE m (ts TIMESTAMP, v INT, s VARCHAR(20)) TAGS (g INT, place NCHAR(10), since TIMESTAMP)",
        *(f"CREATE TABLE c{n} USING m TAGS ({n}, 'p{n % 2}', {T0 + n})" for n in range(5)),
        "CREATE TABLE n (ts TIMESTAMP, x DOUBLE)",
    ):
        running.run(statement)
    yield running
    running.end()


def insert(engine: StatementEngine, start: int, count: int) -> None:
    for n in range(start, start + count):
        engine.run(f"INSERT INTO d.c{n % 5} VALUES ({T0 + n}, {n}, 's{n}')")
        engine.run(f"INSERT INTO d.n VALUES ({T0 + n}, {n})")


def found(tables: Iterator[pa.Table]) -> list[tuple[Any, ...]]:
    """Returns the rows of all pieces, times as integers, sorted."""
    rows: list[tuple[Any, ...]] = []
    for table in tables:
        columns = (column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column
                   for column in table.columns)
        rows += zip(*(column.to_pylist() for column in columns), strict=True)
    return sorted(rows)


def everything(table: DetachedTable, **options: Any) -> list[tuple[Any, ...]]:
    names = [name for name, _ in table.columns]
    return sorted(row for vgroup_id in table.vgroup_ids for row in found(table.rows(vgroup_id, names, **options)))


def expected(numbers: range | list[int]) -> list[tuple[Any, ...]]:
    return [(T0 + n, n, f"s{n}", f"c{n % 5}", n % 5, f"p{n % 5 % 2}", T0 + n % 5) for n in numbers]


def test_rows_are_those_that_sql_gives(tmp_path: Path, engine: StatementEngine) -> None:
    """Of super, child and normal tables, with names and tags, acknowledged a moment ago, before and after a flush."""
    data = tmp_path / "data"
    insert(engine, 0, 20)
    table = DetachedTable(data, "d", "m")
    assert [name for name, _ in table.columns] == ["ts", "v", "s", "tbname", "g", "place", "since"]
    assert everything(table) == expected(range(20))
    engine.run("FLUSH DATABASE d")
    insert(engine, 20, 10)
    assert everything(table) == expected(range(30))
    cut = dict(table.cut())
    engine.run(f"DELETE FROM d.m WHERE ts < {T0 + 10}")
    engine.run(f"INSERT INTO d.c1 VALUES ({T0 + 11}, 11, 'again')")
    engine.run("ALTER STABLE d.m ADD COLUMN extra INT")
    engine.run(f"INSERT INTO d.c0 VALUES ({T0 + 30}, 30, 's30', 7)")
    assert everything(table) == sorted(
        row if row[1] != 11 else (*row[:2], "again", *row[3:]) for row in expected(range(10, 31)))
    names = ["tbname", "v"]
    assert sorted(row for vgroup_id, version in cut.items()
                  for row in found(table.rows(vgroup_id, names, as_of=version))) == sorted(
        (f"c{n % 5}", n) for n in range(30))
    wider = DetachedTable(data, "d", "m")
    assert [row[3] for row in everything(wider) if row[3] is not None] == [7]
    child = DetachedTable(data, "d", "c2")
    assert [(*row[:3], *row[4:]) for row in everything(child)] == expected(range(12, 30, 5))
    normal = DetachedTable(data, "d", "n")
    assert len(normal.vgroup_ids) == 1
    assert everything(normal) == [(T0 + n, float(n)) for n in range(30)]
    assert everything(table, bounds=RowBounds(T0 + 20, T0 + 21)) == expected([20, 21])
    (third,) = (child.uid for child in table.children() if child.name == "c3")
    assert everything(table, bounds=RowBounds(tuids=(third,))) == expected([13, 18, 23, 28])


def test_what_was_written_comes_once(
    tmp_path: Path, engine: StatementEngine, request: pytest.FixtureRequest
) -> None:
    """From cut to cut, also when the engine was killed in between; tables that were dropped have no rows."""
    data = tmp_path / "data"
    table = DetachedTable(data, "d", "m")
    names = [name for name, _ in table.columns]
    first = dict(table.cut())
    rows: list[tuple[Any, ...]] = []
    for step in range(3):
        insert(engine, step * 10, 10)
        if step == 1:
            engine.kill()
        last = dict(table.cut())
        for vgroup_id in table.vgroup_ids:
            rows += found(table.written(vgroup_id, names, first[vgroup_id], last[vgroup_id]))
        first = last
        if step == 1:
            engine = StatementEngine(data, CONFIG)
            request.addfinalizer(engine.end)
    assert sorted(rows) == expected(range(30))
    engine.run("DROP TABLE d.c4")
    again = [row for vgroup_id in table.vgroup_ids
             for row in found(table.written(vgroup_id, names, 0, last[vgroup_id]))]
    assert sorted(again) == expected([n for n in range(30) if n % 5 != 4])
    (vgroup_id, *_) = table.vgroup_ids
    with pytest.raises((WalGapError, UnavailableError), match=r"was there already|never written"):
        found(table.written(vgroup_id, names, 0, last[vgroup_id] + 100))


def test_tables_that_were_moved_or_dropped(tmp_path: Path, engine: StatementEngine) -> None:
    """Rows that moved to another vnode come once, from there; who began before the move is told, as of a drop."""
    data = tmp_path / "data"
    insert(engine, 0, 20)
    before = DetachedTable(data, "d", "m")
    assert everything(before) == expected(range(20))
    engine.run("ALTER DATABASE d VGROUPS 4")
    insert(engine, 20, 10)
    after = DetachedTable(data, "d", "m")
    names = [name for name, _ in after.columns]
    cut = dict(after.cut())
    assert cut == dict(before.cut())
    assert len(cut) == 4
    assert everything(after) == expected(range(30))
    written = [found(after.written(vgroup_id, names, 0, version)) for vgroup_id, version in cut.items()]
    assert sorted(row for rows in written for row in rows) == expected(range(30))
    with pytest.raises(UnavailableError, match="were split"):
        everything(before)
    engine.run("DROP TABLE d.m")
    for use in (after.cut, lambda: everything(after)):
        with pytest.raises(NotFoundError, match=r"d\.m was dropped|has no table"):
            use()


def test_names_that_do_not_exist_are_named(tmp_path: Path, engine: StatementEngine) -> None:
    """The directory, the database, the table, and the column with what may be meant."""
    data = tmp_path / "data"
    for arguments, text in (((tmp_path / "elsewhere", "d", "m"), "is not a data directory"),
                            ((data, "e", "m"), "database e does not exist"),
                            ((data, "d", "nn"), r"table d.nn does not exist")):
        with pytest.raises(NotFoundError, match=text):
            DetachedTable(*arguments)
    table = DetachedTable(data, "d", "m")
    with pytest.raises(InvalidStatementError, match=r"no column plaze.*did you mean place"):
        found(table.rows(table.vgroup_ids[0], ["plaze"]))
