"""INSERT in all its forms: what is written, what is refused as a whole, and what upserts keep."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from kits.engines.embedded import NOW_MS, Embedded

from penstock.common.errors import InvalidValueError, PenstockError

T0 = 1_700_000_000_000


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("insert"))
    yield embedded
    embedded.close()


@pytest.fixture
def db(engine: Embedded) -> Embedded:
    """A fresh database `d` with the super table `m` and the normal table `t`."""
    engine.all("DROP DATABASE IF EXISTS d", "CREATE DATABASE d VGROUPS 2", "USE d",
               "CREATE STABLE m (ts timestamp, v int, s varchar(4)) TAGS (a tinyint, b nchar(3))",
               "CREATE TABLE t (ts timestamp, v int, w double)")
    return engine


def refused(db: Embedded, statement: str) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        db.execute(statement)
    return caught.value


def test_many_tables_in_one_statement(db: Embedded) -> None:
    """VALUES, column lists, USING before and after them, in any mixture; the count of rows comes back."""
    result = db.execute(
        f"INSERT INTO m1 USING m TAGS (1, 'x') VALUES ({T0}, 1, 'a'), ({T0 + 1}, 2, NULL) "
        f"m2 (ts, v) USING m (b) TAGS ('y') VALUES ({T0}, 3) t (w, ts) VALUES (2.5, {T0}) ({T0}.0, {T0 + 1}) "
        f"m1 (ts, s) VALUES ({T0 + 2}, 'z')")
    assert result.affected == 6
    assert db.run("SELECT tbname, v, s, a, b FROM m ORDER BY tbname, ts") == [
        ("m1", 1, "a", 1, "x"), ("m1", 2, None, 1, "x"), ("m1", None, "z", 1, "x"), ("m2", 3, None, None, "y")]
    assert db.run("SELECT v, w FROM t ORDER BY ts") == [(None, 2.5), (None, float(T0))]


@pytest.mark.parametrize("bad", [
    f"m9 USING m TAGS (9, 'x') VALUES ({T0}, 'text', 'a')",
    f"m9 USING m TAGS (9, 'x') VALUES ({T0}, 3000000000, 'a')",
    f"m9 USING m TAGS (9, 'x') VALUES ({T0}, 1, 'too long')",
    f"m9 USING m TAGS (9, 'x') VALUES ({T0}, 1)",
    f"m9 USING m TAGS (999, 'x') VALUES ({T0}, 1, 'a')",
    f"m9 USING m TAGS (9, 'long') VALUES ({T0}, 1, 'a')",
    "m9 USING m TAGS (9, 'x') VALUES (NULL, 1, 'a')",
    "m9 USING m TAGS (9, 'x') VALUES ('1960-01-01', 1, 'a')",
    "m9 USING m TAGS (9, 'x') VALUES ('2971-01-01', 1, 'a')",
    f"m9 USING t TAGS (9) VALUES ({T0}, 1, 'a')",
    f"t USING m TAGS (9, 'x') VALUES ({T0}, 1, 'a')",
    f"nosuch VALUES ({T0}, 1)",
    "t (v) VALUES (1)",
    f"t (ts, v, x) VALUES ({T0}, 1, 1)",
    f"m VALUES ({T0}, 1, 'a')",
    f"m (ts, v) VALUES ({T0}, 1)",
    f"m (tbname, ts, v) VALUES ('a.b', {T0}, 1)",
    f"m (tbname, ts, v) VALUES (NULL, {T0}, 1)",
    f"m (tbname, ts, v) VALUES ('t', {T0}, 1)",
])
def test_one_mistake_refuses_the_whole_statement(db: Embedded, bad: str) -> None:
    """Good rows before the mistake are not written, and no child table is created."""
    refused(db, f"INSERT INTO t VALUES ({T0}, 1, 1) m8 USING m TAGS (8, 'x') VALUES ({T0}, 1, 'a') {bad}")
    assert db.run("SELECT * FROM t") == []
    assert db.run("SELECT TAGS tbname FROM m") == []


def test_upserts_keep_what_is_not_mentioned(db: Embedded) -> None:
    """The last row of a key wins, columns that are not named keep their value, a written NULL replaces it."""
    db.all(f"INSERT INTO t VALUES ({T0}, 1, 1.5) ({T0}, 2, 2.5)", f"INSERT INTO t (ts, w) VALUES ({T0}, 3.5)")
    assert db.run("SELECT v, w FROM t") == [(2, 3.5)]
    db.execute(f"INSERT INTO t (ts, v) VALUES ({T0}, NULL) t (ts, w) VALUES ({T0}, 4.5) t (ts, v) VALUES ({T0}, 7)")
    assert db.run("SELECT v, w FROM t") == [(7, 4.5)]


def test_using_an_existing_table_ignores_its_tags(db: Embedded) -> None:
    """Tags given for a child that exists change nothing, in both forms."""
    db.all(f"INSERT INTO m1 USING m TAGS (1, 'x') VALUES ({T0}, 1, 'a')",
           f"INSERT INTO m1 USING m TAGS (2, 'y') VALUES ({T0 + 1}, 1, 'a')",
           f"INSERT INTO m (tbname, ts, v, a) VALUES ('m1', {T0 + 2}, 1, 3) ('m2', {T0}, 2, 4) ('m2', {T0 + 1}, 2, 5)")
    assert sorted(db.run("SELECT TAGS tbname, a, b FROM m")) == [("m1", 1, "x"), ("m2", 4, None)]
    assert db.run("SELECT count(*) FROM m") == [(5,)]


def test_now_is_the_same_instant_in_a_statement(db: Embedded) -> None:
    """All NOWs are the statement's start; arithmetic with durations works."""
    db.execute("INSERT INTO t VALUES (now, 1, 1) (now - 1s, 2, 2) (now() + 1a, 3, 3)")
    times = [int(row[0].replace(tzinfo=dt.UTC).timestamp() * 1000) for row in db.run("SELECT ts FROM t ORDER BY ts")]
    assert times == [NOW_MS - 1000, NOW_MS, NOW_MS + 1]


def test_time_zone_of_the_session_reads_local_times(db: Embedded) -> None:
    """A time without zone is local to the session, one with a zone is not."""
    db.session.time_zone = "Asia/Shanghai"
    try:
        db.execute("INSERT INTO t VALUES ('2023-11-14 08:00:00', 1, 1) ('2023-11-14T08:00:00Z', 2, 2)")
        assert db.run("SELECT ts FROM t ORDER BY ts")[0][0] == dt.datetime(2023, 11, 14, 8)
    finally:
        db.session.time_zone = "UTC"
    assert [row[0].hour for row in db.run("SELECT ts FROM t ORDER BY ts")] == [0, 8]


# --- CSV ---------------------------------------------------------------------------------------------------------


def test_csv_files_are_read(db: Embedded, tmp_path: Path) -> None:
    """Quoted strings and times, bare numbers, empty cells and NULL; also into a table that USING creates."""
    path = tmp_path / "rows.csv"
    path.write_text("'2023-11-14 00:00:00.500',1,'a,b'\n1700000000000,,'NULL'\n1700000000001,NULL,'it''s'\n")
    assert db.execute(f"INSERT INTO m1 USING m TAGS (1, 'x') FILE '{path}'").affected == 3
    assert db.run("SELECT v, s FROM m1 ORDER BY ts") == [(1, "a,b"), (None, "NULL"), (None, "it's")]


@pytest.mark.parametrize(("line", "word"), [
    (f"{T0},1,'too long'", "line 2"), (f"{T0},x,'a'", "line 2"), ("'yesterday',1,'a'", "line 2"),
    (f"{T0},1", "line 2"), ("'1960-01-01 00:00:00',1,'a'", "line 2"),
])
def test_csv_mistakes_name_the_line(db: Embedded, tmp_path: Path, line: str, word: str) -> None:
    """A bad line refuses the file, says which one it is, and nothing is written."""
    path = tmp_path / "rows.csv"
    path.write_text(f"{T0},1,'a'\n{line}\n")
    error = refused(db, f"INSERT INTO m1 USING m TAGS (1, 'x') FILE '{path}'")
    assert isinstance(error, InvalidValueError)
    assert word in str(error)
    assert db.run("SELECT TAGS tbname FROM m") == []
    refused(db, f"INSERT INTO t FILE '{tmp_path}/nosuch.csv'")


# --- SELECT ------------------------------------------------------------------------------------------------------


def test_rows_of_a_query_are_inserted(db: Embedded) -> None:
    """By position or into named columns, converted to their types; a wrong number of columns is refused."""
    db.execute(f"INSERT INTO m1 USING m TAGS (1, 'x') VALUES ({T0}, 1, 'a') ({T0 + 1}, 2, 'b')")
    assert db.execute("INSERT INTO t SELECT ts, v, v FROM m1").affected == 2
    db.execute("INSERT INTO t (ts, w) SELECT _wstart, avg(v) FROM m1 INTERVAL(10s)")
    assert db.run("SELECT v, w FROM t ORDER BY ts") == [(1, 1.5), (2, 2.0)]
    assert refused(db, "INSERT INTO t SELECT ts, v FROM m1").code == 0x263F
    assert isinstance(refused(db, "INSERT INTO t SELECT ts, s, v FROM m1"), InvalidValueError)


# --- Arrow -------------------------------------------------------------------------------------------------------


def test_arrow_tables_are_inserted(db: Embedded) -> None:
    """By column name, into normal, child and super tables, with any unit of time."""
    rows = pa.table({"w": [1.5, None], "ts": pa.array([T0 * 1000, T0 * 1000 + 1000], pa.timestamp("us", "UTC"))})
    db.engine.insert_arrow("t", rows, db.session)
    assert db.run("SELECT v, w FROM t ORDER BY ts") == [(None, 1.5), (None, None)]
    many = pa.table({"tbname": pa.array(["m1", "m2", "m1"]).dictionary_encode(), "ts": [T0, T0, T0 + 1],
                     "v": pa.array([1, 2, 3], pa.int8()), "a": [1, 2, 9]})
    assert db.engine.insert_arrow("d.m", many, db.session).affected == 3
    assert db.run("SELECT tbname, v, a FROM m ORDER BY tbname, ts") == [("m1", 1, 1), ("m1", 3, 1), ("m2", 2, 2)]


@pytest.mark.parametrize("columns", [
    {"ts": [T0], "v": [3_000_000_000]}, {"ts": [T0], "v": ["x"]}, {"v": [1]}, {"ts": [T0], "nosuch": [1]},
    {"ts": [None], "v": [1]}, {"ts": [1], "v": [1]},
])
def test_arrow_rows_that_do_not_fit_are_refused(db: Embedded, columns: dict[str, list[object]]) -> None:
    """Overflow, wrong types, missing keys, unknown columns and times out of range write nothing."""
    with pytest.raises(PenstockError):
        db.engine.insert_arrow("t", pa.table(columns), db.session)
    assert db.run("SELECT * FROM t") == []


def test_arrow_strings_are_measured(db: Embedded) -> None:
    """Strings longer than their column are refused in Arrow tables as in SQL."""
    with pytest.raises(InvalidValueError, match="row 2"):
        db.engine.insert_arrow("m", pa.table({"tbname": ["m1", "m1"], "ts": [T0, T0 + 1], "s": ["abcd", "abcde"]}),
                               db.session)
    assert db.run("SELECT TAGS tbname FROM m") == []


# --- keys and threads ----------------------------------------------------------------------------------------------


def test_composite_keys_tell_rows_apart(db: Embedded) -> None:
    """The second column is a part of the key: it must be given and not NULL, and the same time fits twice."""
    db.execute("CREATE TABLE k (ts timestamp, n int PRIMARY KEY, v int)")
    db.execute(f"INSERT INTO k VALUES ({T0}, 1, 1) ({T0}, 2, 2) ({T0}, 1, 3)")
    assert db.run("SELECT n, v FROM k ORDER BY n") == [(1, 3), (2, 2)]
    refused(db, f"INSERT INTO k (ts, v) VALUES ({T0}, 1)")
    refused(db, f"INSERT INTO k VALUES ({T0}, NULL, 1)")


def test_synced_vnodes_are_written_side_by_side(db: Embedded) -> None:
    """Under WAL_LEVEL 2 a small statement over several vnodes is complete when it returns."""
    db.all("DROP DATABASE IF EXISTS synced", "CREATE DATABASE synced VGROUPS 3 WAL_LEVEL 2",
           "CREATE STABLE synced.m (ts timestamp, v int) TAGS (a int)")
    rows = " ".join(f"('c{n}', {T0}, {n}, {n})" for n in range(12))
    assert db.execute(f"INSERT INTO synced.m (tbname, ts, v, a) VALUES {rows}").affected == 12
    assert db.run("SELECT count(*), sum(v) FROM synced.m") == [(12, 66)]


def test_threads_create_each_child_once(db: Embedded) -> None:
    """Eight threads that insert into the same new children get one child per name and lose no row."""
    def insert(thread: int) -> None:
        for number in range(10):
            db.execute(f"INSERT INTO m (tbname, ts, v, a) VALUES ('c{number}', {T0 + thread}, {thread}, {number})")

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(insert, range(8)))
    assert db.run("SELECT count(*), count(v) FROM m") == [(80, 80)]
    assert sorted(db.run("SELECT TAGS tbname, a FROM m")) == [(f"c{n}", n) for n in range(10)]
