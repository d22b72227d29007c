"""What VERIFY STREAM compares, for streams of a `StreamKit`: these have no engine, catalog or result table of one."""

from __future__ import annotations

from dataclasses import dataclass

import pyarrow as pa
from kits.streams.shared_computers import SharedComputer
from kits.streams.stream_kit import Store, StreamKit

from penstock.common.closed_duckdb import RenewableDuckdb
from penstock.common.errors import NotSupportedError
from penstock.mnode.query.query_runner import EngineBackend, OpenQuery
from penstock.mnode.streams.stream_comparison import check_comparable, closed_until, compared
from penstock.planner.duckdb_sql.quoting import for_duckdb
from penstock.planner.logical.operators import ROWS, Scan
from penstock.planner.query.compared_results import compared_results
from penstock.planner.query.found_results import results_of_table
from penstock.planner.streams.stream_planner import plan_results
from penstock.sql.dialect.parser import parse_one
from penstock.sql.schema import Session, Table
from penstock.sql.tree.statements import CreateStream
from penstock.vnode.store.sorted_keys import TS_MAX, TS_MIN


@dataclass(frozen=True)
class ScannedRows:
    """The rows of a scan."""

    sql: str
    tables: dict[str, pa.Table]


def source_rows(store: Store, scan: Scan) -> ScannedRows:
    """Returns the rows of a scan of the source, whose columns the plan may call otherwise."""
    meters = store.catalog.meters
    renamed = {known.name: used.name for known, used in zip(
        (*meters.columns, *meters.tags), (*scan.table.columns, *scan.table.tags), strict=True)}
    table = store.rows()
    if scan.table.kind == "child":
        table = table.filter(pa.compute.equal(table.column("tbname"), scan.table.name))
    table = table.rename_columns([renamed.get(name, name) for name in table.column_names])
    found = table.select(["_tuid", *scan.columns])
    if scan.names:
        found = table.group_by(["_tuid", "tbname"]).aggregate([])
    elif scan.counted:
        found = found.append_column(ROWS, pa.array([1] * len(found), pa.int64()))
    return _whole(scan, found)


def backend() -> EngineBackend:
    """Returns where queries run: in the DuckDB that the tasks of this process share."""
    return EngineBackend(RenewableDuckdb(lambda: SharedComputer.database))


def verify_kit(kit: StreamKit, sql: str, session: Session) -> str | None:
    """Has the comparison find no difference in a stream that has read all rows, and rests. None where it is verified.

    `sql`: its statement, in `session`. Returns why the stream is refused.
    """
    statement = parse_one(sql)
    assert isinstance(statement, CreateStream)
    try:
        check_comparable(kit.plan)
        results = plan_results(statement, kit.catalog, session)
    except NotSupportedError as error:
        return error.message
    sink = kit.plan.sink
    target = Table(1, sink.database, sink.table, "super", sink.columns, sink.tags)
    statuses = [task.status() for task in kit.tasks]
    until = closed_until(
        kit.plan, {one.task.index: one.time.watermark for one in statuses if one.task.operator == "agg"},
        {one.task.index: one.time.max_event_time for one in statuses if one.task.operator == "source"})
    cuts = {scan.table.database: ((), ()) for scan in results.scans}
    comparison = compared_results(results, results_of_table(target), cuts, [(TS_MIN, TS_MAX)], until)
    with OpenQuery(comparison, _KitRows(kit, target), backend()) as query:
        found = compared(query.table())
    assert not found.differences, "\n".join(map(str, (sql, *found.differences)))
    return None


@dataclass(frozen=True)
class _KitRows:
    """Gives the rows of the source and the results of a kit."""

    kit: StreamKit
    target: Table

    def relation(self, scan: Scan) -> ScannedRows:
        if scan.table is not self.target:
            return source_rows(self.kit.store, scan)
        rows = [(key[0], *row.values()) for key, row in self.kit.results.items()]
        columns = {"tbname": pa.array([row[0] for row in rows], pa.string())}
        for n, column in enumerate(self.target.columns, 1):
            values = pa.array([row[n] for row in rows], column.type.arrow())
            columns[column.name] = values.cast(pa.int64()) if pa.types.is_timestamp(values.type) else values
        return _whole(scan, pa.table(columns))


def _whole(scan: Scan, rows: pa.Table) -> ScannedRows:
    name = f"scanned_{scan.name}"
    return ScannedRows(f"SELECT * FROM {name}", {name: for_duckdb(rows)})
