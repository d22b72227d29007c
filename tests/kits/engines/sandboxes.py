"""Sandboxes with rows as plain tuples, for tests of streams through statements."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from unittest.mock import patch

from kits.basics.faulty_fs import FaultyFs
from kits.streams.shared_computers import share_computers
from kits.streams.stream_kit import assert_balanced

from penstock.common.closed_duckdb import UNBOUNDED, RenewableDuckdb, closed_duckdb
from penstock.mnode.admin.sandbox import Sandbox
from penstock.shell.api.arrow_values import column_values

share_computers()

T0 = 1_700_000_000_000
OF_ANY_TIME = "36500d"
"""`maxFuture` where rows may be of any time, whatever the clock shows."""


class _LastingDuckdb(RenewableDuckdb):
    """Serves one engine after the other."""

    def close(self) -> None:
        return


_DUCKDB = _LastingDuckdb(lambda: closed_duckdb(UNBOUNDED, [Path("/")]))


class TestBed(Sandbox):
    """A sandbox whose answers are lists of tuples; TIMESTAMP values are milliseconds after T0.

    All of a process answer queries by one DuckDB: a new one costs more than most queries. What an engine's own may read
    and take is tested with other engines.

    In a temporary directory, which no other process reads, there are no views for one.

    Rows are from no future, unless `config` says so.

    `loses_rows`: a fault is planted by which source tasks do; else none may be missing.
    """

    __test__ = False
    loses_rows = False

    def __init__(self, config: Mapping[str, Any] | None = None, **options: Any) -> None:
        super().__init__(fs=FaultyFs(), config={"maxFuture": OF_ANY_TIME, **(config or {})}, **options)
        if self._temporary is not None:
            self.engine.parts.views._write = lambda tables, children: None  # type: ignore[method-assign]
        queries = self.engine.parts.queries
        queries._engine = replace(queries._engine, shared=_DUCKDB)

    def run(self) -> None:
        super().run()
        if self._runtime is not None and not self.loses_rows:
            for status in self._runtime.reported:
                assert_balanced(status)

    def rows(self, query: str) -> list[tuple[Any, ...]]:
        # What only reads gives streams nothing to do.
        only_reads = query.startswith(("SELECT", "SHOW", "EXPLAIN"))
        table = (self.engine.execute(query, self.session) if only_reads else self.execute(query)).table
        if table is None or not table.num_rows:
            return []
        columns = [column_values(column, "UTC") for column in table.columns]
        return [tuple(map(_plain, row)) for row in zip(*columns, strict=True)]

    def all(self, *statements: str) -> None:
        for statement in statements:
            self.execute(statement)

    def forge(self, *statements: str) -> None:
        """Executes statements that change results of streams, which is refused to others: as a fault would."""
        with patch.object(self.engine.catalog.streams, "maker_of", lambda _: None):
            self.all(*statements)


def _plain(value: Any) -> Any:
    if not isinstance(value, datetime):
        return value
    moment = value if value.tzinfo is not None else value.replace(tzinfo=UTC)
    return round(moment.timestamp() * 1000) - T0
