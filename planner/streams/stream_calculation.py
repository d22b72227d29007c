"""Streams with a trigger of their own: what its trigger goes by, and what it computes.

Rows of the trigger's query are its windows. What runs for them says `sql.tree.fired_queries`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from sqlglot import exp

from penstock.common.errors import InvalidStatementError, InvalidStreamError
from penstock.planner.bind.binder import known_table
from penstock.planner.lower.stages import TBNAME
from penstock.planner.query.batch_plan import BatchPlan
from penstock.planner.query.select import plan_query
from penstock.planner.streams.calculated_target import with_length
from penstock.planner.task_plans.stream_plan import CalculationPlan, QueriedTable
from penstock.sql.schema import CatalogView, Column, Session, Table
from penstock.sql.tree.fired_queries import (
    OF_ALL,
    OF_CLOCK,
    OF_SLIDING,
    OF_WINDOWS,
    PLACEHOLDERS,
    for_one,
    forced,
    only_told,
    sample_values,
)
from penstock.sql.tree.read_tables import tables_of
from penstock.sql.tree.statements import (
    TRIGGER,
    Calculation,
    CountWindow,
    CreateStream,
    EventWindow,
    ExternalSource,
    Name,
    Query,
    StreamOptions,
    TableSource,
)
from penstock.sql.tree.walking import copied, found_in
from penstock.sql.types import DataType, Kind, Precision, check_stored, timestamp

_OF_NOW = ("now", "today")


def triggered(statement: CreateStream, session: Session) -> tuple[CreateStream, Session]:
    """Returns the statement with all that its trigger goes by in its query, and for whom it is planned."""
    does = statement.calculation
    if does is None:
        return statement, session
    if does.history_from is not None:
        since = exp.GTE(this=exp.column("_c0"), expression=exp.Paren(this=copied(does.history_from)))
        where = statement.select.where
        both = since if where is None else exp.And(this=exp.Paren(this=copied(where)), expression=since)
        statement = statement.with_changes(query=statement.select.with_changes(where=both))
    if does.notify_only:
        target = statement.target
        statement = statement.with_changes(target=target.with_changes(name=Name("", target.name.database)))
    return statement.with_changes(options=_options_of(statement, does)), session_of(statement, session)


def check_trigger(statement: CreateStream) -> None:
    """Raises InvalidStreamError if windows depend on the time of now: tasks only know that of the stream's creation."""
    if statement.calculation is None or statement.calculation.period is not None:
        return
    for node in found_in(statement.select, exp.Anonymous):
        if node.this in _OF_NOW:
            raise InvalidStreamError(
                f"{node.this}() in a trigger would be the time at which the stream was created",
                hint="compare with it in the query, where it is the time of the execution")


def session_of(statement: CreateStream, session: Session) -> Session:
    """Returns the session with the database where unqualified names of the statement lead."""
    does = statement.calculation
    return session if does is None or does.database is None else replace(session, database=does.database)


def plan_calculation(
    statement: CreateStream, catalog: CatalogView, session: Session, precision: Precision,
    groups: Sequence[DataType], *, by_table: bool,
) -> CalculationPlan:
    """Returns what is computed apart from the trigger. `groups`: the types of what PARTITION BY gives; `by_table`:
    whether each group is of one table. Raises what planning the query raises."""
    does = statement.calculation
    assert does is not None
    check_placeholders(does, len(statement.select.partition_by), grouped_by_table=by_table)
    columns: tuple[Column, ...] = ()
    uses = _Uses()
    if does.query is not None:
        _check_tables(does.query, catalog, session)
        sample = sample_values(does, statement.select, [with_length(kind) for kind in groups])
        reads_a_child = reads_child(statement, catalog, session)

        def planned(query: Query) -> BatchPlan:
            placed = for_one(query, statement.select, sample, by_table=reads_a_child)
            placed.change(source_text=statement.source_text, source_start=statement.source_start)
            return plan_query(placed, catalog, session)

        batch = planned(does.query)
        columns, uses = _result_columns(statement, batch, precision), _uses(does.query, batch, catalog, session)
        if does.where is not None:
            planned(only_told(does.query, does.where, [column.name for column in columns]))
        if does.force_output:
            planned(forced(does.query))
    return CalculationPlan(columns, f"{statement.name}_executions", 0, does.events, *uses)


class _Uses(NamedTuple):
    """The last fields of a CalculationPlan."""

    reads: tuple[QueriedTable, ...] = ()
    functions: tuple[str, ...] = ()
    connections: tuple[str, ...] = ()


def _uses(query: Query, batch: BatchPlan, catalog: CatalogView, session: Session) -> _Uses:
    """Returns what a query can't do without, beside views."""
    found: dict[int, tuple[Table, set[str]]] = {}
    for scan in batch.scans:
        if scan.table.kind in ("super", "normal", "child"):
            found.setdefault(scan.table.uid, (scan.table, set()))[1].update(scan.columns)
    connections = set()
    for source in tables_of(query):
        if isinstance(source, ExternalSource):
            connections.add(source.connection.name)
        elif (table := known_table(source.name, catalog, session)) is not None:
            found.setdefault(table.uid, (table, set()))
    reads = [QueriedTable(
        table.storage_uid, table.uid if table.kind == "child" else None,
        tuple(column.physical for column in (*table.columns, *table.tags) if column.name in names))
        for table, names in found.values()]
    return _Uses(tuple(reads), tuple(dict.fromkeys(call.function.name for call in batch.functions)),
                 tuple(sorted(connections)))


def _result_columns(statement: CreateStream, batch: BatchPlan, precision: Precision) -> tuple[Column, ...]:
    """Returns the columns of the result table, or of what is told."""
    given = statement.target.columns
    names = [column.alias or column.name for column in batch.columns]
    if given is not None:
        if len(given) != len(names):
            raise InvalidStatementError(f"{len(given)} columns are named, but the query has {len(names)}", code=0x263F)
        names = [name for name, _ in given]
    if not statement.target.name.name:
        return tuple(Column(name, column.type, name) for name, column in zip(names, batch.columns, strict=True))
    if len(names) < 2:
        raise InvalidStreamError("the query gives a time and at least one more column")
    if batch.columns[0].type.kind is not Kind.TIMESTAMP:
        raise InvalidStreamError(
            f"the first column of the query is {batch.columns[0].type.sql()}, and becomes the time of the result table",
            hint="begin with _twstart, or CAST(... AS TIMESTAMP)")
    if any(is_key and place != 1 for place, (_, is_key) in enumerate(given or ())):
        raise InvalidStatementError("beside the time only the second column can be a part of the primary key",
                                    code=0x263F)
    columns = []
    for place, (name, column) in enumerate(zip(names, batch.columns, strict=True)):
        check_stored(column.type)
        kind = timestamp(precision) if column.type.kind is Kind.TIMESTAMP else with_length(column.type)
        columns.append(Column("tbname_" if name == TBNAME else name, kind, name,
                              place == 1 and given is not None and given[1][1]))
    if len({column.name for column in columns}) < len(columns):
        raise InvalidStatementError("two columns of the result have the same name", hint="name one of them: AS name")
    return tuple(columns)


def _options_of(statement: CreateStream, does: Calculation) -> StreamOptions:
    """Returns the options such that windows fire when they are full: those of a count or an event with their last row,
    for which nobody need wait who allows for no disorder."""
    options, window = statement.options, statement.select.window
    told = () if statement.notify is None else statement.notify.events
    at_once = (isinstance(window, CountWindow | EventWindow) and options.trigger == "window_close"
               and options.watermark is None and "window_open" not in (*does.events, *told))
    if isinstance(window, CountWindow):  # rows before others would move all windows behind them
        options = options.with_changes(ignore_expired=True)
    return options.with_changes(trigger="at_once") if at_once else options


def _check_tables(query: Query, catalog: CatalogView, session: Session) -> None:
    """Raises InvalidStreamError for a table that shows who asks for it what he may see: nobody does here."""
    for source in tables_of(query):
        if isinstance(source, ExternalSource):
            continue
        table = known_table(source.name, catalog, session)
        if table is not None and table.kind == "system":
            raise InvalidStreamError(f"{source.name} is a system table: a stream cannot read it")


def reads_child(statement: CreateStream, catalog: CatalogView, session: Session) -> bool:
    """Whether the trigger's table is a super table, of which `%%tbname` is one child."""
    source = statement.select.source
    if not isinstance(source, TableSource):
        return False
    table = known_table(source.name, catalog, session)
    return table is not None and table.kind == "super"


def check_placeholders(does: Calculation, groups: int, *, grouped_by_table: bool) -> None:
    """Raises InvalidStreamError for what another kind of trigger gives. `groups`: how many items PARTITION BY has."""
    if does.query is None:
        return
    if does.period is not None:
        allowed, of = OF_CLOCK | OF_ALL, "PERIOD"
    elif does.slides:
        allowed, of = OF_SLIDING | OF_ALL, "SLIDING without INTERVAL"
    else:
        allowed, of = OF_WINDOWS | OF_ALL, "windows"
    for column in found_in(does.query, exp.Column):
        name = column.name
        if name in PLACEHOLDERS and not column.table and not column.this.quoted and name not in allowed:
            raise InvalidStreamError(f"{name} is not what a trigger of {of} gives",
                                     hint="it has " + ", ".join(sorted(allowed)))
        number = name.removeprefix(TRIGGER)
        if name != number and number.isdecimal() and not 1 <= int(number) <= groups:
            raise InvalidStreamError(f"{name} is not there: PARTITION BY has {groups} "
                                     f"{'item' if groups == 1 else 'items'}")
    named = any(column.name == f"{TRIGGER}tbname" for column in found_in(does.query, exp.Column)) or any(
        source.name.database == TRIGGER and source.name.name == "tbname"
        for source in found_in(does.query, TableSource))
    if named and not grouped_by_table:
        raise InvalidStreamError("%%tbname needs PARTITION BY tbname, or a trigger over one table")
