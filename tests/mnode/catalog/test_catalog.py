"""The catalog: what it stores survives, what it refuses changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import pairwise
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from penstock.common.errors import AlreadyExistsError, CorruptionError, NotFoundError, StorageError
from penstock.mnode.catalog import catalog_codec as codec
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_reader import CatalogReader
from penstock.mnode.catalog.catalog_records import AskedStream, PauseCause, StreamRecord, StreamUses, TableRead
from penstock.mnode.catalog.catalog_store import CHILDREN, FIRST_UID
from penstock.mnode.catalog.schema_repository import physical_name, stable_vgroup
from penstock.sql.schema import ChildTable, Column, DatabaseOptions, RestoredFrom, Table, TagValue, View
from penstock.sql.types import BIGINT, DOUBLE, DataType, Kind, timestamp

NOW = 1_700_000_000_000
COLUMNS = (Column("ts", timestamp(), "ts"), Column("v", DOUBLE, "v"))
TAGS = (Column("site", DataType(Kind.VARCHAR, 20), "site"), Column("blob", DataType(Kind.VARBINARY, 8), "blob"))


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    opened = Catalog(tmp_path / "catalog")
    yield opened
    opened.close()


def meters(catalog: Catalog, vgroups: int = 3) -> Table:
    catalog.schema.create_database("d", DatabaseOptions(vgroups=vgroups), NOW)
    return catalog.schema.create_table("d", "meters", COLUMNS, TAGS, super_table=True, now_ms=NOW)


def stream(name: str = "s", **changes: object) -> StreamRecord:
    fields: dict[str, object] = {
        "id": 0, "name": name, "asked": AskedStream("CREATE STREAM ...", "d", "UTC", NOW),
        "uses": StreamUses((TableRead(1000, None, ("ts", "v")),)),
        "target_uid": 1001, "start_cut": ((2, 5), (3, 0)), "created_target": True,
    }
    return StreamRecord(**(fields | changes))  # type: ignore[arg-type]


def reopened(catalog: Catalog, path: Path) -> Catalog:
    catalog.close()
    return Catalog(path / "catalog")


def test_everything_is_there_after_opening_again(catalog: Catalog, tmp_path: Path) -> None:
    """Databases, tables, children with all kinds of tags, views, streams and snodes come back equal."""
    table = meters(catalog)
    normal = catalog.schema.create_table("d", "log", COLUMNS, (), super_table=False, now_ms=NOW, comment="a 'note'")
    catalog.schema.create_children(table.uid, [("m1", ("Öl", b"\x00\xff")), ("m2", (None, None))], NOW)
    record = catalog.streams.create(stream())
    catalog.snodes.create(1, NOW)
    for columns in ((), ("a", "Ö b")):
        catalog.schema.put_view(View(0, "d", "w", "SELECT 1, 2", columns, "Europe/Berlin", "ada", NOW, True, NOW))
    before = (catalog.databases(), catalog.table("d", "meters"), catalog.table("d", "log"), catalog.table("d", "m1"),
              catalog.children(table.uid), catalog.streams.all(), catalog.snodes.all(), catalog.views())
    again = reopened(catalog, tmp_path)
    after = (again.databases(), again.table("d", "meters"), again.table("d", "log"), again.table("d", "m1"),
             again.children(table.uid), again.streams.all(), again.snodes.all(), again.views())
    again.close()
    assert after == before
    assert [view.columns for view in after[-1]] == [("a", "Ö b")]
    assert normal.vgroup_id is not None
    assert record.start_cut == ((2, 5), (3, 0))


def test_ids_are_never_given_twice(catalog: Catalog, tmp_path: Path) -> None:
    """Dropped tables, children, streams and vgroups leave their ids unused, also over a restart."""
    table = meters(catalog)
    first = catalog.schema.create_children(table.uid, [("m1", (None, None))], NOW)[0]
    assert (table.uid, first.uid) == (FIRST_UID, FIRST_UID + 1)
    catalog.schema.drop_children(table.uid, [first.uid])
    vgroups = catalog.schema.drop_database("d").vgroup_ids
    again = reopened(catalog, tmp_path)
    renewed = meters(again)
    assert renewed.uid > first.uid
    database = again.database("d")
    assert database is not None
    assert min(database.vgroup_ids) > max(vgroups)
    again.close()


def test_a_child_has_the_columns_of_its_super_table(catalog: Catalog) -> None:
    """The planner's view of a child table joins the super table's schema with the child's tags and place."""
    table = meters(catalog)
    child = catalog.schema.create_children(table.uid, [("m1", ("here", None))], NOW)[0]
    found = catalog.table("d", "m1")
    assert found is not None
    assert (found.kind, found.uid, found.storage_uid, found.super_name) == ("child", child.uid, table.uid, "meters")
    assert (found.columns, found.tags, found.tag_values) == (table.columns, table.tags, ("here", None))
    assert found.vgroup_id == child.vgroup_id


def test_children_are_spread_over_the_vgroups_by_name(catalog: Catalog) -> None:
    """Placement depends on the full name alone and fills all vgroups about evenly."""
    table = meters(catalog)
    children = catalog.schema.create_children(table.uid, [(f"m{i}", (None, None)) for i in range(300)], NOW)
    database = catalog.database("d")
    assert database is not None
    assert all(child.vgroup_id == stable_vgroup(database, child.name) for child in children)
    counts = [sum(child.vgroup_id == vgroup for child in children) for vgroup in database.vgroup_ids]
    assert min(counts) > 60


def test_taken_names_are_refused_and_nothing_is_created(catalog: Catalog) -> None:
    """One taken name among many children refuses them all."""
    table = meters(catalog)
    catalog.schema.create_children(table.uid, [("m1", (None, None))], NOW)
    with pytest.raises(AlreadyExistsError):
        catalog.schema.create_children(table.uid, [("m0", (None, None)), ("m1", (None, None))], NOW)
    with pytest.raises(AlreadyExistsError):
        catalog.schema.create_children(table.uid, [("m2", (None, None)), ("m2", (None, None))], NOW)
    with pytest.raises(AlreadyExistsError):
        catalog.schema.create_table("d", "m1", COLUMNS, (), super_table=False, now_ms=NOW)
    catalog.schema.put_view(View(0, "d", "w", "SELECT 1"))
    for taken in (lambda: catalog.schema.create_children(table.uid, [("w", (None, None))], NOW),
                  lambda: catalog.schema.create_table("d", "w", COLUMNS, (), super_table=False, now_ms=NOW),
                  lambda: catalog.schema.put_view(View(0, "d", "m1", "SELECT 1"))):
        with pytest.raises(AlreadyExistsError):
            taken()
    assert [child.name for child in catalog.children(table.uid)] == ["m1"]


def test_a_column_added_again_starts_empty(catalog: Catalog) -> None:
    """A storage name that any column ever had is not given to another one, and case doesn't tell names apart."""
    assert physical_name("v", ["ts", "v"]) == "v_2"
    assert physical_name("V", ["ts", "v", "v_2"]) == "V_3"
    assert physical_name("_tuid", []) == "_tuid_2"
    table = meters(catalog)
    dropped = catalog.schema.replace_table(Table(**{**_fields(table), "columns": table.columns[:1]}))
    assert dropped.schema_version == 2
    assert "v" in catalog.used_physical_names(table.uid)


def _fields(table: Table) -> dict[str, object]:
    return {name: getattr(table, name) for name in table.__dataclass_fields__}


def test_columns_that_differ_by_case_are_stored_apart(catalog: Catalog) -> None:
    """DuckDB doesn't tell `a` from `A`, so their storage names differ by more than case."""
    catalog.schema.create_database("d", DatabaseOptions(), NOW)
    columns = (*COLUMNS, Column("V", BIGINT, "V"))
    table = catalog.schema.create_table("d", "t", columns, (), super_table=False, now_ms=NOW)
    assert [column.physical for column in table.columns] == ["ts", "v", "V_2"]


def test_streams_count_their_attempts(catalog: Catalog, tmp_path: Path) -> None:
    """An attempt's number is durable before the attempt starts."""
    record = catalog.streams.create(stream())
    assert catalog.streams.next_attempt(record.id).attempt == 1
    assert catalog.streams.next_attempt(record.id).attempt == 2
    catalog.streams.set_wanted(record.id, "paused")
    with pytest.raises(AlreadyExistsError) as caught:
        catalog.streams.create(stream())
    assert caught.value.code == 0x03F0
    again = reopened(catalog, tmp_path)
    found = again.streams.named("s")
    assert found is not None
    assert (found.attempt, found.wanted) == (2, "paused")
    again.streams.drop(record.id)
    with pytest.raises(NotFoundError):
        again.streams.next_attempt(record.id)
    again.close()


def test_why_a_stream_is_paused_is_kept(catalog: Catalog, tmp_path: Path) -> None:
    """With the connection that can't be reached: who goes on after ALTER CONNECTION is told by that."""
    record = catalog.streams.create(stream(pause=PauseCause("connection pg: away", "pg")))
    again = reopened(catalog, tmp_path)
    assert again.streams.named("s") == record
    assert again.streams.set_wanted(record.id, "running").pause is None
    again.close()


def test_a_flipped_bit_is_a_named_error(tmp_path: Path) -> None:
    """A value that fails its checksum is never taken for a table."""
    catalog = Catalog(tmp_path / "catalog")
    meters(catalog)
    catalog.close()
    with lmdb.open(str(tmp_path / "catalog"), max_dbs=8) as env:
        tables = env.open_db(b"tables")
        with env.begin(write=True, db=tables) as write:
            key = codec.key(FIRST_UID)
            value = bytearray(write.get(key))
            value[10] ^= 1
            write.put(key, bytes(value))
    with pytest.raises(CorruptionError, match="tables"):
        Catalog(tmp_path / "catalog")


def test_a_damaged_child_among_many_is_named(catalog: Catalog, tmp_path: Path) -> None:
    """Entries are read many at a time; which of them can't be read is told all the same."""
    table = meters(catalog)
    children = catalog.schema.create_children(table.uid, [(f"m{i}", ("x", None)) for i in range(1_500)], NOW)
    catalog.close()
    key = codec.key(table.uid, children[500].uid)
    with lmdb.open(str(tmp_path / "catalog"), max_dbs=16) as env:
        store = env.open_db(b"children")
        with env.begin(write=True, db=store) as write:
            value = write.get(key)
            assert value is not None
            write.put(key, value.replace(b"m700", b"m701"))
    with pytest.raises(CorruptionError, match=f"children {key.hex()}"):
        Catalog(tmp_path / "catalog")


def test_a_full_catalog_refuses_and_stays_as_it_was(tmp_path: Path) -> None:
    """Running out of map space is an operator's error, and what was there still works."""
    catalog = Catalog(tmp_path / "catalog", map_bytes=256 * 1024)
    table = meters(catalog)
    with pytest.raises(StorageError, match="full"):
        catalog.schema.create_children(table.uid, [(f"m{i}", ("x" * 20, None)) for i in range(20_000)], NOW)
    assert catalog.children(table.uid) == ()
    assert catalog.table("d", "m0") is None
    assert len(catalog.schema.create_children(table.uid, [("m0", (None, None))], NOW)) == 1
    catalog.close()


def test_system_tables_are_found_but_not_stored(catalog: Catalog) -> None:
    """information_schema answers like any database, and its name cannot be taken."""
    found = catalog.table("information_schema", "ins_streams")
    assert found is not None
    assert found.kind == "system"
    with pytest.raises(AlreadyExistsError):
        catalog.schema.create_database("information_schema", DatabaseOptions(), NOW)
    assert catalog.databases() == ()


def test_replacing_tags_keeps_every_child_in_step(catalog: Catalog, tmp_path: Path) -> None:
    """A tag that is added or dropped changes the table and all of its children in one transaction."""
    table = meters(catalog)
    catalog.schema.create_children(table.uid, [("m1", ("a", None)), ("m2", ("b", None))], NOW)
    children = {child.uid: child.tag_values[:1] for child in catalog.children(table.uid)}
    catalog.schema.replace_table(Table(**{**_fields(table), "tags": table.tags[:1]}), children)
    again = reopened(catalog, tmp_path)
    assert [child.tag_values for child in again.children(table.uid)] == [("a",), ("b",)]
    again.close()


@pytest.mark.parametrize("count", [10_000])
def test_many_children_are_created_and_found(catalog: Catalog, tmp_path: Path, count: int) -> None:
    """Lists and look-ups work at the size of a real fleet, also after opening again."""
    table = meters(catalog)
    catalog.schema.create_children(table.uid, [(f"m{i}", ("x", None)) for i in range(count)], NOW)
    again = reopened(catalog, tmp_path)
    assert len(again.children(table.uid)) == again.child_count(table.uid) == count
    found = again.child("d", f"m{count - 1}")
    assert found is not None
    assert found.super_uid == table.uid
    again.close()


_TAG = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()


_ROWS = st.integers(0, 3).flatmap(
    lambda width: st.lists(st.tuples(st.text(), st.tuples(*[_TAG] * width)), min_size=1, max_size=5))


@given(_ROWS, st.lists(st.integers(1000, 2000), min_size=5, max_size=5, unique=True), st.booleans())
def test_an_entry_of_many_children_gives_them_again(
    rows: list[tuple[str, tuple[TagValue, ...]]], uids: list[int], counted: bool
) -> None:
    """Names with dots too, whichever uids are left, in one vgroup and in several."""
    children = [ChildTable(1000 + number if counted else uid, name, 2 + number % 2, tags, NOW + number // 2, 7)
                for number, ((name, tags), uid) in enumerate(zip(rows, sorted(uids), strict=False))]
    for some in (children, children[1:] or children):
        key = codec.key(7, children[0].uid)
        assert codec.children_of_batch(key, codec.unseal(codec.sealed_batch(key, some))) == some


@settings(max_examples=30)
@given(order=st.permutations(range(12)), cuts=st.sets(st.integers(1, 11)), later=st.booleans())
def test_children_may_be_older_than_those_that_are_there(
    tmp_path_factory: pytest.TempPathFactory, order: list[int], cuts: set[int], later: bool
) -> None:
    """Whichever of the reserved uids come first, each is found by its own; others come behind them meanwhile."""
    path = tmp_path_factory.mktemp("catalog")
    catalog = Catalog(path / "catalog")
    table = meters(catalog)
    origin = catalog.schema.set_origin("d", RestoredFrom("c", 0), (5, 16))
    assert origin == RestoredFrom("c", FIRST_UID + 1 - 5, (FIRST_UID + 1, FIRST_UID + 12))
    for first, behind in pairwise([0, *sorted(cuts), 12]):
        places = sorted(order[first:behind])
        catalog.schema.add_children(table.uid, [f"m{place}" for place in places], [[None] * len(places)] * 2, NOW,
                                    uids=[FIRST_UID + 1 + place for place in places])
        if later:
            catalog.schema.create_children(table.uid, [(f"later{first}", (None, None))], NOW)
    wanted = {child.uid: child for child in catalog.children(table.uid)}
    assert len(wanted) == 12 + later * (len(cuts) + 1)
    for uid in wanted:
        wanted[uid] = catalog.schema.set_tags(table.uid, uid, (str(uid), None))
    with closing(reopened(catalog, path)) as again:
        assert again.children(table.uid) == tuple(wanted.values())
        again.schema.drop_children(table.uid, [*wanted][::2])
        with closing(CatalogReader(again._store.entries)) as reader:
            assert reader.children(table.uid) == [*wanted.values()][1::2]


def test_children_that_share_an_entry_change_alone(catalog: Catalog, tmp_path: Path) -> None:
    """Tags are set, child tables go, by one and by many, and a tag comes: what is read again is what was left."""
    table = meters(catalog)
    few = catalog.schema.create_children(table.uid, [("first", ("a", b"x"))], NOW)
    many = catalog.schema.create_children(table.uid, [(f"m{n}", ("x", b"\x00")) for n in range(600)], NOW)
    last = catalog.schema.create_children(table.uid, [(f"n{n}", (None, None)) for n in range(20)], NOW + 1)
    wanted = {child.uid: child for child in (*few, *many, *last)}
    for child in (few[0], many[0], many[249], many[250], last[19]):
        wanted[child.uid] = catalog.schema.set_tags(table.uid, child.uid, ("Öl", None))
    for gone in ([many[1].uid], [few[0].uid, *(child.uid for child in many[250:500]), many[599].uid]):
        catalog.schema.drop_children(table.uid, gone)
        for uid in gone:
            del wanted[uid]
    again = reopened(catalog, tmp_path)
    assert again.children(table.uid) == tuple(wanted.values())
    assert len([entry for entry in again.entries() if entry.store == CHILDREN]) == 3
    changed = Table(**{**_fields(table), "tags": table.tags[:1]})
    again.schema.replace_table(changed, {uid: child.tag_values[:1] for uid, child in wanted.items()})
    with closing(CatalogReader(again._store.entries)) as reader:
        assert reader.children(table.uid) == [child._replace(tag_values=child.tag_values[:1])
                                              for child in wanted.values()]
        found = [reader.child(table.uid, child.uid) for child in (many[0], many[250], last[19])]
        assert [None if child is None else child.name for child in found] == ["m0", None, "n19"]
        again.schema.drop_table(table.uid)
        assert (reader.children(table.uid), reader.child(table.uid, many[0].uid)) == ([], None)
