"""Statements that change databases, tables and streams: what they do, what they refuse, and what survives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from kits.engines.embedded import Embedded

from penstock.common.errors import InvalidStatementError, PenstockError, ReplicasMissingError
from penstock.mnode.ddl.column_rules import check_columns
from penstock.sql.schema import Column
from penstock.sql.types import DataType, Kind, timestamp
from penstock.tasks.protocol.child_records import new_children
from penstock.wal.log import LogFiles
from penstock.wal.reader import WalReader
from penstock.wal.record import DeleteRecord, MetaRecord, Record, RowsRecord


@pytest.fixture
def db(tmp_path: Path) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path)
    embedded.all("CREATE DATABASE d VGROUPS 2 KEEP 36500", "USE d")
    yield embedded
    embedded.close()


@pytest.fixture(scope="module")
def unchanged(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    """One database for all statements that are refused and so leave it as it is."""
    embedded = Embedded(tmp_path_factory.mktemp("unchanged"))
    embedded.all("CREATE DATABASE d VGROUPS 1", "USE d",
                 "CREATE STABLE m (ts timestamp, v int, s varchar(8)) TAGS (a int, b varchar(4))",
                 "CREATE STABLE one_tag (ts timestamp, v int) TAGS (a int)")
    yield embedded
    embedded.close()


def refused(db: Embedded, statement: str) -> PenstockError:
    with pytest.raises(PenstockError) as caught:
        db.execute(statement)
    return caught.value


def names(db: Embedded, statement: str) -> list[object]:
    return [row[0] for row in db.run(statement)]


# --- databases ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [
    "VGROUPS 0", "VGROUPS 1025", "PRECISION 'sec'", "REPLICA 2", "REPLICA 3", "COMP 3", "WAL_LEVEL 0", "WAL_LEVEL 3",
    "CACHEMODEL 'all'", "BUFFER 2", "PAGES 63", "DURATION 59m", "DURATION 3651d", "KEEP 365001", "KEEP 29",
    "DURATION 3 KEEP 8", "MINROWS 100 MAXROWS 100", "KEEP 20,10", "WAL_FSYNC_PERIOD 180001", "STT_TRIGGER 17",
    "SINGLE_STABLE 2",
])
def test_options_out_of_range_are_refused(unchanged: Embedded, options: str) -> None:
    """Every range of TDengine's options is checked, and the refused database doesn't exist."""
    refused(unchanged, f"CREATE DATABASE x {options}")
    assert "x" not in names(unchanged, "SHOW DATABASES")


def test_options_are_kept_and_shown(db: Embedded) -> None:
    """SHOW CREATE DATABASE gives back what was asked for, in a form that creates an equal database."""
    db.execute("CREATE DATABASE x VGROUPS 1 PRECISION 'us' BUFFER 8 DURATION 5 KEEP 20d,30d WAL_LEVEL 2 COMP 1")
    text = db.run("SHOW CREATE DATABASE x")[0][1]
    for part in ("VGROUPS 1", "PRECISION 'us'", "BUFFER 8", "DURATION 5d", "KEEP 20d,30d", "WAL_LEVEL 2", "COMP 1"):
        assert part in text
    db.execute(text.replace("DATABASE x", "DATABASE y"))
    assert db.run("SHOW CREATE DATABASE y")[0][1] == text.replace("DATABASE x", "DATABASE y")


def test_alter_database_changes_what_can_change(db: Embedded) -> None:
    """KEEP can be altered, PRECISION cannot, and there can't be fewer VGROUPS."""
    db.execute("ALTER DATABASE d KEEP 100")
    assert db.run("SELECT `keep` FROM information_schema.ins_databases WHERE name = 'd'") == [("100d",)]
    refused(db, "ALTER DATABASE d VGROUPS 1")
    refused(db, "ALTER DATABASE d PRECISION 'us'")
    refused(db, "ALTER DATABASE d KEEP 3")


def test_a_dropped_database_takes_its_files_along(db: Embedded) -> None:
    """After DROP DATABASE neither tables nor vnode directories are left, and the name is free."""
    db.all("CREATE TABLE t (ts timestamp, v int)", "INSERT INTO t VALUES (now, 1)")
    vnodes = [path for path in (db.path / "vnode").iterdir() if path.is_dir()]
    assert len(vnodes) == 2
    db.execute("DROP DATABASE d")
    assert not any(path.exists() for path in vnodes)
    assert refused(db, "SELECT * FROM t").code == 0x2616
    db.all("CREATE DATABASE d", "USE d")
    assert db.run("SHOW TABLES") == []


def test_system_databases_cannot_be_changed(db: Embedded) -> None:
    """information_schema is neither dropped nor written to."""
    for statement in ("DROP DATABASE information_schema", "CREATE TABLE information_schema.t (ts timestamp, v int)",
                      "INSERT INTO information_schema.ins_users VALUES (1)", "DROP TABLE information_schema.ins_users",
                      "DELETE FROM information_schema.ins_users"):
        refused(db, statement)


def test_hints_name_the_probable_object(db: Embedded) -> None:
    """Misspelt databases, tables, columns and streams come with a suggestion."""
    db.execute("CREATE TABLE meters (ts timestamp, voltage int)")
    assert "did you mean meters?" in str(refused(db, "SELECT * FROM metres"))
    assert "did you mean meters?" in str(refused(db, "DROP TABLE meter"))
    assert "did you mean voltage?" in str(refused(db, "INSERT INTO meters (ts, voltge) VALUES (now, 1)"))
    db.execute("CREATE DATABASE plant")
    assert "did you mean plant?" in str(refused(db, "USE plan"))


# --- tables -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("statement", "code"), [
    ("CREATE TABLE t (v int, ts timestamp)", 0x2641),
    ("CREATE TABLE t (ts timestamp)", 0x263F),
    ("CREATE TABLE t (ts timestamp, v int, v float)", 0x263C),
    ("CREATE STABLE t (ts timestamp, v int) TAGS (v int)", 0x263C),
    ("CREATE TABLE t (ts timestamp, v json)", None),
    ("CREATE STABLE t (ts timestamp, v int) TAGS (a json, b int)", None),
    ("CREATE TABLE t (ts timestamp, v int, k int PRIMARY KEY)", None),
    ("CREATE TABLE t (ts timestamp, v double PRIMARY KEY)", None),
    ("CREATE TABLE t (ts timestamp, v varchar(65518))", None),
    ("CREATE STABLE t (ts timestamp, v int) TAGS (a varchar(16383))", None),
    ("CREATE TABLE t (ts timestamp, a varchar(60000), b varchar(6000))", None),
    ("CREATE TABLE t (ts timestamp, tbname int)", None),
    (f"CREATE TABLE {'t' * 193} (ts timestamp, v int)", None),
    (f"CREATE TABLE t (ts timestamp, {'v' * 65} int)", None),
])
def test_impossible_tables_are_refused(unchanged: Embedded, statement: str, code: int | None) -> None:
    """Limits and rules of CREATE TABLE hold, with TDengine's code where there is one."""
    error = refused(unchanged, statement)
    if code is not None:
        assert error.code == code
    assert unchanged.run("SHOW TABLES") == []


def test_the_limits_themselves_are_allowed() -> None:
    """128 tags and 4096 columns with tags fit; one more of either doesn't."""
    time = Column("ts", timestamp(), "ts")
    columns = [Column(f"c{i}", DataType(Kind.TINYINT), f"c{i}") for i in range(4096)]
    check_columns([time, *columns[:4095]], [])
    check_columns([time, columns[0]], columns[1:129])
    for too_many in (lambda: check_columns([time, *columns], []),
                     lambda: check_columns([time, columns[0]], columns[1:130]),
                     lambda: check_columns([time, *columns[:4095]], columns[4095:])):
        with pytest.raises(InvalidStatementError):
            too_many()


@pytest.mark.parametrize("name", ["_tuid", "_ver", "_change", "_last"])
def test_names_of_what_the_engine_stores_are_refused(unchanged: Embedded, name: str) -> None:
    """A column called as one that stored rows have would be read as that one."""
    for statement in (f"CREATE TABLE t (ts timestamp, `{name}` int)",
                      f"CREATE STABLE t (ts timestamp, v int) TAGS (`{name}` int)",
                      f"ALTER STABLE m ADD COLUMN `{name}` int", f"ALTER STABLE m ADD TAG `{name}` int",
                      f"CREATE STREAM s INTO o AS SELECT ts, v AS `{name}` FROM m PARTITION BY tbname"):
        assert f"{name} cannot be a column" in str(refused(unchanged, statement))


@pytest.mark.parametrize("name", ["_child", "_op"])
def test_streams_have_no_columns_called_as_those_of_their_result_rows(unchanged: Embedded, name: str) -> None:
    """Of tables they can be; a new target may not have one, nor one that is there."""
    unchanged.execute(f"CREATE STABLE has{name} (ts timestamp, `{name}` int) TAGS (a int)")
    for target in ("o", f"has{name} TAGS (a) SUBTABLE (tbname)"):
        statement = f"CREATE STREAM s INTO {target} AS SELECT ts, v AS `{name}` FROM m PARTITION BY tbname, a"
        assert f"{name} cannot be a column" in str(refused(unchanged, statement))
    unchanged.execute(f"DROP STABLE has{name}")


def test_children_are_all_created_or_none(db: Embedded) -> None:
    """One bad value in a statement of many children creates none of them."""
    db.execute("CREATE STABLE m (ts timestamp, v int) TAGS (a tinyint, b varchar(4))")
    refused(db, "CREATE TABLE m1 USING m TAGS (1, 'x') m2 USING m TAGS (1000, 'x')")
    refused(db, "CREATE TABLE m1 USING m TAGS (1, 'x') m2 USING m TAGS (1, 'too long')")
    assert refused(db, "CREATE TABLE m1 USING m TAGS (1)").code == 0x263F
    assert refused(db, "CREATE TABLE m1 USING m (c) TAGS (1)").code == 0x260E
    assert db.run("SHOW TABLES") == []
    db.execute("CREATE TABLE m1 USING m (b) TAGS ('x') m2 USING m TAGS (2, NULL)")
    assert sorted(db.run("SELECT TAGS tbname, a, b FROM m")) == [("m1", None, "x"), ("m2", 2, None)]


def test_alter_adds_drops_renames_and_keeps_values(db: Embedded) -> None:
    """Columns of a normal table change while their values stay; a dropped name starts empty when it comes back."""
    db.all("CREATE TABLE t (ts timestamp, a int, s varchar(3))", "INSERT INTO t VALUES (1700000000000, 1, 'abc')",
           "ALTER TABLE t ADD COLUMN b double", "ALTER TABLE t RENAME COLUMN a TO c",
           "INSERT INTO t VALUES (1700000000001, 2, 'def', 2.5)")
    assert db.run("SELECT c, s, b FROM t ORDER BY ts") == [(1, "abc", None), (2, "def", 2.5)]
    db.all("ALTER TABLE t DROP COLUMN c", "ALTER TABLE t ADD COLUMN c int", "ALTER TABLE t MODIFY COLUMN s varchar(9)",
           "INSERT INTO t (ts, s) VALUES (1700000000002, 'longer')")
    assert db.run("SELECT s, c FROM t ORDER BY ts") == [("abc", None), ("def", None), ("longer", None)]
    db.reopen()
    assert db.run("SELECT s, c FROM t ORDER BY ts") == [("abc", None), ("def", None), ("longer", None)]


@pytest.mark.parametrize("action", [
    "m DROP COLUMN ts", "m DROP COLUMN nosuch", "m ADD COLUMN v int", "m ADD COLUMN a int", "m MODIFY COLUMN v bigint",
    "m MODIFY COLUMN s varchar(8)", "m MODIFY COLUMN s nchar(20)", "m RENAME COLUMN v TO w", "one_tag DROP TAG a",
    "m RENAME TAG a TO v", "m ADD TAG a int", "m MODIFY TAG a bigint", "m DROP TAG nosuch",
    "one_tag DROP COLUMN v",
])
def test_alterations_that_make_no_sense_are_refused(unchanged: Embedded, action: str) -> None:
    """Each is an error, and the table stays as it was."""
    table = action.split()[0]
    before = unchanged.run(f"DESCRIBE {table}")
    refused(unchanged, f"ALTER STABLE {action}")
    assert unchanged.run(f"DESCRIBE {table}") == before


def test_tags_of_all_children_follow_the_super_table(db: Embedded) -> None:
    """ADD TAG gives NULLs, RENAME keeps values, DROP removes them, SET TAG changes one child."""
    db.all("CREATE STABLE m (ts timestamp, v int) TAGS (a int, b varchar(4))", "CREATE TABLE m1 USING m TAGS (1, 'x')",
           "CREATE TABLE m2 USING m TAGS (2, 'y')", "ALTER STABLE m ADD TAG c bool", "ALTER TABLE m1 SET TAG c = true",
           "ALTER STABLE m RENAME TAG b TO site", "ALTER STABLE m DROP TAG a",
           "ALTER STABLE m MODIFY TAG site varchar(9)", "ALTER TABLE m2 SET TAG site = 'longer'")
    assert sorted(db.run("SELECT TAGS tbname, site, c FROM m")) == [("m1", "x", True), ("m2", "longer", None)]
    refused(db, "ALTER TABLE m1 SET TAG nosuch = 1")
    refused(db, "ALTER TABLE m SET TAG c = true")
    refused(db, "ALTER TABLE m1 ADD COLUMN w int")
    db.reopen()
    assert sorted(db.run("SELECT TAGS tbname, site, c FROM m")) == [("m1", "x", True), ("m2", "longer", None)]


def test_a_dropped_child_leaves_no_rows(db: Embedded) -> None:
    """Its rows vanish from the super table, and a new child of the same name starts empty."""
    db.all("CREATE STABLE m (ts timestamp, v int) TAGS (a int)", "INSERT INTO m1 USING m TAGS (1) VALUES (now, 1)",
           "INSERT INTO m2 USING m TAGS (2) VALUES (now, 2)", "FLUSH DATABASE d", "DROP TABLE m1")
    assert db.run("SELECT tbname, v FROM m") == [("m2", 2)]
    db.execute("CREATE TABLE m1 USING m TAGS (3)")
    assert db.run("SELECT * FROM m1") == []
    db.reopen()
    assert db.run("SELECT count(*) FROM m") == [(1,)]


def test_drop_of_several_tables_checks_all_first(db: Embedded) -> None:
    """An unknown name in the list keeps all tables; IF EXISTS passes over it."""
    db.all("CREATE TABLE a (ts timestamp, v int)", "CREATE TABLE b (ts timestamp, v int)")
    refused(db, "DROP TABLE a, nosuch, b")
    assert len(db.run("SHOW TABLES")) == 2
    db.execute("DROP TABLE IF EXISTS a, nosuch, b")
    assert db.run("SHOW TABLES") == []


def test_delete_takes_ranges_of_time_and_tags(db: Embedded) -> None:
    """Ranges from either side, BETWEEN, equality and tags work; what is not a range is refused with 0x2655."""
    db.execute("CREATE STABLE m (ts timestamp, v int) TAGS (a int)")
    rows = " ".join(f"({1_700_000_000_000 + i}, {i})" for i in range(10))
    db.execute(f"INSERT INTO m1 USING m TAGS (1) VALUES {rows} m2 USING m TAGS (2) VALUES {rows}")
    db.execute("DELETE FROM m WHERE 1700000000002 > ts AND a = 1")
    counts = db.run("SELECT tbname, count(*), min(v) FROM m GROUP BY tbname ORDER BY tbname")
    assert counts == [("m1", 8, 2), ("m2", 10, 0)]
    db.all("DELETE FROM m1 WHERE ts BETWEEN 1700000000003 AND 1700000000004", "DELETE FROM m2 WHERE ts = 1700000000009",
           "DELETE FROM m WHERE ts BETWEEN 1700000000009 AND 1700000000001", "DELETE FROM m2 WHERE a = 1")
    assert db.run("SELECT tbname, count(*) FROM m GROUP BY tbname ORDER BY tbname") == [("m1", 6), ("m2", 9)]
    for condition in ("v > 1", "ts > 1700000000001 OR ts < 5", "ts <> 1700000000001", "ts > v", "a = 1 OR v = 1",
                      "ts + 1 > 5"):
        assert refused(db, f"DELETE FROM m WHERE {condition}").code == 0x2655
    db.execute("DELETE FROM m")
    assert db.run("SELECT count(*) FROM m") == [(0,)]


def test_trim_removes_what_keep_no_longer_allows(db: Embedded) -> None:
    """Rows older than KEEP are gone after TRIM DATABASE."""
    db.all("CREATE TABLE t (ts timestamp, v int)", "INSERT INTO t VALUES (now - 100d, 1) (now, 2)",
           "ALTER DATABASE d KEEP 50", "TRIM DATABASE d")
    assert db.run("SELECT v FROM t") == [(2,)]


# --- META records ---------------------------------------------------------------------------------------------------


def records_of(db: Embedded, name: str) -> Sequence[Record]:
    """Returns what the log of a database's first vnode has."""
    database = db.engine.catalog.database(name)
    assert database is not None
    reader = WalReader(LogFiles(db.engine.paths.wal(database.vgroup_ids[0]), db.engine.fs))
    records = reader.read()
    reader.close()
    return records


def test_children_are_announced_before_their_first_row(db: Embedded) -> None:
    """In every WAL the META record of a child comes before its rows; drops say so behind their delete."""
    db.all("CREATE DATABASE one VGROUPS 1", "USE one", "CREATE STABLE m (ts timestamp, v int) TAGS (a int)",
           "INSERT INTO m1 USING m TAGS (1) VALUES (now, 1)", "ALTER TABLE m1 SET TAG a = 5",
           "ALTER STABLE m ADD COLUMN w int", "DROP TABLE m1")
    table = db.engine.catalog.table("one", "m")
    assert table is not None
    records = records_of(db, "one")
    kinds = [r.body["op"] if isinstance(r, MetaRecord) else type(r).__name__ for r in records]
    assert kinds == ["create_children", "RowsRecord", "set_tags", "alter_table", "DeleteRecord", "drop_children"]
    created, changed = records[0], records[2]
    assert isinstance(created, MetaRecord)
    assert isinstance(changed, MetaRecord)
    assert isinstance(records[4], DeleteRecord)
    [(uid, name, tags)] = new_children(created.body).rows()
    assert (created.body["table_uid"], name, tags) == (table.uid, "m1", (1,))
    assert changed.body["child"] == [uid, "m1", [5]]


@pytest.mark.parametrize("statement", [
    "INSERT INTO m1 USING m TAGS (1) VALUES (now, 1)", "CREATE TABLE m1 USING m TAGS (1)"])
def test_children_are_announced_that_too_few_nodes_have(db: Embedded, statement: str) -> None:
    """Who is told so sends the rows again, and finds the child table: streams have to know of it, too."""
    db.all("CREATE DATABASE one VGROUPS 1", "USE one", "CREATE STABLE m (ts timestamp, v int) TAGS (a int)")
    missing = ReplicasMissingError("too few nodes have it")

    def refuse(version: int) -> None:
        raise missing

    db.engine.catalog.set_cluster_wait(refuse)
    assert refused(db, statement) is missing
    db.engine.catalog.set_cluster_wait(None)
    db.execute("INSERT INTO m1 USING m TAGS (1) VALUES (now, 1)")
    created, rows = records_of(db, "one")
    assert isinstance(created, MetaRecord)
    assert isinstance(rows, RowsRecord)
    [(uid, name, tags)] = new_children(created.body).rows()
    assert (name, tags) == ("m1", (1,))
    table = db.engine.catalog.table("one", "m")
    assert table is not None
    assert db.engine.catalog.child_by_uid(table.uid, uid) is not None


# --- streams --------------------------------------------------------------------------------------------------------


STREAM = "CREATE STREAM s INTO out_s AS SELECT _wstart, sum(v) AS total FROM m PARTITION BY tbname INTERVAL(10s)"


def with_source(db: Embedded) -> None:
    db.execute("CREATE STABLE m (ts timestamp, v int, unused int) TAGS (a int)")


def test_create_stream_makes_the_target_and_returns(db: Embedded) -> None:
    """The result table exists right away, the stream is listed, and DROP STREAM keeps the table."""
    with_source(db)
    db.execute(STREAM)
    assert names(db, "SHOW STABLES") == ["m", "out_s"]
    assert db.run("SELECT stream_name, state, target_table FROM information_schema.ins_streams") == [
        ("s", "STARTING", "out_s")]
    assert [row[0] for row in db.run("DESCRIBE out_s")] == ["_wstart", "total", "group_id"]
    db.execute("DROP STREAM s")
    assert names(db, "SHOW STABLES") == ["m", "out_s"]
    assert db.run("SHOW STREAMS") == []


def test_stream_names_and_targets_are_taken_once(db: Embedded) -> None:
    """Names, targets and missing streams are refused with TDengine's codes."""
    with_source(db)
    db.execute(STREAM)
    assert refused(db, STREAM).code == 0x03F0
    db.execute(STREAM.replace("STREAM s", "STREAM IF NOT EXISTS s"))
    other = STREAM.replace("STREAM s INTO", "STREAM s2 INTO")
    assert refused(db, other).code == 0x03F7
    for verb in ("DROP", "PAUSE", "RESUME"):
        assert refused(db, f"{verb} STREAM nosuch").code == 0x03F1
        db.execute(f"{verb} STREAM IF EXISTS nosuch")


def test_what_a_stream_uses_stays(db: Embedded) -> None:
    """Source and target can't be dropped, used columns can't change; unused ones can, and after DROP STREAM all can."""
    with_source(db)
    db.execute(STREAM)
    for statement in ("DROP TABLE m", "DROP STABLE out_s", "ALTER STABLE m DROP COLUMN v", "ALTER STABLE m DROP TAG a",
                      "ALTER STABLE out_s ADD COLUMN x int", "ALTER STABLE out_s ADD TAG x int"):
        assert refused(db, statement).code == 0x03F3
    db.all("ALTER STABLE m DROP COLUMN unused", "ALTER STABLE m ADD COLUMN w int", "ALTER STABLE m ADD TAG x int",
           "DROP STREAM s", "DROP TABLE m",
           "DROP STABLE out_s")


def test_streams_across_databases_hold_both(db: Embedded) -> None:
    """A database that is one end of a stream can't be dropped; one that is both ends takes the stream along."""
    with_source(db)
    db.all("CREATE DATABASE e", STREAM.replace("out_s", "e.out_s"))
    assert refused(db, "DROP DATABASE d").code == 0x03F3
    assert refused(db, "DROP DATABASE e").code == 0x03F3
    db.all("DROP STREAM s", STREAM, "DROP DATABASE d")
    assert db.run("SHOW STREAMS") == []


def test_streams_start_again_with_the_engine(db: Embedded) -> None:
    """After a restart the stream is planned from its text, paused if it was, and its cut is that of its creation."""
    with_source(db)
    db.execute("INSERT INTO m1 USING m TAGS (1) VALUES (now, 1, 1)")
    db.execute(STREAM)
    db.execute("PAUSE STREAM s")
    before = db.engine.catalog.streams.named("s")
    db.reopen()
    after = db.engine.catalog.streams.named("s")
    assert before is not None
    assert after is not None
    assert (after.start_cut, after.wanted) == (before.start_cut, "paused")
    assert sum(version for _, version in after.start_cut) == 2
    assert db.run("SELECT stream_name, state FROM information_schema.ins_streams")[0][0] == "s"


def test_streams_hold_the_wal_from_their_start(db: Embedded) -> None:
    """A stream pins its source's WAL at its cut; DROP STREAM lets go, and a start lets go of pins without a stream."""
    with_source(db)
    db.execute("INSERT INTO m1 USING m TAGS (1) VALUES (now, 1, 1)")
    db.execute(STREAM)
    stream = db.engine.catalog.streams.named("s")
    assert stream is not None

    def pins() -> dict[int, dict[str, int]]:
        return {vgroup: db.engine.storage.vnode(vgroup).reader.stats().pins for vgroup, _ in stream.start_cut}

    owner = f"stream-{stream.id:x}"
    assert pins() == {vgroup: {owner: version} for vgroup, version in stream.start_cut}
    db.execute("DROP STREAM s")
    assert pins() == {vgroup: {} for vgroup, _ in stream.start_cut}
    for vgroup, _ in stream.start_cut:
        db.engine.storage.vnode(vgroup).set_pin(owner, 0)
    db.reopen()
    assert pins() == {vgroup: {} for vgroup, _ in stream.start_cut}


def test_a_refused_stream_leaves_nothing(db: Embedded) -> None:
    """A stream that cannot be planned creates no result table."""
    with_source(db)
    refused(db, "CREATE STREAM s INTO out_s AS SELECT nosuch FROM m PARTITION BY tbname INTERVAL(10s)")
    refused(db, "CREATE STREAM s TRIGGER AT_ONCE INTO out_s AS SELECT ts, v FROM m")
    assert names(db, "SHOW STABLES") == ["m"]
    assert db.run("SHOW STREAMS") == []


def test_explain_of_a_stream_prints_its_plan(db: Embedded) -> None:
    """EXPLAIN CREATE STREAM checks and shows, but creates nothing."""
    with_source(db)
    lines = names(db, f"EXPLAIN {STREAM}")
    assert lines
    assert names(db, "SHOW STABLES") == ["m"]


@pytest.mark.parametrize("explain", ["EXPLAIN", "EXPLAIN (SQL)", "EXPLAIN (TASKS)", "; EXPLAIN"])
@pytest.mark.parametrize(("stream", "wrong"), [
    ("CREATE STREAM s INTO out_s AS SELECT _wstart, sum(nosuch) FROM m INTERVAL(10s)", "nosuch"),
    ("CREATE STREAM s INTO out_s AS SELECT _wstart, sum(v) FROM nosuch INTERVAL(10s)", "nosuch"),
    ("CREATE STREAM s INTO nosuch.out_s AS SELECT _wstart, sum(v) FROM m INTERVAL(10s)", "nosuch.out_s"),
    ("CREATE STREAM s INTO CONNECTION nosuch (TABLE 'x') AS SELECT _wstart, sum(v) FROM m INTERVAL(10s)", "nosuch"),
    ("CREATE STREAM s INTO out_s SUBTABLE(concat(s, 'x')) AS SELECT _wstart, sum(v) FROM m PARTITION BY tbname "
     "INTERVAL(10s)", "s"),
    ("CREATE STREAM s TRIGGER FORCE_WINDOW_CLOSE INTO out_s AS SELECT _wstart, sum(nosuch) FROM m PARTITION BY tbname "
     "INTERVAL(10s)", "nosuch"),
    ("CREATE STREAM s INTO out_s AS SELECT x.ts, y.v FROM m x JOIN m y ON x.ts = y.nosuch", "y.nosuch"),
    ("CREATE STREAM s INTO out_s AS SELECT x.ts, y.v FROM m x JOIN m y ON x.ts > y.ts", "x.ts > y.ts"),
    ("CREATE STREAM s INTO out_s AS SELECT x.ts, y.nosuch FROM m x JOIN m y ON x.ts = y.ts", "y.nosuch"),
])
def test_errors_of_an_explained_stream_show_the_place_in_its_statement(
    unchanged: Embedded, explain: str, stream: str, wrong: str
) -> None:
    """They say what CREATE STREAM alone would: what stands in front of it moves nothing."""
    shown = refused(unchanged, f"{explain} {stream}")
    assert shown.position == refused(unchanged, stream).position
    assert shown.position is not None
    assert shown.position.text == wrong
    assert stream[shown.position.column - 1:].startswith(wrong)


def test_snodes_are_registered(db: Embedded) -> None:
    """CREATE and DROP SNODE work for the one dnode there is."""
    db.execute("CREATE SNODE ON DNODE 1")
    assert len(db.run("SHOW SNODES")) == 1
    refused(db, "CREATE SNODE ON DNODE 1")
    refused(db, "CREATE SNODE ON DNODE 2")
    db.execute("DROP SNODE ON DNODE 1")
    assert db.run("SHOW SNODES") == []
