"""Another node's catalog takes the place of one's own, whatever interrupts that."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from kits.basics.faulty_fs import FaultyFs

from penstock.common.clock import ManualClock
from penstock.common.errors import StorageError
from penstock.common.fs import OsFs
from penstock.common.paths import DataPaths
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.catalog_log import CatalogLog
from penstock.mnode.catalog.received_catalog import leave_received, take_received
from penstock.sql.schema import DatabaseOptions


def opened(paths: DataPaths) -> Catalog:
    return Catalog(paths.catalog, log=CatalogLog(paths.catalog_log, OsFs(), ManualClock()))


def make(paths: DataPaths, *databases: tuple[str, int]) -> None:
    """Makes a catalog with databases of a vgroup each, created at these times."""
    catalog = opened(paths)
    for name, created in databases:
        catalog.schema.create_database(name, DatabaseOptions(vgroups=1), created)
    catalog.close()


@pytest.fixture
def paths(tmp_path: Path) -> DataPaths:
    """A directory with vnodes 2, 3 and 4, and a catalog that is to be replaced."""
    here, there = DataPaths(tmp_path / "here"), DataPaths(tmp_path / "here/scratch/copy-0")
    make(here, ("both", 1), ("other", 2), ("gone", 3))
    make(there, ("both", 1), ("another", 9))
    for vgroup_id in (2, 3, 4):
        here.vnode(vgroup_id).mkdir(parents=True)
        (here.vnode(vgroup_id) / "rows").write_text(f"of {vgroup_id}")
    here.stream(77).mkdir(parents=True)
    here.catalog_copies.mkdir()
    leave_received(OsFs(), here, there.root)
    return here


def assert_taken(paths: DataPaths) -> None:
    catalog = opened(paths)
    assert [one.name for one in catalog.databases()] == ["both", "another"]
    catalog.close()
    assert not paths.received.exists()
    assert (paths.vnode(2) / "rows").read_text() == "of 2"
    for vgroup_id in (3, 4):  # of another database, of none
        assert not paths.vnode(vgroup_id).exists()
        assert (paths.aside / f"vnode/{vgroup_id}/rows").read_text() == f"of {vgroup_id}"
    assert (paths.aside / "streams/4d").is_dir()
    assert not paths.catalog_copies.exists()
    before = DataPaths(paths.aside)
    catalog = opened(before)
    assert [one.name for one in catalog.databases()] == ["both", "other", "gone"]
    catalog.close()


def test_what_was_here_is_kept_beside(paths: DataPaths) -> None:
    """What the other catalog would take for its own, though it isn't, is out of its way; a second call does nothing."""
    for _ in range(2):
        take_received(OsFs(), paths)
    assert_taken(paths)


@pytest.mark.parametrize("call", range(1, 30, 2))
def test_it_goes_on_where_it_was_interrupted(paths: DataPaths, call: int) -> None:
    """The disk refuses at some call: the next start does the rest."""
    fs = FaultyFs(fail_at=call)
    try:
        take_received(fs, paths)
    except StorageError:
        take_received(OsFs(), paths)
    assert_taken(paths)


def test_a_catalog_that_is_missing_or_damaged_is_replaced(paths: DataPaths) -> None:
    """Nothing of it is known, so that nothing stays in use that belonged to it."""
    (paths.catalog / "data.mdb").write_bytes(b"no catalog" * 1000)
    take_received(OsFs(), paths)
    catalog = opened(paths)
    assert [one.name for one in catalog.databases()] == ["both", "another"]
    catalog.close()
    assert not paths.vnode(2).exists()
    shutil.rmtree(paths.aside)
