"""What random tables are written into: a connection, or a sandbox whose streams work until they rest."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import pyarrow as pa

import penstock
from penstock.mnode.admin.sandbox import Sandbox
from penstock.shell.api.parameter_binding import bind


class Target(Protocol):
    """Takes statements and Arrow tables."""

    def execute(self, text: str, parameters: Sequence[object] = ()) -> None: ...

    def insert_arrow(self, table: str, rows: pa.Table) -> None: ...

    def set_time_zone(self, zone: str) -> None: ...

    def ask(self, query: str) -> list[tuple[Any, ...]]: ...


class Connected:
    """A connection of a program."""

    def __init__(self, connection: penstock.Connection) -> None:
        self._connection = connection
        self.set_time_zone = connection.set_time_zone

    def execute(self, text: str, parameters: Sequence[object] = ()) -> None:
        self._connection.execute(text, parameters)

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        self._connection.cursor().insert_arrow(table, rows)

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        return rows_of(self._connection.execute(query).fetch_arrow())


class Boxed:
    """A sandbox."""

    def __init__(self, box: Sandbox) -> None:
        self.box = box

    def execute(self, text: str, parameters: Sequence[object] = ()) -> None:
        self.box.execute(bind(text, parameters) if parameters else text)

    def insert_arrow(self, table: str, rows: pa.Table) -> None:
        self.box.engine.insert_arrow(table, rows, self.box.session)
        self.box.run()

    def set_time_zone(self, zone: str) -> None:
        self.box.session.time_zone = zone

    def ask(self, query: str) -> list[tuple[Any, ...]]:
        table = self.box.execute(query).table
        return [] if table is None else rows_of(table)


def rows_of(table: pa.Table) -> list[tuple[Any, ...]]:
    """The rows of an answer; times are units since the epoch."""
    columns = [column.cast(pa.int64()).to_pylist() if pa.types.is_timestamp(column.type) else column.to_pylist()
               for column in table.columns]
    return list(zip(*columns, strict=True))
