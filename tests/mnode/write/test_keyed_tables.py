"""Tables with a KEY in place of a time: one row for each key, of any type, however rows come, through restarts."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from conftest import times
from hypothesis import given, settings
from hypothesis import strategies as st
from kits.engines.data_directories import T0
from kits.engines.sandboxes import TestBed

from penstock.common.clock import ManualClock
from penstock.common.fs import OsFs
from penstock.mnode.access.session import SessionState
from penstock.mnode.admin.dump import Dump, DumpOptions
from penstock.mnode.admin.restore import Restore
from penstock.mnode.admin.sandbox import Sandbox
from penstock.sql.rows import keyed_rows
from penstock.sql.rows.keyed_rows import key_texts, keyed
from penstock.sql.schema import Column, Table
from penstock.sql.types import DataType, Kind

TEXTS = st.text(st.sampled_from("ab\x1e\x1f\\'\x00é012"), max_size=4)
SMALL, LARGE = [-(2**63), -(2**58), -1, 0, 1, 2**31, 2**58, 2**63 - 1], [0, 1, 2**58, 2**63, 2**64 - 1]
#: What a KEY may be made of: the type, and values of it.
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "TINYINT": st.sampled_from([-128, -1, 0, 1, 127]),
    "INT UNSIGNED": st.sampled_from([0, 1, 2**32 - 1]),
    "BIGINT": st.sampled_from(SMALL),
    "BIGINT UNSIGNED": st.sampled_from(LARGE),
    "BOOL": st.booleans(),
    "DOUBLE": st.sampled_from([0.0, 0.1, 1e300, -1.5]),
    "VARCHAR(40)": TEXTS.filter(lambda text: "\x00" not in text),
    "NCHAR(10)": TEXTS.filter(lambda text: "\x00" not in text),
    "TIMESTAMP": st.integers(0, 3).map(lambda n: T0 + n),
    "DECIMAL(6, 2)": st.sampled_from([Decimal("1.50"), Decimal("-1.50"), Decimal("0.00")]),
}


def written(value: Any) -> str:
    if isinstance(value, str):
        return "'" + value.replace("\\", "\\\\").replace("'", "''") + "'"
    return str(value).lower() if isinstance(value, bool) else str(value)


def shown(value: Any) -> Any:
    return round(value.replace(tzinfo=value.tzinfo or UTC).timestamp() * 1000) if isinstance(value, datetime) else value


def rows_of(sandbox: Sandbox, query: str) -> list[tuple[Any, ...]]:
    table = sandbox.execute(query).table
    assert table is not None
    return [tuple(map(shown, row.values())) for row in table.to_pylist()]


@settings(max_examples=times(8, 500))
@given(st.data())
def test_a_table_is_what_was_written_last(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Against a dictionary: rows come, are rewritten whole or in part, and go; by key, by value, or all."""
    kinds = data.draw(st.lists(st.sampled_from(list(KINDS)), min_size=1, max_size=3).filter(
        lambda kinds: kinds[0] != "TIMESTAMP"))
    play(data, kinds, tmp_path_factory.mktemp("keyed"))


def play(data: st.DataObject, kinds: list[str], folder: Path) -> None:
    names = [f"k{n}" for n in range(len(kinds))]
    keys = st.tuples(*(KINDS[kind] for kind in kinds))
    known: dict[tuple[Any, ...], tuple[int | None, int]] = {}
    sandbox = Sandbox("UTC", T0, directory=folder)
    sandbox.execute("CREATE DATABASE d VGROUPS 2")
    sandbox.execute("USE d")
    columns = ", ".join(f"{name} {kind}" for name, kind in zip(names, kinds, strict=True))
    sandbox.execute(f"CREATE TABLE t ({columns}, v INT, w INT, PRIMARY KEY ({', '.join(names)}))")
    for _ in range(data.draw(st.integers(1, 12))):
        step = data.draw(st.sampled_from(["insert", "insert", "insert", "some", "delete", "where", "all", "flush",
                                          "restart"]))
        some = data.draw(st.lists(keys, min_size=1, max_size=4))
        number = data.draw(st.integers(0, 9))
        if step == "insert":
            sandbox.execute("INSERT INTO t VALUES " + " ".join(
                f"({', '.join(map(written, key))}, {number + place}, {place})" for place, key in enumerate(some)))
            known.update({key: (number + place, place) for place, key in enumerate(some)})
        elif step == "some":
            sandbox.execute(f"INSERT INTO t (w, {', '.join(names)}) VALUES " + " ".join(
                f"({number}, {', '.join(map(written, key))})" for key in some))
            known.update({key: (known[key][0] if key in known else None, number) for key in some})
        elif step == "delete":
            where = " AND ".join(f"{name} = {written(value)}" for name, value in zip(names, some[0], strict=True))
            sandbox.execute(f"DELETE FROM t WHERE {where}")
            known.pop(some[0], None)
        elif step == "where":
            sandbox.execute(f"DELETE FROM t WHERE v >= {number}")
            known = {key: row for key, row in known.items() if row[0] is None or row[0] < number}
        elif step == "all":
            sandbox.execute("DELETE FROM t")
            known = {}
        elif step == "flush":
            sandbox.execute("FLUSH DATABASE d")
        else:
            sandbox.close()
            sandbox = Sandbox("UTC", T0, directory=folder)
            sandbox.execute("USE d")
        found = rows_of(sandbox, "SELECT * FROM t")
        assert sorted(found, key=repr) == sorted(((*key, *row) for key, row in known.items()), key=repr)
        assert rows_of(sandbox, "SELECT count(*) FROM t") == [(len(known),)]
    sandbox.close()


@given(st.lists(st.tuples(TEXTS, TEXTS), min_size=2, max_size=20))
def test_texts_of_keys_are_equal_where_the_keys_are(rows: list[tuple[str, str]]) -> None:
    """Whatever is in them, also what stands between values."""
    columns = [pa.array(values, pa.string()) for values in zip(*rows, strict=True)]
    texts = key_texts(columns, [Kind.VARCHAR, Kind.NCHAR]).to_pylist()
    assert len(set(texts)) == len(set(rows))
    assert len(dict(zip(texts, rows, strict=True))) == len(set(rows))


@pytest.mark.parametrize("kinds", [(Kind.INT,), (Kind.BIGINT,), (Kind.UBIGINT,), (Kind.BIGINT, Kind.INT),
                                   (Kind.SMALLINT, Kind.UBIGINT, Kind.UTINYINT), (Kind.UINT, Kind.SMALLINT)])
def test_whole_numbers_lie_in_their_order(kinds: tuple[Kind, ...]) -> None:
    """As far as there is room for them: the others lie behind, each in a place of its own."""
    columns = tuple(Column(f"k{n}", DataType(kind), f"k{n}", primary_key=True) for n, kind in enumerate(kinds))
    table = Table(1, "d", "t", "normal", columns)
    bits = [min(DataType(kind).width() * 8, 26) - 1 for kind in kinds]
    ends = [[0, 1, (1 << width) - 1] if kind.name.startswith("U") else [-(1 << width), -1, 0, (1 << width) - 1]
            for kind, width in zip(kinds, bits, strict=True)]
    rows = sorted([()] if not ends else [(*head, value) for head in _products(ends[:-1]) for value in ends[-1]])
    batch = pa.RecordBatch.from_arrays(
        [pa.array(values, column.type.arrow())
         for values, column in zip(zip(*rows, strict=True), columns, strict=True)],
        names=[column.physical for column in columns])
    places = keyed(table, batch).column(0).cast(pa.int64()).to_pylist()
    assert places == sorted(set(places))


def _products(ends: list[list[int]]) -> list[tuple[int, ...]]:
    return [(*head, value) for head in _products(ends[:-1]) for value in ends[-1]] if ends else [()]


def test_a_row_at_the_place_of_another_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where two keys have one place, a delete of the one leaves the other."""
    place = keyed_rows._FIRST_OF_TEXTS
    monkeypatch.setattr(keyed_rows, "_places", lambda keys, texts: pa.array([place] * len(texts)).to_numpy())
    with Sandbox() as sandbox:
        for statement in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (k VARCHAR(5) PRIMARY KEY, v INT)",
                          "INSERT INTO t VALUES ('a', 1) ('b', 2) ('a', 3)"):
            sandbox.execute(statement)
        assert rows_of(sandbox, "SELECT * FROM t ORDER BY k") == [("a", 3), ("b", 2)]
        sandbox.execute("DELETE FROM t WHERE k = 'a'")
        assert rows_of(sandbox, "SELECT * FROM t") == [("b", 2)]
        sandbox.execute("INSERT INTO t VALUES ('c', 4)")
        sandbox.execute("DELETE FROM t WHERE k IN ('b', 'c')")
        assert rows_of(sandbox, "SELECT * FROM t") == []


def test_all_ways_in_lead_to_one_row(tmp_path: Path) -> None:
    """INSERT of values, of a query, of a file; Arrow; and CREATE TABLE AS."""
    csv = tmp_path / "rows.csv"
    csv.write_text("a,b,v\n1,x,3\n")
    with Sandbox() as sandbox:
        for statement in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (a INT, b NCHAR(5), v INT, PRIMARY KEY (a, b))",
                          "INSERT INTO t VALUES (1, 'x', 1)", "INSERT INTO t SELECT 1, 'x', 2",
                          f"INSERT INTO t FILE '{csv}'"):
            sandbox.execute(statement)
        sandbox.engine.insert_arrow("t", pa.table({"v": [4], "b": ["x"], "a": [1]}), sandbox.session)
        assert rows_of(sandbox, "SELECT * FROM t") == [(1, "x", 4)]
        sandbox.execute("CREATE TABLE o PRIMARY KEY (a, b) AS SELECT * FROM t")
        sandbox.execute("INSERT INTO o VALUES (1, 'x', 5)")
        assert rows_of(sandbox, "SELECT * FROM o") == [(1, "x", 5)]


def test_a_dump_and_the_views_have_the_columns_alone(tmp_path: Path) -> None:
    """What is restored is a table with a KEY again."""
    (tmp_path / "data").mkdir()
    with Sandbox("UTC", T0, fs=OsFs(), directory=tmp_path / "data") as sandbox:
        for statement in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (k VARCHAR(5) PRIMARY KEY, v INT)",
                          "INSERT INTO t VALUES ('a', 1) ('b', 2) ('a', 3) (NULL, 9)", "FLUSH DATABASE d",
                          "INSERT INTO t VALUES ('b', 4)", "FLUSH DATABASE d"):
            sandbox.execute(statement)
    with duckdb.connect() as peer:
        peer.execute((tmp_path / "data" / "views.sql").read_text())
        found = peer.execute("FROM d.t ORDER BY k")
        assert [column[0] for column in found.description or ()] == ["k", "v"]
        assert found.fetchall() == [("a", 3), ("b", 4), (None, 9)]
    Dump(tmp_path / "data", tmp_path / "dump", tmp_path / "udf", DumpOptions(), OsFs(), ManualClock(T0),
         lambda what, more: None).run()
    with Sandbox("UTC", T0) as sandbox:
        Restore(tmp_path / "dump", None).run(sandbox.engine, sandbox.session, lambda what, more: None)
        sandbox.execute("USE d")
        sandbox.execute("INSERT INTO t VALUES ('a', 5)")
        assert rows_of(sandbox, "SELECT * FROM t ORDER BY k NULLS LAST") == [("a", 5), ("b", 4), (None, 9)]


def test_a_delete_leaves_what_comes_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row that is written anew after the look at the rows, so that the condition isn't true any more, stays."""
    with Sandbox() as sandbox:
        for statement in ("CREATE DATABASE d", "USE d", "CREATE TABLE t (k INT PRIMARY KEY, v INT)",
                          "INSERT INTO t VALUES (1, -1)"):
            sandbox.execute(statement)
        deletes = sandbox.engine.parts.deletes
        run = deletes._run_query
        written = "INSERT INTO d.t VALUES (1, 5)", SessionState("UTC")
        writer = threading.Thread(target=sandbox.engine.execute, args=written)

        def run_and_write(*given: Any) -> Any:
            found = run(*given)
            writer.start()
            writer.join(0.5)  # as long as it has to wait for the delete it can't end
            return found

        monkeypatch.setattr(deletes, "_run_query", run_and_write)
        sandbox.execute("DELETE FROM t WHERE v = -1")
        writer.join()
        assert rows_of(sandbox, "SELECT * FROM t") == [(1, 5)]


def test_streams_look_up_in_it() -> None:
    """By its key; a row that is written anew counts for the rows that come then."""
    with TestBed(config={"stateMapSize": "1GiB"}) as bed:
        bed.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d",
                "CREATE TABLE sites (site VARCHAR(8) PRIMARY KEY, factor INT)", "INSERT INTO sites VALUES ('x', 10)",
                "CREATE TABLE m (ts TIMESTAMP, v INT, site VARCHAR(8))",
                "CREATE STREAM s LOOKUP_FRESHNESS 0s INTO o AS SELECT m.ts, m.v * s.factor w FROM m JOIN sites s "
                "ON m.site = s.site")
        bed.execute(f"INSERT INTO m VALUES ({T0}, 1, 'x') ({T0 + 1}, 1, 'y')")
        bed.run()
        assert bed.rows("SELECT w FROM o") == [(10,)]
