"""The views for other DuckDB processes while tables come and go."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from kits.engines.embedded import Embedded

from penstock.common.errors import StorageError
from penstock.common.paths import DataPaths
from penstock.mnode.dnode import view_keeper


def test_a_table_may_go_while_the_views_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That is no error: the views are written again, without it. What is really wrong is one, and stays marked."""
    paths = DataPaths(tmp_path / "data")
    real = view_keeper.write_views
    with closing(Embedded(paths.root)) as db:
        db.all("CREATE DATABASE d VGROUPS 1", "CREATE TABLE d.stays (ts TIMESTAMP, v INT)",
               "CREATE DATABASE e VGROUPS 1", "CREATE TABLE e.goes (ts TIMESTAMP, v INT)")
        views = db.engine.parts.views

        def drop_first(*arguments: Any, **options: Any) -> None:
            monkeypatch.setattr(view_keeper, "write_views", real)
            db.execute("DROP DATABASE e")
            real(*arguments, **options)

        monkeypatch.setattr(view_keeper, "write_views", drop_first)
        views.refresh()
        views.refresh()
        assert "stays" in (text := paths.views_sql.read_text())
        assert "goes" not in text

        def refuse(*_: Any, **__: Any) -> None:
            raise StorageError("the disk is full")

        db.execute("CREATE TABLE d.more (ts TIMESTAMP, v INT)")
        monkeypatch.setattr(view_keeper, "write_views", refuse)
        with pytest.raises(StorageError, match="full"):
            views.refresh()
        monkeypatch.undo()
        views.refresh()
        assert "more" in paths.views_sql.read_text()
