"""New child tables that wait to be stored: known at once, stored with whatever is stored next, and not lost."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from kits.engines.embedded import Embedded
from kits.engines.statement_engine import StatementEngine
from simulation.disk import Disk, PowerLost

from penstock.common.errors import AlreadyExistsError, PenstockError, StorageError
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.schema_repository import stable_vgroup
from penstock.mnode.catalog.waiting_children import WAITING_MAX
from penstock.mnode.engine import Engine
from penstock.sql.schema import ChildTable, Column, DatabaseOptions, Table
from penstock.sql.types import DOUBLE, INT, timestamp
from penstock.vnode.write.vnode_writer import BegunWrite

NOW = 1_700_000_000_000
COLUMNS = (Column("ts", timestamp(), "ts"), Column("v", DOUBLE, "v"))
TAGS = (Column("g", INT, "g"),)
LATE_MS = 1_699_990_000_000


class Gathering:
    """A catalog that says when it wants to store what waits."""

    def __init__(self, path: Path, map_bytes: int = 1 << 24) -> None:
        self.path = path
        self.asked = 0
        self.catalog = Catalog(path, map_bytes=map_bytes)
        self.catalog.gather_children(self._ask)

    def _ask(self) -> None:
        self.asked += 1

    def add(self, table: Table, *names: str) -> list[ChildTable]:
        return self.catalog.schema.create_children(table.uid, [(name, (len(name),)) for name in names], NOW)

    def after_a_crash(self) -> Catalog:
        """Returns what is stored, as another start finds it."""
        self.catalog.abandon()
        self.catalog = Catalog(self.path)
        return self.catalog


@pytest.fixture
def gathering(tmp_path: Path) -> Iterator[Gathering]:
    made = Gathering(tmp_path / "catalog")
    yield made
    made.catalog.close()


def meters(catalog: Catalog, name: str = "meters") -> Table:
    if catalog.database("d") is None:
        catalog.schema.create_database("d", DatabaseOptions(vgroups=2), NOW)
    return catalog.schema.create_table("d", name, COLUMNS, TAGS, super_table=True, now_ms=NOW)


def names(catalog: Catalog, table: Table) -> list[str]:
    return [child.name for child in catalog.children(table.uid)]


def test_one_that_waits_is_known_and_not_stored(gathering: Gathering) -> None:
    """It is asked for once that it is stored; a crash before that takes it away."""
    table = meters(gathering.catalog)
    [child] = gathering.add(table, "a")
    assert gathering.asked == 1
    assert gathering.catalog.child("d", "a") == child
    assert names(gathering.catalog, table) == ["a"]
    assert names(gathering.after_a_crash(), table) == []


def store_others(catalog: Catalog) -> None:
    catalog.snodes.create(1, NOW)


@pytest.mark.parametrize("store", [Catalog.settle, store_others, Catalog.close])
def test_they_are_stored_together(gathering: Gathering, store: Callable[[Catalog], None]) -> None:
    """With the next transaction, whatever it is for, at the latest when the catalog is closed."""
    table, other = meters(gathering.catalog), meters(gathering.catalog, "others")
    first = gathering.add(table, "a", "b")
    gathering.add(other, "x")
    gathering.add(table, "c")
    before, generation = gathering.catalog.children(table.uid), gathering.catalog.generation
    store(gathering.catalog)
    again = gathering.after_a_crash()
    assert again.children(table.uid) == before
    assert again.children(table.uid)[:2] == tuple(first)
    assert names(again, other) == ["x"]
    assert again.generation == generation + 1


def test_their_ids_are_not_given_again(gathering: Gathering) -> None:
    """Whatever takes an id stores those that have lesser ones."""
    table = meters(gathering.catalog)
    [child] = gathering.add(table, "a")
    other = meters(gathering.catalog, "others")
    assert other.uid > child.uid
    [after] = gathering.add(other, "x")
    again = gathering.after_a_crash()
    assert again.next_id == after.uid  # all before it are stored, this one isn't


def test_what_fails_leaves_them_waiting(gathering: Gathering) -> None:
    """A transaction that changes nothing doesn't store them either."""
    table = meters(gathering.catalog)
    gathering.add(table, "a")
    with pytest.raises(PenstockError, match="already exists"):
        meters(gathering.catalog)
    gathering.catalog.settle()
    assert names(gathering.after_a_crash(), table) == ["a"]


def test_one_that_waits_can_change_and_go(gathering: Gathering) -> None:
    """What changes it stores it first."""
    table = meters(gathering.catalog)
    changed, gone = gathering.add(table, "a", "b")
    gathering.catalog.schema.set_tags(table.uid, changed.uid, (42,))
    [late] = gathering.add(table, "c")
    gathering.catalog.schema.drop_children(table.uid, [gone.uid, late.uid])
    assert [(child.name, child.tag_values) for child in gathering.after_a_crash().children(table.uid)] == [("a", (42,))]


def test_many_do_not_wait(gathering: Gathering) -> None:
    """Nothing would be saved, and those before them are stored with them."""
    table = meters(gathering.catalog)
    gathering.add(table, "first")
    gathering.add(table, *(f"m{n}" for n in range(300)))
    assert len(names(gathering.after_a_crash(), table)) == 301


def test_only_so_many_wait(gathering: Gathering) -> None:
    """Where nothing is stored, who adds more stores them himself."""
    table = meters(gathering.catalog)
    for n in range(WAITING_MAX // 200):
        gathering.add(table, *(f"m{n}_{place}" for place in range(200)))
    asked = gathering.asked
    gathering.add(table, "more")
    assert gathering.asked == asked
    assert len(names(gathering.after_a_crash(), table)) == WAITING_MAX + 1


def test_who_adds_more_is_told_that_they_cannot_be_stored(tmp_path: Path) -> None:
    """Nothing more is taken on credit, and closing says so, too."""
    gathering = Gathering(tmp_path / "catalog", map_bytes=256 * 1024)
    table = meters(gathering.catalog)
    for n in range(60):
        gathering.catalog.schema.create_children(
            table.uid, [(f"m{n}_{place}" + "x" * 150, (n,)) for place in range(100)], NOW)
    with pytest.raises(StorageError, match="full"):
        gathering.catalog.settle()
    with pytest.raises(StorageError, match="full"):
        gathering.add(table, "more")
    assert gathering.catalog.child("d", "more") is None
    with pytest.raises(StorageError, match="full"):
        gathering.catalog.close()


# --- with the logs that tell of them ---------------------------------------------------------------------------------


class Crashing(Embedded):
    """An engine that dies without a word, and is started again. It never finds the time to store child tables."""

    def _open(self) -> Engine:
        opened = super()._open()
        opened.parts.child_keeper.stop()
        return opened

    def crash(self) -> None:
        self.engine.abandon()
        self.engine = self._open()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[Crashing]:
    made = Crashing(tmp_path / "data")
    made.all("CREATE DATABASE d VGROUPS 2 KEEP 36500d", "USE d",
             "CREATE TABLE m (ts TIMESTAMP, v DOUBLE) TAGS (g INT, t VARCHAR(20), b VARBINARY(4), since TIMESTAMP)")
    yield made
    made.close()


def rows(engine: Embedded) -> list[tuple[object, ...]]:
    return engine.run("SELECT tbname, g, t, b, since, v FROM m ORDER BY tbname, ts")


def test_a_row_that_was_acknowledged_has_its_table_after_a_crash(engine: Crashing) -> None:
    """With all its tags; and the table can be written, changed and dropped as before."""
    for n in range(20):
        tags = f"{n}, 'text {n}', '\\x0{n % 10}ff', {NOW + n}" if n % 3 else "NULL, NULL, NULL, NULL"
        engine.run(f"INSERT INTO c{n} USING m TAGS ({tags}) VALUES ({LATE_MS + n}, {n})")
    before = rows(engine)
    uids = {child.name: child.uid for child in engine.engine.catalog.children(_uid(engine))}
    engine.crash()
    assert rows(engine) == before
    assert len(before) == 20
    assert {child.name: child.uid for child in engine.engine.catalog.children(_uid(engine))} == uids
    engine.run(f"INSERT INTO c3 VALUES ({LATE_MS}, 1)")
    engine.run("ALTER TABLE c4 SET TAG g = 77")
    engine.run("DROP TABLE c5")
    engine.run(f"INSERT INTO c99 USING m (g) TAGS (5) VALUES ({LATE_MS}, 99)")
    after = rows(engine)
    assert len(after) == 21
    engine.crash()
    assert rows(engine) == after
    engine.reopen()
    assert rows(engine) == after


def _uid(engine: Embedded) -> int:
    table = engine.engine.catalog.table("d", "m")
    assert table is not None
    return table.uid


def test_one_that_was_dropped_does_not_come_back(engine: Crashing) -> None:
    """Neither a child table nor its super table; a name that came again is the newer one's."""
    engine.run(f"INSERT INTO a USING m (g) TAGS (1) VALUES ({LATE_MS}, 1)")
    engine.run("DROP TABLE a")
    engine.run(f"INSERT INTO a USING m (g) TAGS (2) VALUES ({LATE_MS + 1}, 2)")
    engine.crash()
    assert [row[:2] for row in rows(engine)] == [("a", 2)]
    engine.run("DROP TABLE m")
    engine.crash()
    assert engine.run("SHOW TABLES") == []


def test_rows_in_parts_have_their_tables(engine: Crashing) -> None:
    """What the log needn't tell any more, the catalog knows."""
    engine.run(f"INSERT INTO a USING m (g) TAGS (1) VALUES ({LATE_MS}, 1)")
    engine.run("FLUSH DATABASE d")
    engine.crash()
    assert [row[:2] for row in rows(engine)] == [("a", 1)]
    for vgroup_id in engine.engine.catalog.database("d").vgroup_ids:
        assert engine.engine.storage.told(vgroup_id, "create_children") == []


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize("seed", range(6))
def test_power_cuts(tmp_path: Path, seed: int, level: int) -> None:
    """Whatever of the logs is left: each row has its table and its tags; with WAL_LEVEL 2 all that was acknowledged."""
    chance = random.Random(seed)
    disk = Disk(tmp_path, chance)
    engine = Crashing(tmp_path / "data", fs=disk.view("first"))
    engine.all(f"CREATE DATABASE d VGROUPS 2 KEEP 36500d WAL_LEVEL {level}", "USE d",
               "CREATE TABLE m (ts TIMESTAMP, v DOUBLE) TAGS (g INT)")
    engine.engine.parts.directory.dnode.stop()
    disk.faults[disk.calls + chance.randint(1, 120)] = "power"
    acknowledged = 0
    try:
        for n in range(60):
            engine.run(f"INSERT INTO c{n} USING m TAGS ({n}) VALUES ({LATE_MS + n}, {n})")
            acknowledged = n + 1
            if chance.random() < 0.1:
                engine.run("FLUSH DATABASE d")
    except PowerLost:
        pass
    disk.off = True
    disk.kill("first")
    engine.engine.catalog.abandon()
    engine.engine.parts.directory.audit.close()
    engine.engine.parts.directory._lock.release()
    disk.cut_power()
    again = Crashing(tmp_path / "data", fs=disk.view("second"))
    again.run("USE d")
    found = again.run("SELECT tbname, g, v FROM m ORDER BY v")
    assert all(row == (f"c{int(row[2])}", int(row[2]), row[2]) for row in found)
    if level == 2:
        assert {int(row[2]) for row in found} >= set(range(acknowledged))
    again.close()


class Died(BaseException):
    """Stands for the end of the process."""


def test_a_crash_in_the_middle_of_a_drop(engine: Crashing, monkeypatch: pytest.MonkeyPatch) -> None:
    """The log says that a child table is gone which the catalog never had; its id isn't given again."""
    engine.run(f"INSERT INTO a USING m (g) TAGS (1) VALUES ({LATE_MS}, 1)")
    uid = engine.engine.catalog.children(_uid(engine))[0].uid

    def die(*_: object) -> None:
        raise Died

    monkeypatch.setattr(engine.engine.catalog.schema, "drop_children", die)
    with pytest.raises(Died):
        engine.run("DROP TABLE a")
    engine.crash()
    assert rows(engine) == []
    engine.run(f"INSERT INTO b USING m (g) TAGS (2) VALUES ({LATE_MS}, 2)")
    assert [row[:2] for row in rows(engine)] == [("b", 2)]
    assert engine.engine.catalog.children(_uid(engine))[0].uid > uid


@pytest.mark.parametrize("refused", [{"create_children"}, {"create_children", "drop_children"}])
@pytest.mark.parametrize("tags", [(), ("extra",)])
def test_one_that_was_taken_back_has_its_name_no_more(
    engine: Crashing, monkeypatch: pytest.MonkeyPatch, refused: set[str], tags: tuple[str, ...]
) -> None:
    """One vnode's log took its record, another's took none; the next try makes another one."""
    database = engine.engine.catalog.database("d")
    assert database is not None
    first, last = database.vgroup_ids
    places = {vgroup_id: next(f"c{n}" for n in range(99) if stable_vgroup(database, f"c{n}") == vgroup_id)
              for vgroup_id in (first, last)}
    statement = "INSERT INTO " + " ".join(
        f"{name} USING m (g) TAGS (1) VALUES ({LATE_MS}, 1)" for name in places.values())
    storage, begin = engine.engine.storage, engine.engine.storage.begin_meta

    def fail(vgroup_id: int, body: dict[str, Any]) -> BegunWrite:
        if body["op"] in refused and (vgroup_id == last or body["op"] == "drop_children"):
            raise StorageError("the disk is full")
        return begin(vgroup_id, body)

    with monkeypatch.context() as patched:
        patched.setattr(storage, "begin_meta", fail)
        with pytest.raises(StorageError):
            engine.run(statement)
    assert rows(engine) == []
    engine.all(*(f"ALTER TABLE m ADD TAG {tag} INT" for tag in tags))
    engine.run(statement)
    engine.crash()
    assert [row[0] for row in rows(engine)] == sorted(places.values())
    assert len(engine.run("SHOW TABLES")) == 2
    if "drop_children" not in refused:  # else the name is that of the one before again
        engine.run("DROP TABLE " + ", ".join(places.values()))
        engine.crash()
        assert engine.run("SHOW TABLES") == []


def test_a_name_that_a_statement_gives_twice(engine: Crashing) -> None:
    """To child tables of two super tables: the second isn't waited for until the first is there, which never ends."""
    engine.run("CREATE TABLE other (ts TIMESTAMP, v DOUBLE) TAGS (g INT)")
    values = f"VALUES ({LATE_MS}, 1)"
    with pytest.raises(AlreadyExistsError, match="not a child table of other"):
        engine.run(f"INSERT INTO a USING m (g) TAGS (1) {values} b USING other TAGS (1) {values} "
                   f"a USING other TAGS (1) {values}")
    assert rows(engine) == []
    engine.run(f"INSERT INTO a USING m (g) TAGS (1) {values} b USING other TAGS (1) {values}")
    assert [row[0] for row in rows(engine)] == ["a"]
    assert engine.run("SELECT tbname FROM other") == [("b",)]


def test_what_others_do_comes_behind_the_record_of_a_table(engine: Crashing, monkeypatch: pytest.MonkeyPatch) -> None:
    """They see it before the log tells of it; rows go the way that waits for that, and so does what drops it."""
    parts = engine.engine.parts
    begin = engine.engine.storage.begin_meta
    asked: list[tuple[str, ...]] = []

    def begin_meta(vgroup_id: int, body: dict[str, Any]) -> BegunWrite:
        for statement in (f"INSERT INTO a VALUES ({LATE_MS}, 1)", "DROP TABLE a"):
            with pytest.raises(Died):
                engine.run(statement)
        return begin(vgroup_id, body)

    def wait(names: Sequence[str]) -> None:
        asked.append(tuple(names))
        raise Died

    with monkeypatch.context() as patched:
        patched.setattr(engine.engine.storage, "begin_meta", begin_meta)
        patched.setattr(parts.children, "await_announced", wait)
        engine.run(f"INSERT INTO a USING m (g) TAGS (1) VALUES ({LATE_MS}, 7)")
    assert asked == [("a",), ("a",)]
    engine.run("DROP TABLE a")
    engine.crash()
    assert engine.run("SHOW TABLES") == []


def test_kill_nine_while_tables_come(tmp_path: Path) -> None:
    """Each row that was acknowledged is there with its table and its tags, and the next start goes on from there."""
    killed = StatementEngine(tmp_path / "data", {"timezone": "UTC"})
    killed.run("CREATE DATABASE d VGROUPS 2 KEEP 36500d")
    killed.run("CREATE TABLE d.m (ts TIMESTAMP, v DOUBLE) TAGS (g INT)")
    for n in range(1_000):
        killed.tell(json.dumps(f"INSERT INTO d.c{n} USING d.m TAGS ({n}) VALUES ({LATE_MS + n}, {n})"))
    for _ in range(300):
        assert json.loads(killed.next()) == {"rows": []}
    acknowledged = 300 + len(killed.kill())
    again = Embedded(tmp_path / "data")
    found = again.run("SELECT tbname, g, v FROM d.m ORDER BY v")
    assert found == [(f"c{n}", n, n) for n in range(len(found))]
    assert len(found) in (acknowledged, acknowledged + 1)
    again.run(f"INSERT INTO d.c1000 USING d.m TAGS (1000) VALUES ({LATE_MS}, 1000)")
    assert again.run("SELECT count(*), count(DISTINCT g) FROM d.m") == [(len(found) + 1, len(found) + 1)]
    again.close()
