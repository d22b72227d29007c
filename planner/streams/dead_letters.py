"""What becomes of rows that a stream cannot use: ON_ERROR and LATE of CREATE STREAM, and the shape of DLQ tables.

A dead letter queue (DLQ) is a super table, with one child table per stream and vnode and a line per row left out.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, InvalidStreamError
from penstock.planner.task_plans.stream_plan import DlqPlan, OnError, SourceColumn, TimeClock
from penstock.sql.schema import CatalogView, Column, Session, Table
from penstock.sql.tree.statements import (
    CreateStream,
    Name,
    ReplayDlq,
    Select,
    SelectItem,
    StreamOptions,
    TableSource,
)
from penstock.sql.types import BIGINT, INT, DataType, Kind, Precision, timestamp

CONTENT_BYTES = 8_000
MESSAGE_BYTES = 1_024


def dlq_columns(precision: Precision) -> tuple[Column, ...]:
    """Returns the columns: `ts` is the ingestion, and `id` tells rows of the same instant apart."""
    time = timestamp(precision)
    kinds = (
        ("ts", time), ("id", BIGINT), ("event_time", time), ("table_name", _text(192)), ("reason", _text(16)),
        ("message", _text(MESSAGE_BYTES)), ("version", BIGINT), ("attempts", INT), ("state", _text(16)),
        ("content", _text(CONTENT_BYTES)),
    )
    return tuple(Column(name, kind, name, name == "id") for name, kind in kinds)


def dlq_tags() -> tuple[Column, ...]:
    return (Column("stream_name", _text(192), "stream_name"), Column("node_id", INT, "node_id"))


def _text(length: int) -> DataType:
    return DataType(Kind.VARCHAR, length)


def replay_query(statement: ReplayDlq, columns: Sequence[str]) -> Select:
    """Returns the query for the rows of a DLQ table that are to be tried again: `tbname` and these columns."""
    dead = exp.And(
        this=exp.EQ(this=exp.column("state"), expression=exp.Literal.string("dead")),
        expression=exp.NEQ(this=exp.column("reason"), expression=exp.Literal.string("refused")))
    items = tuple(SelectItem(exp.column(name), name, name) for name in ("tbname", *columns))
    return Select(items, TableSource(statement.name), where=statement.where or dead)


def late_choice(options: StreamOptions) -> bool | None:
    """Returns what LATE says of IGNORE EXPIRED, None if it isn't given; raises InvalidStreamError if both are."""
    if options.late is None:
        return options.ignore_expired
    if options.ignore_expired is not None:
        raise InvalidStreamError("LATE and IGNORE EXPIRED say the same: give one of them",
                                 hint="LATE DROP is IGNORE EXPIRED 1, LATE RECALC is IGNORE EXPIRED 0")
    return options.late != "recalc"


def plan_errors(statement: CreateStream, trigger: str, clock: TimeClock, default: OnError) -> OnError:
    """Returns what becomes of rows that can't be computed; raises InvalidStreamError where they don't go by event time.

    The default is for streams by event time; the others have TDengine's way.
    """
    options = statement.options
    by_event_time = trigger != "force_window_close" and clock == "event"
    windowless = statement.select.window is None and not statement.materialized
    if options.late is not None and (not by_event_time or windowless):
        raise InvalidStreamError("LATE is for windows by event time")
    if by_event_time:
        return options.on_error or default
    if options.on_error is not None:
        raise InvalidStreamError("ON_ERROR is for streams by event time",
                                 hint="what goes by the clock is computed once: a row couldn't be tried again")
    return "null"


def plan_dlq(
    options: StreamOptions, source: Table, precision: Precision, catalog: CatalogView, session: Session
) -> DlqPlan | None:
    """Returns where rows left out go. Raises NotFoundError, or InvalidStatementError for a table that is no DLQ."""
    if options.dlq is None:
        return None
    columns = tuple(SourceColumn(column.name, column.physical, column.type) for column in source.columns)
    return replace(dlq_table(options.dlq, precision, catalog, session), columns=columns, late=options.late == "dlq",
                   errors=options.on_error == "dlq", failures=options.on_failure == "dlq")


def dlq_table(name: Name, precision: Precision, catalog: CatalogView, session: Session) -> DlqPlan:
    """Returns a DLQ table for errors, which may be there or not; raises as `plan_dlq` does."""
    database = name.database or session.database
    found = catalog.database(database) if database is not None else None
    if database is None or found is None:
        raise InvalidStatementError(f"there is no database for the DLQ table {name}", code=0x2616)
    if found.precision != precision:
        raise InvalidStatementError(
            f"the DLQ table's database has precision {found.precision}, the source's {precision}",
            hint="put it into a database of the same precision")
    existing = catalog.table(database, name.name)
    wanted = [(column.name, column.type) for column in (*dlq_columns(precision), *dlq_tags())]
    if existing is not None and (existing.kind != "super" or [
            (column.name, column.type) for column in (*existing.columns, *existing.tags)] != wanted):
        raise InvalidStatementError(f"{database}.{name.name} exists and is not a DLQ table",
                                    hint="leave its creation to CREATE STREAM or CREATE INGEST")
    return DlqPlan(database, name.name, 0 if existing is None else existing.uid, (), late=False, errors=True,
                   failures=False)
