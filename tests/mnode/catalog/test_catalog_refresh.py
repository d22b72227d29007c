"""A catalog whose log is copied from another node: in memory it is what is stored, once it is read anew."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Literal

import pytest

from penstock.common.clock import ManualClock
from penstock.common.errors import NotActiveError, PenstockError
from penstock.common.fs import OsFs
from penstock.common.passwords import PasswordHash, ScramVerifier
from penstock.mnode.catalog import catalog_codec
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_log import CatalogLog
from penstock.mnode.catalog.catalog_records import UserRecord
from penstock.mnode.dnode.copied_stored_log import CopiedStoredLog
from penstock.sql.schema import Column, DatabaseOptions, Table, View
from penstock.sql.types import DOUBLE, timestamp

COLUMNS = (Column("ts", timestamp(), "ts"), Column("v", DOUBLE, "v"))
TAGS = (Column("k", DOUBLE, "k"),)
KINDS: tuple[Literal["super", "normal"], ...] = ("super", "normal")
HASH = PasswordHash("00", "00", 2, 1, 1)
SCRAM = ScramVerifier("00", "00", "00", 1)


def opened(folder: Path) -> Catalog:
    return Catalog(folder / "catalog", log=CatalogLog(folder / "log", OsFs(), ManualClock()))


def copy_all(source: Catalog, target: Catalog) -> None:
    """Brings all records of a catalog's log to another one's."""
    of, to = (CopiedStoredLog(one.copying(), one.copying().log.directory, OsFs()) for one in (source, target))
    while (chunk := of.read(to.bounds().written, 1 << 20)) is not None:
        to.append(chunk)
    to.sync()


def test_what_came_by_the_log_is_known_after_a_refresh(tmp_path: Path) -> None:
    """Tables come and go; who holds the users finds the new ones; names that were looked up count as moved."""
    source, target = opened(tmp_path / "a"), opened(tmp_path / "b")
    target.copying().follow(NotActiveError("follows"))
    users, moves = target.users, target.moves
    source.schema.create_database("d", DatabaseOptions(vgroups=1), 0)
    table = source.schema.create_table("d", "t", COLUMNS, (), super_table=False, now_ms=0)
    copy_all(source, target)
    assert target.databases_now() == []
    target.refresh()
    assert [one.name for one in target.databases_now()] == ["d"]
    assert target.table("d", "t") == table
    assert (target.users is users, target.moves > moves) == (True, True)
    assert target.next_id == source.next_id
    source.schema.drop_database("d")
    copy_all(source, target)
    target.refresh()
    assert target.table("d", "t") is None
    with pytest.raises(NotActiveError):
        target.schema.create_database("e", DatabaseOptions(), 0)
    source.close()
    target.close()


class Changing:
    """Changes a catalog as random numbers say."""

    def __init__(self, catalog: Catalog, chance: random.Random) -> None:
        self._catalog = catalog
        self._chance = chance
        self._number = 0

    def _name(self) -> str:
        """Few, so that names of what is gone come again."""
        return self._chance.choice("abcdef")

    def change(self) -> None:
        """Does one thing; what can't be done isn't."""
        self._number += 1
        schema, database = self._catalog.schema, self._chance.choice("de")
        what = self._chance.choice(("database", "table", "super", "children", "children", "tags", "drop children",
                                    "drop table", "drop database", "view", "view", "drop view", "user"))
        known = [one for one in self._tables(database) if one.kind == "super"]
        parent = self._chance.choice(known) if known else None
        try:
            match what:
                case "database":
                    schema.create_database(database, DatabaseOptions(vgroups=2), self._number)
                case "table" | "super":
                    schema.create_table(database, self._name(), COLUMNS, TAGS if what == "super" else (),
                                        super_table=what == "super", now_ms=self._number)
                case "drop table":
                    schema.drop_table(self._chance.choice(self._tables(database)).uid)
                case "view":
                    schema.put_view(View(0, database, self._name(), f"SELECT {self._number}"))
                case "drop view":
                    schema.drop_view(self._chance.choice(self._catalog.views(database)))
                case "drop database":
                    schema.drop_database(database)
                case "user":
                    self._catalog.users.put(UserRecord(f"u{self._number}", "read", HASH, SCRAM, self._number))
                case _ if parent is not None:
                    self._change_children(parent, what)
        except (PenstockError, IndexError):
            pass

    def _tables(self, database: str) -> list[Table]:
        return [*self._catalog.tables(database, "super"), *self._catalog.tables(database, "normal")]

    def _change_children(self, parent: Table, what: str) -> None:
        schema, children = self._catalog.schema, self._catalog.children(parent.uid)
        if what == "children":
            schema.create_children(parent.uid, [(f"{self._name()}{n}", (float(n),)) for n in range(3)], self._number)
        elif what == "tags":
            schema.set_tags(parent.uid, self._chance.choice(children).uid, (float(self._number),))
        else:
            schema.drop_children(parent.uid, [one.uid for one in children if self._chance.random() < 0.5])


def known(catalog: Catalog) -> object:
    """Returns all that a catalog answers."""
    databases = catalog.databases()
    tables = [table for one in databases for kind in KINDS for table in catalog.tables(one.name, kind)]
    children = {table.uid: catalog.children(table.uid) for table in tables}
    found = {(one.name, name): catalog.table(one.name, name) for one in databases
             for name in [*"abcdef", *(f"{letter}{number}" for letter in "abcdef" for number in range(3))]}
    views = {(view.database, view.name): view for view in catalog.views()}
    assert all(catalog.view(*place) == view for place, view in views.items())
    assert catalog.has_views == bool(views)
    return databases, tables, children, found, views, [one.name for one in catalog.users.all()]


@pytest.mark.parametrize("seed", range(4))
def test_changes_are_followed_one_by_one(tmp_path: Path, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever comes and goes, under names that there were before, memory is as if all had been read anew; tables
    aren't read for it. Few child tables share entries, or many do."""
    monkeypatch.setattr(catalog_codec, "BATCH", 2 if seed % 2 else 16)
    source, target = opened(tmp_path / "a"), opened(tmp_path / "b")
    copying, chance = target.copying(), random.Random(seed)
    copying.follow(NotActiveError("follows"))
    changing = Changing(source, chance)
    monkeypatch.setattr(target, "_load_tables", None)
    for _ in range(60):
        for _ in range(chance.randrange(1, 6)):
            changing.change()
        seen = copying.synced_version
        copy_all(source, target)
        target.apply_copied(copying.applied_behind(seen))
        assert known(target) == known(source)
    source.close()
    target.close()
    again = opened(tmp_path / "a")
    assert known(again) == known(target)
    again.close()


def test_a_table_that_replaces_another_has_all_tables_read(tmp_path: Path) -> None:
    """What no name leads to yet is of no database; so is what was called otherwise before."""
    source, target = opened(tmp_path / "a"), opened(tmp_path / "b")
    copying = target.copying()
    copying.follow(NotActiveError("follows"))
    source.schema.create_database("d", DatabaseOptions(vgroups=1), 0)
    before = source.schema.create_table("d", "s", COLUMNS, TAGS, super_table=True, now_ms=0)
    source.schema.create_children(before.uid, [("x", (1.0,))], 0)
    copy_all(source, target)
    target.refresh()
    seen = copying.synced_version
    staged = source.schema.create_table("d", "s", COLUMNS, TAGS, super_table=True, now_ms=0, replaces=before.uid)
    source.schema.create_children(staged.uid, [("x", (2.0,))], 0)
    copy_all(source, target)
    target.apply_copied(copying.applied_behind(seen))
    assert target.staged_tables("d") == source.staged_tables("d") == [staged]
    assert target.child("d", "x") == source.child("d", "x")
    source.close()
    target.close()


def test_ids_that_logs_have_are_not_given_again(tmp_path: Path) -> None:
    """Rows of a table that the catalog never got to know must not be those of another one later."""
    catalog = opened(tmp_path)
    given = catalog.next_id
    catalog.skip_ids(given + 5)
    assert catalog.next_id == given + 6
    catalog.skip_ids(given)
    assert catalog.next_id == given + 6
    catalog.close()
