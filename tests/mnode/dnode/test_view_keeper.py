"""The views for other DuckDB processes while tables come and go."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.engines.embedded import Embedded

from penstock.common.errors import StorageError
from penstock.common.paths import DataPaths
from penstock.mnode.dnode import view_keeper
from penstock.mnode.dnode.vnode_storage import Storage
from penstock.vnode.read.views import open_duckdb


@pytest.mark.parametrize("statement", [
    "CREATE TABLE d.more (ts TIMESTAMP, v INT)", "ALTER TABLE d.m ADD COLUMN `É` INT",
    "ALTER TABLE d.m ADD TAG `É` INT"])
def test_tables_may_come_and_grow_while_the_views_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str
) -> None:
    """Views are of what vnodes, and the lists of child tables, have already."""
    with closing(Embedded(tmp_path / "data")) as db, ThreadPoolExecutor() as beside:
        db.all("CREATE DATABASE d VGROUPS 1", "CREATE STABLE d.m (ts TIMESTAMP, v INT) TAGS (g INT)",
               "CREATE TABLE d.c USING d.m TAGS (1)")
        views, storage = db.engine.parts.views, db.engine.parts.directory.storage
        views.refresh()
        refreshed: list[Future[None]] = []

        def refresh_first(*arguments: Any) -> None:
            views.schema_changed()
            refreshed.append(beside.submit(views.refresh))
            wait(refreshed, 0.2)
            Storage.define_table(storage, *arguments)

        monkeypatch.setattr(storage, "define_table", refresh_first)
        db.execute(statement)
        refreshed[0].result()
        views.refresh()
        with open_duckdb(DataPaths(db.path)) as connection:
            assert len(connection.execute("FROM d.m").description) == 4 + ("ALTER" in statement)


@pytest.mark.parametrize(
    ("statement", "gone"), [("DROP DATABASE e", "goes"), ("ALTER TABLE d.stays DROP COLUMN w", "w")])
def test_tables_and_columns_may_go_while_the_views_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, statement: str, gone: str
) -> None:
    """That is no error: the views are written again, without it. What is really wrong is one, and stays marked."""
    paths = DataPaths(tmp_path / "data")
    real = view_keeper.write_views
    with closing(Embedded(paths.root)) as db:
        db.all("CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.stays (ts TIMESTAMP, v INT, w INT)",
               "CREATE DATABASE e VGROUPS 1", "CREATE TABLE e.goes (ts TIMESTAMP, v INT)")
        views = db.engine.parts.views

        def drop_first(*arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(view_keeper, "write_views", real)
            db.execute(statement)
            real(*arguments, **options)

        monkeypatch.setattr(view_keeper, "write_views", drop_first)
        views.refresh()
        views.refresh()
        assert "stays" in (text := paths.views_sql.read_text())
        assert f'"{gone}"' not in text

        def refuse(*_: Any, **__: Any) -> None:
            raise StorageError("the disk is full")

        db.execute("CREATE TABLE d.more (ts TIMESTAMP, v INT)")
        monkeypatch.setattr(view_keeper, "write_views", refuse)
        with pytest.raises(StorageError, match="full"):
            views.refresh()
        monkeypatch.undo()
        views.refresh()
        assert "more" in paths.views_sql.read_text()
