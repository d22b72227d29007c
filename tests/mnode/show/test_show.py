"""SHOW, DESCRIBE and the system tables: what they list, how they filter, what they say about broken parts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from kits.basics.waiting import wait_until
from kits.engines.embedded import Embedded, NoRuntime

from penstock.common.errors import CorruptionError, PenstockError, SqlSyntaxError
from penstock.mnode.catalog.system_schema import SCHEMAS
from penstock.sql.dialect.parse_show import SHOWN
from penstock.tasks.worker.spark_executors import Executor, Executors


@pytest.fixture(scope="module")
def db(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Embedded]:
    embedded = Embedded(tmp_path_factory.mktemp("show"))
    embedded.all(
        "CREATE DATABASE plant VGROUPS 2", "CREATE DATABASE other VGROUPS 1", "USE plant",
        "CREATE STABLE meters (ts timestamp, v float COMMENT 'Volt') TAGS (site nchar(4), n int, raw varbinary(4)) "
        "COMMENT 'all meters'",
        r"CREATE TABLE m_1 USING meters TAGS ('Öl', 1, '\x00ff')", "CREATE TABLE m_2 USING meters TAGS (NULL, 2, NULL)",
        "CREATE TABLE `Odd name` (ts timestamp, `select` int PRIMARY KEY, s varchar(8))",
        "CREATE TABLE other.log (ts timestamp, v int)", "INSERT INTO m_1 VALUES (now, 1.5)",
        "CREATE STREAM tens TRIGGER WINDOW_CLOSE WATERMARK 5s INTO tens AS "
        "SELECT _wstart, avg(v) AS a FROM meters PARTITION BY tbname INTERVAL(10s)",
    )
    yield embedded
    embedded.close()


def names(db: Embedded, statement: str) -> list[object]:
    return [row[0] for row in db.run(statement)]


def test_show_alone_lists_what_can_be_shown(db: Embedded) -> None:
    """Whatever it lists can be shown."""
    behind = {"CREATE DATABASE": "plant", "CREATE TABLE": "m_1", "CREATE STABLE": "meters", "CREATE STREAM": "tens",
              "CREATE VIEW": "seen", "TABLE DISTRIBUTED": "meters", "TABLE TAGS": "FROM meters", "TAGS": "FROM m_1",
              "INDEXES": "FROM meters"}
    db.execute("CREATE VIEW seen AS SELECT v FROM meters")
    with pytest.raises(SqlSyntaxError, match="something that can be shown is expected") as caught:
        db.execute("SHOW")
    assert caught.value.hint == f"SHOW {', '.join(SHOWN[:-1])} or {SHOWN[-1]}"
    for words in SHOWN:
        assert db.execute(f"SHOW {words} {behind.get(words, '')}").columns, words
    db.execute("DROP VIEW seen")


@pytest.mark.parametrize(("statement", "problem", "hint"), [
    ("SHOW TABELS", "something that can be shown is expected", "did you mean TABLES?"),
    ("SHOW STREAM", "TASKS is expected", "did you mean STREAMS?"),
    ("SHOW TABLE", "DISTRIBUTED or TAGS is expected", "did you mean TABLES?"),
    ("SHOW CREATE USER x", "DATABASE, TABLE, STABLE, VIEW or STREAM is expected", None),
    ("SHOW plant.VIEW", "TABLES, STABLES, VIEWS, VGROUPS, ALIVE or CUT is expected", "did you mean VIEWS?"),
])
def test_what_is_missing_or_misspelt_behind_show(db: Embedded, statement: str, problem: str, hint: str | None) -> None:
    """What may follow is told, and what was probably meant."""
    with pytest.raises(SqlSyntaxError, match=problem) as caught:
        db.execute(statement)
    assert caught.value.hint == hint


def test_lists_of_databases_and_tables(db: Embedded) -> None:
    """Scopes, prefixes and LIKE select; LIKE knows case, wildcards and escapes."""
    assert names(db, "SHOW USER DATABASES") == ["plant", "other"]
    assert names(db, "SHOW SYSTEM DATABASES") == ["information_schema", "performance_schema"]
    assert names(db, "SHOW STABLES") == ["meters", "tens"]
    assert names(db, "SHOW TABLES") == ["m_1", "m_2", "Odd name"]
    assert names(db, "SHOW CHILD TABLES") == ["m_1", "m_2"]
    assert names(db, "SHOW NORMAL TABLES") == ["Odd name"]
    assert names(db, "SHOW other.TABLES") == names(db, "SHOW TABLES FROM other") == ["log"]
    assert names(db, r"SHOW TABLES LIKE 'm\_%'") == ["m_1", "m_2"]
    assert names(db, "SHOW TABLES LIKE 'odd%'") == []
    assert names(db, "SHOW STABLES LIKE 'm_ters'") == ["meters"]
    assert "ins_streams" in names(db, "SHOW information_schema.TABLES")


def test_describe_shows_columns_tags_and_keys(db: Embedded) -> None:
    """One row per column and tag: name, type, length, note and comment."""
    assert db.run("DESCRIBE meters") == [
        ("ts", "TIMESTAMP", 8, "", ""), ("v", "FLOAT", 4, "", "Volt"), ("site", "NCHAR", 4, "TAG", ""),
        ("n", "INT", 4, "TAG", ""), ("raw", "VARBINARY", 4, "TAG", "")]
    assert db.run("DESC `Odd name`")[1][3] == "PRIMARY KEY"
    assert len(db.run("DESCRIBE information_schema.ins_streams")) == len(SCHEMAS["information_schema"]["ins_streams"])


def test_tags_of_children(db: Embedded) -> None:
    """SHOW TAGS and ins_tags print values as text, SHOW TABLE TAGS as they are."""
    expected = [("site", "NCHAR(4)", "Öl"), ("n", "INT", "1"), ("raw", "VARBINARY(4)", r"\x00FF")]
    assert [row[3:] for row in db.run("SHOW TAGS FROM m_1")] == expected
    query = "SELECT tag_name, tag_type, tag_value FROM information_schema.ins_tags WHERE table_name = 'm_1'"
    assert db.run(query) == expected
    assert db.run("SHOW TABLE TAGS FROM meters") == [("m_1", "Öl", 1, b"\x00\xff"), ("m_2", None, 2, None)]
    for statement in ("SHOW TAGS FROM meters", "SHOW TABLE TAGS FROM m_1", "SHOW TAGS FROM nosuch"):
        with pytest.raises(PenstockError):
            db.execute(statement)


def test_show_create_gives_statements_that_create_the_same(db: Embedded) -> None:
    """Every SHOW CREATE is executed in another database and shows the same again."""
    db.all("CREATE DATABASE copy VGROUPS 1", "USE copy")
    try:
        for table in ("meters", "m_1", "m_2", "`Odd name`"):
            text = db.run(f"SHOW CREATE TABLE plant.{table}")[0][1]
            db.execute(text)
            assert db.run(f"SHOW CREATE TABLE {table}")[0][1] == text
        assert db.run("SHOW CREATE STREAM tens")[0][1].startswith("CREATE STREAM tens")
    finally:
        db.all("USE plant", "DROP DATABASE copy")


def test_every_system_table_can_be_queried(db: Embedded) -> None:
    """All have exactly the columns of their schema, go through the planner, and can be counted."""
    for database, tables in SCHEMAS.items():
        for table, columns in tables.items():
            result = db.execute(f"SELECT * FROM {database}.{table}")
            assert [column.name for column in result.columns] == [name for name, _ in columns]
            assert result.table is not None
            assert db.run(f"SELECT count(*) FROM {database}.{table}")[0][0] == result.table.num_rows


def test_everything_that_can_be_shown_is_shown(db: Embedded) -> None:
    """Each SHOW returns rows in its own columns; what Penstock has none of is refused by name."""
    for what in ("STREAMS", "STREAM TASKS", "QUEUES", "CHECKPOINTS", "WATERMARKS", "VNODES", "SNODES",
                 "DNODES", "MNODES", "CLUSTER", "USERS", "FUNCTIONS", "VARIABLES", "LOCAL VARIABLES", "CONNECTIONS",
                 "QUERIES", "VGROUPS", "INDEXES FROM meters", "TABLE DISTRIBUTED meters"):
        assert db.execute(f"SHOW {what}").table is not None
    with pytest.raises(PenstockError, match="TOPICS"):
        db.execute("SHOW TOPICS")


def test_variables_are_those_of_the_configuration(db: Embedded) -> None:
    """SHOW VARIABLES prints every key as the configuration file would have it."""
    variables = dict(row[:2] for row in db.run("SHOW VARIABLES"))
    assert variables == dict(db.config.items())
    assert names(db, "SHOW VARIABLES LIKE 'checkpoint%'") == [n for n in variables if n.startswith("checkpoint")]


def test_streams_are_told_in_one_line(db: Embedded) -> None:
    """ins_streams has TDengine's columns and says state, reason and options; ids are hexadecimal."""
    row = db.run("SELECT stream_name, stream_id, status, source_db, target_db, target_table, `watermark`, `trigger`, "
                 "state FROM information_schema.ins_streams")[0]
    stream = db.engine.catalog.streams.named("tens")
    assert stream is not None
    assert row == ("tens", f"0x{stream.id:x}", "init", "plant", "plant", "tens", 5000, "window close", "STARTING")
    assert names(db, "SHOW STREAMS LIKE 't%'") == ["tens"]


def test_vgroups_count_their_tables(db: Embedded) -> None:
    """SHOW VGROUPS is about the database in use; the counts add up."""
    rows = db.run("SHOW VGROUPS")
    assert [row[1] for row in rows] == ["plant", "plant"]
    assert sum(row[2] for row in rows) == 3


def test_a_damaged_vnode_is_named_and_the_rest_works(tmp_path: Path) -> None:
    """A flipped byte in one vnode's MANIFEST fails what needs it, shows in SHOW VNODES, and nothing else."""
    db = Embedded(tmp_path)
    try:
        db.all("CREATE DATABASE bad VGROUPS 1", "CREATE DATABASE good VGROUPS 1")
        for name in ("bad", "good"):
            db.all(f"CREATE TABLE {name}.t (ts timestamp, v int)", f"INSERT INTO {name}.t VALUES (now, 1)")
        vgroup = db.engine.catalog.database("bad")
        assert vgroup is not None
        db.close()
        manifest = db.engine.paths.store(vgroup.vgroup_ids[0]) / "MANIFEST"
        data = bytearray(manifest.read_bytes())
        data[len(data) // 2] ^= 1
        manifest.write_bytes(bytes(data))
        db.reopen()
        assert db.run("SELECT v FROM good.t") == [(1,)]
        with pytest.raises(CorruptionError, match="MANIFEST"):
            db.run("SELECT v FROM bad.t")
        with pytest.raises(CorruptionError):
            db.run("INSERT INTO bad.t VALUES (now, 2)")
        status = {row[2]: (row[3], row[5] or "") for row in db.run("SHOW VNODES")}
        assert status["good"] == ("leader", "")
        assert status["bad"][0] == "offline"
        assert "MANIFEST" in status["bad"][1]
        db.execute("DROP DATABASE bad")
        assert names(db, "SHOW USER DATABASES") == ["good"]
    finally:
        db.close()


def test_explain_prints_a_tree(db: Embedded) -> None:
    """EXPLAIN shows the plan, ANALYZE adds how many rows and how long."""
    lines = names(db, "EXPLAIN SELECT avg(v) FROM meters INTERVAL(1m)")
    assert any("Scan" in str(line) and "plant.meters" in str(line) for line in lines)
    analyzed = names(db, "EXPLAIN ANALYZE SELECT v FROM m_1")
    assert str(analyzed[-1]).startswith("Result: rows=1")


def test_a_stream_without_slots_is_shown_as_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SHOW STREAMS and SHOW WORKERS say what is missing; the slots that are left have a line of their own."""
    monkeypatch.setattr(NoRuntime, "executors", lambda runtime: Executors((Executor("driver", "h", 3, 2),), False))
    db = Embedded(tmp_path)
    try:
        for database in ("a", "b"):
            db.all(f"CREATE DATABASE {database} VGROUPS 2", f"USE {database}", "CREATE TABLE t (ts TIMESTAMP, v INT)",
                   f"CREATE STREAM of_{database} INTO o AS SELECT ts, v FROM t")
            wait_until(lambda: db.run("SELECT state FROM information_schema.ins_stream_workers WHERE state = 'FREE'"))
        reason = "1 slot is missing: its worker group needs 2, 1 of Spark's 3 are free"
        assert db.run("SELECT stream_name, state, reason, status, verdict FROM information_schema.ins_streams") == [
            ("of_a", "STARTING", "Spark is starting", "init", "STARTING: Spark is starting"),
            ("of_b", "WAITING", reason, "init", f"WAITING: {reason}")]
        assert db.run("SELECT worker_group, worker, state, reason, slots, executor, host, stream_names FROM "
                      "information_schema.ins_stream_workers") == [
            ("a-1.1", 0, "STARTING", None, 1, None, None, "of_a"),
            ("a-1.1", 1, "STARTING", None, 1, None, None, "of_a"),
            ("b-2.0", 0, "WAITING", reason, 0, None, None, "of_b"),
            ("b-2.0", 1, "WAITING", reason, 0, None, None, "of_b"),
            (None, None, "FREE", None, 1, "driver", "h", None)]
    finally:
        db.close()


def test_rows_have_the_names_of_their_columns(db: Embedded) -> None:
    """Every system table has rows by the names of its columns; a misspelt name would be NULL."""
    tables = db.engine.system_tables
    for name, columns in (pair for of_database in SCHEMAS.values() for pair in of_database.items()):
        known = {column for column, _ in columns}
        for row in tables._makers[name]():
            assert set(row) <= known, name
