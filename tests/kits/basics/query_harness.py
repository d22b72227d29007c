"""Runs queries over tables held in memory: no engine, no files. For tests of the query planner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

import duckdb
import pyarrow as pa

from penstock.common.closed_duckdb import RenewableDuckdb
from penstock.common.connection import ExternalConnection
from penstock.common.errors import InvalidStatementError
from penstock.mnode.query.query_runner import EngineBackend, OpenQuery
from penstock.planner.duckdb_sql.quoting import for_duckdb
from penstock.planner.logical.operators import ROWS, Scan
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.planner.task_plans.plan_tree import render_tree
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import (
    ChildTable,
    Column,
    Database,
    DatabaseOptions,
    Session,
    Table,
    TagValue,
    UserFunction,
    View,
)
from penstock.sql.tree.statements import Explain, Query
from penstock.sql.types import DataType, Kind, Precision, timestamp

Row = Sequence[object]
Definition = Mapping[str, DataType]


@dataclass(frozen=True, slots=True)
class Rows:
    """Rows of a scan as SQL over Arrow tables."""

    sql: str
    tables: dict[str, pa.Table]


@dataclass
class Harness:
    """A catalog and its rows; queries run with `query`. Timestamps are given and returned as integers."""

    database_name: str = "db"
    precision: Precision = "ms"
    time_zone: str = "UTC"
    now_ms: int = 0
    tables: dict[str, Table] = field(default_factory=dict)
    rows: dict[int, dict[object, tuple[object, ...]]] = field(default_factory=dict)
    connection: duckdb.DuckDBPyConnection = field(
        default_factory=lambda: duckdb.connect(config={"threads": 1}))

    # -- the catalog -----------------------------------------------------------------------------------------

    def database(self, name: str) -> Database | None:
        if name != self.database_name:
            return None
        return Database(name, DatabaseOptions(precision=self.precision), (1,), 0)

    def database_names(self) -> Iterable[str]:
        return [self.database_name]

    def table(self, database: str, name: str) -> Table | None:
        return self.tables.get(name) if database == self.database_name else None

    def view(self, database: str, name: str) -> View | None:
        return None

    def table_names(self, database: str) -> Iterable[str]:
        return list(self.tables)

    def function(self, name: str) -> UserFunction | None:
        return None

    def external_connection(self, name: str) -> ExternalConnection | None:
        return None

    def external_connection_names(self) -> Iterable[str]:
        return []

    def children(self, super_uid: int) -> Iterable[ChildTable]:
        return [ChildTable(t.uid, t.name, 1, t.tag_values) for t in self.tables.values() if t.super_uid == super_uid]

    # -- setup -----------------------------------------------------------------------------------------------

    def create(self, name: str, columns: Definition, tags: Definition | None = None, *, key: bool = False) -> None:
        """Creates a normal table, or with tags a super table. `key`: the second column is part of the key."""
        defined = [Column("ts", timestamp(self.precision), "ts")]
        defined += [Column(n, t, n, key and index == 0) for index, (n, t) in enumerate(columns.items())]
        tag_columns = tuple(Column(n, t, n) for n, t in (tags or {}).items())
        self.tables[name] = Table(len(self.tables) + 1, self.database_name, name, "super" if tags else "normal",
                                  tuple(defined), tag_columns)

    def child(self, name: str, of: str, *values: TagValue) -> None:
        """Creates a child table."""
        parent = self.tables[of]
        self.tables[name] = Table(len(self.tables) + 1, self.database_name, name, "child", parent.columns, parent.tags,
                                  parent.uid, of, values, 1)

    def insert(self, name: str, rows: Iterable[Row]) -> None:
        """Writes rows; one with a key that exists replaces the old one."""
        table = self.tables[name]
        stored = self.rows.setdefault(table.uid, {})
        for row in rows:
            stored[row[:2] if table.key_column is not None else row[0]] = tuple(row)

    # -- queries ---------------------------------------------------------------------------------------------

    def plan(self, text: str) -> BatchPlan:
        statement = parse_one(text)
        if isinstance(statement, Explain):
            statement = statement.statement
        if not isinstance(statement, Query):
            raise InvalidStatementError("not a query")
        return plan_query(statement, self, Session(self.database_name, self.time_zone, self.now_ms))

    def arrow(self, text: str) -> pa.Table:
        with OpenQuery(self.plan(text), self, EngineBackend(RenewableDuckdb(lambda: self.connection))) as query:
            return query.table()

    def query(self, text: str) -> list[tuple[object, ...]]:
        """Returns the result's rows; timestamps are integers."""
        table = self.arrow(text)
        columns = []
        for column in table.columns:
            if pa.types.is_timestamp(column.type):
                column = column.cast(pa.int64())
            columns.append(column.to_pylist())
        return list(zip(*columns, strict=True)) if columns else []

    def explain(self, text: str) -> str:
        return "\n".join(render_tree(self.plan(text).tree)) + "\n"

    def relation(self, scan: Scan) -> Rows:
        """The scan provider: rows in no particular order, narrowed to the scan's bounds."""
        table = scan.table
        members = [t for t in self.tables.values() if table.uid in (t.uid, t.super_uid) and t.kind != "super"]
        names = ["_tuid", *scan.columns]
        data: dict[str, list[object]] = {name: [] for name in names}
        if scan.names:
            data = {"_tuid": [member.uid for member in members], "tbname": [member.name for member in members]}
            members = []
        for member in members:
            if scan.tuids is not None and member.uid not in scan.tuids:
                continue
            tags = {tag.name: value for tag, value in zip(table.tags, member.tag_values, strict=True)}
            for row in self.rows.get(member.uid, {}).values():
                if not _lies_in(row[0], scan.first_ts, scan.last_ts):
                    continue
                values = {"tbname": member.name, **tags, "_tuid": member.uid,
                          **{column.name: value for column, value in zip(table.columns, row, strict=True)}}
                if not all(_lies_in(values[name], first, last) for name, first, last in scan.ranges):
                    continue
                for name in names:
                    data[name].append(values[name])
        arrays = {name: pa.array(values, self._arrow_type(table, name)) for name, values in data.items()}
        if scan.counted:
            arrays[ROWS] = pa.array([1] * len(arrays["_tuid"]), pa.int64())
        return Rows(f"SELECT * FROM data_{scan.name}", {f"data_{scan.name}": for_duckdb(pa.table(arrays))})

    @staticmethod
    def _arrow_type(table: Table, name: str) -> pa.DataType:
        if name == "_tuid":
            return pa.uint64()
        column = table.column(name)
        if column is None:
            return pa.string()
        return pa.int64() if column.type.kind is Kind.TIMESTAMP else column.type.arrow()


def _lies_in(value: object, first: int | None, last: int | None) -> bool:
    return isinstance(value, int) and (first is None or value >= first) and (last is None or value <= last)


def at(text: str, precision: Precision = "ms") -> int:
    """Returns the units since the epoch of a UTC time such as `2024-01-01 00:00:00`."""
    moment = datetime.fromisoformat(text).replace(tzinfo=UTC)
    micros = round((moment - datetime(1970, 1, 1, tzinfo=UTC)).total_seconds() * 1_000_000)
    return {"ms": micros // 1000, "us": micros, "ns": micros * 1000}[precision]
