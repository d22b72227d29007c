"""A catalog whose log is copied from another node: in memory it is what is stored, once it is read anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.common.clock import ManualClock
from penstock.common.errors import NotActiveError
from penstock.common.fs import OsFs
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_log import CatalogLog
from penstock.mnode.dnode.copied_stored_log import CopiedStoredLog
from penstock.sql.schema import Column, DatabaseOptions
from penstock.sql.types import DOUBLE, timestamp


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
    columns = (Column("ts", timestamp(), "ts"), Column("v", DOUBLE, "v"))
    source.schema.create_database("d", DatabaseOptions(vgroups=1), 0)
    table = source.schema.create_table("d", "t", columns, (), super_table=False, now_ms=0)
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


def test_new_child_tables_are_added_alone(tmp_path: Path) -> None:
    """They come all the time: the catalog isn't read anew for them, but for anything else."""
    source, target = opened(tmp_path / "a"), opened(tmp_path / "b")
    copying = target.copying()
    copying.follow(NotActiveError("follows"))
    columns = (Column("ts", timestamp(), "ts"), Column("v", DOUBLE, "v"))
    source.schema.create_database("d", DatabaseOptions(vgroups=1), 0)
    parent = source.schema.create_table(
        "d", "s", columns, (Column("k", DOUBLE, "k"),), super_table=True, now_ms=0)
    copy_all(source, target)
    target.refresh()
    seen = copying.synced_version
    source.schema.create_children(parent.uid, [("a", (1.0,)), ("b", (2.0,))], 0)
    copy_all(source, target)
    assert target.add_copied(copying.applied_behind(seen))
    assert target.children(parent.uid) == source.children(parent.uid)
    assert target.child("d", "b") == source.child("d", "b")
    seen = copying.synced_version
    source.schema.drop_database("d")
    copy_all(source, target)
    assert not target.add_copied(copying.applied_behind(seen))
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
