"""DRY RUN CREATE STREAM: what a stream would write for a sample of rows; creates nothing.

The sample runs through the real tasks in a sandbox: the source and target tables are made there again, the rows are
written in the order in which they once arrived, and what comes out is listed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from penstock.common.errors import InvalidStatementError, NotFoundError, NotSupportedError, UnavailableError
from penstock.mnode.access.session import Result
from penstock.mnode.catalog.catalog import Catalog
from penstock.mnode.catalog.name_lookup import find_table
from penstock.mnode.coordinator.task_settings import functions_directory
from penstock.mnode.dnode.vnode_storage import vgroups_of
from penstock.mnode.engine import Engine
from penstock.mnode.write.csv_rows import CsvLayout, columns_of, csv_file
from penstock.mnode.write.inserts import place_by_index
from penstock.mnode.write.row_placement import Owners
from penstock.planner.bind.instants import instant
from penstock.planner.query.view_queries import views_below
from penstock.planner.task_plans.plan_tree import ResultColumn
from penstock.planner.task_plans.stream_plan import JoinPlan, StreamPlan
from penstock.sql.dialect.create_statements import table_statement
from penstock.sql.dialect.generator import print_sql
from penstock.sql.rows.constants import Constants
from penstock.sql.schema import ChildTable, Column, Database, Session, Table, TagValue
from penstock.sql.tree.expression_nodes import quote_identifier
from penstock.sql.tree.statements import CreateDatabase, DryRunStream, UseDatabase
from penstock.sql.types import VARCHAR, timestamp
from penstock.tasks.protocol.messages import Reason

if TYPE_CHECKING:
    from penstock.mnode.admin.sandbox import Sandbox

SAMPLE_ROWS_MAX = 1_000_000
_RECORDS_WANTED = 5_000
_TBNAME = Column("tbname", VARCHAR, "\x00tbname")

_LEFT_OUT: dict[Reason, str] = {
    "late": "came too late: all its windows were closed",
    "future": "is too far in the future",
}
_Line = tuple[str, str | None, int | None, str]


class DryRun:
    """Executes DRY RUN statements of an engine."""

    def __init__(self, engine: Engine, open_sandbox: type[Sandbox]) -> None:
        self._config = {"udfDir": str(functions_directory(engine.config, engine.paths)),
                        "maxFuture": f"{engine.config.max_future:g}s" if engine.config.max_future else 0}
        self._catalog = engine.catalog
        self._storage = engine.storage
        self._plan = engine.streams.planning.plan
        self._open_sandbox = open_sandbox

    def run(self, statement: DryRunStream, session: Session) -> Result:
        """Returns lines of (kind, table, ts, values): result rows, late rows, then how much there was of each.

        Raises what CREATE STREAM would, InvalidStatementError for a sample that is too large or has no such table.
        """
        plan = self._plan(statement.stream, session)
        if isinstance(plan.computation, JoinPlan):
            raise NotSupportedError("DRY RUN is for streams over one table", hint="SELECT gives what a join will give")
        views = views_below(statement.stream.query, session.database or "", self._catalog)
        if len(plan.sources) > 1 or next(views, None) is not None:
            raise NotSupportedError("DRY RUN is for streams over one table, and without views",
                                    hint="SELECT gives what the stream will give")
        if plan.source.lookup is not None:
            raise NotSupportedError("a dry run has no other table to look up in", hint="SELECT gives what it will give")
        if plan.sink.external is not None:
            raise NotSupportedError("a dry run has no connections",
                                    hint="write INTO a table's name: the results are the same")
        table = self._catalog.table(plan.source.database, plan.source.table)
        database = self._catalog.database(plan.source.database)
        assert table is not None
        assert database is not None
        with self._open_sandbox(session.time_zone, session.now_ms, self._config) as sandbox:
            for function in {call.function for call in plan.functions}:
                sandbox.engine.catalog.functions.create(function, replacing=False)
            copy = _Copy(sandbox, self._catalog, database, table)
            target = find_table(statement.stream.target.name, session, self._catalog, statement.stream.source_text,
                                statement.stream.source_start)
            if target is not None and target.database == database.name:
                sandbox.execute(print_sql(table_statement(target)))
            elif plan.sink.database != database.name:
                copy.make_database(plan.sink.database, database)
                if target is not None:
                    sandbox.execute(print_sql(UseDatabase(plan.sink.database)))
                    sandbox.execute(print_sql(table_statement(target)))
            sandbox.session.database = session.database
            sandbox.execute(statement.stream.source_text)
            _check_runs(sandbox)
            rows = (self._of_file(copy, statement.file, session) if statement.file is not None
                    else self._of_range(copy, statement, session))
            lines = [*_results(sandbox, plan), *_late(sandbox, copy)]
            return _result([*lines, _summary(sandbox, rows, lines)], plan)

    # --- samples -----------------------------------------------------------------------------------------------

    def _of_range(self, copy: _Copy, statement: DryRunStream, session: Session) -> int:
        """Writes the source's rows of a range of time, record by record as they came; returns how many."""
        assert statement.first is not None
        assert statement.last is not None
        table, database = copy.original, copy.database
        first = instant(statement.first, database.precision, session)
        last = instant(statement.last, database.precision, session)
        uids = None if table.kind == "super" else pa.array([table.uid], pa.uint64())
        count = 0
        for vgroup_id in vgroups_of(database, table):
            snapshot = self._storage.snapshot(vgroup_id, table.storage_uid)
            span = snapshot.span(first, last)
            if span is not None and span.rows > SAMPLE_ROWS_MAX:
                raise InvalidStatementError(
                    f"the sample has about {span.rows} rows in one vnode, at most {SAMPLE_ROWS_MAX} are taken",
                    hint="choose a shorter range")
            rows = snapshot.to_arrow(None, uids, first, last).sort_by("_ver")
            count += rows.num_rows
            versions = rows.column("_ver").to_numpy()
            for start, end in _runs(versions):
                copy.write(rows.slice(start, end - start))
        return count

    def _of_file(self, copy: _Copy, file: str, session: Session) -> int:
        """Writes the rows of a CSV file in their order; without header a super table's names the child table first."""
        table = copy.original
        columns = {column.name: column for column in
                   ([_TBNAME] if table.kind == "super" else []) + list(table.columns)}
        constants = Constants(copy.database.precision, session.time_zone, session.now_ms)
        parts = []
        with csv_file(Path(file).expanduser(), CsvLayout(None, tuple(columns), tuple(columns))) as reader:
            needed = list(columns)[:2 if table.kind == "super" else 1]
            if not set(needed) <= set(reader.names):
                raise InvalidStatementError(f"{file} has no column {' or '.join(needed)}")
            for cells in reader:
                parts.append(columns_of(cells, [columns[name] for name in cells.names], constants))
                if sum(part.num_rows for part in parts) > SAMPLE_ROWS_MAX:
                    raise InvalidStatementError(f"the sample has more than {SAMPLE_ROWS_MAX} rows",
                                                hint="choose a shorter file")
        if not parts:
            return 0
        rows = pa.Table.from_batches(parts).combine_chunks()
        step = -(-rows.num_rows // _RECORDS_WANTED) or 1
        for start in range(0, rows.num_rows, step):
            copy.write_named(rows.slice(start, step))
        return int(rows.num_rows)


class _Copy:
    """The source table once more, in the sandbox, with those child tables that rows are written for."""

    def __init__(self, sandbox: Sandbox, catalog: Catalog, database: Database, table: Table) -> None:
        self.original = table
        self.database = database
        self._sandbox = sandbox
        self._catalog = catalog
        self._names = {child.uid: child for child in catalog.children(table.storage_uid)}
        self.make_database(database.name, database)
        sandbox.execute(print_sql(UseDatabase(database.name)))
        if table.kind == "child":
            parent = catalog.table_by_uid(table.storage_uid)
            assert parent is not None
            sandbox.execute(print_sql(table_statement(parent)))
        sandbox.execute(print_sql(table_statement(table)))
        self.name = table.super_name if table.kind == "child" and table.super_name else table.name
        self.table = self._found()
        self._physical = {old.physical: new.physical
                          for old, new in zip(table.columns, self.table.columns, strict=True)}

    def make_database(self, name: str, like: Database) -> None:
        """Makes a database as `like` is in the sandbox, unless it is there."""
        options = (("VGROUPS", len(like.vgroup_ids)), ("PRECISION", like.precision))
        self._sandbox.execute(print_sql(CreateDatabase(name, options, if_not_exists=True)))

    def write(self, rows: pa.Table) -> None:
        """Writes rows as the store holds them (`_tuid`, physical columns) and lets the stream work."""
        uids = rows.column("_tuid").to_pylist()
        names = [self._names[uid].name if uid in self._names else self.original.name for uid in uids]
        self._write(rows.drop_columns(["_tuid", "_ver"]), names)

    def write_named(self, rows: pa.Table) -> None:
        """Writes rows of a file: for a super table the first column names the child."""
        if self.original.kind != "super":
            self._write(rows, [self.original.name] * rows.num_rows)
            return
        names = rows.column(_TBNAME.physical).to_pylist()
        if None in names:
            raise InvalidStatementError("the sample has a row without a table name")
        self._write(rows.drop_columns([_TBNAME.physical]), names)

    def name_of(self, uid: int) -> str:
        """Returns the name of a table of the sandbox."""
        for child in self._sandbox.engine.catalog.children(self.table.uid):
            if child.uid == uid:
                return child.name
        return self.table.name

    def _write(self, rows: pa.Table, names: Sequence[str]) -> None:
        distinct = list(dict.fromkeys(names))
        children = self._children(distinct)
        place = {name: n for n, name in enumerate(distinct)}
        columns = {self._physical[name]: rows.column(name).combine_chunks() for name in rows.column_names
                   if name in self._physical}
        batch = pa.RecordBatch.from_pydict(columns)
        index = np.array([place[name] for name in names], np.int32)
        for vgroup_id, part in place_by_index(batch, index, Owners(children)):
            self._sandbox.engine.storage.write(vgroup_id, self.table.uid, part)
        self._sandbox.run()

    def _children(self, names: Sequence[str]) -> list[ChildTable]:
        if self.table.kind != "super":
            assert self.table.vgroup_id is not None
            return [ChildTable(self.table.uid, self.table.name, self.table.vgroup_id, ()) for _ in names]
        wanted: dict[str, tuple[TagValue, ...]] = {}
        for name in names:
            known = self._catalog.child(self.database.name, name)
            wanted[name] = known.tag_values if known is not None else tuple(None for _ in self.table.tags)
        found = self._sandbox.engine.children.ensure(self.table, wanted)
        return [found[name] for name in names]

    def _found(self) -> Table:
        table = self._sandbox.engine.catalog.table(self.database.name, self.name)
        if table is None:
            raise NotFoundError(f"the sandbox has no table {self.name}")
        return table


def _runs(versions: np.ndarray[Any, Any]) -> Iterator[tuple[int, int]]:
    """Yields (first, end) of the stretches of equal versions: the records that the rows came in."""
    if not len(versions):
        return
    edges = [0, *(np.flatnonzero(np.diff(versions)) + 1).tolist(), len(versions)]
    yield from pairwise(edges)


def _check_runs(sandbox: Sandbox) -> None:
    """Raises UnavailableError if the stream couldn't begin: it would seem to write nothing."""
    answer = sandbox.execute("SELECT state, reason FROM information_schema.ins_streams").table
    assert answer is not None
    for state, reason in zip(*(column.to_pylist() for column in answer.columns), strict=True):
        if state != "RUNNING":
            raise UnavailableError(f"the stream could not be run: {reason}")


# --- what came out -----------------------------------------------------------------------------------------------


def _results(sandbox: Sandbox, plan: StreamPlan) -> Iterator[_Line]:
    name = f"{quote_identifier(plan.sink.database)}.{quote_identifier(plan.sink.table)}"
    time = plan.sink.columns[0].name
    answer = sandbox.execute(f"SELECT tbname, * FROM {name} ORDER BY {quote_identifier(time)}").table
    assert answer is not None
    tables, *columns = answer.columns
    names = [column.name for column in (*plan.sink.columns, *plan.sink.tags)]
    times: list[int | None] = [None] * answer.num_rows
    if pa.types.is_timestamp(columns[0].type):
        times, names = columns.pop(0).cast(pa.int64()).to_pylist(), names[1:]
    for table, ts, *row in zip(tables.to_pylist(), times, *(column.to_pylist() for column in columns), strict=True):
        yield "row", table, ts, ", ".join(f"{name}={_text(value)}" for name, value in zip(names, row, strict=True))


def _late(sandbox: Sandbox, copy: _Copy) -> Iterator[_Line]:
    for status in sandbox.streams.statuses():
        for row in status.dropped or ():
            yield row.reason, copy.name_of(row.tuid), row.ts, _LEFT_OUT[row.reason]


def _summary(sandbox: Sandbox, rows: int, lines: Sequence[_Line]) -> _Line:
    statuses = sandbox.streams.statuses()
    results = sum(line[0] == "row" for line in lines)
    late = sum(status.late.late_rows for status in statuses)
    windows = sum(status.size.windows_open or 0 for status in statuses)
    state = sum(status.size.bytes or 0 for status in statuses if status.task.operator == "agg")
    return ("summary", None, None, f"{rows} rows read, {results} result rows, {late} late rows, {windows} windows in "
                                   f"{state} bytes of state")


def _text(value: object) -> str:
    return "NULL" if value is None else str(value)


def _result(lines: Sequence[_Line], plan: StreamPlan) -> Result:
    kind = timestamp(plan.source.precision)
    columns = (ResultColumn("kind", VARCHAR), ResultColumn("table", VARCHAR), ResultColumn("ts", kind),
               ResultColumn("values", VARCHAR))
    parts: Mapping[str, pa.Array] = {
        "kind": pa.array([line[0] for line in lines], pa.string()),
        "table": pa.array([line[1] for line in lines], pa.string()),
        "ts": pc.cast(pa.array([line[2] for line in lines], pa.int64()), kind.arrow()),
        "values": pa.array([line[3] for line in lines], pa.string()),
    }
    return Result(columns, pa.table(dict(parts)), len(lines))
