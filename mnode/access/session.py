"""What a client's statements share (current database, time zone, settings), and what a statement answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from penstock.mnode.access.audit_log import Origin
from penstock.mnode.access.roles import OWNER, Identity
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.sql.dialect.tokenizer import back_quoted
from penstock.sql.schema import Session
from penstock.sql.types import DataType, Kind


@dataclass(slots=True)
class SessionState:
    """The state of one connection; USE changes it. Statements of one session may come from several threads.

    `identity`: who asks, and what that one may do. `connection_id` is what perf_connections lists it under.
    `origin`: where that one is. `query_timeout_s`: how long its statements may compute, if that is less than
    queryTimeout; 0: as long as that says. `ansi_quotes`: whether double quotes are around names in what it writes, as
    in standard SQL, and not around texts.
    """

    time_zone: str
    database: str | None = None
    identity: Identity = OWNER
    connection_id: int = 0
    settings: dict[str, str] = field(default_factory=dict)
    origin: Origin = field(default_factory=Origin)
    query_timeout_s: float = 0.0
    ansi_quotes: bool = False

    def in_dialect(self, text: str) -> str:
        """Returns what the session has written with the quotes of the dialect; written so already, it stays."""
        return back_quoted(text) if self.ansi_quotes else text

    def freeze(self, now_ms: int) -> Session:
        """Returns the session as one statement sees it."""
        return Session(self.database, self.time_zone, now_ms, self.identity.name, dict(self.settings),
                       self.identity.rights)


@dataclass(frozen=True, slots=True)
class Result:
    """The answer to a statement.

    Queries and SHOW have `columns` and `table` (one Arrow column per result column, TIMESTAMP as naive Arrow
    timestamps, UTC). Other statements have none of both; `affected` is the number of rows or tables they changed.
    `lag_s`: how many seconds ago a node of a cluster that isn't active had all that the active one had; None: it is
    active, or nobody knows.
    """

    columns: tuple[ResultColumn, ...] = ()
    table: pa.Table | None = None
    affected: int = 0
    lag_s: float | None = None

    @property
    def has_rows(self) -> bool:
        return self.table is not None


def rows_result(columns: Sequence[tuple[str, DataType]], rows: Sequence[Sequence[object]]) -> Result:
    """Returns rows of plain values; timestamps are given in ms."""
    arrays = [make_array([row[place] for row in rows], kind) for place, (_, kind) in enumerate(columns)]
    table = pa.Table.from_arrays(arrays, names=[name for name, _ in columns])
    return Result(tuple(ResultColumn(name, kind) for name, kind in columns), table)


def make_array(values: list[Any], kind: DataType) -> pa.Array:
    """Returns values of a system table's column as Arrow; timestamps are given in ms."""
    if kind.kind is Kind.TIMESTAMP:
        return pa.array(values, pa.int64()).cast(pa.timestamp("ms"))
    return pa.array(values, kind.arrow())


def text_result(name: str, lines: list[str]) -> Result:
    """Returns one VARCHAR column of lines."""
    return text_table({name: lines})


def text_table(columns: Mapping[str, Sequence[str]]) -> Result:
    """Returns VARCHAR columns by name."""
    table = pa.table({name: pa.array(values, pa.string()) for name, values in columns.items()})
    return Result(tuple(ResultColumn(name, DataType(Kind.VARCHAR)) for name in columns), table, table.num_rows)

