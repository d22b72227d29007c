"""Who takes over from another node has vnodes that only followed their logs, which don't tell of dropped tables."""

from __future__ import annotations

import shutil
from pathlib import Path

from kits.engines.embedded import Embedded


def test_what_was_dropped_elsewhere_is_forgotten(tmp_path: Path) -> None:
    """Rows of child tables and tables that the catalog doesn't have any more are gone; all others stay."""
    db = Embedded(tmp_path / "data")
    db.all("CREATE DATABASE d VGROUPS 1", "USE d", "CREATE TABLE s (ts TIMESTAMP, v INT) TAGS (k INT)",
           "CREATE TABLE t (ts TIMESTAMP, v INT)", "CREATE TABLE u (ts TIMESTAMP, v INT)",
           *(f"INSERT INTO c{number} USING s TAGS ({number}) VALUES (170000000000{number}, {number})"
             for number in range(4)),
           "INSERT INTO t VALUES (1700000000000, 1)", "INSERT INTO u VALUES (1700000000000, 2)")
    before = db.engine.storage.vnode(2)
    folder = before.directory
    db.engine.close()
    shutil.copytree(folder, tmp_path / "followed")
    db.engine = db._open()
    db.all("DROP TABLE c1", "DROP TABLE c3", "DROP TABLE t")
    db.engine.close()
    shutil.rmtree(folder)
    shutil.copytree(tmp_path / "followed", folder)
    db.engine = db._open()
    storage = db.engine.storage
    vnode = storage.vnode(2)
    tables = {table.name: table.uid for kind in ("super", "normal") for table in db.engine.catalog.tables("d", kind)}
    assert (len(vnode.reader.children_of(tables["s"])), len(vnode.reader.table_uids())) == (4, 3)
    for _ in range(2):
        storage.forget_dropped()
        assert vnode.reader.snapshot(tables["s"]).to_arrow().num_rows == 2
        assert sorted(vnode.reader.table_uids()) == sorted(tables.values())
    assert db.run("SELECT count(*), sum(v) FROM d.s") == [(2, 2)]
    assert db.run("SELECT v FROM d.u") == [(2,)]
    db.execute("INSERT INTO d.c1 USING d.s TAGS (1) VALUES (1600000000000, 8)")
    db.reopen()
    assert db.run("SELECT count(*), sum(v) FROM d.s") == [(3, 10)]
    db.close()
